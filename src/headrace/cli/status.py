"""``headrace status``: what runs and whether it is well, on one screen and as an exit code."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.shared import bootstrap_option, connect, output_option, say, table, timeout_option
from headrace.errors import HeadraceError
from headrace.node_messages import count_text, size_text

if TYPE_CHECKING:
    from headrace.client import Client, StateRecord

__all__ = ["command"]

WRONG, UNREACHABLE = 1, 2
GROUPS_MAX = 500
"""More groups are counted and not looked at."""
ROWS_MAX = 8
"""Of each table on the screen; JSON has all of them."""
DISK_FREE_SHARE_MIN = 0.1


@dataclass(slots=True)
class Status:
    """Everything that is shown. ``problems`` has a line for each thing that is wrong, with what to do."""

    broker: dict[str, Any]
    topics: dict[str, Any] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    groups_not_looked_at: int = 0
    pipelines: list[dict[str, Any]] = field(default_factory=list)
    captures: list[dict[str, Any]] = field(default_factory=list)
    queues: list[dict[str, Any]] | None = None
    """None where the broker has none, as Apache Kafka."""
    disks: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@click.command("status")
@bootstrap_option
@click.option("--vhost", default="/", show_default=True, help="The virtual host whose queues are shown.")
@timeout_option
@output_option
def command(bootstrap: str, vhost: str, timeout: float, output: str) -> int:
    """Show what runs, and whether it is well.

    Broker, topics, groups, pipelines, captures, queues and disk, on one screen.

    Exit codes: 0 if all is well, 1 if something is wrong (a line says what, and what to do), 2 if the broker cannot be
    reached. It works in front of Apache Kafka too, where there are no queues.

    Wrong is: a partition without a leader, a pipeline or a capture that failed, tries again or has stopped without
    reporting it, a queue that cannot be served, a disk with less than a tenth free. Lag alone is not.
    """
    import json

    from headrace.cli.main import complain

    try:
        with connect(bootstrap, timeout) as client:
            status = _looked(client, vhost)
    except HeadraceError as error:
        complain(error.message)
        return UNREACHABLE
    if output == "json":
        click.echo(json.dumps(asdict(status), indent=2))
    else:
        _print(status)
    return WRONG if status.problems else 0


# ---- looking --------------------------------------------------------------------------------------------------------


def _looked(client: Client, vhost: str) -> Status:
    brokers = client.brokers()
    status = Status(
        broker={
            "addresses": [str(address) for address in brokers.values()],
            "cluster_id": client.cluster_id,
        }
    )
    _look_at_topics(client, status)
    _look_at_groups(client, status)
    _look_at_reports(client, status)
    _look_at_queues(client, vhost, status)
    _look_at_disks(client, status)
    return status


def _look_at_topics(client: Client, status: Status) -> None:
    topics = client.topics()
    headless = [f"{each.name}[{part.index}]" for each in topics for part in each.partitions if part.leader < 0]
    status.topics = {
        "topics": sum(not each.internal and not each.name.startswith("__") for each in topics),
        "internal": sum(each.internal or each.name.startswith("__") for each in topics),
        "partitions": sum(len(each.partitions) for each in topics),
        "without_leader": headless,
    }
    if headless:
        shown = ", ".join(headless[:3]) + (" …" if len(headless) > 3 else "")
        status.problems.append(
            f"{count_text(len(headless), 'partition has', 'partitions have')} no leader ({shown}): "
            "on headrace the files are damaged, see the broker's log and 'headrace log verify'"
        )


def _look_at_groups(client: Client, status: Status) -> None:
    """The lag of every group from two kinds of requests: its offsets, and the ends of all partitions at once."""
    from headrace.client import Groups, TopicPartition, end_offsets, start_offsets

    groups = Groups(client)
    listed = groups.list_all()
    status.groups_not_looked_at = max(0, len(listed) - GROUPS_MAX)
    committed = {each.name: groups.committed(each.name) for each in listed[:GROUPS_MAX]}
    led = {
        TopicPartition(each.name, part.index)
        for each in client.topics()
        for part in each.partitions
        if part.leader >= 0
    }
    served = sorted(led & {place for offsets in committed.values() for place in offsets})
    starts, ends = start_offsets(client, served), end_offsets(client, served)
    for each in listed[:GROUPS_MAX]:
        offsets = {place: at for place, at in committed[each.name].items() if place in ends}
        status.groups.append(
            {
                "name": each.name,
                "state": each.state,
                "topics": sorted({place.topic for place in offsets}),
                "lag": sum(max(0, ends[place] - max(at, starts[place])) for place, at in offsets.items()),
            }
        )
    status.groups.sort(key=lambda row: (-row["lag"], row["name"]))


def _look_at_reports(client: Client, status: Status) -> None:
    """Pipelines and captures, as they report themselves."""
    from headrace.client import read_state_records

    for kind, rows in (("pipeline", status.pipelines), ("capture", status.captures)):
        for record in sorted(read_state_records(client, kind).values(), key=lambda each: each.name):
            rows.append(_report_row(record))
            problem = _report_problem(record)
            if problem:
                status.problems.append(f"{kind} {record.name}: {problem}")


def _report_row(record: StateRecord) -> dict[str, Any]:
    details = record.details
    lag_ms = details.get("lag_ms")
    return {
        "name": record.name,
        "state": "lost" if record.is_lost() else record.state,
        "lag": details.get("lag") if lag_ms is None else f"{lag_ms} ms",
        "rows_per_s": details.get("rows_per_s"),
        "host": f"{record.host} ({record.pid})" if record.host else None,
        "error": record.error or None,
    }


def _report_problem(record: StateRecord) -> str:
    """What is wrong; nothing for one that was stopped in order."""
    if record.is_lost():
        return f"process {record.pid} on {record.host} has stopped reporting; start it again"
    if record.error.strip():
        first_line = record.error.strip().splitlines()[0]
        return f"{record.state}: {first_line}"
    if record.state == "failed":
        return "failed; its log says why"
    return ""


def _look_at_queues(client: Client, vhost: str, status: Status) -> None:
    from headrace.client import NoQueues, Queues

    try:
        found = list(Queues(client, vhost).list_all())
    except NoQueues:
        return
    status.queues = [
        {
            "name": each.name,
            "ready": each.ready,
            "unacknowledged": each.unacknowledged,
            "consumers": each.consumers,
            "error": each.error,
        }
        for each in found
    ]
    status.queues.sort(key=lambda row: (-row["ready"], row["name"]))
    for each in found:
        if each.error:
            status.problems.append(f"queue {each.name} cannot be served: {each.error}")


def _look_at_disks(client: Client, status: Status) -> None:
    from headrace.client import Admin

    for each in Admin(client).log_dirs():
        row = {
            "broker": each.node,
            "path": each.path,
            "records_bytes": sum(each.partition_bytes.values()),
            "free_bytes": each.usable_bytes,
            "total_bytes": each.total_bytes,
        }
        status.disks.append(row)
        if each.total_bytes and each.usable_bytes is not None:
            if each.usable_bytes < each.total_bytes * DISK_FREE_SHARE_MIN:
                status.problems.append(
                    f"{each.path} of broker {each.node} has {size_text(each.usable_bytes)} of "
                    f"{size_text(each.total_bytes)} free: producers are refused when it is full; free some space, or "
                    "keep less (retention.ms, retention.bytes)"
                )


# ---- printing -------------------------------------------------------------------------------------------------------


def _print(status: Status) -> None:
    broker, topics = status.broker, status.topics
    click.echo(f"broker     {', '.join(broker['addresses'])}, cluster {broker['cluster_id'] or 'unknown'}")
    internal = f" and {topics['internal']} internal" if topics["internal"] else ""
    click.echo(f"topics     {topics['topics']}{internal}, {count_text(topics['partitions'], 'partition')} in all")
    for each in status.disks:
        free = "unknown" if each["free_bytes"] is None else size_text(each["free_bytes"])
        total = "" if each["total_bytes"] is None else f" of {size_text(each['total_bytes'])}"
        click.echo(f"disk       {each['path']}: {size_text(each['records_bytes'])} of records, {free}{total} free")
    _print_rows("groups", status.groups, ["name", "state", "lag", "topics"], status.groups_not_looked_at)
    _print_rows("pipelines", status.pipelines, ["name", "state", "lag", "rows_per_s", "host"])
    _print_rows("captures", status.captures, ["name", "state", "lag", "host"])
    if status.queues is not None:
        _print_rows("queues", status.queues, ["name", "ready", "unacknowledged", "consumers"])
    click.echo("")
    if not status.problems:
        click.echo("all is well")
    for problem in status.problems:
        click.echo(f"wrong: {problem}")


def _print_rows(title: str, rows: list[dict[str, Any]], columns: list[str], not_looked_at: int = 0) -> None:
    click.echo(f"{title:<10} {len(rows) + not_looked_at}")
    if rows:
        click.echo("\n".join(f"  {line}" for line in table(rows[:ROWS_MAX], columns)))
    left = len(rows) - ROWS_MAX
    if left > 0:
        click.echo(f"  … {left} more: --output json has them")
    if not_looked_at:
        say(f"headrace: {not_looked_at} more groups were not looked at")
