"""Old events in new code: the data of a stored event is brought to its newest form when it is read.

    upcasters = Upcasters()

    @upcasters.register("Deposited", from_version=1)
    def add_currency(data):
        return {**data, "currency": "EUR"}

Each function takes the data of one version and gives that of the next, so a chain of them leads from any version to the
newest. A function may also give ``(type, data)``: the event has another type from then on, at version 1 of that type.
Stored events stay as they are. New events are stored with the newest version of their type.

``unknown="refuse"`` raises for types that ``known`` does not name; by default such events are read as they are.
``SubjectForgotten`` is always known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from headrace.errors import UsageError
from headrace.sourcing.errors import SourcingError
from headrace.sourcing.privacy import FORGOTTEN_TYPE

__all__ = ["Upcasters"]

Data = dict[str, Any]
Upcaster = Callable[[Data], Data | tuple[str, Data]]
STEPS_MAX = 1_000


class Upcasters:
    """A chain of functions for each type; see the module."""

    def __init__(self, *, known: Collection[str] = (), unknown: Literal["keep", "refuse"] = "keep") -> None:
        self._steps: dict[tuple[str, int], Upcaster] = {}
        self._newest: dict[str, int] = {}
        self._known = frozenset((*known, FORGOTTEN_TYPE))
        self._refuses = unknown == "refuse"

    @property
    def is_used(self) -> bool:
        return bool(self._steps) or self._refuses

    def register(self, kind: str, *, from_version: int) -> Callable[[Upcaster], Upcaster]:
        def keep(function: Upcaster) -> Upcaster:
            if (kind, from_version) in self._steps:
                raise UsageError(f"{kind} has two upcasters from version {from_version}", "remove one of them")
            self._steps[kind, from_version] = function
            self._newest[kind] = max(self.newest(kind), from_version + 1)
            return function

        return keep

    def newest(self, kind: str) -> int:
        return self._newest.get(kind, 1)

    def upcast(self, kind: str, version: int, data: Data) -> tuple[str, Data]:
        for _ in range(STEPS_MAX):
            step = self._steps.get((kind, version))
            if step is None:
                if self._refuses and kind not in self._known and kind not in self._newest:
                    raise SourcingError(f"{kind} is no type of event that this program knows: add it to known")
                return kind, data
            found = step(data)
            if not isinstance(found, Mapping | tuple):
                raise UsageError(f"the upcaster of {kind} from version {version} gave {found!r:.40}", "return its data")
            if isinstance(found, tuple):
                kind, data = found
                version = 1
            else:
                data, version = found, version + 1
        raise UsageError(f"the upcasters of {kind} lead in a circle", "let each type become a newer one only")
