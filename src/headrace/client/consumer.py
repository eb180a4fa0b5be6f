"""The reading side: records from given positions, decoded, in order, without what transactions took back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from headrace.batch import Batch, control_type
from headrace.client.client import Client, TopicPartition
from headrace.client.fetch import Fetched, FetchOptions, fetch_batches
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.errors import ErrorCode, KafkaError
from headrace.record import Record, decode_records

__all__ = ["Consumer", "ConsumerOptions", "Polled", "committed_batches"]

Polled = dict[TopicPartition, list[Record]]
"""What ``poll`` returns: records by partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """``reset`` says where to go on when a position is no longer in the log: 'error' raises instead."""

    reset: Literal["earliest", "latest", "error"] = "error"
    fetch: FetchOptions = field(default_factory=FetchOptions)
    wait_ms_max: int = 500
    decompressed_bytes_max: int = 64 * 1024 * 1024


def committed_batches(fetched: Fetched) -> list[Batch]:
    """The data batches of a read_committed fetch, without those of aborted transactions.

    The broker lists each aborted transaction's producer and first offset. From there on that producer's batches are
    dropped, until its abort marker has passed.
    """
    upcoming = list(reversed(fetched.aborted))
    aborting: set[int] = set()
    kept = []
    for batch in fetched.batches:
        while upcoming and upcoming[-1][1] <= batch.last_offset:
            aborting.add(upcoming.pop()[0])
        if batch.is_control:
            marker = control_type(batch)
            if marker is not None and not marker[0]:
                aborting.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in aborting):
            kept.append(batch)
    return kept


class Consumer:
    """Reads the partitions it was given from the positions it was given. Used by one thread at a time."""

    def __init__(self, client: Client, options: ConsumerOptions | None = None) -> None:
        self.options = options or ConsumerOptions()
        self._client = client
        self.positions: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self._start = 0

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions and no others, each from its offset."""
        self.positions = dict(positions)
        self.ends = {partition: end for partition, end in self.ends.items() if partition in positions}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        assert partition in self.positions, f"{partition} is not assigned"
        self.positions[partition] = offset

    def poll(self, timeout_ms: int) -> Polled:
        """Records that are there, or {} after ``timeout_ms``. Positions are then after what was returned."""
        deadline = time.monotonic() + timeout_ms / 1000
        while self.positions:
            remaining_ms = max(0, int((deadline - time.monotonic()) * 1000))
            records = self._client.retrying(partial(self._fetch_once, remaining_ms))
            if records or time.monotonic() >= deadline:
                return records
        time.sleep(max(0.0, deadline - time.monotonic()))
        return {}

    def at_end(self) -> bool:
        """Whether every partition has been read to the end that its last fetch showed."""
        return all(self.positions[each] >= self.ends.get(each, 2**63) for each in self.positions)

    def _fetch_once(self, wait_ms: int) -> Polled:
        """One round; partitions take turns at the front, because a broker fills an answer in the order asked.

        What cannot be read in one partition takes nothing from the others: the error comes with the next round, when
        there is nothing else to give.
        """
        order = list(self.positions)
        self._start = (self._start + 1) % len(order)
        turned = {each: self.positions[each] for each in order[self._start :] + order[: self._start]}
        wait_ms = min(wait_ms, self.options.wait_ms_max)
        polled: Polled = {}
        failure: KafkaError | None = None
        for fetched in fetch_batches(self._client, turned, wait_ms=wait_ms, options=self.options.fetch):
            try:
                if fetched.error is not None:
                    self._recover(fetched)
                elif records := self._take(fetched):
                    polled[fetched.partition] = records
            except KafkaError as error:
                self._client.learn_from(error.code)  # a leader that has moved is found before the next round
                failure = error
        if failure is not None and not polled:
            raise failure
        return polled

    def _take(self, fetched: Fetched) -> list[Record]:
        partition = fetched.partition
        position = self.positions[partition]
        committed = self.options.fetch.read_committed
        self.ends[partition] = fetched.last_stable_offset if committed else fetched.high_watermark
        batches = committed_batches(fetched) if committed else [each for each in fetched.batches if not each.is_control]
        records: list[Record] = []
        for batch in batches:
            try:
                decoded = decode_records(batch, self.options.decompressed_bytes_max)
            except KafkaError:
                if not records:
                    raise
                self.positions[partition] = batch.base_offset  # the next round begins there, and raises
                return records
            if batch.base_offset < position:
                decoded = [record for record in decoded if record.offset >= position]
            records.extend(decoded)
        if fetched.batches:
            self.positions[partition] = max(position, fetched.batches[-1].next_offset)
        return records

    def _recover(self, fetched: Fetched) -> None:
        """Move a lost position as ``reset`` says, or raise."""
        error = fetched.error
        assert error is not None, "called for a failed partition"
        if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            raise error
        partition = fetched.partition
        if self.options.reset == "error":
            raise KafkaError(
                error.code,
                f"offset {self.positions[partition]} of {partition} is outside the log, which begins at "
                f"{fetched.log_start_offset} and ends at {fetched.high_watermark}",
            )
        where = EARLIEST if self.options.reset == "earliest" else LATEST
        found = list_offsets(self._client, {partition: where})
        self.positions[partition] = found[partition].offset
