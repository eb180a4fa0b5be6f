"""Regular expressions that clients send, for topics and for transactional ids.

RE2 never takes exponential time: at worst it takes a step of every instruction of the compiled pattern for every
character of the text. Compiling is bounded by the length of the pattern, the program by its size. RE2 would report a
pattern that it cannot read on stderr, among the lines of the operator's log and with the client's own line breaks in
it, so its reports are switched off.
"""

from __future__ import annotations

from typing import Any

import re2

from headrace.broker.limits import PATTERN_CHARS_MAX
from headrace.errors import ErrorCode, KafkaError

__all__ = ["MATCHED_CHARS_PER_UNIT", "compile_pattern"]

PROGRAM_BYTES_MAX = 256 << 10
"""Room for 4,096 instructions, so for every list of names within ``PATTERN_CHARS_MAX``. Some patterns take a step of
each instruction for each character of the text."""

MATCHED_CHARS_PER_UNIT = 20
"""Text that is matched in the time of a unit of ``slices``, with the slowest of these patterns."""


def compile_pattern(pattern: str, field: str) -> Any:
    """The compiled pattern. Raises KafkaError, which says in which field of the request it was."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{field} has {len(pattern)} characters, more than {PATTERN_CHARS_MAX}.",
        )
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PROGRAM_BYTES_MAX
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{field} `{pattern}` is not a valid regular expression: {_text(error)}.",
        ) from None


def _text(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
