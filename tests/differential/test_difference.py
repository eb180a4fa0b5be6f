"""The comparison itself: a difference anywhere is found, and named by where it is."""

from __future__ import annotations

from tests.differential.difference import differences

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
