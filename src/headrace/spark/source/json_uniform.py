"""JSON values of one shape become columns without a parser: the same names in the same order, and flat texts.

What one producer writes differs from record to record in its values only. So the first value is parsed, by hand, into
the texts between its values (literals) and the places of the values (slots)::

    {"id": 17, "customer": "ann", "item": {"n": 2}}
    ╰─────╯╰╯╰─────────────╯╰─╯╰──────────────╯╰╯╰╯
    literal slot literal    slot literal     slot literal

A guess, then: all values have these literals. It is checked, for all of them at once. Every quotation mark stands in a
literal, so where the quotation marks are says where the literals would be, and each must be there byte for byte, from
the first byte of every value to the last. Between two literals lies a slot. One between quotation marks is a string,
since there is no backslash and no control character anywhere. Any other must be a number, ``true``, ``false`` or
``null``, in the forms that are usual. Then the value is JSON, and a parser would have read the same from it.

Where anything differs or is unusual, a backslash, an exponent, a list, a second shape, there is no result, and the
parser reads the values (``json_columns``). Nothing is decided here about a value being bad.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.spark.source.decode import binary_column, words_of
from headrace.spark.source.short_numbers import short_numbers

__all__ = ["read_uniform"]

Ints = npt.NDArray[np.int64]
Path = tuple[str, ...]

PADDING = bytes(64)
"""Literals and strings are compared and copied in words, which may reach past the last value."""
_TEXT = re.compile(rb'"([^"\\]*)"')
_BARE = re.compile(rb"-?[0-9.]+|true|false|null")
_SPACE = re.compile(rb" *")
_QUOTE, _BACKSLASH, _MINUS, _POINT, _SLASH, _ZERO, _NINE = b'"\\-./09'
_WORD_BYTES = 8
_TRUE, _FALSE, _NULL = (int.from_bytes(word, "little") for word in (b"true", b"false", b"null"))


class _Unusual(Exception):
    """The parser has to read these values."""


@dataclass(frozen=True, slots=True)
class _Slot:
    start: int
    end: int
    quoted: bool


def read_uniform(texts: pa.StringArray, fields: Sequence[pa.Field]) -> list[pa.Array] | None:
    """The columns of objects of one shape, in the types that are asked for; None: they are not, or it cannot be told.

    ``texts`` are valid UTF-8 without nulls, each with a brace at both ends.
    """
    try:
        offsets = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, texts.offset * 4).astype(np.int64)
        held = memoryview(texts.buffers()[2])[offsets[0] : offsets[-1]]
        shape = _Shape(bytes(held[: offsets[1] - offsets[0]]))
        rows = _Rows(b"".join([held, PADDING]), offsets - offsets[0], shape)
        made = [_column(each.type, (each.name,), shape, rows) for each in fields]
        for path in shape.slots.keys() - rows.read:
            rows.check(path, shape.slots[path])
    except (_Unusual, pa.ArrowInvalid, IndexError, RecursionError):
        return None
    return made


class _Shape:
    """The literals and slots of one value."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self.slots: dict[Path, _Slot] = {}
        self.objects: set[Path] = set()
        if self._object(0, ()) != len(text):
            raise _Unusual
        edges = [0, *(edge for slot in self.slots.values() for edge in (slot.start, slot.end)), len(text)]
        self.literals = [text[edges[at] : edges[at + 1]] for at in range(0, len(edges), 2)]

    def _object(self, at: int, path: Path) -> int:
        """Read the object that begins here; where it ends."""
        self.objects.add(path)
        at = self._after(b"{", at)
        if self._text[at : at + 1] == b"}":
            return at + 1
        while True:
            name = _TEXT.match(self._text, at)
            inner = (*path, name[1].decode()) if name else path
            if name is None or inner in self.slots or inner in self.objects:
                raise _Unusual
            at = self._space(self._value(self._after(b":", self._space(name.end())), inner))
            if self._text[at : at + 1] == b"}":
                return at + 1
            at = self._after(b",", at)

    def _value(self, at: int, path: Path) -> int:
        if self._text[at : at + 1] == b"{":
            return self._object(at, path)
        quoted = _TEXT.match(self._text, at)
        found = quoted or _BARE.match(self._text, at)
        if found is None:
            raise _Unusual
        start, end = found.span(1) if quoted else found.span()
        self.slots[path] = _Slot(start, end, quoted is not None)
        return found.end()

    def _after(self, mark: bytes, at: int) -> int:
        if self._text[at : at + 1] != mark:
            raise _Unusual
        return self._space(at + 1)

    def _space(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        assert found is not None, "no space is a match too"
        return found.end()


class _Rows:
    """Values of one shape, and where their slots lie."""

    def __init__(self, data: bytes, bounds: Ints, shape: _Shape) -> None:
        self._data = data
        self._words = words_of(data).view(np.uint64)
        self.count = len(bounds) - 1
        self.read: set[Path] = set()
        literals = shape.literals
        starts = self._literal_starts(literals, bounds)
        for literal, start in zip(literals, starts, strict=True):
            self._check_literal(literal, start)
        self._slots: dict[Path, tuple[Ints, Ints]] = {}
        for index, path in enumerate(shape.slots):
            start = starts[index] + len(literals[index])
            size = starts[index + 1] - start
            if (size < (0 if shape.slots[path].quoted else 1)).any():
                raise _Unusual
            self._slots[path] = start, size

    def _literal_starts(self, literals: Sequence[bytes], bounds: Ints) -> list[Ints]:
        """Where each literal is if the guess is right: the first and last at the ends, the others by their quotes."""
        raw = np.frombuffer(self._data, np.uint8)[: bounds[-1]]
        if raw.min() < ord(" ") or (raw == _BACKSLASH).any():
            raise _Unusual
        quotes = np.flatnonzero(raw == _QUOTE)
        per_row = sum(each.count(b'"') for each in literals)
        if per_row == 0 or len(quotes) != per_row * self.count:
            raise _Unusual
        by_ordinal = quotes.reshape(self.count, per_row)
        starts = []
        ordinal = 0
        for index, literal in enumerate(literals):
            inside = literal.find(b'"')
            if inside >= 0:
                starts.append(by_ordinal[:, ordinal] - inside)
            elif index == len(literals) - 1:
                starts.append(bounds[1:] - len(literal))
            else:
                raise _Unusual
            ordinal += literal.count(b'"')
        if (starts[0] != bounds[:-1]).any() or (starts[-1] + len(literals[-1]) != bounds[1:]).any():
            raise _Unusual
        return starts

    def _check_literal(self, literal: bytes, start: Ints) -> None:
        for at in range(0, len(literal), _WORD_BYTES):
            part = literal[at : at + _WORD_BYTES]
            if (self._word(start + at, len(part)) != int.from_bytes(part, "little")).any():
                raise _Unusual

    def _word(self, start: Ints, size: int) -> npt.NDArray[np.uint64]:
        found = self._words[start]
        return found & np.uint64((1 << 8 * size) - 1) if size < _WORD_BYTES else found

    # ---- slots ------------------------------------------------------------------------------------------------------

    def texts(self, path: Path) -> pa.StringArray:
        """A quoted slot."""
        self.read.add(path)
        start, size = self._slots[path]
        return _as_texts(binary_column(self._data, start, size))

    def numbers(self, path: Path, kind: pa.DataType) -> pa.Array:
        self.read.add(path)
        start, size = self._slots[path]
        short = short_numbers(self._words, start, size, kind)
        if short is not None:
            return short
        empty = self._is_null(start, size)
        column = binary_column(self._data, start, size if empty is None else np.where(empty, -1, size))
        _check_numbers(column)
        return _as_texts(column).cast(kind)

    def booleans(self, path: Path) -> pa.BooleanArray:
        self.read.add(path)
        start, size = self._slots[path]
        true = (self._word(start, 4) == _TRUE) & (size == 4)
        false = (self._word(start, 5) == _FALSE) & (size == 5)
        known = true | false
        if known.all():
            return pa.array(true)
        empty = self._is_null(start, size)
        if empty is None or not (known | empty).all():
            raise _Unusual
        return pa.array(true, mask=empty)

    def is_all_null(self, path: Path) -> bool:
        self.read.add(path)
        start, size = self._slots[path]
        empty = self._is_null(start, size)
        return empty is not None and bool(empty.all())

    def check(self, path: Path, slot: _Slot) -> None:
        """A slot that nobody asks for: what stands there must be JSON all the same."""
        first = np.frombuffer(self._data, np.uint8)[self._slots[path][0]]
        if slot.quoted:
            return
        if (first <= _NINE).any():
            self.numbers(path, pa.float64())
        else:
            self.booleans(path)

    def _is_null(self, start: Ints, size: Ints) -> npt.NDArray[np.bool_] | None:
        """Which are ``null``; None when no one is."""
        found = (self._word(start, 4) == _NULL) & (size == 4)
        return found if found.any() else None


def _as_texts(column: pa.BinaryArray) -> pa.StringArray:
    """Pieces between two quotation marks of valid UTF-8 are valid UTF-8."""
    return pa.Array.from_buffers(pa.string(), len(column), column.buffers(), column.null_count)


def _check_numbers(column: pa.BinaryArray) -> None:
    """Digits, a minus before them, a point between them, no zero in front of another digit.

    The conversion, which knows where signs and points may stand, takes more forms than JSON has: those are found here.
    """
    present = column.drop_null() if column.null_count else column
    if len(present) == 0:
        return
    offsets = np.frombuffer(present.buffers()[1], np.int32, len(present) + 1)
    data = np.frombuffer(b"".join([memoryview(present.buffers()[2])[: offsets[-1]], b".."]), np.uint8)
    inside = data[:-2]
    if ((inside - np.uint8(_MINUS) > _NINE - _MINUS) | (inside == _SLASH)).any():
        raise _Unusual
    first = offsets[:-1] + (data[offsets[:-1]] == _MINUS)
    lead = data[first]
    zeros = np.flatnonzero(lead == _ZERO)
    follows = first[zeros] + 1
    zero_first = (follows < offsets[1:][zeros]) & (data[follows] != _POINT)
    if (lead < _ZERO).any() or zero_first.any() or (data[offsets[1:] - 1] == _POINT).any():
        raise _Unusual


# ---- columns -------------------------------------------------------------------------------------------------------


def _column(kind: pa.DataType, path: Path, shape: _Shape, rows: _Rows) -> pa.Array:
    """The column of a field, as Arrow's parser would give it."""
    slot = shape.slots.get(path)
    if path in shape.objects:
        return _struct(kind, path, shape, rows)
    if slot is None:
        return pa.nulls(rows.count, kind)
    if slot.quoted:
        if not pa.types.is_string(kind):
            raise _Unusual
        return rows.texts(path)
    if pa.types.is_signed_integer(kind) or kind in (pa.float64(), pa.float32()):
        return rows.numbers(path, kind)
    if pa.types.is_boolean(kind):
        return rows.booleans(path)
    if rows.is_all_null(path):
        return pa.nulls(rows.count, kind)
    raise _Unusual


def _struct(kind: pa.DataType, path: Path, shape: _Shape, rows: _Rows) -> pa.StructArray:
    if not pa.types.is_struct(kind):
        raise _Unusual
    inner = [_column(each.type, (*path, each.name), shape, rows) for each in kind]
    return pa.StructArray.from_arrays(inner, fields=list(kind))
