"""Checks of topics whose records go: compacted, shortened by DeleteRecords, deleted and created again."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from tests.chaos.operations import History, Operation, Place, place_of, where


def deleted_records(history: History) -> Iterator[str]:
    """What DeleteRecords removed is never read again."""
    trims: dict[Place, list[Operation]] = defaultdict(list)
    for each in history.operations["trim"]:
        if each["type"] == "ok":
            trims[place_of(each)].append(each)
    for read in history.reads:
        if "began" not in read or not read["records"]:
            continue
        before = max((each["offset"] for each in trims[place_of(read)] if each["time"] < read["began"]), default=0)
        first = read["records"][0][0]
        if first < before:
            yield f"{where(place_of(read), first)}: read after everything before {before} had been deleted"


# ---- compaction -----------------------------------------------------------------------------------------------------


class KeyHistory:
    """What was written to one key by its only writer, whose numbers grow."""

    def __init__(self, puts: list[Operation]) -> None:
        self.values = {each["value"]: each for each in puts if each["value"] is not None}
        self.tombstone_last = max((each["number"] for each in puts if each["value"] is None), default=-1)
        acknowledged = sorted((each["time"], each["number"]) for each in puts if each["type"] == "ok")
        self._times = [time for time, _ in acknowledged]
        self._highest = list(accumulate((number for _, number in acknowledged), max))

    def due(self, time: float) -> int:
        """The highest number that was acknowledged before ``time``."""
        place = bisect_left(self._times, time)
        return self._highest[place - 1] if place else -1

    def problem(self, due: int, found: list[Any] | None) -> str | None:
        """What is wrong with the offset and value ``found`` for the key, or None; ``due`` is the least number."""
        offset, value = found or (None, None)
        if value is None:
            # A tombstone, or nothing, as after a tombstone that compaction has removed too.
            return "it has no value" if due > self.tombstone_last else None
        put = self.values.get(value)
        if put is None:
            return f"nobody wrote {value!r}"
        if put["number"] < due:
            return f"{value!r} at {offset} is older"
        if put["type"] == "ok" and put["offset"] != offset:
            return f"{value!r} is at {offset} and was written at {put['offset']}"
        return None


def older_values(history: History) -> Iterator[str]:
    """A compacted topic has for each key the last acknowledged value or a later one, in every reading of the whole."""
    puts: dict[Place, dict[str, list[Operation]]] = defaultdict(lambda: defaultdict(list))
    for each in history.operations["put"]:
        puts[place_of(each)][each["key"]].append(each)
    written = {place: {key: KeyHistory(each) for key, each in keys.items()} for place, keys in puts.items()}
    for fold in history.operations["fold"]:
        topic, partition = place_of(fold)
        keys = written.get((topic, partition), {})
        for key in keys.keys() | fold["table"].keys():
            known = keys.get(key) or KeyHistory([])
            due = known.due(fold["began"])
            problem = known.problem(due, fold["table"].get(key))
            if problem:
                yield f"{topic}-{partition}, key {key}: {problem}; number {due} was acknowledged"


def keys_that_go_back(history: History) -> Iterator[str]:
    """Of two readings of a compacted topic the later one shows for no key an older record than the first."""
    by_place: dict[Place, list[Operation]] = defaultdict(list)
    for fold in history.operations["fold"]:
        by_place[place_of(fold)].append(fold)
    for place, folds in by_place.items():
        folds.sort(key=lambda each: each["began"])
        highest: dict[str, int] = {}
        for before, fold in zip([None, *folds], folds, strict=False):
            if before is not None and before["time"] < fold["began"]:
                for key, (offset, _) in before["table"].items():
                    highest[key] = max(offset, highest.get(key, -1))
            for key, (offset, _) in fold["table"].items():
                if offset < highest.get(key, -1):
                    yield f"{place[0]}-{place[1]}, key {key}: {offset} after {highest[key]} had been read"


# ---- deleted and created again --------------------------------------------------------------------------------------


def earlier_lives(history: History) -> Iterator[str]:
    """Records of a topic that was deleted are not in the topic that was created under its name.

    This holds if no request for the old topic arrives after its end: ``Recreator`` sees to that.
    """
    ended = history.operations["life-end"]
    for read in history.operations["life-read"]:
        gone = [each["life"] for each in ended if each["topic"] == read["topic"] and each["time"] < read["began"]]
        for offset, text in read["records"]:
            value = history.parsed(text)
            if value is None:
                yield f"{where(place_of(read), offset)}: {text!r} is altered"
            elif int(value.kind) <= max(gone, default=-1):
                yield f"{where(place_of(read), offset)}: {text!r} is of life {value.kind}; {max(gone)} had ended"


def last_life(history: History) -> Iterator[str]:
    """What was acknowledged in the last life of a topic is there at the end."""
    last: dict[str, int] = {}
    for put in history.operations["life-put"]:
        last[put["topic"]] = max(put["life"], last.get(put["topic"], -1))
    final: dict[Place, dict[int, str]] = defaultdict(dict)
    for read in history.operations["life-read"]:
        if read["final"]:
            final[place_of(read)].update(dict(read["records"]))
    gone = {(each["topic"], each["life"]) for each in history.operations["life-end"]}
    for put in history.operations["life-put"]:
        life = (put["topic"], put["life"])
        if put["type"] == "ok" and put["life"] == last[put["topic"]] and life not in gone:
            found = final[place_of(put)].get(put["offset"])
            if found != put["value"]:
                yield f"{where(place_of(put), put['offset'])}: {put['value']!r} was acknowledged; there is {found!r}"
