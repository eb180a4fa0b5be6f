"""Which tables are followed, and whether each is still the one that it was.

The binlog tells what happens to tables, at the right place of the stream: a table that is created in it is followed
from there on, and needs no snapshot; one that is dropped is truncated; one that gets a captured name by a rename, or
whose rows come and go by partitions, is truncated and read again.

What the binlog does not tell (``SET sql_log_bin = 0``, a table that the user may see only now) is found by comparing
identities. The catalogue is ahead of the stream, so what it shows is kept until the stream has reached the place where
it was looked at; a table whose statements came by in the meantime has another identity for a known reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.capture.mariadb.catalogue import Catalogue, Gtids

__all__ = ["Difference", "KnownTables", "is_reached"]


def is_reached(gtids: Gtids, wanted: Mapping[int, int]) -> bool:
    return all(gtids.get(domain, (0, 0))[1] >= number for domain, number in wanted.items())


def _numbers(gtids: Gtids) -> dict[int, int]:
    return {domain: number for domain, (_, number) in gtids.items()}


@dataclass(slots=True)
class Known:
    """``key`` is what events of the table were keyed by last; None: there were none yet. ``dropped`` are columns that
    the table has lost since its topic began: rows in the topic may still have their values."""

    identity: str = ""
    key: tuple[str, ...] | None = None
    dropped: frozenset[str] = frozenset()


class CatalogueSnapshot(NamedTuple):
    """What the catalogue showed, between two places of the binlog."""

    before: Gtids
    identities: dict[str, str]
    after: dict[int, int]


class Difference(NamedTuple):
    table: str
    what: str
    is_there: bool


class KnownTables:
    """The tables that are followed."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._known: dict[str, Known] = {}
        self._altered: dict[str, dict[int, int]] = {}
        """Where a statement about a table came by, until the catalogue was looked at after that place."""
        self._look: CatalogueSnapshot | None = None

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._known))

    # ---- the state --------------------------------------------------------------------------------------------------

    def restore(self, state: Mapping[str, Any]) -> None:
        recorded = state.get("tables", {})
        for name in {**state.get("snapshots", {}), **recorded}:
            each = recorded.get(name, {})
            key = each.get("key")
            dropped = frozenset(each.get("dropped", ()))
            self._known[name] = Known(each.get("identity", ""), None if key is None else tuple(key), dropped)

    def as_json(self) -> dict[str, Any]:
        return {
            name: {"identity": each.identity, "key": each.key, "dropped": sorted(each.dropped)}
            for name, each in sorted(self._known.items())
        }

    def add(self, name: str, identity: str = "") -> None:
        self._known[name] = Known(identity)

    def remove(self, name: str) -> None:
        self._known.pop(name, None)

    def note_statement(self, name: str, place: Gtids) -> None:
        self._altered[name] = _numbers(place)

    def is_rekeyed(self, name: str, key: tuple[str, ...]) -> bool:
        """Whether events so far had another key; from now on it is this one."""
        known = self._known[name]
        before, known.key = known.key, key
        return before is not None and before != key

    def come_back(self, name: str, dropped: Iterable[str], added: Iterable[str]) -> list[str]:
        """A statement drops and adds columns; those added under the name of one whose values the topic may have."""
        known = self._known[name]
        known.dropped |= {each.casefold() for each in dropped}
        return [each for each in added if each.casefold() in known.dropped]

    def begin_topic(self, name: str) -> None:
        """A truncation is written: rows from before do not count any more."""
        if name in self._known:
            self._known[name].dropped = frozenset()

    # ---- comparing --------------------------------------------------------------------------------------------------

    @property
    def is_looking(self) -> bool:
        return self._look is not None

    def look(self) -> dict[int, int]:
        """Ask for the identities of all tables; where the stream must come before they can be compared."""
        before = self._catalogue.gtids()
        identities = self._catalogue.identities()
        after = _numbers(self._catalogue.gtids())
        self._look = CatalogueSnapshot(before, identities, after)
        return after

    def differences(self, reached: Gtids) -> list[Difference]:
        """What the stream has not told, once it has reached the place of the last look."""
        look = self._look
        if look is None or not is_reached(reached, look.after):
            return []
        self._look = None
        found = []
        for name in sorted({*look.identities, *self._known}):
            altered = self._altered.get(name)
            if altered is not None:
                if is_reached(look.before, altered):
                    del self._altered[name]
                    if name in self._known and name in look.identities:
                        self._known[name].identity = look.identities[name]
                continue
            difference = self._difference(name, look.identities.get(name))
            if difference is not None:
                found.append(difference)
        return found

    def _difference(self, name: str, identity: str | None) -> Difference | None:
        known = self._known.get(name)
        if known is None:
            return Difference(name, "is new", True)
        if identity is None:
            return Difference(name, "is gone, without a trace in the binlog", False)
        before, known.identity = known.identity, identity
        if before and before.split(" ")[0] == identity.split(" ")[0] and before != identity:
            return Difference(name, "was replaced or rebuilt, without a trace in the binlog", True)
        return None
