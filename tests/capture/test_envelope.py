"""Rows rendered column by column are the same bytes as rows rendered one by one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.capture import CaptureOptions
from headrace.capture.envelope import Column, Headers, Table, TableEncoder, Transaction, json_text


class Told:
    def __init__(self) -> None:
        self.records: list[Any] = []

    def add(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        self.records.append((topic, key, value, list(headers)))

    def takes_truncations(self, topic: str) -> bool:
        return True


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
    with_keys=st.booleans(),
)
def test_rows_told_together_are_the_same_events_as_rows_told_one_by_one(
    rows: list[tuple[Any, ...]], keyed: tuple[int, ...], unwrap: bool, written: int, with_keys: bool
) -> None:
    columns = (Column("100%"), Column("%b", rendered), Column("text", rendered))
    options = CaptureOptions(name="x", url="sqlite:///x", unwrap=unwrap)
    encoder = TableEncoder(Table("s%d", "t", columns, keyed), "x.s.t", options)
    singly, together = Told(), Told()
    first, second = Transaction("a%d:1", 123_456_789, written), Transaction("a%d:1", 123_456_789, written)
    for row in rows:
        encoder.read(singly, first, b'{"table":"%s"}', row)
    encoder.read_all(together, second, b'{"table":"%s"}', rows, encoder.keys(rows) if with_keys else None)
    assert together.records == singly.records
    assert (second.index, second.per_table) == (first.index, first.per_table)
