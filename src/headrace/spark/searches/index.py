"""All searches of a query in one process, and the way from an event to those that it matches.

**Candidates.** A search is placed under conditions of which at least one must be true for it to match: of an AND one
part is enough, the rarest; of an OR all parts are needed. How rare a condition is, the index learns from the events it
sees: how many rows had a term, and which values a field had lately. An event then looks only at the searches under its
words (``EventBatch``) and under the intervals that contain its numbers (``IntervalTree``). What has no such condition,
such as ``NOT city:berlin``, is looked at for every event: these are the *unindexed* searches, which are counted.

**Tests.** The candidates of all rows are pairs (row, search), tested together in arrays, a bounded number at a time.

Where a search is placed changes what is tested and never what matches. When many candidates turn out not to match and
the index has seen four times as many events as when it last placed all searches, it places them again.

The number of a search is its place in ``payload``. A search that is removed or replaced stays in the arrays as dead,
until more are dead than alive; then the owner begins a new index.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.spark.searches.analysis import Field
from headrace.spark.searches.compiling import Leaf, Test, Tree, compile_searches
from headrace.spark.searches.conditions import Conditions, GrowingArray
from headrace.spark.searches.intervals import IntervalTree
from headrace.spark.searches.matching import EventBatch, expanded
from headrace.spark.state.bucket import Ints, Key

__all__ = ["Matches", "SearchIndex"]

ROWS_MAX = 1 << 14
"""Events that are looked at together."""
PAIRS_MAX = 1 << 20
"""Candidates that are tested together."""
GARBAGE_MIN = 1024
SAMPLE_MAX = 1024
"""Values that are kept of each numeric field."""
SEEN_MAX = 1 << 20
"""After so many events the counts are halved, so that the index follows what is rare lately."""
PLACE_AGAIN_FACTOR = 4
WASTE_MAX = 8
"""Candidates per event, beyond those that match, from which on it is worth placing searches again."""


@dataclass(frozen=True, slots=True)
class Matches:
    """Pairs of an event's row and a search's number, by row."""

    rows: Ints
    searches: Ints
    candidates: int


Cover = tuple[float, tuple[Leaf, ...]]
"""The share of events that fulfil one of these conditions, and the conditions."""


class SearchIndex:
    def __init__(self, fields: Mapping[str, Field], defaults: Sequence[str], payload: pa.StructType) -> None:
        self.fields, self.defaults = fields, defaults
        self.fingerprint = 0
        """Of the searches that are in it: the sum of theirs."""
        self.numbers: dict[Key, int] = {}
        self.prints: dict[Key, int] = {}
        self.bad: dict[Key, str] = {}
        self.unindexed: dict[int, None] = {}
        self._trees: list[Tree | None] = []
        self._roots = GrowingArray()
        self._alive = GrowingArray(np.bool_)
        self._payload: list[pa.StructArray] = [pa.array([], payload)]
        self._begin()

    def _begin(self) -> None:
        """No search is placed yet."""
        self._conditions = Conditions(self.fields)
        self._rows_with = GrowingArray()
        """By term: how many events had it."""
        self._events = 0
        self._events_placed = 0
        self._samples: dict[str, list[Any]] = {}
        self._unplaced: list[int] = []
        self._clear_places()

    def _clear_places(self) -> None:
        self._by_term: dict[int, list[int]] = defaultdict(list)
        self._by_range: dict[str, _Intervals] = {}
        self._wasted = self._seen_since = 0

    # ---- which searches there are ----------------------------------------------------------------------------------

    @property
    def payload(self) -> pa.StructArray:
        """By number: what comes out with a match."""
        if len(self._payload) > 1:
            self._payload = [pa.concat_arrays(self._payload)]
        return self._payload[0]

    @property
    def has_garbage(self) -> bool:
        return len(self._trees) > 2 * len(self.numbers) + GARBAGE_MIN

    def put(
        self, keys: Sequence[Key], texts: Sequence[str | None], prints: Sequence[int], payload: pa.StructArray
    ) -> None:
        """Add searches, or replace those of these keys. ``prints``: what tells one state of a search from another."""
        self.remove([key for key in keys if key in self.prints])
        compiled = compile_searches(texts, self.fields, self.defaults)
        trees = [None if isinstance(each, str) else each for each in compiled]
        first = self._roots.extend([0 if each is None else self._conditions.add(each) for each in trees])
        self._alive.extend([each is not None for each in trees])
        self._trees += trees
        self._payload.append(payload)
        missing = self._conditions.terms - self._rows_with.count
        self._rows_with.extend([0] * missing)
        for number, (key, found, stamp) in enumerate(zip(keys, compiled, prints, strict=True), first):
            self.prints[key] = stamp
            self.numbers[key] = number
            self.fingerprint += stamp
            if isinstance(found, str):
                self.bad[key] = found
            elif _cover(found, lambda _: 0.0) is None:
                self.unindexed[number] = None
            else:
                self._unplaced.append(number)

    def remove(self, keys: Sequence[Key]) -> None:
        for key in keys:
            number = self.numbers.pop(key)
            self._alive.array[number] = False
            self._trees[number] = None
            self.fingerprint -= self.prints.pop(key)
            self.unindexed.pop(number, None)
            self.bad.pop(key, None)

    # ---- matching --------------------------------------------------------------------------------------------------

    def match(self, events: pa.Table) -> Matches:
        parts = [self._match(events.slice(at, ROWS_MAX), at) for at in range(0, events.num_rows, ROWS_MAX)]
        if not parts:
            return Matches(np.zeros(0, np.int64), np.zeros(0, np.int64), 0)
        rows, searches = (np.concatenate([getattr(each, name) for each in parts]) for name in ("rows", "searches"))
        return Matches(rows, searches, sum(each.candidates for each in parts))

    def _match(self, events: pa.Table, offset: int) -> Matches:
        batch = EventBatch(events, self._conditions)
        self._learn(batch)
        self._place()
        found, candidates = [], 0
        for rows, searches in self._candidates(batch):
            candidates += len(rows)
            alive = self._alive.array[searches]
            rows, searches = rows[alive], searches[alive]
            matched = batch.truth(rows, self._roots.array[searches])
            found.append(rows[matched] * len(self._trees) + searches[matched])
        pairs = np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)
        self._seen_since += batch.count
        self._wasted += candidates - len(pairs) - batch.count * len(self.unindexed)
        self._place_again_if_worth_it()
        return Matches(pairs // max(len(self._trees), 1) + offset, pairs % max(len(self._trees), 1), candidates)

    def _candidates(self, batch: EventBatch) -> Iterator[tuple[Ints, Ints]]:
        """Pairs of rows and searches, in pieces of bounded size."""
        hits = [self._under_terms(batch), self._everywhere(batch)]
        hits += [each.hits(batch) for each in self._by_range.values()]
        members = np.concatenate([each.members for each in hits])
        shifts = np.cumsum([0, *(len(each.members) for each in hits[:-1])])
        rows = np.concatenate([each.rows for each in hits])
        starts = np.concatenate([each.starts + shift for each, shift in zip(hits, shifts, strict=True)])
        counts = np.concatenate([each.counts for each in hits])
        pieces = np.cumsum(counts) // PAIRS_MAX
        cuts = np.r_[0, np.flatnonzero(np.diff(pieces)) + 1, len(rows)] if len(rows) else np.zeros(1, np.int64)
        for first, end in itertools.pairwise(cuts.tolist()):
            owners, places = expanded(starts[first:end], counts[first:end])
            yield rows[first:end][owners], members[places]

    def _under_terms(self, batch: EventBatch) -> _Hits:
        rows, terms = batch.hits()
        distinct, codes = np.unique(terms, return_inverse=True)
        lists = [self._by_term.get(each, ()) for each in distinct.tolist()]
        counts = np.fromiter(map(len, lists), np.int64, len(lists))
        members = np.fromiter(itertools.chain.from_iterable(lists), np.int64, int(counts.sum()))
        some = np.flatnonzero(counts[codes] > 0)
        starts = np.cumsum(counts) - counts
        return _Hits(rows[some], starts[codes[some]], counts[codes[some]], members)

    def _everywhere(self, batch: EventBatch) -> _Hits:
        """The unindexed searches, for every row."""
        members = np.fromiter(self.unindexed, np.int64, len(self.unindexed))
        rows = np.arange(batch.count if len(members) else 0)
        return _Hits(rows, np.zeros_like(rows), np.full(len(rows), len(members)), members)

    # ---- places ----------------------------------------------------------------------------------------------------

    def _learn(self, batch: EventBatch) -> None:
        """How many rows have each term, and a few values of each numeric field that a condition asks for."""
        _, terms = batch.hits()
        counts = self._rows_with.array
        counts += np.bincount(terms, minlength=len(counts))
        self._events += batch.count
        if self._events > SEEN_MAX:
            counts //= 2
            self._events //= 2
        for number in np.unique(self._conditions.range_fields.array).tolist():
            name = list(self.fields)[number]
            numbers = batch.numbers_in(name)
            values = np.sort(numbers.values[numbers.valid])
            if len(values):
                self._samples[name] = values[:: -(-len(values) // SAMPLE_MAX)].tolist()

    def _share(self, leaf: Leaf) -> float:
        """About how many of all events fulfil a condition."""
        if leaf.kind == "range":
            sample = self._samples.get(leaf.field, [])
            inside = bisect_right(sample, leaf.value[1]) - bisect_left(sample, leaf.value[0])
            return (inside + 0.5) / (len(sample) + 1)
        term = self._conditions.term(leaf)
        # Of two that were never seen, the one with fewer searches.
        return float(self._rows_with.array[term] + 0.5) / (self._events + 1) + 1e-9 * len(self._by_term.get(term, ()))

    def _place(self) -> None:
        if self._unplaced and not self._by_term and not self._by_range:
            self._events_placed = self._events
        for number in self._unplaced:
            tree = self._trees[number]
            cover = None if tree is None else _cover(tree, self._share)
            for leaf in () if cover is None else cover[1]:
                if leaf.kind == "range":
                    self._by_range.setdefault(leaf.field, _Intervals(leaf.field)).add(leaf.value, number)
                else:
                    self._by_term[self._conditions.term(leaf)].append(number)
        self._unplaced.clear()

    def _place_again_if_worth_it(self) -> None:
        if self._wasted > WASTE_MAX * self._seen_since and self._events >= PLACE_AGAIN_FACTOR * self._events_placed:
            self._clear_places()
            self._events_placed = self._events
            self._unplaced = [
                number for number, tree in enumerate(self._trees) if tree is not None and number not in self.unindexed
            ]


def _cover(tree: Tree, share: Any) -> Cover | None:
    """Conditions of which one must be true where the tree is; None: there are none, or one is true almost always."""
    if isinstance(tree, Test):
        if tree.negated or tree.leaf.kind == "exists":
            return None
        if tree.leaf.kind != "phrase":
            return share(tree.leaf), (tree.leaf,)
        words = [Leaf("word", tree.leaf.field, each) for each in tree.leaf.value]
        return min(((share(each), (each,)) for each in words), key=lambda each: each[0])
    covers = [_cover(each, share) for each in tree.parts]
    known = [each for each in covers if each is not None]
    if tree.how == "and":
        return min(known, key=lambda each: each[0], default=None)
    if len(known) < len(covers):
        return None
    return sum(each[0] for each in known), tuple(dict.fromkeys(leaf for each in known for leaf in each[1]))


@dataclass(frozen=True, slots=True)
class _Hits:
    """For rows stretches of ``members``: the numbers of searches."""

    rows: Ints
    starts: Ints
    counts: Ints
    members: Ints


class _Intervals:
    """The searches under ranges of one field: a tree, and a small one of what was added since it was built."""

    def __init__(self, field: str) -> None:
        self.field = field
        self._lows: list[Any] = []
        self._highs: list[Any] = []
        self._numbers: list[int] = []
        self._built = 0
        self._trees: list[IntervalTree] = []
        self._until = 0
        """How many are in a tree."""

    def add(self, ends: tuple[Any, Any], number: int) -> None:
        self._lows.append(ends[0])
        self._highs.append(ends[1])
        self._numbers.append(number)

    def hits(self, batch: EventBatch) -> _Hits:
        self._build()
        numbers = batch.numbers_in(self.field)
        valid = np.flatnonzero(numbers.valid)
        rows, starts, counts, members, shift = [], [], [], [], 0
        for tree in self._trees:
            asked, start, count = tree.stab(numbers.values[valid])
            rows.append(valid[asked])
            starts.append(start + shift)
            counts.append(count)
            members.append(tree.members)
            shift += len(tree.members)
        return _Hits(*(np.concatenate(each) for each in (rows, starts, counts, members)))

    def _build(self) -> None:
        count = len(self._numbers)
        if self._until == count:
            return
        if count > 2 * self._built:
            self._built = count
            self._trees = [self._tree(0, count)]
        else:
            self._trees = [self._trees[0], self._tree(self._built, count)]
        self._until = count

    def _tree(self, first: int, end: int) -> IntervalTree:
        lows, highs = np.array(self._lows[first:end]), np.array(self._highs[first:end])
        return IntervalTree(lows, highs, np.array(self._numbers[first:end], np.int64))
