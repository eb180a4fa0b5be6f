"""Stalls of the event loop are measured, and named where a request caused them."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headrace.server import KafkaService
from headrace.server.loop_watch import LoopWatch
from headrace.wire.kafka.api_key import ApiKey
from tests.unit.server.harness import at_once
from tests.waiting import eventually_on_loop


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def watched(kafka: KafkaService, late_s: float) -> LoopWatch:
    """A watch whose timer fired so late, once."""
    time = Time()
    watch = LoopWatch(kafka, stall_s=0.5, now=time, interval_s=0.001)
    watch.start()
    time.now += 0.001 + late_s
    await eventually_on_loop(lambda: watch.delay.count)
    watch.stop()
    return watch


def test_a_stall_names_the_request_that_caused_it(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        kafka = KafkaService(at_once)
        kafka.note_hold(ApiKey.FETCH, "127.0.0.1:1", 0.1)
        kafka.note_hold(ApiKey.METADATA, "127.0.0.1:2", 0.7)
        kafka.note_hold(ApiKey.FETCH, "127.0.0.1:1", 0.2)
        watch = await watched(kafka, 0.8)
        assert watch.delay.sum == pytest.approx(0.8, abs=0.001)
        assert kafka.longest_hold is None, "a stall has one culprit, and the next one another"

    with caplog.at_level(logging.WARNING, "headrace.server"):
        asyncio.run(run())
    assert caplog.messages == ["all requests waited for 800 ms: Metadata from 127.0.0.1:2 took 700 ms in one piece"]


def test_a_stall_without_a_long_request_blames_none(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        kafka = KafkaService(at_once)
        kafka.note_hold(ApiKey.FETCH, "127.0.0.1:1", 0.06)
        await watched(kafka, 2.0)

    with caplog.at_level(logging.WARNING, "headrace.server"):
        asyncio.run(run())
    assert caplog.messages == ["all requests waited for 2000 ms, not because of one request"]


def test_a_short_delay_is_counted_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        watch = await watched(KafkaService(at_once), 0.3)
        assert watch.delay.sum == pytest.approx(0.3, abs=0.001)

    with caplog.at_level(logging.WARNING, "headrace.server"):
        asyncio.run(run())
    assert caplog.messages == []
