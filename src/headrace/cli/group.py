"""``headrace group``: list, describe, reset, delete."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.shared import (
    bootstrap_option,
    complete_groups,
    confirm,
    connect,
    output_option,
    partitions_of,
    say,
    say_leaderless,
    show,
    timeout_option,
)
from headrace.errors import BadArgument, UsageError

if TYPE_CHECKING:
    from headrace.client import Client, GroupMember, PartitionLag, TopicPartition

__all__ = ["command"]


@click.group("group")
def command() -> None:
    """List, describe, reset and delete consumer groups."""


@command.command("list")
@bootstrap_option
@timeout_option
@output_option
def list_groups(bootstrap: str, timeout: float, output: str) -> None:
    """List groups with their state."""
    from headrace.client import Groups

    with connect(bootstrap, timeout) as client:
        rows = [{"group": each.name, "state": each.state, "kind": each.kind} for each in Groups(client).list_all()]
    if not rows and output == "table":
        say("no groups yet (join one: headrace consume TOPIC --group NAME)")
    show(rows, output, columns=["group", "state", "kind"])


@command.command("describe")
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups)
@click.option("-m", "--members", is_flag=True, help="Show the members instead of the lag.")
@bootstrap_option
@timeout_option
@output_option
def describe(names: tuple[str, ...], members: bool, bootstrap: str, timeout: float, output: str) -> None:
    """Show how far groups are behind, or who is in them."""
    with connect(bootstrap, timeout) as client:
        found = [_describe(client, name) for name in names]
    if output == "json":
        show(found, output, columns=[])
        return
    for group in found:
        behind = sum(each["lag"] or 0 for each in group["partitions"])
        title = f"{group['state']}, {len(group['members'])} members, {behind} behind"
        click.echo(click.style(group["group"], bold=True) + f"  {title}")
        if members:
            show(group["members"], output, columns=["member", "client", "host", "partitions"])
        else:
            columns = ["topic", "partition", "committed", "end", "lag", "member"]
            show(group["partitions"], output, columns=columns)
        say_leaderless([f"{each['topic']}[{each['partition']}]" for each in group["partitions"] if each["lag"] is None])


def _describe(client: Client, name: str) -> dict[str, Any]:
    from headrace.client import Groups

    groups = Groups(client)
    group = groups.describe(name)
    return {
        "group": name,
        "state": group.state,
        "kind": group.kind,
        "assignor": group.assignor,
        "members": [_member_row(each) for each in group.members],
        "partitions": [_lag_row(each) for each in groups.lag(name)],
    }


def _member_row(member: GroupMember) -> dict[str, Any]:
    return {
        "member": member.member_id,
        "client": member.client_id,
        "host": member.host,
        "instance": member.instance_id,
        "partitions": [str(each) for each in sorted(member.partitions)],
    }


def _lag_row(lag: PartitionLag) -> dict[str, Any]:
    return {
        "topic": lag.partition.topic,
        "partition": lag.partition.partition,
        "committed": lag.committed,
        "start": lag.start,
        "end": lag.end,
        "lag": lag.lag,
        "member": None if lag.member is None else lag.member.member_id,
    }


@command.command("reset")
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@click.option("--to", "place", metavar="PLACE", help="earliest, latest, an offset, -N before the end, or @TIME.")
@click.option("--by", "shift", metavar="±N", help="Move by so many records: --by -100 reads the last hundred again.")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC[:N,N-M]", help="Only these; repeatable.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would happen and change nothing.")
@bootstrap_option
@timeout_option
@output_option
def reset(
    name: str,
    place: str | None,
    shift: str | None,
    topics: tuple[str, ...],
    dry_run: bool,
    bootstrap: str,
    timeout: float,
    output: str,
) -> None:
    """Move a group's offsets. The group must have no members.

    \b
      headrace group reset billing --to earliest --dry-run
      headrace group reset billing --to @2026-01-31T12:00:00Z --topic orders
      headrace group reset billing --by -100 --topic orders:0
    """
    from headrace.client import Groups

    if (place is None) == (shift is None):
        raise BadArgument("say where to: either --to or --by", "for example --to earliest, or --by -100")
    with connect(bootstrap, timeout) as client:
        groups = Groups(client)
        committed = groups.committed(name)
        partitions = _chosen(client, name, topics, committed)
        targets = _targets(client, partitions, committed, place, shift)
        if not dry_run:
            groups.commit(name, targets)
    rows = [
        {"topic": each.topic, "partition": each.partition, "from": committed.get(each), "to": targets[each]}
        for each in partitions
    ]
    show(rows, output, columns=["topic", "partition", "from", "to"])
    if dry_run:
        say("nothing was changed: --dry-run")


def _chosen(
    client: Client, name: str, topics: tuple[str, ...], committed: dict[TopicPartition, int]
) -> list[TopicPartition]:
    """The partitions named, or all that the group has offsets in."""
    if not topics:
        if not committed:
            raise UsageError(f"group {name!r} has no offsets", "name what to read: --topic TOPIC")
        return sorted(committed)
    chosen = []
    for each in topics:
        topic, colon, wanted = each.partition(":")
        chosen += partitions_of(client, topic, wanted if colon else None)
    return sorted(set(chosen))


def _targets(
    client: Client,
    partitions: list[TopicPartition],
    committed: dict[TopicPartition, int],
    place: str | None,
    shift: str | None,
) -> dict[TopicPartition, int]:
    """Where to: a place in each partition, or so many records from where the group stands, within what is there."""
    from headrace.client import end_offsets, start_offsets
    from headrace.client.places import parse_place, resolve

    if place is not None:
        return resolve(client, partitions, parse_place(place, int(time.time() * 1000)))
    if shift is None or not re.fullmatch(r"[+-]?[0-9]+", shift):
        raise BadArgument(f"--by {shift!r} is not a number", "for example --by -100")
    starts, ends = start_offsets(client, partitions), end_offsets(client, partitions)
    return {
        each: min(max(committed.get(each, starts[each]) + int(shift), starts[each]), ends[each]) for each in partitions
    }


@command.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@bootstrap_option
@timeout_option
def delete(names: tuple[str, ...], yes: bool, bootstrap: str, timeout: float) -> None:
    """Delete groups and their offsets."""
    from headrace.client import Groups

    confirm(f"delete {', '.join(names)} and their offsets?", yes)
    with connect(bootstrap, timeout) as client:
        for name in names:
            Groups(client).delete(name)
