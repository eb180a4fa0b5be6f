"""What the coordinator answers, state by state, with the codes that Apache Kafka gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.broker.request import Peer
from headrace.broker.transactions import coordinator
from headrace.errors import ErrorCode
from headrace.wire.kafka.messages import transactions as messages
from tests.unit.broker.txn_fakes import FakePartition, Producer, World, result, waits

EPOCH_LAST = 32766


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def partition_codes(reply: object) -> list[int]:
    response = result(reply)
    return [
        each.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    ]


def started(world: World, *partitions: FakePartition, name: str = "t") -> Producer:
    producer = world.ready(name)
    world.add(producer, *partitions)
    world.flush()
    return producer


# ---- producer ids ----


def test_an_idempotent_producer_gets_an_id_without_leaving_a_row(world: World) -> None:
    answer = world.init(None)
    assert waits(answer), "the block of ids must be durable before an id leaves"
    world.flush()
    assert (result(answer).producer_id, result(answer).producer_epoch) == (0, 0)
    assert world.state.table("transactions") == {}


def test_no_producer_id_is_given_twice_even_across_crashes(world: World) -> None:
    seen = []
    for _ in range(3):
        for _ in range(3):
            answer = world.init(None)
            world.flush()
            seen.append(result(answer).producer_id)
        world = world.crash()
    assert len(set(seen)) == 9


def test_a_block_that_was_not_flushed_has_given_no_id(world: World) -> None:
    answer = world.init(None)
    assert waits(answer)
    again = world.crash().init(None)
    assert waits(again)


# ---- InitProducerId ----


def test_each_initialisation_bumps_the_epoch_and_fences_the_one_before(world: World) -> None:
    first = world.ready()
    second = world.ready()
    assert (second.id, second.epoch) == (first.id, first.epoch + 1)
    assert partition_codes(world.add(first, world.partitions[0])) == [ErrorCode.PRODUCER_FENCED]


@pytest.mark.parametrize(("version", "code"), [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)])
def test_a_fenced_producer_hears_the_code_that_its_version_knows(world: World, version: int, code: ErrorCode) -> None:
    old = world.ready()
    world.ready()
    assert partition_codes(world.add(old, world.partitions[0], version=version)) == [code]
    assert result(world.add_offsets(old, "g", version=version)).error_code == code
    assert result(world.end(old, commit=True, version=version)).error_code == code


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_outside_the_bounds_is_refused(world: World, timeout_ms: int) -> None:
    answer = result(world.init(transaction_timeout_ms=timeout_ms))
    assert answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


def test_requests_that_make_no_sense_are_refused(world: World) -> None:
    assert result(world.init("")).error_code == ErrorCode.INVALID_REQUEST
    assert result(world.init(producer_id=5)).error_code == ErrorCode.INVALID_REQUEST
    assert result(world.init(producer_epoch=5)).error_code == ErrorCode.INVALID_REQUEST


def test_two_phase_commit_is_declined_as_a_broker_without_it_does(world: World) -> None:
    answer = world.init(version=6, enable2_pc=True)
    assert result(answer).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert result(world.init(version=6, keep_prepared_txn=True)).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_initialising_over_an_open_transaction_aborts_it_first(world: World) -> None:
    old = started(world, world.partitions[0])
    world.produce(old, world.partitions[0], "x")
    answer = world.init()
    assert waits(answer)
    world.flush()
    assert result(answer).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.partitions[0].markers() == [(old.id, old.epoch + 1, False)]
    again = world.ready()
    assert (again.id, again.epoch) == (old.id, old.epoch + 2)


def test_initialising_while_markers_are_written_must_be_tried_again(world: World) -> None:
    producer = started(world, world.partitions[0])
    world.end(producer, commit=True)
    assert result(world.init()).error_code == ErrorCode.CONCURRENT_TRANSACTIONS


def test_a_producer_that_names_its_epoch_is_bumped_and_its_retry_gets_the_same_again(world: World) -> None:
    producer = world.ready()
    for _ in range(2):
        answer = world.init(producer_id=producer.id, producer_epoch=producer.epoch)
        world.flush()
        assert (result(answer).producer_id, result(answer).producer_epoch) == (producer.id, producer.epoch + 1)


def test_a_producer_that_names_an_epoch_taken_over_by_another_is_fenced(world: World) -> None:
    producer = world.ready()
    world.ready()
    answer = world.init(producer_id=producer.id, producer_epoch=producer.epoch)
    assert result(answer).error_code == ErrorCode.PRODUCER_FENCED
    answer = world.init(version=3, producer_id=producer.id, producer_epoch=producer.epoch)
    assert result(answer).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert result(world.init(producer_id=999, producer_epoch=1)).error_code == ErrorCode.PRODUCER_FENCED


def with_epoch(world: World, epoch: int) -> tuple[World, Producer]:
    """The same world where the producer has come to this epoch."""
    producer = world.ready()
    row = {**world.state.table("transactions")["t"], "producer_epoch": epoch}
    world.state.put("transactions", "t", row)
    world.flush()
    return world.crash(), Producer("t", producer.id, epoch)


def test_when_the_epochs_are_used_up_a_new_producer_id_begins(world: World) -> None:
    world, old = with_epoch(world, EPOCH_LAST)
    fresh = world.ready()
    assert fresh.id != old.id
    assert fresh.epoch == 0


def test_a_retry_across_the_change_of_producer_ids_gets_the_same_answer(world: World) -> None:
    world, old = with_epoch(world, EPOCH_LAST)
    answers = []
    for _ in range(2):
        answers.append(world.init(producer_id=old.id, producer_epoch=old.epoch))
        world.flush()
    first, second = (result(each) for each in answers)
    assert first.error_code == second.error_code == 0
    assert (first.producer_id, first.producer_epoch) == (second.producer_id, second.producer_epoch)
    assert first.producer_id != old.id


def test_fencing_at_the_last_epoch_ends_in_a_new_producer_id(world: World) -> None:
    world, old = with_epoch(world, EPOCH_LAST)
    world.add(old, world.partitions[0])
    world.produce(old, world.partitions[0], "x")
    world.init()
    world.flush()
    assert world.partitions[0].markers() == [(old.id, EPOCH_LAST + 1, False)]
    fresh = world.ready()
    assert fresh.id != old.id


# ---- joining ----


def test_partitions_join_once_it_is_durable(world: World) -> None:
    producer = world.ready()
    answer = world.add(producer, *world.partitions)
    assert waits(answer)
    world.flush()
    assert partition_codes(answer) == [0, 0, 0]
    assert world.state_of() == "Ongoing"


def test_one_unknown_partition_keeps_the_others_out(world: World) -> None:
    producer = world.ready()
    answer = world.add(producer, world.partitions[0], FakePartition("nowhere", 0))
    assert partition_codes(answer) == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert world.state_of() == "Empty"


def test_strangers_cannot_join(world: World) -> None:
    producer = world.ready()
    nobody = Producer("nobody", 0, 0)
    assert partition_codes(world.add(nobody, world.partitions[0])) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    other_id = Producer("t", producer.id + 1, 0)
    assert partition_codes(world.add(other_id, world.partitions[0])) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert result(world.add_offsets(Producer("", 0, 0), "g")).error_code == ErrorCode.INVALID_REQUEST


def test_joining_while_markers_are_written_must_be_tried_again(world: World) -> None:
    producer = started(world, world.partitions[0])
    world.end(producer, commit=True)
    assert partition_codes(world.add(producer, world.partitions[1])) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert result(world.add_offsets(producer, "g")).error_code == ErrorCode.CONCURRENT_TRANSACTIONS


def batched(producer: Producer, *partitions: FakePartition, verify_only: bool) -> messages.AddPartitionsToTxnRequest:
    topics = [messages.AddPartitionsToTxnTopic(name=each.topic, partitions=[each.index]) for each in partitions]
    asked = messages.AddPartitionsToTxnTransaction(
        transactional_id=producer.name,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        verify_only=verify_only,
        topics=topics,
    )
    return messages.AddPartitionsToTxnRequest(transactions=[asked])


def test_verifying_tells_which_partitions_are_in_and_adds_none(world: World) -> None:
    producer = started(world, world.partitions[0])
    body = batched(producer, *world.partitions[:2], verify_only=True)
    answer = result(world.ask("add_partitions_to_txn", 5, body))
    codes = [
        each.results_by_partition[0].partition_error_code for each in answer.results_by_transaction[0].topic_results
    ]
    assert codes == [ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE]
    assert world.produce(producer, world.partitions[1], "x") is ErrorCode.TRANSACTION_ABORTABLE


def test_the_batched_form_adds_as_the_single_one_does(world: World) -> None:
    producer = world.ready()
    world.ask("add_partitions_to_txn", 5, batched(producer, world.partitions[0], verify_only=False))
    assert world.produce(producer, world.partitions[0], "x") is ErrorCode.NONE


# ---- producing ----


@pytest.mark.parametrize(
    ("version", "code"),
    [(10, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE), (12, ErrorCode.NONE)],
)
def test_a_batch_for_a_partition_that_has_not_joined(world: World, version: int, code: ErrorCode) -> None:
    producer = started(world, world.partitions[0])
    assert world.produce(producer, world.partitions[1], "x", version=version) is code


def test_the_first_batch_starts_a_transaction_for_clients_that_know_this(world: World) -> None:
    producer = world.ready()
    assert world.produce(producer, world.partitions[0], "x", version=12) is ErrorCode.NONE
    assert world.state_of() == "Ongoing"


def test_a_fenced_producer_cannot_write(world: World) -> None:
    old = started(world, world.partitions[0])
    world.init()
    world.flush()
    assert world.produce(old, world.partitions[0], "x") is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("version", [11, 12])
def test_a_fenced_producer_cannot_write_into_the_transaction_of_the_one_that_fenced_it(
    world: World, version: int
) -> None:
    """The partition has no record of the new epoch yet, so only the transaction knows that the old one has passed."""
    old = world.ready()
    started(world, world.partitions[0])
    code = world.produce(old, world.partitions[0], "late", version=version)
    assert code is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(
    ("version", "code"), [(11, ErrorCode.NOT_ENOUGH_REPLICAS), (12, ErrorCode.CONCURRENT_TRANSACTIONS)]
)
def test_a_batch_that_comes_while_markers_are_written_is_sent_again(
    world: World, version: int, code: ErrorCode
) -> None:
    producer = started(world, world.partitions[0])
    world.end(producer, commit=True)
    assert world.produce(producer, world.partitions[0], "late", version=version) is code


def test_transactional_batches_need_a_transactional_id(world: World) -> None:
    assert world.produce(Producer("", 0, 0), world.partitions[0], "x") is ErrorCode.INVALID_TXN_STATE
    assert world.produce(Producer("?", 0, 0), world.partitions[0], "x") is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_offsets_need_their_group_in_the_transaction_or_a_client_that_adds_it_so(world: World) -> None:
    producer = world.ready()
    fenced = Producer("t", producer.id, producer.epoch + 1)
    stranger = Producer("t", producer.id + 1, producer.epoch)
    assert world.commit_offsets(producer, "g", version=3) is ErrorCode.INVALID_TXN_STATE
    assert world.commit_offsets(producer, "g", version=4) is ErrorCode.TRANSACTION_ABORTABLE
    assert world.commit_offsets(fenced, "g", version=3) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert world.commit_offsets(producer, "g", version=5) is ErrorCode.NONE
    assert world.commit_offsets(producer, "g", version=3) is ErrorCode.NONE
    assert world.commit_offsets(stranger, "g", version=5) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


# ---- EndTxn ----


def test_the_end_of_a_transaction_waits_for_the_decision_then_for_the_markers(world: World) -> None:
    producer = started(world, world.partitions[0], world.partitions[2])
    world.produce(producer, world.partitions[0], "x")
    answer = world.end(producer, commit=True)
    assert world.state_of() == "PrepareCommit"
    assert [each.markers() for each in world.partitions] == [[], [], []], "no marker before the decision is flushed"
    world.flush_state()
    marker = [(producer.id, producer.epoch, True)]
    assert [each.markers() for each in world.partitions] == [marker, [], marker]
    assert waits(answer)
    assert world.state_of() == "PrepareCommit", "not complete before the markers are flushed"
    world.flush_partitions()
    assert result(answer).error_code == 0
    assert world.state_of() == "CompleteCommit"


def test_a_retried_end_hears_that_it_worked_and_the_opposite_is_refused(world: World) -> None:
    producer = started(world, world.partitions[0])
    world.end(producer, commit=True)
    assert result(world.end(producer, commit=True)).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert result(world.end(producer, commit=False)).error_code == ErrorCode.INVALID_TXN_STATE
    world.flush()
    assert result(world.end(producer, commit=True)).error_code == 0
    assert result(world.end(producer, commit=False)).error_code == ErrorCode.INVALID_TXN_STATE
    assert world.partitions[0].markers() == [(producer.id, producer.epoch, True)]


def test_there_is_nothing_to_end_in_an_empty_transaction(world: World) -> None:
    producer = world.ready()
    for commit in (True, False):
        assert result(world.end(producer, commit=commit)).error_code == ErrorCode.INVALID_TXN_STATE


def test_from_version_five_each_end_gives_the_epoch_of_the_next_transaction(world: World) -> None:
    producer = world.ready()
    world.produce(producer, world.partitions[0], "x", version=12)
    answer = world.end(producer, commit=True, version=5)
    world.flush()
    assert (result(answer).producer_id, result(answer).producer_epoch) == (producer.id, producer.epoch + 1)
    assert world.partitions[0].markers() == [(producer.id, producer.epoch + 1, True)]
    retried = result(world.end(producer, commit=True, version=5))
    assert (retried.error_code, retried.producer_epoch) == (0, producer.epoch + 1)


def test_from_version_five_an_abort_is_taken_even_where_nothing_was_written(world: World) -> None:
    producer = world.ready()
    for _ in range(2):
        answer = world.end(producer, commit=False, version=5)
        world.flush()
        assert result(answer).error_code == 0
        assert result(answer).producer_epoch == producer.epoch + 1
        producer.moved(producer.id, producer.epoch + 1)
    assert result(world.end(producer, commit=True, version=5)).error_code == ErrorCode.INVALID_TXN_STATE


def test_from_version_five_a_delayed_end_is_fenced_off_the_next_transaction(world: World) -> None:
    producer = world.ready()
    world.produce(producer, world.partitions[0], "one", version=12)
    late = Producer("t", producer.id, producer.epoch)
    answer = world.end(producer, commit=True, version=5)
    world.flush()
    producer.moved(result(answer).producer_id, result(answer).producer_epoch)
    world.produce(producer, world.partitions[0], "two", version=12)
    assert result(world.end(late, commit=True, version=5)).error_code == ErrorCode.PRODUCER_FENCED
    assert world.partitions[0].outcome() == (["one"], [], ["two"])


def test_from_version_five_the_last_epoch_leads_to_a_new_producer_id(world: World) -> None:
    world, old = with_epoch(world, EPOCH_LAST)
    world.produce(old, world.partitions[0], "x", version=12)
    answer = world.end(old, commit=True, version=5)
    world.flush()
    assert world.partitions[0].markers() == [(old.id, EPOCH_LAST + 1, True)]
    fresh = Producer("t", result(answer).producer_id, result(answer).producer_epoch)
    assert fresh.id != old.id
    assert fresh.epoch == 0
    retried = result(world.end(old, commit=True, version=5))
    assert (retried.error_code, retried.producer_id, retried.producer_epoch) == (0, fresh.id, 0)
    assert world.produce(fresh, world.partitions[0], "y", version=12) is ErrorCode.NONE


def test_offsets_are_committed_with_the_decision_and_dropped_with_an_abort(world: World) -> None:
    producer = started(world, world.partitions[0])
    world.groups.pend(producer.id, "g", 10)
    world.end(producer, commit=True)
    world.flush()
    assert world.groups.committed("g") == 10
    world.add(producer, world.partitions[0])
    world.groups.pend(producer.id, "g", 20)
    world.end(producer, commit=False)
    world.flush()
    assert world.groups.committed("g") == 10
    assert world.groups.pending() == {}


def test_a_deleted_topic_does_not_keep_a_transaction_from_ending(world: World) -> None:
    producer = started(world, *world.partitions)
    world.topics.delete("b")
    answer = world.end(producer, commit=True)
    world.flush()
    assert result(answer).error_code == 0
    assert world.partitions[0].markers() == [(producer.id, producer.epoch, True)]


def test_a_topic_deleted_while_its_marker_waits_for_the_disk_does_not_keep_a_transaction_from_ending(
    world: World,
) -> None:
    producer = started(world, world.partitions[2])
    answer = world.end(producer, commit=True)
    world.flush_state()
    assert waits(answer)
    world.do(lambda: world.topics.delete("b"))
    assert result(answer).error_code == 0


# ---- full disk ----


def test_a_full_disk_refuses_a_decision_and_changes_nothing(world: World) -> None:
    producer = started(world, world.partitions[0])
    world.state.full = True
    assert result(world.end(producer, commit=True)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.state_of() == "Ongoing"
    world.state.full = False
    answer = world.end(producer, commit=True)
    world.flush()
    assert result(answer).error_code == 0


def test_a_full_disk_refuses_ids_and_implicit_joins_with_codes_that_clients_retry(world: World) -> None:
    producer = world.ready()
    world.state.full = True
    assert world.produce(producer, world.partitions[0], "x", version=12) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert result(world.init("other")).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.state_of() == "Empty"


def test_when_a_marker_cannot_be_written_the_client_is_told_and_the_marker_follows(world: World) -> None:
    producer = started(world, *world.partitions)
    world.partitions[1].full = True
    answer = world.end(producer, commit=True)
    world.flush_state()
    assert result(answer).error_code == 0, "the decision is durable: that is all the client must know"
    assert partition_codes(world.add(producer, world.partitions[0])) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    world.partitions[1].full = False
    world.advance(300)
    world.flush()
    assert world.state_of() == "CompleteCommit"
    assert all(each.markers() == [(producer.id, producer.epoch, True)] for each in world.partitions)


def test_completion_that_cannot_be_recorded_is_tried_again(world: World) -> None:
    producer = started(world, world.partitions[0])
    answer = world.end(producer, commit=True)
    world.flush_state()
    world.state.full = True
    world.flush_partitions()
    assert result(answer).error_code == 0
    assert world.state_of() == "PrepareCommit"
    world.state.full = False
    world.advance(300)
    assert world.state_of() == "CompleteCommit"


# ---- time ----


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(world: World) -> None:
    producer = started(world, world.partitions[0])
    world.produce(producer, world.partitions[0], "x")
    world.advance(59_000)
    assert world.state_of() == "Ongoing"
    world.advance(11_001)
    world.flush()
    assert world.state_of() == "CompleteAbort"
    assert world.partitions[0].outcome() == ([], ["x"], [])
    assert result(world.end(producer, commit=True)).error_code == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("jump_ms", [0, -3_600_000], ids=["steady clock", "clock set back"])
def test_what_is_added_later_gives_a_transaction_no_more_time(
    world: World, jump_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = started(world, world.partitions[0])
    world.advance(40_000)
    wall_ms = world.clock.wall_ms
    monkeypatch.setattr(world.clock, "wall_ms", lambda: wall_ms() + jump_ms)
    world.add(producer, world.partitions[1])
    world.advance(30_001)
    world.flush()
    assert world.state_of() == "CompleteAbort"


def test_from_version_five_a_client_whose_transaction_timed_out_may_abort_it_and_go_on(world: World) -> None:
    producer = world.ready()
    world.produce(producer, world.partitions[0], "x", version=12)
    world.advance(70_001)
    world.flush()
    assert result(world.end(producer, commit=True, version=5)).error_code == ErrorCode.INVALID_TXN_STATE
    answer = result(world.end(producer, commit=False, version=5))
    assert (answer.error_code, answer.producer_epoch) == (0, producer.epoch + 1)


def test_a_timeout_that_meets_a_full_disk_is_tried_again(world: World) -> None:
    started(world, world.partitions[0])
    world.state.full = True
    world.advance(70_001)
    assert world.state_of() == "Ongoing"
    world.state.full = False
    world.advance(10_000)
    assert world.state_of() == "PrepareAbort"


def test_many_transactions_that_time_out_together_are_aborted_a_few_per_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "ABORTED_PER_TURN", 2)
    names = [f"t{number}" for number in range(5)]
    for name in names:
        started(world, world.partitions[0], name=name)
    turns = changes_per_call(world, "_abort_some", monkeypatch)
    world.advance(70_001)
    world.flush()
    assert turns == [2, 2, 1]
    assert {world.state_of(name) for name in names} == {"CompleteAbort"}


def test_a_transaction_that_goes_on_while_others_are_aborted_is_looked_at_again(world: World) -> None:
    producer = started(world, world.partitions[0])
    (before,) = world.transactions.all()
    world.add(producer, world.partitions[1])
    world.do(lambda: world.coordinator._abort_some(iter([before])))
    assert world.state_of() == "Ongoing"
    assert set(world.transactions.all()[0].partitions) == {("a", 0), ("a", 1)}


def test_many_idle_transactional_ids_are_forgotten_a_few_per_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "EXPIRED_PER_TURN", 2)
    for number in range(5):
        world.ready(f"t{number}")
    world.do(lambda: world.clock.jump(604_800_000 - 3_000_000))
    turns = changes_per_call(world, "_expire_some", monkeypatch)
    world.advance(3_600_000)
    assert turns == [1, 1, 1]
    assert world.state.table("transactions") == {}


def changes_per_call(world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many changes of the state each call of a method of the coordinator makes that makes any."""
    counts: list[int] = []
    method = getattr(world.coordinator, name)

    def counted(*arguments: object) -> None:
        before = len(world.state.journal)
        method(*arguments)
        if len(world.state.journal) > before:
            counts.append(len(world.state.journal) - before)

    monkeypatch.setattr(world.coordinator, name, counted)
    return counts


@pytest.mark.slow
def test_an_idle_transactional_id_is_forgotten_and_one_in_use_is_not(world: World) -> None:
    world.ready("idle")
    world.advance(604_800_000 - 1000)
    world.ready("used")
    world.advance(3_600_000 + 1000)
    world.flush()
    assert set(world.state.table("transactions")) == {"used"}
    stale = Producer("idle", 0, 0)
    assert partition_codes(world.add(stale, world.partitions[0])) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


# ---- the delayed EndTxn of older clients ----


def test_an_end_from_a_connection_that_the_client_has_replaced_does_not_hit_its_next_transaction(world: World) -> None:
    old, new = Peer(id=1), Peer(id=2)
    producer = world.ready()
    world.add(producer, world.partitions[0], peer=old)
    world.produce(producer, world.partitions[0], "one")
    # The EndTxn sent over the old connection is stuck somewhere; the client reconnects and repeats it.
    world.end(producer, commit=True, peer=new)
    world.flush()
    world.add(producer, world.partitions[0], peer=new)
    world.flush()
    world.produce(producer, world.partitions[0], "two")
    late = world.end(producer, commit=True, peer=old)
    assert result(late).error_code == ErrorCode.PRODUCER_FENCED
    assert world.partitions[0].outcome() == (["one"], [], ["two"])


def test_a_late_joining_request_of_a_replaced_connection_does_not_open_a_transaction(world: World) -> None:
    producer = world.ready()
    world.add(producer, world.partitions[0], peer=Peer(id=2))
    world.end(producer, commit=True, peer=Peer(id=2))
    world.flush()
    late = world.add(producer, world.partitions[1], peer=Peer(id=1))
    assert partition_codes(late) == [ErrorCode.PRODUCER_FENCED]
    assert world.state_of() == "CompleteCommit"


def test_what_a_closed_connection_left_behind_is_not_executed(world: World) -> None:
    producer = started(world, world.partitions[0])
    gone = Peer(id=7, closed=True)
    assert result(world.end(producer, commit=True, peer=gone)).error_code == ErrorCode.PRODUCER_FENCED
    assert world.state_of() == "Ongoing"


def test_a_new_epoch_may_come_over_an_older_connection(world: World) -> None:
    first = world.ready()
    world.add(first, world.partitions[0], peer=Peer(id=9))
    world.end(first, commit=True, peer=Peer(id=9))
    world.flush()
    answer = world.init(peer=Peer(id=3))
    world.flush()
    second = Producer("t", result(answer).producer_id, result(answer).producer_epoch)
    joined = world.add(second, world.partitions[0], peer=Peer(id=3))
    world.flush()
    assert partition_codes(joined) == [ErrorCode.NONE]


def test_connections_of_two_listeners_are_not_compared_because_they_are_numbered_apart(world: World) -> None:
    producer = world.ready()
    world.add(producer, world.partitions[0], peer=Peer(id=9, listener="inside"))
    world.flush()
    answer = world.end(producer, commit=True, peer=Peer(id=3, listener="outside"))
    world.flush()
    assert result(answer).error_code == ErrorCode.NONE


# ---- closing, limits ----


def test_closing_answers_those_who_wait(world: World) -> None:
    producer = started(world, world.partitions[0])
    answer = world.end(producer, commit=True)
    world.do(world.coordinator.close)
    assert result(answer).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_transactional_id_may_be_long_and_not_without_end(world: World) -> None:
    world.init("t" * 10_000)
    assert result(world.init("t" * 10_001)).error_code == ErrorCode.INVALID_REQUEST


def test_a_transaction_has_so_many_groups_and_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.transactions.registry.GROUPS_PER_TRANSACTION_MAX", 1)
    producer = world.ready("t")
    assert result(world.commit_offsets(producer, "one")) is ErrorCode.NONE
    assert result(world.commit_offsets(producer, "one")) is ErrorCode.NONE
    assert result(world.commit_offsets(producer, "two")) is ErrorCode.POLICY_VIOLATION
