"""The functions of ``headrace.spark`` name the same things alike."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import headrace.spark as hr

FUNCTIONS = {name: inspect.signature(made) for name in hr.__all__ if inspect.isfunction(made := getattr(hr, name))}
STATEFUL = sorted(name for name, signature in FUNCTIONS.items() if "buckets" in signature.parameters)


def default(function: str, parameter: str) -> Any:
    return FUNCTIONS[function].parameters[parameter].default


@pytest.mark.parametrize("name", STATEFUL)
def test_the_number_of_buckets_is_that_of_the_setting_unless_it_is_given(name: str) -> None:
    assert default(name, "buckets") is None
    assert default(name, "name") is None


def test_one_word_stands_for_one_idea() -> None:
    """What is written right is what a user has learned from the first function."""
    others = {
        "key",
        "by_key",
        "time",
        "time_column",
        "timestamp",
        "window_size",
        "retention",
        "n_buckets",
        "within_max",
    }
    found = {(name, each) for name, signature in FUNCTIONS.items() for each in signature.parameters if each in others}
    assert found == {
        ("changes", "key"),  # the columns that are the key of a table, as capture and Debezium say
        ("state_of", "key"),  # one key
        ("check_pattern", "within_max"),
        ("match_patterns", "within_max"),
    }
