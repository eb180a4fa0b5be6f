"""Event sourcing in five minutes: a bank account whose facts are events, and everything else is derived from them.

The rules are two pure functions. `decide` says what follows from a command, `evolve` what an event does to the state.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import ClassVar

from headrace.sourcing import (
    Decider,
    Event,
    EventStore,
    PersonalData,
    Projection,
    ProjectionRunner,
    RecordedEvent,
    Rejection,
    View,
    check,
    handle,
    load,
    on,
    open_store,
)
from headrace.sourcing.keys import KeyStore

# ---- the rules ------------------------------------------------------------------------------------------------------

Command = tuple[str, int]


def decide(balance: int, command: Command) -> Event | Rejection:
    what, cents = command
    if what == "deposit":
        return Event("Deposited", {"cents": cents})
    if cents > balance:
        return Rejection(f"only {balance} cents are there")
    return Event("Withdrawn", {"cents": cents})


def evolve(balance: int, event: Event | RecordedEvent) -> int:
    if event.type == "Deposited":
        return balance + int(event.data["cents"])
    if event.type == "Withdrawn":
        return balance - int(event.data["cents"])
    return balance


account = Decider(decide=decide, evolve=evolve, initial=int, name="account")

# A test of the rules needs no store, and is one call.
deposited = Event("Deposited", {"cents": 500})
check(account, given=[deposited], when=("withdraw", 200), then=Event("Withdrawn", {"cents": 200}))
check(account, given=[], when=("withdraw", 200), then=Rejection("only 0 cents are there"))


# ---- three views of the same events ---------------------------------------------------------------------------------


class Balances(Projection):
    """What is on each account."""

    tables: ClassVar = {"balances": "account text primary key, cents integer not null"}
    personal = False

    @on("Deposited", "Withdrawn")
    def moved(self, view: View, event: RecordedEvent) -> None:
        cents = event.data["cents"] if event.type == "Deposited" else -event.data["cents"]
        table = view.table("balances")
        view.execute(
            f"insert into {table} values (?, ?) "
            f"on conflict (account) do update set cents = {table}.cents + excluded.cents",
            event.stream,
            cents,
        )


class Turnover(Projection):
    """How much has moved, of the whole bank."""

    tables: ClassVar = {"turnover": "kind text primary key, cents integer not null"}
    personal = False

    @on("Deposited", "Withdrawn")
    def moved(self, view: View, event: RecordedEvent) -> None:
        table = view.table("turnover")
        view.execute(
            f"insert into {table} values (?, ?) "
            f"on conflict (kind) do update set cents = {table}.cents + excluded.cents",
            event.type,
            event.data["cents"],
        )


class Owners(Projection):
    """Whose account it is. It has names in it, so it is rebuilt when somebody is forgotten."""

    tables: ClassVar = {"owners": "account text primary key, name text not null"}

    @on("Opened")
    def opened(self, view: View, event: RecordedEvent) -> None:
        view.execute(f"insert into {view.table('owners')} values (?, ?)", event.stream, str(event.data["name"]))


def main(folder: Path) -> None:
    keys = KeyStore(folder / "customers.keys")
    # The name in an Opened event belongs to its customer: it is encrypted with that customer's key.
    personal = {"Opened": PersonalData(subject_field="customer", fields=("name",))}
    with open_store(folder / "bank.db", keys=keys, personal=personal) as store:
        work(store)
        views = [ProjectionRunner(store, folder / "views.db", each) for each in (Balances(), Turnover(), Owners())]
        for each in views:
            each.run(until_current=True)
        print("balances:", views[0].ask("select * from balances order by account"))
        print("turnover:", views[1].ask("select * from turnover order by kind"))
        print("owners:", views[2].ask("select * from owners order by account"))

        debug(store)

        store.forget("c-1")
        for each in views:
            each.run(until_current=True)
            each.purge()
            print("after forgetting Ada:", each.ask(f"select * from {next(iter(each.projection.tables))} order by 1"))
            each.close()


def work(store: EventStore) -> None:
    """Commands become events, and `as it was on Friday` is a read up to a moment."""
    store.append("account-1", Event("Opened", {"customer": "c-1", "name": "Ada"}), expected="none")
    store.append("account-2", Event("Opened", {"customer": "c-2", "name": "Grace"}), expected="none")
    handle(store, "account-1", account, ("deposit", 500))
    friday = list(store.read("account-1"))[-1].recorded_at
    time.sleep(0.01)
    handle(store, "account-1", account, ("withdraw", 200), command_id="cash-machine-7")
    handle(store, "account-1", account, ("withdraw", 200), command_id="cash-machine-7")  # again: it changes nothing
    handle(store, "account-2", account, ("deposit", 42))
    try:
        handle(store, "account-2", account, ("withdraw", 99))
    except Rejection as rejection:
        print("refused:", rejection)
    print("now:", load(store, "account-1", account).state, "cents")
    print("as it was on Friday:", load(store, "account-1", account, at=friday).state, "cents")


def debug(store: EventStore) -> None:
    """A debugging replay: the state after each event shows where something went wrong."""
    balance = account.initial()
    for event in store.read("account-1"):
        balance = evolve(balance, event)
        print(f"  version {event.version}: {event.type:<10} -> {balance}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
