"""A store that was opened before a fork is refused in the child: the two would read each other's answers."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.sourcing import ANY, Event, EventStore, Progress, Projection, ProjectionRunner
from headrace.sourcing.keys import KeyStore

REFUSED = "UsageError: {} was opened by process {}, and this is a fork of it (open it again in this process)"


def in_a_child(action: Callable[[], Any]) -> str:
    """What comes of it in a fork of this process: its result, or what it raises."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: that is what is tested
        child = os.fork()
    if child == 0:
        try:
            answer = f"result {action()}"
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(child, 0)
    return answer


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.append("a-1", Event("A")),
        lambda store: store.append_all([("a-1", [Event("A")], ANY)], progress=Progress("p", 9)),
        lambda store: list(store.read("a-1")),
        lambda store: list(store.read_all()),
        lambda store: store.version("a-1"),
        lambda store: store.progress("p"),
        lambda store: store.command_result("c-1"),
        lambda store: store.delete_snapshots(),
    ],
    ids=["append", "append_all", "read", "read_all", "version", "progress", "command_result", "delete_snapshots"],
)
def test_a_store_is_refused_in_a_fork_and_goes_on_in_its_own_process(
    store: EventStore, use: Callable[[EventStore], Any]
) -> None:
    store.append("a-1", Event("A"))
    assert in_a_child(lambda: use(store)) == REFUSED.format(store.shown, os.getpid())
    assert store.append("a-1", Event("A"), expected=1).position == 2
    assert [event.position for event in store.read_all()] == [1, 2]


def test_closing_in_a_fork_leaves_the_store_of_the_parent_open(store: EventStore) -> None:
    store.append("a-1", Event("A"))
    list(store.read_all())
    assert in_a_child(store.close) == "result None"
    assert store.append("a-1", Event("A"), expected=1).position == 2
    assert store.version("a-1") == 2


def test_a_fork_opens_the_store_again(store: EventStore, open_: Callable[..., EventStore], url: str) -> None:
    store.append("a-1", Event("A"))
    if url.startswith("kafka:"):
        store.close()  # it has one writer
    assert in_a_child(lambda: open_().append("a-1", Event("A"), expected=1).position) == "result 2"
    assert open_().version("a-1") == 2


def test_views_and_keys_are_refused_in_a_fork(store: EventStore, url: str, tmp_path: Path) -> None:
    database = url if url.startswith("postgresql:") else f"sqlite:///{tmp_path}/views.db"
    runner = ProjectionRunner(store, database, Projection())
    shown = runner._database.shown
    for use in (lambda: runner.ask("select 1"), lambda: runner.purge()):
        assert in_a_child(use) == REFUSED.format(shown, os.getpid())
    assert in_a_child(runner.close) == "result None"
    assert runner.ask("select 1") == [(1,)]
    runner.close()

    keys = KeyStore(tmp_path / "customers.keys")
    for touch in (lambda: keys.for_writing("c-1"), lambda: keys.destroy("c-1"), lambda: keys.is_forgotten("c-1")):
        assert in_a_child(touch) == REFUSED.format(keys.path, os.getpid())
    assert in_a_child(keys.close) == "result None"
    assert not keys.is_forgotten("c-1")
    keys.close()


def test_a_fork_that_ends_leaves_the_index_of_its_parent_and_the_parent_removes_it(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from headrace.sourcing.temporary import TemporaryFolder\n"
        "folder = TemporaryFolder()\n"
        "if os.fork() == 0:\n"
        "    sys.exit()\n"
        "os.wait()\n"
        "print(folder.path.exists())\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    assert list(tmp_path.iterdir()) == []
