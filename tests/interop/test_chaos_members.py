"""What members of the long runs write down, with a broker and a network that fails: the judge follows it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.broker import ChaosBroker
from tests.chaos.checker import Problem, check
from tests.chaos.consumers import AioMember
from tests.chaos.history import Recorder
from tests.chaos.operations import Operation, read_lines
from tests.chaos.proxy import TO_BROKER, TO_CLIENT, Proxy
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.slow

SETTINGS = {"group.initial.rebalance.delay.ms": 0, "auto.create.topics.enable": False}
PARTITIONS = 4


class Members:
    """Members of one group who live until the end, and what they wrote down."""

    def __init__(self, proxy: Proxy, home: Path, protocol: dict[str, Any]) -> None:
        self.proxy = proxy
        self.recorder = Recorder(home / "history.jsonl")
        self.protocol = protocol
        self.started: list[AioMember] = []

    def start(self) -> AioMember:
        name = f"aio{len(self.started)}"
        member = AioMember(
            name, self.proxy.bootstrap, self.recorder, group="aio", topic="plain", protocol=self.protocol, seed=0
        )
        member.work = lambda: member.live(time.monotonic() + 10 * PATIENCE_S)  # type: ignore[method-assign]
        self.started.append(member)
        member.start()
        return member

    def end(self) -> None:
        for member in self.started:
            member.stop()
        for member in self.started:
            member.join(PATIENCE_S)
            assert not member.is_alive()

    def history(self) -> list[Operation]:
        self.recorder.close()
        with self.recorder.path.open() as lines:
            return list(read_lines(lines))


@contextmanager
def members(home: Path, *, session_ms: int, rebalance_ms: int) -> Iterator[Members]:
    broker = ChaosBroker(home, settings=SETTINGS)
    with Proxy(broker.port) as proxy:
        broker.settings["advertised.kafka"] = proxy.bootstrap
        with broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            admin.create_topics([NewTopic("plain", PARTITIONS)])["plain"].result(PATIENCE_S)
            group = Members(proxy, home, {"session_timeout_ms": session_ms, "rebalance_timeout_ms": rebalance_ms})
            try:
                yield group
            finally:
                group.end()


def owners(problems: list[Problem]) -> list[Problem]:
    return [each for each in problems if each.kind == "two owners"]


def test_a_member_that_cannot_hear_of_a_rebalance_is_removed_and_the_broker_is_not_accused(tmp_path: Path) -> None:
    """Its heartbeat is lost, and it waits for the answer for longer than the rebalance waits for it."""
    with members(tmp_path, session_ms=45_000, rebalance_ms=2_000) as group:
        deaf = group.start()
        eventually(lambda: len(deaf.owned) == PARTITIONS)
        group.proxy.lose(TO_BROKER)
        heir = group.start()
        eventually(lambda: len(heir.owned) == PARTITIONS)
        assert len(deaf.owned) == PARTITIONS, "it cannot know it"
        group.proxy.vanish()
    history = group.history()
    assert owners(check(history)) == []
    kept_too_short = [each | {"kept_s": 60.0} if each["op"] == "beat" else each for each in history]
    assert len(owners(check(kept_too_short))) == PARTITIONS, "a broker that removed it too early is noticed"


def test_a_farewell_whose_answer_is_lost_leaves_no_second_owner(tmp_path: Path) -> None:
    with members(tmp_path, session_ms=45_000, rebalance_ms=20_000) as group:
        leaver = group.start()
        eventually(lambda: len(leaver.owned) == PARTITIONS)
        its_own = list(group.proxy.links)
        heir = group.start()
        eventually(lambda: (len(leaver.owned), len(heir.owned)) == (PARTITIONS // 2, PARTITIONS // 2))
        for link in its_own:
            link.lossy.add(TO_CLIENT)
        leaver.stop()
        eventually(lambda: len(heir.owned) == PARTITIONS)
        for link in its_own:
            link.vanish()
    assert owners(check(group.history())) == []
