"""Alarms of a slot come with what to do, and a status never repeats what a dead capture said."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.capture.options import CaptureOptions
from headrace.capture.postgres.health import slot_health
from headrace.capture.report import CaptureReport
from headrace.capture.source import Progress, SourceStatus
from headrace.cli.capture_status import lag_of
from headrace.client import StatePublisher, StateRecord

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


def test_the_lag_that_a_dead_capture_said_last_is_not_shown() -> None:
    report = StateRecord(kind="capture", name="shop", at_ms=1_000_000, heartbeat_ms=1_000, details={"lag_ms": 0})
    assert lag_of(SourceStatus(), report, report.at_ms) == 0
    assert lag_of(SourceStatus(), report, report.at_ms + 60_000) is None
    assert lag_of(SourceStatus(lag_ms=59_000), report, report.at_ms + 60_000) == 59_000
    assert lag_of(SourceStatus(), None, report.at_ms) is None


class Kept(StatePublisher):
    """Keeps what it is to publish."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1")
        self.details: list[Any] = []

    def publish(self, kind: str, name: str, **values: Any) -> None:
        self.details.append(values["details"])


def test_rates_of_snapshots_are_those_between_two_reports() -> None:
    publisher = Kept()
    report = CaptureReport(CaptureOptions(name="shop", url="sqlite:////shop.db"), publisher)
    report.running({"t": Progress(rows=0), "done": Progress(done=True, rows=7)})
    report.running({"t": Progress(rows=1_000), "done": Progress(done=True, rows=7)})
    first, second = (each["tables"] for each in publisher.details)
    assert "rows_per_s" not in first["t"]
    assert second["t"]["rows_per_s"] > 0
    assert second["done"] == {"done": True, "rows": 7, "expected": 0}


def test_a_report_has_no_password_and_no_keys_of_rows() -> None:
    publisher = Kept()
    options = CaptureOptions(name="shop", url="postgresql://app:secret@db.example.com/shop")
    CaptureReport(options, publisher).running({"t": Progress(rows=1, after=["anna"])}, SourceStatus(position="0/1"))
    assert "secret" not in str(publisher.details)
    assert "anna" not in str(publisher.details)
    assert publisher.details[0]["position"] == "0/1"
