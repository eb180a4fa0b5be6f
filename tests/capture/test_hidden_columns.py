"""What a user wants hidden is hidden: misspelled columns are refused, renamed ones stop the capture."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from headrace.capture import Capture, CaptureOptions
from headrace.errors import UsageError
from tests.capture.conftest import Database, File
from tests.capture.shop import Shop
from tests.capture.test_command import Shell, shell  # noqa: F401 the fixture
from tests.capture.world import catch_up, committed, events

pytestmark = pytest.mark.slow

USERS = "create table users (id integer primary key, email text, note text)"
ADA = "insert into users (id, email, note) values (1, 'ada@example.com', 'first')"


def said_by(log: str, options: CaptureOptions) -> list[str]:
    said: list[str] = []
    Capture(log, options, say=said.append).run(threading.Event(), until_current=True)
    return said


def assert_hidden(log: str, topic: str, *secrets: str) -> None:
    """No record of the topic, nor of the dead letters, has one of these texts."""
    found = [(each.key or b"") + (each.value or b"") for each in committed(log, topic)]
    assert found
    assert not [each for each in found for secret in secrets if secret.encode() in each]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"masks": {"users.emial": "hash"}}, r"--mask main.users.emial matches no column.*main.users.email"),
        ({"masks": {"*.emial": "hash"}}, r"--mask \*.emial matches no column"),
        ({"masks": {"email": "hash"}}, r"--mask main.email matches no column.*main.users.email"),
        ({"masks": {"users.email": "hash", "user.note": "null"}}, "--mask main.user.note matches no"),
        ({"exclude_columns": ("users.Email",)}, "--exclude-columns main.users.Email matches no.*main.users.email"),
        ({"include_columns": ("users.id", "users.emial")}, "--include-columns main.users.emial matches no"),
        ({"key_columns": {"users": ("emial",)}}, "--key-columns main.users.emial matches no"),
        ({"masks": {"other.secret": "hash"}, "tables": ("users",)}, "--mask main.other.secret matches no"),
        ({"masks": {"other.secret": "hash"}, "outbox": "other"}, "--mask main.other.secret matches no"),
    ],
)
def test_a_column_that_is_not_there_is_refused_before_anything_is_written(
    log: str, file: File, wrong: dict[str, Any], why: str
) -> None:
    file.run(USERS, "create table other (id integer primary key, secret text)", ADA)
    with pytest.raises(UsageError, match=why):
        catch_up(log, file.options(**wrong))
    assert committed(log, f"{file.name}.main.users") == []


def test_a_pattern_of_columns_to_leave_out_may_match_nothing_and_that_is_said(log: str, file: File) -> None:
    file.run(USERS, ADA)
    said = said_by(log, file.options(exclude_columns=("*.password", "*.email")))
    assert [each for each in said if "no column matches *.password yet" in each]
    (event,) = events(log, f"{file.name}.main.users")
    assert event.value["after"] == {"id": 1, "note": "first"}


def test_the_command_refuses_a_misspelled_mask_in_one_line(shell: Shell, file: File) -> None:  # noqa: F811 the fixture
    file.run(USERS)
    url = f"sqlite:///{file.path}"
    for command in ("add", "run"):
        refused = shell(command, "misspelled", url, "--mask", "users.emial=hash", status=1)
        assert "--mask main.users.emial matches no column" in refused.stderr
        assert "main.users.email" in refused.stderr
        assert refused.stderr.count("\n") == 1
    shell("add", "misspelled", url, "--mask", "users.email=hash")
    shell("remove", "misspelled", "--yes")


@pytest.mark.parametrize("hide", [{"masks": {"*.email": "hash"}}, {"exclude_columns": ("*.email",)}])
def test_a_hidden_column_that_is_renamed_stops_the_capture_and_nothing_of_it_is_shown(
    log: str, file: File, hide: dict[str, Any]
) -> None:
    file.run(USERS, ADA, "create table other (id integer primary key, email text)")
    catch_up(log, file.options(**hide))
    file.run("update users set note = 'second'")
    file.run("alter table users rename column email to mail")
    file.run("insert into users (id, mail) values (2, 'bob@example.com')")
    for _ in range(2):
        with pytest.raises(UsageError, match=r"main.users.*hidden column email any more, and has mail"):
            catch_up(log, file.options(**hide))
    topic = f"{file.name}.main.users"
    assert_hidden(log, topic, "ada@", "bob@")
    # The old shape is among the changes that come again, and the options know only the new name.
    new = {"masks": {"users.mail": "hash"}}
    catch_up(log, file.options(**new))
    catch_up(log, file.options(**new))
    assert_hidden(log, topic, "ada@", "bob@")
    assert events(log, topic)[-1].value["after"]["id"] == 2


def test_a_renamed_column_is_shown_where_its_mask_is_no_longer_asked_for(log: str, file: File) -> None:
    file.run(USERS, ADA)
    catch_up(log, file.options(masks={"users.email": "hash"}))
    file.run("alter table users rename column email to mail")
    file.run("insert into users (id, mail) values (2, 'bob@example.com')")
    with pytest.raises(UsageError, match=r"--mask main.users.email matches no column.*main.users.mail"):
        catch_up(log, file.options(masks={"users.email": "hash"}))
    catch_up(log, file.options())
    assert events(log, f"{file.name}.main.users")[-1].value["after"]["mail"] == "bob@example.com"


def test_a_hidden_column_that_is_dropped_is_said_and_capture_goes_on(log: str, file: File) -> None:
    file.run(USERS, ADA, "create table other (id integer primary key, email text)")
    options = file.options(masks={"*.email": "null"})
    catch_up(log, options)
    file.run("alter table users drop column email", "insert into users values (2, 'x')")
    said = said_by(log, options)
    assert [each for each in said if "main.users does not have the hidden column email any more" in each]
    file.run("alter table users add column age integer", "insert into users values (3, 'x', 7)")
    said = said_by(log, options)
    assert [each for each in said if "its new column age is not one of them" in each]
    assert events(log, f"{file.name}.main.users")[-1].value["after"] == {"id": 3, "note": "x", "age": 7}


@pytest.mark.servers
@pytest.mark.parametrize("triggers", [False, True])
def test_a_masked_column_of_postgresql_that_is_renamed_stops_the_capture(
    log: str, database: Database, triggers: bool
) -> None:
    database.run(USERS, ADA, "create table other (id integer primary key, email text)")
    options = CaptureOptions(
        name=database.name, url=database.url, triggers=triggers, masks={"*.email": "hash"}, heartbeat_ms=200
    )
    with pytest.raises(UsageError, match=r"--mask public.users.emial matches no column.*public.users.email"):
        catch_up(log, CaptureOptions(name=database.name, url=database.url, masks={"users.emial": "hash"}))
    catch_up(log, options)
    database.run("update users set note = 'second'", "alter table users rename column email to mail")
    database.run("insert into users (id, mail) values (2, 'bob@example.com')")
    with pytest.raises(UsageError, match=r"public.users.*hidden column email any more, and has mail"):
        catch_up(log, options)
    masked = CaptureOptions(name=database.name, url=database.url, triggers=triggers, masks={"users.mail": "hash"})
    catch_up(log, masked)
    assert_hidden(log, f"{database.name}.public.users", "ada@", "bob@")
    assert events(log, f"{database.name}.public.users")[-1].value["after"]["id"] == 2


EXCHANGE = [
    "alter table users rename column email to between_them",
    "alter table users rename column note to email",
    "alter table users rename column between_them to note",
]


def check_exchanged(log: str, topic: str, options: Callable[..., CaptureOptions]) -> None:
    """After names were exchanged, and a row (2, 'bob@example.com', 'open') was written by the new names."""
    for _ in range(2):
        with pytest.raises(UsageError, match=r"users has the column note.*where the hidden column email was"):
            catch_up(log, options(masks={"users.email": "hash"}))
    assert_hidden(log, topic, "ada@", "bob@")
    catch_up(log, options(masks={"users.email": "hash", "users.note": "hash"}))
    assert_hidden(log, topic, "ada@", "bob@")
    assert {each.key["id"] for each in events(log, topic) if each.key} == {1, 2}


def test_a_hidden_column_that_exchanges_its_name_with_another_stops_the_capture(log: str, file: File) -> None:
    file.run(USERS, ADA)
    catch_up(log, file.options(masks={"users.email": "hash"}))
    file.run(*EXCHANGE, "insert into users (id, note, email) values (2, 'bob@example.com', 'open')")
    check_exchanged(log, f"{file.name}.main.users", file.options)


@pytest.mark.servers
@pytest.mark.parametrize("triggers", [False, True])
def test_a_masked_column_of_postgresql_that_exchanges_its_name_stops_the_capture(
    log: str, database: Database, triggers: bool
) -> None:
    def options(**more: Any) -> CaptureOptions:
        return CaptureOptions(name=database.name, url=database.url, triggers=triggers, **more)

    database.run(USERS, ADA)
    catch_up(log, options(masks={"users.email": "hash"}))
    database.run("begin", *EXCHANGE, "commit")
    database.run("insert into users (id, note, email) values (2, 'bob@example.com', 'open')")
    check_exchanged(log, f"{database.name}.public.users", options)


@pytest.mark.servers
def test_a_masked_column_of_mariadb_that_exchanges_its_name_stops_the_capture(log: str, shop: Shop) -> None:
    shop.run(USERS, ADA)
    catch_up(log, shop.options(masks={"users.email": "hash"}))
    shop.run("alter table users change email note text, change note email text")
    shop.run("insert into users (id, note, email) values (2, 'bob@example.com', 'open')")
    check_exchanged(log, shop.topic("users"), shop.options)


@pytest.mark.servers
def test_columns_that_only_changed_places_are_accepted_with_a_new_snapshot(log: str, shop: Shop) -> None:
    shop.run(USERS, ADA)
    options = shop.options(masks={"users.email": "hash"})
    catch_up(log, options)
    shop.run("alter table users modify email text after note")
    with pytest.raises(UsageError, match="run once with --resnapshot"):
        catch_up(log, options)
    catch_up(log, options, resnapshot=True)
    shop.run("insert into users (id, email) values (2, 'bob@example.com')")
    catch_up(log, options)
    assert_hidden(log, shop.topic("users"), "ada@", "bob@")
    assert events(log, shop.topic("users"))[-1].value["after"]["id"] == 2
