"""Appends of many threads share one write, each with its own outcome; who is interrupted holds nobody up."""

from __future__ import annotations

import dis
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from headrace.sourcing import Event, open_store
from headrace.sourcing.appends import Appended, GroupCommit, Request
from headrace.sourcing.databases import open_database
from headrace.sourcing.errors import StoreUnavailable
from headrace.sourcing.keys import KeyStore
from tests.waiting import eventually


class Interrupted(Exception):
    pass


class Slow:
    """A store whose first write takes until it is allowed to end."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()
        self.sizes: list[int] = []
        self.fails: BaseException | None = None
        self.group = GroupCommit(self.write)

    def write(self, batch: Sequence[Request]) -> None:
        self.sizes.append(len(batch))
        self.began.set()
        self.may_end.wait()
        if self.fails is not None:
            raise self.fails
        for number, each in enumerate(batch):
            each.outcome = Appended(number, number, {})

    def submit_many(self, count: int) -> list[Any]:
        """The outcomes of threads that append while the first one writes, which comes first."""
        found: list[Any] = [None] * (count + 1)

        def submit(number: int) -> None:
            try:
                found[number] = self.group.submit(Request([]))
            except BaseException as error:
                found[number] = error

        threads = [threading.Thread(target=submit, args=(number,)) for number in range(count + 1)]
        threads[0].start()
        self.began.wait()
        for each in threads[1:]:
            each.start()
        eventually(lambda: len(self.group._queue), lambda waiting: waiting == count)
        self.may_end.set()
        for each in threads:
            each.join()
        return found


def test_those_who_wait_are_written_together() -> None:
    slow = Slow()
    outcomes = slow.submit_many(5)
    assert slow.sizes == [1, 5]
    assert sorted(each.position for each in outcomes[1:]) == [0, 1, 2, 3, 4]
    assert slow.group.submit(Request([])).position == 0


def test_an_error_of_the_store_is_everybodys_and_the_next_append_goes_on() -> None:
    slow = Slow()
    slow.fails = StoreUnavailable("the disk is full")
    outcomes = slow.submit_many(3)
    assert [str(each) for each in outcomes] == ["the disk is full"] * 4
    assert len({id(each) for each in outcomes[1:]}) == 3
    slow.fails = None
    assert slow.group.submit(Request([])).position == 0


def test_who_is_interrupted_while_writing_is_not_mistaken_for_an_interrupt_of_the_others() -> None:
    slow = Slow()
    slow.fails = KeyboardInterrupt()
    outcomes = slow.submit_many(3)
    assert sorted(type(each).__name__ for each in outcomes[1:]) == ["KeyboardInterrupt", *["StoreUnavailable"] * 2]
    slow.fails = None
    assert slow.group.submit(Request([])).position == 0


def test_one_who_is_interrupted_while_waiting_holds_nobody_up() -> None:
    slow = Slow()
    writer = threading.Thread(target=slow.group.submit, args=(Request([]),))
    writer.start()
    slow.began.wait()

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(Interrupted):
            slow.group.submit(Request([]))
    finally:
        signal.signal(signal.SIGALRM, before)
    slow.may_end.set()
    writer.join()
    assert slow.group.submit(Request([])).position == 0
    assert slow.sizes == [1, 1]


class InterruptAt:
    """Interrupts a thread at the n-th place in a module where Python looks for signals: after a call, at the
    beginning of a function, at the end of a loop."""

    def __init__(self, number: int, module: str = "sourcing/appends.py") -> None:
        self.left = number
        self._module = module
        self.was_raised = False
        self._looks: dict[object, bool] = {}

    def __call__(self, frame: Any, event: str, argument: object) -> Any:
        code = frame.f_code
        if not code.co_filename.endswith(self._module) or code.co_name in ("_leave", "_locked"):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            may_interrupt = self._looks.get(frame, False)
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            self._looks[frame] = name.startswith(("CALL", "RESUME", "JUMP_BACKWARD"))
            if may_interrupt and not self.was_raised:
                self.left -= 1
                if self.left == 0:
                    self.was_raised = True
                    sys.settrace(None)
                    raise KeyboardInterrupt
        return self


def interrupted_at(number: int) -> bool:
    """A leader is interrupted at one place, while two others wait and one comes later; whether there is such a
    place."""
    interrupt, slow = InterruptAt(number), Slow()
    slow.may_end.set()
    seen: list[object] = []

    def lead() -> None:
        sys.settrace(interrupt)
        try:
            seen.append(slow.group.submit(Request([])))
        except BaseException as error:
            seen.append(error)
        finally:
            sys.settrace(None)

    def follow() -> None:
        try:
            seen.append(slow.group.submit(Request([])))
        except StoreUnavailable as error:
            seen.append(error)

    threads = [threading.Thread(target=each, daemon=True) for each in (lead, follow, follow)]
    for each in threads:
        each.start()
    eventually(lambda: len(seen) == 3)
    assert slow.group.submit(Request([])).position == 0
    return interrupt.was_raised


def test_an_interrupt_at_any_instant_of_a_leader_holds_nobody_up() -> None:
    """One after another, every place at which it can happen. The others are written, or learn why not."""
    number = 1
    while interrupted_at(number):
        number += 1
    assert number > 10


def change_of_store(path: Path) -> tuple[Callable[[], object], Callable[[], None]]:
    store = open_store(path)
    return lambda: store.append("account-1", Event("Paid")), store.close


def change_of_view(path: Path) -> tuple[Callable[[], object], Callable[[], None]]:
    database = open_database(path)

    def change() -> None:
        with database.writing() as transaction:
            transaction.execute("create table if not exists rows (id integer)")

    return change, database.close


def change_of_keys(path: Path) -> tuple[Callable[[], object], Callable[[], None]]:
    keys = KeyStore(path)
    return lambda: keys.destroy("customer-1"), keys.close


@pytest.mark.parametrize(
    ("opened", "module"),
    [(change_of_store, "sqlite"), (change_of_view, "databases"), (change_of_keys, "keys")],
    ids=["store", "view", "keys"],
)
def test_an_interrupt_at_any_instant_of_a_transaction_leaves_the_file_to_others(
    tmp_path: Path, opened: Callable[[Path], tuple[Callable[[], object], Callable[[], None]]], module: str
) -> None:
    for number in count(1):
        path = tmp_path / f"{number}.db"
        change, close = opened(path)
        interrupt = InterruptAt(number, f"sourcing/{module}.py")
        sys.settrace(interrupt)
        try:
            change()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            other.execute("begin immediate")
        change()
        close()
        if not interrupt.was_raised:
            break
    assert number > 5
