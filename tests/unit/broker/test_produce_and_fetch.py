"""Produce and Fetch, against real logs."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.batch import build_batch
from headrace.broker.broker import settled
from headrace.errors import ErrorCode
from headrace.record import Codec, Record
from headrace.testing.disk import SimulatedDisk
from headrace.vocabulary import Offset
from headrace.wire.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from headrace.wire.kafka.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.unit.broker.harness import Harness, batch, fetched, payload, running
from tests.unit.broker.test_topic_creation import running as running_on
from tests.waiting import PATIENCE_S


def test_what_was_produced_is_fetched_with_its_offsets(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("orders")
        first = await harness.produce("orders", [b"a", b"b"])
        second = await harness.produce("orders", [b"c"])
        assert (first.base_offset, second.base_offset) == (0, 2)
        records = fetched(await harness.fetch("orders", 0))
        assert [(each.offset, each.value) for each in records] == [(0, b"a"), (1, b"b"), (2, b"c")]

    with_broker(scenario)


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_passes_through_untouched(codec: Codec, with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        sent = batch(b"x" * 500, b"y" * 500, codec=codec)
        body_before = sent.body
        await harness.produce("t", sent)
        answer = await harness.fetch("t", 0)
        assert answer.records[0].read()[21:] == body_before

    with_broker(scenario)


def test_a_fetch_inside_a_batch_gives_the_whole_batch(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        await harness.produce("t", [b"0", b"1", b"2"])
        assert [each.offset for each in fetched(await harness.fetch("t", 1))] == [0, 1, 2]

    with_broker(scenario)


def test_a_batch_larger_than_every_limit_is_still_given(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        await harness.produce("t", [b"x" * 5000])
        await harness.produce("t", [b"y"])
        values = await harness.values("t", 0, partition_max_bytes=10, max_bytes=10)
        assert values == [b"x" * 5000]

    with_broker(scenario)


def test_max_bytes_is_shared_by_the_partitions_of_a_request(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t", 3)
        for index in range(3):
            await harness.produce("t", [b"x" * 1000], index)
        asks = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=10_000) for index in range(3)]
        body = FetchRequest(topics=[FetchTopic(topic="t", partitions=asks)], max_bytes=1500, min_bytes=1)
        answer = await harness.ask(body, 12)
        assert [len(fetched(each)) for each in answer.responses[0].partitions] == [1, 0, 0]

    with_broker(scenario)


def test_a_fetch_waits_until_something_is_produced(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        waiting = harness.start(harness.fetch_body("t", 0, max_wait_ms=600_000), 12)
        await asyncio.sleep(0.02)
        assert not waiting.ready
        await harness.produce("t", [b"late"])
        answer = await asyncio.wait_for(settled(waiting), PATIENCE_S)
        assert [each.value for each in fetched(answer.responses[0].partitions[0])] == [b"late"]
        partition = harness.partition("t", 0)
        assert not partition.watchers, "an answered fetch must not stay among the watchers"

    with_broker(scenario)


def test_a_reader_gets_the_record_before_its_producer_gets_the_acknowledgement(
    with_broker: Callable[..., None],
) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        order: list[str] = []
        waiting = harness.start(harness.fetch_body("t", 0, max_wait_ms=600_000), 12)
        waiting.taker = lambda: order.append("reader")
        data = PartitionProduceData(index=0, records=payload([b"x"]))
        body = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=[data])])
        producing = harness.start(body, 9)
        answered = asyncio.Event()
        # A session sends acknowledgements at the end of the turn in which they came.
        producing.taker = lambda: asyncio.get_running_loop().call_soon(answered.set)
        await asyncio.wait_for(answered.wait(), PATIENCE_S)
        order.append("producer")
        assert order == ["reader", "producer"]

    with_broker(scenario)


def test_a_fetch_that_waits_in_vain_is_answered_empty_in_time(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        answer = await harness.fetch("t", 0, max_wait_ms=30)
        assert answer.error_code == 0
        assert fetched(answer) == []

    with_broker(scenario)


def test_offsets_outside_the_log_are_refused(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        await harness.produce("t", [b"a"])
        for offset in (-1, 2, 99):
            assert (await harness.fetch("t", offset)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await harness.fetch("t", 1)).error_code == 0, "the end itself is where the next record will be"

    with_broker(scenario)


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda raw: raw[:-1], ErrorCode.INVALID_RECORD),
        (lambda raw: raw[:30] + bytes([raw[30] ^ 1]) + raw[31:], ErrorCode.CORRUPT_MESSAGE),
        (lambda raw: raw[:16] + b"\x01" + raw[17:], ErrorCode.INVALID_RECORD),
        (lambda raw: b"", ErrorCode.INVALID_RECORD),
        (lambda raw: raw + raw, ErrorCode.INVALID_RECORD),
        (
            lambda raw: build_batch([Record(key=None, value=b"x" * 2_000_000, timestamp=1)]).data,
            ErrorCode.MESSAGE_TOO_LARGE,
        ),
    ],
)
def test_a_bad_batch_is_refused_and_nothing_is_written(
    spoil: Callable[[bytes], bytes], code: ErrorCode, with_broker: Callable[..., None]
) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        answer = await harness.produce("t", spoil(batch(b"good").data))
        assert answer.error_code == code
        assert answer.base_offset == -1
        assert harness.partition("t", 0).log.end_offset == 0

    with_broker(scenario)


def test_one_bad_partition_does_not_spoil_the_others_of_a_request(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t", 2)
        data = [
            PartitionProduceData(index=0, records=b"garbage" * 20),
            PartitionProduceData(index=1, records=batch(b"fine").data),
            PartitionProduceData(index=7, records=batch(b"nowhere").data),
        ]
        body = ProduceRequest(acks=-1, timeout_ms=100, topic_data=[TopicProduceData(name="t", partition_data=data)])
        answer = await harness.ask(body, 9)
        codes = [each.error_code for each in answer.responses[0].partition_responses]
        assert codes[1:] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert codes[0] != 0
        assert await harness.values("t", 0, 1) == [b"fine"]

    with_broker(scenario)


def test_acks_zero_is_written_and_not_answered(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        data = PartitionProduceData(index=0, records=batch(b"quiet").data)
        body = ProduceRequest(acks=0, timeout_ms=100, topic_data=[TopicProduceData(name="t", partition_data=[data])])
        assert await harness.ask(body, 9) is None
        assert harness.partition("t", 0).log.end_offset == 1

    with_broker(scenario)


def test_a_repeated_idempotent_batch_gets_its_first_offset_also_after_a_restart(tmp_path: Path) -> None:
    sent = {"producer_id": 1000, "producer_epoch": 0}

    async def before() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t")
            await harness.produce("t", batch(b"zero", base_sequence=0, **sent))
            await harness.produce("t", batch(b"one", base_sequence=1, **sent))

    async def after() -> None:
        async with running(tmp_path) as harness:
            again = await harness.produce("t", batch(b"one", base_sequence=1, **sent))
            assert (again.error_code, again.base_offset) == (0, 1)
            gap = await harness.produce("t", batch(b"nine", base_sequence=9, **sent))
            assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert await harness.values("t") == [b"zero", b"one"]

    asyncio.run(before())
    asyncio.run(after())


def test_a_repeated_idempotent_batch_is_acknowledged_with_the_first_and_not_before_it(
    with_broker: Callable[..., None],
) -> None:
    """A client that sends it again on a new connection must not hear that it is safe before it is flushed."""

    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        data = PartitionProduceData(index=0, records=batch(b"x", producer_id=1000, base_sequence=0).data)
        body = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=[data])])
        replies = [harness.start(body, 9), harness.start(body, 9)]
        log = harness.partition("t", 0).log
        assert (log.end_offset, log.high_watermark) == (1, 0)
        assert [each.ready for each in replies] == [False, False]
        for reply in replies:
            answer = await asyncio.wait_for(settled(reply), PATIENCE_S)
            assert log.high_watermark == 1
            assert answer.responses[0].partition_responses[0].base_offset == 0

    with_broker(scenario)


def test_batches_after_one_that_could_not_be_written_are_refused_for_the_same_reason() -> None:
    """As out of order they would make librdkafka begin a new epoch, and send again in it what was written elsewhere."""
    sent = {"producer_id": 1000, "producer_epoch": 0}

    async def scenario() -> None:
        disk = SimulatedDisk()
        async with running_on(disk) as harness:
            await harness.create("t")
            await harness.produce("t", batch(b"zero", base_sequence=0, **sent))
            disk.fail_next("write", errno.ENOSPC, "/data/topics/")
            answers = [await harness.produce("t", batch(b"x", base_sequence=n, **sent)) for n in (1, 2, 3)]
            assert {each.error_code for each in answers} == {ErrorCode.KAFKA_STORAGE_ERROR}
            other = await harness.produce("t", batch(b"x", base_sequence=2, producer_id=1000, producer_epoch=1))
            assert other.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            for number, value in ((1, b"one"), (2, b"two")):
                assert (await harness.produce("t", batch(value, base_sequence=number, **sent))).error_code == 0
            gap = await harness.produce("t", batch(b"nine", base_sequence=9, **sent))
            assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert await harness.values("t") == [b"zero", b"one", b"two"]

    asyncio.run(scenario())


def test_a_compacted_topic_refuses_records_without_key_and_says_which(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t", cleanup_policy="compact")
        records = [Record(key=b"k", value=b"1", timestamp=1), Record(key=None, value=b"2", timestamp=1)]
        answer = await harness.produce("t", records)
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert [each.batch_index for each in answer.record_errors] == [1]

    with_broker(scenario)


def test_log_append_time_replaces_the_producers_clock(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t", message_timestamp_type="LogAppendTime")
        answer = await harness.produce("t", [b"a"])
        assert answer.log_append_time_ms > 1_600_000_000_000
        record = fetched(await harness.fetch("t", 0))[0]
        assert record.timestamp == answer.log_append_time_ms

    with_broker(scenario)


def test_a_timestamp_from_the_far_future_is_refused(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        far = [Record(key=None, value=b"a", timestamp=10_000_000_000_000)]
        assert (await harness.produce("t", far)).error_code == ErrorCode.INVALID_TIMESTAMP

    with_broker(scenario)


def test_the_topics_own_codec_repacks_what_producers_send(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t", compression_type="zstd")
        await harness.produce("t", batch(b"x" * 10_000, codec=Codec.GZIP))
        assert await harness.values("t") == [b"x" * 10_000]
        assert harness.partition("t", 0).log.size_bytes < 1_000

    with_broker(scenario)


def test_validating_records_finds_what_the_header_hides(with_broker: Callable[..., None]) -> None:
    lying = batch(b"one", b"two")
    lying.body = lying.body[:40] + b"\x7f" * (len(lying.body) - 40)
    from headrace.batch import reseal

    reseal(lying, lying.body[40:])

    async def scenario(harness: Harness) -> None:
        await harness.create("trusting")
        data = {"headrace_validate": "records"}
        await harness.create("strict", **data)
        assert (await harness.produce("trusting", lying)).error_code == 0
        assert (await harness.produce("strict", lying)).error_code != 0

    with_broker(scenario)


def test_a_session_sends_only_what_changed(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t", 3)
        asks = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1000) for index in range(3)]
        first = await harness.ask(
            FetchRequest(topics=[FetchTopic(topic="t", partitions=asks)], session_epoch=0, min_bytes=0, max_bytes=9999),
            12,
        )
        assert first.session_id > 0
        assert len(first.responses[0].partitions) == 3
        await harness.produce("t", [b"x"], 1)
        again = FetchRequest(session_id=first.session_id, session_epoch=1, min_bytes=1, max_bytes=9999, max_wait_ms=500)
        second = await harness.ask(again, 12)
        assert [each.partition_index for each in second.responses[0].partitions] == [1]
        forget = FetchRequest(
            session_id=first.session_id,
            session_epoch=2,
            max_bytes=9999,
            forgotten_topics_data=[ForgottenTopic(topic="t", partitions=[1])],
        )
        assert (await harness.ask(forget, 12)).responses == []

    with_broker(scenario)


def test_a_session_mentions_a_partition_whose_start_has_moved(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t", 2)
        await harness.produce("t", [b"x", b"y"], 1)
        asks = [FetchPartition(partition=index, fetch_offset=2 * index, partition_max_bytes=1000) for index in range(2)]
        first = await harness.ask(
            FetchRequest(topics=[FetchTopic(topic="t", partitions=asks)], session_epoch=0, min_bytes=0, max_bytes=9999),
            12,
        )
        harness.partition("t", 1).log.delete_records(Offset(1))
        again = FetchRequest(session_id=first.session_id, session_epoch=1, min_bytes=0, max_bytes=9999)
        (partition,) = (await harness.ask(again, 12)).responses[0].partitions
        assert (partition.partition_index, partition.log_start_offset, partition.records) == (1, 1, b"")

    with_broker(scenario)


def test_sessions_refuse_wrong_ids_and_epochs(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        unknown = await harness.ask(FetchRequest(session_id=42, session_epoch=1, max_bytes=1), 12)
        assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        opened = await harness.ask(
            FetchRequest(
                topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition_max_bytes=9)])],
                session_epoch=0,
                max_bytes=9,
            ),
            12,
        )
        skipped = await harness.ask(FetchRequest(session_id=opened.session_id, session_epoch=7, max_bytes=1), 12)
        assert skipped.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH

    with_broker(scenario)


def test_offsets_are_listed_by_time_and_at_both_ends(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        for second in (1, 2, 3):
            await harness.produce("t", [Record(key=None, value=b"x", timestamp=second * 1000)])

        async def listed(timestamp: int) -> tuple[int, int]:
            ask = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            body = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[ask])])
            found = (await harness.ask(body, 7)).topics[0].partitions[0]
            return found.timestamp, found.offset

        assert await listed(-2) == (-1, 0)
        assert await listed(-1) == (-1, 3)
        assert await listed(-3) == (3000, 2)
        assert await listed(1500) == (2000, 1)
        assert await listed(9000) == (-1, -1)

    with_broker(scenario)


def test_two_threads_of_producers_share_one_sync(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t", 8)
        before = harness.broker.flusher.sync_seconds.count
        await asyncio.gather(*(harness.produce("t", [b"x"], index % 8) for index in range(64)))
        assert harness.broker.flusher.sync_seconds.count - before < 64

    with_broker(scenario)


@pytest.mark.parametrize(
    ("version", "code"), [(9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (13, ErrorCode.UNKNOWN_TOPIC_ID)]
)
def test_a_producer_whose_topic_is_deleted_before_the_flush_is_not_told_that_its_records_are_safe(
    with_broker: Callable[..., None], version: int, code: ErrorCode
) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("gone")
        await harness.create("kept")
        topics = [harness.broker.topics.get(name) for name in ("gone", "kept")]
        asked = [
            TopicProduceData(
                name=topic.name if version < 13 else "",
                topic_id=topic.topic_id,
                partition_data=[PartitionProduceData(index=0, records=payload([b"x"]))],
            )
            for topic in topics
            if topic is not None
        ]
        reply = harness.start(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=asked), version)
        assert topics[0] is not None
        harness.broker.topics.delete(topics[0])
        answer = await asyncio.wait_for(settled(reply), PATIENCE_S)
        gone, kept = (each.partition_responses[0] for each in answer.responses)
        assert (gone.error_code, gone.base_offset) == (code, -1)
        assert (kept.error_code, kept.base_offset) == (0, 0)

    with_broker(scenario)
