"""Transactions: states, fencing, markers, isolation, offsets; in the first and the second version of the protocol."""

from __future__ import annotations

from typing import Any

import pytest

from tests.differential.batches import batch, values
from tests.differential.client import Answer
from tests.differential.conftest import Compare
from tests.differential.scenario import Scenario

pytestmark = pytest.mark.servers

TRANSACTIONAL = 0x10
ABORTED_READ = {"isolation_level": 1}


class Producer:
    """A transactional producer that sends exactly the requests of the test, in their order."""

    def __init__(self, s: Scenario, what: str = "transaction", *, timeout_ms: int = 60_000) -> None:
        self.s = s
        self.id = s.name(what)
        self.timeout_ms = timeout_ms
        self.producer_id = self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}
        s.coordinator(self.id, 1)

    def init(self, label: str = "", **given: Any) -> Answer:
        """Retried while an earlier transaction is being completed, as every client does."""
        asked = {"transactional_id": self.id, "transaction_timeout_ms": self.timeout_ms, **given}
        answer: Answer = {}

        def done() -> bool:
            nonlocal answer
            answer = self.s.ask("InitProducerId", **asked)
            return answer["error_code"] != 51

        self.s.until(done)
        if label:
            self.s.write(label, answer)
        if answer["error_code"] == 0:
            self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]
            self.s.symbol("producer", self.producer_id)
            self.sequences.clear()
        return answer

    def who(self, **changed: Any) -> dict[str, Any]:
        return {
            "transactional_id": self.id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            **changed,
        }

    def add(self, label: str, *topics: str, version: int = 3, **changed: Any) -> Answer:
        who = {f"v3_and_below_{key}": value for key, value in self.who(**changed).items()}
        where = [{"name": name, "partitions": [0]} for name in topics]
        answer = self.settled("AddPartitionsToTxn", version, **who, v3_and_below_topics=where)
        return self.s.write(label, answer) if label else answer

    def produce(self, label: str, name: str, *texts: str, version: int = 11, **changed: Any) -> Answer:
        """Version 11 needs AddPartitionsToTxn before it; version 12 adds the partition itself (KIP-890)."""
        sequence = self.sequences.get((name, self.epoch), 0)
        data = batch(
            records=values(*texts),
            attributes=TRANSACTIONAL,
            producer_id=changed.get("producer_id", self.producer_id),
            producer_epoch=changed.get("producer_epoch", self.epoch),
            base_sequence=changed.get("sequence", sequence),
        )
        topics = [{"name": name, "partition_data": [{"index": 0, "records": data}]}]
        asked = {"acks": -1, "timeout_ms": 60_000, "topic_data": topics}
        identifier = changed.get("transactional_id", self.id)
        answer = self.s.ask("Produce", version, transactional_id=identifier, **asked)
        if answer["responses"][0]["partition_responses"][0]["error_code"] == 0:
            self.sequences[name, self.epoch] = sequence + len(texts)
        return self.s.write(label, answer) if label else answer

    def settled(self, api: str, version: int | None, **asked: Any) -> Answer:
        """CONCURRENT_TRANSACTIONS asks for a retry while markers are written; how often depends on the moment."""
        answer: Answer = {}

        def done() -> bool:
            nonlocal answer
            answer = self.s.ask(api, version, **asked)
            return "CONCURRENT_TRANSACTIONS" not in str(self.s.normal(answer))

        self.s.until(done)
        return answer

    def end(self, label: str, *, commit: bool, version: int = 4, **changed: Any) -> Answer:
        answer = self.settled("EndTxn", version, **self.who(**changed), committed=commit)
        if version >= 5 and answer["error_code"] == 0:
            self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]
        return self.s.write(label, answer) if label else answer

    def describe(self, label: str) -> None:
        answer = self.s.ask("DescribeTransactions", transactional_ids=[self.id])
        for state in answer["transaction_states"]:
            # Positions are no topic in headrace, so they are not among the topics of a transaction.
            state["topics"] = [each for each in state["topics"] if each["topic"] != "__consumer_offsets"]
        self.s.write(label, answer)

    def wait_for(self, *states: str) -> None:
        """Markers are written after the answer to EndTxn."""

        def reached() -> bool:
            answer = self.s.ask("DescribeTransactions", transactional_ids=[self.id])
            return answer["transaction_states"][0]["transaction_state"] in states

        self.s.until(reached)


def test_a_committed_transaction_is_read_and_an_aborted_one_is_not(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, producer = s.topic(), Producer(s)
        producer.init("init")
        producer.describe("empty")
        producer.add("add", name)
        producer.produce("first", name, "a", "b")
        producer.describe("ongoing")
        s.note_fetch("uncommitted read, ongoing", name, 0)
        s.note_fetch("committed read, ongoing", name, 0, **ABORTED_READ)
        producer.end("commit", commit=True)
        producer.wait_for("CompleteCommit")
        producer.describe("committed")
        producer.add("add", name)
        producer.produce("second", name, "c")
        producer.end("abort", commit=False)
        producer.wait_for("CompleteAbort")
        producer.describe("aborted")
        s.note_fetch("uncommitted read", name, 0)
        s.note_fetch("committed read", name, 0, **ABORTED_READ)
        s.note_fetch("committed read, from the middle", name, 3, **ABORTED_READ)
        latest = [{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        s.note("latest, committed", "ListOffsets", replica_id=-1, isolation_level=1, topics=latest)

    same_as_kafka(play)


def test_the_second_protocol_bumps_the_epoch_with_every_end(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, producer = s.topic(), Producer(s)
        producer.init("init")
        producer.produce("produce adds the partition", name, "a", version=12)
        producer.describe("ongoing")
        producer.end("commit", commit=True, version=5)
        producer.wait_for("CompleteCommit")
        producer.produce("with the new epoch", name, "b", version=12)
        producer.end("abort", commit=False, version=5)
        producer.wait_for("CompleteAbort")
        stale = producer.epoch - 1
        producer.produce("with an old epoch", name, "c", version=12, producer_epoch=stale, sequence=0)
        producer.describe("afterwards")
        s.note_fetch("committed read", name, 0, **ABORTED_READ)

    same_as_kafka(play)


def test_ending_what_was_not_begun(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        one, two = Producer(s, "one"), Producer(s, "two")
        one.init("init")
        one.end("commit of nothing, version 4", commit=True)
        one.end("abort of nothing, version 4", commit=False)
        one.describe("afterwards")
        two.init("init")
        two.end("commit of nothing, version 5", commit=True, version=5)
        two.end("abort of nothing, version 5", commit=False, version=5)
        two.wait_for("CompleteAbort")
        two.describe("afterwards")

    same_as_kafka(play)


def test_an_end_that_is_repeated(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, producer = s.topic(), Producer(s)
        producer.init()
        producer.add("", name)
        producer.produce("", name, "a")
        producer.end("commit", commit=True)
        producer.wait_for("CompleteCommit")
        producer.end("commit again", commit=True)
        producer.end("abort after commit", commit=False)
        producer.add("", name)
        producer.produce("next", name, "b")
        producer.end("abort", commit=False)
        producer.wait_for("CompleteAbort")
        producer.end("abort again", commit=False)
        producer.end("commit after abort", commit=True)

    same_as_kafka(play)


def test_an_end_that_is_repeated_in_the_second_protocol(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, producer = s.topic(), Producer(s)
        producer.init()
        producer.produce("", name, "a", version=12)
        before = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
        producer.end("commit", commit=True, version=5)
        producer.wait_for("CompleteCommit")
        s.write("the same end again", producer.settled("EndTxn", 5, **producer.who(**before), committed=True))
        s.write("abort with the old epoch", producer.settled("EndTxn", 5, **producer.who(**before), committed=False))
        producer.produce("next transaction", name, "b", version=12)
        s.write("a late commit of the first", producer.settled("EndTxn", 5, **producer.who(**before), committed=True))
        producer.describe("the next one is untouched")

    same_as_kafka(play)


def test_a_new_incarnation_fences_the_old_one(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, old, new = s.topic(), Producer(s), Producer(s)
        old.init("old")
        old.add("", name)
        old.produce("", name, "a")
        new.init("new")
        old.add("old adds", name)
        old.produce("old produces, version 11", name, "b")
        old.produce("old produces, version 12", name, "b", version=12)
        old.end("old commits, version 4", commit=True)
        old.end("old commits, version 5", commit=True, version=5)
        s.note(
            "old asks for a new epoch",
            "InitProducerId",
            transactional_id=old.id,
            transaction_timeout_ms=60_000,
            producer_id=old.producer_id,
            producer_epoch=old.epoch,
        )
        new.add("new adds", name)
        new.produce("new produces", name, "c")
        new.end("new commits", commit=True)
        new.wait_for("CompleteCommit")
        s.note_fetch("committed read", name, 0, **ABORTED_READ)

    same_as_kafka(play)


def test_requests_with_the_wrong_identity(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, producer = s.topic(), Producer(s)
        stranger = Producer(s, "stranger")
        stranger.producer_id, stranger.epoch = 12_345_678, 0
        s.symbols[12_345_678] = "stranger's id"
        stranger.add("add, never initialised", name)
        stranger.end("end, never initialised", commit=True)
        stranger.describe("unknown")
        producer.init()
        producer.add("wrong producer id", name, producer_id=12_345_678)
        producer.add("future epoch", name, producer_epoch=producer.epoch + 1)
        producer.add("unknown topic", s.name("unknown"))
        producer.add("one known, one not", name, s.name("unknown"))
        producer.end("wrong producer id", commit=True, producer_id=12_345_678)
        producer.end("future epoch", commit=True, producer_epoch=producer.epoch + 1)
        producer.describe("afterwards")
        producer.produce("no transactional id", name, "a", transactional_id=None)
        producer.produce("other transactional id", name, "a", transactional_id=s.name("other"))

    same_as_kafka(play)


def test_producing_to_a_partition_that_was_not_added(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, other, producer = s.topic(), s.topic("other"), Producer(s)
        producer.init()
        producer.produce("before any add", name, "a")
        producer.add("", name)
        producer.produce("not the one that was added", other, "a")
        producer.produce("the one that was added", name, "a")

    same_as_kafka(play)


@pytest.mark.parametrize("timeout_ms", [0, -1, 1, 900_000, 900_001, 2**31 - 1])
def test_transaction_timeouts_have_bounds(same_as_kafka: Compare, timeout_ms: int) -> None:
    def play(s: Scenario) -> None:
        Producer(s, timeout_ms=timeout_ms).init("init")

    same_as_kafka(play)


def test_a_transaction_that_takes_too_long_is_aborted(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, producer = s.topic(), Producer(s, timeout_ms=5000)
        producer.init()
        producer.add("", name)
        producer.produce("", name, "a")
        producer.wait_for("CompleteAbort")
        producer.describe("aborted by time")
        producer.produce("too late, version 11", name, "b")
        producer.end("too late", commit=True)
        s.note_fetch("committed read", name, 0, **ABORTED_READ)
        producer.init("back again")

    same_as_kafka(play)


def test_init_with_id_and_epoch_bumps_only_its_own(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        producer = Producer(s)
        producer.init("init")
        own = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
        producer.init("bump with the current epoch", **own)
        producer.init("the same request again", **own)
        producer.init("once more with the old epoch", **own)
        producer.init("wrong producer id", producer_id=999_999, producer_epoch=0)
        producer.init("unconditionally")

    same_as_kafka(play)


def offsets(name: str, offset: int) -> list[dict[str, Any]]:
    return [
        {"name": name, "partitions": [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}]}
    ]


def read_offsets(s: Scenario, label: str, group: str, *, stable: bool = False) -> None:
    s.note(label, "OffsetFetch", 9, groups=[{"group_id": group, "topics": None}], require_stable=stable)


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_in_a_transaction_appear_when_it_commits(same_as_kafka: Compare, commit: bool) -> None:
    def play(s: Scenario) -> None:
        name, producer, group = s.topic(), Producer(s), s.name("group")
        s.coordinator(group, 0)
        s.ask("OffsetCommit", 9, group_id=group, topics=offsets(name, 1))
        producer.init()
        s.write("add offsets", producer.settled("AddOffsetsToTxn", 3, **producer.who(), group_id=group))
        s.note("commit offsets", "TxnOffsetCommit", 4, **producer.who(), group_id=group, topics=offsets(name, 5))
        producer.describe("ongoing")
        read_offsets(s, "before the end", group)
        read_offsets(s, "before the end, stable", group, stable=True)
        s.ask("OffsetDelete", group_id=group, topics=[])
        producer.end("end", commit=commit)
        producer.wait_for("CompleteCommit", "CompleteAbort")

        def stable() -> bool:
            asked = {"groups": [{"group_id": group, "topics": None}], "require_stable": True}
            topics = s.ask("OffsetFetch", 9, **asked)["groups"][0]["topics"]
            return all(each["error_code"] == 0 for topic in topics for each in topic["partitions"])

        s.until(stable)
        read_offsets(s, "after the end", group)

    same_as_kafka(play)


def test_offsets_in_the_second_protocol_need_no_add(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, producer, group = s.topic(), Producer(s), s.name("group")
        s.coordinator(group, 0)
        producer.init()
        s.note("commit offsets", "TxnOffsetCommit", 5, **producer.who(), group_id=group, topics=offsets(name, 5))
        producer.describe("ongoing")
        producer.end("commit", commit=True, version=5)
        producer.wait_for("CompleteCommit")
        s.until(
            lambda: s.ask("OffsetFetch", 9, groups=[{"group_id": group, "topics": None}])["groups"][0]["topics"] != []
        )
        read_offsets(s, "afterwards", group)

    same_as_kafka(play)


def test_wrong_offset_commits_in_transactions(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, producer, group = s.topic(), Producer(s), s.name("group")
        s.coordinator(group, 0)
        producer.init()
        asked = {"group_id": group, "topics": offsets(name, 5)}
        s.note("not added", "TxnOffsetCommit", 4, **producer.who(), **asked)
        s.write("add", producer.settled("AddOffsetsToTxn", 3, **producer.who(), group_id=group))
        s.note("wrong epoch", "TxnOffsetCommit", 4, **producer.who(producer_epoch=producer.epoch + 1), **asked)
        s.note(
            "unknown member",
            "TxnOffsetCommit",
            4,
            **producer.who(),
            **asked,
            member_id="nobody",
            generation_id_or_member_epoch=3,
        )
        s.note(
            "generation without member",
            "TxnOffsetCommit",
            4,
            **producer.who(),
            **asked,
            generation_id_or_member_epoch=3,
        )
        unknown = {"group_id": group, "topics": offsets(s.name("unknown"), 5)}
        s.note("unknown topic", "TxnOffsetCommit", 4, **producer.who(), **unknown)
        empty = {"group_id": "", "topics": offsets(name, 5)}
        s.note("empty group id", "TxnOffsetCommit", 4, **producer.who(), **empty)
        s.note("add, wrong producer id", "AddOffsetsToTxn", 3, **producer.who(producer_id=777), group_id=group)
        s.note("add, wrong epoch", "AddOffsetsToTxn", 3, **producer.who(producer_epoch=9), group_id=group)

    same_as_kafka(play)


def test_transactions_are_listed_with_filters(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, empty, ongoing = s.topic(), Producer(s, "empty"), Producer(s, "ongoing")
        empty.init()
        ongoing.init()
        ongoing.add("", name)
        mine = {empty.id, ongoing.id}
        for filters in (
            {},
            {"state_filters": ["Ongoing"]},
            {"state_filters": ["Empty", "Nonsense"]},
            {"producer_id_filters": [ongoing.producer_id]},
            {"duration_filter": 100_000},
            {"duration_filter": 0},
            {"transactional_id_pattern": f"ongoing.*{s.run}"},
            {"transactional_id_pattern": "no-such"},
            {"transactional_id_pattern": "("},
        ):
            answer = s.ask("ListTransactions", **filters)
            states = answer["transaction_states"]
            answer["transaction_states"] = [each for each in states if each["transactional_id"] in mine]
            s.write(f"{sorted(filters)}", answer)

    same_as_kafka(play)


def test_an_open_transaction_holds_back_only_committed_readers(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, one, two = s.topic(), Producer(s, "one"), Producer(s, "two")
        for producer, text in ((one, "a"), (two, "b")):
            producer.init()
            producer.add("", name)
            producer.produce("", name, text)
        s.produce(name, batch(records=values("plain")))
        two.end("", commit=True)
        two.wait_for("CompleteCommit")
        s.note_fetch("one is open", name, 0, **ABORTED_READ)
        s.note("producers", "DescribeProducers", topics=[{"name": name, "partition_indexes": [0]}])
        one.end("", commit=False)
        one.wait_for("CompleteAbort")
        s.note_fetch("one is aborted", name, 0, **ABORTED_READ)
        s.note("producers afterwards", "DescribeProducers", topics=[{"name": name, "partition_indexes": [0]}])

    same_as_kafka(play)
