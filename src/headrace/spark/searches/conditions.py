"""All conditions and trees of all searches, as arrays that grow: what a batch of events is tested against.

Equal conditions are stored once. A *term* is a word or a prefix of a field; both are found in an event by its words.
A tree is a number: a condition (2 · its number, plus 1 where it is negated), or a branch (−1 − its number) whose parts
are such numbers again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.spark.searches.analysis import Field
from headrace.spark.searches.compiling import Leaf, Test, Tree

__all__ = ["EXISTS", "PHRASE", "RANGE", "TERM", "Conditions", "GrowingArray", "Vocabulary"]

TERM, PHRASE, RANGE, EXISTS = range(4)
FIRST_CAPACITY = 64


class GrowingArray:
    """An array at whose end values are added."""

    def __init__(self, kind: npt.DTypeLike = np.int64) -> None:
        self._data = np.zeros(FIRST_CAPACITY, kind)
        self.count = 0

    def extend(self, values: Sequence[Any]) -> int:
        """The place of the first of them."""
        first, end = self.count, self.count + len(values)
        if end > len(self._data):
            grown = np.zeros(max(end, 2 * len(self._data)), self._data.dtype)
            grown[:first] = self._data[:first]
            self._data = grown
        self._data[first:end] = values
        self.count = end
        return first

    @property
    def array(self) -> npt.NDArray[Any]:
        return self._data[: self.count]


class Vocabulary:
    """The terms of one field, by their text."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        self.prefixes: dict[str, int] = {}
        self.lengths: list[int] = []
        """How long prefixes are: each length once."""

    def prefixes_of(self, word: str) -> list[int]:
        found = [self.prefixes.get(word[:length]) for length in self.lengths if length <= len(word)]
        return [each for each in found if each is not None]


class Conditions:
    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.fields = dict(fields)
        self.numbers = {name: number for number, name in enumerate(fields)}
        self.vocabularies: dict[str, Vocabulary] = {}
        self.terms = 0
        self.leaves: dict[Leaf, int] = {}
        self.kinds = GrowingArray(np.int8)
        self.values = GrowingArray()
        """By condition: its term, phrase, range, or the number of its field."""
        self.phrase_starts, self.phrase_lengths, self.phrase_terms = GrowingArray(), GrowingArray(), GrowingArray()
        self.range_fields = GrowingArray()
        self.range_integers: tuple[GrowingArray, GrowingArray] = (GrowingArray(), GrowingArray())
        self.range_floats: tuple[GrowingArray, GrowingArray] = (GrowingArray(np.float64), GrowingArray(np.float64))
        self.is_and = GrowingArray(np.bool_)
        self.part_starts, self.part_counts, self.parts = GrowingArray(), GrowingArray(), GrowingArray()

    # ---- adding ----------------------------------------------------------------------------------------------------

    def add(self, tree: Tree) -> int:
        """The number of the tree."""
        if isinstance(tree, Test):
            return 2 * self.leaf(tree.leaf) + tree.negated
        parts = [self.add(each) for each in tree.parts]
        self.part_starts.extend([self.parts.extend(parts)])
        self.part_counts.extend([len(parts)])
        return -1 - self.is_and.extend([tree.how == "and"])

    def leaf(self, leaf: Leaf) -> int:
        known = self.leaves.get(leaf)
        if known is None:
            kind, value = self._stored(leaf)
            self.values.extend([value])
            known = self.leaves[leaf] = self.kinds.extend([kind])
        return known

    def _stored(self, leaf: Leaf) -> tuple[int, int]:
        if leaf.kind in ("word", "prefix"):
            return TERM, self.term(leaf)
        if leaf.kind == "phrase":
            terms = [self.term(Leaf("word", leaf.field, each)) for each in leaf.value]
            self.phrase_starts.extend([self.phrase_terms.extend(terms)])
            return PHRASE, self.phrase_lengths.extend([len(terms)])
        if leaf.kind == "range":
            is_float = self.fields[leaf.field].kind == "float"
            for stored, used in ((self.range_floats, is_float), (self.range_integers, not is_float)):
                for ends, value in zip(stored, leaf.value, strict=True):
                    ends.extend([value if used else 0])
            return RANGE, self.range_fields.extend([self.numbers[leaf.field]])
        return EXISTS, self.numbers[leaf.field]

    def term(self, leaf: Leaf) -> int:
        vocabulary = self.vocabularies.setdefault(leaf.field, Vocabulary())
        known = vocabulary.words if leaf.kind == "word" else vocabulary.prefixes
        if leaf.value not in known:
            known[leaf.value] = self.terms
            self.terms += 1
            if leaf.kind == "prefix" and len(leaf.value) not in vocabulary.lengths:
                vocabulary.lengths.append(len(leaf.value))
        return known[leaf.value]
