"""The transaction of a channel (``tx.select``): what it has published and settled since the last commit.

Nothing of it has happened for anybody else. Messages that it has settled count against the prefetch until the commit;
a rollback makes them unacknowledged again, and so does the end of the channel, which gives them back.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.broker.queues.deliveries import Held
from headrace.broker.queues.queue import Published
from headrace.wire.amqp.errors import AmqpError, ReplyCode

__all__ = ["Step", "Transaction"]

STEP_OVERHEAD_BYTES = 600
"""What a message or an acknowledgement takes in memory besides its bytes: a client may collect millions of empty
ones."""

Step = Callable[[Published], bool]
"""A step of the commit. Its messages report their flushes to the argument. True if a queue refuses the message."""


class Transaction:
    """See the module."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._steps: list[Step] = []
        self._settled: dict[int, Held] = {}

    @property
    def settled_count(self) -> int:
        return len(self._settled)

    def publish(self, size: int, step: Step) -> None:
        """Raises AmqpError when the transaction holds more than it may."""
        self._collect(size, step)

    def _collect(self, size: int, step: Step) -> None:
        self._bytes += size + STEP_OVERHEAD_BYTES
        if self._bytes > self._bytes_max:
            raise AmqpError(
                ReplyCode.RESOURCE_ERROR,
                f"a transaction holds at most {self._bytes_max} bytes (amqp.transaction.bytes.max)",
            )
        self._steps.append(step)

    def settle(self, taken: dict[int, Held], settle: Callable[[dict[int, Held]], None]) -> None:
        def step(_: Published) -> bool:
            for tag in taken:
                del self._settled[tag]
            settle(taken)
            return False

        self._settled.update(taken)
        self._collect(0, step)

    def take_steps(self) -> list[Step]:
        """For the commit; the next transaction begins. A delivery is settled when its step is done: if an earlier step
        fails, ``undo`` still gives it back."""
        steps, self._steps = self._steps, []
        self._bytes = 0
        return steps

    def undo(self) -> dict[int, Held]:
        """Forget everything; the messages that are not settled after all."""
        settled, self._settled = self._settled, {}
        self._steps.clear()
        self._bytes = 0
        return settled
