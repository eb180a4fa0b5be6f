"""Broker settings that were altered at run time: the state table ``broker_config``."""

from __future__ import annotations

from headrace.broker.state import StateStore
from headrace.config import Settings, Source

__all__ = ["DynamicSettings"]


class DynamicSettings:
    """Applies the rows of ``broker_config`` to the settings. They override file, environment and flags."""

    def __init__(self, *, state: StateStore, settings: Settings) -> None:
        self._state = state
        self._settings = settings
        self._applied: set[str] = set()

    def apply(self) -> None:
        """Make the settings equal to the rows; a setting without a row falls back to its next source."""
        rows = self._state.table("broker_config")
        for name in self._applied - rows.keys():
            self._settings.drop(name)
        self._applied = set(rows)
        for name, row in rows.items():
            self._settings.give(name, row["value"], "altered at run time", Source.DYNAMIC_BROKER)
