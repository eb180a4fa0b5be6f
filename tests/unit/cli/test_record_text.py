"""Records become text and text becomes records, whatever bytes they hold."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.record_text import compile_format, json_line, parse_json_line, time_text, unescape
from headrace.client import TopicPartition
from headrace.errors import UsageError
from headrace.record import Record

HERE = TopicPartition("t", 3)
BYTES = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)
RECORDS = st.builds(
    Record,
    key=BYTES,
    value=BYTES,
    timestamp=st.integers(-1, 2**60),
    offset=st.integers(0, 2**60),
    headers=st.lists(st.tuples(st.text(max_size=8), BYTES), max_size=3),
)


@given(RECORDS)
def test_a_json_line_carries_every_record_there_and_back(record: Record) -> None:
    line = json_line(HERE, record)
    assert line.count(b"\n") == 1
    draft = parse_json_line(line, 1)
    assert (draft.key, draft.value, list(draft.headers)) == (record.key, record.value, list(record.headers))
    assert (draft.partition, draft.timestamp) == (3, record.timestamp)


def test_text_stays_readable_and_other_bytes_become_base64() -> None:
    readable = json.loads(json_line(HERE, Record(key="ключ".encode(), value=b"v", timestamp=5, offset=9)))
    assert readable == {"topic": "t", "partition": 3, "offset": 9, "timestamp": 5, "key": "ключ", "value": "v"}
    other = json.loads(json_line(HERE, Record(key=None, value=b"\xff", headers=[("h", b"\xfe"), ("n", None)])))
    assert other["value_base64"] == "/w=="
    assert other["headers"] == [["h", {"base64": "/g=="}], ["n", None]]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'{"value": "text"}', b"text"),
        (b'{"value": {"a": [1, true]}}', b'{"a":[1,true]}'),
        (b'{"value": 7}', b"7"),
        (b'{"value": null}', None),
        (b'{"value": ""}', b""),
        (b'{"value_base64": "AAE="}', b"\x00\x01"),
    ],
)
def test_a_value_may_be_text_any_other_json_or_base64(line: bytes, value: bytes | None) -> None:
    assert parse_json_line(line, 1).value == value


def test_headers_may_be_an_object_or_pairs() -> None:
    assert list(parse_json_line(b'{"value": "", "headers": {"a": "1"}}', 1).headers) == [("a", b"1")]
    pairs = parse_json_line(b'{"value": "", "headers": [["a", "1"], ["a", null]]}', 1)
    assert list(pairs.headers) == [("a", b"1"), ("a", None)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense", "line 7 is not JSON"),
        (b"\xff", "line 7 is not JSON"),
        (b"[" * 100_000, "line 7 is not JSON"),
        (b"[1]", "line 7 is not a JSON object"),
        (b'{"value_base64": "!"}', "value_base64 is not base64"),
        (b'{"headers": "x"}', "headers must be"),
        (b'{"headers": [["a"]]}', "headers must be"),
        (b'{"partition": "0"}', "partition must be a whole number"),
        (b'{"timestamp": 1.5}', "timestamp must be a whole number"),
        (b'{"partition": true}', "partition must be a whole number"),
        (b'{"valu": 1}', "line 7: unknown field 'valu'"),
        (b'{"key": "a"}', "line 7 has no value"),
        (b"{}", "line 7 has no value"),
    ],
)
def test_a_bad_line_is_refused_by_its_number(line: bytes, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_json_line(line, 7)


RECORD = Record(key=b"k", value=b"v\x00", timestamp=1_769_860_800_000, offset=9, headers=[("h", b"1"), ("n", None)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t[%p]@%o", b"t[3]@9"),
        ("%k=%v", b"k=v\x00"),
        ("%s", b"v\x00"),
        ("%K %S", b"1 2"),
        ("%T", b"1769860800000"),
        ("%D", b"2026-01-31T12:00:00.000Z"),
        ("%h", b"h=1,n=-"),
        ("100%%", b"100%"),
        (r"a\tb\n\x00\\", b"a\tb\n\x00\\"),
        ("", b""),
        ("%v%v", b"v\x00v\x00"),
    ],
)
def test_a_format_prints_what_it_says(text: str, expected: bytes) -> None:
    assert compile_format(text, b"-")(HERE, RECORD) == expected


def test_null_prints_as_the_user_wants_and_has_the_size_minus_one() -> None:
    assert compile_format("%k|%v|%K|%S", b"NULL")(HERE, Record(key=None, value=None)) == b"NULL|NULL|-1|-1"


def test_an_unknown_token_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"%q .* is not known .*%v"):
        compile_format("%q")


def test_an_unknown_escape_is_refused() -> None:
    with pytest.raises(UsageError, match="not an escape"):
        unescape(r"\q")


@pytest.mark.parametrize("timestamp", [-(2**62), 2**62])
def test_a_time_outside_every_calendar_prints_as_its_number(timestamp: int) -> None:
    assert time_text(timestamp) == str(timestamp)
