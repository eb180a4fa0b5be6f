"""``headrace restore``: a data directory from a backup."""

from __future__ import annotations

import click

from headrace.cli.shared import progress, say
from headrace.errors import UsageError
from headrace.node_messages import count_text

__all__ = ["command"]


@click.command("restore")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--data", metavar="DATA", required=True, type=click.Path(), help="The data directory to make.")
@click.option("--backup", "name", metavar="NAME", help="Which backup; default: the newest.")
@click.option("--no-verify", is_flag=True, help="Compare checksums only, and do not read the logs once more.")
def command(directory: str, data: str, name: str | None, no_verify: bool) -> int:
    """Make a data directory from a backup.

    DIR is where 'headrace backup create' keeps them. DATA must be empty or missing. Every checksum is compared, and
    then the directory is checked as 'headrace log verify' does. Exits 1 when that finds an error.

    Clients notice that the broker is not where they left it: the first start goes on with a new leader epoch and new
    producer ids.

    \b
      headrace restore /mnt/backups --data /var/lib/headrace
      headrace up --data /var/lib/headrace
    """
    from headrace.backup.repository import Repository
    from headrace.backup.restore import findings_in, restore
    from headrace.log.findings import Severity

    repository = Repository(directory)
    manifest = repository.newest() if name is None else repository.manifest(name)
    if manifest is None:
        raise UsageError(f"{directory} has no backup yet", "make one: headrace backup create DIR")
    if name is None and manifest.name != repository.names()[-1]:
        say(f"headrace: the newest backup, {repository.names()[-1]}, cannot be read; this is the one before it")
    with progress("restoring", manifest.bytes_total) as bar:
        restore(repository, manifest, data, bar.update)
    findings = [] if no_verify else list(findings_in(data))
    for finding in findings:
        say(f"{finding.severity}: {finding}")
    click.echo(f"restored {manifest.name} into {data}: {count_text(len(manifest.files), 'file')}")
    return 1 if any(finding.severity is Severity.ERROR for finding in findings) else 0
