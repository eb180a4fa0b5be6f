"""Damage anywhere in a data directory: ``python -m tests.chaos.damage --cases 1000 --seed 7``.

Each case takes a copy of a directory that a real broker has filled, damages one file of it, starts a broker on it and
reads everything. What clients see must be the truth, or the loss must be reported:

    same           nothing is different
    reported       something is different, and the broker's log names the damaged file or its partition
    client error   something cannot be read, and the client that asks gets an error
    refused        the broker does not start, and names the file
    WRONG          the same as reported, but the file can be derived from others: nothing may be different (a defect)
    unnamed        the broker does not start or reports something, but does not say which file it is       (a defect)
    SILENT         something is different, and nothing is reported                                         (a defect)

The seed and a case's number decide everything about it: ``--only NUMBER`` repeats one.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from headrace import testing
from headrace.batch import LENGTH_FIELD_END, parse_header
from headrace.cli.log import command as log_command
from headrace.errors import HeadraceError
from tests.chaos.damage_snapshot import differences, take
from tests.chaos.damage_world import ENDS, World, build, file_kind

__all__ = ["DEFECTS", "Damage", "Outcome", "judge", "listening", "one_of_each"]

DEFECTS = frozenset({"WRONG", "unnamed", "SILENT"})
NOT_DERIVED = (" log", " producers")
"""Kinds of files whose content is nowhere else. Snapshots remember producers whose records are gone."""
QUIET = {"log.cleaner.enable": False}
"""Compaction would change what clients see between one look and the next."""
KINDS = ["flip", "truncate", "zero", "delete", "extend"]
"""Beside these, a segment can be cut exactly between two batches, where no checksum tells."""
LOG_WEIGHT = 3
RANGE_BYTES_MAX = 4096
PROGRESS_EVERY = 50
MEMORY = Path("/dev/shm")
"""Nothing here depends on a disk, and syncs are most of the time on one."""


@dataclass(frozen=True, slots=True)
class Damage:
    """What is done to one file; ``path`` is relative to the data directory."""

    kind: str
    path: Path
    position: int = 0
    size: int = 0
    bit: int = 0

    def __str__(self) -> str:
        where = f" at byte {self.position}" if self.kind not in ("delete", "extend") else ""
        length = f" for {self.size} bytes" if self.size else ""
        return f"{self.kind} {self.path}{where}{length}"

    def apply(self, data: Path) -> None:
        path = data / self.path
        if self.kind == "delete":
            path.unlink()
            return
        content = bytearray(path.read_bytes())
        if self.kind == "flip":
            content[self.position] ^= 1 << self.bit
        elif self.kind == "zero":
            content[self.position : self.position + self.size] = bytes(self.size)
        elif self.kind == "extend":
            content += bytes(self.size)
        else:
            assert self.kind in ("truncate", "cut"), self.kind
            del content[self.position :]
        path.write_bytes(content)


@dataclass(frozen=True, slots=True)
class Outcome:
    damage: Damage
    file_kind: str
    end: str
    verdict: str
    details: tuple[str, ...]
    verified: bool
    """Whether ``headrace log verify`` found something in the damaged directory."""


# ---- choosing -------------------------------------------------------------------------------------------------------


def files_of(data: Path) -> dict[str, list[Path]]:
    """Every file but the lock, by what it is for."""
    found: dict[str, list[Path]] = {}
    for path in sorted(data.rglob("*")):
        if path.is_file() and path.name != "lock":
            found.setdefault(file_kind(path, data), []).append(path.relative_to(data))
    return found


def batch_starts(content: bytes) -> list[int]:
    """Where batches begin in a segment, the end included."""
    starts, position = [], 0
    while (header := parse_header(content, position)) is not None:
        starts.append(position)
        position += header[1] + LENGTH_FIELD_END
    return [*starts, position]


def choose(world: World, chance: random.Random) -> Damage:
    """Kinds of files are equally likely, whatever their number, but for logs, which hold what others only speed up."""
    files = files_of(world.data)
    kinds = [kind for kind in sorted(files) for _ in range(LOG_WEIGHT if kind.endswith(" log") else 1)]
    path = chance.choice(files[chance.choice(kinds)])
    return damage_of(chance.choice(possible(world.data / path)), path, world.data, chance)


def possible(path: Path) -> list[str]:
    """What can be done to a file."""
    if path.stat().st_size == 0:
        return ["delete", "extend"]
    return [*KINDS, "cut"] if path.suffix == ".log" else KINDS


def damage_of(kind: str, path: Path, data: Path, chance: random.Random) -> Damage:
    content = (data / path).read_bytes()
    if kind == "delete":
        return Damage(kind, path)
    if kind == "extend":
        return Damage(kind, path, size=chance.randint(1, RANGE_BYTES_MAX))
    if kind == "cut":
        return Damage(kind, path, chance.choice(batch_starts(content)[:-1]))
    position = chance.randrange(len(content))
    if kind == "zero":
        return Damage(kind, path, position, size=min(chance.randint(1, RANGE_BYTES_MAX), len(content) - position))
    return Damage(kind, path, position, bit=chance.randrange(8) if kind == "flip" else 0)


def one_of_each(worlds: Sequence[World]) -> Iterator[tuple[World, Damage]]:
    """Every kind of damage to every kind of file, in one of the worlds."""
    found: dict[str, list[tuple[World, Path]]] = {}
    for world in worlds:
        for kind, paths in files_of(world.data).items():
            found.setdefault(kind, []).extend((world, path) for path in paths)
    for kind, places in sorted(found.items()):
        filled = [(world, path) for world, path in places if (world.data / path).stat().st_size] or places
        for what in possible(filled[0][0].data / filled[0][1]):
            chance = random.Random(f"{kind}/{what}")
            world, path = chance.choice(filled)
            yield world, damage_of(what, path, world.data, chance)


def damages(worlds: Sequence[World], seed: int, numbers: Sequence[int]) -> Iterator[tuple[int, World, Damage]]:
    for number in numbers:
        world = worlds[number % len(worlds)]
        yield number, world, choose(world, random.Random(f"{seed}/{number}"))


# ---- judging --------------------------------------------------------------------------------------------------------


class Heard(logging.Handler):
    """What an operator finds in the broker's log: warnings and errors."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def listening() -> Iterator[Heard]:
    """The level is set here: Celery, in another test of the same process, leaves the root logger at ERROR, and then the
    warning about a damaged file was logged nowhere and its damage counted as silent."""
    heard = Heard()
    logger = logging.getLogger("headrace")
    propagated, level = logger.propagate, logger.level
    logger.addHandler(heard)
    logger.propagate = False
    logger.setLevel(heard.level)
    try:
        yield heard
    finally:
        logger.removeHandler(heard)
        logger.propagate = propagated
        logger.setLevel(level)


def judge(world: World, damage: Damage | None, folder: Path) -> Outcome:
    """Damage a copy in ``folder``, start a broker on it, and compare what it serves with the truth."""
    data = folder / "data"
    shutil.rmtree(data, ignore_errors=True)
    shutil.copytree(world.data, data)
    kind = "none"
    if damage is not None:
        kind = file_kind(world.data / damage.path, world.data)
        damage.apply(data)
    verified = verify_finds(data)
    verdict, details = observe(world, damage, data)
    return Outcome(damage or Damage("none", Path()), kind, world.end, verdict, tuple(details), verified)


def verify_finds(data: Path) -> bool:
    done = CliRunner().invoke(log_command, ["verify", str(data)], standalone_mode=False)
    return done.exception is not None or done.return_value != 0 or " 0 warnings" not in done.output


def observe(world: World, damage: Damage | None, data: Path) -> tuple[str, list[str]]:
    with listening() as heard:
        try:
            with testing.broker(data=data, settings=QUIET) as broker:
                found = take(broker.bootstrap)
        except HeadraceError as error:
            refusal = [f"refused to start: {error}"]
            return ("refused" if names(refusal, damage) else "unnamed"), refusal
    wrong, failed = differences(world.truth, found)
    if not wrong and not failed:
        return "same", []
    if not wrong:
        return "client error", failed
    if damage is not None and names(heard.lines, damage):
        is_derived = not file_kind(data / damage.path, data).endswith(NOT_DERIVED)
        return ("WRONG", [*wrong, *heard.lines]) if is_derived else ("reported", heard.lines)
    return ("unnamed" if heard.lines else "SILENT"), [*wrong, *failed, *heard.lines]


def names(lines: Sequence[str], damage: Damage | None) -> bool:
    """Whether somebody who reads these lines learns which file it is, or at least which partition."""
    if damage is None:
        return False
    is_in_log = damage.path.parts[0] in ("topics", "state")
    wanted = str(damage.path.parent) if is_in_log else damage.path.name
    return any(wanted in line for line in lines)


# ---- running --------------------------------------------------------------------------------------------------------


def run(seed: int, numbers: Sequence[int], home: Path) -> list[tuple[int, Outcome]]:
    worlds = [build(home / end, end) for end in ENDS]
    for world in worlds:
        control = judge(world, None, home)
        if control.verdict != "same" or control.verified:
            raise AssertionError(f"without damage, after it was {world.end}: {control}")
    found: list[tuple[int, Outcome]] = []
    began = time.monotonic()
    for done, (number, world, damage) in enumerate(damages(worlds, seed, numbers), 1):
        outcome = judge(world, damage, home)
        found.append((number, outcome))
        if outcome.verdict in DEFECTS:
            print(f"case {number}, {outcome.verdict}, {world.end}: {damage}", flush=True)
            print("".join(f"    {line}\n" for line in outcome.details[:3]), end="", flush=True)
        if done % PROGRESS_EVERY == 0:
            counts = Counter(each.verdict for _, each in found)
            print(f"{done} of {len(numbers)} in {time.monotonic() - began:.0f} s: {dict(counts)}", flush=True)
    return found


def table(outcomes: Sequence[Outcome]) -> str:
    """How many of each verdict, by kind of file and kind of damage."""
    counts = Counter((each.file_kind, each.damage.kind, each.verdict) for each in outcomes)
    verdicts = sorted({each.verdict for each in outcomes})
    lines = [f"{'file':<18}{'damage':<26}" + "".join(f"{each:>14}" for each in verdicts)]
    for kind, damage in sorted({(each.file_kind, each.damage.kind) for each in outcomes}):
        row = "".join(f"{counts[kind, damage, verdict] or '':>14}" for verdict in verdicts)
        lines.append(f"{kind:<18}{damage:<26}{row}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--only", type=int, help="the number of one case")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    home = Path(tempfile.mkdtemp(prefix="headrace-damage-", dir=MEMORY if MEMORY.is_dir() else None))
    numbers = range(options.cases) if options.only is None else [options.only]
    try:
        found = [outcome for _, outcome in run(options.seed, numbers, home)]
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(table(found))
    print(dict(Counter(each.verdict for each in found)))
    unverified = [each for each in found if each.verdict != "same" and not each.verified]
    print(f"`log verify` found nothing in {len(unverified)} directories that did not give the truth")
    return 1 if unverified or any(each.verdict in DEFECTS for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
