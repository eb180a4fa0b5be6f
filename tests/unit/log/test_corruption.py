"""Decay at random: whatever happens to any file, every record is there, or an error says that one is not."""

from __future__ import annotations

import random
from collections import Counter
from uuid import UUID

import pytest

from headrace.errors import HeadraceError
from headrace.log.log import PartitionLog
from headrace.log.store import LogStore
from headrace.testing.disk import SimulatedDisk
from tests.flushing import FlusherByHand
from tests.unit.log.builders import SMALL, append, fill, marker, open_log, produced

KEY = ("t", UUID(int=1), 0)
CASES = 300


def written(end_by: str) -> tuple[SimulatedDisk, str, list[tuple[int, bytes]], int]:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    log = open_log(store, *KEY, SMALL)
    flusher = FlusherByHand(disk, "/data", note=store.note_flushed)
    for round_number in range(4):
        fill(log, 9)
        append(log, produced(1, round_number, transactional=True))
        append(log, marker(1, commit=round_number % 2 == 0))
        if round_number == 2:
            store.checkpoint(everything=True)
    flusher.flush([log])
    content = contents(log)
    end = log.end_offset
    if end_by == "stop":
        store.close()
    disk.kill()
    return disk, log.directory, content, end


def contents(log: PartitionLog) -> list[tuple[int, bytes]]:
    """(offset, checksummed bytes) of each batch: the leader epoch has no checksum in this format."""
    return [(batch.base_offset, batch.body) for batch in log.reader.batches(log.start_offset)]


def harm(disk: SimulatedDisk, directory: str, chance: random.Random) -> str:
    paths = [f"{directory}/{name}" for name in disk.listdir(directory)] + ["/data/checkpoint", "/data/flushed"]
    path = chance.choice(paths)
    size = disk.file_size(path)
    kind = chance.choice(["flip", "zero", "truncate", "delete", "swap"])
    position = chance.randrange(size) if size else 0
    if kind == "delete":
        disk.unlink(path)
        disk.syncfs("/")
    elif kind == "swap":
        # Not with the flushed ends: without them a lost end of a log is a warning and no more, as docs/adr says.
        path, other = chance.choices(paths[:-1], k=2)
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


@pytest.mark.slow
@pytest.mark.parametrize("end_by", ["stop", "kill"])
def test_damage_to_any_file_is_repaired_or_reported(end_by: str) -> None:
    outcomes = Counter(outcome(seed, end_by) for seed in range(CASES))
    assert outcomes["repaired"] > CASES // 10
    assert outcomes["refused"] > CASES // 10
    assert set(outcomes) <= {"repaired", "refused"}


def outcome(seed: int, end_by: str) -> str:
    disk, directory, content, end = written(end_by)
    what = harm(disk, directory, random.Random(seed))
    try:
        store = LogStore.open(disk, "/data")
        log = open_log(store, *KEY, SMALL)
        aborted = [entry.first_offset for entry in log.reader.aborted_transactions(0, end)]
        found = contents(log)
    except HeadraceError:
        return "refused"
    if (found, log.end_offset, aborted) == (content, end, [20, 42]):
        return "repaired"
    return f"seed {seed}: {what}: {store.report.findings}"
