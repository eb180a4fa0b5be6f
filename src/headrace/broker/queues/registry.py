"""What is durable of queues and exchanges, and where messages lie.

Exchanges, queues and bindings that must survive a restart are rows of the broker's state tables; a queue's messages are
logs in the space ``queues``, in a group of a random name: number 0 is the journal, the others are the lanes. A queue is
made like a topic: logs first, then the row, and only when that is flushed the queue exists for anybody. The logs of
queues that do not survive a restart have no row; the next start removes them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from headrace.broker.queues.damaged import DamagedQueue
from headrace.broker.queues.journal import QueueJournal
from headrace.broker.queues.lane import Lane, WindowBudget
from headrace.broker.queues.limits import QueueLimits
from headrace.broker.queues.policy import QueuePolicy
from headrace.broker.queues.queue import Queue
from headrace.broker.queues.retention import Retention
from headrace.broker.queues.routing import Binding, Exchange
from headrace.broker.queues.rows import Rows
from headrace.broker.queues.stream import StreamQueue, stream_config
from headrace.broker.queues.turn import Turn
from headrace.broker.queues.virtual_host import VirtualHost
from headrace.broker.state import Change, StateStore
from headrace.log.config import FlushMode, LogConfig
from headrace.log.errors import LogError
from headrace.log.flush import Flusher
from headrace.log.space import QUEUES, LogSpace
from headrace.log.store import LogStore
from headrace.wire.amqp.errors import AmqpError, ReplyCode
from headrace.wire.amqp.tables import decode_table, encode_table

__all__ = ["Registry"]

LOG = logging.getLogger("headrace.queues")

T = TypeVar("T")

EXCHANGES, QUEUE_ROWS, BINDINGS, DELETED = "amqp-exchanges", "amqp-queues", "amqp-bindings", "amqp-deleted"
DEFAULT_HOST = "/"
SEGMENT_BYTES_MAX = 32 << 20
NEVER_MS = 2**62

_MESSAGES = LogConfig(
    segment_bytes_max=SEGMENT_BYTES_MAX,
    segment_ms_max=NEVER_MS,
    retention_ms=-1,
    cleanup_delete=False,
)
JOURNAL_CONFIG = replace(_MESSAGES, flush=FlushMode.INTERVAL)
DURABLE_CONFIG = replace(_MESSAGES, flush=FlushMode.ACK)
TRANSIENT_CONFIG = replace(_MESSAGES, flush=FlushMode.OS)


class Registry:
    """Virtual hosts, and everything of them that is on disk."""

    def __init__(
        self,
        *,
        store: LogStore,
        state: StateStore,
        flusher: Flusher,
        turn: Turn,
        remove_files: Callable[[LogSpace, str, Callable[[], None]], None],
        limits: QueueLimits | None = None,
        hosts: Iterable[str] = (),
        new_group: Callable[[], str] = lambda: os.urandom(16).hex(),
    ) -> None:
        self.limits = limits or QueueLimits()
        self._space = store.space(QUEUES)
        self._state = state
        self.rows = Rows(state, turn)
        self._flusher = flusher
        self._windows = WindowBudget()
        self._stream_windows = WindowBudget()
        """What consumers of streams have read ahead. A slow one keeps it for long."""
        self._turn = turn
        self._remove_files = remove_files
        self._new_group = new_group
        self.hosts = {name: VirtualHost(name) for name in (DEFAULT_HOST, *hosts)}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._making: dict[tuple[str, str], asyncio.Event] = {}
        """Queues that are being made, each set when that has ended."""

    # ---- starting ---------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """At a start, before ``LogStore.sync_recovered``."""
        claimed = {row["group"]: 1 + row["lanes"] for row in self._state.table(QUEUE_ROWS).values()}
        self._space.discard_unconfirmed(claimed)
        for key, row in self._state.table(EXCHANGES).items():
            host, name = json.loads(key)
            self._host(host).declare_exchange(
                Exchange(
                    name,
                    row["kind"],
                    is_auto_delete=row["auto_delete"],
                    is_internal=row["internal"],
                    arguments=_table_of(row["arguments"]),
                )
            )
        for key, row in self._state.table(QUEUE_ROWS).items():
            host, name = json.loads(key)
            self._load_queue(self._host(host), name, row)
        for key in self._state.table(BINDINGS):
            self._load_binding(*json.loads(key))

    def start(self) -> None:
        """Begin to look at the time, and remove the files of queues that were being deleted when the broker stopped."""
        for group in list(self._state.table(DELETED)):
            self._remove(group)
        for host in self.hosts.values():
            for queue in host.queues.values():
                queue.wake()  # messages expire although nobody uses the queue

    def _host(self, name: str) -> VirtualHost:
        return self.hosts.setdefault(name, VirtualHost(name))

    def _load_queue(self, host: VirtualHost, name: str, row: Mapping[str, Any]) -> None:
        group, arguments = row["group"], _table_of(row["arguments"])
        try:
            config = _log_config(QueuePolicy.of(arguments, name, is_new=False), survives=True)
            logs = [self._space.open_log(group, 0, JOURNAL_CONFIG, sync=False)]
            logs += [self._space.open_log(group, 1 + number, config, sync=False) for number in range(row["lanes"])]
            queue = self._queue(host, name, group, logs, arguments, is_auto_delete=row["auto_delete"])
            queue.recover()
        except (LogError, AmqpError) as error:
            LOG.error("queue %s in vhost %s cannot be served: %s", name, host.name, error)
            host.add_damaged(DamagedQueue(name, str(error), turn=self._turn, dead_letters=host, group=group))
            return
        host.add_queue(queue)

    def _load_binding(self, host_name: str, source: str, kind: str, target: str, key: str, arguments: str) -> None:
        host = self._host(host_name)
        destination = host.destination(target) if kind == "queue" else host.exchanges.get(target)
        if destination is not None and source in host.exchanges:
            host.bind(host.exchanges[source], Binding(destination, key, _table_of(arguments)))

    def _queue(
        self,
        host: VirtualHost,
        name: str,
        group: str,
        logs: list[Any],
        arguments: Mapping[str, Any],
        *,
        is_durable: bool = True,
        is_auto_delete: bool = False,
        owner: object | None = None,
    ) -> Queue:
        policy = QueuePolicy.of(arguments, f"queue '{name}' in vhost '{host.name}'", is_new=False)
        is_stream = policy.queue_type == "stream"
        budget = self._stream_windows if is_stream else self._windows
        lanes = [Lane(log, self._flusher, self._retention(policy), budget) for log in logs[1:]]
        kind = StreamQueue if is_stream else Queue
        queue = kind(
            name,
            arguments=arguments,
            policy=policy,
            lanes=lanes,
            journal=QueueJournal(logs[0], self._flusher, lanes),
            turn=self._turn,
            dead_letters=host,
            group=group,
            where=f"queue '{name}' in vhost '{host.name}'",
            is_durable=is_durable,
            is_auto_delete=is_auto_delete,
            owner=owner,
        )
        queue.when_unused(lambda: self.remove_queue_soon(host, queue))
        return queue

    def _retention(self, policy: QueuePolicy) -> Retention:
        """What the queue asks for, or else the broker's setting."""
        ms, bytes_max = policy.retention_ms, policy.retention_bytes
        return Retention(
            self.limits.retention_ms if ms is None else ms,
            self.limits.retention_bytes if bytes_max is None else bytes_max,
        )

    # ---- queues -----------------------------------------------------------------------------------------------------

    async def settled(self, host: VirtualHost, name: str) -> None:
        """Wait while somebody else makes a queue of this name: two of them would each get a part of its messages."""
        while (made := self._making.get((host.name, name))) is not None:
            await made.wait()

    async def make_queue(
        self,
        host: VirtualHost,
        name: str,
        arguments: Mapping[str, Any],
        *,
        is_durable: bool,
        is_auto_delete: bool,
        owner: object | None,
    ) -> Queue:
        """A new queue, which exists when this returns. ``settled`` comes first, with nothing to wait for in between. A
        client that disconnects meanwhile gets its queue all the same, unless it would have had it for itself."""
        made = self._making[host.name, name] = asyncio.Event()
        making = self._make_queue(
            host, name, arguments, is_durable=is_durable, is_auto_delete=is_auto_delete, owner=owner
        )
        task = self._begin(making)

        def ended(_: object) -> None:
            del self._making[host.name, name]
            made.set()

        task.add_done_callback(ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if owner is not None:
                task.add_done_callback(lambda _: self._remove_orphan(host, task))
            raise

    def _remove_orphan(self, host: VirtualHost, task: asyncio.Task[Queue]) -> None:
        if not task.cancelled() and task.exception() is None:
            self.remove_queue_soon(host, task.result())

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` to its end, even if the client that asked for it disconnects."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _make_queue(
        self,
        host: VirtualHost,
        name: str,
        arguments: Mapping[str, Any],
        *,
        is_durable: bool,
        is_auto_delete: bool,
        owner: object | None,
    ) -> Queue:
        policy = QueuePolicy.of(arguments, f"queue '{name}' in vhost '{host.name}'")
        group = self._new_group()
        numbers = range(2 + policy.priority_max)
        refused = await asyncio.get_running_loop().run_in_executor(None, self._space.make, {group: numbers})
        if refused:
            raise AmqpError(ReplyCode.RESOURCE_ERROR, f"the disk refuses queue '{name}': {refused[group]}")
        survives = is_durable and owner is None
        config = _log_config(policy, survives=survives)
        logs = [self._space.add_made(group, 0, JOURNAL_CONFIG if survives else TRANSIENT_CONFIG)]
        logs += [self._space.add_made(group, number, config) for number in numbers[1:]]
        queue = self._queue(
            host,
            name,
            group,
            logs,
            arguments,
            is_durable=is_durable,
            is_auto_delete=is_auto_delete,
            owner=owner,
        )
        if survives:
            row = {
                "group": group,
                "lanes": len(numbers) - 1,
                "auto_delete": is_auto_delete,
                "arguments": _text_of(arguments),
            }
            await self.rows.change([(QUEUE_ROWS, _key(host.name, name), row)])
            self._space.confirm([group])
        host.add_queue(queue)
        return queue

    async def remove_queue(self, host: VirtualHost, queue: Queue) -> int:
        """Delete a queue, at once for everybody and durably when this returns; the messages that were ready."""
        if queue.is_deleted:  # a consumer, the end of a connection and a time limit may each ask for it
            return 0
        count, written = self._take_away(host, queue)
        await asyncio.shield(written)
        return count

    def remove_queue_soon(self, host: VirtualHost, queue: Queue) -> None:
        """The same, where nobody waits for it to be durable."""
        if not queue.is_deleted:
            self._take_away(host, queue)[1].add_done_callback(self._removed)

    def _take_away(self, host: VirtualHost, queue: Queue) -> tuple[int, asyncio.Task[None]]:
        """The messages that were ready, and what writes that the queue is gone."""
        gone = host.remove_queue(queue)
        count = queue.delete()
        changes: list[Change] = [(DELETED, queue.group, {})]
        changes.append((QUEUE_ROWS, _key(host.name, queue.name), None))
        if queue.is_durable and queue.owner is None:  # else its bindings have no rows, see ``_survives``
            changes += self._binding_removals(host, queue.name, lambda row: row[2:4] == ["queue", queue.name])
        changes += self._exchange_removals(host, gone)
        group = queue.group
        return count, self._begin(self.rows.follow(changes, lambda: self._remove(group)))

    def _removed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            LOG.error("a queue could not be deleted: %s", task.exception())

    def _remove(self, group: str) -> None:
        self._remove_files(self._space, group, lambda: self._forget_deleted(group))

    def _forget_deleted(self, group: str) -> None:
        with suppress(LogError):  # else the next start does it
            self._state.put(DELETED, group, None)

    # ---- exchanges and bindings -------------------------------------------------------------------------------------

    async def declare_exchange(self, host: VirtualHost, exchange: Exchange) -> None:
        changes: list[Change] = []
        if host.declare_exchange(exchange) and exchange.is_durable:
            row = {
                "kind": exchange.kind,
                "auto_delete": exchange.is_auto_delete,
                "internal": exchange.is_internal,
                "arguments": _text_of(exchange.arguments),
            }
            changes.append((EXCHANGES, _key(host.name, exchange.name), row))
        await self.rows.follow(changes)

    async def remove_exchange(self, host: VirtualHost, exchange: Exchange) -> None:
        await self.rows.follow(self._exchange_removals(host, host.remove_exchange(exchange)))

    def _exchange_removals(self, host: VirtualHost, exchanges: Iterable[Exchange]) -> list[Change]:
        changes: list[Change] = []
        for exchange in exchanges:
            name = exchange.name
            changes.append((EXCHANGES, _key(host.name, name), None))
            changes += self._binding_removals(
                host, name, partial(lambda row, name: row[1] == name or row[2:4] == ["exchange", name], name=name)
            )
        return changes

    def _binding_removals(self, host: VirtualHost, name: str, goes: Callable[[list[str]], bool]) -> list[Change]:
        """Rows that end with a queue or an exchange of this name. Only those that have the name in them are read: there
        may be very many."""
        text = json.dumps(name)
        rows = [(key, json.loads(key)) for key in self.rows.keys(BINDINGS) if text in key]
        return [(BINDINGS, key, None) for key, row in rows if row[0] == host.name and goes(row)]

    async def bind(self, host: VirtualHost, source: Exchange, binding: Binding) -> None:
        is_new = host.bind(source, binding)
        survives = is_new and self._survives(source, binding)
        await self.rows.follow([(BINDINGS, _binding_key(host, source, binding), {})] if survives else [])

    async def unbind(self, host: VirtualHost, source: Exchange, binding: Binding) -> None:
        existed, gone = host.unbind(source, binding)
        changes: list[Change] = self._exchange_removals(host, gone)
        if existed and self._survives(source, binding):
            changes.append((BINDINGS, _binding_key(host, source, binding), None))
        await self.rows.follow(changes)

    def _survives(self, source: Exchange, binding: Binding) -> bool:
        destination = binding.destination
        is_owned = isinstance(destination, Queue) and destination.owner is not None
        return source.is_durable and getattr(destination, "is_durable", False) and not is_owned


def _log_config(policy: QueuePolicy, *, survives: bool) -> LogConfig:
    config = DURABLE_CONFIG if survives else TRANSIENT_CONFIG
    return stream_config(config, policy) if policy.queue_type == "stream" else config


def _key(host: str, name: str) -> str:
    return json.dumps([host, name])


def _binding_key(host: VirtualHost, source: Exchange, binding: Binding) -> str:
    kind = "queue" if isinstance(binding.destination, Queue) else "exchange"
    return json.dumps(
        [host.name, source.name, kind, binding.destination.name, binding.key, _text_of(binding.arguments)]
    )


def _text_of(arguments: Mapping[str, Any]) -> str:
    """Arguments in a row: a field table, since JSON does not have all of its types."""
    return base64.b64encode(encode_table(dict(arguments))).decode()


def _table_of(text: str) -> dict[str, Any]:
    raw = base64.b64decode(text)
    return decode_table(raw, 0, len(raw))[0]
