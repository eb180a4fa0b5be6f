"""kill -9 under load: confirmed messages are there, acknowledged ones do not come back, others are marked, all in
order."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import testing
from tests.amqp.kills import History, run

pytestmark = pytest.mark.servers

KILLS = 4


def test_nothing_confirmed_is_lost_and_nothing_acknowledged_returns(tmp_path: Path) -> None:
    with testing.broker(in_process=False, amqp=True, data=tmp_path / "data") as broker:
        history = run(broker, KILLS, seed=1)
    assert history.judged() == []
    assert len(history.settled) > 100


@pytest.mark.parametrize("fault", ["lost", "returned", "unmarked", "unexpected", "disordered"])
def test_the_judge_finds_every_planted_fault(fault: str) -> None:
    history = History(sent={"a-0", "a-1", "b-0"}, confirmed={"a-0", "a-1", "b-0"})
    history.received("b-0", is_redelivered=False)
    history.received("a-1" if fault == "disordered" else "a-0", is_redelivered=False)
    history.settled.add("b-0")
    if fault != "lost":
        history.received("a-0" if fault == "disordered" else "a-1", is_redelivered=False)
    if fault == "returned":
        history.received("b-0", is_redelivered=True)
    if fault == "unmarked":
        history.received("a-1", is_redelivered=False)
    if fault == "unexpected":
        history.received("c-0", is_redelivered=False)
    assert [kind for kind, _ in history.judged()] == [fault]


def test_what_comes_back_may_be_late_for_who_gave_it_back_and_is_first_for_others() -> None:
    history = History(sent={"a-0", "a-1"}, confirmed={"a-0", "a-1"})
    history.received("a-0", is_redelivered=False)
    history.gave_back("a-0")
    history.received("a-1", is_redelivered=False)
    history.received("a-0", is_redelivered=True)
    history.consumer_began()
    history.received("a-0", is_redelivered=True)
    assert history.judged() == []
    history.received("a-1", is_redelivered=True)
    history.received("a-0", is_redelivered=True)
    assert history.judged() == [("disordered", "a-0")]
