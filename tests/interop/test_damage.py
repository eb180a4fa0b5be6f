"""Every kind of damage to every kind of file of a data directory, once; ``make chaos`` has a thousand at random."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.chaos.damage import DEFECTS, judge, listening, one_of_each
from tests.chaos.damage_world import ENDS, World, build

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> list[World]:
    return [build(tmp_path_factory.mktemp(end) / "data", end) for end in ENDS]


def test_without_damage_clients_see_what_they_saw_before(worlds: list[World], tmp_path: Path) -> None:
    outcomes = [judge(world, None, tmp_path) for world in worlds]
    assert [(each.verdict, each.details) for each in outcomes] == [("same", ())] * len(ENDS)
    assert not any(each.verified for each in outcomes), "log verify finds nothing in a healthy directory"


def test_no_damage_is_silent_and_every_file_is_named(worlds: list[World], tmp_path: Path) -> None:
    outcomes = [judge(world, damage, tmp_path) for world, damage in one_of_each(worlds)]
    assert len(outcomes) > 30
    assert [(each.verdict, str(each.damage), each.details) for each in outcomes if each.verdict in DEFECTS] == []
    assert [str(each.damage) for each in outcomes if each.verdict != "same" and not each.verified] == []


def test_warnings_are_heard_whatever_level_another_test_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "level", logging.ERROR)
    with listening() as heard:
        logging.getLogger("headrace.recovery").warning("damaged")
    assert heard.lines == ["damaged"]
