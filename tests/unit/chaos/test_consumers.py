"""Members of the long runs do what members have to do."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from aiokafka.structs import TopicPartition

from tests.chaos.consumers import AioListener, AioMember, Member
from tests.chaos.history import Recorder


class Stopped:
    """A consumer of which only the end matters."""

    async def stop(self) -> None:
        return


def test_a_member_heartbeats_while_it_waits_for_the_moment_to_leave(tmp_path: Path) -> None:
    async def scenario() -> None:
        recorder = Recorder(tmp_path / "history.jsonl")
        member = AioMember("aio0", "127.0.0.1:1", recorder, group="aio", topic="plain", protocol={}, seed=0)
        member.farewell = lambda: recorder.calm  # type: ignore[method-assign]
        recorder.calm.acquire()
        calm = threading.Timer(1.0, recorder.calm.release)
        calm.start()
        leaving = asyncio.create_task(member.leave(Stopped()))
        await asyncio.sleep(0.05)
        assert calm.is_alive(), "the loop stood still"
        await leaving
        assert not calm.is_alive()
        assert not recorder.calm.locked()
        recorder.close()

    asyncio.run(scenario())


def test_a_member_gives_up_its_partitions_before_it_says_farewell_and_takes_no_others(tmp_path: Path) -> None:
    """The broker gives them to others when it hears the farewell; its answer may come much later, or never."""
    recorder = Recorder(tmp_path / "history.jsonl")
    member = AioMember("aio0", "127.0.0.1:1", recorder, group="aio", topic="plain", protocol={}, seed=0)
    member.owned = {("plain", 0)}
    before: list[dict[str, int]] = []

    class Leaving:
        async def stop(self) -> None:
            """A rebalance that was under way comes to its end first."""
            before.append(dict(recorder.counts))
            await AioListener(member).on_partitions_assigned({TopicPartition("plain", 1)})

    asyncio.run(member.leave(Leaving()))
    recorder.close()
    assert before == [{"release": 1}]
    assert dict(recorder.counts) == {"release": 1}
    assert member.owned == set()


def test_a_member_forgets_where_it_was_in_a_partition_that_it_gave_up(tmp_path: Path) -> None:
    """It may get it back at once, and reads it again from the committed offset."""
    recorder = Recorder(tmp_path / "history.jsonl")
    member = Member("eager0", "127.0.0.1:1", recorder, group="eager", topic="plain", protocol={}, seed=0)
    member.owned = {("plain", 0), ("plain", 1)}
    member.positions = {0: 10, 1: 20}
    member.release([("plain", 1)])
    assert (member.owned, member.positions) == ({("plain", 0)}, {0: 10})
    recorder.close()
