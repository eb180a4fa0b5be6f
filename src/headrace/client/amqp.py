"""Connections to AMQP brokers by pika: opened, closed, and what goes wrong with them in one line.

Whether trying again can help: a broker that is away comes back, and one that takes no message now may take it later. A
refused login, a queue or an exchange that does not exist and a message that is too large stay as they are.
"""

from __future__ import annotations

import importlib.util
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from headrace.errors import BadArgument, HeadraceError, UsageError

__all__ = ["EXAMPLE", "AmqpAway", "amqp_channel", "need_pika"]

EXAMPLE: Final = "amqp://guest:guest@host:5672/%2F"
LASTING: Final = frozenset({403, 404, 406, 530, 540})
"""Access refused, not found, precondition failed, not allowed, not implemented: the user has to change something."""
_CLOSED = re.compile(r"ConnectionClosedByBroker: \((\d+)\) (.*)", re.DOTALL)
"""How pika tells why the broker has ended a handshake."""


class AmqpAway(HeadraceError):
    """The AMQP broker cannot be reached, or takes no messages at the moment."""

    retriable = True


def need_pika() -> None:
    """Raises UsageError when pika is missing."""
    if importlib.util.find_spec("pika") is None:
        raise UsageError("pika is missing, which speaks AMQP", "pip install 'headrace[rabbitmq]'")


@contextmanager
def amqp_channel(url: str, failed: str) -> Iterator[Any]:
    """A channel of a connection that ends with the block. Errors begin with ``failed``."""
    need_pika()
    import pika
    from pika.exceptions import AMQPError

    if not url.startswith(("amqp://", "amqps://")):
        raise BadArgument(f"{failed}: the address of an AMQP broker begins with amqp:// or amqps://", EXAMPLE)
    try:
        parameters = pika.URLParameters(url)
    except (ValueError, TypeError) as error:
        raise BadArgument(f"{failed}: the address of the AMQP broker cannot be read: {error}") from None
    address = f"{parameters.host}:{parameters.port}"
    try:
        connection = pika.BlockingConnection(parameters)
    except (AMQPError, OSError) as error:
        raise _error(f"{failed}: {address}", error) from error
    try:
        try:
            yield connection.channel()
        finally:
            if connection.is_open:
                connection.close()
    except AMQPError as error:
        raise _error(f"{failed}: {address}", error) from error


def _error(where: str, error: Exception) -> HeadraceError:
    from pika.exceptions import ChannelClosed, ConnectionClosed, IncompatibleProtocolError, NackError

    if isinstance(error, ChannelClosed | ConnectionClosed):
        return _closed(where, error.reply_code, error.reply_text)
    if isinstance(error, NackError):
        return AmqpAway(f"{where} does not take a message now: a queue of it is full, or cannot be written")
    if isinstance(error, IncompatibleProtocolError):
        return AmqpAway(f"{where} ended the connection at once: does it speak AMQP 0-9-1?")
    reason = _innermost(error)
    closed = _CLOSED.search(str(reason))
    if closed is not None:
        return _closed(where, int(closed[1]), closed[2].strip("'\""))
    if isinstance(reason, socket.gaierror):
        return AmqpAway(f"{where} is no address that is known: {reason.strerror}")
    if isinstance(reason, OSError):
        return AmqpAway(f"{where} cannot be reached: {reason.strerror or reason}")
    return AmqpAway(f"{where} has ended the connection: {str(reason) or type(reason).__name__}")


def _closed(where: str, code: int, text: str) -> HeadraceError:
    kind = UsageError if code in LASTING else AmqpAway
    return kind(f"{where} answers: {text} ({code})")


def _innermost(error: BaseException) -> BaseException:
    """pika wraps the error of the socket in two of its own errors."""
    while True:
        inner = getattr(error, "exception", None) or (error.args[0] if error.args else None)
        if not isinstance(inner, BaseException):
            return error
        error = inner
