"""Checking a partition's directory from end to end without changing it: for ``headrace log verify``.

Every batch's checksum and records, the order of offsets, the joints between segments, the producers' sequences, each
index entry against the log, and each aborted transaction against the markers. Whatever is wrong is a ``Problem`` with
file and position; what only costs a rebuild (an index) is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.batch import Batch
from headrace.errors import HeadraceError
from headrace.log.aborted import AbortedDamaged, decode_entries
from headrace.log.disk import FileCache
from headrace.log.dump import BadBytes, log_files, walk_file
from headrace.log.errors import CorruptLog
from headrace.log.index import Index, IndexDamaged
from headrace.log.producers import AbortedTransaction, ProducerStates
from headrace.log.segment import OFFSET_DELTA_MAX, segment_name
from headrace.ports import Disk
from headrace.record import decode_records
from headrace.vocabulary import Offset

__all__ = ["Problem", "verify_directory"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it must be."""

    path: str
    position: int
    message: str
    is_warning: bool = False

    def __str__(self) -> str:
        kind = "warning" if self.is_warning else "error"
        return f"{kind}: {self.path} at byte {self.position}: {self.message}"


def verify_directory(
    disk: Disk, directory: str, *, decompressed_bytes_max: int = 128 << 20, check_records: bool = True
) -> Iterator[Problem]:
    """All problems of one partition, in the order of its bytes."""
    verifier = _Verifier(disk, decompressed_bytes_max if check_records else 0)
    bases = log_files(disk, directory)
    files = disk.list_files(directory)
    for base_offset, following in zip(bases, [*bases[1:], None], strict=True):
        stem = f"{directory}/{segment_name(base_offset)}"
        yield from verifier.segment(base_offset, following, stem, files)
    for name in sorted(files):
        if ".cut-" in name:
            yield Problem(f"{directory}/{name}", 0, "set aside by a recovery; it holds batches not in the log", True)


class _Verifier:
    def __init__(self, disk: Disk, decompressed_bytes_max: int) -> None:
        self.disk = disk
        self.decompressed_bytes_max = decompressed_bytes_max
        self.next_offset = 0
        self.is_first = True
        self.states = ProducerStates()

    def segment(self, base_offset: int, following: int | None, stem: str, files: dict[str, int]) -> Iterator[Problem]:
        if base_offset < self.next_offset:
            reason = f"the segment begins at offset {base_offset}, but the one before reaches {self.next_offset}"
            yield Problem(stem + ".log", 0, reason)
        elif self.next_offset < base_offset and not self.is_first:
            reason = f"offsets {self.next_offset} to {base_offset - 1} are missing: by compaction, or by a lost segment"
            yield Problem(stem + ".log", 0, reason, is_warning=True)
        self.is_first = False
        self.next_offset = max(self.next_offset, base_offset)
        limit = base_offset + OFFSET_DELTA_MAX if following is None else following
        starts: dict[int, int] = {}
        aborted: list[AbortedTransaction] = []
        size = 0
        for found in walk_file(self.disk, stem + ".log"):
            if isinstance(found, BadBytes):
                yield Problem(found.path, found.position, f"{found.reason}; {found.size} bytes cannot be read")
                break
            starts[found.position] = found.batch.base_offset
            size = found.position + found.batch.size
            if not found.checksum_holds:
                reason = f"the checksum of the batch at offset {found.batch.base_offset} is wrong"
                yield Problem(found.path, found.position, reason)
                continue
            if found.batch.next_offset > limit:
                reason = f"offsets {found.batch.base_offset} to {found.batch.last_offset} do not belong here"
                yield Problem(found.path, found.position, reason)
                continue
            for message in self.batch(found.batch, aborted):
                yield Problem(found.path, found.position, message)
        yield from self.index(base_offset, stem, files, starts, size)
        yield from self.aborted(stem, files, aborted)

    def batch(self, batch: Batch, aborted: list[AbortedTransaction]) -> Iterator[str]:
        if batch.base_offset < self.next_offset:
            yield f"offset {batch.base_offset} where {self.next_offset} or more was expected"
        self.next_offset = max(self.next_offset, batch.next_offset)
        try:
            if not batch.is_control and batch.record_count:
                self.states.check([batch])
            entry = self.states.apply(batch)
            if entry is not None:
                aborted.append(entry)
            if self.decompressed_bytes_max:
                self._check_records(batch)
        except HeadraceError as error:
            yield error.message

    def _check_records(self, batch: Batch) -> None:
        if batch.record_count == 0:
            return
        previous = batch.base_offset - 1
        for record in decode_records(batch, self.decompressed_bytes_max):
            if not previous < record.offset <= batch.last_offset:
                raise CorruptLog("the batch", 0, f"record offset {record.offset} is out of order")
            previous = record.offset

    def index(
        self, base_offset: int, stem: str, files: dict[str, int], starts: dict[int, int], size: int
    ) -> Iterator[Problem]:
        path = stem + ".index"
        if path.rsplit("/", 1)[1] not in files:
            return
        index = Index(FileCache(self.disk, 2), path, Offset(base_offset))
        try:
            summary = index.load_summary()
            if summary is None and files[path.rsplit("/", 1)[1]]:
                yield Problem(path, 0, "no block of the index is valid; it will be rebuilt", True)
            for number, (offset, position, _) in enumerate(index.entries()):
                if starts.get(position) != offset:
                    yield Problem(path, number, f"offset {offset} is not at byte {position}; it will be rebuilt", True)
        except IndexDamaged as error:
            yield Problem(path, 0, f"{error}; it will be rebuilt", True)

    def aborted(self, stem: str, files: dict[str, int], expected: list[AbortedTransaction]) -> Iterator[Problem]:
        path = stem + ".txn"
        name = path.rsplit("/", 1)[1]
        data = self.disk.open(path, writable=False).pread(files[name], 0) if name in files else b""
        try:
            found = decode_entries(path, data)
        except AbortedDamaged as damage:
            yield Problem(damage.path, damage.position, damage.reason)
            return
        known = {(entry.producer_id, entry.last_offset) for entry in found}
        for entry in expected:
            if (entry.producer_id, entry.last_offset) not in known:
                reason = (
                    f"the aborted transaction of producer {entry.producer_id} ending at {entry.last_offset} is missing"
                )
                yield Problem(path, 0, reason)
