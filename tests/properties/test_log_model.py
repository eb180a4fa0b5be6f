"""The log against a model of it, on a disk that loses power and under processes that are killed.

The model is a list of batches as bytes. Batches are appended, flushed, rolled, removed, checkpointed and compacted; the
process is killed or the power fails, in any order and in the middle of any step. What was flushed is there byte for
byte; after a kill alone, so is what was written. Nothing is there that was not appended, offsets and order never
change, and what the log remembers of producers and transactions equals a replay of its batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.batch import Batch, build_batch, control_batch, read_batches
from headrace.log.compaction.cleaner import CleaningJob, CleaningResult, clean
from headrace.log.compaction.planning import plan
from headrace.log.config import LogConfig
from headrace.log.log import PartitionLog
from headrace.log.producers import AbortedTransaction, Duplicate, ProducerStates
from headrace.log.store import LogStore
from headrace.record import Record, decode_records
from headrace.testing.disk import PowerLoss, SimulatedDisk
from tests.flushing import FlusherByHand
from tests.unit.log.builders import open_log, remove_dead_segments, summaries, swap_in

TOPIC = ("orders", UUID(int=7), 0)
BATCH_BYTES_MAX = 1 << 20
CONFIG = LogConfig(
    segment_bytes_max=2500,
    index_interval_bytes=300,
    retention_ms=-1,
    cleanup_compact=True,
    min_cleanable_dirty_ratio=0.1,
)


@dataclass
class Entry:
    """One batch of the history: as it was appended, and what it may be now. None: compaction removed it."""

    original: Batch
    allowed: set[bytes | None]


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk()
        self.history: list[Entry] = []
        """Every batch that the log holds or held, stamped, in order."""
        self.in_doubt: Batch | None = None
        """A batch whose append was cut short: it may be there after the crash, or not."""
        self.flushed = 0
        self.start = 0
        self.durable_start = 0
        self.sequences: dict[int, int] = {}
        self.in_transaction: set[int] = set()
        self.crashes = 0

    @initialize()
    def open(self) -> None:
        """Both ways to open a log: with its own sync, and with one sync for all of them."""
        self.store = LogStore.open(self.disk, "/data")
        together = self.disk.life % 2 == 1
        self.log = open_log(self.store, *TOPIC, CONFIG, sync=not together)
        if together:
            self.store.sync_recovered()
        self.flusher = FlusherByHand(self.disk, "/data", note=self.store.note_flushed)

    # What happens to a log.

    def append(self, batch: Batch) -> None:
        self.in_doubt = None
        if not batch.is_control:
            assert not isinstance(self.log.producers.check(batch), Duplicate)
        try:
            base_offset = self.log.append(batch, leader_epoch=3, now_ms=1000)
        except PowerLoss:
            batch.base_offset = self.end
            batch.leader_epoch = 3
            self.in_doubt = batch
            raise
        assert base_offset == self.end
        self.history.append(Entry(batch, {batch.data}))

    @property
    def end(self) -> int:
        return self.history[-1].original.next_offset if self.history else 0

    @rule(keys=st.text("abcde", min_size=1, max_size=5), size=st.integers(0, 400))
    def append_plain(self, keys: str, size: int) -> None:
        stamp = 1000 + len(self.history)
        self.append(build_batch([Record(key.encode(), bytes(size), timestamp=stamp) for key in keys]))

    @rule(producer_id=st.integers(1, 3), transactional=st.booleans(), size=st.integers(0, 100))
    def append_with_producer(self, producer_id: int, transactional: bool, size: int) -> None:
        transactional = transactional or producer_id in self.in_transaction
        sequence = self.sequences.get(producer_id, 0)
        batch = build_batch(
            [Record(b"a", bytes(size), timestamp=1000), Record(b"z", None, timestamp=1000)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        )
        self.append(batch)
        self.sequences[producer_id] = sequence + 2
        if transactional:
            self.in_transaction.add(producer_id)

    @precondition(lambda self: self.in_transaction)
    @rule(commit=st.booleans(), data=st.data())
    def end_transaction(self, commit: bool, data: st.DataObject) -> None:
        producer_id = data.draw(st.sampled_from(sorted(self.in_transaction)))
        marker = control_batch(
            commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=1, timestamp=1000
        )
        self.append(marker)
        self.in_transaction.discard(producer_id)

    @rule()
    def flush(self) -> None:
        end = self.end
        self.flusher.flush([self.log])
        assert self.log.flushed_offset == end
        self.flushed = end

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def checkpoint(self) -> None:
        end, start = self.end, self.log.start_offset
        self.store.checkpoint(everything=True)
        self.flushed = end
        self.durable_start = start

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        offset = self.start + int((self.log.high_watermark - self.start) * share)
        self.log.delete_records(offset)
        self.start = max(self.start, offset)
        self.store.checkpoint()
        self.durable_start = self.start
        self.flushed = self.end
        remove_dead_segments(self.log)

    @rule(map_bytes_max=st.sampled_from([300, 1 << 16]))
    def compact(self, map_bytes_max: int) -> None:
        self.checkpoint()
        job = plan(self.log, 5000, token="t", map_bytes_max=map_bytes_max)
        if job is None:
            return
        result = clean(self.disk, job)
        new = self.cleaned_batches(result)
        self.check_cleaning(job, result, new)
        touched = [entry for entry in self.history if self.is_in(result, entry.original.base_offset)]
        for entry in touched:
            entry.allowed |= {new.get(entry.original.base_offset)}
        swap_in(self.log, result)
        for entry in touched:
            entry.allowed = {new.get(entry.original.base_offset)}

    @staticmethod
    def is_in(result: CleaningResult, offset: int) -> bool:
        return any(group.base <= offset < group.end_offset for group in result.groups)

    def cleaned_batches(self, result: CleaningResult) -> dict[int, bytes]:
        found = {}
        for group in result.groups:
            data = self.disk.contents(f"{self.log.directory}/{group.base:020d}.log.cleaned-t")
            batches = read_batches(data, batch_bytes_max=BATCH_BYTES_MAX, from_client=False) if data else []
            found.update({batch.base_offset: batch.data for batch in batches})
        return found

    def check_cleaning(self, job: CleaningJob, result: CleaningResult, new: dict[int, bytes]) -> None:
        """Of what was there before, exactly the last record of each key is left, and all that was not looked at."""
        before = [_parse(data) for entry in self.history for data in entry.allowed if data is not None]
        before = [batch for batch in before if self.is_in(result, batch.base_offset) and not batch.is_control]
        aborted = self.replay()[1]
        alive = [batch for batch in before if not _is_aborted(batch, aborted)]
        live = [record for batch in alive for record in decode_records(batch, 1 << 20)]
        dirty = [b for b in alive if job.first_dirty_offset <= b.last_offset and b.base_offset < result.cleaned_offset]
        last = {record.key: record.offset for batch in dirty for record in decode_records(batch, 1 << 20)}
        kept = [record for record in live if record.offset >= max(last.get(record.key, 0), 0)]
        untouched = [batch for batch in before if batch.base_offset >= result.cleaned_offset]
        expected = {record.offset for record in kept} | {
            r.offset for b in untouched for r in decode_records(b, 1 << 20)
        }
        after = [_parse(data) for data in new.values()]
        records = [r for batch in after if not batch.is_control for r in decode_records(batch, 1 << 20)]
        assert [record.offset for record in records] == sorted(expected)
        originals = {r.offset: r for batch in before for r in decode_records(batch, 1 << 20)}
        assert all(record == originals[record.offset] for record in records)

    # Crashes.

    @rule(seed=st.integers(0, 2**32))
    def crash(self, seed: int) -> None:
        self.crashes += 1
        self.disk.crash(seed)
        self.reopen()

    @rule(seed=st.integers(0, 2**32))
    def kill_then_crash(self, seed: int) -> None:
        """The power loss meets bytes that nobody but recovery has synced."""
        self.kill()
        self.crash(seed)

    @rule()
    def kill(self) -> None:
        """What was written is all there."""
        written = self.end
        self.disk.kill()
        self.reopen()
        assert self.log.end_offset >= written

    @rule(seed=st.integers(0, 2**32), steps=st.integers(0, 60), data=st.data())
    def crash_in_the_middle(self, seed: int, steps: int, data: st.DataObject) -> None:
        self.die_in_the_middle(steps, data)
        self.crash(seed)

    @rule(steps=st.integers(0, 60), data=st.data())
    def kill_in_the_middle(self, steps: int, data: st.DataObject) -> None:
        self.die_in_the_middle(steps, data)
        self.kill()

    def die_in_the_middle(self, steps: int, data: st.DataObject) -> None:
        self.disk.crash_after = self.disk.operations + steps
        action = data.draw(
            st.sampled_from(["plain", "producer", "abort", "flush", "checkpoint", "delete", "roll", "close", "compact"])
        )
        try:
            self.act(action)
        except PowerLoss:
            pass

    def act(self, action: str) -> None:
        if action == "plain":
            self.append_plain("a", 900)
        elif action == "producer":
            self.append_with_producer(2, True, 600)
        elif action == "abort" and self.in_transaction:
            marker = control_batch(
                commit=False, producer_id=min(self.in_transaction), producer_epoch=0, coordinator_epoch=1, timestamp=1
            )
            self.append(marker)
        elif action == "flush":
            self.flush()
        elif action == "checkpoint":
            self.checkpoint()
        elif action == "delete":
            self.delete_records(0.7)
        elif action == "roll":
            self.log.roll()
        elif action == "close":
            self.store.close()
        elif action == "compact":
            self.compact(1 << 16)

    @rule(seed=st.integers(0, 2**32), killed=st.booleans())
    def crash_while_recovering(self, seed: int, killed: bool) -> None:
        if killed:
            self.disk.kill()
        else:
            self.disk.crash(seed)
        self.disk.crash_after = self.disk.operations + seed % 9
        try:
            self.store = LogStore.open(self.disk, "/data")
            open_log(self.store, *TOPIC, CONFIG)
        except PowerLoss:
            pass
        self.crash(seed + 1)

    @rule(killed=st.booleans(), seed=st.integers(0, 2**32), data=st.data())
    def lose_a_file_that_others_make_up_for(self, killed: bool, seed: int, data: st.DataObject) -> None:
        """Checkpoint, flushed ends, start marker, index, aborted transactions: any one of them may be gone."""
        self.checkpoint()
        if killed:
            self.disk.kill()
        else:
            self.disk.crash(seed)
        kinds = (".index", ".txn", ".start")
        own = [f"{self.log.directory}/{name}" for name in self.disk.listdir(self.log.directory) if name.endswith(kinds)]
        path = data.draw(st.sampled_from(["/data/checkpoint", "/data/flushed", *own]))
        self.disk.unlink(path)
        self.reopen()

    @rule()
    def restart_cleanly(self) -> None:
        end = self.end
        self.store.close()
        self.flushed = end
        self.durable_start = self.log.start_offset
        self.reopen()
        assert self.log.recovery.scanned_bytes == 0

    def reopen(self) -> None:
        self.open()
        if self.in_doubt is not None:
            self.history.append(Entry(self.in_doubt, {self.in_doubt.data}))
            self.in_doubt = None
        end = self.log.end_offset
        assert end >= self.flushed, f"flushed up to {self.flushed}, recovered only up to {end}"
        self.history = [entry for entry in self.history if entry.original.next_offset <= end]
        assert self.end == end, f"recovered to {end}, which is no boundary of what was appended"
        assert self.durable_start <= self.log.start_offset <= max(self.start, self.durable_start)
        self.start = self.log.start_offset
        assert self.log.flushed_offset == end
        self.flushed = end
        self.follow_producers()
        self.check_content()

    def follow_producers(self) -> None:
        states = self.replay()[0]
        self.sequences = {each.producer_id: each.last_sequence + 1 for each in summaries(states)}
        self.in_transaction = set(states.open_transactions())

    # What must hold.

    def replay(self) -> tuple[ProducerStates, list[AbortedTransaction]]:
        states = ProducerStates()
        aborted = [states.apply(entry.original) for entry in self.history]
        return states, [entry for entry in aborted if entry is not None]

    def check_content(self) -> None:
        data = read_all(self.log)
        batches = read_batches(data, batch_bytes_max=BATCH_BYTES_MAX, from_client=False) if data else []
        offsets = [batch.base_offset for batch in batches]
        assert offsets == sorted(set(offsets)), f"out of order: {offsets}"
        found = {batch.base_offset: batch.data for batch in batches}
        for entry in self.history:
            if entry.original.next_offset > self.log.start_offset:
                now = found.pop(entry.original.base_offset, None)
                assert now in entry.allowed, f"{entry.original} is not as it was"
                entry.allowed = {now}
        assert not found, f"never appended: {sorted(found)}"

    @invariant()
    def offsets_agree(self) -> None:
        assert self.log.end_offset == self.end
        assert self.log.start_offset == self.start
        assert self.flushed <= self.log.flushed_offset <= self.end

    @invariant()
    def producers_equal_a_replay(self) -> None:
        states, aborted = self.replay()
        assert sorted(summaries(self.log.producers), key=str) == sorted(summaries(states), key=str)
        assert self.log.producers.open_transactions() == states.open_transactions()
        self.check_aborted(aborted)

    def check_aborted(self, aborted: list[AbortedTransaction]) -> None:
        """Readers get every aborted transaction of which records are left, from the first of these at least. One whose
        records compaction has removed may be missing."""
        listed = self.log.reader.aborted_transactions(self.start, self.end)
        mine = {(each.producer_id, each.last_offset): each.first_offset for each in listed}
        truth = {(each.producer_id, each.last_offset): each.first_offset for each in aborted}
        assert all(mine[key] >= truth[key] for key in mine), "a transaction that was not aborted"
        present = [_parse(data) for entry in self.history for data in entry.allowed if data is not None]
        for entry in aborted:
            left = [batch.base_offset for batch in present if batch.record_count and _is_aborted(batch, [entry])]
            left = [offset for offset in left if offset >= self.start]
            if left:
                assert mine[entry.producer_id, entry.last_offset] <= min(left), "its first records are shown"

    def teardown(self) -> None:
        self.check_content()


def _parse(data: bytes) -> Batch:
    [batch] = read_batches(data, batch_bytes_max=BATCH_BYTES_MAX, from_client=False)
    return batch


def _is_aborted(batch: Batch, aborted: list[AbortedTransaction]) -> bool:
    return any(
        entry.producer_id == batch.producer_id and entry.first_offset <= batch.base_offset < entry.last_offset
        for entry in aborted
    )


def read_all(log: PartitionLog) -> bytes:
    found = b""
    offset = log.start_offset
    while offset < log.end_offset:
        slices = log.reader.read(offset, bytes_max=1500, offset_max=log.end_offset)
        if not slices:
            break
        data = b"".join(piece.read() for piece in slices)
        found += data
        offset = read_batches(data, batch_bytes_max=BATCH_BYTES_MAX, from_client=False)[-1].next_offset
    return found


TestLogModel = LogMachine.TestCase
TestLogModel.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
