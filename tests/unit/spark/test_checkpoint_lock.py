"""One driver per checkpoint, also after a kill, and on stores that machines share."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.spark.run.checkpoint_lock import (
    LEASE_S,
    CheckpointInUse,
    Lease,
    LocalLock,
    Locks,
    StoredFile,
    check_folder,
    check_free,
    local_folder,
    locked,
    take_leases,
)

HOLDER = """
import sys
from pathlib import Path
from headrace.spark.run.checkpoint_lock import LocalLock
lock = LocalLock(Path(sys.argv[1]), "checkpoints/orders", "process 1 on holder")
print("held", flush=True)
sys.stdin.read()
"""


def no_store(name: str) -> StoredFile:
    raise AssertionError("a local checkpoint needs no store")


def no_words(line: str) -> None:
    raise AssertionError(line)


def test_a_second_driver_of_a_checkpoint_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    with (
        locked(str(tmp_path), ["orders", "items"], no_store, no_words),
        pytest.raises(CheckpointInUse, match=r"items is in use by process \d+ on .+ since 20.*Stop that process"),
        locked(str(tmp_path), ["other", "items"], no_store, no_words),
    ):
        raise AssertionError("two drivers hold one checkpoint")
    with locked(str(tmp_path), ["other", "items", "orders"], no_store, no_words) as locks:
        locks.check()


def test_whether_a_checkpoint_is_free_is_known_without_taking_or_making_it(tmp_path: Path) -> None:
    """For a command that has not started Spark yet."""
    check_free(str(tmp_path / "none"), ["orders"])
    check_free("hdfs:///headrace", ["orders"])
    assert not list(tmp_path.iterdir())
    with locked(str(tmp_path), ["orders"], no_store, no_words):
        check_free(str(tmp_path), ["items"])
        with pytest.raises(
            CheckpointInUse, match=r"/orders is in use by process \d+ on .+ since 20.*Stop that process"
        ):
            check_free(f"file://{tmp_path}", ["items", "orders"])
    check_free(str(tmp_path), ["orders"])
    with locked(str(tmp_path), ["orders"], no_store, no_words) as locks:
        locks.check()


def test_a_folder_that_cannot_be_made_is_refused_before_it_is_needed_and_then_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for folder in (str(tmp_path / "file"), f"file://{tmp_path}/file/below"):
        with pytest.raises(UsageError, match="file is no folder"):
            check_folder(folder)
        with pytest.raises(UsageError, match="/orders cannot be made: Not a directory"):
            locked(folder, ["orders"], no_store, no_words).__enter__()
    check_folder(str(tmp_path / "new" / "below"))
    check_folder("s3a://bucket/checkpoints")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(UsageError, match=f"{tmp_path} is not writable"):
        check_folder(str(tmp_path / "new" / "below"))
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_driver_that_was_killed_does_not_block_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / ".locks" / "orders"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(CheckpointInUse, match="in use by process 1 on holder"):
            LocalLock(path, "checkpoints/orders", "me")
        holder.kill()
        holder.wait()
        LocalLock(path, "checkpoints/orders", "me").release()


def test_a_driver_that_is_stopped_keeps_its_lock(tmp_path: Path) -> None:
    """It would go on with its micro-batch, so nobody may replace it until it is gone."""
    path = tmp_path / ".locks" / "orders"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(CheckpointInUse, match="in use by process 1 on holder"):
            LocalLock(path, "checkpoints/orders", "me")
        holder.kill()
        holder.wait()
        LocalLock(path, "checkpoints/orders", "me").release()


@pytest.mark.parametrize(
    ("folder", "local"),
    [
        ("checkpoints", Path("checkpoints")),
        ("/var/checkpoints", Path("/var/checkpoints")),
        ("file:/var/checkpoints", Path("/var/checkpoints")),
        ("file:///var/checkpoints", Path("/var/checkpoints")),
        ("hdfs://name/checkpoints", None),
        ("s3a://bucket/checkpoints", None),
    ],
)
def test_the_operating_system_locks_what_is_on_a_local_disk(folder: str, local: Path | None) -> None:
    assert local_folder(folder) == local


# ---- leases --------------------------------------------------------------------------------------------------------


class Store:
    """A file on a store, and what happens to it while somebody waits."""

    def __init__(self, text: str | None = None) -> None:
        self.text = text
        self.waited_s = 0.0
        self.meanwhile: Callable[[], Any] = lambda: None

    def read(self) -> str | None:
        return self.text

    def create(self, text: str) -> bool:
        if self.text is not None:
            return False
        self.text = text
        return True

    def replace(self, text: str) -> None:
        self.text = text

    def remove(self) -> None:
        self.text = None

    def wait(self, timeout: float) -> bool:
        self.waited_s += timeout
        self.meanwhile()
        return False


def taken(store: Store, owner: str, said: list[str] | None = None) -> Lease:
    lease = Lease(store, "s3a://b/orders", owner)
    take_leases([lease], store, (said if said is not None else []).append)
    return lease


def test_a_lease_that_nobody_has_is_taken_at_once_and_given_back() -> None:
    store = Store()
    lease = taken(store, "A")
    assert store.waited_s == 0
    lease.check()
    lease.release()
    assert store.text is None


def test_a_lease_whose_owner_lives_is_refused_with_its_name() -> None:
    store, said = Store(), list[str]()
    store.meanwhile = taken(store, "A").beat
    with pytest.raises(CheckpointInUse, match="in use by A"):
        taken(store, "B", said)
    assert said == ["s3a://b/orders has the lease of A; waiting up to 30 s to see whether it lives"]
    assert store.waited_s < LEASE_S


def test_a_lease_whose_owner_was_killed_is_taken_after_it_has_not_changed_for_its_length() -> None:
    store = Store()
    dead = taken(store, "A")
    taken(store, "B").check()
    assert store.waited_s == LEASE_S
    dead.beat()
    with pytest.raises(CheckpointInUse, match="in use by B"):
        dead.check()
    dead.release()
    assert store.text is not None
    assert json.loads(store.text)["owner"] == "B"


def test_a_lease_that_is_given_back_while_somebody_waits_is_taken() -> None:
    store = Store()
    before = taken(store, "A")
    store.meanwhile = before.release
    taken(store, "B").check()


def test_a_driver_that_goes_on_after_it_was_replaced_finds_it_at_its_next_beat_and_not_by_its_lock_alone() -> None:
    store, locks = Store(), Locks()
    locks.held.append(taken(store, "A"))
    taken(store, "B")
    locks.check()
    locks.beat()
    with pytest.raises(CheckpointInUse, match="in use by B"):
        locks.check()


def test_of_two_that_take_a_dead_lease_at_once_one_is_refused() -> None:
    store = Store('{"owner": "dead", "beats": 3}')

    class Late(Store):
        """Sees its own text only until the other one writes, behind its back."""

        def replace(self, text: str) -> None:
            store.text = json.dumps({"owner": "faster", "beats": 0})

        def read(self) -> str | None:
            return store.text

    with pytest.raises(CheckpointInUse, match="in use by faster"):
        taken(Late(store.text), "slower")
