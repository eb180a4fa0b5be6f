"""Transactions whose answers are lost, whose time runs out and whose versions are old, on a broker of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace import testing
from headrace.client import (
    Admin,
    Client,
    ClientOptions,
    DeliveryFailed,
    Groups,
    Outcome,
    PreparedRecords,
    ProducerIdentity,
    ProducerOptions,
    TopicPartition,
    TransactionalProducer,
    TransactionInfo,
    TransactionLost,
    add_partitions,
    describe_transaction,
    end_transaction,
    end_transactions,
    init_producer_id,
    list_transactions,
)
from headrace.errors import ErrorCode, KafkaError, UsageError
from headrace.record import Codec, Record
from tests.unit.client.conftest import PATIENCE
from tests.unit.client.reading import left_open, outcome, read_values
from tests.unit.client.scripted import LossyProxy
from tests.waiting import eventually

MakeTopic = Callable[..., list[TopicPartition]]
Unique = Callable[[str], str]

PRODUCE, INIT, END = 0, 22, 26


@pytest.fixture(params=[2, 0], ids=["v2", "before-v2"])
def client(bootstrap: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client that uses the broker's newest transactions, and one that believes the broker to be an older one."""
    if request.param == 0:
        monkeypatch.setattr("headrace.client.transactions.transactions_v2", lambda connection: False)
        monkeypatch.setattr("headrace.client.transactional.transactions_v2", lambda connection: False)
    with Client(bootstrap, PATIENCE) as client:
        yield client


def test_what_is_committed_is_read_and_what_is_aborted_is_not(
    client: Client, make_topic: MakeTopic, unique: Unique
) -> None:
    partitions = make_topic(2)
    producer = TransactionalProducer(client, unique("id"))
    for index, ends_well in enumerate([True, False, True, False, True]):
        producer.begin()
        for partition in partitions:
            producer.send(partition.topic, b"%d" % index, partition=partition.partition)
        producer.commit() if ends_well else producer.abort()
    assert read_values(client, partitions) == {each: [b"0", b"2", b"4"] for each in partitions}


def test_a_block_that_raises_is_taken_back_and_one_that_ends_is_not(
    client: Client, make_topic: MakeTopic, unique: Unique
) -> None:
    (partition,) = make_topic()
    with TransactionalProducer(client, unique("id")) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(partition.topic, b"lost")
            producer.flush()
            raise ZeroDivisionError
        with producer.transaction():
            producer.send(partition.topic, b"kept")
        producer.begin()
        producer.send(partition.topic, b"never committed")
    assert read_values(client, [partition]) == {partition: [b"kept"]}


def test_records_encoded_elsewhere_keep_their_place_between_the_others(
    client: Client, make_topic: MakeTopic, unique: Unique
) -> None:
    (partition,) = make_topic()
    producer = TransactionalProducer(client, unique("id"), options=ProducerOptions(codec=Codec.LZ4))
    with producer.transaction():
        producer.send(partition.topic, b"1", timestamp=5)
        producer.send_prepared(partition, PreparedRecords.of([Record(b"k", b"%d" % n, timestamp=9) for n in (2, 3)]))
        producer.send(partition.topic, b"4", timestamp=5)
    assert read_values(client, [partition]) == {partition: [b"1", b"2", b"3", b"4"]}


def test_a_transaction_without_records_ends_without_asking_anybody(client: Client, unique: Unique) -> None:
    name = unique("id")
    producer = TransactionalProducer(client, name)
    with producer.transaction():
        assert not producer.wrote
    info = describe_transaction(client, name)
    assert info is not None
    assert info.state == "Empty"


def test_offsets_count_when_the_transaction_is_committed(client: Client, make_topic: MakeTopic, unique: Unique) -> None:
    (partition,) = make_topic()
    group = unique("group")
    producer = TransactionalProducer(client, unique("id"))
    producer.begin()
    producer.send_offsets(group, {partition: 1})
    producer.abort()
    assert Groups(client).committed(group) == {}
    with producer.transaction():
        producer.send(partition.topic, b"x")
        producer.send_offsets(group, {partition: 7})
    assert Groups(client).committed(group) == {partition: 7}


def test_another_process_ends_it_as_often_as_it_likes(
    client: Client, bootstrap: str, make_topic: MakeTopic, unique: Unique
) -> None:
    (partition,) = make_topic()
    identity = left_open(bootstrap, partition, unique("id"))
    client.close()
    assert outcome(client, identity) is Outcome.OPEN
    for _ in range(3):
        end_transaction(client, identity, commit=True)
    assert outcome(client, identity) is Outcome.COMMITTED
    with pytest.raises(TransactionLost, match="has ended the other way") as caught:
        end_transaction(client, identity, commit=False)
    assert caught.value.identity == identity
    assert read_values(client, [partition]) == {partition: [b"x"]}


def test_many_are_ended_together_and_those_that_cannot_be_are_told(
    client: Client, bootstrap: str, make_topic: MakeTopic, unique: Unique
) -> None:
    (partition,) = make_topic()
    names = [unique(f"id{each}") for each in range(12)]
    identities = [left_open(bootstrap, partition, name) for name in names]
    heir = init_producer_id(client, names[5], 60_000)
    failed = end_transactions(client, identities, commit=True)
    assert list(failed) == [identities[5]]
    assert isinstance(failed[identities[5]], TransactionLost)
    assert end_transactions(client, [], commit=True) == {}
    assert outcome(client, heir) is Outcome.OPEN
    assert read_values(client, [partition]) == {partition: [b"x"] * 11}


def test_whoever_takes_over_an_id_aborts_what_was_open_and_fences_its_writer(
    client: Client, make_topic: MakeTopic, unique: Unique
) -> None:
    (partition,) = make_topic()
    name = unique("id")
    zombie = TransactionalProducer(client, name)
    zombie.begin()
    zombie.send(partition.topic, b"zombie")
    zombie.flush()
    heir = TransactionalProducer(client, name)
    heir.init()
    assert outcome(client, zombie.identity) is Outcome.SUPERSEDED
    assert outcome(client, heir.identity) is Outcome.OPEN
    zombie.send(partition.topic, b"zombie")
    with pytest.raises(TransactionLost, match="a newer producer has its id"):
        zombie.flush()
    with pytest.raises(TransactionLost):
        end_transaction(client, zombie.identity, commit=True)
    with heir.transaction():
        heir.send(partition.topic, b"heir")
    assert read_values(client, [partition]) == {partition: [b"heir"]}


def test_a_transaction_whose_time_ran_out_is_told_as_aborted(unique: Unique) -> None:
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 20}
    with testing.broker(settings=settings) as broker, Client(broker.bootstrap, PATIENCE) as client:
        Admin(client).create_topic("t", partitions=1)
        producer = outlived(lambda: TransactionalProducer(client, unique("id"), timeout_ms=50))
        eventually(lambda: outcome(client, producer.identity), lambda found: found is not Outcome.OPEN)
        assert outcome(client, producer.identity) is Outcome.ABORTED
        with pytest.raises(TransactionLost):
            producer.commit()
        with TransactionalProducer(client, producer.transactional_id).transaction() as heir:
            heir.send("t", b"again")
        assert read_values(client, [TopicPartition("t", 0)]) == {TopicPartition("t", 0): [b"again"]}


def outlived(make: Callable[[], TransactionalProducer]) -> TransactionalProducer:
    """A producer whose transaction has been written to; on a busy machine its time may be over even before that."""
    while True:
        producer = make()
        producer.begin()
        try:
            producer.send("t", b"late")
            producer.flush()
        except TransactionLost:
            continue
        return producer


@pytest.mark.parametrize("api", [INIT, PRODUCE, END], ids=["init", "produce", "end"])
def test_a_lost_answer_neither_loses_nor_doubles_a_transaction(api: int, unique: Unique) -> None:
    seen: list[int] = []

    def every_second_time(key: int) -> bool:
        if key == api:
            seen.append(key)
        return key == api and len(seen) % 2 == 1

    with LossyProxy(every_second_time) as proxy, testing.broker(settings=advertised(proxy)) as broker:
        proxy.upstream = broker.host, broker.port
        with Client(proxy.address, PATIENCE) as client:
            Admin(client).create_topic("t", partitions=1)
            producer = TransactionalProducer(client, unique("id"))
            for index in range(4):
                with producer.transaction():
                    producer.send("t", b"%d" % index)
            assert proxy.lost >= 1
            assert read_values(client, [TopicPartition("t", 0)]) == {TopicPartition("t", 0): [b"0", b"1", b"2", b"3"]}


def advertised(proxy: LossyProxy) -> dict[str, object]:
    return {"advertised.kafka": proxy.address}


def test_an_abort_after_a_commit_that_nobody_answered_says_that_the_commit_had_worked(unique: Unique) -> None:
    lost: list[int] = []

    def end_once(key: int) -> bool:
        if key == END and not lost:
            lost.append(key)
            return True
        return False

    impatient = ClientOptions(retry_timeout_ms=0, request_timeout_ms=60_000)
    with LossyProxy(end_once) as proxy, testing.broker(settings=advertised(proxy)) as broker:
        proxy.upstream = broker.host, broker.port
        with Client(proxy.address, PATIENCE) as patient:
            Admin(patient).create_topic("t", partitions=1)
            init_producer_id(patient, "id", 1000)
        with Client(proxy.address, impatient) as client:
            producer = TransactionalProducer(client, "id")
            producer.begin()
            producer.send("t", b"x")
            with pytest.raises(KafkaError):
                producer.commit()
            with pytest.raises(TransactionLost):
                producer.abort()
            assert read_values(client, [TopicPartition("t", 0)]) == {TopicPartition("t", 0): [b"x"]}


def test_after_a_record_that_is_refused_only_an_abort_is_possible(
    client: Client, make_topic: MakeTopic, unique: Unique
) -> None:
    (partition,) = make_topic(max_message_bytes="1000")
    producer = TransactionalProducer(client, unique("id"))
    producer.begin()
    producer.send(partition.topic, b"small")
    producer.flush()
    producer.send(partition.topic, b"x" * 5000)
    with pytest.raises(DeliveryFailed):
        producer.flush()
    with pytest.raises(UsageError, match="call abort"):
        producer.commit()
    producer.abort()
    with producer.transaction():
        producer.send(partition.topic, b"after")
    assert read_values(client, [partition]) == {partition: [b"after"]}


def test_what_is_done_in_the_wrong_order_is_told_with_the_call_that_is_missing(client: Client, unique: Unique) -> None:
    producer = TransactionalProducer(client, unique("id"))
    with pytest.raises(UsageError, match=r"init\(\)"):
        _ = producer.identity
    with pytest.raises(UsageError, match=r"begin\(\)"):
        producer.send("t", b"x")
    producer.begin()
    with pytest.raises(UsageError, match=r"commit\(\) or abort\(\)"):
        producer.begin()
    with pytest.raises(UsageError, match="acks=-1"):
        TransactionalProducer(client, "x", options=ProducerOptions(acks=1))


def test_partitions_that_do_not_exist_cannot_be_added_and_are_named(
    client: Client, make_topic: MakeTopic, unique: Unique
) -> None:
    (partition,) = make_topic()
    identity = init_producer_id(client, unique("id"), 10_000)
    missing = partition._replace(partition=9)
    with pytest.raises(KafkaError, match=r"adding .*\[9\]") as caught:
        add_partitions(client, identity, [partition, missing])
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_ids_are_found_by_prefix_and_an_unknown_one_is_none(client: Client, unique: Unique) -> None:
    prefix = unique("layout")
    for task in range(3):
        init_producer_id(client, f"{prefix}-{task}", 10_000)
    assert list_transactions(client, prefix=prefix) == [f"{prefix}-{task}" for task in range(3)]
    assert describe_transaction(client, "never-used") is None


def test_open_transactions_are_found_by_their_state(client: Client, make_topic: MakeTopic, unique: Unique) -> None:
    (partition,) = make_topic()
    prefix = unique("layout")
    init_producer_id(client, f"{prefix}-idle", 10_000)
    with TransactionalProducer(client, f"{prefix}-busy") as producer:
        producer.begin()
        producer.send(partition.topic, b"one")
        producer.flush()
        assert list_transactions(client, prefix=prefix, states=["Ongoing"]) == [f"{prefix}-busy"]
        assert list_transactions(client, prefix=prefix, states=["Empty"]) == [f"{prefix}-idle"]


def test_an_identity_that_was_handed_on_is_resumed_until_its_id_is_taken_over(
    client: Client, make_topic: MakeTopic, unique: Unique
) -> None:
    (partition,) = make_topic()
    name = unique("id")
    identity = init_producer_id(client, name, 10_000)
    resumed = TransactionalProducer(client, name)
    resumed.resume(identity)
    with resumed.transaction():
        resumed.send(partition.topic, b"one")
    late = TransactionalProducer(client, name)
    late.resume(resumed.identity)
    init_producer_id(client, name, 10_000)
    late.begin()
    late.send(partition.topic, b"two")
    with pytest.raises(TransactionLost):
        late.commit()
    assert read_values(client, [partition]) == {partition: [b"one"]}


def test_an_identity_of_another_id_is_not_resumed(client: Client) -> None:
    with pytest.raises(UsageError, match="cannot be resumed by a producer of 'mine'"):
        TransactionalProducer(client, "mine").resume(ProducerIdentity("yours", 1, 0))


@pytest.mark.parametrize(
    ("state", "producer_id", "epoch", "expected"),
    [
        ("Empty", 7, 3, Outcome.OPEN),
        ("Ongoing", 7, 3, Outcome.OPEN),
        ("PrepareCommit", 7, 3, Outcome.COMMITTED),
        ("CompleteCommit", 7, 4, Outcome.COMMITTED),
        ("CompleteAbort", 7, 3, Outcome.ABORTED),
        ("PrepareAbort", 7, 4, Outcome.ABORTED),
        ("Empty", 7, 4, Outcome.SUPERSEDED),
        ("Ongoing", 7, 4, Outcome.SUPERSEDED),
        ("CompleteCommit", 7, 5, Outcome.SUPERSEDED),
        ("CompleteCommit", 8, 0, Outcome.SUPERSEDED),
    ],
)
def test_state_and_epoch_tell_what_became_of_a_transaction(
    state: str, producer_id: int, epoch: int, expected: Outcome
) -> None:
    info = TransactionInfo(transactional_id="t", state=state, producer_id=producer_id, epoch=epoch, timeout_ms=1)
    assert info.outcome_of(ProducerIdentity("t", 7, 3)) is expected


def test_the_end_that_used_up_the_epochs_shows_as_a_new_producer_id() -> None:
    info = TransactionInfo(transactional_id="t", state="CompleteCommit", producer_id=8, epoch=0, timeout_ms=1)
    assert info.outcome_of(ProducerIdentity("t", 7, 32766)) is Outcome.COMMITTED


@pytest.mark.slow
def test_a_broker_killed_between_any_two_steps_neither_loses_nor_doubles_a_transaction() -> None:
    partitions = [TopicPartition("t", 0), TopicPartition("t", 1)]
    with testing.broker(in_process=False) as broker, Client(broker.bootstrap, PATIENCE) as client:
        Admin(client).create_topic("t", partitions=2)
        for step in range(4):
            kills = iter([each == step for each in range(4)])

            def perhaps_kill(kills: Iterator[bool] = kills) -> None:
                if next(kills):
                    broker.kill()
                    broker.start()

            producer = TransactionalProducer(client, "id")
            producer.init()
            perhaps_kill()
            producer.begin()
            producer.send("t", b"%d" % step, partition=0)
            producer.flush()
            perhaps_kill()
            producer.send("t", b"%d" % step, partition=1)
            producer.flush()
            perhaps_kill()
            end_transaction(client, producer.identity, commit=True)
            perhaps_kill()
            end_transaction(client, producer.identity, commit=True)
            assert outcome(client, producer.identity) is Outcome.COMMITTED
        assert read_values(client, partitions) == {each: [b"0", b"1", b"2", b"3"] for each in partitions}
