"""The keys of subjects: one SQLite file beside the store, never inside it, and a master key in a separate file.

    keys = KeyStore("customers.keys")              # the master key is in customers.keys.master

Each subject has a key of 32 random bytes, wrapped (encrypted) with the master key. ``rotate`` gives a subject a new key
for what is written from then on; the older ones still open what was written before. ``rotate_master`` wraps all keys
with a new master key. ``destroy`` removes all keys of a subject and keeps its name: no key is made for it again.

Where these files are is what forgetting rests on. A backup of the key file brings destroyed keys back; keep it out of
the backups of the store, and make backups of it that expire sooner than you have to forget. The master key belongs on
another disk or into a secret manager: ``master_file`` says where. A copy of the key file alone opens nothing.

The file is written with secure_delete and a rollback journal: a wrapped key that was destroyed is overwritten.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.sourcing.errors import SourcingError, SubjectIsForgotten
from headrace.sourcing.forks import Opener
from headrace.sourcing.sqlite import explained

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ModuleNotFoundError as error:
    raise UsageError("personal data needs the package cryptography", "pip install 'headrace[sourcing]'") from error

__all__ = ["Cipher", "KeyStore"]

KEY_BYTES = 32
NONCE_BYTES = 12
CACHED_KEYS_MAX = 10_000
LOCK_TIMEOUT_S = 30.0

_TABLES = """
create table if not exists subject_keys (
    subject text not null, number integer not null, wrapped blob not null, primary key (subject, number));
create table if not exists forgotten_subjects (subject text primary key, announced integer not null default 0);
create table if not exists master_check (only_row integer primary key check (only_row = 1), sealed blob not null);
"""
_CHECKED = b"master"
"""Sealed with the master key, in master_check: a process that adds a key first checks that its master key is the right
one. Otherwise a process that runs on after ``rotate_master`` in another one would wrap new keys with the old master
key, and they would be lost with it."""


class Cipher:
    """AES-256-GCM with a random nonce in front of what it seals."""

    def __init__(self, key: bytes) -> None:
        self._aead = AESGCM(key)

    def seal(self, text: bytes, bound: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, text, bound)

    def open(self, sealed: bytes, bound: bytes) -> bytes | None:
        """The text; None where the key, the text or what it is bound to is another."""
        try:
            return self._aead.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound)
        except InvalidTag:
            return None


class KeyStore:
    """See the module. May be used by many threads and processes."""

    def __init__(self, path: str | Path, *, master_file: str | Path | None = None) -> None:
        self.path = Path(path)
        self.master_file = Path(master_file) if master_file else self.path.with_name(self.path.name + ".master")
        if not self.path.parent.is_dir():
            raise UsageError(f"there is no folder {self.path.parent}", f"mkdir -p {self.path.parent}")
        if not self.path.exists():
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        self._opener = Opener()
        self._lock = threading.RLock()
        self._newest: dict[str, tuple[int, Cipher]] = {}
        self._opened: dict[tuple[str, int], Cipher | None] = {}
        self._seen = -1
        self._connection = sqlite3.connect(
            self.path, isolation_level=None, timeout=LOCK_TIMEOUT_S, check_same_thread=False
        )
        try:
            self._check_alone()
            self._connection.execute("pragma secure_delete = on")
            self._connection.execute("pragma journal_mode = delete")
            self._connection.execute("pragma synchronous = extra")
            self._connection.executescript(_TABLES)
            self._master = Cipher(_master_key(self.master_file, may_create=not self._has_keys()))
            if not self._ask("select 1 from master_check"):
                with self._writing() as connection:
                    self._check_master(connection)
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise explained(f"{self.path} is no key store, or cannot be used", error) from error
        except BaseException:
            self._connection.close()
            raise

    def _ask(self, statement: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement).fetchall()

    def _check_alone(self) -> None:
        """In the file of a store or a view, keys would be in its backups."""
        own = {"subject_keys", "forgotten_subjects", "master_check"}
        others = {name for (name,) in self._ask("select name from sqlite_master where type = 'table'")} - own
        if others:
            raise UsageError(
                f"{self.path} has other tables, {min(others)} for one: keys are kept apart from events and views",
                "give the keys a separate file",
            )

    def _has_keys(self) -> bool:
        return bool(self._ask("select 1 from subject_keys limit 1") or self._ask("select 1 from master_check"))

    def _check_master(self, connection: sqlite3.Connection) -> None:
        """In a transaction that adds a key; the first one says which master key is the right one."""
        found = connection.execute("select sealed from master_check").fetchone()
        if found is None:
            for row in connection.execute("select subject, number, wrapped from subject_keys limit 1").fetchall():
                self._unwrapped(*row)
            sealed = self._master.seal(_CHECKED, _CHECKED)
            connection.execute("insert into master_check values (1, ?)", (sealed,))
        elif self._master.open(found[0], _CHECKED) != _CHECKED:
            raise SourcingError(
                f"{self.master_file} is not the master key of {self.path}, or no longer: open the key store again with "
                "the right one"
            )

    def close(self) -> None:
        if self._opener.is_here:
            with self._lock:
                self._connection.close()

    @contextmanager
    def _using(self) -> Iterator[None]:
        self._opener.check(self.path)
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                raise explained(str(self.path), error) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._using():
            try:
                self._connection.execute("begin immediate")
                yield self._connection
                self._connection.execute("commit")
            except BaseException:
                self._connection.rollback()
                raise
            self._forget_cached()

    def _forget_cached(self) -> None:
        self._newest.clear()
        self._opened.clear()

    def _check_cached(self) -> None:
        """Another process may have destroyed a key: what was cached before is not used again."""
        (seen,) = self._connection.execute("pragma data_version").fetchone()
        if seen != self._seen or len(self._opened) > CACHED_KEYS_MAX or len(self._newest) > CACHED_KEYS_MAX:
            self._forget_cached()
            self._seen = seen

    # ---- use --------------------------------------------------------------------------------------------------------

    def for_writing(self, subject: str) -> tuple[int, Cipher]:
        """The newest key of a subject and its number; the first time it is made, and durable before it is used."""
        with self._using():
            self._check_cached()
            found = self._newest.get(subject)
            if found is None:
                found = self._found_newest(subject) or self._made(subject)
                self._newest[subject] = found
            return found

    def _found_newest(self, subject: str) -> tuple[int, Cipher] | None:
        row = self._connection.execute(
            "select number, wrapped from subject_keys where subject = ? order by number desc limit 1", (subject,)
        ).fetchone()
        return None if row is None else (row[0], self._unwrapped(subject, *row))

    def _made(self, subject: str) -> tuple[int, Cipher]:
        with self._writing() as connection:
            gone = connection.execute("select 1 from forgotten_subjects where subject = ?", (subject,)).fetchone()
            if gone:
                raise SubjectIsForgotten(
                    f"{subject} was forgotten, so no personal data is stored for it: give the person a new id"
                )
            found = self._found_newest(subject)
            return found or self._added(connection, subject, 1)

    def _added(self, connection: sqlite3.Connection, subject: str, number: int) -> tuple[int, Cipher]:
        self._check_master(connection)
        key = os.urandom(KEY_BYTES)
        wrapped = self._master.seal(key, _bound(subject, number))
        connection.execute("insert into subject_keys values (?, ?, ?)", (subject, number, wrapped))
        return number, Cipher(key)

    def for_reading(self, subject: str, number: int) -> Cipher | None:
        """A key of a subject; None where the subject was forgotten."""
        with self._using():
            self._check_cached()
            if (subject, number) not in self._opened:
                self._opened[subject, number] = self._loaded(subject, number)
            return self._opened[subject, number]

    def _loaded(self, subject: str, number: int) -> Cipher | None:
        ask = self._connection.execute
        row = ask("select wrapped from subject_keys where subject = ? and number = ?", (subject, number)).fetchone()
        if row is not None:
            return self._unwrapped(subject, number, row[0])
        if self.is_forgotten(subject):
            return None
        raise SourcingError(
            f"{self.path} has no key {number} of {subject}, and nobody has forgotten it: "
            "this is another key store, or an older copy of it"
        )

    def _unwrapped(self, subject: str, number: int, wrapped: bytes) -> Cipher:
        key = self._master.open(wrapped, _bound(subject, number))
        if key is None:
            raise SourcingError(f"{self.master_file} is not the master key of the keys in {self.path}")
        return Cipher(key)

    # ---- destruction and rotation -----------------------------------------------------------------------------------

    def is_forgotten(self, subject: str) -> bool:
        with self._using():
            ask = self._connection.execute
            return bool(ask("select 1 from forgotten_subjects where subject = ?", (subject,)).fetchone())

    def forgotten(self) -> list[str]:
        """All subjects whose keys were destroyed."""
        with self._using():
            return [row[0] for row in self._connection.execute("select subject from forgotten_subjects").fetchall()]

    def destroy(self, subject: str) -> None:
        """Remove all keys of a subject, for good. Also for one that has none: it will get none."""
        with self._writing() as connection:
            connection.execute("delete from subject_keys where subject = ?", (subject,))
            connection.execute("insert or ignore into forgotten_subjects (subject) values (?)", (subject,))

    def announced(self, subject: str) -> None:
        """The store has the event that says so."""
        with self._writing() as connection:
            connection.execute("update forgotten_subjects set announced = 1 where subject = ?", (subject,))

    def unannounced(self) -> list[str]:
        with self._using():
            rows = self._connection.execute("select subject from forgotten_subjects where announced = 0").fetchall()
            return [row[0] for row in rows]

    def rotate(self, subject: str) -> int:
        """A new key for what is written from now on; gives its number."""
        with self._writing() as connection:
            found = self._found_newest(subject)
            if found is None:
                raise UsageError(f"{self.path} has no key of {subject}", "a subject gets one with its first event")
            return self._added(connection, subject, found[0] + 1)[0]

    def rotate_master(self, new_file: str | Path) -> int:
        """Wrap all keys with the master key in another file, which is made if it is not there; gives their number.

        Keep the old file until this returns, then destroy it. Other processes open the key store again; until then they
        add no key.
        """
        master = Cipher(_master_key(Path(new_file), may_create=True))
        with self._writing() as connection:
            rows = connection.execute("select subject, number, wrapped from subject_keys").fetchall()
            for subject, number, wrapped in rows:
                key = self._master.open(wrapped, _bound(subject, number))
                if key is None:
                    raise SourcingError(f"{self.master_file} is not the master key of {self.path}")
                again = master.seal(key, _bound(subject, number))
                connection.execute(
                    "update subject_keys set wrapped = ? where subject = ? and number = ?", (again, subject, number)
                )
            self._check_master(connection)
            connection.execute("update master_check set sealed = ?", (master.seal(_CHECKED, _CHECKED),))
        self._master, self.master_file = master, Path(new_file)
        return len(rows)


def _bound(subject: str, number: int) -> bytes:
    return f"{number}:{subject}".encode()


def _master_key(path: Path, *, may_create: bool) -> bytes:
    """32 bytes in base64. A key store with keys in it gets no new master key: it would open none of them."""
    if not path.exists():
        if not may_create:
            raise UsageError(
                f"the master key {path} is missing",
                "bring the file back, or say where: master_file=FILE, or --master FILE",
            )
        _make_master_key(path)
    try:
        key = b64decode(path.read_bytes(), validate=True)
    except Base64Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise UsageError(f"{path} is no master key", f"it has {KEY_BYTES} bytes in base64")
    return key


def _make_master_key(path: Path) -> None:
    """Whole or not at all, and on disk with its name. Of two processes that make one, both use that of the first."""
    made = path.with_name(f"{path.name}.{os.urandom(4).hex()}")
    with os.fdopen(os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(b64encode(os.urandom(KEY_BYTES)))
        file.flush()
        os.fsync(file.fileno())
    try:
        with suppress(FileExistsError):
            os.link(made, path)
    finally:
        made.unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
