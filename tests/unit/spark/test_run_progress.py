"""From Spark's reports to a line: rates, lag, watermark; and where lines go."""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.spark.progress import (
    Board,
    Snapshot,
    Tracker,
    as_json,
    board_on,
    duration,
    lag_of,
    line_of,
    screen_cleared,
    watermark_of,
)


def report(batch: int, rows: int = 0, *, at: str = "", run: str = "r", **more: Any) -> dict[str, Any]:
    return {"runId": run, "batchId": batch, "timestamp": at or f"t{batch}", "numInputRows": rows, **more}


def test_lag_is_what_the_log_has_beyond_what_was_read_over_all_sources() -> None:
    first = {"latestOffset": '{"orders": {"0": 10, "1": 7}}', "endOffset": '{"orders": {"0": 4, "1": 7}}'}
    second = {"latestOffset": {"users": {"0": 3}}, "endOffset": {"users": {"0": 1}}}
    assert lag_of({"sources": [first, second]}) == 8


def test_lag_is_unknown_and_not_zero_when_no_source_tells_it() -> None:
    assert lag_of({"sources": [{"latestOffset": "null", "endOffset": "5"}]}) is None
    assert lag_of({}) is None


def test_a_source_that_tells_no_lag_does_not_hide_that_of_another() -> None:
    known = {"latestOffset": {"orders": {"0": 10}}, "endOffset": {"orders": {"0": 4}}}
    assert lag_of({"sources": [{"latestOffset": None, "endOffset": 3}, known]}) == 6


def test_a_watermark_that_has_not_moved_yet_is_none() -> None:
    assert watermark_of({"eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}}) is None
    moved = watermark_of({"eventTime": {"watermark": "2026-01-31T10:02:00.000Z"}})
    assert moved == datetime(2026, 1, 31, 10, 2, tzinfo=UTC)


def test_a_report_that_is_seen_twice_counts_once() -> None:
    tracker = Tracker("orders")
    assert len(tracker.take([report(0, 10), report(1, 20)], 0.0)) == 2
    assert tracker.take([report(0, 10), report(1, 20)], 1.0) == []
    assert [each["batchId"] for each in tracker.take([report(1, 20), report(2, 5)], 2.0)] == [2]
    assert tracker.snapshot(2.0, "running").rows == 35


def test_after_a_restart_the_same_batch_number_is_a_new_report() -> None:
    tracker = Tracker("orders")
    tracker.take([report(7, 10, run="first")], 0.0)
    assert tracker.is_new(report(7, 10, run="second"))
    assert tracker.take([report(7, 10, run="second")], 1.0)
    assert tracker.batches == 2


def test_the_rate_is_that_of_the_last_ten_seconds_and_falls_to_zero_when_nothing_comes() -> None:
    tracker = Tracker("orders")
    tracker.take([report(0, 1000)], 0.0)
    tracker.take([report(0, 1000), report(1, 4000)], 10.0)
    assert tracker.snapshot(10.0, "running").rows_per_s == 500.0
    assert tracker.snapshot(15.0, "running").rows_per_s == 400.0
    assert tracker.snapshot(30.0, "running").rows_per_s == 0.0


def test_the_rate_of_a_batch_that_took_long_is_by_its_own_time() -> None:
    tracker = Tracker("orders")
    tracker.take([report(0, 600, durationMs={"triggerExecution": 60_000})], 100.0)
    assert tracker.snapshot(100.0, "running").rows_per_s == 10.0
    assert tracker.snapshot(105.0, "running").rows_per_s == 5.0


def test_the_line_has_rate_lag_watermark_and_batch_time() -> None:
    now = datetime(2026, 1, 31, 10, 2, 12, tzinfo=UTC)
    shown = Snapshot(
        name="revenue",
        state="running",
        rows_per_s=1204.4,
        lag=12_000,
        watermark=datetime(2026, 1, 31, 10, 2, tzinfo=UTC),
        batch_id=4,
        batch_ms=118,
    )
    assert line_of(shown, now=now, name_width=9) == (
        "revenue    running  1,204 rows/s  lag 12,000  watermark 10:02:00 (12 s behind)  batch 118 ms"
    )


def test_a_watermark_in_another_time_altogether_is_shown_with_its_date() -> None:
    now = datetime(2026, 1, 31, 10, 2, 12, tzinfo=UTC)
    old = Snapshot(name="x", state="running", batch_id=0, watermark=datetime(2020, 5, 1, tzinfo=UTC))
    assert "watermark 2020-05-01 00:00:00" in line_of(old, now=now)


def test_before_the_first_batch_the_line_says_only_the_state() -> None:
    assert line_of(Snapshot(name="revenue", state="starting")) == "revenue  starting"


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [(3, "3 ms"), (1500, "1.5 s"), (59_000, "59 s"), (600_000, "10 min"), (3 * 3_600_000, "3.0 h")],
)
def test_durations_are_said_as_a_person_would(milliseconds: float, said: str) -> None:
    assert duration(milliseconds) == said


def test_programs_get_every_number() -> None:
    found = json.loads(as_json(Snapshot(name="revenue", state="running", lag=3, batch_id=2, batch_ms=90, rows=12)))
    assert (found["pipeline"], found["lag"], found["batch"], found["rows"]) == ("revenue", 3, 2, 12)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_lines_are_drawn_over_one_another_and_events_stay() -> None:
    screen = Terminal()
    board = Board(screen, width=60)
    snapshots = [Snapshot(name="one"), Snapshot(name="two")]
    board.show(snapshots, 0.0)
    board.say("two failed")
    board.show(snapshots, 0.5)
    board.show(snapshots, 1.0)
    erased = "\x1b[2A\x1b[J"
    lines = "one  starting\ntwo  starting\n"
    assert screen.getvalue() == f"{lines}{erased}two failed\n{lines}{erased}{lines}"


def test_a_terminal_that_knows_no_escapes_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    screen = Terminal()
    board = Board(screen)
    board.show([Snapshot(name="one")], 0.0)
    board.show([Snapshot(name="one")], 1.0)
    board.say("one failed")
    assert screen.getvalue() == "one  starting\none failed\n"


def test_rows_are_printed_where_programs_do_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    with screen_cleared() as tables:
        tables.write("for people\n")
    with board_on(sys.stderr, width=80, tables=sys.stderr), screen_cleared() as tables:
        tables.write("beside JSON\n")
    assert capsys.readouterr() == ("for people\n", "beside JSON\n")


def test_no_live_line_is_wider_than_the_terminal() -> None:
    screen = Terminal()
    Board(screen, width=20).show([Snapshot(name="n" * 50)], 0.0)
    assert screen.getvalue() == "n" * 19 + "\n"


def test_in_a_pipe_lines_come_every_ten_seconds_and_only_when_they_changed() -> None:
    pipe = io.StringIO()
    board = Board(pipe)
    for second in range(60):
        board.show([Snapshot(name="one", state="running" if second < 30 else "done")], float(second))
    assert pipe.getvalue() == "one  running\none  done\n"


def test_the_last_state_is_always_told_and_once() -> None:
    pipe = io.StringIO()
    board = Board(pipe)
    board.show([Snapshot(name="one", state="running")], 0.0)
    board.final([Snapshot(name="one", state="stopped")], 1.0)
    board.final([Snapshot(name="one", state="stopped")], 2.0)
    assert pipe.getvalue() == "one  running\none  stopped\n"


def test_what_operators_set_aside_or_give_up_is_shown() -> None:
    tracker = Tracker("alerts")
    fraud, searches = "state fraud", "state match_searches"
    tracker.take(
        [
            report(0, observedMetrics={fraud: {"dropped_partials": 2}, searches: {"bad_searches": 5}}),
            report(1, observedMetrics={fraud: {"dropped_partials": 3}, searches: {"bad_searches": 1}}),
            report(2, observedMetrics={fraud: {"dropped_partials": None}, "watermark a": {"newest": None}}),
        ],
        0.0,
    )
    assert tracker.snapshot(0.0, "running").note == "1 bad searches; 5 dropped partials"
    assert tracker.snapshot(0.0, "failed", "no disk").note == "no disk; 1 bad searches; 5 dropped partials"
    assert Tracker("quiet").snapshot(0.0, "running").note == ""
