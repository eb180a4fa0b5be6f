"""The exactly-once protocol against a real broker, with a death at every remote call that driver and tasks make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import testing
from headrace.client import Admin, Client, Outcome, TransactionalProducer, TransactionLost, end_transaction
from headrace.errors import Refused, UsageError
from headrace.spark.topic_sink import protocol as sink_protocol
from headrace.spark.topic_sink import transactions as sink_transactions
from headrace.spark.topic_sink.decisions import BatchRef, DecisionTopic, Verdict
from headrace.spark.topic_sink.protocol import PipelineName, Protocol, Settings, TransactionsLost, ids_of, sink_beside
from headrace.spark.topic_sink.transactions import abort_open, outcomes
from tests.unit.spark.sink_world import PATIENCE, Death, Fate, Layout, World, expected, mortality, spread

Make = Callable[[], World]
BATCHES = 2
LAYOUT = spread(rows_per_batch=12, tasks=4)


DECISIONS = Settings(decision_topic="decisions")


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with testing.broker(settings={"auto.create.topics.enable": False}) as broker:
        with Client(broker.bootstrap, PATIENCE) as client:
            Admin(client).create_topic("out", partitions=2)
        yield broker.bootstrap


@pytest.fixture
def make(bootstrap: str, unique: Callable[[str], str]) -> Make:
    return lambda: World(bootstrap, "out", unique("sink"), DECISIONS)


@pytest.fixture
def world(make: Make) -> World:
    return make()


def dies_and_returns(world: World, fate: Fate, layout: Layout = LAYOUT, after: Layout = LAYOUT) -> bool:
    """One run that fate may end, and one that comes after it. Tells whether it was ended."""
    patch = pytest.MonkeyPatch()
    try:
        with mortality(patch.setattr, fate):
            world.run(BATCHES, layout)
    except Death:
        world.run(BATCHES, after)
        return True
    return False


def test_a_broker_that_bounds_transactions_more_narrowly_is_told_with_the_option(bootstrap: str) -> None:
    with Client(bootstrap, PATIENCE) as client:
        protocol = Protocol(client, Settings(decision_topic="decisions", transaction_timeout_ms=10**9))
        with pytest.raises(UsageError, match=r"transactionTimeoutMs=1000000000 .*transaction.max.timeout.ms"):
            protocol.start_task(protocol.begin("bounded"), BatchRef("bounded", 0), 0, 0)


def test_without_any_trouble_every_row_is_there_once(world: World) -> None:
    world.run(3, LAYOUT)
    assert world.visible() == expected(3, LAYOUT)


def calls_of_a_run(make: Make) -> int:
    fate = Fate()
    assert not dies_and_returns(make(), fate)
    return fate.calls


def test_a_death_now_and_then_leaves_no_duplicate_and_no_gap(make: Make) -> None:
    """A sample of the exhaustive ones below, for those who have a minute."""
    calls = calls_of_a_run(make)
    for at in range(calls // 2 - 8, calls // 2 + 8, 3):
        world = make()
        dies_and_returns(world, Fate(at, heard=True))
        assert world.visible() == expected(BATCHES, LAYOUT), f"at call {at} of {calls}"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("heard", [False, True], ids=["before-the-call", "before-its-answer"])
def test_a_death_at_any_remote_call_leaves_no_duplicate_and_no_gap(make: Make, heard: bool) -> None:
    calls = calls_of_a_run(make)
    assert calls > 30
    for at in range(1, calls + 1):
        world = make()
        died = dies_and_returns(world, Fate(at, heard=heard))
        assert world.visible() == expected(BATCHES, LAYOUT), f"died={died} at call {at} of {calls}"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tasks_after", [2, pytest.param(7, marks=pytest.mark.spark)])
def test_a_replay_with_more_or_fewer_tasks_than_before_leaves_no_duplicate_and_no_gap(
    make: Make, tasks_after: int
) -> None:
    calls = calls_of_a_run(make)
    after = spread(rows_per_batch=12, tasks=tasks_after)
    for at in range(1, calls + 1):
        world = make()
        dies_and_returns(world, Fate(at, heard=True), after=after)
        assert world.visible() == expected(BATCHES, LAYOUT), f"at call {at} of {calls}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_the_fence_some_death_doubles_rows(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above are worth something: they fail when decided batches are written again."""
    monkeypatch.setattr(sink_protocol, "judge", lambda last, batch: Verdict.WRITE)
    for at in range(calls_of_a_run(make), 0, -1):  # the later, the more was decided
        world = make()
        dies_and_returns(world, Fate(at, heard=True))
        if world.visible() != expected(BATCHES, LAYOUT):
            return
    pytest.fail("no death doubled a row")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_death_in_the_repair_of_a_death_leaves_no_duplicate_and_no_gap(make: Make) -> None:
    """The run after the first death dies as well, at each of its calls in turn."""
    first = calls_of_a_run(make) // 2 - 3
    at = 0
    died = True
    while died:
        at += 1
        world = make()
        patch = pytest.MonkeyPatch()
        with mortality(patch.setattr, Fate(first, heard=True)), pytest.raises(Death):
            world.run(BATCHES, LAYOUT)
        died = dies_and_returns(world, Fate(at))
        assert world.visible() == expected(BATCHES, LAYOUT), f"at call {at}"
    assert at > 10


def test_a_driver_that_was_superseded_decides_nothing_any_more(world: World) -> None:
    batch = BatchRef(world.sink, 0, "0")
    with Client(world.bootstrap, PATIENCE) as old, Client(world.bootstrap, PATIENCE) as new:
        zombie = Protocol(old, world.settings)
        plan = zombie.begin(world.sink)
        reported = world.write(plan, batch, LAYOUT(0))
        world.one_batch(new, batch, LAYOUT(0))
        with pytest.raises((TransactionLost, TransactionsLost)):
            zombie._topic.record(plan.lease, sink_protocol.Decision(batch, tuple(each.result for each in reported)))
        zombie.abort(plan.lease, world.sink)
    assert world.visible() == expected(1, LAYOUT)


def test_a_task_of_a_driver_that_slept_takes_no_id_that_its_successor_has_decided_on(world: World) -> None:
    batch = BatchRef(world.sink, 0, "0")
    with Client(world.bootstrap, PATIENCE) as slept:
        plan = Protocol(slept, world.settings).begin(world.sink)
        decided_only(world)
        with pytest.raises(Refused, match=r"another run of sink .* has taken over"):
            world.task(plan, batch, 0, LAYOUT(0)[0])
    world.run(BATCHES, LAYOUT)
    assert world.visible() == expected(BATCHES, LAYOUT)


def begin(make: Make, name: str, *, starts_over: bool = False) -> World:
    """A separate query for a pipeline, as another checkpoint has it."""
    world = make()
    with Client(world.bootstrap, PATIENCE) as driver:
        Protocol(driver, world.settings).begin(world.sink, PipelineName(name, world.topic, starts_over))
    return world


def test_another_checkpoint_of_a_pipeline_is_refused_unless_the_user_starts_over(
    make: Make, unique: Callable[[str], str]
) -> None:
    name = unique("orders")
    first = begin(make, name)
    first.run(1, LAYOUT)
    with pytest.raises(Refused, match=f"rows of pipeline {name} from another checkpoint .query {first.sink} on "):
        begin(make, name)
    second = begin(make, name, starts_over=True)
    with Client(first.bootstrap, PATIENCE) as driver:
        protocol = Protocol(driver, first.settings)
        protocol.begin(second.sink, PipelineName(name, first.topic))
        begin(make, unique("another pipeline"))


@pytest.mark.parametrize("grows", [True, False])
def test_a_pipeline_that_gets_a_second_sink_or_loses_it_does_not_write_a_decided_batch_again(
    make: Make, unique: Callable[[str], str], grows: bool
) -> None:
    """The driver died after its decision, and the next run has other sinks, so another id for the same topic."""
    world, name = make(), PipelineName(unique("orders"), "out")
    alone, beside = world.sink, sink_beside(world.sink, "out")
    before, after = (alone, beside) if grows else (beside, alone)
    rows = LAYOUT(0)
    with Client(world.bootstrap, PATIENCE) as driver:
        protocol = Protocol(driver, world.settings)
        plan = protocol.begin(before, name)
        batch = BatchRef(plan.sink, 0, "0")
        protocol.commit(plan.lease, batch, world.write(plan, batch, rows))
        again = protocol.begin(after, name)
        assert again.sink == before, "what was decided is found under the id that the claim names"
        batch = BatchRef(again.sink, 0, "0")
        protocol.commit(again.lease, batch, world.write(again, batch, rows))
    assert world.visible() == expected(1, LAYOUT)
    with Client(world.bootstrap, PATIENCE) as driver, pytest.raises(Refused, match="from another checkpoint"):
        Protocol(driver, world.settings).begin(sink_beside(make().sink, "out"), name)


def test_a_claim_ends_with_its_topic(make: Make, unique: Callable[[str], str]) -> None:
    name, topic = unique("orders"), unique("short-lived")
    for _ in range(2):
        world = make()
        with Client(world.bootstrap, PATIENCE) as client:
            Admin(client).create_topic(topic)
            Protocol(client, world.settings).begin(world.sink, PipelineName(name, topic))
            Admin(client).delete_topic(topic)


def test_of_two_checkpoints_that_claim_a_topic_at_once_one_fails_and_then_finds_the_other(
    make: Make, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = unique("orders")
    record = DecisionTopic.record_claim
    others = []

    def overtaken(*args: Any) -> None:
        monkeypatch.setattr(DecisionTopic, "record_claim", record)
        others.append(begin(make, name))
        record(*args)

    monkeypatch.setattr(DecisionTopic, "record_claim", overtaken)
    with pytest.raises((TransactionLost, TransactionsLost)):
        begin(make, name)
    with pytest.raises(Refused, match=f"query {others[0].sink}"):
        begin(make, name)


def test_a_second_attempt_of_a_task_does_not_disturb_the_first_and_is_not_left_open(world: World) -> None:
    batch = BatchRef(world.sink, 0, "0")
    rows = LAYOUT(0)
    with Client(world.bootstrap, PATIENCE) as driver:
        protocol = Protocol(driver, world.settings)
        plan = protocol.begin(world.sink)
        reported = world.write(plan, batch, rows)
        world.task(plan, batch, 1, rows[1], attempt=1)
        protocol.commit(plan.lease, batch, reported)
        assert abort_open(driver, ids_of(world.sink)) == []
    assert world.visible() == expected(1, LAYOUT)


def abort_one(world: World, task: int) -> None:
    """As the broker does when a transaction has been open for too long."""
    with Client(world.bootstrap, PATIENCE) as client:
        last = DecisionTopic(client, world.settings.decision_topic).last(world.sink)
        assert last is not None
        recorded = last.of_task(task)
        assert recorded is not None
        assert recorded.identity is not None
        end_transaction(client, recorded.identity, commit=False)
        assert outcomes(client, [recorded.identity]) == {recorded.identity: Outcome.ABORTED}


def decided_only(world: World, layout: Layout = LAYOUT) -> None:
    """Batch 0 is decided, and its driver dies before it commits anything."""
    batch = BatchRef(world.sink, 0, "0")
    patch = pytest.MonkeyPatch()
    patch.setattr(Protocol, "_carry_out", lambda self, decision: Fate().die())
    with Client(world.bootstrap, PATIENCE) as driver, pytest.raises(Death):
        world.one_batch(driver, batch, layout(0))
    patch.undo()


def test_a_decided_transaction_that_timed_out_is_written_again_by_the_same_task(world: World) -> None:
    decided_only(world)
    abort_one(world, 1)
    world.run(BATCHES, LAYOUT)
    assert world.visible() == expected(BATCHES, LAYOUT)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_death_while_a_lost_transaction_is_written_again_leaves_no_duplicate_and_no_gap(make: Make) -> None:
    at, died = 0, True
    while died:
        at += 1
        world = make()
        decided_only(world)
        abort_one(world, 1)
        died = dies_and_returns(world, Fate(at, heard=True))
        assert world.visible() == expected(BATCHES, LAYOUT), f"at call {at}"
    assert at > 20


@pytest.mark.parametrize("tasks_after", [2, 7])
def test_a_lost_transaction_is_not_written_again_when_tasks_have_other_rows(world: World, tasks_after: int) -> None:
    decided_only(world)
    abort_one(world, 1)
    with pytest.raises(Refused, match=r"batch 0 .* decided with 4 tasks.*shuffle\.partitions"):
        world.run(BATCHES, spread(12, tasks_after))
    assert len(world.visible()) < len(expected(1, LAYOUT))
    world.run(BATCHES, LAYOUT)
    assert world.visible() == expected(BATCHES, LAYOUT)


def test_other_rows_of_the_same_number_and_size_are_not_taken_for_the_lost_ones(world: World) -> None:
    def tasks_change_places(batch_id: int) -> list[list[bytes]]:
        first, second, third, *others = LAYOUT(batch_id)
        return [first, third, second, *others]

    assert len({sum(map(len, rows)) for rows in LAYOUT(0)[1:3]}) == 1
    decided_only(world)
    abort_one(world, 1)
    with pytest.raises(Refused, match="task 1 has other rows than it had"):
        world.run(BATCHES, tasks_change_places)
    world.run(BATCHES, LAYOUT)
    assert world.visible() == expected(BATCHES, LAYOUT)


def test_a_lost_transaction_of_a_task_that_does_not_come_again_is_refused(world: World) -> None:
    decided_only(world)
    abort_one(world, 2)
    with pytest.raises(Refused, match="1 of its tasks have no counterpart in this run"):
        world.run(BATCHES, spread(12, 2))
    world.run(BATCHES, LAYOUT)
    assert world.visible() == expected(BATCHES, LAYOUT)


def test_a_lost_transaction_that_was_written_again_is_not_written_a_third_time(world: World) -> None:
    decided_only(world)
    abort_one(world, 1)
    world.run(1, LAYOUT)
    world.committed = -1  # the driver died before Spark noted that the batch is done
    world.run(BATCHES, LAYOUT)
    assert world.visible() == expected(BATCHES, LAYOUT)


def test_a_decided_transaction_whose_id_was_used_since_is_refused_because_nobody_knows_how_it_ended(
    world: World,
) -> None:
    decided_only(world)
    with Client(world.bootstrap, PATIENCE) as client:
        decision = DecisionTopic(client, DECISIONS.decision_topic).last(world.sink)
        assert decision is not None
        stranger = TransactionalProducer(client, decision.identities[1].transactional_id, timeout_ms=60_000)
        stranger.begin()
        stranger.send(world.topic, b"a stranger's", partition=0)
        stranger.abort()
        with pytest.raises(Refused, match=r"was decided, but whether .* was committed is unknown"):
            world.run(1, LAYOUT)
        abort_open(client, ids_of(world.sink))  # they would hide the rows of the tests that follow


def test_a_transaction_that_is_lost_right_after_the_decision_is_not_taken_for_committed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = DecisionTopic.record

    def recorded_and_lost(self: DecisionTopic, *args: Any) -> None:
        record(self, *args)
        monkeypatch.setattr(DecisionTopic, "record", record)
        abort_one(world, 1)

    monkeypatch.setattr(DecisionTopic, "record", recorded_and_lost)
    with pytest.raises(TransactionsLost, match="1 of its 3 transactions are lost"):
        world.run(1, LAYOUT)
    world.run(BATCHES, LAYOUT)
    assert world.visible() == expected(BATCHES, LAYOUT)


def test_a_decision_that_is_made_while_the_next_driver_begins_is_seen_by_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = BatchRef(world.sink, 0, "0")
    take_lease = DecisionTopic.take_lease
    with Client(world.bootstrap, PATIENCE) as old, Client(world.bootstrap, PATIENCE) as new:
        first = Protocol(old, world.settings)
        plan = first.begin(world.sink)
        reported = world.write(plan, batch, LAYOUT(0))

        def decided_just_before(self: DecisionTopic, transactional_id: str) -> Any:
            monkeypatch.setattr(DecisionTopic, "take_lease", take_lease)
            first.commit(plan.lease, batch, reported)
            return take_lease(self, transactional_id)

        monkeypatch.setattr(DecisionTopic, "take_lease", decided_just_before)
        found = Protocol(new, world.settings).begin(world.sink).last
    assert found is not None
    assert found.batch == batch


def test_a_batch_whose_transactions_are_gone_before_the_decision_is_not_decided(world: World) -> None:
    batch = BatchRef(world.sink, 0, "0")
    with Client(world.bootstrap, PATIENCE) as driver:
        protocol = Protocol(driver, world.settings)
        plan = protocol.begin(world.sink)
        reported = world.write(plan, batch, LAYOUT(0))
        abort_open(driver, ids_of(world.sink))
        with pytest.raises(TransactionsLost, match="transactionTimeoutMs=900000"):
            protocol.commit(plan.lease, batch, reported)
        assert DecisionTopic(driver, world.settings.decision_topic).last(world.sink) is None
    assert world.visible() == []
    world.run(1, LAYOUT)
    assert world.visible() == expected(1, LAYOUT)


def test_another_input_under_the_id_of_a_written_batch_is_refused(world: World) -> None:
    world.run(2, LAYOUT)
    world.committed = 0
    with pytest.raises(Refused, match="was written up to 1, and now Spark plans it up to 99"):
        world.run(2, LAYOUT, ends=lambda batch_id: "99")
    assert world.visible() == expected(2, LAYOUT)


def test_where_the_ends_of_the_input_are_not_known_the_rows_tell(world: World) -> None:
    world.run(2, LAYOUT, ends=lambda batch_id: None)
    world.committed = 0
    with pytest.raises(Refused, match=r"with 12 rows .* now it has 13 rows"):
        world.run(2, spread(13, 4), ends=lambda batch_id: None)
    world.run(2, spread(12, 3), ends=lambda batch_id: None)
    assert world.visible() == expected(2, LAYOUT)


def test_an_older_batch_than_the_last_is_refused(world: World) -> None:
    world.run(3, LAYOUT)
    world.committed = 0
    with pytest.raises(Refused, match="has written batch 2, and Spark comes with batch 1"):
        world.run(3, LAYOUT)
    assert world.visible() == expected(3, LAYOUT)


def test_an_abort_takes_back_what_is_open_but_nothing_that_was_decided(world: World) -> None:
    batch = BatchRef(world.sink, 0, "0")
    with Client(world.bootstrap, PATIENCE) as driver:
        protocol = Protocol(driver, world.settings)
        plan = protocol.begin(world.sink)
        reported = world.write(plan, batch, LAYOUT(0))
        protocol.abort(plan.lease, world.sink)
        first = next(each.result.identity for each in reported if each.result.identity is not None)
        assert outcomes(driver, [first])[first] is not Outcome.OPEN
    decided_only(world)
    with Client(world.bootstrap, PATIENCE) as driver:
        protocol = Protocol(driver, world.settings)
        protocol.abort(protocol.begin(world.sink).lease, world.sink)
    world.run(1, LAYOUT)
    assert world.visible() == expected(1, LAYOUT)


def test_an_abort_leaves_the_transactions_of_a_decision_that_is_on_its_way(world: World) -> None:
    batch = BatchRef(world.sink, 0, "0")
    with Client(world.bootstrap, PATIENCE) as driver:
        protocol = Protocol(driver, world.settings)
        plan = protocol.begin(world.sink)
        reported = world.write(plan, batch, LAYOUT(0))
        identities = [each.result.identity for each in reported if each.result.identity is not None]
        deciding = TransactionalProducer(driver, plan.lease.transactional_id, timeout_ms=60_000)
        deciding.resume(plan.lease)
        deciding.begin()
        deciding.send(world.settings.decision_topic, b"{}", key=b"another sink", partition=0)
        deciding.flush()
        protocol.abort(plan.lease, world.sink)
        assert set(outcomes(driver, identities).values()) == {Outcome.OPEN}
        deciding.abort()
    world.run(1, LAYOUT)
    assert world.visible() == expected(1, LAYOUT)


def test_an_abort_of_a_superseded_driver_leaves_what_its_successor_writes(world: World) -> None:
    batch = BatchRef(world.sink, 0, "0")
    with Client(world.bootstrap, PATIENCE) as old, Client(world.bootstrap, PATIENCE) as new:
        zombie, successor = Protocol(old, world.settings), Protocol(new, world.settings)
        lost = zombie.begin(world.sink)
        plan = successor.begin(world.sink)
        reported = world.write(plan, batch, LAYOUT(0))
        zombie.abort(lost.lease, world.sink)
        successor.commit(plan.lease, batch, reported)
    assert world.visible() == expected(1, LAYOUT)


def test_a_driver_that_is_superseded_while_it_commits_leaves_what_its_successor_writes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = BatchRef(world.sink, 0, "0"), BatchRef(world.sink, 1, "1")
    with Client(world.bootstrap, PATIENCE) as old, Client(world.bootstrap, PATIENCE) as new:
        zombie, successor = Protocol(old, world.settings), Protocol(new, world.settings)
        plan = zombie.begin(world.sink)
        reported = world.write(plan, first, LAYOUT(0))
        carry_out = zombie._carry_out
        begun: list[Any] = []

        def carried_out_and_superseded(decision: Any) -> None:
            carry_out(decision)
            begun.append(successor.begin(world.sink))
            begun.append(world.write(begun[0], second, LAYOUT(1)))

        monkeypatch.setattr(zombie, "_carry_out", carried_out_and_superseded)
        zombie.commit(plan.lease, first, reported)
        successor.commit(begun[0].lease, second, begun[1])
    assert world.visible() == expected(2, LAYOUT)


def test_what_a_dead_driver_left_open_under_an_id_of_the_last_decision_is_aborted(world: World) -> None:
    world.run(1, LAYOUT)
    with Client(world.bootstrap, PATIENCE) as dead:
        plan = Protocol(dead, world.settings).begin(world.sink)
        reported = world.write(plan, BatchRef(world.sink, 1, "1"), LAYOUT(1))
    left = [each.result.identity for each in reported if each.result.identity is not None]
    assert plan.last is not None
    assert {each.transactional_id for each in left} <= {each.transactional_id for each in plan.last.identities}
    with Client(world.bootstrap, PATIENCE) as driver:
        Protocol(driver, world.settings).begin(world.sink)
        assert Outcome.OPEN not in outcomes(driver, left).values()
    assert world.visible() == expected(1, LAYOUT)


def test_a_commit_that_a_dead_driver_had_sent_arrives_while_the_next_one_looks_round(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided_only(world)
    listed = sink_transactions.list_transactions

    def listed_just_before(client: Client, **named: Any) -> Any:
        monkeypatch.setattr(sink_transactions, "list_transactions", listed)
        found = listed(client, **named)
        decision = DecisionTopic(client, DECISIONS.decision_topic).last(world.sink)
        assert decision is not None
        assert {each.transactional_id for each in decision.identities} <= set(found)
        for each in decision.identities:
            end_transaction(client, each, commit=True)
        return found

    monkeypatch.setattr(sink_transactions, "list_transactions", listed_just_before)
    world.run(1, LAYOUT)
    assert world.visible() == expected(1, LAYOUT)


def test_the_open_transaction_of_one_sink_hides_nothing_that_another_has_decided(make: Make) -> None:
    one, other = make(), make()
    with Client(one.bootstrap, PATIENCE) as client:
        topic = DecisionTopic(client, DECISIONS.decision_topic)
        topic.ensure()
        stuck = TransactionalProducer(client, "stuck", timeout_ms=900_000)
        stuck.begin()
        stuck.send(DECISIONS.decision_topic, b"not ended", key=b"stuck", partition=0)
        stuck.flush()
        one.run(2, LAYOUT)
        last = topic.last(one.sink)
        assert last is not None
        assert last.batch_id == 1
        one.committed = 0
        one.run(2, LAYOUT)
        assert one.visible() == expected(2, LAYOUT)
        other.run(1, LAYOUT)
        assert other.visible() == sorted(expected(2, LAYOUT) + expected(1, LAYOUT))
        stuck.abort()
