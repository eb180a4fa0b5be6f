"""The key file and its master key: two processes at once, a rotation meanwhile, a crash half-way."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.sourcing import SourcingError, StoreUnavailable, open_store
from headrace.sourcing import keys as keys_module
from headrace.sourcing.keys import KeyStore


@pytest.mark.parametrize("first", [["u1"], []], ids=["with keys", "empty"])
def test_a_process_that_runs_on_after_a_rotation_of_the_master_key_adds_no_key_that_would_be_lost(
    tmp_path: Path, first: list[str]
) -> None:
    running = KeyStore(tmp_path / "keys")
    for subject in first:
        running.for_writing(subject)
    KeyStore(tmp_path / "keys").rotate_master(tmp_path / "new.master")
    with pytest.raises(SourcingError, match="not the master key"):
        running.for_writing("u2")
    again = KeyStore(tmp_path / "keys", master_file=tmp_path / "new.master")
    assert again.for_writing("u2")[0] == 1
    assert again.rotate_master(tmp_path / "newest.master") == len(first) + 1


def test_a_rotation_that_dies_half_way_leaves_the_old_master_key_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KeyStore(tmp_path / "keys")
    for subject in ("u1", "u2"):
        keys.for_writing(subject)
    seal = keys_module.Cipher.seal
    calls: list[bytes] = []

    def die(self: keys_module.Cipher, text: bytes, bound: bytes) -> bytes:
        calls.append(bound)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return seal(self, text, bound)

    with monkeypatch.context() as patch:
        patch.setattr(keys_module.Cipher, "seal", die)
        with pytest.raises(KeyboardInterrupt):
            keys.rotate_master(tmp_path / "new.master")
    for store in (keys, KeyStore(tmp_path / "keys")):
        assert store.for_reading("u1", 1) is not None
    assert keys.rotate_master(tmp_path / "new.master") == 2
    assert KeyStore(tmp_path / "keys", master_file=tmp_path / "new.master").for_reading("u2", 1) is not None


def test_processes_that_open_a_new_key_store_at_once_use_one_master_key(tmp_path: Path) -> None:
    def use(number: int) -> None:
        KeyStore(tmp_path / "keys").for_writing(f"u{number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(32)))
    keys = KeyStore(tmp_path / "keys")
    assert all(keys.for_reading(f"u{number}", 1) for number in range(32))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keys", "keys.master"]


def test_a_second_master_file_for_a_new_key_store_is_refused(tmp_path: Path) -> None:
    KeyStore(tmp_path / "keys")
    with pytest.raises(UsageError, match="is missing"):
        KeyStore(tmp_path / "keys", master_file=tmp_path / "typo.master")


def test_a_key_store_without_the_check_gets_it_only_with_the_right_master_key(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys")
    keys.for_writing("u1")
    with sqlite3.connect(tmp_path / "keys") as connection:
        connection.execute("drop table master_check")
    KeyStore(tmp_path / "others")
    with pytest.raises(SourcingError, match="not the master key"):
        KeyStore(tmp_path / "keys", master_file=tmp_path / "others.master")
    assert KeyStore(tmp_path / "keys").for_reading("u1", 1) is not None


def test_keys_and_events_are_never_in_one_file(tmp_path: Path) -> None:
    """Backups of the store would have the keys, and bring back who was forgotten."""
    with open_store(tmp_path / "bank.db"), pytest.raises(UsageError, match="keys are kept apart"):
        KeyStore(tmp_path / "bank.db")
    assert not (tmp_path / "bank.db.master").exists()
    KeyStore(tmp_path / "customers.keys").close()
    with pytest.raises(UsageError, match="has keys of subjects"):
        open_store(tmp_path / "customers.keys")
    keys = KeyStore(tmp_path / "customers.keys")
    assert keys.for_writing("c-1")[0] == 1
    keys.close()


def test_a_file_that_is_no_key_store_or_has_no_folder_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("these are no keys, and long enough to be looked at " * 10)
    with pytest.raises(SourcingError, match="is no key store"):
        KeyStore(tmp_path / "notes.txt")
    with pytest.raises(UsageError, match="there is no folder"):
        KeyStore(tmp_path / "nowhere" / "keys")


def test_a_key_file_that_cannot_be_used_at_the_moment_is_an_error_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, or another process holds the file: no half of a key is kept, and no key is destroyed."""
    monkeypatch.setattr(keys_module, "LOCK_TIMEOUT_S", 0.05)
    keys = KeyStore(tmp_path / "keys")
    keys.for_writing("u1")
    with closing(sqlite3.connect(tmp_path / "keys", isolation_level=None)) as other:
        other.execute("begin exclusive")
        for use in (keys.for_writing, keys.destroy, keys.rotate, keys.is_forgotten, lambda _: keys.forgotten()):
            with pytest.raises(StoreUnavailable, match="keys: database is locked"):
                use("u2")
    assert keys.for_writing("u2")[0] == 1
    assert keys.forgotten() == []
