"""Commands become events: by functions, by classes, with snapshots, once per command."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from headrace.sourcing import (
    AppendConflict,
    Command,
    Decider,
    Event,
    EventStore,
    ProcessManager,
    RecordedEvent,
    Rejection,
    Repository,
    Snapshots,
    TakenOver,
    check,
    handle,
    load,
    on,
    open_store,
    run_process,
)
from tests.sourcing.bank import Deposit, Open, Send, State, Transfers, Wallet, Withdraw, account
from tests.waiting import eventually


def deposited(cents: int) -> Event:
    return Event("Deposited", {"cents": cents})


@pytest.fixture
def here(tmp_path: Path) -> EventStore:
    return open_store(tmp_path / "events.db")


def test_a_decider_is_checked_in_one_call() -> None:
    check(account, given=[deposited(5)], when=Withdraw(3), then=Event("Withdrawn", {"cents": 3}))
    check(account, given=[deposited(5)], when=Withdraw(7), then=Rejection("not enough money", left=5))
    check(account, when=Withdraw(7), then=Rejection)
    check(account, given=[Event("Opened", {"owner": "ada", "name": ""})], when=Open("ada"), then=Rejection)


@pytest.mark.parametrize(
    "then",
    [[], Event("Withdrawn", {"cents": 4}), Event("Deposited", {"cents": 3}), Rejection("no"), Rejection],
)
def test_a_check_fails_when_another_thing_follows(then: object) -> None:
    with pytest.raises(AssertionError, match="but got"):
        check(account, given=[deposited(5)], when=Withdraw(3), then=then)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="but got"):
        check(account, when=Withdraw(3), then=[Event("Withdrawn", {"cents": 3})])


def test_a_command_is_decided_on_the_state_of_its_stream(store: EventStore) -> None:
    handle(store, "account-1", account, Deposit(5), actor="ada")
    done = handle(store, "account-1", account, Withdraw(3))
    assert (done.state["cents"], done.version, done.position) == (2, 2, 2)
    with pytest.raises(Rejection, match="not enough"):
        handle(store, "account-1", account, Withdraw(3))
    assert [event.actor for event in store.read("account-1")] == ["ada", None]
    assert load(store, "account-1", account, version=1).state["cents"] == 5
    moment = next(store.read("account-1")).recorded_at
    assert load(store, "account-1", account, at=moment).version >= 1


def test_a_state_is_seen_as_it_was_at_a_moment(here: EventStore) -> None:
    handle(here, "account-1", account, Deposit(5))
    time.sleep(0.002)
    handle(here, "account-1", account, Deposit(7))
    first = next(here.read("account-1")).recorded_at
    assert load(here, "account-1", account, at=first).state["cents"] == 5
    assert load(here, "account-1", account).state["cents"] == 12


def test_a_command_with_an_id_has_its_effect_once_also_where_it_would_be_rejected_now(store: EventStore) -> None:
    handle(store, "account-1", account, Deposit(5))
    first = handle(store, "account-1", account, Withdraw(4), command_id="w-1")
    again = handle(store, "account-1", account, Withdraw(4), command_id="w-1")
    assert (again.repeated, again.position, again.version) == (True, first.position, first.version)
    assert load(store, "account-1", account).state["cents"] == 1


def test_commands_of_many_threads_are_decided_one_after_another(here: EventStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: handle(here, "a-1", account, Deposit(number), conflicts_max=1000), range(40)))
    assert load(here, "a-1", account).state["cents"] == sum(range(40))


def test_a_command_is_decided_again_when_somebody_appended_after_its_state_was_read(here: EventStore) -> None:
    handle(here, "a-1", account, Deposit(5))
    seen: list[int] = []

    def decide(state: State, command: Withdraw) -> object:
        if not seen:
            handle(here, "a-1", account, Withdraw(4))  # somebody else is faster
        seen.append(state["cents"])
        return account.decide(state, command)

    with pytest.raises(Rejection, match="not enough money"):
        handle(here, "a-1", replace(account, decide=decide), Withdraw(4))  # type: ignore[arg-type]
    assert seen == [5, 1]
    assert load(here, "a-1", account).state["cents"] == 1


def test_a_class_loads_changes_and_shows_earlier_versions(store: EventStore) -> None:
    wallets = Repository(store, Wallet)
    wallets.change("7", lambda wallet: wallet.deposit(5))
    done = wallets.change("7", lambda wallet: (wallet.deposit(1), wallet.deposit(2)), actor="ada")
    assert (done.state.cents, done.version) == (8, 3)
    assert (wallets.get("7").cents, wallets.get("7", version=2).cents, wallets.get("8").cents) == (8, 6, 0)
    with pytest.raises(Rejection):
        wallets.change("7", lambda wallet: wallet.deposit(0))
    wallets.create("9", lambda wallet: wallet.deposit(1))
    with pytest.raises(AppendConflict):
        wallets.create("9", lambda wallet: wallet.deposit(1))


# ---- snapshots ------------------------------------------------------------------------------------------------------


def counting(folded: list[str]) -> object:
    def evolve(state: State, event: Event) -> State:
        folded.append(event.type)
        return account.evolve(state, event)

    return evolve


def test_a_snapshot_saves_reading_the_stream_and_may_be_deleted(store: EventStore) -> None:
    folded: list[str] = []
    quick = replace(account, evolve=counting(folded), snapshots=Snapshots(every=10))  # type: ignore[arg-type]
    for _ in range(25):
        handle(store, "account-1", quick, Deposit(1))
    folded.clear()
    assert load(store, "account-1", quick).state["cents"] == 25
    assert len(folded) == 5
    assert load(store, "account-1", quick, version=3).state["cents"] == 3
    assert store.delete_snapshots() == 1
    folded.clear()
    assert load(store, "account-1", quick).state["cents"] == 25
    assert len(folded) == 25


def test_a_snapshot_of_another_schema_is_ignored(store: EventStore) -> None:
    quick = replace(account, snapshots=Snapshots(every=1))
    handle(store, "account-1", quick, Deposit(1))
    folded: list[str] = []
    newer = replace(account, evolve=counting(folded), snapshots=Snapshots(every=1, schema=2))  # type: ignore[arg-type]
    assert load(store, "account-1", newer).state["cents"] == 1
    assert folded == ["Deposited"]


def test_a_class_keeps_snapshots_of_its_attributes(here: EventStore) -> None:
    class Purse(Wallet):
        category = "purse"
        snapshot_every = 2

    purses = Repository(here, Purse)
    for _ in range(5):
        purses.change("1", lambda purse: purse.deposit(2))
    found = here.load_snapshot("purse-1", "Purse")
    assert found is not None
    assert (found.version, found.state) == (4, '{"cents":8}')
    assert purses.get("1").cents == 10


# ---- process managers -----------------------------------------------------------------------------------------------


def test_a_process_turns_events_into_commands_with_their_cause(store: EventStore) -> None:
    handle(store, "account-1", account, Deposit(9))
    handle(store, "account-1", account, Send(4, "account-2"))
    assert run_process(store, Transfers(), until_current=True) == store.head()
    assert load(store, "account-2", account).state["cents"] == 4
    (arrived,) = store.read("account-2")
    sent = next(event for event in store.read("account-1") if event.type == "Sent")
    assert (arrived.causation_id, arrived.correlation_id) == (sent.event_id, sent.event_id)


def test_a_process_may_answer_with_one_command_that_is_in_no_list(store: EventStore) -> None:
    class Mirror(ProcessManager):
        @on("Sent")
        def sent(self, event: RecordedEvent) -> Command:
            return Command("account-3", account, Deposit(event.data["cents"]))

    handle(store, "account-1", account, Deposit(9))
    handle(store, "account-1", account, Send(4, "account-2"))
    run_process(store, Mirror(), until_current=True)
    assert load(store, "account-3", account).state["cents"] == 4
    run_process(store, Transfers(), until_current=True)  # to the same event: each process has its own commands
    assert load(store, "account-2", account).state["cents"] == 4


def test_a_process_that_died_before_its_progress_was_stored_does_nothing_twice(
    store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.sourcing import processes

    handle(store, "account-1", account, Deposit(9))
    handle(store, "account-1", account, Send(4, "account-2"))
    with monkeypatch.context() as patch:
        patch.setattr(processes, "_advance", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_process(store, Transfers(), until_current=True)
    assert store.progress("Transfers") == 0
    run_process(store, Transfers(), until_current=True)
    assert load(store, "account-2", account).state["cents"] == 4


def test_a_process_that_answers_differently_after_a_crash_has_the_effect_of_its_first_answer_only(
    store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.sourcing import processes

    class Wavering(Transfers):
        to: ClassVar = ["account-2"]

        @on("Sent")
        def sent(self, event: RecordedEvent) -> list[Command]:
            return [Command(each, account, Deposit(event.data["cents"])) for each in self.to]

    handle(store, "account-1", account, Deposit(9))
    handle(store, "account-1", account, Send(4, "account-2"))
    with monkeypatch.context() as patch:
        patch.setattr(processes, "_advance", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_process(store, Wavering(), until_current=True)
    Wavering.to = ["account-3", "account-4"]
    run_process(store, Wavering(), until_current=True)
    assert [load(store, f"account-{each}", account).state["cents"] for each in (2, 3, 4)] == [4, 0, 4]


def test_a_second_runner_of_a_process_stops_and_nothing_happens_twice(store: EventStore) -> None:
    handle(store, "account-1", account, Deposit(100))
    stop, taken = threading.Event(), []

    def run() -> None:
        try:
            run_process(store, Transfers(), stop)
        except TakenOver as error:
            taken.append(error)

    runners = [threading.Thread(target=run) for _ in range(2)]
    for each in runners:
        each.start()
    for _ in range(20):
        handle(store, "account-1", account, Send(1, "account-2"), conflicts_max=100)
    eventually(lambda: load(store, "account-2", account).state["cents"], lambda cents: cents == 20)
    stop.set()
    for each in runners:
        each.join()
    assert load(store, "account-2", account).state["cents"] == 20
    assert len(taken) <= 1


def test_none_is_a_state_like_any_other(here: EventStore) -> None:
    """A stream whose state has become None goes on from None, and not from the beginning."""
    seen: list[object] = []

    def evolve(state: object, event: object) -> object:
        seen.append(state)
        return None

    closed: Decider[object, Event] = Decider(decide=lambda state, event: event, evolve=evolve, initial=lambda: "new")
    handle(here, "a-1", closed, Event("Closed"))
    handle(here, "a-1", closed, Event("Noticed"))
    assert seen == ["new", "new", None]


def test_a_command_that_another_process_does_meanwhile_gives_the_state_after_it(here: EventStore) -> None:
    def decide(state: State, command: Deposit) -> Event:
        handle(here, "account-1", account, command, command_id="c-1")  # the other process is faster
        return deposited(command.cents)

    done = handle(here, "account-1", replace(account, decide=decide), Deposit(5), command_id="c-1")
    assert (done.repeated, done.version, done.state["cents"]) == (True, 1, 5)
