"""The queues of a broker, put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.broker.queues.blocking import Blocking, DiskReserve
from headrace.broker.queues.limits import QueueLimits
from headrace.broker.queues.registry import DEFAULT_HOST, Registry
from headrace.broker.queues.turn import Turn
from headrace.broker.queues.virtual_host import VirtualHost
from headrace.broker.state import StateStore
from headrace.config import Settings
from headrace.log.flush import Flusher
from headrace.log.space import LogSpace
from headrace.log.store import LogStore
from headrace.ports import Clock
from headrace.wire.amqp.errors import AmqpError, ReplyCode

__all__ = ["QueueBroker"]

RELEASE_INTERVAL_S = 10.0


class QueueBroker:
    """Everything between AMQP's methods and the logs. The event loop's thread owns it."""

    def __init__(
        self,
        *,
        store: LogStore,
        state: StateStore,
        flusher: Flusher,
        clock: Clock,
        remove_files: Callable[[LogSpace, str, Callable[[], None]], None],
        settings: Settings,
    ) -> None:
        self.blocking = Blocking()
        limits = QueueLimits.of(settings)
        self.reserve = DiskReserve(
            limits.disk_free_bytes_min,
            free_bytes=lambda: store.disk.free_bytes(store.directory),
            blocking=self.blocking,
            later=clock.call_later,
        )
        self.turn = Turn(
            defer=lambda run: asyncio.get_running_loop().call_soon(run),
            later=clock.call_later,
            now_ms=clock.wall_ms,
            on_trouble=lambda error: self.blocking.set("write", None if error is None else str(error)),
        )
        flusher.report = self.turn.at_once
        self.registry = Registry(
            store=store,
            state=state,
            flusher=flusher,
            turn=self.turn,
            remove_files=remove_files,
            limits=limits,
            hosts=settings.items("amqp.vhosts"),
        )

    def load(self) -> None:
        """Before ``LogStore.sync_recovered``."""
        self.registry.load()

    def start(self) -> None:
        self.registry.start()
        self.reserve.start()
        self.turn.later(RELEASE_INTERVAL_S, self._release)

    def _release(self) -> None:
        """Let go of messages that were kept for long enough, also where nothing else happens."""
        for host in self.registry.hosts.values():
            for queue in host.queues.values():
                if queue.keeps_what_is_gone:
                    queue.release()
        self.turn.later(RELEASE_INTERVAL_S, self._release)

    def virtual_host(self, name: str) -> VirtualHost:
        found = self.registry.hosts.get(name or DEFAULT_HOST)
        if found is None:
            raise AmqpError(ReplyCode.NOT_ALLOWED, f"vhost {name} not found")
        return found

    def connection_closed(self, host: VirtualHost, connection: object) -> None:
        """The exclusive queues of a connection end with it."""
        for queue in [each for each in host.queues.values() if each.owner is connection]:
            self.registry.remove_queue_soon(host, queue)
