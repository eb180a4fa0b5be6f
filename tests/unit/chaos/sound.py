"""A history with nothing wrong in it, for faults to be planted in."""

from __future__ import annotations

from typing import Any

from tests.chaos.operations import Operation, make_value

TOPIC = "in"


class Sound:
    """A history in which everything holds: plain and transactional values, a group, a transformation, and topics that
    are compacted, shortened, deleted and created again."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.logs: dict[tuple[str, int], dict[int, str]] = {
            (TOPIC, 0): {},
            (TOPIC, 1): {},
            ("out", 0): {},
            ("short", 0): {},
        }
        self.hidden: set[str] = set()
        self.time = 0.0
        for number in range(6):
            self.produce("p0", number, number % 2)
        self.transaction("t0", "commit")
        self.transaction("t1", "abort")
        self.transaction("t2", "unknown")
        self.produce("p0", 6, 0)
        self.transform()
        self.group()
        self.look_at_ends()
        self.shorten()
        self.compact()
        self.recreate()
        self.read_all()
        self.look_at_ends()

    def tick(self) -> float:
        self.time += 1.0
        return self.time

    def append(self, topic: str, partition: int, value: str) -> int:
        log = self.logs[topic, partition]
        offset = max(log, default=-1) + (2 if log else 1)  # markers leave gaps
        log[offset] = value
        return offset

    def produce(
        self, producer: str, number: int, partition: int, txn: str = "", source: str = "", topic: str = TOPIC
    ) -> str:
        topic = "out" if source else topic
        value = make_value("v", producer, number, txn, source)
        offset = self.append(topic, partition, value)
        self.operations.append(
            {"op": "produce", "type": "ok", "producer": producer, "number": number, "topic": topic, "value": value}
            | {"partition": partition, "offset": offset, "txn": txn or None, "time": self.tick()}
        )
        return value

    def transaction(self, txn: str, outcome: str) -> None:
        values = [self.produce(f"x-{txn}", number, number % 2, txn) for number in range(4)]
        if outcome == "abort":
            self.hidden.update(values)
        self.end(txn, commit=outcome != "abort", type_="info" if outcome == "unknown" else "ok")

    def end(self, txn: str, *, commit: bool, type_: str = "ok") -> None:
        began = self.tick()
        self.operations.append(
            {"op": "end", "txn": txn, "commit": commit, "type": type_, "began": began, "time": self.tick()}
        )

    def transform(self) -> None:
        number = 0
        for partition in (0, 1):
            for offset, value in self.logs[TOPIC, partition].items():
                if value not in self.hidden:
                    self.produce("etl", number, 0, "e0", f"{TOPIC}:{partition}:{offset}")
                    number += 1
        self.end("e0", commit=True)

    def group(self) -> None:
        for offset in (2, 4, 6):
            began = self.tick()
            self.operations.append(self.position("commit", offset, began) | {"type": "ok"})
            self.operations.append(self.position("observe", offset, self.tick()))
        for member in ("a", "b"):
            for op in ("own", "release"):
                self.operations.append(
                    {"op": op, "group": "g", "member": member, "partitions": [[TOPIC, 0]], "time": self.tick()}
                )

    def position(self, op: str, offset: int, began: float) -> Operation:
        place = {"group": "g", "topic": TOPIC, "partition": 0}
        return {"op": op, "offset": offset, "began": began, "time": self.tick()} | place

    def look_at_ends(self) -> None:
        for isolation in ("committed", "uncommitted"):
            for (topic, partition), log in self.logs.items():
                place = {"topic": topic, "partition": partition, "began": self.tick()}
                low, high = min(log, default=0), max(log, default=-1) + 1
                self.operations.append(
                    {"op": "ends", "isolation": isolation, "low": low, "high": high, "time": self.tick()} | place
                )

    def shorten(self) -> None:
        for number in range(6):
            self.produce("s0", number, 0, topic="short")
        log = self.logs["short", 0]
        self.read_short()
        self.operations.append(
            {"op": "trim", "topic": "short", "partition": 0, "offset": 5, "type": "ok", "time": self.tick()}
        )
        self.logs["short", 0] = {offset: value for offset, value in log.items() if offset >= 5}
        self.read_short()

    def read_short(self) -> None:
        began = self.tick()
        self.operations.append(
            {"op": "read", "reader": "again", "isolation": "committed", "topic": "short", "partition": 0, "odd": []}
            | {"records": [list(each) for each in self.logs["short", 0].items()], "final": False}
            | {"began": began, "time": self.tick()}
        )

    def compact(self) -> None:
        """Two values of key a, a value and a tombstone of key b, a value of key c without an answer."""
        for number, (key, gone, type_) in enumerate(
            [("a", False, "ok"), ("b", False, "ok"), ("a", False, "ok"), ("b", True, "ok"), ("c", False, "info")]
        ):
            value = None if gone else make_value(key, "k0", number)
            self.operations.append(
                {"op": "put", "key": key, "number": number, "topic": "compact", "partition": 0, "value": value}
                | {"type": type_, "time": self.tick()}
                | ({"offset": number} if type_ == "ok" else {})
            )
            if number == 1:
                self.fold({"a": [0, make_value("a", "k0", 0)], "b": [1, make_value("b", "k0", 1)]})
        self.fold({"a": [2, make_value("a", "k0", 2)], "b": [3, None], "c": [4, make_value("c", "k0", 4)]})
        self.fold({"a": [2, make_value("a", "k0", 2)]})

    def fold(self, table: dict[str, list[Any]]) -> None:
        began = self.tick()
        self.operations.append(
            {"op": "fold", "topic": "compact", "partition": 0, "table": table, "began": began, "time": self.tick()}
        )

    def recreate(self) -> None:
        for life in range(2):
            for number in range(2):
                value = make_value(str(life), "r0", 10 * life + number)
                self.operations.append(
                    {"op": "life-put", "life": life, "topic": "brief", "partition": 0, "value": value}
                    | {"type": "ok", "offset": number, "time": self.tick()}
                )
            began = self.tick()
            records = [[number, make_value(str(life), "r0", 10 * life + number)] for number in range(2)]
            self.operations.append(
                {"op": "life-read", "topic": "brief", "partition": 0, "records": records, "began": began}
                | {"time": self.tick(), "final": life == 1}
            )
            if life == 0:
                self.operations.append({"op": "life-end", "life": life, "topic": "brief", "time": self.tick()})

    def read_all(self) -> None:
        for isolation in ("committed", "uncommitted"):
            for final in (False, True):
                for (topic, partition), log in self.logs.items():
                    hidden = self.hidden if isolation == "committed" else set()
                    records = [[offset, value] for offset, value in log.items() if value not in hidden]
                    self.operations.append(
                        {"op": "read", "reader": f"{isolation}-{final}", "isolation": isolation, "topic": topic}
                        | {"partition": partition, "records": records, "time": self.tick(), "final": final, "odd": []}
                    )
