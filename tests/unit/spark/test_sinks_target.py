"""What all targets share: which batch is written, which change of a key counts, and how refused rows are found."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.address import Address
from headrace.errors import Refused, UsageError
from headrace.spark import sinks
from headrace.targets.changes import Changes
from headrace.targets.target import (
    NO_BATCH,
    Fence,
    RefusedRows,
    RowRefused,
    must_write,
    split_refused,
    usable,
)
from headrace.vocabulary import UNAVAILABLE
from tests.sinks.world import Base, changes_of, deliver, fence


@pytest.mark.parametrize(
    ("last", "comes", "keyed", "written"),
    [
        (None, Fence("q", 0, "a", "me"), False, True),
        (Fence("q", 3, "a", "x"), Fence("q", 4, "b", "me"), False, True),
        (Fence("q", 3, "a", "x"), Fence("q", 3, "a", "me"), False, False),
        (Fence("q", 3, None, "x"), Fence("q", 3, "a", "me"), False, False),
        (Fence("q", 3, "a", "x"), Fence("q", 3, None, "me"), True, False),
        (Fence("q", 3, "a", "x"), Fence("q", 3, "b", "me"), True, True),
        (Fence("q", 3, "a", "x"), Fence("q", 1, "b", "me"), True, True),
        (Fence("q", 3, "a", "me"), Fence("q", 4, "b", "me", takes_over=False), True, True),
        (Fence("new", 3, "a", "x", replaced="q"), Fence("q", 4, "b", "me"), True, True),
        (Fence("other", 3, "a", "x"), Fence("q", 0, "b", "me", starts_over=True), True, True),
        (Fence("other", 3, "a", "x"), Fence("q", 0, "b", "me", starts_over=True), False, True),
        (Fence("other", NO_BATCH, None, "x"), Fence("q", 0, "b", "me"), False, True),
    ],
)
def test_the_fence_tells_whether_a_batch_is_written(last: Any, comes: Fence, keyed: bool, written: bool) -> None:
    assert must_write(comes, last, keyed=keyed, where="t") is written


@pytest.mark.parametrize(
    ("last", "comes", "why"),
    [
        (Fence("q", 3, "a", "x"), Fence("q", 3, "b", "me"), "would double"),
        (Fence("q", 3, "a", "x"), Fence("q", 1, "a", "me"), "would double"),
        (Fence("q", 3, "a", "other"), Fence("q", 4, "b", "me", takes_over=False), "taken over"),
        (Fence("other", 3, "a", "x"), Fence("q", 4, "b", "me", takes_over=False), "taken over: x"),
        (None, Fence("q", 4, "b", "me", takes_over=False), "emptied or rebuilt meanwhile"),
        (Fence("q", NO_BATCH), Fence("q", 4, "b", "me", takes_over=False), "emptied or rebuilt meanwhile"),
        (Fence("new", 3, "a", "x", replaced="q"), Fence("q", 4, "b", "me", takes_over=False), "was rebuilt while"),
        (Fence("new", 3, "a", "x", replaced="q"), Fence("q", 4, "b", "me"), "Give headrace rebuild again"),
        (Fence("other", 3, "a", "host 7"), Fence("q", 0, "b", "me"), r"another checkpoint .*query other.* by host 7"),
    ],
)
def test_what_cannot_be_right_without_a_key_is_refused(last: Any, comes: Fence, why: str) -> None:
    with pytest.raises(Refused, match=why):
        must_write(comes, last, keyed=False, where="t")


def test_the_highest_version_of_a_key_counts_and_of_equal_ones_the_last() -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("v", pa.int64())])
    rows = [(1, "new", 5), (1, "old", 4), (2, "first", 1), (2, "second", 1), (3, "only", None)]
    rows += [(4, "known", 1), (4, "unknown", None)]
    kept = usable(changes_of(rows, schema), ["id"], RefusedRows("t"), "v")
    assert sorted(row["name"] for row in kept.rows.to_pylist()) == ["known", "new", "only", "second"]


def test_a_deletion_without_a_version_stands_before_what_comes_after_it_and_concerns_its_own_key_alone() -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("v", pa.int64())])
    rows = [
        (1, "old", 9),
        ("-", 1),
        (2, "new", 5),
        (1, "back", 2),
        (2, "old", 4),
        (1, "older", 1),
        (3, "gone", 3),
        ("-", 3),
    ]
    kept = usable(changes_of(rows, schema), ["id"], RefusedRows("t"), "v")
    assert kept.deleted is not None
    found = list(
        zip(
            kept.rows.column("id").to_pylist(),
            kept.rows.column("name").to_pylist(),
            kept.deleted.to_pylist(),
            strict=True,
        )
    )
    assert sorted(found, key=lambda each: each[0]) == [
        (1, None, True),
        (1, "back", False),
        (2, "new", False),
        (3, None, True),
    ]


def test_changes_of_which_none_is_a_deletion_in_the_end_are_plain_rows() -> None:
    removed_and_back = changes_of([("-", 1), (2, "x"), (1, "back")])
    assert usable(removed_and_back, ["id"], RefusedRows("t")).deleted is None
    kept = usable(changes_of([(1, "a"), (2, "x"), ("-", 1)]), ["id"], RefusedRows("t"))
    assert kept.deleted is not None
    assert kept.deleted.to_pylist() == [False, True]


@pytest.mark.parametrize("missing", [0, 1])
def test_a_row_without_a_part_of_its_key_is_refused(missing: int) -> None:
    schema = pa.schema([("shop", pa.int64()), ("id", pa.int64())])
    row = tuple(None if place == missing else 1 for place in range(2))
    sent: list[pa.Table] = []
    letters = RefusedRows("t", lambda held: sent.extend(rows for rows, _ in held))
    kept = usable(changes_of([(1, 1), row], schema), ["shop", "id"], letters)
    assert kept.rows.to_pylist() == [{"shop": 1, "id": 1}]
    letters.deliver()
    letters.deliver()
    assert [tuple(each.values()) for rows in sent for each in rows.to_pylist()] == [row], "once"


def test_a_value_that_was_not_sent_is_not_taken_from_before_a_deletion() -> None:
    kept = usable(changes_of([(1, "old"), ("-", 1), (1, UNAVAILABLE)]), ["id"], RefusedRows("t"), partial=True)
    assert kept.deleted is not None
    assert kept.deleted.to_pylist() == [True]
    with pytest.raises(Refused, match="did not send a large value"):
        usable(changes_of([(1, "old"), ("-", 1), (1, UNAVAILABLE)]), ["id"], RefusedRows("t"))
    back = usable(changes_of([("-", 1), (1, "new"), (1, UNAVAILABLE)]), ["id"], RefusedRows("t"), partial=True)
    assert [row["name"] for row in back.rows.to_pylist()] == ["new"]
    assert back.deleted is None


def test_a_batch_may_have_as_many_refused_rows_as_are_allowed_and_not_one_more() -> None:
    sent: list[int] = []
    letters = RefusedRows("t", lambda held: sent.extend(len(rows) for rows, _ in held), rows_max=3)
    letters.refuse(changes_of([(1, "a"), (2, "b")]), "too long")
    letters.refuse(changes_of([(3, "c")]), "too long")
    assert (letters.deliver(), sent) == (3, [2, 1])
    with pytest.raises(Refused, match=r"t refused 4 rows of one batch, the last because: too short"):
        letters.refuse(changes_of([(4, "d")]), "too short")


@given(st.lists(st.booleans(), max_size=70))
def test_halving_finds_exactly_the_refused_rows_and_tries_no_row_twice_in_success(good: list[bool]) -> None:
    written: list[int] = []

    def attempt(part: Changes) -> None:
        rows = part.rows.column("id").to_pylist()
        if not all(good[row] for row in rows):
            raise RowRefused("bad")
        written.extend(rows)

    refused: list[int] = []
    letters = RefusedRows("t", lambda held: refused.extend(row["id"] for rows, _ in held for row in rows.to_pylist()))
    split_refused(changes_of([(number, "x") for number in range(len(good))]), attempt, letters)
    letters.deliver()
    assert written == [number for number, fine in enumerate(good) if fine]
    assert refused == [number for number, fine in enumerate(good) if not fine]


CHANGE = st.tuples(st.integers(0, 5), st.sampled_from(["", "a", "b", "it's"]), st.booleans())


@settings(max_examples=40)
@given(st.lists(st.lists(st.lists(CHANGE, max_size=6), max_size=3), max_size=5), st.data())
def test_a_table_equals_its_folded_changes_however_they_are_cut_and_repeated(
    batches: list[list[list[tuple[int, str, bool]]]], data: st.DataObject
) -> None:
    wanted: dict[int, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        base = Base("sqlite", f"sqlite:///{folder}/t.db")
        for number, chunks in enumerate(batches):
            made = [changes_of([("-", key) if gone else (key, name) for key, name, gone in rows]) for rows in chunks]
            for _ in range(data.draw(st.integers(1, 2))):
                deliver(base.target(), *made, at=fence(number))
            for key, name, gone in (change for rows in chunks for change in rows):
                wanted.pop(key, None)
                if not gone:
                    wanted[key] = name
        assert not batches or dict(base.rows()) == wanted


def test_an_address_is_shown_without_password_and_options_and_reads_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "p@ss")
    address = Address("postgresql://app:${SHOP_PASSWORD}@db:5432/shop?sslpassword=hidden")
    assert address.shown == "postgresql://app@db:5432/shop"
    assert address.password() == "p@ss"
    assert "hidden" not in repr(address)
    assert Address("sqlite:////tmp/a.db").shown == "sqlite:////tmp/a.db"
    with pytest.raises(UsageError, match="needs the environment variable NOBODY_SET_THIS"):
        Address("redis://:${NOBODY_SET_THIS}@x").resolved()


def test_a_sink_is_described_without_its_secrets() -> None:
    secret = "whsec_" + base64.b64encode(b"x" * 32).decode()
    made = [
        sinks.sql("postgresql://me:secret@h/db", table="t", key="id"),
        sinks.redis("redis://:secret@h/0", name="n", key="id"),
        sinks.opensearch("https://me:secret@h:9200", index="i", key="id"),
        sinks.webhook("https://h/x?token=secret", secret=secret),
        sinks.email("smtp://me:secret@h", sender="a@b.c", to="d@e.f"),
    ]
    assert [each.describe() for each in made if "secret" in each.describe() or "secret" in repr(each)] == []
    assert secret not in repr(made)


@pytest.mark.parametrize(
    "url", ["sqlite:a.db", "sqlite:/a.db", "sqlite://a.db", "sqlite://h/a.db", "sqlite:///", "sqlite:///a.db?mode=ro"]
)
def test_an_address_that_names_another_file_than_it_seems_to_is_refused(url: str) -> None:
    """``sqlite:a.db`` wrote to ``.db``, and ``sqlite://h/a.db`` to ``a.db``."""
    with pytest.raises(UsageError, match="sqlite:///FILE"):
        sinks.sql(url, table="t", key="id")
    sinks.sql("sqlite:///a%3Fb%23.db", table="t", key="id")
    sinks.sql("sqlite:///${WHERE}/a.db", table="t", key="id")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"key": ""}, "key='' is no name"),
        ({"key": ["id", "id"]}, "each once"),
        ({"version": "v"}, "there is no key"),
        ({"refused_max": "many"}, "must be a number of rows"),
        ({"refused_max": -1}, "must be a number of rows"),
        ({"dead_letters": "my letters"}, "dead_letters='my letters' cannot be the name of a topic"),
        ({"options": {"compression": "zstd"}}, "did you mean kafka.compression.type"),
    ],
)
def test_a_mistake_in_an_argument_of_a_sink_is_found_where_it_is_written(more: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        sinks.sql("sqlite:///a.db", table="t", **more)


@pytest.mark.parametrize("name", ["my out", "", ".", "..", "a,b", "a" * 250])
def test_a_topic_that_no_broker_takes_is_refused_where_it_is_written(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a topic"):
        sinks.topic(name)


def test_options_of_a_topic_are_checked_where_they_are_written() -> None:
    with pytest.raises(UsageError, match=r"kafka.compression.type='zst' must be one of none, gzip"):
        sinks.topic("out", options={"kafka.compression.type": "zst"})
    sinks.topic("out", key=("a", "b"), options={"transactionTimeoutMs": 60_000, "kafka.compression.type": "zstd"})


def test_wrong_use_of_a_sink_is_told_with_what_is_right(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a sink knows no 'dead_leters'"):
        sinks.sql("sqlite:///x", table="t", key="id", dead_leters="oops")
    with pytest.raises(UsageError, match=r"hr.sinks.opensearch"):
        sinks.search("https://host:9200", index="i", key="id")
    with pytest.raises(UsageError, match="needs to know what rows are known by"):
        sinks.redis("redis://h", name="n", key=())
    with pytest.raises(UsageError, match="no name of a table"):
        sinks.sql("sqlite:///x", table=("a", "b", "c"), key="id")
    with pytest.raises(UsageError, match="no mail server"):
        sinks.email("http://h", sender="a@b.c", to="d@e.f")
