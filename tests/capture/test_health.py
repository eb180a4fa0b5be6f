"""Alarms of a slot come with what to do, and a status never repeats what a dead capture said."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.capture.alive import SignOfLife, is_fresh
from headrace.capture.postgres.health import slot_health
from headrace.capture.source import Progress, SourceStatus
from headrace.cli.capture_status import lag_of

MB = 1_000_000


def slot(**values: Any) -> dict[str, Any]:
    return {"wal_status": "reserved", "retained_bytes": 10, "lag_bytes": 0, "safe_bytes": None, **values}


@pytest.mark.parametrize(
    ("values", "health", "advice"),
    [
        ({}, "ok", ""),
        ({"wal_status": "extended", "retained_bytes": 50 * MB}, "ok", ""),
        ({"retained_bytes": 80 * MB, "safe_bytes": 20 * MB}, "ok", ""),
        ({"retained_bytes": 80 * MB, "safe_bytes": 19 * MB}, "given up after 19000000 more bytes", "max_slot_wal_keep"),
        ({"lag_bytes": 101 * MB}, "behind by more than 100000000 bytes", "headrace capture run shop"),
        ({"wal_status": "unreserved"}, "unreserved", "max_slot_wal_keep_size"),
        ({"wal_status": "lost"}, "lost", "headrace capture run shop --resnapshot"),
    ],
)
def test_a_slot_raises_an_alarm_before_it_is_given_up_and_says_what_helps(
    values: dict[str, Any], health: str, advice: str
) -> None:
    found = slot_health(slot(**values), 100 * MB, "shop")
    assert health in found[0]
    assert advice in found[1]
    assert (found[0] == "ok") == (found[1] == "")


def test_a_sign_of_life_is_fresh_for_three_heartbeats_and_five_seconds_and_not_after_the_end() -> None:
    sign = SignOfLife(1_000).now()
    assert is_fresh(sign, sign["at_ms"] + 8_000)
    assert not is_fresh(sign, sign["at_ms"] + 8_001)
    assert not is_fresh(SignOfLife(1_000).now(stopped=True))
    assert not is_fresh({})


def test_the_lag_that_a_dead_capture_said_last_is_not_shown() -> None:
    sign = SignOfLife(1_000).now(status=SourceStatus(lag_ms=0))
    assert lag_of(SourceStatus(), sign, sign["at_ms"]) == 0
    assert lag_of(SourceStatus(), sign, sign["at_ms"] + 60_000) is None
    assert lag_of(SourceStatus(lag_ms=59_000), sign, sign["at_ms"] + 60_000) == 59_000


def test_rates_of_snapshots_are_those_between_two_signs() -> None:
    life = SignOfLife(1_000)
    life.now({"t": Progress(rows=0), "done": Progress(done=True, rows=7)})
    rates = life.now({"t": Progress(rows=1_000), "done": Progress(done=True, rows=7)})["rates"]
    assert set(rates) == {"t"}
    assert rates["t"] > 0
