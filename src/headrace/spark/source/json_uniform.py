"""JSON values of one shape become columns without a parser: the same names in the same order, and flat texts.

What one producer writes differs from record to record in its values only. So the first value is parsed, by hand, into
the texts between its values (literals) and the places of the values (slots)::

    {"id": 17, "customer": "ann", "item": {"n": 2}}
    ╰─────╯╰╯╰─────────────╯╰─╯╰──────────────╯╰╯╰╯
    literal slot literal    slot literal     slot literal

A guess, then: all values have these literals. It is checked, for all of them at once, from the first byte of every
value to the last. Each literal must stand where the slot before it ends, byte for byte. A slot between quotation marks
ends at the next one; it is a string if it has no backslash and no control character and is UTF-8. Any other ends at the
byte with which the next literal begins (a comma, a space, a brace), and must be a number, ``true``, ``false`` or
``null``, in the forms that are usual. Then the value is JSON, and a parser would have read the same from it.

Values are read where they lie among the other bytes of their records, in words of eight bytes: the words of a literal
come with the first word of the slot after it, which has most numbers whole and most ends.

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

from headrace.spark.source.pieces import Pieces, binary_column, windows
from headrace.spark.source.short_numbers import short_numbers

__all__ = ["read_uniform"]

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Path = tuple[str, ...]

_TEXT = re.compile(rb'"([^"\\\x00-\x1f]*)"')
_BARE = re.compile(rb"-?[0-9.]+|true|false|null")
_SPACE = re.compile(rb"[ \t\r\n]*")
_SPACES, _QUOTE, _BACKSLASH, _MINUS, _POINT, _SLASH, _ZERO, _NINE = b' "\\-./09'
_WORD_BYTES = 8
_LITERAL_BYTES_MAX = 48
"""Of a literal that is fetched with the word after it; longer ones are compared in several steps."""
_STEP_WORDS, _STEPS_MAX = 4, 3
"""The end of a slot is looked for in so many words at a time, and for long texts after so many steps in another way."""
_ONE = np.uint64(1)
_ONES, _HIGHS = (np.uint64(int.from_bytes(bytes([byte]) * _WORD_BYTES, "little")) for byte in (1, 0x80))
_TRUE, _FALSE, _NULL = (int.from_bytes(word, "little") for word in (b"true", b"false", b"null"))


class _Unusual(Exception):
    """The parser has to read these values."""


@dataclass(frozen=True, slots=True)
class _Slot:
    start: int
    end: int
    quoted: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a slot lies in each row, and the eight bytes from its start on, whatever follows it."""

    starts: Ints
    sizes: Ints
    words: Words


def read_uniform(values: Pieces, fields: Sequence[pa.Field]) -> list[pa.Array] | None:
    """The columns of objects of one shape, in the types that are asked for; None: they are not, or it is not certain.

    There is at least one value, and none is null.
    """
    try:
        start, size = int(values.starts[0]), int(values.sizes[0])
        shape = _Shape(values.data[start : start + size])
        rows = _Rows(values, shape)
        made = [_column(each.type, (each.name,), shape, rows) for each in fields]
        for path in shape.slots.keys() - rows.read:
            rows.check(path, shape.slots[path])
    except (_Unusual, ValueError, IndexError, RecursionError):  # ArrowInvalid and UnicodeDecodeError are ValueErrors
        return None
    return made


class _Shape:
    """The literals and slots of one value."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self.slots: dict[Path, _Slot] = {}
        self.objects: set[Path] = set()
        if self._space(self._object(self._space(0), ())) != len(text):
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

    def __init__(self, values: Pieces, shape: _Shape) -> None:
        self._data = values.data
        self._raw = np.frombuffer(values.data, np.uint8)
        self.count = len(values)
        self.read: set[Path] = set()
        self._places: dict[Path, _Place] = {}
        self._quotes: Ints | None = None
        at = values.starts
        for index, (path, slot) in enumerate(shape.slots.items()):
            literal, following = shape.literals[index : index + 2]
            words = self._words_behind(at, literal)
            start = at + len(literal)
            self._places[path] = _Place(start, self._sizes(start, words, slot, following[0]), words)
            at = start + self._places[path].sizes
        self._words_behind(at, shape.literals[-1])
        if (at + len(shape.literals[-1]) != values.starts + values.sizes).any():
            raise _Unusual

    def _words_behind(self, at: Ints, literal: bytes) -> Words:
        """The eight bytes after a literal, which must stand there in every row."""
        while len(literal) > _LITERAL_BYTES_MAX:
            self._words_behind(at, literal[:_LITERAL_BYTES_MAX])
            at, literal = at + _LITERAL_BYTES_MAX, literal[_LITERAL_BYTES_MAX:]
        whole, rest = divmod(len(literal), _WORD_BYTES)
        window = windows(self._data, at, whole + 1 + (rest > 0))
        for index in range(whole):
            part = literal[index * _WORD_BYTES :][:_WORD_BYTES]
            if (window[:, index] != int.from_bytes(part, "little")).any():
                raise _Unusual
        if not rest:
            return np.ascontiguousarray(window[:, whole])
        if (_first_bytes(window[:, whole], rest) != int.from_bytes(literal[-rest:], "little")).any():
            raise _Unusual
        behind: Words = window[:, whole + 1] << np.uint64(8 * (_WORD_BYTES - rest))
        behind |= window[:, whole] >> np.uint64(8 * rest)
        return behind

    # ---- ends of slots ----------------------------------------------------------------------------------------------

    def _sizes(self, start: Ints, words: Words, slot: _Slot, mark: int) -> Ints:
        """Up to the byte with which the next literal begins."""
        size = slot.end - slot.start
        if slot.quoted and size >= _WORD_BYTES and (self._raw.take(start + size, mode="clip") == mark).all():
            return np.full(self.count, size)  # times, ids; that there is no mark inside is seen when they are copied
        sizes = _bytes_before(words, mark)
        more = np.flatnonzero(sizes == _WORD_BYTES)
        steps = _STEPS_MAX if size > _STEPS_MAX * _STEP_WORDS * _WORD_BYTES else 0
        while more.size:
            at = start[more] + sizes[more]
            if steps == _STEPS_MAX:
                sizes[more] = self._next_quotes(at, mark) - start[more]
                break
            found = np.zeros(len(more), np.int64)
            for each in reversed(_bytes_before(windows(self._data, at, _STEP_WORDS), mark).T):
                found = np.where(each == _WORD_BYTES, found + _WORD_BYTES, each)
            sizes[more] += found
            more = more[found == _STEP_WORDS * _WORD_BYTES]
            steps += 1
        if not slot.quoted and not sizes.all():
            raise _Unusual
        return sizes

    def _next_quotes(self, at: Ints, mark: int) -> Ints:
        """For long strings: where the next quotation marks are, among all that there are."""
        if mark != _QUOTE:
            raise _Unusual
        if self._quotes is None:
            self._quotes = np.flatnonzero(self._raw == _QUOTE)
        return self._quotes[np.searchsorted(self._quotes, at)]

    # ---- slots ------------------------------------------------------------------------------------------------------

    def texts(self, path: Path) -> pa.StringArray:
        """A quoted slot."""
        self.read.add(path)
        place = self._places[path]
        column = binary_column(self._data, place.starts, place.sizes)
        offsets, held = column.buffers()[1:]
        inside = np.frombuffer(held, np.uint8, int(np.frombuffer(offsets, np.int32, self.count + 1)[-1]))
        if len(inside) and (inside.min() < _SPACES or (inside == _BACKSLASH).any() or (inside == _QUOTE).any()):
            raise _Unusual
        if len(inside) and inside.max() >= 0x80:
            return column.cast(pa.string())  # which checks that each is UTF-8
        return _as_texts(column)

    def numbers(self, path: Path, kind: pa.DataType) -> pa.Array:
        self.read.add(path)
        place = self._places[path]
        short = short_numbers(place.words, place.sizes, kind)
        if short is not None:
            return short
        empty = self._is_null(place)
        sizes = place.sizes if empty is None else np.where(empty, -1, place.sizes)
        column = binary_column(self._data, place.starts, sizes)
        _check_numbers(column)
        return _as_texts(column).cast(kind)

    def booleans(self, path: Path) -> pa.BooleanArray:
        self.read.add(path)
        place = self._places[path]
        true = (_first_bytes(place.words, 4) == _TRUE) & (place.sizes == 4)
        known = true | (_first_bytes(place.words, 5) == _FALSE) & (place.sizes == 5)
        if known.all():
            return pa.array(true)
        empty = self._is_null(place)
        if empty is None or not (known | empty).all():
            raise _Unusual
        return pa.array(true, mask=empty)

    def is_all_null(self, path: Path) -> bool:
        self.read.add(path)
        empty = self._is_null(self._places[path])
        return empty is not None and bool(empty.all())

    def check(self, path: Path, slot: _Slot) -> None:
        """A slot that nobody asks for: what stands there must be JSON all the same."""
        if slot.quoted:
            self.texts(path)
        elif ((self._places[path].words & np.uint64(0xFF)) <= _NINE).any():
            self.numbers(path, pa.float64())
        else:
            self.booleans(path)

    def _is_null(self, place: _Place) -> npt.NDArray[np.bool_] | None:
        """Which are ``null``; None when no one is."""
        found = (_first_bytes(place.words, 4) == _NULL) & (place.sizes == 4)
        return found if found.any() else None


def _first_bytes(words: Words, count: int) -> Words:
    return words & np.uint64((1 << 8 * count) - 1)


def _bytes_before(words: Words, mark: int) -> Ints:
    """How many bytes of each word are in front of the first one that is ``mark``; eight where there is none."""
    others = words ^ np.uint64(int.from_bytes(bytes([mark]) * _WORD_BYTES, "little"))
    found = (others - _ONES) & ~others & _HIGHS  # its lowest bit is the highest of the byte
    return np.bitwise_count((found & -found) - _ONE).astype(np.int64) >> 3


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
