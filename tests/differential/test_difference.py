"""The comparison itself: a difference anywhere is found, and named by where it is."""

from __future__ import annotations

import time
from pathlib import Path

from tests.differential.batches import NOW_MS
from tests.differential.difference import differences
from tests.differential.masks import A_TEXT, NOW_WITHIN_MS, document
from tests.differential.scenario import normal_time

COMPATIBILITY = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"

NOTES = [["create", {"topics": [{"name": "a", "error_code": "NONE"}]}], ["list", {"topics": []}]]


def test_equal_notes_have_no_difference() -> None:
    assert (
        differences(NOTES, [["create", {"topics": [{"name": "a", "error_code": "NONE"}]}], ["list", {"topics": []}]])
        == []
    )


def test_a_field_that_differs_is_named_with_both_values() -> None:
    other = [["create", {"topics": [{"name": "a", "error_code": "INVALID_CONFIG"}]}], NOTES[1]]
    assert differences(NOTES, other) == [
        "[create][1].topics[0].error_code: Apache Kafka 'NONE', headrace 'INVALID_CONFIG'"
    ]


def test_missing_and_additional_fields_and_items_are_differences() -> None:
    assert differences({"a": 1}, {}) == [".a: Apache Kafka 1, headrace '(absent)'"]
    assert differences({}, {"b": 2}) == [".b: Apache Kafka '(absent)', headrace 2"]
    assert differences([1], [1, 2]) == [": Apache Kafka [1], headrace [1, 2]"]


def test_null_is_not_empty() -> None:
    assert differences({"a": None}, {"a": ""}) != []
    assert differences({"a": []}, {"a": None}) != []


def test_an_error_of_ours_may_explain_itself_where_kafkas_does_not() -> None:
    silent = {"error_code": "INVALID_REQUEST", "error_message": None}
    explained = {**silent, "error_message": A_TEXT}
    assert differences(silent, explained) == []
    assert differences(explained, silent) != []
    assert differences({**silent, "error_code": "NONE"}, {**explained, "error_code": "NONE"}) != []
    assert differences(silent, {**silent, "error_message": ""}) != []


def test_a_time_is_one_that_was_sent_or_near_now() -> None:
    now_ms = int(time.time() * 1000)
    assert normal_time(NOW_MS + 2) == "sent + 2"
    assert normal_time(now_ms + 5000) == "now"
    assert normal_time(now_ms - 2 * NOW_WITHIN_MS) == now_ms - 2 * NOW_WITHIN_MS
    assert normal_time(1000) == 1000


def test_the_document_lists_what_is_not_compared() -> None:
    assert document() in COMPATIBILITY.read_text(), "run: make docs"
