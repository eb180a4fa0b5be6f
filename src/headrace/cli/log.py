"""``headrace log``: a data directory's files, looked at, checked and repaired without a broker."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.record_text import json_line, time_text
from headrace.cli.shared import output_option
from headrace.errors import KafkaError, UsageError
from headrace.node_messages import count_text

if TYPE_CHECKING:
    from headrace.batch import Batch
    from headrace.broker.repair import DamagedLog
    from headrace.broker.unclaimed import Unclaimed
    from headrace.log.dump import BadBytes, StoredBatch
    from headrace.log.findings import Finding

__all__ = ["command"]

DEFAULT_DATA = "headrace-data"
DECOMPRESSED_BYTES_MAX = 128 << 20
SEGMENT = re.compile(r"[0-9]{20}\.log")


@click.group("log")
def command() -> None:
    """Look at the files of a data directory, check them and repair them."""


PATH = click.argument("path", type=click.Path(exists=True, path_type=Path), default=DEFAULT_DATA)


@command.command("dump")
@PATH
@click.option("-t", "--topic", metavar="TOPIC", help="Only this topic.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Only this partition.")
@click.option("-r", "--records", is_flag=True, help="Print the records too.")
@click.option("--from", "first", type=click.IntRange(min=0), default=0, help="Only batches that reach this offset.")
@click.option("-c", "--count", type=click.IntRange(min=1), help="Stop after this many batches.")
@output_option
def dump(
    path: Path,
    topic: str | None,
    partition: int | None,
    records: bool,
    first: int,
    count: int | None,
    output: str,
) -> int:
    """Print the batches in a data directory, a partition's folder, or one segment file.

    PATH is headrace-data where it is left out. Exits 1 when bytes were found that are no batch.
    """
    render = _batch_json if output == "json" else _batch_line
    bad = False
    for name, found in _walk(path, topic, partition, first, count):
        click.echo(render(name, found))
        sound = getattr(found, "batch", None) if getattr(found, "checksum_holds", False) else None
        bad = bad or sound is None
        if records and sound is not None:
            _print_records(name, sound)
    return 1 if bad else 0


@command.command("verify")
@PATH
@click.option("--headers-only", is_flag=True, help="Check batches but do not decode their records.")
@output_option
def verify(path: Path, headers_only: bool, output: str) -> int:
    """Check a whole data directory, or one partition's folder, without changing anything.

    PATH is headrace-data where it is left out. Of a data directory, checkpoint, journal and directories are checked
    too. Warnings are about what the broker derives again by itself; errors are about records, and make it exit 1. A
    broker may be running.
    """
    from headrace.log.findings import Severity

    decompressed_bytes_max = 0 if headers_only else DECOMPRESSED_BYTES_MAX
    partitions, found = _verified(path, decompressed_bytes_max)
    findings = []
    for finding in found:
        findings.append(finding)
        if output == "table":
            click.echo(f"{finding.severity}: {finding}")
    errors, warnings = (sum(each.severity is kind for each in findings) for kind in (Severity.ERROR, Severity.WARNING))
    if output == "json":
        rows = [
            {"file": each.path, "position": each.position, "kind": str(each.severity), "message": each.message}
            for each in findings
        ]
        click.echo(json.dumps({"partitions": partitions(), "errors": errors, "problems": rows}, indent=2))
    else:
        checked = count_text(partitions(), "partition")
        click.echo(f"{checked} checked: {count_text(errors, 'error')}, {count_text(warnings, 'warning')}")
    return 1 if errors else 0


def _verified(path: Path, decompressed_bytes_max: int) -> tuple[Callable[[], int], Iterator[Finding]]:
    """(how many partitions were checked, asked at the end; what is found)."""
    from headrace.broker.verify import DataVerifier
    from headrace.log.disk import OsDisk
    from headrace.log.verify import verify_log

    if (path / "topics").is_dir():
        verifier = DataVerifier(OsDisk(), str(path.absolute()), decompressed_bytes_max=decompressed_bytes_max)
        return lambda: len(verifier.partitions), verifier.run()
    folders = [str(folder) for _, folder in _folders(path)]
    checks = (verify_log(OsDisk(), folder, decompressed_bytes_max=decompressed_bytes_max) for folder in folders)
    return lambda: len(folders), chain.from_iterable(checks)


@command.command("repair")
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path), default=DEFAULT_DATA)
@click.option("--yes", is_flag=True, help="Do it. Without this, only what would be done is printed.")
@click.option("--adopt", is_flag=True, help="Also make topics of directories that the journal does not name.")
def repair(path: Path, yes: bool, adopt: bool) -> int:
    """Make damaged partitions usable again, at the price of what is damaged.

    For a stopped broker that refuses a partition, or does not start because its journal is damaged. PATH is its data
    directory, headrace-data where it is left out. If there is a copy of the damaged files, restore that instead.

    Every batch that is whole stays. Bytes that are not are cut out and kept beside the segment as '….cut-…' files.
    Offsets that are lost stay missing and are not given out again. In the journal, changes that are lost are undone: a
    group may fall back to an older offset, a topic may be missing. --adopt brings such topics back, with default
    settings.

    Exits 1 when there is damage and --yes was not given, and when directories are left that belong to no topic.
    """
    from headrace.broker.repair import adopt as adopt_directories
    from headrace.broker.repair import carry_out, owned, plan, unclaimed
    from headrace.clock import SystemClock
    from headrace.log.disk import OsDisk

    disk, directory = OsDisk(), str(path.absolute())
    if not (path / "topics").is_dir():
        raise UsageError(f"{path} is no data directory", "give the directory that 'headrace up --data' uses")
    with owned(disk, directory):
        damaged = plan(disk, directory)
        for log in damaged:
            _print_repair(log)
        if not yes:
            left = unclaimed(disk, directory)
            _print_unclaimed(left, directory)
            click.echo(_summary(damaged, len(left), "damaged") + "; --yes repairs" * bool(damaged))
            return 1 if damaged or left else 0
        carry_out(disk, directory, damaged)
        for each in adopt_directories(disk, directory, SystemClock().wall_ms()) if adopt else []:
            partitions = count_text(each.partitions, "partition")
            click.echo(f"topic {each.topic} adopted: {partitions}, {each.size_bytes} bytes; check its settings")
        left = unclaimed(disk, directory)
    _print_unclaimed(left, directory)
    click.echo(_summary(damaged, len(left), "repaired"))
    return 1 if left else 0


def _summary(damaged: list[DamagedLog], unclaimed: int, word: str) -> str:
    """``the journal and 2 partitions repaired; 1 directory belongs to no topic``."""
    partitions = sum(not log.is_journal for log in damaged)
    text = f"{count_text(partitions, 'partition')} {word}"
    if len(damaged) > partitions:
        text = f"the journal and {text}"
    return text + (
        f"; {count_text(unclaimed, 'directory belongs', 'directories belong')} to no topic" if unclaimed else ""
    )


def _print_unclaimed(directories: list[Unclaimed], directory: str) -> None:
    for each in directories:
        finding = each.finding(directory)
        click.echo(f"{finding.severity}: {finding}")


def _print_repair(log: DamagedLog) -> None:
    click.echo(f"{_name(Path(log.repair.directory))}{' (the journal)' if log.is_journal else ''}:")
    for error in log.errors:
        click.echo(f"  error: {error}")
    for hole in log.repair.holes:
        click.echo(f"  {hole.describe(log.repair.first_offset)}")
    if log.repair.restored:
        click.echo(f"  {count_text(log.repair.restored, 'batch gets its', 'batches get their')} offset and epoch back")
    if log.repair.undecided:
        click.echo(f"  {count_text(log.repair.undecided, 'transaction')} without a known end: taken for aborted")
    lost, cut = count_text(log.repair.offsets_lost, "offset"), count_text(log.repair.cut_bytes, "byte")
    click.echo(f"  in all {lost} lost, {cut} cut; it goes on at offset {log.repair.end_offset}")


# ---- finding --------------------------------------------------------------------------------------------------------


def _folders(path: Path) -> list[tuple[str, Path]]:
    """The folders with segments in a data directory, a topic's folder, or a partition's, with their names."""
    if path.is_file():
        raise UsageError(f"{path} is a file", "give the partition's folder or the data directory")
    patterns = ("topics/*/*", "state/*/*") if (path / "topics").is_dir() else ("*",)
    found = [folder for pattern in patterns for folder in sorted(path.glob(pattern))]
    folders = [folder for folder in [path, *found] if _has_segments(folder)]
    if not folders:
        raise UsageError(f"{path} holds no log", "give the data directory of a broker, or a partition's folder")
    return [(_name(folder), folder) for folder in folders]


def _has_segments(folder: Path) -> bool:
    return folder.is_dir() and any(SEGMENT.fullmatch(file.name) for file in folder.iterdir())


def _name(folder: Path) -> str:
    """``orders[3]`` for <data>/topics/orders~ID/3, ``journal[0]`` for the journal; others keep their folder's name."""
    group = folder.absolute().parent.name
    topic, tilde, _ = group.rpartition("~")
    if folder.name.isdecimal() and (tilde or group == "journal"):
        return f"{topic or group}[{folder.name}]"
    return folder.absolute().name


def _walk(
    path: Path, topic: str | None, partition: int | None, first: int, count: int | None
) -> Iterator[tuple[str, StoredBatch | BadBytes]]:
    from headrace.log.disk import OsDisk
    from headrace.log.dump import BadBytes, walk_directory, walk_file

    disk = OsDisk()
    if path.is_file():
        walks = [(_name(path.parent), walk_file(disk, str(path)))]
    else:
        walks = [(name, walk_directory(disk, str(folder))) for name, folder in _folders(path)]
    left = count
    wanted = [
        (name, walk)
        for name, walk in walks
        if (topic is None or name.rpartition("[")[0] == topic)
        and (partition is None or name.endswith(f"[{partition}]"))
    ]
    if not wanted:
        asked = (topic or "") + ("" if partition is None else f"[{partition}]")
        raise UsageError(f"{path} has no {asked}", f"it has {', '.join(name for name, _ in walks[:10])}")
    for name, walk in wanted:
        for found in walk:
            if not isinstance(found, BadBytes) and found.batch.last_offset < first:
                continue
            if left == 0:
                return
            left = None if left is None else left - 1
            yield name, found


# ---- printing -------------------------------------------------------------------------------------------------------


def _fields(name: str, found: StoredBatch) -> dict[str, Any]:
    batch = found.batch
    return {
        "partition": name,
        "first_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "records": batch.record_count,
        "bytes": batch.size,
        "codec": batch.codec.name.lower(),
        "first_timestamp": batch.base_timestamp,
        "max_timestamp": batch.max_timestamp,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "first_sequence": batch.base_sequence,
        "transactional": batch.is_transactional,
        "control": batch.is_control,
        "leader_epoch": batch.leader_epoch,
        "checksum_holds": found.checksum_holds,
        "file": found.path,
        "position": found.position,
    }


def _batch_json(name: str, found: StoredBatch | BadBytes) -> str:
    from headrace.log.dump import BadBytes

    if isinstance(found, BadBytes):
        fields = {"partition": name, "file": found.path, "position": found.position, "bytes": found.size}
        return json.dumps(fields | {"error": found.reason})
    return json.dumps(_fields(name, found))


def _batch_line(name: str, found: StoredBatch | BadBytes) -> str:
    """One line per batch: where, what, who, and what is special about it."""
    from headrace.log.dump import BadBytes

    place = f"{Path(found.path).name} byte {found.position}"
    if isinstance(found, BadBytes):
        return f"{name}  bad bytes: {found.reason}; {found.size} bytes  {place}"
    batch = found.batch
    parts = [
        f"{name} {batch.base_offset}–{batch.last_offset}",
        f"{batch.record_count} records",
        f"{batch.size} bytes",
        batch.codec.name.lower(),
        time_text(batch.max_timestamp),
    ]
    if batch.has_producer:
        parts.append(f"producer {batch.producer_id} epoch {batch.producer_epoch} sequence {batch.base_sequence}")
    if batch.is_control:
        parts.append(_marker(found))
    elif batch.is_transactional:
        parts.append("in a transaction")
    if not found.checksum_holds:
        parts.append("WRONG CHECKSUM")
    return "  ".join([*parts, place])


def _marker(found: StoredBatch) -> str:
    from headrace.batch import control_type

    kind = control_type(found.batch) if found.checksum_holds else None
    if kind is None:
        return "marker"
    return "commit" if kind[0] else "abort"


def _print_records(name: str, batch: Batch) -> None:
    """The records as ``consume --json`` prints them; a batch that does not decode says so in their place."""
    from headrace.client import TopicPartition
    from headrace.record import decode_records

    topic, bracket, index = name.rstrip("]").rpartition("[")
    partition = TopicPartition(topic if bracket else name, int(index) if bracket else 0)
    try:
        records = decode_records(batch, DECOMPRESSED_BYTES_MAX)
    except KafkaError as error:
        click.echo(f"  {error.message}")
        return
    for record in records:
        click.echo(b"  " + json_line(partition, record), nl=False)
