"""The test kit that users get: brokers that start, stop, restart and die, and a clock that is moved by hand."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from headrace import testing
from headrace.batch import build_batch, read_batches
from headrace.errors import ErrorCode, HeadraceError
from headrace.record import Record
from headrace.testing import SimulatedDisk, TestBroker, VirtualClock
from headrace.wire.kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from headrace.wire.kafka.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from headrace.wire.kafka.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from headrace.wire.kafka.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from headrace.wire.kafka.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tests.unit.server.harness import Client
from tests.waiting import eventually

DAY_MS = 86_400_000


def connect(broker: TestBroker) -> Client:
    return Client((broker.host, broker.port))


def create(broker: TestBroker, topic: str) -> None:
    with connect(broker) as client:
        wanted = CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
        client.send(CreateTopicsRequest(topics=[wanted], timeout_ms=5000), 19, 4, 1)
        assert client.answer(CreateTopicsResponse, 4).topics[0].error_code == 0


def produce(broker: TestBroker, topic: str, timestamp: int = 0) -> int:
    """Write one record; its offset."""
    record = Record(offset=0, timestamp=timestamp, key=None, value=b"v", headers=())
    partition = PartitionProduceData(index=0, records=bytes(build_batch([record]).data))
    message = ProduceRequest(
        acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name=topic, partition_data=[partition])]
    )
    with connect(broker) as client:
        client.send(message, 0, 8, 1)
        answer = client.answer(ProduceResponse, 8).responses[0].partition_responses[0]
    assert answer.error_code == 0
    return answer.base_offset


def earliest_offset(broker: TestBroker, topic: str) -> int:
    wanted = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-2)])
    with connect(broker) as client:
        client.send(ListOffsetsRequest(replica_id=-1, topics=[wanted]), 2, 1, 1)
        return client.answer(ListOffsetsResponse, 1).topics[0].partitions[0].offset


def test_a_broker_in_this_process_keeps_data_and_address_over_a_restart() -> None:
    with testing.broker() as broker:
        create(broker, "t")
        assert produce(broker, "t") == 0
        address = broker.bootstrap
        broker.restart()
        assert broker.bootstrap == address
        assert produce(broker, "t") == 1


@pytest.mark.slow
def test_a_child_that_is_killed_keeps_what_it_acknowledged() -> None:
    with testing.broker(in_process=False) as broker:
        create(broker, "t")
        assert [produce(broker, "t") for _ in range(3)] == [0, 1, 2]
        address = broker.bootstrap
        broker.kill()
        with pytest.raises(ConnectionRefusedError):
            connect(broker)
        broker.start()
        assert broker.bootstrap == address
        assert produce(broker, "t") == 3


def test_several_brokers_run_beside_each_other_in_one_process() -> None:
    with testing.broker() as first, testing.broker() as second:
        create(first, "t")
        create(second, "t")
        assert [produce(first, "t"), produce(first, "t"), produce(second, "t")] == [0, 1, 0]


def test_a_temporary_directory_goes_and_a_given_one_stays(tmp_path: Path) -> None:
    with testing.broker() as broker:
        folder = broker.data
        assert folder.exists()
    assert not folder.exists()
    with testing.broker(data=tmp_path / "kept") as broker:
        create(broker, "t")
    with testing.broker(data=tmp_path / "kept") as broker:
        assert produce(broker, "t") == 0


def test_settings_reach_both_kinds_of_broker() -> None:
    settings = {"socket.request.max.bytes": 2048, "request.other.bytes.max": 1024}
    with testing.broker(settings=settings) as near, testing.broker(in_process=False, settings=settings) as far:
        for broker in (near, far):
            with connect(broker) as client:
                client.send(HeartbeatRequest(group_id="g" * 1500), 12, 0, 1)
                assert client.is_closed()


def test_no_thread_is_left_behind() -> None:
    before = set(threading.enumerate())
    with testing.broker() as broker:
        create(broker, "t")
        assert set(threading.enumerate()) - before
    # The broker does not wait for a thread that has nothing left to do but end.
    eventually(lambda: set(threading.enumerate()) - before, lambda left: not left)


def test_what_a_kind_of_broker_cannot_do_is_said() -> None:
    with testing.broker() as broker, pytest.raises(HeadraceError, match="in_process=False"):
        broker.kill()
    with pytest.raises(HeadraceError, match="in this process"):
        testing.broker(in_process=False, clock=VirtualClock())  # type: ignore[call-overload]


def test_stopping_twice_is_harmless() -> None:
    with testing.broker() as broker:
        broker.stop()
        broker.stop()


# ---- the disk -------------------------------------------------------------------------------------------------------


def test_a_broker_on_a_simulated_disk_serves_and_keeps_its_data_over_a_restart() -> None:
    with testing.broker(disk=SimulatedDisk()) as broker:
        create(broker, "t")
        assert [produce(broker, "t") for _ in range(3)] == [0, 1, 2]
        broker.restart()
        assert produce(broker, "t") == 3
        with connect(broker) as client:
            partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
            topics = [FetchTopic(topic="t", partitions=[partition])]
            client.send(FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, topics=topics), 1, 11, 1)
            fetched = client.answer(FetchResponse, 11).responses[0].partitions[0]
        assert len(read_batches(bytes(fetched.records), batch_bytes_max=1 << 20, from_client=False)) == 4
        assert not list(broker.data.iterdir()), "nothing is on the real disk"


def test_a_sync_that_fails_stops_a_broker_in_this_process_and_nothing_is_acknowledged() -> None:
    disk = SimulatedDisk()
    with testing.broker(disk=disk) as broker:
        create(broker, "t")
        produce(broker, "t")
        for operation in ("datasync", "syncfs"):
            disk.fail_next(operation, errno.EIO)
        with pytest.raises((EOFError, ConnectionResetError)):
            produce(broker, "t")
        broker.stop()
        assert isinstance(broker.failed, OSError)
        assert broker.failed.errno == errno.EIO


# ---- the clock ------------------------------------------------------------------------------------------------------


def test_timers_fire_in_order_each_at_its_own_time() -> None:
    clock = VirtualClock(start_ms=0)
    fired: list[tuple[str, int]] = []
    clock.call_later(2.0, lambda: fired.append(("second", clock.wall_ms())))
    clock.call_later(1.0, lambda: fired.append(("first", clock.wall_ms())))
    clock.call_later(2.0, lambda: fired.append(("third", clock.wall_ms())))
    clock.call_later(9.0, lambda: fired.append(("never", clock.wall_ms())))
    clock.advance(999)
    assert fired == []
    clock.advance(2_001)
    assert fired == [("first", 1_000), ("second", 2_000), ("third", 2_000)]
    assert (clock.wall_ms(), clock.monotonic(), clock.timers) == (3_000, 3.0, 1)


def test_a_timer_that_sets_a_timer_is_followed_within_the_same_advance() -> None:
    clock = VirtualClock(start_ms=0)
    fired: list[int] = []

    def tick() -> None:
        fired.append(clock.wall_ms())
        clock.call_later(1.0, tick)

    clock.call_later(1.0, tick)
    clock.advance(3_500)
    assert fired == [1_000, 2_000, 3_000]


def test_a_jump_fires_late_what_fell_due_and_only_once() -> None:
    clock = VirtualClock(start_ms=0)
    fired: list[int] = []

    def tick() -> None:
        fired.append(clock.wall_ms())
        clock.call_later(1.0, tick)

    clock.call_later(1.0, tick)
    clock.jump(5_000)
    assert fired == [5_000]
    clock.advance(1_000)
    assert fired == [5_000, 6_000]


def test_a_cancelled_timer_does_not_fire() -> None:
    clock = VirtualClock()
    fired: list[int] = []
    timer = clock.call_later(1.0, lambda: fired.append(1))
    timer.cancel()
    clock.advance(2_000)
    assert fired == []
    assert clock.timers == 0


def test_an_attached_clock_fires_on_the_loop_and_lets_it_finish_what_a_timer_began() -> None:
    clock = VirtualClock()
    seen: list[tuple[str, str]] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        clock.attach(loop)
        future: asyncio.Future[None] = loop.create_future()

        def complete() -> None:
            seen.append(("timer", threading.current_thread().name))
            future.set_result(None)

        async def waiting() -> None:
            await future
            seen.append(("waiter", threading.current_thread().name))

        task = loop.create_task(waiting())
        clock.call_later(1.0, complete)
        clock.call_later(2.0, lambda: seen.append(("later", threading.current_thread().name)))
        await asyncio.to_thread(clock.advance, 5_000)
        await task

    asyncio.run(scenario())
    loop_thread = threading.current_thread().name
    assert seen == [("timer", loop_thread), ("waiter", loop_thread), ("later", loop_thread)]


def test_a_week_of_retention_passes_in_no_time() -> None:
    clock = VirtualClock()
    settings = {"log.roll.ms": DAY_MS, "log.retention.ms": 2 * DAY_MS}
    with testing.broker(clock=clock, settings=settings) as broker:
        create(broker, "t")
        for _ in range(4):
            produce(broker, "t", clock.wall_ms())
            clock.jump(DAY_MS + 1)
        assert earliest_offset(broker, "t") > 0


def test_a_group_member_that_falls_silent_is_gone_when_its_session_has_passed() -> None:
    clock = VirtualClock()
    with testing.broker(clock=clock) as broker, connect(broker) as client:
        protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
        join = JoinGroupRequest(
            group_id="g", session_timeout_ms=30_000, protocol_type="consumer", protocols=[protocol], member_id=""
        )
        client.send(join, 11, 0, 1)
        joined = client.answer(JoinGroupResponse, 0)
        beat = HeartbeatRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.member_id)
        clock.advance(29_000)
        client.send(beat, 12, 0, 2)
        assert client.answer(HeartbeatResponse, 0).error_code in (0, ErrorCode.REBALANCE_IN_PROGRESS)
        clock.advance(31_000)
        client.send(beat, 12, 0, 3)
        assert client.answer(HeartbeatResponse, 0).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_broker_without_queues_says_how_to_get_them() -> None:
    with testing.broker() as broker, pytest.raises(HeadraceError, match="amqp=True"):
        print(broker.amqp_url)
