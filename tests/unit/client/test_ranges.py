"""Ranges of raw batches: everything in order once, whatever happens in between; or a word about what is missing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from headrace import testing
from headrace.batch import CorruptBatch, build_batch
from headrace.client import (
    Admin,
    Client,
    ClientOptions,
    OffsetOutOfRange,
    PreparedRecords,
    Producer,
    RangeOptions,
    RawBatch,
    TopicPartition,
    TopicReplaced,
    TransactionalProducer,
    end_offsets,
    fetch_range,
    raw_batches,
)
from headrace.errors import ErrorCode, KafkaError
from headrace.record import Codec, Record, decode_records
from tests.unit.client.conftest import PATIENCE
from tests.unit.client.reading import read_values
from tests.unit.client.scripted import LossyProxy

MakeTopic = Callable[..., list[TopicPartition]]
FETCH = 1
ONE_BATCH = RangeOptions(bytes_per_fetch=1)


def write(client: Client, partition: TopicPartition, batches: int, per_batch: int = 3) -> None:
    """Batches of numbered records."""
    with Producer(client) as producer:
        for batch in range(batches):
            numbers = range(batch * per_batch, (batch + 1) * per_batch)
            producer.send_prepared(
                partition, PreparedRecords.of([Record(None, b"%d" % n, timestamp=1) for n in numbers])
            )


def values(batch: RawBatch) -> list[bytes | None]:
    return [record.value for record in decode_records(batch.parsed(), 1 << 20)]


def offsets_of(client: Client, partition: TopicPartition, start: int, end: int, options: RangeOptions) -> list[int]:
    return [each.base_offset for each in fetch_range(client, partition, start, end, options=options)]


@pytest.mark.parametrize("options", [RangeOptions(), ONE_BATCH], ids=["one answer", "an answer per batch"])
def test_exactly_the_batches_that_reach_into_the_range_are_given(
    client: Client, make_topic: MakeTopic, options: RangeOptions
) -> None:
    (partition,) = make_topic()
    write(client, partition, 10)
    assert offsets_of(client, partition, 0, 30, options) == list(range(0, 30, 3))
    assert offsets_of(client, partition, 4, 10, options) == [3, 6, 9]
    assert offsets_of(client, partition, 6, 9, options) == [6]
    assert offsets_of(client, partition, 5, 6, options) == [3]
    assert offsets_of(client, partition, 7, 7, options) == []


def test_a_raw_batch_shows_its_header_and_its_records_without_copies(client: Client, make_topic: MakeTopic) -> None:
    (partition,) = make_topic()
    with Producer(client) as producer:
        producer.send(partition.topic, b"v", key=b"k", timestamp=77)
    (batch,) = fetch_range(client, partition, 0, 1)
    assert (batch.base_offset, batch.last_offset, batch.next_offset, batch.record_count) == (0, 0, 1, 1)
    assert (batch.base_timestamp, batch.max_timestamp, batch.codec) == (77, 77, Codec.NONE)
    assert not any((batch.is_control, batch.is_transactional, batch.is_log_append_time))
    assert batch.records.obj is batch.data.obj
    assert bytes(batch.records).endswith(b"\x02k\x02v\x00")


@pytest.mark.parametrize("options", [RangeOptions(), ONE_BATCH], ids=["one answer", "an answer per batch"])
@pytest.mark.parametrize("seed", range(3))
def test_read_committed_leaves_out_aborted_batches_and_marks_the_ends(
    client: Client, make_topic: MakeTopic, options: RangeOptions, seed: int
) -> None:
    """Three writers take turns; their transactions overlap and end either way."""
    (partition,) = make_topic()
    dice = random.Random(seed)
    writers = [TransactionalProducer(client, f"{partition.topic}-{each}") for each in range(3)]
    written: dict[int, list[bytes]] = {}
    for number in range(60):
        who = dice.randrange(3)
        if who not in written:
            writers[who].begin()
            written[who] = []
        writers[who].send(partition.topic, b"%d" % number)
        writers[who].flush()
        written[who].append(b"%d" % number)
        if dice.random() < 0.4:
            writers[who].commit() if dice.random() < 0.5 else writers[who].abort()
            del written[who]
    for who in written:
        writers[who].abort()
    end = end_offsets(client, [partition])[partition]
    committed = RangeOptions(read_committed=True, bytes_per_fetch=options.bytes_per_fetch)
    found = list(fetch_range(client, partition, 0, end, options=committed))
    everything = list(fetch_range(client, partition, 0, end, options=options))
    expected = read_values(client, [partition])[partition]
    assert [value for batch in found if not batch.is_control for value in values(batch)] == expected
    assert 0 < len(expected) < 60
    assert [each.base_offset for each in found if each.is_control] == [
        each.base_offset for each in everything if each.is_control
    ]
    assert sum(each.record_count for each in everything if not each.is_control) == 60


def test_lost_answers_neither_lose_nor_double_a_batch() -> None:
    fetches = 0

    def every_third(api_key: int) -> bool:
        nonlocal fetches
        fetches += api_key == FETCH
        return api_key == FETCH and fetches % 3 == 0

    with LossyProxy(every_third) as proxy, testing.broker(settings={"advertised.kafka": proxy.address}) as broker:
        proxy.upstream = broker.host, broker.port
        with Client(proxy.address, ClientOptions(retry_pause_ms=1, retry_pause_ms_max=5)) as client:
            Admin(client).create_topic("t", partitions=1)
            partition = TopicPartition("t", 0)
            write(client, partition, 30)
            assert offsets_of(client, partition, 0, 90, ONE_BATCH) == list(range(0, 90, 3))
            assert proxy.lost > 5


@pytest.mark.slow
def test_a_broker_killed_in_the_middle_is_waited_for_and_reading_goes_on_at_the_offset() -> None:
    with testing.broker(in_process=False) as broker, Client(broker.bootstrap, PATIENCE) as client:
        Admin(client).create_topic("t", partitions=1)
        partition = TopicPartition("t", 0)
        write(client, partition, 30)
        found = []
        for batch in fetch_range(client, partition, 0, 90, options=ONE_BATCH):
            found.append(batch.base_offset)
            if batch.base_offset in (30, 60):
                broker.kill()
                broker.start()
        assert found == list(range(0, 90, 3))


def test_a_broker_that_stays_away_is_told_when_the_time_is_over() -> None:
    with testing.broker() as broker, Client(broker.bootstrap, ClientOptions(retry_timeout_ms=50)) as client:
        Admin(client).create_topic("t", partitions=1)
        partition = TopicPartition("t", 0)
        write(client, partition, 3)
        reading = fetch_range(client, partition, 0, 9, bytes_per_fetch=1, timeout_ms=100)
        next(reading)
        broker.stop()
        with pytest.raises(KafkaError) as caught:
            list(reading)
        assert caught.value.code is ErrorCode.NETWORK_EXCEPTION


@pytest.mark.parametrize(("offset", "why"), [(2, "retention removed it"), (50, "never written")])
def test_an_offset_outside_the_log_is_told_with_both_ends(
    client: Client, make_topic: MakeTopic, offset: int, why: str
) -> None:
    (partition,) = make_topic()
    write(client, partition, 10)
    Admin(client).delete_records({partition: 12})
    with pytest.raises(OffsetOutOfRange, match=why) as caught:
        list(fetch_range(client, partition, offset, 60))
    assert (caught.value.earliest, caught.value.latest, caught.value.offset) == (12, 30, offset)


def test_a_range_that_reaches_behind_the_end_is_told_when_the_time_is_over(
    client: Client, make_topic: MakeTopic
) -> None:
    (partition,) = make_topic()
    write(client, partition, 2)
    reading = fetch_range(client, partition, 0, 100, timeout_ms=1)
    assert [next(reading).base_offset, next(reading).base_offset] == [0, 3]
    with pytest.raises(KafkaError, match="gives nothing from offset 6 on, up to 100 was asked for"):
        next(reading)


def test_a_topic_made_again_under_its_name_is_not_taken_for_the_old_one(client: Client, make_topic: MakeTopic) -> None:
    (partition,) = make_topic()
    write(client, partition, 4)
    reading = fetch_range(client, partition, 0, 12, options=ONE_BATCH)
    next(reading)
    Admin(client).delete_topic(partition.topic)
    Admin(client).create_topic(partition.topic, partitions=1)
    write(client, partition, 4)
    with pytest.raises(TopicReplaced, match="was deleted and made again"):
        list(reading)


def test_a_deleted_topic_is_told_soon(client: Client, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.client.ranges.SOON_OR_NEVER_MS", 50)
    (partition,) = make_topic()
    write(client, partition, 4)
    reading = fetch_range(client, partition, 0, 12, options=ONE_BATCH)
    next(reading)
    Admin(client).delete_topic(partition.topic)
    with pytest.raises(KafkaError) as caught:
        list(reading)
    assert caught.value.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


def test_a_batch_with_a_wrong_checksum_is_not_given() -> None:
    data = bytearray(build_batch([Record(None, b"x", timestamp=1)]).data)
    assert len(raw_batches(data)) == 1
    data[-1] ^= 1
    with pytest.raises(CorruptBatch, match="wrong checksum"):
        raw_batches(data)
    assert len(raw_batches(data, check_crc=False)) == 1
    with pytest.raises(CorruptBatch, match="not a record batch"):
        raw_batches(b"\x00" * 100)


def test_other_requests_of_the_same_client_may_come_in_between(client: Client, make_topic: MakeTopic) -> None:
    (partition,) = make_topic()
    write(client, partition, 10)
    found = []
    for batch in fetch_range(client, partition, 0, 30, options=ONE_BATCH):
        assert end_offsets(client, [partition]) == {partition: 30}
        found.append(batch.base_offset)
    assert found == list(range(0, 30, 3))
