"""Looking for times in a log without a broker: whole batches decoded, nothing in slices."""

from __future__ import annotations

from headrace.log.log import PartitionLog
from headrace.record import decode_records
from headrace.vocabulary import Offset


def first_at_or_after(log: PartitionLog, timestamp: int) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record at or after ``timestamp``."""
    offset: Offset | None = log.start_offset
    while offset is not None:
        batch, offset = log.reader.batch_at_or_after(timestamp, offset)
        if batch is not None:
            for record in decode_records(batch, 1 << 20):
                if record.timestamp >= timestamp and record.offset >= log.start_offset:
                    return record.timestamp, record.offset
            offset = Offset(batch.next_offset)
    return None


def latest(log: PartitionLog) -> int:
    """The latest time in batches that begin at the start of the log or after it; -1 for none."""
    found = -1
    offset: Offset | None = log.start_offset
    while offset is not None:
        timestamp, offset = log.reader.latest_timestamp(offset)
        found = max(found, timestamp)
    return found
