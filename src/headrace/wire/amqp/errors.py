"""The reply codes of AMQP, and what each of them ends.

A *soft* error closes the channel on which it happened. A *hard* error closes the connection. Codes and the beginnings
of texts are RabbitMQ's: clients and people look for them.
"""

from __future__ import annotations

from enum import IntEnum

from headrace.errors import HeadraceError

__all__ = ["AmqpError", "ReplyCode"]


class ReplyCode(IntEnum):
    SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541

    @property
    def is_hard(self) -> bool:
        """Whether it ends the connection, and not only a channel."""
        return self in _HARD


_HARD = frozenset(
    {
        ReplyCode.CONNECTION_FORCED,
        ReplyCode.INVALID_PATH,
        ReplyCode.FRAME_ERROR,
        ReplyCode.SYNTAX_ERROR,
        ReplyCode.COMMAND_INVALID,
        ReplyCode.CHANNEL_ERROR,
        ReplyCode.UNEXPECTED_FRAME,
        ReplyCode.RESOURCE_ERROR,
        ReplyCode.NOT_ALLOWED,
        ReplyCode.NOT_IMPLEMENTED,
        ReplyCode.INTERNAL_ERROR,
    }
)


class AmqpError(HeadraceError):
    """What the peer did wrong, or what it may not have. ``method`` is the (class, method) that failed, or (0, 0)."""

    def __init__(self, code: ReplyCode, text: str, method: tuple[int, int] = (0, 0)) -> None:
        super().__init__(f"{code.name} - {text}")
        self.code = code
        self.text = f"{code.name} - {text}"
        self.method = method
