"""The elements of a long answer, encoded as they are found.

An answer may have far more elements than its request had (all offsets of a group, all partitions of a topic), and a
request may ask for the same thing again and again: Kafka answers some of those as often as it is asked. Here an element
is encoded once, in the step that found it, and what is repeated shares its bytes. So an answer costs what is different
in it, and its size is known at any time.

An answer that would grow beyond ``response.bytes.max`` is refused in parts: elements that do not fit any more are
answered with POLICY_VIOLATION. A quarter of the limit is kept for these refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from headrace.config import Settings
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.kafka.codec import EncodedElements, write_element

__all__ = ["AnswerTooLarge", "Elements"]


INNER_BYTES_MAX = 16 << 20
"""Of one array inside an element, which is copied when the element is encoded."""


class AnswerTooLarge(KafkaError):
    """What was asked for does not fit into an answer."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(
            ErrorCode.POLICY_VIOLATION,
            f"the answer would be larger than response.bytes.max={bytes_max}; ask for less at a time",
        )


class Elements:
    """One array of an answer: pass ``encoded`` in the place of its list of structs."""

    def __init__(self, message: type, version: int, settings: Settings) -> None:
        self.encoded = EncodedElements()
        self.size_bytes = 0
        self.full: AnswerTooLarge | None = None
        """Set once something did not fit: what is not added yet need not be looked for."""
        self._message = message
        self._version = version
        self._settings = settings
        self._answer_bytes_max = settings.integer("response.bytes.max")
        self._bytes_max = self._answer_bytes_max * 3 // 4
        self._known: dict[Hashable, bytes] = {}

    def encode(self, element: object) -> Any:
        """The bytes of a struct, which may stand in its place in an array."""
        self._count(getattr(element, "error_code", 0))
        return write_element(element, self._message, self._version)

    def _count(self, code: int) -> None:
        if code:
            errors = self.encoded.errors
            errors[code] = errors.get(code, 0) + 1

    def repeat(self, key: Hashable) -> bool:
        """Add the element that was added under ``key`` before; False if there is none, or no room for it."""
        raw = self._known.get(key)
        if raw is None or not self._fits(raw):
            return False
        self._add(raw)
        return True

    def add(self, element: object, refused: Callable[[AnswerTooLarge], object], key: Hashable = None) -> None:
        """Encode and add an element, or what ``refused`` makes of the error if the answer is full."""
        raw = self.encode(element)
        if self._fits(raw):
            self._add(raw)
            if key is not None:
                self._known[key] = raw
        else:
            assert self.full is not None
            self.refuse(refused(self.full))

    def refuse(self, element: object) -> None:
        """Add the small element that says that the answer is full."""
        self._add(self.encode(element))

    def add_small(self, element: object) -> None:
        """Encode and add an element, full or not: it takes a few bytes, and the request has as many elements."""
        self._add(self.encode(element))

    def require(self, element: object) -> None:
        """Encode and add an element; AnswerTooLarge if the answer is full: where only the whole can be refused."""
        raw = self.encode(element)
        if not self._fits(raw):
            assert self.full is not None
            raise self.full
        self._add(raw)

    def inner(self) -> Elements:
        """An array inside an element that is added later with ``add_outer``; it takes its room from this one."""
        inner = Elements(self._message, self._version, self._settings)
        inner.encoded.errors = self.encoded.errors
        inner._bytes_max = min(self._bytes_max - self.size_bytes, INNER_BYTES_MAX)
        return inner

    def add_outer(self, element: object) -> None:
        """Encode and add the element that holds an inner array, for which there was room."""
        self._add(self.encode(element))

    def _fits(self, raw: bytes) -> bool:
        if self.size_bytes + len(raw) > self._bytes_max:
            self.full = self.full or AnswerTooLarge(self._answer_bytes_max)
            return False
        return True

    def _add(self, raw: bytes) -> None:
        self.encoded.append(raw)
        self.size_bytes += len(raw)
