"""What a log can run into, each with its place and its numbers.

LogError
├── OffsetOutOfRange          a read outside [start, end)
├── StorageError              the disk refused; nothing changed, a retry may help
│   ├── DiskFull              … for want of space
│   ├── CorruptLog            bytes on disk are not what was written: file and position; a retry does not help
│   └── SwapUnfinished        files were replaced in part; the next start completes it
├── RecordListTooLarge        one append larger than a segment
├── OutOfOrderSequence        a gap in a producer's sequence numbers
├── InvalidProducerEpoch      a producer that has been fenced
└── InvalidTransactionState   a plain batch inside a producer's open transaction
UsageError
└── DataDirectoryInUse        a second owner of the data directory

A log knows no protocol: ``broker/errors.py`` says which of Kafka's codes stands for each of these.
"""

from __future__ import annotations

import errno

from headrace.errors import HeadraceError, UsageError

__all__ = [
    "CorruptLog",
    "DataDirectoryInUse",
    "DiskFull",
    "InvalidProducerEpoch",
    "InvalidTransactionState",
    "LogError",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "RecordListTooLarge",
    "StorageError",
    "SwapUnfinished",
    "storage_error",
]


class LogError(HeadraceError):
    """The root of what a log raises."""


class OffsetOutOfRange(LogError):
    def __init__(self, offset: int, earliest: int, latest: int) -> None:
        reason = "retention or a deletion removed it" if offset < earliest else "it has not been written"
        super().__init__(
            f"offset {offset} is outside [{earliest}, {latest}]: {reason}; reset the reader to 'earliest' or 'latest'",
        )
        self.offset = offset
        self.earliest = earliest
        self.latest = latest


class StorageError(LogError):
    retriable = True


class DiskFull(StorageError):
    def __init__(self, path: str, needed_bytes: int) -> None:
        super().__init__(f"no space for {needed_bytes} bytes in {path}; free space or lower retention, then retry")
        self.path = path
        self.needed_bytes = needed_bytes


class CorruptLog(StorageError):
    retriable = False

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} is corrupt at byte {position}: {reason}; see 'headrace log repair'")
        self.path = path
        self.position = position
        self.reason = reason


class SwapUnfinished(StorageError):
    retriable = False

    def __init__(self, directory: str, error: OSError) -> None:
        super().__init__(
            f"compacted segments could not be put in place in {directory}: {error.strerror or error}; "
            "check the disk and restart: that completes it"
        )


class RecordListTooLarge(LogError):
    def __init__(self, size: int, segment_bytes_max: int) -> None:
        super().__init__(
            f"an append of {size} bytes exceeds segment.bytes={segment_bytes_max}; send less at once or raise it",
        )
        self.size = size
        self.segment_bytes_max = segment_bytes_max


class OutOfOrderSequence(LogError):
    def __init__(self, producer_id: int, sequence: int, expected: int) -> None:
        super().__init__(
            f"producer {producer_id} sent sequence {sequence} where {expected} was expected: one before it is missing",
        )
        self.producer_id = producer_id
        self.sequence = sequence
        self.expected = expected


class InvalidProducerEpoch(LogError):
    def __init__(self, producer_id: int, epoch: int, current_epoch: int) -> None:
        super().__init__(
            f"producer {producer_id} wrote with epoch {epoch}, but epoch {current_epoch} has been seen: it is fenced",
        )
        self.producer_id = producer_id
        self.epoch = epoch
        self.current_epoch = current_epoch


class InvalidTransactionState(LogError):
    def __init__(self, producer_id: int, first_offset: int) -> None:
        super().__init__(
            f"producer {producer_id} has a transaction open since offset {first_offset}: a plain write may not join it",
        )
        self.producer_id = producer_id
        self.first_offset = first_offset


class DataDirectoryInUse(UsageError):
    def __init__(
        self, directory: str, owner_pid: str, hint: str = "stop that process or give another directory with --data"
    ) -> None:
        super().__init__(f"the data directory {directory} is in use by process {owner_pid or 'unknown'}", hint)
        self.directory = directory
        self.owner_pid = owner_pid


def storage_error(error: OSError, path: str, needed_bytes: int = 0) -> StorageError:
    """The typed error for what the operating system said."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(path, needed_bytes)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return StorageError(f"{path}: {error.strerror}; close connections or raise 'ulimit -n', then retry")
    return StorageError(f"{path}: {error.strerror or error}; check the disk, then retry")
