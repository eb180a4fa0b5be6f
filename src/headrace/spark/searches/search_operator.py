"""Searches on the state kernel: every bucket holds all searches, and each event meets those of one bucket.

A row of the input is an event or a change of the table of searches:

    _event    (row)                        the columns of the event; such a row has no key
    _search   (position, lane, row)        the search's text and the columns that come out with it; null: removed

A search counts for the events of the micro-batch in which its change is read, and of all later ones. So the same
micro-batches give the same matches: searches are state, changed by the same rows in the same batch, and events change
nothing.

What matches is found by a ``SearchIndex``, which is memory and not state: a process has one for all its buckets. Every
state of a search has a print, and an index is right where the sum of its prints is that of the bucket's. Otherwise it
takes the changes of the batch, or, where it missed some, is compared with the bucket, search by search.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from headrace.changes import PlacedRows, Truncations, newest
from headrace.spark.searches.analysis import Field, fields_in
from headrace.spark.searches.index import SearchIndex
from headrace.spark.state.bucket import Flags, Ints, Key, Layout
from headrace.spark.state.operator import Clock, Operator, Step, Touched, fields_of, whole

__all__ = ["EVENT", "KEYLESS", "QUERY", "SEARCH", "TRUNCATES", "MatchSearches"]

EVENT = "_event"
SEARCH = "_search"
KEYLESS = "_keyless"
TRUNCATES = "_truncates"
QUERY = "_query"
"""In a search's row: its text."""
INDEX, SUMS = "index", "sums"
SUMS_MAX = 256
"""Stamps of buckets whose sum of prints is remembered."""
BITS = 1 << 64


@dataclass(frozen=True, slots=True)
class MatchSearches(Operator):
    events: pa.StructType
    """The columns of an event."""
    keys: pa.StructType
    """The key of the table of searches."""
    row: pa.StructType
    """``QUERY`` and the columns that come out with a match."""
    names: tuple[str, ...]
    """What the key's columns and those columns are called in the result."""
    fields: tuple[str, ...]
    """The columns of events that may be searched."""
    exact: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()
    name: ClassVar[str] = "match_searches"
    clock: ClassVar[Clock] = "none"
    keyless: ClassVar[str | None] = KEYLESS
    everywhere: ClassVar[str | None] = TRUNCATES
    free: ClassVar[tuple[str, ...]] = ("fields", "exact", "defaults", "names")
    counters: ClassVar[dict[str, Literal["sum", "max"]]] = {
        "searches": "max",
        "unindexed_searches": "max",
        "bad_searches": "max",
        "candidates": "sum",
        "matches": "sum",
    }

    @property
    def state(self) -> pa.StructType:
        return pa.struct([("row", self.row), ("lane", pa.int64()), ("print", pa.int64())])

    @property
    def payload(self) -> pa.StructType:
        kinds = [*(each.type for each in self.keys), *(each.type for each in self.row if each.name != QUERY)]
        return pa.struct(list(zip(self.names, kinds, strict=True)))

    @property
    def output(self) -> pa.Schema:
        return pa.schema([*self.events, *self.payload])

    def searched(self) -> dict[str, Field]:
        return fields_in(pa.schema(list(self.events)), self.exact, self.fields)

    def step(self, touched: Touched) -> Step:
        current, there, changed = self._current(touched)
        index = self._index(touched, current, there)
        events = pa.Table.from_arrays(
            fields_of(whole(touched.keyless.column(EVENT)))["row"].flatten(), schema=pa.schema(list(self.events))
        )
        found = index.match(events)
        given = index.payload.take(pa.array(found.searches))
        output = pa.Table.from_arrays(
            [*(whole(each) for each in events.take(pa.array(found.rows)).columns), *given.flatten()], schema=self.output
        )
        return Step(
            output=output,
            states=current,
            keep=there,
            changed=changed,
            counts={
                "searches": len(index.numbers),
                "unindexed_searches": len(index.unindexed),
                "bad_searches": len(index.bad),
                "candidates": found.candidates,
                "matches": len(found.rows),
            },
        )

    # ---- the table of searches -------------------------------------------------------------------------------------

    def _current(self, touched: Touched) -> tuple[pa.StructArray, Flags, Flags]:
        """The states of the touched keys after the batch, which of them there are, and which are others than before."""
        count = len(touched.keys)
        held = fields_of(touched.held)
        given = whole(touched.rows.column(SEARCH))
        truncations = whole(touched.shared.column(SEARCH))
        columns = fields_of(given)
        found = newest(
            held["row"],
            _ints(held["lane"]),
            PlacedRows(columns["row"], touched.codes, _ints(columns["lane"]), _ints(columns["position"])),
            Truncations(*(_ints(fields_of(truncations)[each]) for each in ("lane", "position"))),
        )
        there = np.asarray(found.rows.is_valid()) & ~found.incomplete
        lanes = np.r_[_ints(held["lane"]), _ints(columns["lane"])][found.chosen]
        fresh = found.chosen >= count
        prints = np.asarray(held["print"].fill_null(0), np.int64).copy()
        numbers = np.flatnonzero(fresh & there)
        keys = self._layout().python_keys(touched.keys)
        rows = found.rows.take(pa.array(numbers)).to_pylist()
        prints[numbers] = [_print(keys[number], row) for number, row in zip(numbers.tolist(), rows, strict=True)]
        fields = [found.rows, pa.array(lanes), pa.array(prints)]
        states = pa.StructArray.from_arrays(fields, fields=list(self.state), mask=pa.array(~there))
        gone = np.asarray(touched.held.is_valid()) & ~there
        return states, there, fresh | gone

    def _layout(self) -> Layout:
        return self.layout(self.keys)

    def _index(self, touched: Touched, current: pa.StructArray, there: Flags) -> SearchIndex:
        """The index of the searches after this batch."""
        before = self._sum(touched)
        after = (before - _sum(touched.held) + _sum(current)) % BITS
        memory = touched.memory
        index: SearchIndex | None = memory.get(INDEX)
        if index is not None and index.fingerprint % BITS == after and not index.has_garbage:
            return index
        # While it is changed nobody may take it for what it was.
        memory.pop(INDEX, None)
        keys = self._layout().python_keys(touched.keys)
        if index is None or index.has_garbage:
            index = SearchIndex(self.searched(), self.defaults, self.payload)
        if index.fingerprint % BITS == before:
            index.remove(
                [
                    key
                    for key, is_there in zip(keys, there.tolist(), strict=True)
                    if not is_there and key in index.prints
                ]
            )
            self._put(index, keys, touched.keys, current, there)
        else:
            self._compare(index, touched, keys, current, there)
        memory[INDEX] = index
        return index

    def _compare(
        self, index: SearchIndex, touched: Touched, keys: list[Key], current: pa.StructArray, there: Flags
    ) -> None:
        """Make the index what the bucket and the batch say."""
        all_keys, fresh = touched.whole.keys(), set(keys)
        old = np.fromiter((key not in fresh for key in all_keys), np.bool_, len(all_keys))
        wanted = {key for key, is_old in zip(all_keys, old.tolist(), strict=True) if is_old}
        wanted |= {key for key, is_there in zip(keys, there.tolist(), strict=True) if is_there}
        index.remove([key for key in index.prints if key not in wanted])
        self._put(index, all_keys, touched.whole.column("key"), touched.whole.column("state"), old)
        self._put(index, keys, touched.keys, current, there)

    def _put(
        self, index: SearchIndex, keys: Sequence[Key], structs: pa.StructArray, states: pa.StructArray, use: Flags
    ) -> None:
        """Searches that the index does not have in this state."""
        prints = np.asarray(fields_of(states)["print"].fill_null(0), np.int64).tolist()
        numbers = [
            number
            for number, (key, print_, used) in enumerate(zip(keys, prints, use.tolist(), strict=True))
            if used and index.prints.get(key) != print_
        ]
        if not numbers:
            return
        chosen = pa.array(numbers, pa.int64())
        columns = fields_of(fields_of(states.take(chosen))["row"])
        texts = columns.pop(QUERY).to_pylist()
        arrays = [*structs.take(chosen).flatten(), *columns.values()]
        payload = pa.StructArray.from_arrays(arrays, fields=list(self.payload))
        index.put([keys[each] for each in numbers], texts, [prints[each] for each in numbers], payload)

    def _sum(self, touched: Touched) -> int:
        """Of the prints of all that the bucket held."""
        sums: dict[tuple[str, ...], int] = touched.memory.setdefault(SUMS, {})
        stamp = touched.whole.stamp
        if stamp not in sums:
            if len(sums) >= SUMS_MAX:
                sums.clear()
            sums[stamp] = _sum(touched.whole.column("state"))
        return sums[stamp]


def _sum(states: pa.StructArray) -> int:
    prints = np.asarray(fields_of(states)["print"].fill_null(0), np.int64)
    return int(prints.sum(dtype=np.int64)) % BITS


def _print(key: Any, row: dict[str, Any]) -> int:
    digest = hashlib.blake2b(repr((key, row)).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _ints(column: pa.Array) -> Ints:
    found: Ints = np.asarray(column.fill_null(0), np.int64)
    return found
