"""Removal of segments that lie below the start offset: chosen by the log's owner, unlinked on another thread.

Only segments below the recovery point go, that is after a checkpoint: an unlink that a crash undoes must not bring
records back, and what producers wrote there is remembered only by the snapshot. The oldest goes first, so that whatever
remains is the end of the log.

A disk may be so full that no checkpoint can be written; then removal is the only way out. The start marker is moved
first, by a rename, which needs no space, and made durable. After that segments above the recovery point may go too.
Recovery scans what is left, so if a crash undid one removal and not a later one, it would find a gap: the directory is
synced between them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from headrace.log.disk import replace_file
from headrace.log.segment import Segment
from headrace.log.start import marked_start, start_path
from headrace.ports import Disk
from headrace.vocabulary import Offset

__all__ = ["REMOVED_IN_ORDER_MAX", "Removal"]

REMOVED_IN_ORDER_MAX = 16
"""How many segments are removed at once if the directory must be synced after each."""


@dataclass(slots=True)
class Removal:
    """Segments that are out of service. ``run`` unlinks them, on whichever thread; it touches no log."""

    disk: Disk
    directory: str
    doomed: list[tuple[Segment, Offset]]
    """Oldest first, each with the offset at which the next begins."""
    recovery_offset: Offset
    target: Offset | None
    """Where the start marker must be moved first, on a full disk."""
    gone: list[Segment] = field(default_factory=list)
    marked_start: Offset | None = None
    """Where the start marker is now, if it was looked at."""
    error: OSError | None = None

    def run(self) -> None:
        try:
            if self.target is not None:
                self._mark_start(self.target)
            for segment, end in self.doomed:
                if end > self.recovery_offset:
                    self.disk.sync_dir(self.directory)
                segment.unlink(self.disk)
                self.gone.append(segment)
        except OSError as error:
            self.error = error

    @property
    def left(self) -> list[Segment]:
        """What could not be removed."""
        return [segment for segment, _ in self.doomed[len(self.gone) :]]

    def _mark_start(self, target: Offset) -> None:
        """Move the marker and make it durable. Without a marker, a file of the first segment becomes one: all of that
        segment goes. Asking the directory where the marker is costs little here; a checkpoint that failed may have
        moved it."""
        marked = marked_start(self.disk.listdir(self.directory))
        first = self.doomed[0][0]
        source = start_path(self.directory, marked) if marked else first.smallest_file(self.disk)
        marker = start_path(self.directory, target)
        if marked < target:
            self.disk.rename(source, marker)
            marked = target
        self.disk.sync_dir(self.directory)
        self.marked_start = marked
        if source == first.path:
            with suppress(OSError):  # a reader may hold the segment, so it is replaced and not truncated
                replace_file(self.disk, marker, b"", sync=False)
