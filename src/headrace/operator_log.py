"""The log of messages that an operator reads: on the terminal and, where ``log.file`` is set, in a file.

Lines have a time, a level, the part that speaks and one sentence; with ``log.format=json`` each is a JSON object with
these as ``time``, ``level``, ``part`` and ``message``. Three rules hold for all of them:

* Writing never waits. Records go through a bounded queue to a thread; when it is full they are dropped and counted.
* A client cannot fill the disk. Of each kind of message (one call of the logger in the code) ``BURST`` are written at
  once and then one in ``REFILL_S`` seconds, which says how many were left out. If no more come, a line says so after
  ``REFILL_S`` seconds or at the end. What recovery found is always written.
* A client cannot forge lines: characters that move the cursor are escaped in messages and tracebacks.
"""

from __future__ import annotations

import json
import logging
import queue
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from io import FileIO
from pathlib import Path
from time import monotonic
from typing import TextIO

from headrace.errors import UsageError

__all__ = ["LEVELS", "JsonFormatter", "LineFormatter", "OperatorLog", "RateLimit"]

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

BURST = 20
REFILL_S = 30.0
KINDS_MAX = 1_000
MESSAGE_CHARACTERS_MAX = 4_000
EXAMPLE_CHARACTERS_MAX = 200
QUEUE_LENGTH_MAX = 10_000
FLUSH_S = 2.0

_LOGGERS = ("headrace", "asyncio")
_UNLIMITED = ("headrace.recovery", "headrace.node")
"""What they say is bounded by itself: by the files of the data directory, or by starts and stops."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class LineFormatter(logging.Formatter):
    """``2026-11-20T14:03:22.123+01:00 WARNING server: …``; a traceback follows on indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
        part = record.name.removeprefix("headrace.")
        line = f"{time} {record.levelname:<7} {part}: {_bounded(record.getMessage())}"
        if record.exc_info:
            line += "".join(f"\n    {_bounded(each)}" for each in self.formatException(record.exc_info).split("\n"))
        return line


class JsonFormatter(logging.Formatter):
    """The same as one line of JSON; a traceback is the field ``traceback``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "part": record.name.removeprefix("headrace."),
            "message": _bounded(record.getMessage()),
        }
        if record.exc_info:
            lines = self.formatException(record.exc_info).split("\n")
            fields["traceback"] = "\n".join(_bounded(each) for each in lines)
        return json.dumps(fields)


FORMATTERS: dict[str, Callable[[], logging.Formatter]] = {"text": LineFormatter, "json": JsonFormatter}


def _bounded(text: str) -> str:
    text = _CONTROL.sub(_escaped, text)
    if len(text) > MESSAGE_CHARACTERS_MAX:
        return f"{text[:MESSAGE_CHARACTERS_MAX]}… ({len(text)} characters)"
    return text


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


@dataclass(slots=True)
class _Allowance:
    tokens: float
    since: float
    left_out: int = 0
    level: int = logging.INFO
    example: str = ""
    """The last message that was left out."""


class RateLimit(logging.Filter):
    """Lets ``BURST`` messages of a kind pass, and then one in ``REFILL_S``."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._now = now
        self._allowances: dict[tuple[str, str], _Allowance] = {}
        self._looked_at = now()
        self._lock = threading.Lock()
        self.left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith(_UNLIMITED) or record.levelno >= logging.CRITICAL:
            return True
        with self._lock:
            return self._passes(record)

    def take_left_out(self, *, at_end: bool = False) -> list[logging.LogRecord]:
        """Messages that say what was left out, for kinds of which no more came for ``REFILL_S``; all kinds ``at_end``.
        Call it often: it looks once in ``REFILL_S``."""
        now = self._now()
        if now - self._looked_at < REFILL_S and not at_end:
            return []
        with self._lock:
            self._looked_at = now
            found = []
            for (name, _), each in self._allowances.items():
                if each.left_out and (at_end or now - each.since >= REFILL_S):
                    values = each.left_out, each.example
                    found.append(
                        logging.LogRecord(
                            name, each.level, "", 0, "%d more were left out, the last one: %s", values, None
                        )
                    )
                    each.left_out = 0
            return found

    def _passes(self, record: logging.LogRecord) -> bool:
        now = self._now()
        kind = self._kind(record)
        allowance = self._allowances.setdefault(kind, _Allowance(BURST, now))
        allowance.tokens = min(BURST, allowance.tokens + (now - allowance.since) / REFILL_S)
        allowance.since = now
        if allowance.tokens < 1:
            allowance.left_out += 1
            allowance.level = record.levelno
            allowance.example = record.getMessage()[:EXAMPLE_CHARACTERS_MAX]
            self.left_out += 1
            return False
        allowance.tokens -= 1
        if allowance.left_out:
            record.msg = f"{record.getMessage()} (and {allowance.left_out} more like it)"
            record.args = ()
            allowance.left_out = 0
        return True

    def _kind(self, record: logging.LogRecord) -> tuple[str, str]:
        """The text before its arguments are put in. asyncio puts them in itself, so its messages are one kind, and so
        is what comes after ``KINDS_MAX`` kinds."""
        kind = record.name, str(record.msg)
        if record.name.startswith("headrace") and (kind in self._allowances or len(self._allowances) < KINDS_MAX):
            return kind
        return record.name, ""


class _Enqueue(logging.Handler):
    """Hands lines to the writing thread without waiting for it."""

    def __init__(self, lines: queue.Queue[str | threading.Event | None], formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._lines = lines
        self.dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self.dropped += 1
        except Exception:
            self.handleError(record)


class OperatorLog:
    """Catches what headrace logs, from ``start`` to ``stop``."""

    def __init__(
        self,
        *,
        level: str = "INFO",
        file: Path | None = None,
        terminal: TextIO | None = None,
        form: str = "text",
    ) -> None:
        """``form``: text or json."""
        self._level = level
        self._path = file
        self._terminal = terminal or sys.stderr
        self._file: FileIO | None = None
        self._file_lock = threading.Lock()
        self._queue: queue.Queue[str | threading.Event | None] = queue.Queue(QUEUE_LENGTH_MAX)
        """Lines; an event is set when its turn comes; None ends the thread."""
        self._limit = RateLimit()
        self._handler = _Enqueue(self._queue, FORMATTERS[form]())
        self._handler.addFilter(self._limit)
        self._thread = threading.Thread(target=self._write_all, name="headrace-operator-log", daemon=True)
        self._levels_before: dict[str, int] = {}
        """The levels that the loggers had, and get back."""

    @property
    def lines_dropped(self) -> int:
        """Lines that were not written: too many of a kind, or too many for the thread."""
        return self._limit.left_out + self._handler.dropped

    @property
    def has_file(self) -> bool:
        return self._path is not None

    def start(self) -> None:
        """Raises UsageError when the file cannot be written."""
        if self._path is not None:
            try:
                self._file = self._opened(self._path)
            except OSError as error:
                raise UsageError(
                    f"cannot write the log file {self._path}: {error.strerror}", "give another path with --log-file"
                ) from None
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            self._levels_before[name] = logger.level
            logger.setLevel(self._level)
            logger.addHandler(self._handler)
            logger.propagate = False
        self._thread.start()

    def reopen(self) -> None:
        """Open the file again by its path: logrotate has moved the old one."""
        if self._path is None:
            return
        try:
            file = self._opened(self._path)
        except OSError as error:
            logging.getLogger("headrace.node").error(
                "the log file %s cannot be opened again: %s; the old one is written on", self._path, error.strerror
            )
            return
        with self._file_lock:
            old, self._file = self._file, file
        if old is not None:
            old.close()
        logging.getLogger("headrace.node").info("the log file %s was opened again", self._path)

    def flush(self) -> None:
        """Wait until what was logged before is written, but not longer than ``FLUSH_S``."""
        written = threading.Event()
        with suppress(queue.Full):
            self._queue.put(written, timeout=FLUSH_S)
            written.wait(FLUSH_S)

    def stop(self) -> None:
        """Write what is queued, within ``FLUSH_S``, and let go of the loggers."""
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            logger.removeHandler(self._handler)
            logger.propagate = True
            logger.setLevel(self._levels_before.pop(name, logger.level))
        if self._thread.is_alive():
            with suppress(queue.Full):
                self._queue.put(None, timeout=FLUSH_S)
                self._thread.join(FLUSH_S)
        if not self._thread.is_alive() and self._file is not None:
            self._file.close()
            self._file = None

    @staticmethod
    def _opened(path: Path) -> FileIO:
        """Without a buffer: what could not be written is gone, and not tried again with the next line."""
        return path.open("ab", buffering=0)

    # On the writing thread.

    def _write_all(self) -> None:
        is_last = False
        while not is_last:
            try:
                line = self._queue.get(timeout=REFILL_S)
            except queue.Empty:
                line = ""
            if isinstance(line, threading.Event):
                line.set()
                continue
            if line:
                self._write(line)
            is_last = line is None
            for record in self._limit.take_left_out(at_end=is_last):
                self._write(self._handler.format(record))

    def _write(self, line: str) -> None:
        try:
            self._terminal.write(f"{line}\n")
            self._terminal.flush()
        except (OSError, ValueError):  # nobody reads it any more
            self._handler.dropped += 1
        with self._file_lock:
            self._write_to_file(f"{line}\n".encode(errors="backslashreplace"))

    def _write_to_file(self, line: bytes) -> None:
        if self._file is not None:
            try:
                self._file.write(line)
            except OSError:  # the disk is full: there is no better place to say so
                self._handler.dropped += 1
