"""What a node tells its operator about itself: how it starts, what recovery found, and while that takes long, how far
it is."""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections.abc import Callable
from time import monotonic
from types import TracebackType

import headrace
from headrace.config import BROKER_SETTINGS, Kind, Settings, Source, show_value
from headrace.log.findings import Severity, StoreReport

__all__ = ["RecoveryWatch", "count_text", "log_recovery", "log_start", "size_text"]

LOG = logging.getLogger("headrace.node")

PROGRESS_S = 5.0


def log_start(settings: Settings, directory: str) -> None:
    LOG.info(
        "headrace %s starts with its data in %s (process %d, Python %s)",
        headrace.__version__,
        directory,
        os.getpid(),
        platform.python_version(),
    )
    changed = [
        f"{name}={_shown(name, settings)} ({settings.origin(name)})"
        for name in BROKER_SETTINGS
        if settings.source(name) is not Source.DEFAULT
    ]
    if changed:
        LOG.info("settings that are not the defaults: %s", ", ".join(changed))


def _shown(name: str, settings: Settings) -> str:
    return "(secret)" if BROKER_SETTINGS[name].kind is Kind.PASSWORD else show_value(settings.get(name))


def log_recovery(report: StoreReport) -> None:
    """The totals; each finding was logged when it was found."""
    cuts = f", {count_text(report.cuts, 'torn end')} cut ({size_text(report.cut_bytes)})" if report.cuts else ""
    LOG.info(
        "%s opened in %.1f s: %s read and checked%s",
        count_text(report.logs, "log"),
        report.seconds,
        size_text(report.scanned_bytes),
        cuts,
    )
    if report.logs_damaged:
        LOG.error(
            "%s damaged and not served, see above; stop the broker: 'headrace log repair DATA' shows what can be saved",
            count_text(report.logs_damaged, "log is", "logs are"),
        )
    elif report.count(Severity.ERROR):
        LOG.error("%s above", count_text(report.count(Severity.ERROR), "error"))


class RecoveryWatch:
    """While it is entered, a thread says every few seconds how far recovery is: the event loop is busy with it."""

    def __init__(
        self, report: StoreReport, *, interval_s: float = PROGRESS_S, now: Callable[[], float] = monotonic
    ) -> None:
        self._report = report
        self._interval_s = interval_s
        self._now = now
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-recovery-watch", daemon=True)

    def __enter__(self) -> RecoveryWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        began = self._now()
        while not self._ended.wait(self._interval_s):
            LOG.info(
                "still opening the data directory after %.0f s: %s open, %s read and checked",
                self._now() - began,
                count_text(self._report.logs, "log"),
                size_text(self._report.scanned_bytes),
            )


def count_text(count: int, one: str, many: str = "") -> str:
    """``1 log``, ``2 logs``."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def size_text(count: float) -> str:
    """Bytes for people: ``3.2 MB``."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
