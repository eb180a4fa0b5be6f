"""The envelope against what Debezium 3.6.3 wrote for the same changes, recorded in ``samples``.

The recorded scenario is played to ``PostgresEvents`` as the messages that PostgreSQL had sent, and every record must
come out equal, field by field and in the same order, once times and versions are masked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.capture.envelope import UNCHANGED, Headers
from headrace.capture.options import CaptureOptions
from headrace.capture.postgres import pgoutput
from headrace.capture.postgres.events import PostgresEvents
from headrace.capture.postgres.pgoutput import RelationColumn
from headrace.capture.postgres.values import PgType
from tests.capture.told import Told

SAMPLES = Path(__file__).parent / "samples"
DZ, DZ2 = 16400, 16500
ENUM = 16390
TYPES = {
    oid: PgType(oid, name, kind, category, 0, element, -1)
    for oid, name, kind, category, element in [
        (23, "int4", "b", "N", 0),
        (1700, "numeric", "b", "N", 0),
        (1184, "timestamptz", "b", "D", 0),
        (1114, "timestamp", "b", "D", 0),
        (1082, "date", "b", "D", 0),
        (1083, "time", "b", "D", 0),
        (1007, "_int4", "b", "A", 23),
        (1009, "_text", "b", "A", 25),
        (3802, "jsonb", "b", "U", 0),
        (17, "bytea", "b", "U", 0),
        (2950, "uuid", "b", "U", 0),
        (25, "text", "b", "S", 0),
        (1186, "interval", "b", "T", 0),
        (ENUM, "mood", "e", "E", 0),
        (16, "bool", "b", "B", 0),
        (701, "float8", "b", "N", 0),
        (3904, "int4range", "r", "R", 0),
    ]
}
COLUMNS = {
    "id": (23, -1),
    "n": (1700, -1),
    "n2": (1700, (10 << 16 | 2) + 4),
    "tz": (1184, -1),
    "ts": (1114, -1),
    "d": (1082, -1),
    "tm": (1083, -1),
    "ia": (1007, -1),
    "ta": (1009, -1),
    "j": (3802, -1),
    "b": (17, -1),
    "u": (2950, -1),
    "t": (25, -1),
    "iv": (1186, -1),
    "e": (ENUM, -1),
    "bo": (16, -1),
    "f": (701, -1),
    "r": (3904, -1),
}
FULL: dict[str, Any] = {
    "id": b"3",
    "n": b"1.5",
    "n2": b"2.50",
    "tz": b"2026-01-02 01:04:05.123456+00",
    "ts": b"2026-01-02 03:04:05.123456",
    "d": b"2026-01-02",
    "tm": b"03:04:05.5",
    "ia": b"{1,2,NULL}",
    "ta": b"{a,b}",
    "j": b'{"k": [1, 2]}',
    "b": b"\\xdeadbeef",
    "u": b"00000000-0000-0000-0000-000000000001",
    "iv": b"P1M2D",
    "e": b"e1",
    "bo": b"t",
    "f": b"1.25",
    "r": b"[1,5)",
}


def row(**values: Any) -> list[Any]:
    return [values.get(name) for name in COLUMNS]


AS_DEBEZIUM: dict[str, Any] = {"decimals": "precise", "times": "numbers"}


class Recorder(Told):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[dict[str, Any]] = []

    def add(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        *,
        partition: int | None = None,
    ) -> None:
        if topic != "srv":  # changes of the schema, which Debezium does not tell for PostgreSQL
            self.records.append({"dest": topic, "key": _parsed(key), "value": _parsed(value)})


def _parsed(text: bytes | None) -> Any:
    return None if text is None else json.loads(text)


class Player:
    """Plays messages as a replication connection would."""

    def __init__(self, identity: str, **options: Any) -> None:
        self.out = Recorder()
        self.events = PostgresEvents(
            CaptureOptions(name="srv", url="postgresql://x/postgres", **{**AS_DEBEZIUM, **options}),
            "postgres",
            self.out,
        )
        self.events.types = TYPES
        self.events.stand_for({"public.dz": (DZ, ["id"])})
        columns = tuple(RelationColumn(name, *kind, name == "id" or identity == "f") for name, kind in COLUMNS.items())
        self.events.relation(pgoutput.Relation(0, DZ, "public", "dz", identity, columns))

    def transaction(self, xid: int, end: int, *changes: tuple[int, Any]) -> None:
        self.events.begin(end - 48, 0, xid)
        for lsn, change in changes:
            if isinstance(change, pgoutput.Insert):
                self.events.insert(change, lsn, 2000)
            elif isinstance(change, pgoutput.Update):
                self.events.update(change, lsn, 2000)
            elif isinstance(change, pgoutput.Delete):
                self.events.delete(change, lsn)
            elif isinstance(change, pgoutput.Truncate):
                self.events.truncate(change, lsn)
            else:
                self.events.message(change, lsn)
        self.events.end(end)


def masked(record: dict[str, Any]) -> str:
    """As text, so that the order of fields is compared too."""
    copy = json.loads(json.dumps(record))
    value = copy["value"]
    if copy["dest"].endswith(".transaction"):
        # Debezium's id names the position of an operation and differs between begin and end; ours is the commit's.
        copy["key"]["id"] = value["id"] = value["id"].partition(":")[0]
        # Debezium writes the name of a Java object where a logical message is meant.
        for each in value["data_collections"] or ():
            if each["data_collection"].startswith("io.debezium."):
                each["data_collection"] = "message"
    elif value is not None and value["transaction"] is not None:
        value["transaction"]["id"] = value["transaction"]["id"].partition(":")[0]
    return json.dumps(_without_times(copy))


def _without_times(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        name: "masked" if name in ("ts_ms", "ts_us", "ts_ns", "version") else _without_times(each)
        for name, each in value.items()
    }


def samples(name: str) -> list[dict[str, Any]]:
    lines = (SAMPLES / name).read_text().splitlines()
    return [each for each in map(json.loads, lines) if not each["dest"].startswith("__debezium-heartbeat")]


def test_a_stream_with_default_identity_and_transaction_topic_equals_debezium() -> None:
    large = b"9dd4e461268c8034f5c8...(153000 chars)"
    larger = b"c4ca4238a0b923820dcc...(16000 chars)"
    player = Player("d", transactions=True, remembered_bytes_max=0)  # without a memory, as Debezium
    new, key = {**FULL}, {"id": b"3"}
    insert, update, delete = pgoutput.Insert, pgoutput.Update, pgoutput.Delete
    player.transaction(751, 25882856, (25882336, insert(0, DZ, row(**new))))
    player.transaction(752, 25885336, (25884960, update(0, DZ, False, None, row(**new, t=large))))
    player.transaction(753, 25903832, (25903400, update(0, DZ, False, None, row(**new, t=larger))))
    new |= {"f": b"9", "t": UNCHANGED}
    player.transaction(754, 25904264, (25903888, update(0, DZ, False, None, row(**new))))
    player.transaction(755, 25904784, (25904320, update(0, DZ, True, row(**key), row(**new | {"id": b"4"}))))
    deleted = (25904784, delete(0, DZ, True, row(id=b"4")))
    player.transaction(756, 25905600, deleted, (25905416, insert(0, DZ, row(id=b"5"))))
    message = pgoutput.LogicalMessage(0, True, 25905720, "pfx", b"hello")
    player.transaction(757, 25905768, (25905720, message))
    player.transaction(758, 25909080, (25908664, pgoutput.Truncate(0, (DZ,), False, False)))
    recorded = samples("stream_txmeta_replident_default.jsonl")
    assert [masked(each) for each in player.out.records] == [masked(each) for each in recorded]


def test_a_stream_with_full_identity_equals_debezium() -> None:
    player = Player("f")
    first, second = row(id=b"10", f=b"1"), row(id=b"10", f=b"2")
    player.transaction(765, 26068592, (26068400, pgoutput.Insert(0, DZ, first)))
    player.transaction(766, 26068760, (26068592, pgoutput.Update(0, DZ, False, first, second)))
    player.transaction(767, 26068900, (26068760, pgoutput.Delete(0, DZ, False, second)))
    recorded = [each for each in samples("snapshot_and_replident_full.jsonl") if each["key"] == {"id": 10}]
    for each in player.out.records:
        if each["value"] is not None:
            each["value"]["transaction"] = None  # Debezium tells it only together with the transaction topic
    assert [masked(each) for each in player.out.records] == [masked(each) for each in recorded]


@pytest.mark.parametrize("index", range(6))
def test_a_row_of_a_snapshot_equals_debezium(index: int) -> None:
    recorded = samples("snapshot_and_replident_full.jsonl")[index]
    source, after = recorded["value"]["source"], recorded["value"]["after"]
    player = Player("d")
    events = player.events
    kinds = COLUMNS if source["table"] == "dz" else {"a": (23, -1), "b": (23, -1)}
    columns = [RelationColumn(name, *kind, False) for name, kind in kinds.items()]
    followed = events.follow("public", source["table"], columns, [*recorded["key"]])
    texts: dict[Any, bytes | None] = {None: None, "bg==": b"1.10", "ASw=": b"3.00"}
    values = [texts[each] if each in texts else str(each).encode() for each in after.values()]
    block = followed.block.of_transaction(0, source["txId"], None, source["snapshot"].encode())
    events.begin(0, 0, source["txId"])
    followed.encoder.read(player.out, events.transaction, block % (source["lsn"], source["lsn"]), values)
    (record,) = player.out.records
    record["value"]["transaction"] = None
    assert masked(record) == masked(recorded)


def test_large_values_that_are_not_sent_again_are_filled_in_from_what_was_seen() -> None:
    player = Player("d")
    seen = row(id=b"1", t=b"x" * 5000, f=b"1")
    player.transaction(1, 10, (5, pgoutput.Insert(0, DZ, seen)))
    player.transaction(2, 20, (15, pgoutput.Update(0, DZ, False, None, row(id=b"1", t=UNCHANGED, f=b"2"))))
    player.transaction(3, 30, (25, pgoutput.Update(0, DZ, True, row(id=b"1"), row(id=b"2", t=UNCHANGED))))
    player.transaction(4, 40, (35, pgoutput.Update(0, DZ, False, None, row(id=b"2", t=UNCHANGED, f=b"3"))))
    after = [each["value"]["after"] for each in player.out.records if each["value"] and each["value"]["after"]]
    assert [each["t"] for each in after] == ["x" * 5000] * 4


def test_a_row_that_was_deleted_lends_its_large_value_to_nobody() -> None:
    player = Player("d")
    player.transaction(1, 10, (5, pgoutput.Insert(0, DZ, row(id=b"1", t=b"x" * 5000))))
    player.transaction(2, 20, (15, pgoutput.Delete(0, DZ, True, row(id=b"1"))))
    player.transaction(3, 30, (25, pgoutput.Update(0, DZ, False, None, row(id=b"1", t=UNCHANGED))))
    assert player.out.records[-1]["value"]["after"]["t"] == "__debezium_unavailable_value"


def test_with_full_identity_an_unsent_value_comes_from_the_old_row() -> None:
    player = Player("f")
    old, new = row(id=b"1", t=b"large", f=b"1"), row(id=b"1", t=UNCHANGED, f=b"2")
    player.transaction(1, 10, (5, pgoutput.Update(0, DZ, False, old, new)))
    assert player.out.records[0]["value"]["after"]["t"] == "large"


def test_events_that_the_log_has_are_passed_over_and_the_others_keep_their_numbers() -> None:
    whole, resumed = Player("d"), Player("d")
    changes = [pgoutput.Insert(0, DZ, row(id=b"%d" % number)) for number in range(5)]
    changes.insert(3, pgoutput.Update(0, DZ, True, row(id=b"1"), row(id=b"9")))  # type: ignore[arg-type]
    whole.transaction(7, 99, *((number, change) for number, change in enumerate(changes)))
    for written in range(8):
        resumed.out.records.clear()
        resumed.events.begin(51, 0, 7, written_up_to=written)
        for number, change in enumerate(changes):
            if isinstance(change, pgoutput.Insert):
                resumed.events.insert(change, number, 10)
            else:
                resumed.events.update(change, number, 10)
        tail = [each for each in whole.out.records if order(whole.out.records, each) > written]
        assert [masked(each) for each in resumed.out.records] == [masked(each) for each in tail]


def order(records: list[dict[str, Any]], record: dict[str, Any]) -> int:
    """The number of an event; a tombstone has that of the deletion before it."""
    at = next(index for index, each in enumerate(records) if each is record)
    value = record["value"] or records[at - 1]["value"]
    total: int = value["transaction"]["total_order"]
    return total
