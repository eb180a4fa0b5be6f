"""Checks of records: what was acknowledged is there, and what was read stays."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from tests.chaos.operations import History, Place, place_of, where


def checksums(history: History) -> Iterator[str]:
    """Every value read is one that its own checksum fits."""
    for read, offset, value in history.records():
        if history.parsed(value) is None:
            yield f"{where(place_of(read), offset)}: {value!r}"


def odd_attributes(history: History) -> Iterator[str]:
    """Every record has the key and the headers that it was written with."""
    for read in history.reads:
        for offset, found in read.get("odd", ()):
            yield f"{where(place_of(read), offset)}: {read['reader']} found {found}"


def phantoms(history: History) -> Iterator[str]:
    """Every value read was written by somebody, to that partition, and not refused."""
    for read, offset, value in history.records():
        attempt = history.attempts.get(value)
        if attempt is None:
            yield f"{where(place_of(read), offset)}: nobody wrote {value!r}"
        elif attempt.place != place_of(read):
            yield f"{where(place_of(read), offset)}: {value!r} was written to {attempt.place}"
        elif attempt.type == "fail":
            yield f"{where(place_of(read), offset)}: {value!r} was refused"


def lost(history: History) -> Iterator[str]:
    """Every acknowledged value stands at the offset that was told."""
    for value, attempt in history.attempts.items():
        if attempt.type != "ok":
            continue
        levels = ["uncommitted"]
        if not attempt.txn or history.outcome(attempt.txn) == "committed":
            levels.append("committed")
        assert attempt.offset is not None
        if attempt.offset < history.trimmed[attempt.place]:
            continue
        for level in levels:
            found = history.final[level][attempt.place].get(attempt.offset)
            if found != value:
                told = where(attempt.place, attempt.offset)
                yield f"{told}: {value!r} was acknowledged; a read of {level} data finds {found!r}"


def duplicates(history: History) -> Iterator[str]:
    """No value stands in the log twice: every producer here is idempotent."""
    seen: dict[str, str] = {}
    for place, records in history.final["uncommitted"].items():
        for offset, value in sorted(records.items()):
            here = where(place, offset)
            if value in seen:
                yield f"{value!r} stands in {seen[value]} and in {here}"
            seen[value] = here


def order(history: History) -> Iterator[str]:
    """A producer's values stand in a partition in the order it wrote them, and readers see ascending offsets."""
    for place, records in history.final["uncommitted"].items():
        last: dict[str, int] = {}
        for offset, text in sorted(records.items()):
            value = history.parsed(text)
            if value is None:
                continue
            if last.get(value.producer, -1) >= value.number:
                before = last[value.producer]
                yield f"{where(place, offset)}: {value.producer} wrote {value.number} before {before}"
            last[value.producer] = value.number
    for read in history.reads:
        offsets = [offset for offset, _ in read["records"]]
        if offsets != sorted(set(offsets)):
            yield f"{read['reader']} read {place_of(read)} in the order {offsets[:20]}"


def stable_offsets(history: History) -> Iterator[str]:
    """An offset means the same value to everybody, always."""
    seen: dict[tuple[str, int, int], str] = {}
    for read, offset, value in history.records():
        key = (read["topic"], read["partition"], offset)
        before = seen.setdefault(key, value)
        if before != value:
            yield f"{where(place_of(read), offset)}: {before!r} once, {value!r} for {read['reader']}"


def vanished(history: History) -> Iterator[str]:
    """What was read once is there at the end, at its offset."""
    for read, offset, value in history.records():
        place = place_of(read)
        found = history.final[read["isolation"]][place].get(offset)
        if found != value and offset >= history.trimmed[place]:
            yield f"{where(place, offset)}: {read['reader']} read {value!r}, and at the end there is {found!r}"


def skipped(history: History) -> Iterator[str]:
    """A reader is given every record between the first and the last of one read."""
    known: dict[tuple[str, Place], list[int]] = {
        (level, place): sorted(records) for level, places in history.final.items() for place, records in places.items()
    }
    for read in history.reads:
        place = place_of(read)
        if not read["records"]:
            continue
        first, last = max(read["records"][0][0], history.trimmed[place]), read["records"][-1][0]
        all_offsets = known.get((read["isolation"], place), [])
        expected = all_offsets[bisect_left(all_offsets, first) : bisect_right(all_offsets, last)]
        got = {offset for offset, _ in read["records"]}
        for offset in expected:
            if offset not in got:
                yield f"{where(place, offset)}: {read['reader']} read {first} to {last} without it"


def harness(history: History) -> Iterator[str]:
    """The history itself makes sense: nobody used a value twice."""
    for value in history.repeated:
        yield f"{value!r} was written twice by the harness itself"
