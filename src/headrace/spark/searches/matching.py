"""A batch of events in the form in which conditions are tested: which terms each row has, and the numbers of fields.

Words of a column are found once and counted as codes of the batch's distinct words; only those are looked up. What the
rows have is one sorted array of row · terms + term, so a million questions are one binary search over arrays. A phrase
starts wherever its first word stands, and the words after it are looked up at the places after that.
"""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa

from headrace.spark.searches.analysis import Numbers, Words, numbers_of, words_of
from headrace.spark.searches.conditions import EXISTS, PHRASE, RANGE, TERM, Conditions, Vocabulary
from headrace.spark.state.bucket import Flags, Ints

__all__ = ["EventBatch", "expanded"]


def expanded(starts: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """For each element of these stretches the number of its stretch, and its place."""
    owners = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    return owners, np.arange(len(owners)) + (starts - before)[owners]


class EventBatch:
    """The rows of a table, for conditions that are known now."""

    def __init__(self, events: pa.Table, conditions: Conditions) -> None:
        self.conditions = conditions
        self.count = events.num_rows
        self.terms = max(conditions.terms, 1)
        self.numbers: dict[str, Numbers] = {}
        self._valid: dict[str, Flags] = {}
        self._events = events
        rows, terms, positions = self._occurrences()
        keys = rows * self.terms + terms
        order = np.argsort(keys, kind="stable")  # positions of a row ascend already
        keys, positions = keys[order], positions[order]
        first = np.r_[True, keys[1:] != keys[:-1]] if len(keys) else np.zeros(0, np.bool_)
        self.has: Ints = keys[first]
        """Sorted, each once."""
        groups = np.cumsum(first) - 1
        self._span = int(positions.max()) + 2 if len(positions) else 1
        self._places: Ints = groups * self._span + positions
        self._group_starts: Ints = np.r_[np.flatnonzero(first), len(keys)].astype(np.int64)

    def hits(self) -> tuple[Ints, Ints]:
        """(row, term) for every term that a row has."""
        return self.has // self.terms, self.has % self.terms

    def _occurrences(self) -> tuple[Ints, Ints, Ints]:
        nothing = np.zeros(0, np.int64)
        found = [(nothing, nothing, nothing)]
        for name, vocabulary in self.conditions.vocabularies.items():
            words = words_of(self._column(name), self.conditions.fields[name].kind)
            found += _found(words, vocabulary)
        rows, terms, positions = (np.concatenate(each) for each in zip(*found, strict=True))
        return rows, terms, positions

    def _column(self, name: str) -> pa.Array:
        column = self._events.column(name)
        return (
            column.chunk(0)
            if column.num_chunks == 1
            else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
        )

    def numbers_in(self, name: str) -> Numbers:
        if name not in self.numbers:
            self.numbers[name] = numbers_of(self._column(name), self.conditions.fields[name])
        return self.numbers[name]

    # ---- questions -------------------------------------------------------------------------------------------------

    def truth(self, rows: Ints, trees: Ints) -> Flags:
        """Whether each of these rows fulfils the tree beside it."""
        found = np.zeros(len(rows), np.bool_)
        tests = np.flatnonzero(trees >= 0)
        found[tests] = self._leaf_truth(rows[tests], trees[tests] >> 1) ^ ((trees[tests] & 1) == 1)
        branches = np.flatnonzero(trees < 0)
        if len(branches):
            known = self.conditions
            numbers = -1 - trees[branches]
            counts = known.part_counts.array[numbers]
            owners, places = expanded(known.part_starts.array[numbers], counts)
            parts = self.truth(rows[branches][owners], known.parts.array[places])
            true = np.bincount(owners[parts], minlength=len(branches))
            found[branches] = np.where(known.is_and.array[numbers], true == counts, true > 0)
        return found

    def _leaf_truth(self, rows: Ints, leaves: Ints) -> Flags:
        found = np.zeros(len(rows), np.bool_)
        kinds, values = self.conditions.kinds.array[leaves], self.conditions.values.array[leaves]
        for kind, answer in (
            (TERM, self._has_term),
            (PHRASE, self._has_phrase),
            (RANGE, self._in_range),
            (EXISTS, self._exists),
        ):
            asked = np.flatnonzero(kinds == kind)
            if len(asked):
                found[asked] = answer(rows[asked], values[asked])
        return found

    def _group(self, rows: Ints, terms: Ints) -> Ints:
        """Where a row's term is in ``has``; -1 where it is not."""
        keys = rows * self.terms + terms
        if not len(self.has):
            return np.full(len(keys), -1, np.int64)
        at = np.minimum(np.searchsorted(self.has, keys), len(self.has) - 1)
        return np.where(self.has[at] == keys, at, -1)

    def _has_term(self, rows: Ints, terms: Ints) -> Flags:
        found: Flags = self._group(rows, terms) >= 0
        return found

    def _has_phrase(self, rows: Ints, phrases: Ints) -> Flags:
        known = self.conditions
        starts, lengths = known.phrase_starts.array[phrases], known.phrase_lengths.array[phrases]
        groups = self._group(rows, known.phrase_terms.array[starts])
        there = np.flatnonzero(groups >= 0)
        begins = self._group_starts[groups[there]]
        owners, places = expanded(begins, self._group_starts[groups[there] + 1] - begins)
        asked = there[owners]
        positions = self._places[places] % self._span
        found = np.zeros(len(rows), np.bool_)
        for number in itertools.count(1):
            ended = lengths[asked] == number
            found[asked[ended]] = True
            asked, positions = asked[~ended], positions[~ended]
            if not len(asked):
                return found
            groups = self._group(rows[asked], known.phrase_terms.array[starts[asked] + number])
            wanted = groups * self._span + positions + number
            at = np.minimum(np.searchsorted(self._places, wanted), len(self._places) - 1)
            goes_on = (groups >= 0) & (self._places[at] == wanted)
            asked, positions = asked[goes_on], positions[goes_on]
        raise AssertionError("unreachable")

    def _in_range(self, rows: Ints, ranges: Ints) -> Flags:
        known = self.conditions
        fields = known.range_fields.array[ranges]
        found = np.zeros(len(rows), np.bool_)
        for number, name in enumerate(known.fields):
            asked = np.flatnonzero(fields == number)
            if len(asked):
                numbers = self.numbers_in(name)
                low, high = known.range_floats if known.fields[name].kind == "float" else known.range_integers
                values, of = numbers.values[rows[asked]], ranges[asked]
                inside = (values >= low.array[of]) & (values <= high.array[of])
                found[asked] = inside & numbers.valid[rows[asked]]
        return found

    def _exists(self, rows: Ints, fields: Ints) -> Flags:
        found = np.zeros(len(rows), np.bool_)
        for number, name in enumerate(self.conditions.fields):
            asked = np.flatnonzero(fields == number)
            if len(asked):
                found[asked] = self._is_there(name)[rows[asked]]
        return found

    def _is_there(self, name: str) -> Flags:
        if name not in self._valid:
            is_float = self.conditions.fields[name].kind == "float"
            self._valid[name] = self.numbers_in(name).valid if is_float else np.asarray(self._column(name).is_valid())
        return self._valid[name]


def _found(words: Words, vocabulary: Vocabulary) -> list[tuple[Ints, Ints, Ints]]:
    """Rows, terms and positions of the words, and of the prefixes that they begin with."""
    encoded = words.words.dictionary_encode()
    codes = np.asarray(encoded.indices, np.int64)
    distinct = encoded.dictionary.to_pylist()
    get = vocabulary.words.get
    terms = np.fromiter((get(each, -1) for each in distinct), np.int64, len(distinct))[codes]
    known = np.flatnonzero(terms >= 0)
    found = [(words.rows[known], terms[known], words.positions[known])]
    if vocabulary.prefixes:
        lists = [vocabulary.prefixes_of(each) for each in distinct]
        counts = np.fromiter(map(len, lists), np.int64, len(lists))
        flat = np.fromiter(itertools.chain.from_iterable(lists), np.int64, int(counts.sum()))
        starts = np.cumsum(counts) - counts
        owners, places = expanded(starts[codes], counts[codes])
        found.append((words.rows[owners], flat[places], words.positions[owners]))
    return found
