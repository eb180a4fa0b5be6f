"""Those who use the store of a history: this process, another one that may be killed, subscriptions and views."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar

from headrace.sourcing import (
    EventStore,
    Forgotten,
    Projection,
    Query,
    RecordedEvent,
    View,
    on,
    open_store,
)
from headrace.sourcing.keys import KeyStore
from tests.sourcing.model import Model, Operation, Outcome, perform, upcasters


@dataclass(slots=True)
class Here:
    """A store that is opened in this process, by code that knows the newest events or by older code."""

    url: str
    keys: Path
    newest: bool
    store: EventStore = field(init=False)
    keystore: KeyStore = field(init=False)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.keystore = KeyStore(self.keys)
        self.store = open_store(self.url, keys=self.keystore, upcasters=upcasters() if self.newest else None)

    def perform(self, operation: Operation) -> Outcome:
        return perform(self.store, operation)

    def close(self) -> None:
        self.store.close()
        self.keystore.close()

    def again(self) -> None:
        self.close()
        self.open()


@dataclass(slots=True)
class There:
    """A store that is opened in another process, which may be killed."""

    url: str
    keys: Path
    newest: bool = True
    process: subprocess.Popen[bytes] | None = None

    def send(self, operation: Operation) -> None:
        if self.process is None:
            command = [
                sys.executable,
                "-W",
                "ignore::UserWarning",
                "-m",
                "tests.sourcing.writers",
                self.url,
                str(self.keys),
            ]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert received(self._out) == "open"
        assert self.process.stdin is not None
        pickle.dump(operation, self.process.stdin)
        self.process.stdin.flush()

    @property
    def _out(self) -> Any:
        assert self.process is not None
        return self.process.stdout

    def perform(self, operation: Operation) -> Outcome:
        self.send(operation)
        outcome: Outcome = received(self._out)
        return outcome

    def close(self, kill: bool = False) -> None:
        if self.process is not None:
            if kill:
                self.process.kill()
            with closing(self._out):
                assert self.process.stdin is not None
                with suppress(BrokenPipeError):
                    self.process.stdin.close()
                self.process.wait(30)
            self.process = None

    again = close


def received(pipe: IO[bytes]) -> Any:
    return pickle.load(pipe)  # noqa: S301 (from our own process)


def serve(url: str, keys: str) -> None:
    here = Here(url, Path(keys), newest=True)
    source: Any = sys.stdin.buffer
    out = sys.stdout.buffer
    pickle.dump("open", out)
    out.flush()
    while source.peek(1):
        pickle.dump(here.perform(received(source)), out)
        out.flush()
    here.close()


# ---- views -----------------------------------------------------------------------------------------------------------


class Totals(Projection):
    tables: ClassVar = {"totals": "stream text primary key, number bigint not null, cents bigint not null"}
    personal = False

    @on("Moved")
    def moved(self, view: View, event: RecordedEvent) -> None:
        table = view.table("totals")
        view.execute(
            f"insert into {table} values (?, 1, ?) on conflict (stream) do update "
            f"set number = {table}.number + 1, cents = {table}.cents + excluded.cents",
            event.stream or "",
            event.data["cents"],
        )


class RebuiltNames(Projection):
    """Personal data without a rule how to forget it."""

    tables: ClassVar = {"rebuilt_names": "position bigint primary key, subject text not null, name text not null"}
    table: ClassVar = "rebuilt_names"

    @on("Named")
    def named(self, view: View, event: RecordedEvent) -> None:
        if not isinstance(event.data["name"], Forgotten):
            statement = f"insert into {view.table(self.table)} values (?, ?, ?)"
            view.execute(statement, event.position, event.data["who"], ascii(event.data["name"]))


class KeptNames(RebuiltNames):
    tables: ClassVar = {"kept_names": "position bigint primary key, subject text not null, name text not null"}
    table: ClassVar = "kept_names"

    def forget(self, view: View, subject: str) -> None:
        table = view.table(self.table)
        for position, name in view.execute(f"select position, name from {table} where subject = ?", subject):
            assert name is not None
            view.execute(f"delete from {table} where position = ?", position)


def view_of(model: Model, projection: type[Projection]) -> set[tuple[Any, ...]]:
    if projection is Totals:
        totals: dict[str, tuple[int, int]] = {}
        for row in model.rows:
            if row["stored_type"] == "Moved":
                number, cents = totals.get(row["stream"] or "", (0, 0))
                totals[row["stream"] or ""] = (number + 1, cents + row["data"]["cents"])
        return {(name, *each) for name, each in totals.items()}
    return {
        (row["position"], ascii(row["data"]["name"]))
        for row in model.rows
        if row["stored_type"] == "Named" and row["personal"]["name"] not in model.forgotten
    }


class Live:
    """A subscription that began in the middle of a history, in a thread."""

    def __init__(self, url: str, keys: Path, query: Query, after: int) -> None:
        self.here = Here(url, keys, newest=True)
        self.query = query
        self.after = after
        self.positions: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        for event in self.here.store.subscribe(self.query, after=self.after, stop=self._stop):
            self.positions.append(event.position)

    def wait_for(self, wanted: int) -> None:
        """Until so many have come, or for long."""
        deadline = time.monotonic() + 20
        while len(self.positions) < wanted and time.monotonic() < deadline:
            time.sleep(0.01)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self.here.close()


if __name__ == "__main__":
    serve(*sys.argv[1:])
