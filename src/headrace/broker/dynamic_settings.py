"""Broker settings that were altered at run time.

The state table ``broker_config`` has those of this broker, ``cluster_config`` the defaults for all brokers, which the
broker's own override. As in Kafka, a name that no part of the broker knows is kept too: tools set some that are of no
use here, such as the rate of a replication throttle. Such a setting has no effect, and the log says so.
"""

from __future__ import annotations

import logging

from headrace.broker.state import Change, StateStore
from headrace.config import BROKER_SETTINGS, Settings, Source

__all__ = ["DynamicSettings"]

LOG = logging.getLogger("headrace.broker")

TABLES = {Source.DYNAMIC_BROKER: "broker_config", Source.DYNAMIC_DEFAULT: "cluster_config"}


class DynamicSettings:
    """Applies the rows of the two tables to the settings. They override file, environment and flags."""

    def __init__(self, *, state: StateStore, settings: Settings) -> None:
        self._state = state
        self._settings = settings
        self._applied: dict[Source, set[str]] = {source: set() for source in TABLES}

    def values(self, source: Source) -> dict[str, str]:
        """What was given at this level, also under names that are not known."""
        return {name: row["value"] for name, row in self._state.table(TABLES[source]).items()}

    def replace(self, source: Source, values: dict[str, str]) -> int:
        """Make this level hold these values and no others; the journal offset to wait for."""
        table = TABLES[source]
        before = self.values(source)
        changes: list[Change] = [(table, name, None) for name in before if name not in values]
        changes += [(table, name, {"value": raw}) for name, raw in values.items() if before.get(name) != raw]
        for _, name, value in changes:
            if name not in BROKER_SETTINGS and value is not None:
                LOG.warning("the setting %r is not known to headrace: it is kept and has no effect", name[:200])
        offset = self._state.put_many(changes) if changes else -1
        self.apply()
        return offset

    def apply(self) -> None:
        """Make the settings equal to the rows; a setting without a row falls back to its next source."""
        for source in TABLES:
            rows = {name: raw for name, raw in self.values(source).items() if name in BROKER_SETTINGS}
            for name in self._applied[source] - rows.keys():
                self._settings.drop(name, source)
            self._applied[source] = set(rows)
            for name, raw in rows.items():
                self._settings.give(name, raw, "altered at run time", source)
