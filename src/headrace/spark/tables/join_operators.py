"""A stream meets a table that keeps changing: both are rows of one input, keyed by what they are joined on.

A row of that input is an event or a change of the table, and the other column is null:

    _event    (at, row)                                microseconds, and the columns of the stream
    _change   (at, position, lane, version, live, row) a version of the table's row; not live: it was deleted

Where ``_truncates`` is true, the change is a truncation: it deletes all rows of its lane with a lower position. A value
that the database did not send is that of the version before, by position. A version that lacks one is joined to
nothing.

**As of the event's time** the row that counts is the newest version that is not newer than the event; of versions with
the same time the one with the highest position. An event at *t* waits until the watermark, which is that of the slower
of the two inputs, is past *t*: from then on no change can come that is as old as *t*, so the answer is final, and it is
the same whenever and in whichever pieces the inputs are read again. Of a key are held the versions newer than the
watermark, and the one that was valid then. A deletion is a version too, let go once the watermark has come to it.

Events behind the watermark are late: counted and left out. A change behind it is taken: the events that it was for are
gone already, but the next ones need it.

**The latest** is the row that is there when the event comes: no waiting and no watermark, and another answer if the
inputs arrive otherwise.

A null in a key equals nothing, as in SQL: such events find no row, such changes are nobody's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changes import PlacedRows, Truncations, filled, incomplete, newest
from headrace.spark.state.bucket import Flags, Ints
from headrace.spark.state.operator import (
    BEGINNING,
    Clock,
    Operator,
    Step,
    Touched,
    as_lists,
    earliest,
    fields_of,
    flatten,
    search,
    whole,
)

__all__ = ["CHANGE", "EVENT", "TRUNCATES", "AsOf", "How", "Latest", "Matched", "change_type", "event_type"]

EVENT = "_event"
CHANGE = "_change"
TRUNCATES = "_truncates"
"""Columns of the input, with an underscore beside the user's own names."""
How = Literal["left", "inner"]


def event_type(row: pa.StructType) -> pa.StructType:
    return pa.struct([("at", pa.int64()), ("row", row)])


def change_type(row: pa.StructType) -> pa.StructType:
    fixed = [("at", pa.int64()), ("position", pa.int64()), ("lane", pa.int64())]
    fixed += [("version", pa.string()), ("live", pa.bool_())]
    return pa.struct([*fixed, ("row", row)])


@dataclass(frozen=True, slots=True)
class Matched:
    """The shape of what comes out: the event's columns, the version, and the table's columns under their new names."""

    event: pa.StructType
    row: pa.StructType
    version: str
    taken: tuple[tuple[str, str], ...]
    """(column of the table, its name in the result)"""
    how: How = "left"

    @property
    def schema(self) -> pa.Schema:
        joined = [(name, self.row.field(column).type) for column, name in self.taken]
        return pa.schema([*self.event, (self.version, pa.string()), *joined])

    def rows(self, events: pa.StructArray, versions: pa.StructArray, chosen: Ints) -> pa.Table:
        """Events with the versions chosen for them, by number; -1 is none."""
        if self.how == "inner":
            events, chosen = events.filter(pa.array(chosen >= 0)), chosen[chosen >= 0]
        found = fields_of(versions.take(pa.array(chosen, mask=chosen < 0)))
        columns = fields_of(found["row"])
        taken = [columns[column] for column, _ in self.taken]
        plain = fields_of(events)["row"].flatten()
        return pa.Table.from_arrays([*plain, found["version"], *taken], schema=self.schema)


@dataclass(frozen=True, slots=True)
class AsOf(Operator):
    """Each event with the version of the table's row that was valid at its time."""

    matched: Matched
    event_time: str
    """The column of the event that ``at`` was taken from."""
    name: ClassVar[str] = "join_as_of"
    judges_lateness: ClassVar[bool] = True
    everywhere: ClassVar[str | None] = TRUNCATES

    @property
    def state(self) -> pa.StructType:
        versions = pa.list_(change_type(self.matched.row))
        return pa.struct([("versions", versions), ("waiting", pa.list_(event_type(self.matched.event)))])

    @property
    def output(self) -> pa.Schema:
        return self.matched.schema

    @property
    def output_time(self) -> str | None:
        """Whatever is older than the clock comes out when the clock comes there."""
        return self.event_time

    def step(self, touched: Touched) -> Step:
        now_us, count = touched.now_us, len(touched.keys)
        codes, versions = _together(touched, "versions", CHANGE)
        known = ~_with_null(touched.keys)[codes]
        codes, versions = _with_truncations(touched.shared, codes[known], versions.filter(pa.array(known)))
        codes, versions = _completed(codes, versions)
        times = np.asarray(versions.field("at").fill_null(BEGINNING), np.int64)
        order = np.lexsort((_ints(versions, "position"), times, codes))
        codes, times, versions = codes[order], times[order], versions.take(pa.array(order))

        event_codes, events = _together(touched, "waiting", EVENT)
        event_codes, events, late_rows = self._in_time(touched, event_codes, events)
        event_times = np.asarray(events.field("at"), np.int64)
        due = event_times < now_us
        output = self._joined(codes, times, versions, event_codes[due], event_times[due], events.filter(pa.array(due)))

        kept = self._needed(codes, times, versions, now_us)
        codes, times, versions = codes[kept], times[kept], versions.filter(pa.array(kept))
        event_codes, event_times, events = event_codes[~due], event_times[~due], events.filter(pa.array(~due))
        by_key = np.argsort(event_codes, kind="stable")
        lists = [
            as_lists(codes, versions, count),
            as_lists(event_codes[by_key], events.take(pa.array(by_key)), count),
        ]
        held = np.bincount(codes, minlength=count) + np.bincount(event_codes, minlength=count)
        letting_go = _to_be_let_go(codes, versions) & (times > now_us)
        return Step(
            output=output,
            states=pa.StructArray.from_arrays(lists, fields=list(self.state)),
            keep=held > 0,
            wake_us=np.minimum(
                earliest(event_codes, event_times + 1, count),
                earliest(codes[letting_go], times[letting_go], count),
            ),
            late_rows=late_rows,
        )

    def _in_time(self, touched: Touched, codes: Ints, events: pa.StructArray) -> tuple[Ints, pa.StructArray, int]:
        """Without the late ones among the new events, which stand after those that have waited."""
        times = np.asarray(events.field("at").fill_null(BEGINNING), np.int64)
        late = np.asarray(events.field("at").is_null()) | (times < touched.late_before_us)
        late[: len(pc.list_flatten(touched.held.field("waiting")))] = False
        return codes[~late], events.filter(pa.array(~late)), int(np.count_nonzero(late))

    def _joined(
        self,
        codes: Ints,
        times: Ints,
        versions: pa.StructArray,
        event_codes: Ints,
        event_times: Ints,
        events: pa.StructArray,
    ) -> pa.Table:
        if not len(versions):
            chosen = np.full(len(event_codes), -1, np.int64)
            return self.matched.rows(events, versions, chosen)
        place = search(codes, times, event_codes, event_times + 1) - 1
        live = np.asarray(versions.field("live").fill_null(False))
        found = (place >= 0) & (codes[place] == event_codes) & live[place]
        return self.matched.rows(events, versions, np.where(found, place, -1))

    def _needed(self, codes: Ints, times: Ints, versions: pa.StructArray, now_us: int) -> Flags:
        """All versions but those replaced by the time of the watermark, and deletions before it.

        The last row by position stays in any case, because the next change may leave out values that have not changed.
        So do the versions that replaced it, or it would be valid again.
        """
        replaced = np.zeros(len(codes), np.bool_)
        replaced[:-1] = (codes[1:] == codes[:-1]) & (times[1:] <= now_us)
        live = np.asarray(versions.field("live").fill_null(False))
        needed: Flags = ~replaced & (live | (times > now_us))
        needed |= _from_last_by_position(codes, versions)
        return needed


def _to_be_let_go(codes: Ints, versions: pa.StructArray) -> Flags:
    """Versions at whose time something is no longer needed: the one before them, or, deletions, themselves."""
    live = np.asarray(versions.field("live").fill_null(False))
    follows = np.zeros(len(codes), np.bool_)
    follows[1:] = codes[1:] == codes[:-1]
    found: Flags = follows | ~live
    return found


def _ints(changes: pa.StructArray, field: str) -> Ints:
    found: Ints = np.asarray(changes.field(field).fill_null(0), np.int64)
    return found


def _with_truncations(shared: pa.Table, codes: Ints, versions: pa.StructArray) -> tuple[Ints, pa.StructArray]:
    """With a deletion for every key that a truncation removes: one that has an older version in the same lane."""
    if not shared.num_rows:
        return codes, versions
    truncations = whole(shared.column(CHANGE))
    places = zip(_ints(truncations, "lane").tolist(), _ints(truncations, "position").tolist(), strict=True)
    lanes, positions = _ints(versions, "lane"), _ints(versions, "position")
    gone = [np.unique(codes[(lanes == lane) & (positions < position)]) for lane, position in places]
    numbers = np.repeat(np.arange(len(gone)), [len(each) for each in gone])
    return np.r_[codes, *gone], pa.concat_arrays([versions, truncations.take(pa.array(numbers))])


def _completed(codes: Ints, versions: pa.StructArray) -> tuple[Ints, pa.StructArray]:
    """With values that were not sent filled in. A version that stays incomplete is not live."""
    if not incomplete(versions.field("row")).any():
        return codes, versions
    order = np.lexsort((_ints(versions, "position"), codes))
    codes, versions = codes[order], versions.take(pa.array(order))
    columns = fields_of(versions)
    columns["row"], lacking = filled(columns["row"], codes)
    columns["live"] = pc.and_(columns["live"], pa.array(~lacking))
    return codes, pa.StructArray.from_arrays(list(columns.values()), fields=list(versions.type))


def _from_last_by_position(codes: Ints, versions: pa.StructArray) -> Flags:
    """Of versions sorted by key and time: the one with the highest position, where it has a row, and those after it."""
    found = np.zeros(len(codes), np.bool_)
    if not len(codes):
        return found
    order = np.lexsort((_ints(versions, "position"), codes))
    last = order[np.r_[np.diff(codes[order]) != 0, True]]
    found[last] = np.asarray(versions.field("row").is_valid())[last]
    latest = np.maximum.accumulate(np.where(found, np.arange(len(codes)), -1))
    after: Flags = (latest >= 0) & (codes[latest] == codes)
    return after


@dataclass(frozen=True, slots=True)
class Latest(Operator):
    """Each event with the row that the table has when it comes; changes in its batch count."""

    matched: Matched
    name: ClassVar[str] = "join_latest"
    clock: ClassVar[Clock] = "none"
    everywhere: ClassVar[str | None] = TRUNCATES

    @property
    def state(self) -> pa.StructType:
        return pa.struct([("current", change_type(self.matched.row))])

    @property
    def output(self) -> pa.Schema:
        return self.matched.schema

    def step(self, touched: Touched) -> Step:
        count = len(touched.keys)
        held = touched.held.field("current")
        given = whole(touched.rows.column(CHANGE))
        known = np.flatnonzero(np.asarray(given.is_valid()) & ~_with_null(touched.keys)[touched.codes])
        given = given.take(pa.array(known))
        truncations = whole(touched.shared.column(CHANGE))
        found = newest(
            fields_of(held)["row"],
            _ints(held, "lane"),
            PlacedRows(fields_of(given)["row"], touched.codes[known], _ints(given, "lane"), _ints(given, "position")),
            Truncations(_ints(truncations, "lane"), _ints(truncations, "position")),
        )
        columns = fields_of(pa.concat_arrays([held, given]).take(pa.array(found.chosen)))
        columns["row"] = found.rows
        is_there = np.asarray(found.rows.is_valid())
        current = pa.StructArray.from_arrays(
            list(columns.values()), fields=list(change_type(self.matched.row)), mask=pa.array(~is_there)
        )
        live: Flags = is_there & ~found.incomplete

        events = whole(touched.rows.column(EVENT))
        asking = np.asarray(events.is_valid())
        codes = touched.codes[asking]
        return Step(
            output=self.matched.rows(events.filter(pa.array(asking)), current, np.where(live[codes], codes, -1)),
            states=pa.StructArray.from_arrays([current], fields=list(self.state)),
            keep=is_there,
            changed=(found.chosen != np.arange(count)) | (np.asarray(held.is_valid()) & ~is_there),
        )


def _together(touched: Touched, held: str, column: str) -> tuple[Ints, pa.StructArray]:
    """What is held of a kind and what the batch brings of it, each with the number of its key."""
    held_codes, elements = flatten(touched.held.field(held))
    given = whole(touched.rows.column(column))
    present = np.asarray(given.is_valid())
    return np.r_[held_codes, touched.codes[present]], pa.concat_arrays([elements, given.filter(pa.array(present))])


def _with_null(keys: pa.StructArray) -> Flags:
    found = np.zeros(len(keys), np.bool_)
    for column in keys.flatten():
        found |= np.asarray(column.is_null())
    return found
