"""What a log has written and no sync has covered yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.ports import Disk, File
from headrace.vocabulary import Offset

if TYPE_CHECKING:
    from headrace.log.log import PartitionLog
    from headrace.log.segment import Segment

__all__ = ["FlushMark", "Unsynced"]


@dataclass(slots=True)
class FlushMark:
    """What must be synced for a log, and how far the log will then be flushed."""

    log: PartitionLog
    end_offset: Offset
    files: dict[str, File]
    directory: str | None
    """Set when the directory has new entries."""

    def sync(self, disk: Disk) -> None:
        for file in self.files.values():
            file.datasync()
        if self.directory is not None:
            disk.sync_dir(self.directory)


class Unsynced:
    """Files with unsynced bytes by their paths, and whether the directory has unsynced entries."""

    __slots__ = ("directory_changed", "end_offset", "files")

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.directory_changed = False
        self.end_offset: Offset | None = None
        """Set while appends are left to the operating system: these files hold what was written before it."""

    def add_new(self, file: File) -> None:
        """The file was created, or created and written."""
        self.files[file.path] = file
        self.directory_changed = True

    def drop(self, segment: Segment) -> None:
        """The segment's files are removed or replaced."""
        self.files.pop(segment.path, None)
        self.files.pop(segment.aborted.path, None)

    def take(self, log: PartitionLog) -> FlushMark | None:
        """Hand over what must be synced so that everything up to the mark's ``end_offset`` is flushed."""
        if not self.files and not self.directory_changed:
            return None
        directory = log.directory if self.directory_changed else None
        end_offset = log.end_offset if self.end_offset is None else self.end_offset
        mark = FlushMark(log, end_offset, self.files, directory)
        self.files = {}
        self.directory_changed = False
        return mark
