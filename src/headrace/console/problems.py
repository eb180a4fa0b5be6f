"""What a request of a browser can fail with, and what the browser is shown for it."""

from __future__ import annotations

from typing import Any

from headrace.client import AuthenticationFailed, BrokerUnreachable
from headrace.errors import ErrorCode, HeadraceError, KafkaError, UsageError

__all__ = ["BadRequest", "Busy", "ConsoleError", "Forbidden", "ReadOnly", "problem_of"]

HINTS: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "it may have been deleted; go back to the list",
    ErrorCode.LEADER_NOT_AVAILABLE: "the partition has no leader: see the broker's log",
    ErrorCode.TOPIC_ALREADY_EXISTS: "choose another name",
    ErrorCode.GROUP_ID_NOT_FOUND: "it may have been deleted; go back to the list",
    ErrorCode.RESOURCE_NOT_FOUND: "it may have been deleted; go back to the list",
    ErrorCode.NON_EMPTY_GROUP: "stop its members first",
}
NOT_FOUND = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.RESOURCE_NOT_FOUND,
    }
)


class ConsoleError(HeadraceError):
    """A request that is not answered, with the HTTP status that says so."""

    status = 400

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class BadRequest(ConsoleError):
    """A parameter that is missing or makes no sense."""


class Forbidden(ConsoleError):
    """Not from here: no token, another origin, a host name that is not ours."""

    status = 403


class ReadOnly(ConsoleError):
    """The console was started with --read-only."""

    status = 403

    def __init__(self) -> None:
        super().__init__("this console is read-only", "start it without --read-only to change anything")


class Busy(ConsoleError):
    """A limit of the console is reached."""

    status = 503

    def __init__(self, what: str, most: int) -> None:
        super().__init__(f"the console serves {most} {what} at a time", "close another tab and try again")


def problem_of(error: Exception) -> tuple[int, dict[str, Any]]:
    """The HTTP status, and what the page shows: what failed, what to do, and whether its subject does not exist."""
    status, problem = _described(error)
    return status, {**problem, "missing": status == 404}


def _described(error: Exception) -> tuple[int, dict[str, Any]]:
    if isinstance(error, ConsoleError):
        return error.status, {"error": error.message, "hint": error.hint}
    if isinstance(error, UsageError):
        return 400, {"error": error.message, "hint": error.hint}
    if isinstance(error, BrokerUnreachable):
        return 503, {"error": error.message, "hint": "is the broker running? The page goes on when it answers"}
    if isinstance(error, AuthenticationFailed):
        return 502, {"error": error.message, "hint": "check the settings that the console was started with"}
    if isinstance(error, KafkaError):
        status = 404 if error.code in NOT_FOUND else 503 if error.retriable else 409
        return status, {"error": error.message, "hint": HINTS.get(error.code, ""), "code": error.code.name}
    return 500, {"error": f"internal error: {type(error).__name__}: {error}", "hint": "please report it"}
