"""Which messages a search looks for: a text or a pattern in keys, values or headers.

A batch is looked at as a whole first. A key, a value and a header lie in one piece in the (decompressed) bytes of their
batch, so what the batch does not have none of its records has, and most batches are never decoded. A pattern that looks
at its surroundings (``^``, ``$``, ``\\b``) cannot be asked that way: then every record is decoded.

Patterns are RE2's, which cannot be made to run forever.
"""

from __future__ import annotations

import re
from typing import Literal, cast

import re2

from headrace.console.limits import SEARCH_TEXT_MAX
from headrace.console.problems import BadRequest
from headrace.record import Record

__all__ = ["EVERYTHING", "Matcher", "Where"]

Where = Literal["any", "key", "value", "header"]

WHERES = ("any", "key", "value", "header")
SURROUNDINGS = re.compile(r"[\^$]|\\[AzZbB]")
PATTERN_BYTES_MAX = 8 << 20


class Matcher:
    """A question to records; an empty text matches all of them."""

    def __init__(self, text: str = "", *, where: str = "any", pattern: bool = False, ignore_case: bool = False) -> None:
        if len(text) > SEARCH_TEXT_MAX:
            raise BadRequest(f"a search may have {SEARCH_TEXT_MAX} characters")
        if where not in WHERES:
            raise BadRequest(f"{where!r} is none of {', '.join(WHERES)}")
        self.where = cast("Where", where)
        self.is_everything = not text
        self._needle = text.encode() if text and not pattern and not ignore_case else None
        self._pattern = _compile(text, pattern, ignore_case) if text and self._needle is None else None
        self._looks_around = pattern and SURROUNDINGS.search(text) is not None

    def may_be_in(self, data: bytes) -> bool:
        """Whether a batch with these bytes can have a record that matches."""
        if self.is_everything or self._looks_around:
            return True
        return self._found(data)

    def matches(self, record: Record) -> bool:
        if self.is_everything:
            return True
        if self.where in ("any", "value") and record.value is not None and self._found(record.value):
            return True
        if self.where in ("any", "key") and record.key is not None and self._found(record.key):
            return True
        return self.where in ("any", "header") and any(
            self._found(name.encode("utf-8", "surrogateescape")) or (value is not None and self._found(value))
            for name, value in record.headers
        )

    def _found(self, data: bytes) -> bool:
        if self._needle is not None:
            return self._needle in data
        assert self._pattern is not None, "what is not a needle is a pattern"
        return self._pattern.search(data) is not None


EVERYTHING = Matcher()


def _compile(text: str, pattern: bool, ignore_case: bool) -> re2._Regexp:
    options = re2.Options()
    options.case_sensitive = not ignore_case
    options.max_mem = PATTERN_BYTES_MAX
    options.log_errors = False
    source = text if pattern else re2.escape(text)
    try:
        return re2.compile(source.encode(), options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        shown = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise BadRequest(f"the pattern cannot be read: {shown}", "it is RE2's syntax") from None
