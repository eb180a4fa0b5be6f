"""The operator's log: its lines, its limits, its file."""

from __future__ import annotations

import io
import json
import logging
import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.operator_log import BURST, KINDS_MAX, QUEUE_LENGTH_MAX, REFILL_S, OperatorLog, RateLimit
from tests.waiting import eventually

LOG = logging.getLogger("headrace.test")
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d (\w+) +(\w+): (.*)")


@pytest.fixture
def terminal() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def log(terminal: io.StringIO, tmp_path: Path) -> Iterator[OperatorLog]:
    operator_log = OperatorLog(file=tmp_path / "headrace.log", terminal=terminal)
    operator_log.start()
    yield operator_log
    operator_log.stop()


def record(message: str, name: str = "headrace.server") -> logging.LogRecord:
    return logging.LogRecord(name, logging.WARNING, "", 0, message, (), None)


def test_a_line_has_a_time_a_level_a_part_and_a_message(log: OperatorLog, terminal: io.StringIO) -> None:
    LOG.warning("%d of %s", 3, "5 % things")
    log.stop()
    found = LINE.fullmatch(terminal.getvalue().rstrip("\n"))
    assert found is not None
    assert found.groups() == ("WARNING", "test", "3 of 5 % things")


def test_after_the_end_loggers_have_the_level_they_had_before() -> None:
    before = logging.getLogger("headrace").level
    log = OperatorLog(level="DEBUG", terminal=io.StringIO())
    log.start()
    assert logging.getLogger("headrace").level == logging.DEBUG
    log.stop()
    log.stop()
    assert logging.getLogger("headrace").level == before


def test_what_a_client_sent_cannot_begin_a_new_line(log: OperatorLog, terminal: io.StringIO) -> None:
    LOG.warning("client %s", "x\n2026-01-01T00:00:00.000+00:00 ERROR   recovery: all is lost\x1b[2J\u2028")
    log.stop()
    assert terminal.getvalue().count("\n") == 1
    assert r"x\n2026" in terminal.getvalue()
    assert "\x1b" not in terminal.getvalue()


def test_a_very_long_message_is_cut(log: OperatorLog, terminal: io.StringIO) -> None:
    LOG.warning("x" * 100_000)
    log.stop()
    assert len(terminal.getvalue()) < 5_000
    assert "(100000 characters)" in terminal.getvalue()


def test_a_traceback_follows_its_line_indented(log: OperatorLog, terminal: io.StringIO) -> None:
    try:
        raise ZeroDivisionError("a mistake of ours")
    except ZeroDivisionError:
        LOG.exception("it failed")
    log.stop()
    first, *others = terminal.getvalue().splitlines()
    assert LINE.fullmatch(first)
    assert others[-1] == "    ZeroDivisionError: a mistake of ours"
    assert all(line.startswith("    ") for line in others)


def test_a_traceback_cannot_move_the_cursor_either(log: OperatorLog, terminal: io.StringIO) -> None:
    try:
        raise ZeroDivisionError("group evil\x1b[2J\u2028\r" + "x" * 100_000)
    except ZeroDivisionError:
        LOG.exception("it failed")
    log.stop()
    assert r"evil\x1b[2J\u2028\r" in terminal.getvalue()
    assert not set("\x1b\u2028\r") & set(terminal.getvalue())
    assert len(terminal.getvalue()) < 10_000


def test_what_was_left_out_is_reported_at_the_end(log: OperatorLog, terminal: io.StringIO) -> None:
    for number in range(BURST + 7):
        LOG.warning("flood %d", number)
    log.stop()
    assert terminal.getvalue().rstrip("\n").endswith(f"test: 7 more were left out, the last one: flood {BURST + 6}")


def test_the_file_holds_what_the_terminal_shows(log: OperatorLog, terminal: io.StringIO, tmp_path: Path) -> None:
    LOG.info("one")
    LOG.debug("below the level")
    LOG.error("two")
    log.stop()
    assert (tmp_path / "headrace.log").read_text() == terminal.getvalue()
    assert terminal.getvalue().count("\n") == 2


def test_after_a_rotation_lines_go_to_the_new_file(log: OperatorLog, tmp_path: Path) -> None:
    path, moved = tmp_path / "headrace.log", tmp_path / "headrace.log.1"
    LOG.info("before")
    eventually(lambda: "before" in path.read_text())
    path.rename(moved)
    LOG.info("meanwhile")
    eventually(lambda: "meanwhile" in moved.read_text())
    log.reopen()
    LOG.info("after")
    log.stop()
    assert "after" in path.read_text()
    assert "after" not in moved.read_text()


def test_a_file_that_cannot_be_opened_again_is_said_and_the_old_one_is_written_on(
    log: OperatorLog, tmp_path: Path
) -> None:
    path, moved = tmp_path / "headrace.log", tmp_path / "headrace.log.1"
    path.rename(moved)
    path.mkdir()
    log.reopen()
    LOG.info("after")
    log.stop()
    assert "cannot be opened again" in moved.read_text()
    assert "after" in moved.read_text()


def test_a_file_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--log-file"):
        OperatorLog(file=tmp_path / "nowhere" / "headrace.log").start()


def test_many_messages_of_a_kind_are_written_a_few_times_and_counted() -> None:
    now = 0.0
    limit = RateLimit(lambda: now)
    passed = [limit.filter(record("flood")) for _ in range(1000)]
    assert passed == [True] * BURST + [False] * (1000 - BURST)
    assert limit.filter(record("something else"))
    now = REFILL_S
    late = record("flood")
    assert limit.filter(late)
    assert late.getMessage() == f"flood (and {1000 - BURST} more like it)"
    assert not limit.filter(record("flood"))


def test_what_was_left_out_is_reported_after_a_while_when_no_more_comes() -> None:
    now = 0.0
    limit = RateLimit(lambda: now)
    for _ in range(BURST + 5):
        limit.filter(record("flood"))
    assert limit.take_left_out() == []
    now = REFILL_S
    assert [each.getMessage() for each in limit.take_left_out()] == ["5 more were left out, the last one: flood"]
    now = 2 * REFILL_S
    assert limit.take_left_out() == []


def test_messages_that_all_differ_are_limited_together() -> None:
    now = 0.0
    limit = RateLimit(lambda: now)
    assert sum(limit.filter(record(f"task {number} failed", "asyncio")) for number in range(1000)) == BURST
    passed = sum(limit.filter(record(f"made up {number}")) for number in range(5 * KINDS_MAX))
    assert passed <= KINDS_MAX + BURST


def test_what_recovery_found_is_never_left_out() -> None:
    limit = RateLimit()
    assert all(limit.filter(record("%s", "headrace.recovery")) for _ in range(1000))


def test_a_terminal_that_nobody_reads_holds_up_nobody() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as terminal:
        log = OperatorLog(terminal=terminal)
        log.start()
        for number in range(QUEUE_LENGTH_MAX + 5_000):
            logging.getLogger("headrace.recovery").info("a line %d that is long enough to fill a pipe soon", number)
        assert log.lines_dropped > 0
        os.set_blocking(reader, False)
        eventually(lambda: drained(reader) and log._queue.empty())
        log.stop()
    os.close(reader)


def drained(reader: int) -> bool:
    try:
        while os.read(reader, 1 << 20):
            pass
    except BlockingIOError:
        pass
    return True


def test_a_file_that_is_full_costs_lines_and_nothing_else() -> None:
    terminal = io.StringIO()
    log = OperatorLog(file=Path("/dev/full"), terminal=terminal)
    log.start()
    LOG.info("one")
    LOG.info("two")
    log.stop()
    assert terminal.getvalue().count("\n") == 2
    assert log.lines_dropped == 2


def test_as_json_each_line_is_an_object_that_no_message_can_break() -> None:
    terminal = io.StringIO()
    operator_log = OperatorLog(terminal=terminal, form="json")
    operator_log.start()
    try:
        logging.getLogger("headrace.server").warning('"two\nlines"\u2028 %s', "\x1b[2J")
        try:
            raise ValueError("of\na kind")
        except ValueError:
            logging.getLogger("headrace.broker").exception("it failed")
    finally:
        operator_log.stop()
    first, second = map(json.loads, terminal.getvalue().splitlines())
    assert (first["level"], first["part"]) == ("WARNING", "server")
    assert first["message"] == '"two\\nlines"\\u2028 \\x1b[2J'
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert second["message"] == "it failed"
    assert second["traceback"].splitlines()[0] == "Traceback (most recent call last):"
    assert "ValueError: of" in second["traceback"]
