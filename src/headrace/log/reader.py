"""Reading a partition's log: from an offset, a timestamp or a range of offsets to bytes on disk.

``read`` finds the batch that holds an offset. The place where a sequential reader will go on is remembered; otherwise
the segment is found by bisection and the batch by the segment's index. ``read`` then decides at which batch boundary
to end and hands out the range of the file. No batch is decoded and no byte is copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar
from weakref import ref

from headrace.batch import PREFIX_BYTES, Batch, parse_header
from headrace.log.errors import CorruptLog, OffsetOutOfRange, storage_error
from headrace.log.producers import AbortedTransaction
from headrace.log.segment import FileSlice, Segment, number_of_segment
from headrace.vocabulary import Offset, Position

if TYPE_CHECKING:
    from headrace.log.log import PartitionLog

__all__ = ["LogReader", "checked_batches"]

_PLACES_MAX = 64
_WALK_BYTES = 4 << 20

_HEADERS_PER_LOOK = 1000
"""Batch headers that one search by time reads before its caller lets others have their turn: about 1 ms."""

_SEGMENTS_PER_LOOK = 20
"""Segments that it looks at: the summary of each may have to be read."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _raising_storage_errors(
    look: Callable[Concatenate[LogReader, _P], _T],
) -> Callable[Concatenate[LogReader, _P], _T]:
    """A method that raises StorageError where the operating system refuses to open or read a file."""

    @wraps(look)
    def looking(reader: LogReader, /, *args: _P.args, **keywords: _P.kwargs) -> _T:
        try:
            return look(reader, *args, **keywords)
        except OSError as error:
            raise storage_error(error, reader._log.directory) from error

    return looking


class LogReader:
    """Reads one log, which must be held by somebody else: a log that is dropped is freed at once, without the help of
    the cycle collector. It keeps no facts of the log, only places in its files, which ``forget_places`` drops."""

    def __init__(self, log: PartitionLog) -> None:
        self._find_log = ref(log)
        self._places: dict[Offset, tuple[Segment, Position]] = {}
        self._unflushed: deque[tuple[Offset, Segment, Position]] = deque()
        """(end offset, segment, position) after each append that is not yet flushed."""
        self._flushed_at: tuple[Offset, Segment | None, Position] = (Offset(0), None, Position(0))

    @property
    def _log(self) -> PartitionLog:
        log = self._find_log()
        assert log is not None, "the log is gone that this reader belongs to"
        return log

    # What the log reports.

    def appended(self, end_offset: Offset, segment: Segment) -> None:
        """Readers will have to stop at this boundary once it is flushed: its place need not be searched then."""
        self._unflushed.append((end_offset, segment, Position(segment.size)))

    def flushed(self, end_offset: Offset) -> None:
        unflushed = self._unflushed
        while unflushed and unflushed[0][0] <= end_offset:
            self._flushed_at = unflushed.popleft()

    def forget_places(self) -> None:
        """Segments were removed or replaced, or the start has moved."""
        self._places.clear()

    # By offset.

    def read(
        self, offset: Offset, *, bytes_max: int, offset_max: Offset, min_one_batch: bool = True
    ) -> list[FileSlice]:
        """The range of whole batches from the one that holds ``offset`` on, about ``bytes_max`` long, every record in
        it below ``offset_max``. With ``min_one_batch`` a first batch larger than ``bytes_max`` is given anyway.

        Raises OffsetOutOfRange, CorruptLog, or StorageError when the file cannot be opened or read.
        """
        log = self._log
        if not log.start_offset <= offset <= log.end_offset:
            raise OffsetOutOfRange(offset, log.start_offset, log.end_offset)
        if offset >= offset_max:
            return []
        try:
            return self._read(offset, bytes_max, offset_max, min_one_batch)
        except OSError as error:
            raise storage_error(error, log.directory) from error

    def _read(self, offset: Offset, bytes_max: int, offset_max: Offset, min_one_batch: bool) -> list[FileSlice]:
        segment, position = self._places.get(offset) or self._locate(offset)
        segment.summarise()
        while position >= segment.size:
            following = self._following(segment)
            if following is None:
                return []
            self._check_joint(segment, following)
            segment, position = following, Position(0)
            segment.summarise()
        end, end_offset = self._end(segment, position, bytes_max, offset_max, min_one_batch)
        if end <= position:
            return []
        segment.check(position, end)
        self._remember(end_offset, segment, end)
        return [FileSlice(segment.file(), position, end - position, end_offset)]

    def _locate(self, offset: Offset) -> tuple[Segment, Position]:
        segments = self._log.segments
        segment = segments[number_of_segment(segments, offset)]
        return segment, segment.position_of(offset)

    def _following(self, segment: Segment) -> Segment | None:
        segments = self._log.segments
        number = number_of_segment(segments, segment.base_offset) + 1
        return segments[number] if number < len(segments) else None

    def _end(
        self, segment: Segment, position: Position, bytes_max: int, offset_max: Offset, min_one_batch: bool
    ) -> tuple[Position, Offset]:
        """(position, offset) of the batch boundary where the read ends."""
        following = None if segment is self._log.segments[-1] else self._following(segment)
        end = Position(segment.size)
        end_offset = self._log.end_offset if following is None else following.base_offset
        if offset_max < end_offset:
            flushed_offset, flushed_segment, flushed_position = self._flushed_at
            if offset_max != flushed_offset or segment is not flushed_segment:
                limit = Position(min(end, position + bytes_max))
                return self._search_end(segment, position, limit, offset_max, min_one_batch)
            end, end_offset = flushed_position, flushed_offset
        if end - position > bytes_max:
            return self._search_end(segment, position, Position(position + bytes_max), offset_max, min_one_batch)
        return end, end_offset

    def _search_end(
        self, segment: Segment, position: Position, limit: Position, offset_max: Offset, min_one_batch: bool
    ) -> tuple[Position, Offset]:
        end, end_offset = segment.end_within(position, limit, offset_max)
        if end > position or not min_one_batch:
            return end, end_offset
        for _, header in segment.headers(position, segment.size, 64):
            if header.last_offset < offset_max:
                return Position(position + header.size), header.next_offset
            break
        return position, end_offset

    def _check_joint(self, segment: Segment, following: Segment) -> None:
        """Refuse to step over lost bytes or a lost segment."""
        segment.summarise()
        if segment.corruption is not None:
            raise segment.corruption
        if segment.end_offset != following.base_offset:
            lost = f"offset {segment.end_offset} must follow it, and {following.base_offset} does"
            raise CorruptLog(segment.path, segment.size, lost)

    def _remember(self, offset: Offset, segment: Segment, position: Position) -> None:
        """A sequential reader will go on here."""
        places = self._places
        if offset not in places:
            if len(places) >= _PLACES_MAX:
                del places[next(iter(places))]
            places[offset] = (segment, position)

    def batches(self, offset: Offset) -> Iterator[Batch]:
        """Every batch from ``offset`` to the end, its checksum checked. Raises CorruptLog with file and position."""
        end_offset = self._log.end_offset
        while offset < end_offset:
            slices = self.read(offset, bytes_max=_WALK_BYTES, offset_max=end_offset)
            if not slices:
                return
            for piece in slices:
                for batch in checked_batches(piece):
                    yield batch
                    offset = batch.next_offset

    # By transaction and by time.

    @_raising_storage_errors
    def aborted_transactions(self, from_offset: Offset, to_offset: Offset) -> list[AbortedTransaction]:
        """Aborted transactions with records in [from_offset, to_offset), for readers of committed data."""
        found = []
        segments = self._log.segments
        for segment in segments[number_of_segment(segments, from_offset) :]:
            self._log.load_aborted(segment)
            for entry in segment.aborted.since(from_offset):
                if entry.first_offset < to_offset:
                    found.append(entry)
                if entry.last_stable_offset >= to_offset:
                    return found
        return found

    @_raising_storage_errors
    def batch_at_or_after(self, timestamp: int, from_offset: Offset) -> tuple[Batch | None, Offset | None]:
        """The first batch from ``from_offset`` on whose header has a time at or after ``timestamp``.

        Looks at a bounded number of headers. (None, offset): none so far, look on from that offset; (None, None): there
        is none. Only the batch's records tell whether one of them is late enough.
        """
        segments = self._log.segments
        number = number_of_segment(segments, from_offset)
        for segment in segments[number : number + _SEGMENTS_PER_LOOK]:
            position, look_on = segment.first_at_or_after(timestamp, from_offset, _HEADERS_PER_LOOK)
            if position is not None:
                return segment.read_batch(position), None
            if look_on is not None:
                return None, look_on
        number += _SEGMENTS_PER_LOOK
        return None, segments[number].base_offset if number < len(segments) else None

    @_raising_storage_errors
    def latest_timestamp(self, from_offset: Offset) -> tuple[int, Offset | None]:
        """The latest time of the batches that begin at ``from_offset`` or after it, and where to look on, or None.

        One call looks at some headers of the segment that holds ``from_offset``, or at that segment's summary.
        """
        log = self._log
        number = number_of_segment(log.segments, from_offset)
        segment = log.segments[number]
        following = log.segments[number + 1].base_offset if number + 1 < len(log.segments) else None
        if from_offset <= segment.base_offset:
            segment.summarise()
            return segment.max_timestamp, following
        latest = -1
        position = segment.position_of(from_offset)
        for place, header in islice(segment.headers(position, Position(segment.size)), _HEADERS_PER_LOOK):
            if header.base_offset >= from_offset:
                latest = max(latest, header.max_timestamp)
            from_offset = max(from_offset, header.next_offset)
            position = Position(place + header.size)
        # Compaction may have left a gap after the last batch of a segment.
        return latest, from_offset if position < segment.size else following

    @_raising_storage_errors
    def batch_holding(self, offset: Offset) -> Batch | None:
        """The whole batch that holds ``offset``; None at the end of the log."""
        segments = self._log.segments
        segment = segments[number_of_segment(segments, offset)]
        position = segment.position_of(offset)
        return segment.read_batch(position) if position < segment.size else None


def checked_batches(piece: FileSlice) -> Iterator[Batch]:
    """The batches of what ``LogReader.read`` gave, their checksums checked. Raises CorruptLog."""
    data = piece.read()
    position = 0
    while position < len(data):
        header = parse_header(data, position)
        if header is None or header.size > len(data) - position:
            raise CorruptLog(piece.file.path, piece.position + position, "no batch begins here")
        batch = Batch(header, data[position + PREFIX_BYTES : position + header.size])
        if not batch.checksum_holds():
            reason = f"the checksum of the batch at offset {batch.base_offset} is wrong"
            raise CorruptLog(piece.file.path, piece.position + position, reason)
        yield batch
        position += header.size
