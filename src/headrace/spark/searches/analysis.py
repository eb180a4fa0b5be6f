"""What searches see of a column: words with their positions, or numbers.

**Text** is brought to Unicode's form NFKC and to lower case. A word is the longest run of letters, digits and marks
(Unicode's L, N and M); everything else separates words. Han and Hiragana characters are words by themselves, since
those scripts have no spaces. Both forms of the lower-case sigma are one letter. Nothing is stemmed, and no word is left
out. The words of a list of texts come one after the other, with a gap between elements that no phrase crosses.

An **exact** field has one word per value (or element of a list): the value as it is, with upper and
lower case.

**Numbers**, decimals, dates, times and booleans become integers: unscaled values, days, microseconds, 0 and 1. Floating
point numbers stay what they are, and NaN is like null: no condition on it is true.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import UsageError
from headrace.spark.state.bucket import Flags, Ints

__all__ = ["Field", "Kind", "Numbers", "Words", "fields_in", "numbers_of", "split_words", "words_of"]

Kind = Literal["text", "exact", "integer", "float", "decimal", "date", "time", "boolean"]
NUMERIC: tuple[Kind, ...] = ("integer", "float", "decimal", "date", "time", "boolean")
BETWEEN_WORDS = r"[^\p{L}\p{N}\p{M}]+"
SINGLE = r"([\p{Han}\p{Hiragana}])"
DECIMAL_DIGITS_MAX = 18
"""As many digits as fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column that searches may ask for."""

    name: str
    kind: Kind
    scale: int = 0
    """Of decimals: digits after the point."""
    single: bool = False
    """Of floating point numbers: 32 bits."""

    @property
    def is_numeric(self) -> bool:
        return self.kind in NUMERIC


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a column, in the order of rows and positions."""

    rows: Ints
    positions: Ints
    words: pa.Array


@dataclass(frozen=True, slots=True)
class Numbers:
    values: npt.NDArray[np.int64] | npt.NDArray[np.float64]
    valid: Flags


def fields_in(schema: pa.Schema, exact: Sequence[str] = (), only: Sequence[str] | None = None) -> dict[str, Field]:
    """The columns that can be searched, by name."""
    for name in [*exact, *(only or ())]:
        if name not in schema.names:
            raise UsageError(f"there is no column {name!r} to search", f"the columns are {', '.join(schema.names)}")
    found = {}
    for each in schema:
        field = _field(each, each.name in exact)
        if field is not None and (only is None or each.name in only):
            found[each.name] = field
        elif (only is not None and each.name in only) or each.name in exact:
            raise UsageError(
                f"{each.name!r} of type {each.type} cannot be searched {'exactly ' * (each.name in exact)}".rstrip(),
                "texts, lists of texts, numbers, decimals of up to 18 digits, dates, times and booleans can; "
                "exact= is for texts",
            )
    return found


def _field(column: pa.Field, exact: bool) -> Field | None:
    kind, types = column.type, pa.types
    element = kind.value_type if types.is_list(kind) or types.is_large_list(kind) else kind
    if types.is_string(element) or types.is_large_string(element):
        return Field(column.name, "exact" if exact else "text")
    if exact:
        return None
    if types.is_float32(kind):
        return Field(column.name, "float", single=True)
    if types.is_decimal(kind):
        return Field(column.name, "decimal", kind.scale) if kind.precision <= DECIMAL_DIGITS_MAX else None
    named: list[tuple[bool, Kind]] = [
        (types.is_signed_integer(kind), "integer"),
        (types.is_floating(kind), "float"),
        (types.is_timestamp(kind), "time"),
        (types.is_date32(kind), "date"),
        (types.is_boolean(kind), "boolean"),
    ]
    return next((Field(column.name, name) for matches, name in named if matches), None)


# ---- words ---------------------------------------------------------------------------------------------------------


def split_words(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The words of each of these texts, as those of columns are found."""
    given = list(dict.fromkeys(texts))
    lists = _split(pa.array(given, pa.string())).to_pylist() if given else []
    return {text: tuple(word for word in words if word) for text, words in zip(given, lists, strict=True)}


def words_of(column: pa.Array, kind: Kind) -> Words:
    """The words of a column of texts or of lists of texts."""
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        parents = np.asarray(pc.list_parent_indices(column), np.int64)
        return _in_lists(parents, _words(column.flatten(), kind))
    return _words(column, kind)


def _words(texts: pa.Array, kind: Kind) -> Words:
    if kind == "exact":
        valid = np.flatnonzero(np.asarray(texts.is_valid()))
        return Words(valid, np.zeros(len(valid), np.int64), texts.drop_null().cast(pa.string()))
    lists = _split(texts.cast(pa.string()))
    rows, words = np.asarray(pc.list_parent_indices(lists), np.int64), lists.flatten()
    starts = np.r_[True, rows[1:] != rows[:-1]] if len(rows) else np.zeros(0, np.bool_)
    numbers = np.arange(len(rows))
    positions = numbers - np.maximum.accumulate(np.where(starts, numbers, 0)) if len(rows) else numbers
    there = np.asarray(pc.not_equal(words, ""))
    return Words(rows[there], positions[there], words if there.all() else words.filter(pa.array(there)))


def _split(texts: pa.Array) -> pa.ListArray:
    """Lists of words; an empty text is a list with an empty word."""
    plain = pc.all(pc.string_is_ascii(texts), min_count=0).as_py()
    if not plain:
        texts = pc.replace_substring_regex(pc.utf8_normalize(texts, form="NFKC"), SINGLE, r" \1 ")
    lowered = pc.utf8_lower(texts)
    if not plain:  # upper case has one sigma, lower case a second one at the end of a word
        lowered = pc.replace_substring(lowered, "ς", "σ")
    spaced = pc.replace_substring_regex(lowered, BETWEEN_WORDS, " ")
    return pc.split_pattern(pc.utf8_trim(spaced, " "), " ")


def _in_lists(parents: Ints, words: Words) -> Words:
    """Words of elements as words of their lists. Positions go on, with one left out after each element."""
    rows = parents[words.rows]
    if not len(rows):
        return Words(rows, words.positions, words.words)
    begins = np.r_[True, words.rows[1:] != words.rows[:-1]]
    gaps = np.cumsum(begins)
    first = np.r_[True, rows[1:] != rows[:-1]]
    numbers = np.arange(len(rows)) + gaps
    positions = numbers - np.maximum.accumulate(np.where(first, numbers, 0))
    return Words(rows, positions, words.words)


# ---- numbers -------------------------------------------------------------------------------------------------------


def numbers_of(column: pa.Array, field: Field) -> Numbers:
    valid = np.asarray(column.is_valid())
    if field.kind == "float":
        values = np.asarray(column.cast(pa.float64()).fill_null(np.nan), np.float64)
        return Numbers(values, ~np.isnan(values))
    if field.kind == "decimal":
        return Numbers(_unscaled(column), valid)
    if field.kind == "time":
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    if field.kind == "date":
        column = column.cast(pa.int32())
    return Numbers(np.asarray(column.cast(pa.int64()).fill_null(0), np.int64), valid)


def _unscaled(column: pa.Array) -> Ints:
    """Values of decimals without their point: the lower half of 128 bits has them all."""
    wide = column.cast(pa.decimal128(column.type.precision, column.type.scale))
    halves = np.frombuffer(wide.buffers()[1], np.int64) if len(wide) else np.zeros(0, np.int64)
    low: Ints = halves[2 * wide.offset : 2 * (wide.offset + len(wide)) : 2]
    return low
