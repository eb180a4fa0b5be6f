"""A turn: what is done once for everything that has happened since the last turn.

Whatever arrives only notes its effects: messages wait in their queues, acknowledgements in their journals, frames in
their connections. Once per turn of the event loop they become

1. one append per queue of all that was published to it,
2. deliveries to consumers, as far as they have credit; dead letters among them go back to step 1,
3. one record in the journal of every queue that has handed out or lost messages,
4. one write per connection.

In this order: a message is in the log before it is confirmed or delivered, and the journal knows of a delivery before
its consumer does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from headrace.log.errors import LogError
from headrace.ports import TimerHandle

if TYPE_CHECKING:
    from headrace.broker.queues.queue import Queue

__all__ = ["Alarm", "Output", "Turn"]

LOG = logging.getLogger("headrace.queues")

RETRY_S = 1.0
"""How long a queue waits whose log could not be written, on a full disk."""


ROUNDS_MAX = 16
"""Dead letters may go from queue to queue; the rest of a long way waits for the next turn."""


class Output(Protocol):
    """A connection that has frames to send."""

    def flush(self) -> None: ...


class Turn:
    """``defer`` calls a function when the loop gets to it, ``later`` after some seconds.

    ``on_trouble`` is called when the disk refuses a write (with the error), and when it takes one again (None).
    """

    def __init__(
        self,
        *,
        defer: Callable[[Callable[[], None]], object],
        later: Callable[[float, Callable[[], None]], TimerHandle],
        now_ms: Callable[[], int],
        on_trouble: Callable[[LogError | None], None] = lambda error: None,
    ) -> None:
        self.now_ms = now_ms
        self.later = later
        self.on_trouble = on_trouble
        self._defer = defer
        self._queues: dict[Queue, None] = {}
        self._outputs: dict[Output, None] = {}
        self._refused: dict[Queue, None] = {}
        self._is_set = False

    @property
    def is_refused(self) -> bool:
        """Whether the disk takes no messages at the moment."""
        return bool(self._refused)

    def touch(self, queue: Queue) -> None:
        """A queue has something to append, to deliver or to note."""
        self._queues[queue] = None
        self._set()

    def send(self, output: Output) -> None:
        self._outputs[output] = None
        self._set()

    def _set(self) -> None:
        if not self._is_set:
            self._is_set = True
            self._defer(self.run)

    def at_once(self, work: Callable[[], None]) -> None:
        """Run ``work``, and then the turn that it asks for unless one is due anyway: so confirms leave in this turn of
        the loop."""
        if self._is_set:
            work()
            return
        self._is_set = True
        try:
            work()
        finally:
            self.run()

    def run(self) -> None:
        self._is_set = False
        touched: dict[Queue, None] = {}
        for _ in range(ROUNDS_MAX):
            # After the first round only dead letters: a queue that has more to deliver waits for the next turn.
            queues = [queue for queue in self._queues if not touched or queue.has_waiting]
            if not queues:
                break
            for queue in queues:
                del self._queues[queue]
                touched[queue] = None
                self._settle(queue)
        for queue in touched:
            self._note(queue)
        outputs, self._outputs = self._outputs, {}
        for output in outputs:
            output.flush()
        if self._queues:
            self._set()

    def _settle(self, queue: Queue) -> None:
        try:
            queue.append_waiting()
        except LogError as error:
            self._refuse(queue, error)
        except Exception:
            LOG.exception("queue %s: an internal error; please file a bug", queue.name)
        try:
            queue.deliver()  # consumers go on when nothing can be appended
        except LogError as error:
            self._unreadable(queue, error)
        except Exception:
            LOG.exception("queue %s: an internal error; please file a bug", queue.name)

    def _unreadable(self, queue: Queue, error: LogError) -> None:
        """The consumers of this queue wait; nobody else does."""
        LOG.error("queue %s: its messages cannot be read: %s", queue.name, error)
        self.later(RETRY_S, lambda: None if queue.is_deleted else self.touch(queue))

    def _note(self, queue: Queue) -> None:
        try:
            is_done = queue.write_journal()
        except LogError as error:
            self._refuse(queue, error)
            return
        if is_done:
            return
        if self._refused:  # its dead letters wait for the disk
            self._refused[queue] = None
        else:
            self._queues[queue] = None

    def _refuse(self, queue: Queue, error: LogError) -> None:
        if not self._refused:
            LOG.error("queue %s: %s; publishers are held until the disk takes writes", queue.name, error)
            self.on_trouble(error)
            self.later(RETRY_S, self._retry)
        self._refused[queue] = None

    def _retry(self) -> None:
        refused, self._refused = self._refused, {}
        self._queues.update(refused)
        self.run()
        if not self._refused:
            LOG.info("the disk takes writes again")
            self.on_trouble(None)


class Alarm:
    """Calls a function at the earliest of the times that it was set to, once."""

    def __init__(self, turn: Turn, due: Callable[[], None]) -> None:
        self._turn = turn
        self._due = due
        self._timer: TimerHandle | None = None
        self._at_ms = 0

    def set(self, wait_ms: int) -> None:
        at_ms = self._turn.now_ms() + wait_ms
        if self._timer is not None:
            if self._at_ms <= at_ms:
                return
            self._timer.cancel()
        self._timer, self._at_ms = self._turn.later(wait_ms / 1000, self._ring), at_ms

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        self._due()
