"""What a seed gives: random operations of an event store that depend on what the model has."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.sourcing import ANY, EXISTS, NONE, Condition, Event, Progress, Query, QueryItem
from tests.sourcing.model import Model, Operation

STREAMS = ("a-1", "a-2", "a", "A-1", "b-1-2", "b-ü", "ß", "a_b-1", "ship-1", "ship-2", "it's 100 %", "-", "z-")
CATEGORIES = ("a", "A", "b", "ship", "a_b", "", "none")
TAGS = ("t", "T", "t:1", "ü", "x y", "100 %", "it's")
TYPES = ("Moved", "Named", "Ordered", "Grown", "Renamed", "Note")
SUBJECTS = ("u0", "u1", "u2", "ü 3")


@dataclass(slots=True)
class Generator:
    chosen: random.Random
    model: Model

    def json(self, depth: int = 2) -> Any:
        leaves = [None, True, 0, -1, 2**53 + 1, 10**30, 0.1, 1e-300, "", "ü\u2028\U0001f600", "NUL \0 'x'", "a" * 300]
        kind = self.chosen.randrange(4 if depth else 2)
        if kind < 2:
            return self.chosen.choice(leaves)
        if kind == 2:
            return [self.json(depth - 1) for _ in range(self.chosen.randrange(3))]
        return {self.chosen.choice(["k", "ü", "", "$x"]): self.json(depth - 1) for _ in range(self.chosen.randrange(3))}

    def maybe(self, odds: float, value: Callable[[], Any], otherwise: Any = None) -> Any:
        return value() if self.chosen.random() < odds else otherwise

    def event(self) -> Event:
        kind = self.chosen.choice(TYPES)
        data: dict[str, Any] = {"more": self.json()}
        personal: dict[str, str] = {}
        if kind == "Moved":
            data["cents"] = self.chosen.randrange(50)
        elif kind == "Named":
            data |= {"name": self.json(), "who": self.chosen.choice(SUBJECTS)}
            personal = {"name": data["who"]}
            personal |= self.maybe(0.3, lambda: {"more": self.chosen.choice(SUBJECTS)}, {})
        elif kind == "Ordered":
            data |= {"to": self.chosen.randrange(1, 3), "cents": [self.chosen.randrange(-9, 20) for _ in range(2)]}
        return Event(
            kind,
            data,
            tags=self.chosen.sample(TAGS, self.chosen.choice([0, 0, 1, 2])),
            event_id=self.maybe(0.3, lambda: f"e-{self.chosen.randrange(60)}"),
            actor=self.maybe(0.2, lambda: "ada"),
            correlation_id=self.maybe(0.2, lambda: "c-1"),
            causation_id=self.maybe(0.2, lambda: "c-2"),
            schema_version=self.maybe(0.1, lambda: self.chosen.randrange(1, 5)),
            personal=personal,
        )

    def some(self, values: tuple[str, ...], odds: float) -> tuple[str, ...]:
        return tuple(self.chosen.sample(values, self.chosen.choice([1, 1, 2]))) if self.chosen.random() < odds else ()

    def query(self) -> Query:
        def item() -> QueryItem:
            return QueryItem(
                types=self.some(TYPES, 0.4),
                tags=self.some((*TAGS, "subject:u1"), 0.4),
                streams=self.some(STREAMS, 0.3),
                categories=self.some(tuple(each for each in CATEGORIES if each), 0.2),
            )

        return Query(tuple(item() for _ in range(self.chosen.choice([0, 1, 1, 2]))))

    def place(self) -> int:
        head = len(self.model.rows)
        return self.chosen.choice([0, 0, head, max(head - 3, 0), self.chosen.randint(0, head), head + 5])

    def part(self) -> tuple[str | None, list[Event], Any]:
        stream = self.chosen.choice((*STREAMS, None))
        events = [self.event() for _ in range(self.chosen.choice([1, 1, 1, 2, 3]))]
        if stream is None:
            return stream, events, ANY
        version = len(self.model.stream_of(stream))
        expected = self.chosen.choice([ANY, ANY, ANY, NONE, EXISTS, version, version, version + 1, max(version - 1, 0)])
        return stream, events, expected

    def append(self) -> Operation:
        parts = [self.part() for _ in range(self.chosen.choice([1, 1, 1, 1, 2, 3]))]
        ids = [event.event_id for _, events, _ in parts for event in events if event.event_id]
        if len(set(ids)) < len(ids) or len({stream for stream, _, _ in parts}) < len(parts):
            return self.append()  # refused in words, which test_store tests
        values = {
            "parts": parts,
            "command_id": self.maybe(0.3, lambda: f"c-{self.chosen.randrange(40)}"),
            "condition": self.maybe(0.15, lambda: Condition(self.query(), after=self.place())),
            "progress": self.maybe(0.1, lambda: Progress(self.chosen.choice("pq"), self.chosen.randrange(1, 40))),
        }
        return Operation("append", values)

    def reading(self) -> Operation:
        limit = self.chosen.choice([None, None, 1, 2, 7])
        part = {"after": self.place(), "until": self.maybe(0.4, self.place), "limit": limit}
        part["backwards"] = self.chosen.random() < 0.4
        stream, version = self.chosen.choice(STREAMS), self.maybe(0.5, lambda: self.chosen.randrange(1, 9))
        kinds: list[Callable[[], Operation]] = [
            lambda: Operation("read", {"stream": stream, **part}),
            lambda: Operation("read_all", {"query": self.query(), **part}),
            lambda: Operation("subscribe", {"query": self.query(), "after": self.place()}),
            lambda: Operation("walk", {"query": self.query(), "after": self.place(), "limit": limit or 3}),
            lambda: Operation(
                "load", {"stream": stream, "version": version, "every": self.chosen.choice([None, 1, 3])}
            ),
            lambda: Operation(
                "streams",
                {
                    "category": self.maybe(0.5, lambda: self.chosen.choice(CATEGORIES)),
                    "after": self.maybe(0.5, lambda: stream, ""),
                    "limit": limit or 1000,
                },
            ),
            lambda: Operation(
                "facts",
                {
                    "stream": stream,
                    "command_id": f"c-{self.chosen.randrange(40)}",
                    "name": self.chosen.choice("pq"),
                    "subject": self.chosen.choice(SUBJECTS),
                },
            ),
        ]
        return self.chosen.choice(kinds)()

    def writing(self) -> Operation:
        """All that one writer does at a time, but for appends."""
        stream = self.chosen.choice(STREAMS)
        kinds = {
            "handle": {
                "stream": stream,
                "command": self.chosen.randrange(-40, 40),
                "command_id": self.maybe(0.5, lambda: f"c-{self.chosen.randrange(40)}"),
                "every": self.chosen.choice([None, 1, 3]),
            },
            "run_process": {},
            "delete_snapshots": {},
        }
        name = self.chosen.choices(list(kinds), [8, 3, 1])[0]
        return Operation(name, kinds[name])
