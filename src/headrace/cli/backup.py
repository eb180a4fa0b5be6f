"""``headrace backup``: create, list, verify and prune backups."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.record_text import time_text
from headrace.cli.shared import bootstrap_option, connect, output_option, progress, say, show, timeout_option
from headrace.errors import BadArgument

if TYPE_CHECKING:
    from headrace.backup.create import Backup
    from headrace.backup.manifest import Manifest
    from headrace.backup.source import Source

__all__ = ["command", "progress"]

DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))


@click.group("backup")
def command() -> None:
    """Back up a broker's data directory, while it runs or when it is stopped.

    DIR holds any number of backups. What they have in common is there once, so a backup takes as much space and time
    as has changed since the last one.
    """


@command.command("create")
@DIRECTORY
@bootstrap_option
@click.option(
    "--data", metavar="DATA", type=click.Path(file_okay=False), help="The data directory of a stopped broker."
)
@click.option("--keep", type=click.IntRange(min=1), help="Then remove all backups but the newest so many.")
@timeout_option
@output_option
@click.pass_context
def create(
    ctx: click.Context,
    directory: str,
    bootstrap: str,
    data: str | None,
    keep: int | None,
    timeout: float,
    output: str,
) -> None:
    """Make a backup of everything at one moment: topics, groups, transactions and queues.

    The broker goes on serving. Run this on its machine and as its user: files are read where they are. With --data it
    is the directory of a broker that is stopped.

    \b
      headrace backup create /mnt/backups --keep 14
      headrace backup create /mnt/backups --data /var/lib/headrace
    """
    from headrace.backup.create import create as create_backup
    from headrace.backup.repository import Repository

    if data is not None and ctx.get_parameter_source("bootstrap") is click.core.ParameterSource.COMMANDLINE:
        raise BadArgument("--data is for a stopped broker, --bootstrap for one that runs", "give one of them")
    repository = Repository.create(directory)
    with ExitStack() as stack:
        lock = repository.locked()
        stack.callback(lock.release)
        source = stack.enter_context(_source(stack, bootstrap, data, timeout))
        with progress("copying", sum(size for _, size in source.files)) as bar:
            backup = create_backup(repository, source, bar.update)
        removed = repository.prune(keep)[0] if keep is not None else []
    show([_row(backup.manifest) | _cost(backup)], output, columns=["name", "files", "bytes", "copied", "unchanged"])
    for each in backup.manifest.unserved:
        say(f"headrace: {each} is damaged, and in the backup as it is (see: headrace log verify)")
    if removed and output == "table":
        say(f"removed {', '.join(removed)}")


def _source(stack: ExitStack, bootstrap: str, data: str | None, timeout: float) -> AbstractContextManager[Source]:
    from headrace.backup.source import of_running, of_stopped

    if data is not None:
        return of_stopped(data)
    return of_running(stack.enter_context(connect(bootstrap, timeout)))


@command.command("list")
@DIRECTORY
@output_option
def list_backups(directory: str, output: str) -> int:
    """List the backups in DIR, oldest first. Exits 1 when one cannot be read."""
    from headrace.backup.manifest import BackupDamaged
    from headrace.backup.repository import Repository

    repository = Repository(directory)
    rows: list[dict[str, Any]] = []
    for name in repository.names():
        try:
            rows.append(_row(repository.manifest(name)))
        except BackupDamaged as error:
            rows.append({"name": name, "error": error.message})
    show(rows, output, columns=["name", "made", "files", "bytes", "headrace", "cluster_id"])
    for row in rows:
        if "error" in row and output == "table":
            say(f"headrace: {row['error']}")
    return 1 if any("error" in row for row in rows) else 0


def _row(manifest: Manifest) -> dict[str, Any]:
    return {
        "name": manifest.name,
        "made": time_text(manifest.created_ms),
        "files": len(manifest.files),
        "bytes": manifest.bytes_total,
        "headrace": manifest.headrace,
        "cluster_id": manifest.cluster_id or None,
        "unserved": manifest.unserved,
    }


def _cost(backup: Backup) -> dict[str, Any]:
    return {"read": backup.bytes_read, "copied": backup.bytes_written, "unchanged": backup.files_unchanged}


@command.command("verify")
@DIRECTORY
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option(
    "--set-aside",
    is_flag=True,
    help="Take damaged objects out of use, so that the next backup copies those bytes again.",
)
@output_option
def verify(directory: str, names: tuple[str, ...], set_aside: bool, output: str) -> int:
    """Read every byte of the backups, all or those named, and compare the checksums. Exits 1 when something is wrong.

    Nothing is changed without --set-aside.
    """
    from headrace.backup.manifest import BackupDamaged
    from headrace.backup.repository import Repository

    repository = Repository(directory)
    faults: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    good: set[str] = set()
    for name in names or repository.names():
        problems: list[str] = []
        try:
            wanted = repository.manifest(name).objects()
        except BackupDamaged as error:
            wanted, problems = set(), [error.message]
        for each in sorted(wanted - good):
            try:
                if each not in faults:
                    repository.read(each)
                    good.add(each)
            except BackupDamaged as error:
                faults[each] = error.message
            if each in faults:
                problems.append(faults[each])
        rows.append({"name": name, "objects": len(wanted), "damaged": len(problems), "problems": problems})
    show(rows, output, columns=["name", "objects", "damaged"])
    if output == "table":
        for line in sorted({each for row in rows for each in row["problems"]}):
            say(f"headrace: {line}")
    if set_aside and faults:
        lock = repository.locked()  # a backup that is being made may count on them
        for each in faults:
            repository.set_aside(each)
        lock.release()
    return 1 if any(row["damaged"] for row in rows) else 0


@command.command("prune")
@DIRECTORY
@click.option("--keep", type=click.IntRange(min=1), required=True, help="How many of the newest stay.")
@output_option
def prune(directory: str, keep: int, output: str) -> None:
    """Remove all backups but the newest, and what only they had."""
    from headrace.backup.repository import Repository

    repository = Repository(directory)
    lock = repository.locked()
    try:
        removed, freed = repository.prune(keep)
    finally:
        lock.release()
    show([{"removed": removed, "bytes_freed": freed}], output, columns=["removed", "bytes_freed"])
