"""Rows become events: their keys, their columns, and what happens to those that cannot be one."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture import CaptureOptions
from headrace.capture.envelope import (
    UNCHANGED,
    CannotEncode,
    Column,
    Table,
    TableEncoder,
    Transaction,
    json_text,
)
from headrace.capture.postgres.values import json_string
from headrace.capture.schemas import named
from headrace.errors import UsageError
from tests.capture.told import Told


def rendered(value: str) -> bytes:
    return json_text(value)


texts = st.one_of(st.none(), st.text(max_size=5))
numbers = st.one_of(st.none(), st.integers(0, 999).map(lambda each: b"%d" % each))
table_rows = st.lists(st.tuples(numbers, texts, texts), max_size=8)


@given(
    rows=table_rows,
    keyed=st.sampled_from([(), (0,), (2, 0)]),
    unwrap=st.booleans(),
    written=st.integers(0, 3),
    schemas=st.booleans(),
)
def test_rows_told_together_are_the_same_events_as_rows_told_one_by_one(
    rows: list[tuple[Any, ...]], keyed: tuple[int, ...], unwrap: bool, written: int, schemas: bool
) -> None:
    kind = named("string", "io.debezium.data.Json%s")
    columns = (
        Column("100%", schema=kind),
        Column("%b", rendered, schema=kind, render_all=lambda values: [rendered(each) for each in values]),
        Column("text", rendered, schema=kind),
    )
    options = CaptureOptions(name="x", url="postgresql://x/y", unwrap=unwrap, schemas=schemas)
    encoder = TableEncoder(Table("s%d", "t", columns, keyed), "x.s.t", options)
    singly, together = Told(), Told()
    first, second = Transaction("a%d:1", 123_456_789, written), Transaction("a%d:1", 123_456_789, written)
    for row in rows:
        encoder.read(singly, first, b'{"table":"%s"}', row)
    encoder.read_all(together, second, b'{"table":"%s"}', rows)
    assert together.records == singly.records
    assert (second.index, second.per_table) == (first.index, first.per_table)


plain_rows = st.lists(
    st.tuples(st.integers(0, 999).map(lambda each: b"%d" % each), st.sampled_from([b"a", "é%d".encode(), b"%b", b""])),
    min_size=1,
    max_size=8,
)


@given(
    rows=plain_rows,
    keyed=st.sampled_from([(), (0,), (1, 0), (0, 1)]),
    unwrap=st.booleans(),
    schemas=st.booleans(),
    told=st.sampled_from([7, 32_764]),
)
def test_plain_rows_told_together_are_the_same_events_as_rows_told_one_by_one(
    rows: list[tuple[bytes, bytes]], keyed: tuple[int, ...], unwrap: bool, schemas: bool, told: int
) -> None:
    kind = named("string", "io.debezium.data.Json")
    number, text = Column("%d", schema=kind), Column('"t"', json_string, schema=kind, is_text=True)
    times = Column("time", lambda value: b"[" + value + b"]", schema=kind)
    table = Table("s", "t", (number, text, times), keyed)
    encoder = encoder_of(table, unwrap=unwrap, schemas=schemas, masks={"*.hidden": "hash"})
    columns = [*zip(*rows, strict=True), [row[0] for row in rows]]
    one, plain = Told(), Told()
    first, second = Transaction("a:1", 123_456_789), Transaction("a:1", 123_456_789)
    first.index = second.index = told
    for row in zip(*columns, strict=True):
        encoder.read(one, first, b"{}", row)
    encoder.read_columns(plain, second, b"{}", columns, len(rows), plain=True)
    assert plain.records == one.records
    assert (second.index, second.per_table) == (first.index, first.per_table)


def test_a_masked_text_among_plain_rows_is_masked() -> None:
    table = Table("public", "users", (Column("id"), Column("email", json_string, is_text=True)), (0,))
    told = Told()
    encoder = encoder_of(table, masks={"*.email": "****"})
    encoder.read_columns(told, Transaction("a:1", 1), b"{}", [[b"7"], [b"ada@example.org"]], 1, plain=True)
    assert json.loads(told.records[0][2])["after"] == {"id": 7, "email": "****"}


def test_a_truncation_stands_in_every_partition_as_one_event_that_says_so() -> None:
    encoder = TableEncoder(Table("s", "t", (Column("id"),), (0,)), "x.s.t", CaptureOptions(name="x", url="sqlite:///x"))
    one, three = Told(), Told(3)
    for told in (one, three):
        encoder.truncated(told, Transaction("a:1", 1), b"{}")
    (alone,) = [json.loads(value) for _, _, value, _ in one.records]
    assert "partitions" not in alone
    values = [json.loads(value) for _, _, value, _ in three.records]
    assert three.partitions_written == [0, 1, 2]
    assert values == [{**alone, "partitions": 3}] * 3


# ---- which columns, and how --------------------------------------------------------------------------------------

USERS = Table(
    "public",
    "users",
    (Column("id"), Column("email", json_text), Column("name", json_text), Column("age")),
    (0,),
)
ADA = (b"7", "ada@example.org", "Ada", b"36")
BOB = (b"8", "bob@example.org", None, b"41")


def encoder_of(table: Table = USERS, **options: Any) -> TableEncoder:
    return TableEncoder(table, "x.public.users", CaptureOptions(name="x", url="postgresql://h/d", **options))


def written(encoder: TableEncoder, *rows: Any) -> list[tuple[Any, Any]]:
    """Key and row of each, one by one and together, which must be the same."""
    singly, together = Told(), Told()
    first, second = Transaction("a:1", 1), Transaction("a:1", 1)
    for row in rows:
        encoder.read(singly, first, b"{}", row)
    encoder.read_all(together, second, b"{}", rows)
    assert together.records == singly.records
    return [(json.loads(key), json.loads(value)["after"]) for _, key, value, _ in singly.records]


def test_an_excluded_column_is_not_in_the_row_and_a_key_stays_in_the_key() -> None:
    encoder = encoder_of(exclude_columns=("public.users.email", "public.users.id"))
    assert written(encoder, ADA, BOB) == [
        ({"id": 7}, {"name": "Ada", "age": 36}),
        ({"id": 8}, {"name": None, "age": 41}),
    ]


def test_with_included_columns_nothing_else_is_in_the_row() -> None:
    assert written(encoder_of(include_columns=("*.name",)), ADA) == [({"id": 7}, {"name": "Ada"})]
    assert written(encoder_of(include_columns=("public.other.*",)), ADA) == [({"id": 7}, {})]


def test_masks_hide_values_and_leave_nulls() -> None:
    encoder = encoder_of(masks={"*.email": "hash", "*.name": "truncate:2", "*.age": "truncate:1"})
    digest = hashlib.sha256(b"ada@example.org").hexdigest()
    assert written(encoder, ADA)[0] == ({"id": 7}, {"id": 7, "email": digest, "name": "Ad", "age": None})
    assert written(encoder, BOB)[0][1]["name"] is None
    starred = written(encoder_of(masks={"*.email": "****", "*.name": "null"}), ADA)[0][1]
    assert (starred["email"], starred["name"]) == ("****", None)


def test_a_salted_hash_is_keyed_and_may_take_its_salt_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALT", "pepper")
    plain, given, taken = (
        written(encoder_of(masks={"*.email": how}), ADA)[0][1]["email"]
        for how in ("hash", "hash:pepper", "hash:${SALT}")
    )
    assert given == taken != plain
    monkeypatch.delenv("SALT")
    with pytest.raises(UsageError, match="SALT"):
        written(encoder_of(masks={"*.email": "hash:${SALT}"}), ADA)


def test_a_mask_reaches_the_key_and_must_keep_keys_distinct_there() -> None:
    encoder = encoder_of(key_columns={"public.users": ("email",)}, masks={"*.email": "hash"})
    ((key, row),) = written(encoder, ADA)
    assert key["email"] == row["email"] == hashlib.sha256(b"ada@example.org").hexdigest()
    for how in ("****", "null", "truncate:3"):
        with pytest.raises(UsageError, match="part of the key"):
            encoder_of(masks={"public.users.id": how})


def test_a_chosen_key_is_the_key_of_messages_and_the_tables_own_is_the_identity() -> None:
    encoder = encoder_of(key_columns={"public.users": ("name", "age")})
    assert encoder.key(ADA) == b'{"name":"Ada","age":36}'
    assert encoder.identity(ADA) == b'{"id":7}'
    assert written(encoder, ADA) == [({"name": "Ada", "age": 36}, {"id": 7, "email": ADA[1], "name": "Ada", "age": 36})]
    with pytest.raises(UsageError, match="no column nmae"):
        encoder_of(key_columns={"public.users": ("nmae",)})


# ---- what cannot be an event -------------------------------------------------------------------------------------


def odd(value: str) -> bytes:
    if value == "odd":
        raise CannotEncode("an odd value")
    return json_text(value)


ODD = Table("public", "users", (Column("id", odd), Column("name", odd)), (0,))


def test_a_row_that_cannot_be_encoded_is_a_dead_letter_and_the_others_are_events() -> None:
    told = Told()
    encoder, transaction = encoder_of(ODD), Transaction("a:1", 1)
    encoder.read_all(told, transaction, b'{"lsn":1}', [("1", "a"), ("2", "odd"), ("3", "c")])
    encoder.created(told, transaction, b'{"lsn":2}', ("odd", "d"))
    assert [json.loads(key) for _, key, _, _ in told.records] == [{"id": "1"}, {"id": "3"}]
    assert [json.loads(value)["transaction"]["total_order"] for _, _, value, _ in told.records] == [1, 3]
    first, second = told.letters
    assert (first["key"], first["operation"], first["reason"]) == (b'{"id":"2"}', "r", "an odd value")
    assert (json.loads(first["row"]), json.loads(first["source"])) == ({"id": "2"}, {"lsn": 1})
    assert json.loads(first["transaction"])["total_order"] == 2
    assert (second["key"], json.loads(second["row"])) == (None, {"name": "d"})


def test_an_old_row_that_cannot_be_encoded_shows_only_its_key() -> None:
    told = Told()
    encoder, transaction = encoder_of(ODD), Transaction("a:1", 1)
    encoder.updated(told, transaction, b"{}", ("1", "odd"), ("1", "b"))
    encoder.deleted(told, transaction, b"{}", ("1", "odd"))
    update, delete, tombstone = told.records
    assert json.loads(update[2])["before"] == json.loads(delete[2])["before"] == {"id": "1", "name": None}
    assert (json.loads(delete[2])["op"], tombstone[2]) == ("d", None)
    assert told.letters == []


def test_a_row_larger_than_the_topic_takes_is_a_dead_letter_and_its_deletion_is_an_event() -> None:
    told = Told(bytes_max=400)
    encoder, transaction = encoder_of(), Transaction("a:1", 1)
    large, small = (b"7", "a" * 500, "Ada", b"36"), (b"7", "a", "Ada", b"36")
    encoder.created(told, transaction, b"{}", large)
    encoder.read_all(told, transaction, b"{}", [large, small])
    encoder.updated(told, transaction, b"{}", large, small)
    encoder.deleted(told, transaction, b"{}", large)
    read, updated, deleted, tombstone = told.records
    assert [each["operation"] for each in told.letters] == ["c", "r"]
    assert "max.message.bytes" in told.letters[0]["reason"]
    assert json.loads(read[2])["op"] == "r"
    assert (json.loads(updated[2])["before"], json.loads(updated[2])["after"]["email"]) == (None, "a")
    assert json.loads(deleted[2])["before"] == {"id": 7, "email": None, "name": None, "age": None}
    assert tombstone[1:3] == (b'{"id":7}', None)


def test_a_deletion_too_large_for_its_topic_is_a_dead_letter_and_a_tombstone() -> None:
    told = Told(bytes_max=100)
    encoder_of().deleted(told, Transaction("a:1", 1), b"{}", (b"7", "a", "Ada", b"36"))
    assert [each["operation"] for each in told.letters] == ["d"]
    assert [each[1:3] for each in told.records] == [(b'{"id":7}', None)]


def test_a_changed_key_is_a_deletion_and_a_creation_that_name_each_other() -> None:
    told = Told()
    row = (b"8", *ADA[1:])
    encoder_of().moved(told, Transaction("a:1", 1), b"{}", ADA, row)
    deleted, tombstone, created = told.records
    assert deleted[1:2] + deleted[3:] == (b'{"id":7}', [("__debezium.newkey", b'{"id":8}')])
    assert tombstone[1:] == (b'{"id":7}', None, [("__debezium.newkey", b'{"id":8}')])
    assert created[1:2] + created[3:] == (b'{"id":8}', [("__debezium.oldkey", b'{"id":7}')])


def test_a_masked_key_still_tells_its_rows_apart_where_messages_have_another() -> None:
    encoder = encoder_of(key_columns={"public.users": ("name",)}, masks={"public.users.id": "****"})
    assert encoder.identity(ADA) == b'{"id":7}'
    assert encoder.identities([[each] for each in ADA], 1) == [b'{"id":7}']


def test_a_key_that_the_database_did_not_send_makes_a_dead_letter() -> None:
    told = Told()
    encoder_of().updated(told, Transaction("a:1", 1), b"{}", None, (UNCHANGED, "a", "b", b"1"))
    assert [each["reason"] for each in told.letters] == ["the database did not send id, which is part of the key"]


def test_a_dead_letter_that_the_log_has_is_not_written_again() -> None:
    told = Told()
    encoder_of(ODD).created(told, Transaction("a:1", 1, written_up_to=1), b"{}", ("1", "odd"))
    assert (told.letters, told.records) == ([], [])


def test_a_truncation_among_plain_rows_is_a_record_without_key_and_value_that_says_what_it_is() -> None:
    told = Told(2)
    transaction = Transaction("a:1", 1)
    encoder_of(unwrap=True).truncated(told, transaction, b"{}")
    assert told.records == [("x.public.users", None, None, [("__op", b"t")])] * 2
    assert (told.partitions_written, transaction.index) == ([0, 1], 1)


# ---- schemas -----------------------------------------------------------------------------------------------------

TYPED = Table(
    "public",
    "users",
    (
        Column("id", schema={"type": "int64"}),
        Column("email", json_text, schema={"type": "string"}),
        Column("day", schema=named("int32", "io.debezium.time.Date")),
    ),
    (0,),
)


def described(schema: Any) -> dict[str, Any]:
    return {each["field"]: {name: each[name] for name in each if name != "field"} for each in schema["fields"]}


def test_with_schemas_keys_and_values_say_what_they_are() -> None:
    encoder = encoder_of(TYPED, schemas=True, exclude_columns=("*.email",))
    one, together = Told(), Told()
    row = (b"7", "ada@example.org", b"20000")
    encoder.read(one, Transaction("a:1", 1), b'{"connector":"x","lsn":7}', row)
    encoder.read_all(together, Transaction("a:1", 1), b'{"connector":"x","lsn":7}', [row])
    assert one.records == together.records
    ((_, key, value, _),) = one.records
    assert json.loads(key)["payload"] == {"id": 7}
    assert described(json.loads(key)["schema"]) == {"id": {"type": "int64", "optional": False}}
    schema, payload = json.loads(value)["schema"], json.loads(value)["payload"]
    assert (payload["op"], payload["after"]) == ("r", {"id": 7, "day": 20000})
    envelope = described(schema)
    assert list(envelope) == list(payload)
    assert described(envelope["source"])["lsn"] == {"type": "int64", "optional": True}
    assert described(envelope["after"]) == {
        "id": {"type": "int64", "optional": False},
        "day": {"type": "int32", "name": "io.debezium.time.Date", "version": 1, "optional": True},
    }
    assert encoder.identity(row) == b'{"id":7}'


def test_with_schemas_a_masked_column_is_a_text_and_a_plain_row_has_the_schema_of_a_row() -> None:
    encoder = encoder_of(TYPED, schemas=True, unwrap=True, masks={"*.day": "hash"})
    told = Told()
    encoder.created(told, Transaction("a:1", 1), b"{}", (b"7", "a", b"20000"))
    value = json.loads(told.records[0][2])
    assert described(value["schema"])["day"] == {"type": "string", "optional": True}
    assert len(value["payload"]["day"]) == 64


def test_a_key_that_cannot_be_encoded_names_its_row_and_only_its_events_are_dead_letters() -> None:
    def unless_odd(value: bytes) -> bytes:
        if value.startswith(b"odd"):
            raise CannotEncode("it is odd")
        return b'"%b"' % value

    encoder = encoder_of(Table("public", "users", (Column("id", unless_odd), Column("n")), (0,)))
    rows = [(b"odd 1", b"1"), (b"even", b"1"), (b"odd 2", b"1")]
    identities = encoder.identities(list(zip(*rows, strict=True)), len(rows))
    assert identities == [encoder.identity(each) for each in rows]
    assert len(set(identities)) == 3
    assert not encoder.has_same_key(rows[0], rows[1])
    assert encoder.has_same_key(rows[0], rows[2])
    told = Told()
    encoder.read_all(told, Transaction("a:1", 1), b"{}", rows)
    assert [key for _, key, _, _ in told.records] == [b'{"id":"even"}']
    assert [each["key"] for each in told.letters] == [None, None]
