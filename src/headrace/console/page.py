"""How a page asks the console: what a page is made of, and what its functions are given.

See the package for how a page is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.console.limits import PAGE_ROWS_MAX
from headrace.console.problems import BadRequest

if TYPE_CHECKING:
    from starlette.routing import Route

    from headrace.client import Client
    from headrace.console.app import Console

__all__ = ["Action", "Ask", "Page", "View", "listing"]

ROWS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question of the browser: its parameters, a client to answer with, and the console with what it sampled."""

    console: Console
    client: Client
    parameters: dict[str, str]
    body: dict[str, Any] = field(default_factory=dict)

    def text(self, name: str, default: str | None = None) -> str:
        value = self.parameters.get(name, default)
        if value is None:
            raise BadRequest(f"the parameter {name} is missing")
        return value

    def integer(self, name: str, default: int | None = None, *, least: int = 0, most: int = 2**63 - 1) -> int:
        given = self.parameters.get(name, "")
        if not given:
            if default is None:
                raise BadRequest(f"the parameter {name} is missing")
            return default
        try:
            value = int(given)
        except ValueError:
            raise BadRequest(f"{name}={given!r} is not a number") from None
        if not least <= value <= most:
            raise BadRequest(f"{name}={value} is outside {least} to {most}")
        return value

    def flag(self, name: str) -> bool:
        return self.parameters.get(name, "") in ("1", "true", "yes")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Something that can be looked at: ``/api/NAME`` gives it once, ``/live/NAME`` whenever it has changed.

    ``answer`` runs on a thread and gives what JSON can hold.
    """

    name: str
    answer: Callable[[Ask], Any]
    every_s: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something that changes something: ``POST /api/NAME`` with a JSON object. A read-only console refuses it."""

    name: str
    act: Callable[[Ask], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a page of the browser asks for. ``routes`` is for streams that are not a ``View``."""

    name: str
    views: Sequence[View] = ()
    actions: Sequence[Action] = ()
    routes: Callable[[Console], list[Route]] | None = None


def listing(
    ask: Ask, rows: list[dict[str, Any]], *, search: Sequence[str], sort: str, descending: bool = False
) -> dict[str, Any]:
    """One page of a table: filtered by ``q`` in the fields ``search``, sorted by ``sort`` (``-field`` is descending).

    ``sort`` and ``descending`` are the order when the browser asks for none. Rows without a value come last.
    """
    words = ask.text("q", "").lower().split()
    if words:
        rows = [row for row in rows if all(any(word in str(row[name]).lower() for name in search) for word in words)]
    order = ask.text("sort", ("-" if descending else "") + sort)
    name = order.removeprefix("-")
    if rows and name not in rows[0]:
        raise BadRequest(f"there is no column {name!r} to sort by")
    known = [row for row in rows if row[name] is not None] if rows else []
    known.sort(key=lambda row: _sort_key(row[name]), reverse=order.startswith("-"))
    rows = known + [row for row in rows if row[name] is None]
    size = ask.integer("rows", ROWS, least=1, most=PAGE_ROWS_MAX)
    pages = max(1, -(-len(rows) // size))
    page = min(ask.integer("page", 1, least=1), pages)
    return {
        "rows": rows[(page - 1) * size : page * size],
        "total": len(rows),
        "page": page,
        "pages": pages,
        "sort": order,
    }


def _sort_key(value: Any) -> tuple[int, Any]:
    return (0, value) if isinstance(value, int | float) else (1, str(value).lower())
