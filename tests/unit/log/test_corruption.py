"""Decay at random: whatever happens to whichever file, records are there, or somebody is told; never neither."""

from __future__ import annotations

import random
from collections import Counter
from uuid import UUID

import pytest

from headrace.batch import Batch, read_batches
from headrace.errors import HeadraceError
from headrace.log.log import PartitionLog
from headrace.log.store import LogStore
from headrace.log.verify import verify_log
from headrace.testing.disk import SimulatedDisk
from tests.unit.log.builders import SMALL, append, fill, marker, open_log, produced

KEY = ("t", UUID(int=1), 0)
CASES = 300


def written(clean: bool) -> tuple[SimulatedDisk, str, list[tuple[int, bytes]], int]:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    log = open_log(store, *KEY, SMALL)
    for round_number in range(4):
        fill(log, 9)
        append(log, produced(1, round_number, transactional=True))
        append(log, marker(1, commit=round_number % 2 == 0))
        if round_number == 2:
            store.checkpoint(everything=True)
    log.sync_all()
    content = contents(log)
    end = log.end_offset
    if clean:
        store.close()
    disk.crash(0)
    return disk, log.directory, content, end


def contents(log: PartitionLog) -> list[tuple[int, bytes]]:
    """(offset, checksummed bytes) of each batch: the leader epoch has no checksum in this format."""
    batches: list[Batch] = []
    offset = log.start_offset
    while offset < log.end_offset:
        pieces = log.reader.read(offset, bytes_max=1 << 20, offset_max=log.end_offset)
        if not pieces:
            break
        batches += read_batches(pieces[0].read(), batch_bytes_max=1 << 20, from_client=False)
        offset = batches[-1].next_offset
    return [(batch.base_offset, batch.body) for batch in batches]


def harm(disk: SimulatedDisk, directory: str, chance: random.Random) -> str:
    paths = [f"{directory}/{name}" for name in disk.listdir(directory)] + ["/data/checkpoint"]
    path = chance.choice(paths)
    size = disk.file_size(path)
    kind = chance.choice(["flip", "zero", "truncate", "delete", "swap"])
    position = chance.randrange(size) if size else 0
    if kind == "delete":
        # A whole segment behind the recovery point leaves no trace; everything else does.
        path = min(path, f"{directory}/{27:020d}.log") if path.endswith(".log") else path
        disk.unlink(path)
        disk.syncfs("/")
    elif kind == "swap":
        other = chance.choice(paths)
        mine, theirs = disk.contents(path), disk.contents(other)
        disk.damage(path, lambda content: content.__setitem__(slice(None), theirs))
        disk.damage(other, lambda content: content.__setitem__(slice(None), mine))
    elif kind == "truncate":
        disk.damage(path, lambda content: content.__delitem__(slice(position, None)))
    elif kind == "zero":
        end = min(size, position + 512)
        disk.damage(path, lambda content: content.__setitem__(slice(position, end), bytes(end - position)))
    elif size:
        bit = 1 << chance.randrange(8)
        disk.damage(path, lambda content: content.__setitem__(position, content[position] ^ bit))
    return f"{kind} {path} at {position}"


@pytest.mark.parametrize("clean", [True, False], ids=["after an orderly stop", "after a crash"])
def test_damage_to_any_file_is_mended_or_told(clean: bool) -> None:
    outcomes = Counter(outcome(seed, clean) for seed in range(CASES))
    assert outcomes["mended"] > CASES // 10
    assert outcomes["told"] > CASES // 10
    assert outcomes["silent"] == 0


def outcome(seed: int, clean: bool) -> str:
    disk, directory, content, end = written(clean)
    what = harm(disk, directory, random.Random(seed))
    try:
        store = LogStore.open(disk, "/data")
        log = open_log(store, *KEY, SMALL)
        aborted = [entry.first_offset for entry in log.reader.aborted_transactions(0, end)]
        found = contents(log)
    except HeadraceError:
        # Ours, with file and position; or the reader's own check of a batch, which every client makes.
        return "told"
    if (found, log.end_offset, aborted) == (content, end, [20, 42]):
        return "mended"
    if store.report.findings or verify_log(disk, directory):
        return "told"
    print(f"silent loss with seed {seed}: {what}")
    return "silent"
