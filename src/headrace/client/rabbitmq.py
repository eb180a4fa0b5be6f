"""RabbitMQ's queues by its management API, with the calls that ``Queues`` has for headrace's.

Messages are moved over AMQP, since the management API cannot acknowledge a message later: each is fetched without an
acknowledgement, published with a confirm, and only then acknowledged. A kill in between leaves it in both queues, and
the old one delivers it with ``redelivered``. Messages that do not fit a filter are given back, also marked.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from headrace.client.amqp import amqp_channel
from headrace.client.queues import BindingInfo, MoveResult, QueuedMessage, QueueInfo
from headrace.errors import BadArgument, ErrorCode, HeadraceError, KafkaError, UsageError

__all__ = ["PEEKED_MAX", "RabbitMq"]

PAGE = 500
PEEKED_MAX = 1_000
"""Messages that RabbitMQ is asked to show at most; it puts them back, marked as redelivered."""
ANSWER_BYTES_MAX = 256 << 20
MOVES_PER_STEP = 500
MOVES_FAILED = "moving messages over AMQP failed"

Target = Callable[[QueuedMessage], "tuple[str, str] | None"]
"""The exchange and routing key that a message goes to, or None where there is none."""


class RabbitMq:
    """One virtual host of a RabbitMQ. ``url`` may have user and password; without them it is guest."""

    def __init__(self, url: str, virtual_host: str = "/", *, timeout_s: float = 30.0) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadArgument(f"{_without_password(url)!r} is no address of a management API", "http://host:15672")
        self._user = urllib.parse.unquote(parts.username or "guest")
        self._password = urllib.parse.unquote(parts.password or "guest")
        self._host = parts.hostname
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self._base = f"{parts.scheme}://{host}:{parts.port or 15672}{parts.path.rstrip('/')}/api"
        self._virtual_host = virtual_host
        self._timeout_s = timeout_s
        self.has_shown_all = True
        """False after ``messages`` has come to the end of what RabbitMQ shows of a queue."""

    def __enter__(self) -> RabbitMq:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is kept open."""

    # ---- looking ----------------------------------------------------------------------------------------------------

    def list_all(self) -> Iterator[QueueInfo]:
        page, pages = 1, 1
        while page <= pages:
            answer = self._ask("GET", f"/queues/{_quoted(self._virtual_host)}?page={page}&page_size={PAGE}")
            yield from (_info(each) for each in answer["items"])
            page, pages = page + 1, answer["page_count"]

    def describe(self, name: str) -> QueueInfo:
        path = f"/queues/{_quoted(self._virtual_host)}/{_quoted(name)}"
        found = self._ask("GET", path, queue=name)
        bindings = self._ask("GET", f"{path}/bindings", queue=name)
        return _info(found, tuple(_binding(each) for each in bindings if each["source"]))

    def messages(self, name: str, *, body_bytes_max: int = -1, with_gone: bool = False) -> Iterator[QueuedMessage]:
        """The next messages, at most ``PEEKED_MAX``: see ``has_shown_all``. RabbitMQ takes them and puts them back."""
        asked = {"count": PEEKED_MAX, "ackmode": "ack_requeue_true", "encoding": "auto"}
        if body_bytes_max >= 0:
            asked["truncate"] = max(1, body_bytes_max)
        answer = self._ask("POST", f"/queues/{_quoted(self._virtual_host)}/{_quoted(name)}/get", asked, queue=name)
        yield from (_peeked(number, each) for number, each in enumerate(answer))
        self.has_shown_all = len(answer) < PEEKED_MAX

    def purge(self, name: str) -> int:
        """Everything that is ready is gone; how many there were just before."""
        count = self.describe(name).ready
        self._ask("DELETE", f"/queues/{_quoted(self._virtual_host)}/{_quoted(name)}/contents", queue=name)
        return count

    # ---- moving -----------------------------------------------------------------------------------------------------

    def move(
        self,
        name: str,
        fits: Callable[[QueuedMessage], bool],
        *,
        count: int | None = None,
        exchange: str = "",
        routing_key: str | None = None,
    ) -> Iterator[MoveResult]:
        """Move messages that fit, at most ``count``, to a queue (``routing_key`` without an exchange), or publish them
        to an exchange. What was done so far is yielded now and then."""
        if exchange == "" and routing_key == name:
            raise BadArgument(f"queue {name!r} cannot be moved into itself")

        def target(message: QueuedMessage) -> tuple[str, str] | None:
            return exchange, message.routing_key if routing_key is None else routing_key

        return self._take(name, fits, count, target)

    def redrive(
        self, name: str, fits: Callable[[QueuedMessage], bool], *, count: int | None = None
    ) -> Iterator[MoveResult]:
        """Bring dead letters back to the queues they came from."""

        def target(message: QueuedMessage) -> tuple[str, str] | None:
            origin = message.death.get("queue")
            return ("", origin) if isinstance(origin, str) and origin != name else None

        return self._take(name, fits, count, target)

    def drop(
        self, name: str, fits: Callable[[QueuedMessage], bool], *, count: int | None = None
    ) -> Iterator[MoveResult]:
        """Acknowledge messages that fit."""
        return self._take(name, fits, count, None)

    def _take(
        self, name: str, fits: Callable[[QueuedMessage], bool], count: int | None, target: Target | None
    ) -> Iterator[MoveResult]:
        """Fetch as many messages as there are now. What does not fit is given back when the channel closes."""
        self.describe(name)  # or one clear error
        done = MoveResult()
        with amqp_channel(self._amqp_url(), MOVES_FAILED) as channel:
            waiting = channel.queue_declare(name, passive=True).method.message_count
            channel.confirm_delivery()
            for _ in range(waiting):
                if count is not None and done.moved >= count:
                    break
                method, properties, body = channel.basic_get(name)
                if method is None:
                    break
                if fits(_fetched(method, properties, body)):
                    _settle(channel, method, properties, body, target, done)
                    if done.moved % MOVES_PER_STEP == 0:
                        yield done
        yield done

    def _amqp_url(self) -> str:
        """The management API knows where its node listens for AMQP."""
        listeners = self._ask("GET", "/overview")["listeners"]
        port = next((each["port"] for each in listeners if each["protocol"] == "amqp"), None)
        if port is None:
            raise HeadraceError(f"{self._host} has no plain AMQP listener, over which messages are moved")
        user = f"{_quoted(self._user)}:{_quoted(self._password)}"
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"amqp://{user}@{host}:{port}/{_quoted(self._virtual_host)}"

    def _ask(self, method: str, path: str, body: Any = None, *, queue: str | None = None) -> Any:
        login = base64.b64encode(f"{self._user}:{self._password}".encode()).decode()
        request = urllib.request.Request(
            self._base + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Basic {login}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                raw = answer.read(ANSWER_BYTES_MAX)
        except urllib.error.HTTPError as error:
            with error:  # which holds the connection open
                refusal = self._refusal(error, queue)
            raise KafkaError(_CODES.get(error.code, ErrorCode.UNKNOWN_SERVER_ERROR), refusal) from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise UsageError(
                f"{self._base} cannot be reached: {reason}", "is rabbitmq_management enabled, and the port right?"
            ) from None
        return json.loads(raw) if raw else None

    def _refusal(self, error: urllib.error.HTTPError, queue: str | None) -> str:
        if error.code == 401:
            return f"{self._base} does not let user {self._user!r} in"
        if error.code == 404 and queue is not None:
            return f"{self._base}: no queue {queue!r} in vhost {self._virtual_host!r}"
        if error.code == 404:
            return f"{self._base}: vhost {self._virtual_host} not found"
        text = error.read(2_000).decode(errors="replace")
        try:
            return f"{self._base}: RabbitMQ refuses: {json.loads(text)['reason']}"
        except (ValueError, KeyError, TypeError):
            return f"{self._base} answered {error.code}: {text[:500]}"


_CODES = {404: ErrorCode.RESOURCE_NOT_FOUND, 401: ErrorCode.CLUSTER_AUTHORIZATION_FAILED}


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def _without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"{head.partition('//')[0]}//…@{tail}" if at else url


def _info(found: dict[str, Any], bindings: tuple[BindingInfo, ...] = ()) -> QueueInfo:
    return QueueInfo(
        name=found["name"],
        is_durable=found["durable"],
        is_auto_delete=found["auto_delete"],
        is_exclusive=found.get("exclusive", False),
        arguments=found.get("arguments") or {},
        ready=found.get("messages_ready", 0),
        unacknowledged=found.get("messages_unacknowledged", 0),
        consumers=found.get("consumers", 0),
        bindings=bindings,
    )


def _binding(found: dict[str, Any]) -> BindingInfo:
    return BindingInfo(
        source=found["source"],
        destination=found["destination"],
        is_to_exchange=found["destination_type"] == "exchange",
        routing_key=found["routing_key"],
        arguments=found["arguments"],
    )


def _peeked(number: int, found: dict[str, Any]) -> QueuedMessage:
    payload = found["payload"]
    body = base64.b64decode(payload) if found["payload_encoding"] == "base64" else payload.encode()
    return QueuedMessage(
        offset=number,
        exchange=found["exchange"],
        routing_key=found["routing_key"],
        properties=found["properties"] or {},
        body=body,
        body_bytes=found["payload_bytes"],
    )


def _fetched(method: Any, properties: Any, body: bytes) -> QueuedMessage:
    return QueuedMessage(
        exchange=method.exchange,
        routing_key=method.routing_key,
        properties={"headers": properties.headers or {}},
        body=body,
        body_bytes=len(body),
    )


def _settle(channel: Any, method: Any, properties: Any, body: bytes, target: Target | None, done: MoveResult) -> None:
    """Publish a message that was fetched, and acknowledge it when that is confirmed."""
    from pika.exceptions import NackError, UnroutableError

    if target is not None:
        place = target(_fetched(method, properties, body))
        if place is None:
            done.unroutable += 1
            return
        try:
            channel.basic_publish(*place, body, properties, mandatory=True)
        except UnroutableError:
            done.unroutable += 1
            return
        except NackError:
            done.refused += 1
            return
    channel.basic_ack(method.delivery_tag)
    done.moved += 1
