"""The disk refuses to open a file for a moment, as when descriptors are used up: requests fail, and nothing hangs."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from headrace.errors import ErrorCode
from headrace.log.disk import OsDisk
from headrace.ports import File
from tests.unit.broker.harness import Harness, running
from tests.unit.broker.test_damaged_partition import state_of
from tests.unit.broker.test_read_committed import Transactions
from tests.waiting import PATIENCE_S, eventually_on_loop


class Descriptors:
    """While ``used_up``, no file of the topic ``t`` can be opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used_up = False
        opened = OsDisk.open

        def open_or_refuse(disk: OsDisk, path: str, *, create: bool = False, writable: bool = True) -> File:
            if self.used_up and "/topics/t~" in path:
                raise OSError(errno.EMFILE, "Too many open files", path)
            return opened(disk, path, create=create, writable=writable)

        monkeypatch.setattr(OsDisk, "open", open_or_refuse)

    def use_up(self, harness: Harness) -> None:
        store = harness.broker.store
        for name, log in store.logs.items():
            if name.startswith("topics/"):
                log.forget_files()
        for log in store.logs.values():
            log.reader.forget_places()
        self.used_up = True


@pytest.fixture
def descriptors(monkeypatch: pytest.MonkeyPatch) -> Descriptors:
    return Descriptors(monkeypatch)


def test_a_fetch_that_cannot_open_a_file_says_so_and_works_afterwards(tmp_path: Path, descriptors: Descriptors) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t")
            await harness.produce("t", [b"a"])
            descriptors.use_up(harness)
            assert (await harness.fetch("t", 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            descriptors.used_up = False
            assert await harness.values("t") == [b"a"]

    asyncio.run(scenario())


def test_a_fetch_that_waits_is_answered_although_its_read_fails(tmp_path: Path, descriptors: Descriptors) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t")
            await harness.produce("t", [b"a"])
            body = harness.fetch_body("t", 0, min_bytes=1 << 20, max_wait_ms=50)
            answer = asyncio.create_task(harness.ask(body, 12))
            await asyncio.sleep(0)
            descriptors.use_up(harness)
            found = (await asyncio.wait_for(answer, PATIENCE_S)).responses[0].partitions[0]
            assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR

    asyncio.run(scenario())


def test_a_fetch_that_waits_and_meets_a_bug_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t")
            reply = harness.start(harness.fetch_body("t", 0, max_wait_ms=20), 12)

            def mistake(*_: object, **__: object) -> None:
                raise ZeroDivisionError

            monkeypatch.setattr("headrace.broker.fetch_pending._Reading.answer", mistake)
            await eventually_on_loop(lambda: reply.ready)
            assert isinstance(reply.error, ZeroDivisionError)
            assert not harness.partition("t", 0).watchers

    asyncio.run(scenario())


def test_a_transaction_that_cannot_open_its_files_commits_when_it_can(tmp_path: Path, descriptors: Descriptors) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t", segment_ms=str(2**62))
            producer = Transactions(harness, "tx")
            await producer.start()
            await producer.write()
        async with running(tmp_path) as harness:
            producer.harness = harness
            descriptors.use_up(harness)
            await producer.end(commit=True)
            descriptors.used_up = False
            async with asyncio.timeout(PATIENCE_S):
                while await state_of(harness) != "CompleteCommit":  # noqa: ASYNC110 - seen only by asking
                    await asyncio.sleep(0.01)
            assert await harness.values("t", isolation_level=1) == [b"x"]

    asyncio.run(scenario())
