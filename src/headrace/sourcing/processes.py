"""Process managers: events in, commands out, each with its effect once.

    class Shipping(ProcessManager):
        @on("OrderPaid")
        def paid(self, event):
            yield Command(f"shipment-{event.data['order']}", shipment, Ship(event.data["address"]))

A process reads events and answers with commands, which are decided on other streams. How far it has read is stored in
the event store. Each command has an id that follows from the process, the event and its place in the answer. So when
a process dies after a command and before its progress is stored, the event comes again, and the commands that were
done are recognised: their effect is there once. What a process knows, it should read from the store or from a view;
it keeps no state in memory.

The answer to an event should follow from the event and from what came before it. A process that answers differently the
second time (it looks at the clock, or at a view that has moved on) gives another command at the same place. If the
command at that place was done before the crash, the other one counts as done and is not; if not, the other one is done.
Never both. A command that was rejected, or led to no event, is not recorded, and is decided again.

A command that is rejected goes to ``rejected``, which by default raises. Two runners of one process do no harm: one of
them stops (``TakenOver``).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.errors import UsageError
from headrace.sourcing.appends import Progress
from headrace.sourcing.deciding import Decider, Rejection, handle, handlers_of
from headrace.sourcing.errors import AppendConflict, TakenOver
from headrace.sourcing.events import EVERYTHING, Query, RecordedEvent
from headrace.sourcing.store import EventStore, Page

__all__ = ["Command", "ProcessManager", "run_process"]

BATCH_EVENTS = 100


@dataclass(frozen=True, slots=True)
class Command:
    """A command for the decider of a stream."""

    stream: str
    decider: Decider[Any, Any]
    command: Any


class ProcessManager:
    """See the module."""

    name: ClassVar[str] = ""
    query: ClassVar[Query] = EVERYTHING
    _handlers: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = cls.__dict__.get("name") or cls.__name__
        cls._handlers = handlers_of(cls)

    def react(self, event: RecordedEvent) -> Iterable[Command]:
        """The commands that follow from an event."""
        method = self._handlers.get(event.type)
        found = None if method is None else getattr(self, method)(event)
        return (found,) if isinstance(found, Command) else found or ()

    def rejected(self, event: RecordedEvent, command: Command, rejection: Rejection) -> None:
        """A command was refused. Raise, and the process stops at this event; return, and it goes on."""
        raise rejection


def run_process(
    store: EventStore, process: ProcessManager, stop: threading.Event | None = None, *, until_current: bool = False
) -> int:
    """Let a process follow a store; gives the position that it has reached."""
    if isinstance(process, type):
        raise UsageError(f"{process.__name__} is a class", f"give a process: {process.__name__}()")
    position = store.progress(process.name)
    pages = store.pages(process.query, after=position, stop=stop, until_current=until_current, limit=BATCH_EVENTS)
    for page in pages:
        for event in page.events:
            _react(store, process, event)
        _advance(store, process, page)
        position = page.scanned_to
    return position


def _react(store: EventStore, process: ProcessManager, event: RecordedEvent) -> None:
    for number, command in enumerate(process.react(event)):
        try:
            handle(
                store,
                command.stream,
                command.decider,
                command.command,
                command_id=f"{process.name}:{event.event_id}:{number}",
                cause=event,
            )
        except Rejection as rejection:
            process.rejected(event, command, rejection)


def _advance(store: EventStore, process: ProcessManager, page: Page) -> None:
    try:
        store.append_all([], progress=Progress(process.name, page.scanned_to))
    except AppendConflict as conflict:
        raise TakenOver(
            f"process {process.name} has been at position {page.scanned_to} already: it runs in another place, too"
        ) from conflict
