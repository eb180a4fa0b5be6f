"""What a capture may be asked to do: which tables, kept in the log and read back, refused in plain words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.capture import CaptureOptions
from headrace.capture.columns import Mask
from headrace.capture.hidden import check_columns
from headrace.errors import BadArgument, UsageError


def options(**given: Any) -> CaptureOptions:
    return CaptureOptions(**{"name": "shop", "url": "postgresql://h/d", **given})


@pytest.mark.parametrize(
    ("given", "selected"),
    [
        ({}, ["public.orders", "public.order_lines", "audit.log"]),
        ({"tables": ("orders",)}, ["public.orders"]),
        ({"tables": ("public.order*",)}, ["public.orders", "public.order_lines"]),
        ({"tables": ("*.log", "orders")}, ["public.orders", "audit.log"]),
        ({"exclude_tables": ("audit.*",)}, ["public.orders", "public.order_lines"]),
        ({"tables": ("public.*",), "exclude_tables": ("order_*",)}, ["public.orders"]),
        ({"tables": ("orders",), "outbox": "audit.log"}, ["public.orders", "audit.log"]),
        ({"exclude_tables": ("*",), "outbox": "audit.log"}, ["audit.log"]),
    ],
)
def test_tables_are_selected_by_names_and_patterns_and_excluded_ones_are_not(
    given: dict[str, Any], selected: list[str]
) -> None:
    qualified = options(**given).qualified("public")
    names = ["public.orders", "public.order_lines", "audit.log"]
    assert [each for each in names if qualified.selects(each)] == selected


def test_what_headrace_itself_keeps_in_a_database_is_captured_only_by_name() -> None:
    assert not options().selects("public.headrace_fences")
    assert not options(tables=("public.*",)).selects("public.headrace_fences")
    assert not options().selects("main._headrace_shop")
    assert options(tables=("public.headrace_fences",)).selects("public.headrace_fences")
    assert options().selects("public.my_headrace_fences")


def test_a_name_that_looks_like_a_pattern_is_still_that_name() -> None:
    assert options(tables=("public.a[1]",)).selects("public.a[1]")


def test_a_table_that_was_named_must_be_there_and_a_pattern_need_not_match_yet() -> None:
    with pytest.raises(UsageError, match=r"no table public.nothing"):
        options(tables=("nothing", "orders")).qualified("public").check_tables(["public.orders"])
    with pytest.raises(UsageError, match=r"no table public.gone"):
        options(key_columns={"gone": ("id",)}).qualified("public").check_tables(["public.orders"])
    notes = options(tables=("orders", "audit.*")).qualified("public").check_tables(["public.orders"])
    assert notes == ["no table matches audit.* yet"]


def test_columns_of_a_table_without_schema_are_those_of_the_default_one() -> None:
    qualified = options(exclude_columns=("users.email", "audit.log.what", "*.email")).qualified("public")
    assert qualified.exclude_columns == ("public.users.email", "audit.log.what", "*.email")


def test_options_come_back_from_the_log_as_they_were_given() -> None:
    given = options(
        tables=("public.*",),
        exclude_tables=("public.log_*",),
        include_columns=("*.id",),
        exclude_columns=("*.secret",),
        masks={"*.email": "hash"},
        key_columns={"public.orders": ("a", "b")},
        on_replaced="stop",
        schemas=True,
    )
    assert CaptureOptions.from_stored(json.loads(json.dumps(given.stored()))) == given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"masks": {"*.email": "rot13"}}, "no mask.*hash"),
        ({"key_columns": {"orders": ()}}, "key of orders"),
        ({"key_columns": {"orders": ("a", "a")}}, "key of orders"),
        ({"on_replaced": "shrug"}, "resnapshot or stop"),
        ({"name": "Shop"}, "a-z"),
        ({"prefix": "a b"}, "letters"),
        ({"url": "oracle://x/y"}, "no database that capture knows"),
        ({"url": "mysql://app@db:23x6/shop"}, "no port that is a number"),
        ({"url": "postgresql://app@db:99999/shop"}, "no port that is a number"),
        ({"url": "postgresql://app:p@ss?x=y@db/shop"}, "where the password ends.*%3F"),
    ],
)
def test_what_cannot_be_is_a_mistake_in_the_command_and_refused_with_what_can(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadArgument, match=message):
        options(**given)


def test_the_salt_of_a_mask_is_read_from_the_environment_wherever_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALT", "s3")
    assert Mask("hash:x${SALT}y").apply(b'"v"') == Mask("hash:xs3y").apply(b'"v"')


@pytest.mark.parametrize("value", [None, ""])
def test_a_mask_whose_salt_is_missing_or_empty_is_refused_before_any_row(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SALT", raising=False)
    if value is not None:
        monkeypatch.setenv("SALT", value)
    given = options(masks={"public.t.email": "hash:${SALT}"})
    with pytest.raises(UsageError, match="needs the environment variable SALT"):
        check_columns(given, {"public.t": ["id", "email"]})
