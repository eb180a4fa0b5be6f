"""One driver per checkpoint: a lock that every run of a pipeline takes before its query starts.

On a local disk the lock is one of the operating system (``flock`` on ``<checkpoints>/.locks/NAME``). It ends with the
process, however that dies, so a killed driver never blocks the next one. The file has the owner's name for messages.

On a store that machines share (``hdfs://``, ``s3a://``) it is a *lease*: a file that its owner writes again every few
seconds, with a number that grows. A driver that finds a lease watches it. When it changes, its owner lives, and the
driver is refused. When it does not change for the length of a lease, the owner is dead or cannot reach the store, and
the driver takes the lease over. No clocks of two machines are compared. An owner that was only slow finds another name
in the file at its next beat and stops; until then the fences of the targets keep it from writing.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from headrace.errors import HeadraceError, UsageError
from headrace.spark.owner import owner_text

__all__ = [
    "CheckpointInUse",
    "Lease",
    "LocalLock",
    "Locks",
    "StoredFile",
    "check_folder",
    "check_free",
    "local_folder",
    "locked",
    "take_leases",
]

FOLDER = ".locks"
ANOTHER_FOLDER = "choose another: --checkpoints DIR"
LEASE_S = 30.0
BEAT_S = 10.0
LOOK_S = 1.0

logger = logging.getLogger(__name__)


class CheckpointInUse(HeadraceError):
    """Another driver runs this pipeline. A restart would only meet it again."""


class Lock(Protocol):
    def check(self) -> None:
        """Raises ``CheckpointInUse`` when it is no longer ours."""

    def release(self) -> None: ...


class StoredFile(Protocol):
    """A small file on a store. ``create`` is false where it is there already."""

    def read(self) -> str | None: ...
    def create(self, text: str) -> bool: ...
    def replace(self, text: str) -> None: ...
    def remove(self) -> None: ...


class Pacing(Protocol):
    """Waits between two looks; ``threading.Event`` does."""

    def wait(self, timeout: float) -> bool: ...


def _in_use(shown: str, owner: str) -> CheckpointInUse:
    return CheckpointInUse(
        f"the checkpoint {shown} is in use by {owner or 'a process that has not written its name yet'}: the pipeline "
        "runs there already. Stop that process, or wait until it has ended"
    )


class LocalLock:
    """A lock of the operating system."""

    def __init__(self, path: Path, shown: str, owner: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(f"the checkpoint {shown} cannot be made: {error.strerror}", ANOTHER_FOLDER) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            found = os.pread(self._file, 1000, 0).decode(errors="replace").strip()
            os.close(self._file)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise _in_use(shown, found) from None
            raise HeadraceError(
                f"the checkpoint {shown} cannot be locked: {error.strerror}. Put it on a disk that has locks"
            ) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{owner}\n".encode(), 0)

    def check(self) -> None:
        """It is ours until we let go of it."""

    def release(self) -> None:
        """The file stays: removing it would let two drivers lock two files of one name."""
        os.ftruncate(self._file, 0)
        os.close(self._file)


class Lease:
    """A file on a store that machines share, written again and again by its owner."""

    def __init__(self, file: StoredFile, shown: str, owner: str) -> None:
        self.file, self.shown, self._owner = file, shown, owner
        self._beats = 0
        self._lost: CheckpointInUse | None = None

    def try_create(self) -> bool:
        """Whether nobody had it."""
        return self.file.create(self._text())

    def take(self) -> None:
        self.file.replace(self._text())

    def _text(self) -> str:
        return json.dumps({"owner": self._owner, "beats": self._beats})

    def beat(self) -> None:
        """Write it again, unless it is another's by now."""
        found = self.file.read()
        if found is not None and _owner_in(found) != self._owner:
            self._lost = _in_use(self.shown, _owner_in(found))
            return
        self._beats += 1
        self.file.replace(self._text())

    def check(self) -> None:
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        found = self.file.read()
        if found is not None and _owner_in(found) == self._owner:
            self.file.remove()


def take_leases(leases: Sequence[Lease], pacing: Pacing, say: Callable[[str], None]) -> None:
    """Those that nobody has at once; the others when they have not changed for as long as a lease lasts."""
    taken = {lease: seen for lease in leases if not lease.try_create() and (seen := lease.file.read()) is not None}
    for lease, seen in taken.items():
        say(f"{lease.shown} has the lease of {_owner_in(seen)}; waiting up to {LEASE_S:g} s to see whether it lives")
    for _ in range(round(LEASE_S / LOOK_S) if taken else 0):
        pacing.wait(LOOK_S)
        for lease, seen in taken.items():
            now = lease.file.read()
            if now is not None and now != seen:
                raise _in_use(lease.shown, _owner_in(now))
    for lease in taken:
        lease.take()
    for lease in leases:
        lease.beat()  # two may have come at once, on a store that cannot create exclusively
        lease.check()


def _owner_in(text: str) -> str:
    try:
        return str(json.loads(text)["owner"])
    except (ValueError, KeyError, TypeError):
        return ""


class Locks:
    """Those of all pipelines of a run."""

    def __init__(self) -> None:
        self.held: list[Lock] = []
        self._beating = threading.Lock()

    def check(self) -> None:
        for lock in self.held:
            lock.check()

    def beat(self) -> None:
        """Renew leases; one that another driver has by now is found by ``check``."""
        with self._beating:
            for lock in self.held:
                if isinstance(lock, Lease):
                    try:
                        lock.beat()
                    except Exception as error:  # a store that is away; the lease may outlive it
                        logger.warning("a lease could not be renewed: %s", error)


def local_folder(checkpoints: str) -> Path | None:
    """The folder of checkpoints on a local disk; None where they lie elsewhere."""
    if checkpoints.startswith("file:"):
        return Path("/" + checkpoints.removeprefix("file:").lstrip("/"))
    return None if "://" in checkpoints else Path(checkpoints)


def check_folder(checkpoints: str) -> None:
    """Refuse at once a local folder of checkpoints that cannot be there."""
    folder = local_folder(checkpoints)
    if folder is None:
        return
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not there.is_dir():
        raise UsageError(f"the checkpoints cannot be in {checkpoints}: {there} is no folder", ANOTHER_FOLDER)
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"the checkpoints cannot be in {checkpoints}: {there} is not writable", ANOTHER_FOLDER)


def check_free(checkpoints: str, pipelines: Sequence[str]) -> None:
    """Refuse at once what ``locked`` would refuse later. Nothing is held or made; leases are not looked at."""
    folder = local_folder(checkpoints)
    if folder is None:
        return
    for name in pipelines:
        try:
            file = os.open(folder / FOLDER / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue  # nobody has run it yet, or it cannot be locked, which is reported when it is
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(file, 1000, 0).decode(errors="replace").strip()
            raise _in_use(f"{checkpoints.rstrip('/')}/{name}", owner) from None
        finally:
            os.close(file)


@contextmanager
def locked(
    checkpoints: str,
    pipelines: Sequence[str],
    stored: Callable[[str], StoredFile],
    say: Callable[[str], None],
) -> Iterator[Locks]:
    """Hold the checkpoints of pipelines. ``stored`` gives a file on the store, by its name below the checkpoints."""
    owner, local = owner_text(), local_folder(checkpoints)
    shown = {name: f"{checkpoints.rstrip('/')}/{name}" for name in pipelines}
    locks = Locks()
    with ExitStack() as stack:
        if local is not None:
            for name in pipelines:
                locks.held.append(LocalLock(local / FOLDER / name, shown[name], owner))
                stack.callback(locks.held[-1].release)
        else:
            leases = [Lease(stored(f"{FOLDER}/{name}"), shown[name], owner) for name in pipelines]
            for lease in leases:
                stack.callback(lease.release)
            ended = threading.Event()
            take_leases(leases, ended, say)
            locks.held.extend(leases)
            beats = threading.Thread(target=_beat, args=(locks, ended), name="headrace-leases", daemon=True)
            beats.start()
            stack.callback(beats.join)
            stack.callback(ended.set)
        yield locks


def _beat(locks: Locks, ended: threading.Event) -> None:
    while not ended.wait(BEAT_S):
        locks.beat()
