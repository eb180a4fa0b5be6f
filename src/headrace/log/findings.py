"""What opening or checking a data directory finds, and the report that collects it.

A finding has one of three severities:

* ``info``: what a crash leaves, and nothing acknowledged was in it: a torn write that was cut, a file of somebody else.
* ``warning``: something of ours was damaged or lost and has been derived again, or unacknowledged bytes with whole
  batches in them were set aside.
* ``error``: acknowledged records are damaged or missing. The log is not served until somebody repairs it.

``StoreReport.add`` is the one place where findings are logged, to ``headrace.recovery``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

__all__ = ["Finding", "OnFinding", "Severity", "StoreReport"]

LOG = logging.getLogger("headrace.recovery")

FINDINGS_MAX: Final = 10_000
"""More are logged and counted, but not kept."""


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def level(self) -> int:
        """The level of ``logging`` that fits."""
        return {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}[self]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that somebody should know, and the file it is about."""

    severity: Severity
    path: str
    message: str
    position: int | None = None
    """The byte, where there is one."""

    def __str__(self) -> str:
        place = self.path if self.position is None else f"{self.path} at byte {self.position}"
        return f"{place}: {self.message}"


OnFinding = Callable[[Finding], None]


@dataclass(slots=True)
class StoreReport:
    """What opening the data directory found and did, with its totals."""

    clean: bool = False
    """The last owner stopped in order."""
    logs: int = 0
    """Logs that were opened."""
    logs_damaged: int = 0
    """Logs that were refused."""
    scanned_bytes: int = 0
    """Bytes after the recovery points that were read and checked."""
    cuts: int = 0
    cut_bytes: int = 0
    seconds: float = 0.0
    """From taking the directory until everything that was recovered had been synced."""
    findings: list[Finding] = field(default_factory=list)
    findings_not_kept: int = 0

    def add(self, finding: Finding) -> None:
        LOG.log(finding.severity.level, "%s", finding)
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.findings_not_kept += 1

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)
