"""Passwords of any kind reach the target, and no message."""

from __future__ import annotations

from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.address import Address
from headrace.errors import UsageError

HARD = "p@ss/w:rd?#%[é ]%41"


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "redis", "https"])
def test_a_password_from_the_environment_is_taken_as_it_is(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANT_PASSWORD", HARD)
    address = Address(f"{scheme}://app:${{PLANT_PASSWORD}}@db:5432/shop?x=1")
    assert (address.user(), address.password()) == ("app", HARD)
    assert (address.parts().hostname, address.parts().port, address.parts().path) == ("db", 5432, "/shop")
    assert address.shown == f"{scheme}://app@db:5432/shop"


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_any_password_that_is_encoded_in_the_url_is_decoded_once(password: str) -> None:
    address = Address(f"postgresql://app:{quote(password, safe='')}@db/shop")
    assert address.password() == password
    assert address.resolved() == address.text
    assert address.shown == "postgresql://app@db/shop"


@pytest.mark.parametrize(
    "password", ["p@ss", "p/ss", "p?ss", "p#ss", "p@s/s@x", "100%!", "a:b", "a@b?c", "p@ss/w:o#r d?"]
)
def test_a_password_that_is_written_as_it_is_works_and_is_not_shown(password: str) -> None:
    address = Address(f"postgresql://app:{password}@db:5432/shop?sslmode=require")
    assert (address.user(), address.password()) == ("app", password)
    assert address.parts().hostname == "db"
    assert address.options == "sslmode=require"
    assert address.shown == "postgresql://app@db:5432/shop"
    alone = Address(f"postgresql://app:{password}@db/shop")
    assert (alone.user(), alone.password(), alone.shown) == ("app", password, "postgresql://app@db/shop")


def test_a_whole_address_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://app:p@ss@db/shop")
    address = Address("${DATABASE_URL}")
    assert address.scheme == "postgresql"
    assert address.password() == "p@ss"
    assert address.shown == "${DATABASE_URL}"


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////tmp/a@b.db",
        "sqlite:///a:b.db",
        "https://host:9200/path@x",
        "postgresql://db/shop?user=a@b",
        "postgresql://[::1]:5432/shop",
        "redis://h:6379/0",
    ],
)
def test_an_address_without_a_user_stays_as_it_is(url: str) -> None:
    assert Address(url).resolved() == url
    assert Address(url).user() is None
    assert Address(url).shown == url.partition("?")[0]


def test_messages_of_clients_do_not_quote_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANT_PASSWORD", "p@ss")
    address = Address("postgresql://app:${PLANT_PASSWORD}@db/shop")
    assert address.hidden_in("cannot use p@ss or p%40ss at db") == "cannot use *** or *** at db"
    assert unquote("p%40ss") not in repr(address)
    with pytest.raises(UsageError, match="NOBODY_SET_THIS"):
        Address("redis://:${NOBODY_SET_THIS}@x").resolved()
    assert Address("redis://:${NOBODY_SET_THIS}@x").hidden_in("x") == "x"


@pytest.mark.parametrize(
    "text",
    [
        "h:6379",
        "redis:h",
        "redis:/h",
        "http://h",
        "REDIS://h",
        "${REDIS_URL",
        "redis://h:x/0",
        "redis://h:99999",
        "redis://",
    ],
)
def test_what_is_no_address_is_refused_before_anything_is_connected_to(text: str) -> None:
    with pytest.raises(UsageError, match=r"redis://HOST"):
        Address(text).must_be(("redis", "rediss"), "address of Redis", "redis://HOST:PORT", needs_host=True)


@pytest.mark.parametrize(
    "text",
    [
        "redis://h",
        "rediss://me:p@ss/w:x@h:1/0",
        "redis://h1:1,h2:2/0",
        "redis://${HOST}:${PORT}/0",
        "${REDIS_URL}",
        "redis://[::1]:1",
    ],
)
def test_what_may_be_an_address_is_taken(text: str) -> None:
    Address(text).must_be(("redis", "rediss"), "address of Redis", "redis://HOST:PORT", needs_host=True)


@pytest.mark.parametrize("password", ["p@ss/w?x=y", "p?x=y@z", "se@cret?a=b&c=d"])
def test_nothing_of_a_password_is_shown_that_looks_like_options(password: str) -> None:
    assert Address(f"postgresql://app:{password}@db:5432/shop").shown == "postgresql://app@db:5432/shop"


def test_a_space_in_a_name_is_encoded_for_clients() -> None:
    address = Address("postgresql://my app:x@db/my shop")
    assert address.resolved() == "postgresql://my%20app:x@db/my%20shop"
