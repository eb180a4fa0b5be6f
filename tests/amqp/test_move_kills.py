"""kill -9 while messages are moved, redriven and restored: none is lost, and no second copy is silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.amqp.move_kills import MoveHistory, run

pytestmark = pytest.mark.servers


def test_moves_and_restores_lose_nothing_and_double_nothing_in_silence(tmp_path: Path) -> None:
    history, done, wrong = run(tmp_path / "data", kills=2, seed=2)
    assert history.judged() == []
    assert wrong == []
    assert min(done["moved"], done["redriven"]) > 0


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("lost", [("a", False)]),
        ("unexpected", [("a", False), ("b", False), ("c", True)]),
        ("doubled", [("a", False), ("b", False), ("b", False), ("b", True)]),
    ],
)
def test_the_judge_finds_every_planted_fault(fault: str, found: list[tuple[str, bool]]) -> None:
    history = MoveHistory(sent={"a", "b"}, confirmed={"a", "b"}, found=found)
    assert [kind for kind, _ in history.judged()] == [fault]


def test_a_second_copy_that_says_so_is_no_fault() -> None:
    history = MoveHistory(sent={"a"}, confirmed={"a"}, found=[("a", False), ("a", True)])
    assert history.judged() == []
