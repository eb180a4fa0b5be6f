"""A bank, for the tests: rules as functions and as a class, and views of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.sourcing import Aggregate, Command, Decider, Event, ProcessManager, Projection, Rejection, View, on
from headrace.sourcing.events import RecordedEvent


@dataclass(frozen=True)
class Open:
    owner: str
    name: str = ""


@dataclass(frozen=True)
class Deposit:
    cents: int


@dataclass(frozen=True)
class Withdraw:
    cents: int


@dataclass(frozen=True)
class Send:
    cents: int
    to: str


State = dict[str, Any]


def decide(state: State, command: object) -> list[Event] | Event | Rejection:
    match command:
        case Open(owner, name):
            if state["is_open"]:
                return Rejection("the account is open already")
            return Event("Opened", {"owner": owner, "name": name}, personal={"name": owner} if name else {})
        case Deposit(cents):
            return Event("Deposited", {"cents": cents})
        case Withdraw(cents) if cents > state["cents"]:
            return Rejection("not enough money", left=state["cents"])
        case Withdraw(cents):
            return [Event("Withdrawn", {"cents": cents})]
        case Send(cents, to) if cents <= state["cents"]:
            return [Event("Withdrawn", {"cents": cents}), Event("Sent", {"cents": cents, "to": to})]
    return Rejection("unknown")


def evolve(state: State, event: Event | RecordedEvent) -> State:
    match event.type:
        case "Opened":
            return {**state, "is_open": True, "name": str(event.data["name"])}
        case "Deposited":
            return {**state, "cents": state["cents"] + event.data["cents"]}
        case "Withdrawn":
            return {**state, "cents": state["cents"] - event.data["cents"]}
    return state


account: Decider[State, object] = Decider(
    decide=decide, evolve=evolve, initial=lambda: {"is_open": False, "cents": 0}, name="account"
)


class Wallet(Aggregate):
    """The same rules as a class."""

    def __init__(self) -> None:
        self.cents = 0

    def deposit(self, cents: int) -> None:
        if cents <= 0:
            raise Rejection("nothing to deposit")
        self.record("Deposited", cents=cents)

    @on("Deposited")
    def deposited(self, event: RecordedEvent) -> None:
        self.cents += event.data["cents"]


class Balances(Projection):
    tables: ClassVar = {"balances": "account text primary key, cents bigint not null"}
    personal = False

    @on("Deposited", "Withdrawn")
    def moved(self, view: View, event: RecordedEvent) -> None:
        cents = event.data["cents"] * (1 if event.type == "Deposited" else -1)
        table = view.table("balances")
        view.execute(
            f"insert into {table} values (?, ?) "
            f"on conflict (account) do update set cents = {table}.cents + excluded.cents",
            event.stream,
            cents,
        )


class Names(Projection):
    """Keeps names of people."""

    tables: ClassVar = {"names": "account text primary key, owner text, name text"}

    @on("Opened")
    def opened(self, view: View, event: RecordedEvent) -> None:
        view.execute(
            f"insert into {view.table('names')} values (?, ?, ?)",
            event.stream,
            event.data["owner"],
            str(event.data["name"]),
        )


class Transfers(ProcessManager):
    """Money that was sent arrives."""

    @on("Sent")
    def sent(self, event: RecordedEvent) -> list[Command]:
        return [Command(event.data["to"], account, Deposit(event.data["cents"]))]
