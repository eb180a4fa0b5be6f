"""Places and times as people write them."""

from __future__ import annotations

import pytest

from headrace.client.places import Place, parse_place, parse_time_ms
from headrace.errors import UsageError

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("beginning", Place("beginning")),
        ("earliest", Place("beginning")),
        ("end", Place("end")),
        ("latest", Place("end")),
        ("0", Place("offset", 0)),
        ("42", Place("offset", 42)),
        ("-5", Place("before_end", 5)),
        ("@1700000000000", Place("time", 1_700_000_000_000)),
        ("@1970-01-01T00:00:01Z", Place("time", 1000)),
        ("@1970-01-01T02:00:00+02:00", Place("time", 0)),
        ("@-15m", Place("time", NOW_MS - 900_000)),
        ("@-2d", Place("time", NOW_MS - 172_800_000)),
        ("@-99999w", Place("time", 0)),
        (str(2**63 - 1), Place("offset", 2**63 - 1)),
    ],
)
def test_a_place_is_read_as_it_is_written(text: str, place: Place) -> None:
    assert parse_place(text, NOW_MS) == place


@pytest.mark.parametrize(
    "text",
    ["", "start", "1.5", "--5", "+5", "@", "@yesterday", "@-15", "@-m", "٣", "9" * 19, f"@{2**63}", "-" + "9" * 5000],
)
def test_what_is_no_place_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_place(text, NOW_MS)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "ms"), [("250ms", 250), ("1s", 1000), ("1m", 60_000), ("1h", 3_600_000), ("1w", 604_800_000)]
)
def test_a_time_ago_has_a_unit(text: str, ms: int) -> None:
    assert parse_time_ms(f"-{text}", NOW_MS) == NOW_MS - ms
