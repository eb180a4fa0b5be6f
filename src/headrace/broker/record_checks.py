"""Checks of a produced batch that have to look at its records.

Most batches are never looked into. These are: on compacted topics every record must have a key; a batch whose header
says that a timestamp is out of range is refused with the records that are; ``headrace.validate=records`` checks every
field; and a topic with a codec that is not the producer's has its batches compressed again.

A batch of 5 KB may unfold into 64 MB and hold a million records (``max.batch.records``). So decompression is done in a
thread unless it is known to be short, and records are walked in steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from headrace.batch import CODEC_MASK, HEADER_BYTES, PREFIX_BYTES, Batch, reseal
from headrace.broker.slices import InThread, Steps
from headrace.broker.topic_config import ProducePolicy
from headrace.errors import ErrorCode, KafkaError
from headrace.record import (
    Bytes,
    Codec,
    DecompressedTooLarge,
    compress,
    decompress,
    iter_keyed,
    iter_timestamps,
    iter_validated,
    records_of,
)

__all__ = ["RefusedRecords", "check_records", "decoded", "is_out_of_range", "recompress"]

RECORDS_PER_STEP = 500
UNITS_PER_STEP = 100
"""A record takes about 1 µs, one whose fields are all checked 4 µs."""

BYTES_PER_UNIT = 16 << 10
"""Of decompressed bytes."""

SHORT_INPUT_BYTES = 16 << 10
SHORT_OUTPUT_BYTES = 1 << 20
"""A compressed batch up to the first size is tried on the loop, up to the second: that takes less than 3 ms."""


class RefusedRecords(KafkaError):
    """Some records of a batch are not taken, and so none is; ``indexes`` says which, the first of them if many."""

    def __init__(self, code: ErrorCode, message: str, indexes: list[int]) -> None:
        super().__init__(code, message)
        self.indexes = indexes


def is_out_of_range(policy: ProducePolicy, batch: Batch, now_ms: int) -> bool:
    """Whether the header says that a record's timestamp is too far from now."""
    if policy.stamps_append_time or batch.max_timestamp < 0:
        return False
    return (
        batch.max_timestamp - now_ms > policy.timestamp_after_ms_max
        or now_ms - batch.base_timestamp > policy.timestamp_before_ms_max
    )


def check_records(policy: ProducePolicy, batch: Batch, now_ms: int, errors_max: int) -> Steps[None]:
    """Raise what is wrong with the records, if the topic asks for a look at them."""
    late = is_out_of_range(policy, batch, now_ms)
    if not (policy.validates_records or policy.is_compacted or late):
        return
    data = yield from decoded(batch, policy.decoded_bytes_max)
    if policy.validates_records:
        yield from _exhaust(iter_validated(batch, data))
    if policy.is_compacted:
        keyless = yield from _indexes(iter_keyed(batch, data), False, errors_max)
        if keyless:
            raise RefusedRecords(
                ErrorCode.INVALID_RECORD, "Compacted topic cannot accept message without key.", keyless
            )
    if late:
        earliest, latest = now_ms - policy.timestamp_before_ms_max, now_ms + policy.timestamp_after_ms_max
        in_range = (earliest <= timestamp <= latest for timestamp, _ in iter_timestamps(batch, data))
        wrong = yield from _indexes(in_range, False, errors_max)
        raise RefusedRecords(
            ErrorCode.INVALID_TIMESTAMP,
            f"Timestamp {batch.max_timestamp} of the batch is out of range: the timestamp should be within "
            f"[{earliest}, {latest}]",
            wrong,
        )


def decoded(batch: Batch, output_bytes_max: int) -> Steps[Bytes]:
    """The batch's records, decompressed: here if that is short, else in a thread."""
    if batch.codec is Codec.NONE:
        return records_of(batch, output_bytes_max)
    if batch.size <= SHORT_INPUT_BYTES:
        short = min(output_bytes_max, SHORT_OUTPUT_BYTES)
        try:
            data = records_of(batch, short)
            yield 1 + len(data) // BYTES_PER_UNIT
            return data
        except DecompressedTooLarge:
            if short == output_bytes_max:
                raise
    yield 1
    unfolded: Bytes = yield InThread(records_of, (batch, output_bytes_max))
    return unfolded


def recompress(batch: Batch, codec: Codec, output_bytes_max: int) -> Steps[None]:
    """The topic's ``compression.type`` is not the producer's: the records are unpacked and packed again."""
    if batch.size <= SHORT_INPUT_BYTES and batch.codec is Codec.NONE:
        records = _compressed_again(batch, codec, output_bytes_max)
    else:
        yield 1
        records = yield InThread(_compressed_again, (batch, codec, output_bytes_max))
    batch.attributes = batch.attributes & ~CODEC_MASK | codec
    reseal(batch, records)


def _compressed_again(batch: Batch, codec: Codec, output_bytes_max: int) -> bytes:
    return compress(codec, decompress(batch.codec, batch.body[HEADER_BYTES - PREFIX_BYTES :], output_bytes_max))


def _exhaust(walk: Iterator[Any]) -> Steps[None]:
    while sum(1 for _ in islice(walk, RECORDS_PER_STEP)) == RECORDS_PER_STEP:
        yield UNITS_PER_STEP


def _indexes(walk: Iterator[bool], wanted: bool, count_max: int) -> Steps[list[int]]:
    """Where ``walk`` gives ``wanted``, the first ``count_max`` places."""
    found: list[int] = []
    start = 0
    while True:
        taken = list(islice(walk, RECORDS_PER_STEP))
        if wanted in taken:
            found += [start + index for index, each in enumerate(taken) if each is wanted]
        if len(taken) < RECORDS_PER_STEP or len(found) >= max(count_max, 1):
            return found[:count_max] if count_max else found[:1]
        start += len(taken)
        yield UNITS_PER_STEP
