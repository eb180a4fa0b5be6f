"""One line per failure: what went wrong, and the command or setting that helps. What points at a place in a text has
that line too."""

from __future__ import annotations

import re

from headrace.client.connection import BrokerUnreachable
from headrace.errors import ErrorCode, HeadraceError, KafkaError, UsageError

__all__ = ["DAMAGED", "explain"]

DAMAGED = (
    "see the broker's log; if files are damaged, 'headrace log verify DATA' lists them, and with the broker stopped "
    "'headrace log repair DATA' saves what is whole"
)

HINTS: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "list what exists: headrace topic list",
    ErrorCode.UNKNOWN_TOPIC_ID: "list what exists: headrace topic list",
    ErrorCode.TOPIC_ALREADY_EXISTS: "look at it: headrace topic describe NAME; or pass --if-not-exists",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "names have 1 to 249 letters, digits, '.', '_' and '-'",
    ErrorCode.INVALID_PARTITIONS: "a new topic has 1 to 10000 partitions; an old one can only be given more",
    ErrorCode.INVALID_REPLICATION_FACTOR: "an embedded broker has one node: leave --replication-factor out",
    ErrorCode.INVALID_CONFIG: "see the names and values: headrace topic describe NAME --all",
    ErrorCode.GROUP_ID_NOT_FOUND: "list what exists: headrace group list",
    ErrorCode.NON_EMPTY_GROUP: "stop its consumers first: headrace group describe NAME --members shows them",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has members: stop its consumers first",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "stop the group's consumers first",
    ErrorCode.OFFSET_OUT_OF_RANGE: "start elsewhere: -o beginning or -o end",
    ErrorCode.MESSAGE_TOO_LARGE: "raise it: headrace topic alter NAME --config max.message.bytes=N",
    ErrorCode.INVALID_TIMESTAMP: "see message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic",
    ErrorCode.KAFKA_STORAGE_ERROR: DAMAGED,
    ErrorCode.LEADER_NOT_AVAILABLE: DAMAGED,
    ErrorCode.CORRUPT_MESSAGE: DAMAGED,
    ErrorCode.REQUEST_TIMED_OUT: "is the broker busy or stopped? try again; most commands take a longer --timeout",
    ErrorCode.UNSUPPORTED_VERSION: "this broker is too old for that; Apache Kafka 4 and headrace have it",
}


POINTING = re.compile(r"\n[^\n]*\n +\^$")
"""A line of a text and a mark under the place in it that is meant."""


def explain(error: HeadraceError | OSError) -> str:
    message, hint = _parts(error)
    pointed = POINTING.search(message)
    text = pointed[0] if pointed else ""
    line = " ".join(message.removesuffix(text).split()).rstrip(".")
    return (f"{line} ({hint})" if hint else line) + text


def _parts(error: HeadraceError | OSError) -> tuple[str, str]:
    if isinstance(error, UsageError):
        return error.message, error.hint
    if isinstance(error, BrokerUnreachable):
        return error.message, "start one: headrace up; or name another: --bootstrap HOST:PORT"
    if isinstance(error, KafkaError) and "collides with existing topic" in error.message:
        return error.message, "'.' and '_' count as the same: choose another name"
    if isinstance(error, KafkaError) and "no space for" in error.message:
        return error.message, ""  # the broker says what to do
    if isinstance(error, KafkaError):
        return error.message, HINTS.get(error.code, f"error code {int(error.code)}, {error.code.name}")
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror, ""
    return str(error), ""
