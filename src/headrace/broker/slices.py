"""Long work in slices, so that no request holds the loop for long.

A handler whose work grows with its request, or with what the broker holds, is a generator: it yields after each small
step how many *units* that step was worth. A unit is an element looked up, built or encoded; it takes about 10 µs.
``Slices.run`` drives the generator. While the turn of the loop has units left the work runs at once, so an ordinary
request is answered as if its handler were a plain function. When the units of the turn are spent, the work waits in a
queue and goes on in later turns, ``UNITS_PER_TURN`` in each for the whole queue together. Other connections are served
in between.

A generator may also yield ``InThread``, for one call that takes long and lets go of the interpreter's lock, such as
decompression, or a ``PendingReply`` to wait for; what they give is the value of the ``yield``.

Between two yields nothing else runs. Across a yield everything may change: topics may be deleted, groups rebalanced. So
what was looked up before a yield is looked up again after it, or its absence is handled.

The first step of a turn is always granted, so a step must be worth far fewer units than a turn has.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar, cast

from headrace.broker.replies import PendingReply
from headrace.broker.request import Peer

__all__ = ["UNITS_PER_TURN", "InThread", "Slices", "Steps", "in_steps"]

T = TypeVar("T")

UNITS_PER_TURN = 500
"""About 5 ms."""


class InThread(NamedTuple):
    """A call to be made in the thread for long calls. There is one, so requests that need it wait for each other."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    syncs: bool = False
    """Whether it waits for the disk: such calls have a separate thread, so that others do not wait with them."""


Yielded = int | PendingReply[Any] | InThread

Steps = Generator[Yielded, Any, T]
"""Work in steps: yields units done, or what to wait for; returns the answer."""


class Slices:
    """All long work of a broker: one queue, so that many long requests together take no more of a turn than one."""

    def __init__(self, units_per_turn: int = UNITS_PER_TURN) -> None:
        self.units_per_turn = units_per_turn
        self.units_in_turn_max = 0
        """The most units that any turn has taken so far."""
        self._spent = 0
        self._queue: deque[_Job[Any]] = deque()
        self._turn_is_set = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-work")
        self._disk_thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-disk")

    def run(self, steps: Steps[T], peer: Peer | None = None) -> T | PendingReply[T]:
        """The result, if it fits into what this turn has left; else a reply that will have it.

        With ``peer`` the work is given up when that peer is gone: for work that changes nothing.
        """
        job = _Job(steps, peer)
        if not self._queue:
            self._advance(job)
            if job.done:
                return job.result()
        if peer is not None:
            job.reply.abandoned = lambda: self._resume(job, None, None)  # it finds that its peer is gone
        if not job.waits:
            self._queue.append(job)
            self._set_turn()
        return job.reply

    def close(self) -> None:
        """No work is finished after this: the loop is about to end."""
        self._queue.clear()
        for thread in (self._thread, self._disk_thread):
            thread.shutdown(wait=False, cancel_futures=True)

    def _advance(self, job: _Job[Any]) -> None:
        """Work on ``job`` until it is done, waits for something, or the turn is spent."""
        self._set_turn()
        while self._spent < self.units_per_turn and not job.done:
            yielded = job.step()
            if isinstance(yielded, int):
                self._spent += yielded
            elif yielded is not None:
                self._wait(job, yielded)
                break
        self.units_in_turn_max = max(self.units_in_turn_max, self._spent)

    def _wait(self, job: _Job[Any], awaited: PendingReply[Any] | InThread) -> None:
        job.waits = True
        if isinstance(awaited, InThread):
            loop = asyncio.get_running_loop()
            thread = self._disk_thread if awaited.syncs else self._thread
            future = loop.run_in_executor(thread, awaited.function, *awaited.arguments)
            future.add_done_callback(lambda done: self._returned(job, done))
        elif awaited.ready:
            self._resume(job, awaited.response, None)
        else:
            awaited.taker = lambda: self._resume(job, awaited.response, None)

    def _returned(self, job: _Job[Any], future: asyncio.Future[Any]) -> None:
        if not future.cancelled():  # the broker is stopping
            error = future.exception()
            self._resume(job, None if error else future.result(), error)

    def _resume(self, job: _Job[Any], value: Any, error: BaseException | None) -> None:
        job.waits = False
        job.given = (value, error)
        self._queue.append(job)
        self._set_turn()

    def _set_turn(self) -> None:
        if not self._turn_is_set:
            self._turn_is_set = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_is_set = False
        self._spent = 0
        while self._queue and self._spent < self.units_per_turn:
            job = self._queue.popleft()
            self._advance(job)
            if job.done:
                job.deliver()
            elif not job.waits:
                self._queue.append(job)
        if self._queue:
            self._set_turn()


class _Job(Generic[T]):
    """One generator on its way."""

    __slots__ = ("_error", "_peer", "_result", "_steps", "done", "given", "reply", "waits")

    def __init__(self, steps: Steps[T], peer: Peer | None) -> None:
        self._steps = steps
        self._peer = peer
        self._result: T | None = None
        self._error: BaseException | None = None
        self.reply: PendingReply[T] = PendingReply()
        self.reply.executing = True
        self.given: tuple[Any, BaseException | None] = (None, None)
        """What the last ``yield`` gives: the value, or the error it raises."""
        self.waits = False
        self.done = False

    def step(self) -> Yielded | None:
        """Run to the next yield, and give what it yields; None when the job is done."""
        if self._peer is not None and self._peer.closed:
            self._steps.close()
            self.done = True
            return None
        (value, error), self.given = self.given, (None, None)
        try:
            return self._steps.send(value) if error is None else self._steps.throw(error)
        except StopIteration as stop:
            self._result = stop.value
        except Exception as failure:
            self._error = failure
        self.done = True
        return None

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return cast("T", self._result)

    def deliver(self) -> None:
        # Nothing may keep the answer when it was sent: it may hold thousands of open files.
        result, self._result = self._result, None
        if self._error is not None:
            self.reply.fail(self._error)
        else:
            self.reply.deliver(cast("T", result))


def in_steps(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """``items`` in lists of up to ``size``: what is too cheap to be a step each."""
    taken: list[T] = []
    for item in items:
        taken.append(item)
        if len(taken) == size:
            yield taken
            taken = []
    if taken:
        yield taken
