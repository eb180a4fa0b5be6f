"""Views follow events once, are rebuilt beside the old ones, and are waited for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest

from headrace.sourcing import (
    Event,
    EventStore,
    Projection,
    ProjectionRunner,
    SourcingError,
    TakenOver,
    View,
    handle,
    on,
    open_store,
)
from headrace.sourcing.events import RecordedEvent
from headrace.sourcing.keys import KeyStore
from tests.sourcing.bank import Balances, Deposit, Withdraw, account

Runner = Callable[..., ProjectionRunner]


@pytest.fixture
def events(tmp_path: Path) -> Iterator[EventStore]:
    with open_store(tmp_path / "events.db") as store:
        yield store


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.servers)])
def runner(
    request: pytest.FixtureRequest, tmp_path: Path, new_schema: Callable[[], str], events: EventStore
) -> Iterator[Runner]:
    """Makes runners of projections over one database of views."""
    url = f"sqlite:///{tmp_path}/views.db" if request.param == "sqlite" else new_schema()
    made: list[ProjectionRunner] = []

    def make(projection: Projection | None = None) -> ProjectionRunner:
        made.append(ProjectionRunner(events, url, projection or Balances()))
        return made[-1]

    yield make
    for each in made:
        each.close()


def balances(runner: ProjectionRunner) -> dict[str, int]:
    return dict(runner.ask("select account, cents from balances order by 1"))


def fill(store: EventStore, rounds: int = 3) -> None:
    for number in range(rounds):
        handle(store, f"account-{number % 2}", account, Deposit(10))
        handle(store, f"account-{number % 2}", account, Withdraw(3))


def test_a_view_has_the_effect_of_each_event_once_over_several_runs(events: EventStore, runner: Runner) -> None:
    fill(events)
    view = runner()
    view.run(until_current=True)
    assert balances(view) == {"account-0": 14, "account-1": 7}
    fill(events)
    runner().run(until_current=True)
    assert balances(view) == {"account-0": 28, "account-1": 14}
    assert view.position() == events.head()


def test_rows_and_position_are_one_transaction(events: EventStore, runner: Runner) -> None:
    """A projection that fails in the middle of a page leaves neither; the next run goes on where the last one was."""

    class Fails(Balances):
        name = "balances"
        left = 4

        def apply(self, view: View, event: RecordedEvent) -> None:
            super().apply(view, event)
            self.left -= 1
            if not self.left:
                raise RuntimeError("here")

    fill(events)
    broken = runner(Fails())
    with pytest.raises(RuntimeError, match="here"):
        broken.run(until_current=True)
    assert (balances(broken), broken.position()) == ({}, 0)
    runner().run(until_current=True)
    assert balances(broken) == {"account-0": 14, "account-1": 7}


def test_the_newer_runner_takes_over_and_the_older_one_stops_with_its_name(events: EventStore, runner: Runner) -> None:
    older, newer = runner(), runner()
    fill(events)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            older.run()
        except TakenOver as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    older.wait_for(events.head(), 60)
    newer.run(until_current=True)
    fill(events)
    thread.join(60)
    assert "taken over by" in str(failed[0])
    newer.run(until_current=True)
    assert balances(newer) == {"account-0": 28, "account-1": 14}


def test_a_statement_that_the_database_does_not_take_is_no_error_to_try_again(runner: Runner) -> None:
    for statement in ("selec 1", "select 1 from nowhere"):
        with pytest.raises(SourcingError, match=r"selec|nowhere") as raised:
            runner().ask(statement)
        assert not raised.value.retriable


def test_an_application_waits_for_what_it_wrote(events: EventStore, runner: Runner) -> None:
    view, stop = runner(), threading.Event()
    thread = threading.Thread(target=view.run, args=(stop,))
    thread.start()
    done = handle(events, "account-1", account, Deposit(5))
    reader = runner()
    reader.wait_for(done.position, 60)
    assert balances(reader) == {"account-1": 5}
    stop.set()
    thread.join()
    with pytest.raises(TimeoutError, match="is its runner running"):
        reader.wait_for(done.position + 1, 0.01)


def test_a_rebuild_goes_on_beside_the_old_view_and_switches_at_once(events: EventStore, runner: Runner) -> None:
    fill(events)
    view = runner()
    view.run(until_current=True)
    seen: list[dict[str, int]] = []
    rebuilding = runner()
    rebuilding.rebuild(lambda position: seen.append(balances(view)))
    assert seen
    assert all(each == {"account-0": 14, "account-1": 7} for each in seen)
    assert balances(view) == {"account-0": 14, "account-1": 7}
    fill(events)
    view.run(until_current=True)
    assert balances(view) == {"account-0": 28, "account-1": 14}


def test_who_has_waited_for_an_event_still_sees_it_after_the_switch(
    events: EventStore, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old view may be further than the new one at the moment of the switch."""
    fill(events)
    view, rebuilding, switch = runner(), runner(), ProjectionRunner._switch
    view.run(until_current=True)

    def switch_late(self: ProjectionRunner, following: int, position: int) -> int:
        fill(events, 300)  # more than a page
        view.run(until_current=True)
        return switch(self, following, position)

    monkeypatch.setattr(ProjectionRunner, "_switch", switch_late)
    before_switch = events.head()
    reached = rebuilding.rebuild()
    assert reached == events.head() == before_switch + 600
    view.wait_for(reached, 0)
    assert balances(view) == {"account-0": 14 + 150 * 7, "account-1": 7 + 150 * 7}


def test_events_that_neither_view_has_at_the_switch_have_their_effect_once(
    events: EventStore, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stand in the same page as those that the old view was ahead by."""
    fill(events)
    view, rebuilding, switch = runner(), runner(), ProjectionRunner._switch
    view.run(until_current=True)

    def switch_late(self: ProjectionRunner, following: int, position: int) -> int:
        fill(events)
        view.run(until_current=True)
        fill(events)
        return switch(self, following, position)

    monkeypatch.setattr(ProjectionRunner, "_switch", switch_late)
    assert rebuilding.rebuild() == events.head() - 6
    assert balances(rebuilding) == {"account-0": 28, "account-1": 14}
    rebuilding.run(until_current=True)
    assert balances(rebuilding) == {"account-0": 42, "account-1": 21}


def test_a_runner_goes_on_with_the_new_tables_after_somebody_elses_rebuild(events: EventStore, runner: Runner) -> None:
    view, stop = runner(), threading.Event()
    fill(events)
    thread = threading.Thread(target=view.run, args=(stop,))
    thread.start()
    runner().wait_for(events.head(), 60)
    runner().rebuild()
    fill(events)
    reader = runner()
    reader.wait_for(events.head(), 60)
    assert balances(reader) == {"account-0": 28, "account-1": 14}
    stop.set()
    thread.join(60)


def test_a_projection_with_a_newer_version_is_rebuilt_when_it_runs(events: EventStore, runner: Runner) -> None:
    fill(events)
    runner().run(until_current=True)

    class Newer(Balances):
        name = "balances"
        version = 2

        @on("Withdrawn")
        def moved_out(self, view: View, event: RecordedEvent) -> None:
            """Fees count, too."""

    newer = runner(Newer())
    newer.run(until_current=True)
    assert balances(newer) == {"account-0": 20, "account-1": 10}


class Search(Projection):
    """An index of texts, which is another kind of table."""

    tables: ClassVar = {"search": ""}

    def setup(self, view: View) -> None:
        view.execute(f"create virtual table {view.table('search')} using fts5(account, name)")

    @on("Opened")
    def opened(self, view: View, event: RecordedEvent) -> None:
        if event.data["name"]:
            view.execute(f"insert into {view.table('search')} values (?, ?)", event.stream, event.data["name"])


class SearchThatForgets(Search):
    def forget(self, view: View, subject: str) -> None:
        view.execute(f"delete from {view.table('search')} where account = ?", f"account-{subject}")


@pytest.mark.parametrize("search", [Search, SearchThatForgets])
def test_after_a_purge_an_index_of_texts_in_a_view_has_no_word_of_a_forgotten_person(
    tmp_path: Path, search: type[Search]
) -> None:
    keys, file = KeyStore(tmp_path / "keys"), tmp_path / "views.db"
    with open_store(tmp_path / "people.db", keys=keys) as store:
        view = ProjectionRunner(store, file, search())
        for number in range(3):
            event = Event("Opened", {"name": f"Hopper{number}zz"}, personal={"name": f"u{number}"})
            store.append(f"account-u{number}", event)
            view.run(until_current=True)
        store.forget("u1")
        view.run(until_current=True)
        view.purge()
        assert b"opper1zz" not in file.read_bytes()
        assert b"opper2zz" in file.read_bytes()
        table = view.ask("select name from sqlite_schema where name glob 'search__g[0-9]'")[0][0]
        assert view.ask(f"select account from {table} where {table} match 'hopper2zz'") == [("account-u2",)]
        view.close()
    keys.close()


def test_several_projections_share_a_database(events: EventStore, runner: Runner) -> None:
    class Counts(Projection):
        tables = {"counts": "type text primary key, number integer"}  # noqa: RUF012
        query = Balances.query

        def apply(self, view: View, event: RecordedEvent) -> None:
            table = view.table("counts")
            view.execute(
                f"insert into {table} values (?, 1) on conflict (type) do update set number = {table}.number + 1",
                event.type,
            )

    fill(events)
    events.append("x", Event("Other"))
    counts, sums = runner(Counts()), runner()
    counts.run(until_current=True)
    sums.run(until_current=True)
    assert dict(counts.ask("select * from counts")) == {"Deposited": 3, "Withdrawn": 3, "Other": 1}
    assert balances(sums) == {"account-0": 14, "account-1": 7}


def test_runners_that_start_at_once_in_an_empty_database_do_not_fail(events: EventStore, runner: Runner) -> None:
    fill(events)
    together = threading.Barrier(4)

    def start() -> None:
        together.wait()
        with contextlib.suppress(TakenOver):
            runner().run(until_current=True)

    with ThreadPoolExecutor(4) as pool:
        for started in [pool.submit(start) for _ in range(4)]:
            started.result()
    assert balances(runner()) == {"account-0": 14, "account-1": 7}


def test_a_statement_may_have_a_percent_sign_beside_values(runner: Runner) -> None:
    view = runner()
    assert view.ask("select 'abc' like 'a%' where 1 = ?", 1) in ([(1,)], [(True,)])


def test_a_view_may_have_the_name_of_a_keyword(events: EventStore, runner: Runner) -> None:
    class Orders(Projection):
        tables: ClassVar = {"order": "account text primary key"}
        personal = False

        @on("Deposited")
        def deposited(self, view: View, event: RecordedEvent) -> None:
            view.execute(f"insert into {view.table('order')} values (?) on conflict do nothing", event.stream)

    fill(events)
    orders = runner(Orders())
    orders.run(until_current=True)
    before = orders.ask('select * from "order"')
    orders.rebuild()
    assert orders.ask('select * from "order"') == before != []
