"""Long work in slices: what runs at once, what waits, and that nobody takes more of a turn than there is."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from headrace.broker.broker import settled
from headrace.broker.replies import PendingReply
from headrace.broker.request import Peer
from headrace.broker.slices import InThread, Slices, Steps, in_steps


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def runs(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return runs


def count(units: int, trace: list[int] | None = None) -> Steps[int]:
    for number in range(units):
        if trace is not None:
            trace.append(number)
        yield 1
    return units


async def turns_until(reply: Any) -> int:
    assert isinstance(reply, PendingReply)
    turns = 0
    while not reply.ready:
        await asyncio.sleep(0)
        turns += 1
    return turns


@run
async def test_work_that_fits_into_the_turn_is_done_at_once() -> None:
    assert Slices(10).run(count(9)) == 9


@run
async def test_longer_work_takes_as_many_turns_as_it_has_slices() -> None:
    slices = Slices(10)
    reply = slices.run(count(95))
    assert 9 <= await turns_until(reply) <= 11
    assert await settled(reply) == 95
    assert slices.units_in_turn_max == 10


@run
async def test_many_long_requests_take_no_more_of_a_turn_than_one() -> None:
    slices = Slices(10)
    replies = [slices.run(count(25)) for _ in range(40)]
    assert await asyncio.gather(*map(settled, replies)) == [25] * 40
    assert slices.units_in_turn_max == 10


@run
async def test_requests_that_come_in_one_turn_share_its_units() -> None:
    slices = Slices(10)
    assert [slices.run(count(3)) for _ in range(3)] == [3, 3, 3]
    assert isinstance(slices.run(count(3)), PendingReply)
    assert isinstance(slices.run(count(1)), PendingReply), "it waits its turn"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert slices.run(count(3)) == 3


@run
async def test_long_requests_advance_side_by_side() -> None:
    slices = Slices(10)
    first: list[int] = []
    one = slices.run(count(1000, first))
    two = slices.run(count(30))
    assert await settled(two) == 30
    assert len(first) < 100
    assert await settled(one) == 1000


@run
async def test_work_can_wait_for_a_reply_and_gets_its_response() -> None:
    slices = Slices(10)
    waited: PendingReply[str] = PendingReply()

    def work() -> Steps[str]:
        yield 1
        value: str = yield waited
        yield 1
        return value

    reply = slices.run(work())
    await asyncio.sleep(0)
    assert slices.run(count(5)) == 5, "nobody else waits with it"
    waited.deliver("flushed")
    assert await settled(reply) == "flushed"


@run
async def test_an_error_of_what_is_waited_for_is_raised_where_it_is_waited_for() -> None:
    slices = Slices(10)

    def failing() -> None:
        raise ValueError("no")

    def work() -> Steps[str]:
        try:
            yield InThread(failing, ())
        except ValueError as error:
            return f"caught {error}"
        return "not caught"

    assert await settled(slices.run(work())) == "caught no"
    slices.close()


@run
async def test_an_error_reaches_the_caller_at_once_or_through_the_reply() -> None:
    def work(units: int) -> Steps[None]:
        yield from count(units)
        raise ValueError("no")

    slices = Slices(10)
    with pytest.raises(ValueError, match="no"):
        slices.run(work(3))
    with pytest.raises(ValueError, match="no"):
        await settled(slices.run(work(50)))


@run
async def test_work_that_changes_nothing_ends_with_its_peer() -> None:
    slices = Slices(10)
    peer = Peer(id=1)
    trace: list[int] = []
    reply = slices.run(count(1000, trace), peer)
    peer.closed = True
    await turns_until(reply)
    assert len(trace) == 10


def test_items_in_steps_are_all_of_them_in_order() -> None:
    assert list(in_steps(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(in_steps([], 3)) == []


def test_an_answer_that_was_taken_is_kept_by_nothing() -> None:
    """It may hold thousands of open files, which must not stay open until Python collects cycles."""

    class Answer:
        pass

    def steps(slices: Slices) -> Steps[Answer]:
        yield 2 * slices.units_per_turn
        yield 1
        return Answer()

    async def scenario() -> None:
        slices = Slices()
        reply = slices.run(steps(slices), Peer(id=1))
        assert isinstance(reply, PendingReply)
        await turns_until(reply)
        answer = weakref.ref(reply.response)
        del reply
        await asyncio.sleep(0)
        assert answer() is None
        slices.close()

    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()
