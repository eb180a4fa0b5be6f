"""``headrace topic``: list, create, describe, alter, trim, delete."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.shared import (
    bootstrap_option,
    complete_topics,
    confirm,
    connect,
    id_text,
    output_option,
    partitions_of,
    say,
    say_leaderless,
    settings_of,
    show,
    timeout_option,
)
from headrace.errors import BadArgument, ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.client import Client

__all__ = ["command"]


@click.group("topic")
def command() -> None:
    """List, create, describe, alter, trim and delete topics."""


@command.command("list")
@click.option("--internal", is_flag=True, help="Show internal topics too.")
@bootstrap_option
@timeout_option
@output_option
def list_topics(internal: bool, bootstrap: str, timeout: float, output: str) -> None:
    """List topics with their number of partitions."""
    from headrace.client import Admin

    with connect(bootstrap, timeout) as client:
        rows = [
            {
                "name": topic.name,
                "partitions": len(topic.partitions),
                "replicas": max((len(each.replicas) for each in topic.partitions), default=0),
                "internal": topic.internal,
                "topic_id": id_text(topic.topic_id),
            }
            for topic in Admin(client).topics(internal=internal)
        ]
    if not rows and output == "table":
        say("no topics yet (make one: headrace topic create NAME)")
    show(rows, output, columns=["name", "partitions", "replicas"])


@command.command("create")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Number of partitions; default: the broker's.")
@click.option("-r", "--replication-factor", type=click.IntRange(min=1), help="Replicas; default: the broker's.")
@click.option("-c", "--config", "pairs", multiple=True, metavar="NAME=VALUE", help="A topic setting; repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists already.")
@bootstrap_option
@timeout_option
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    pairs: tuple[str, ...],
    if_not_exists: bool,
    bootstrap: str,
    timeout: float,
) -> None:
    """Create topics."""
    from headrace.client import Admin

    config = settings_of(pairs, "--config")
    with connect(bootstrap, timeout) as client:
        for name in names:
            try:
                Admin(client).create_topic(
                    name, partitions=partitions or -1, replication_factor=replication_factor or -1, config=config
                )
            except KafkaError as error:
                if not (if_not_exists and error.code is ErrorCode.TOPIC_ALREADY_EXISTS):
                    raise
                count = len(client.topic(name).partitions)
                if partitions not in (None, count) or config:
                    say(f"headrace: topic {name} exists with {count} partitions; it is not changed")


@command.command("describe")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_topics)
@click.option("-a", "--all", "all_settings", is_flag=True, help="Show settings that have their default value too.")
@bootstrap_option
@timeout_option
@output_option
def describe(names: tuple[str, ...], all_settings: bool, bootstrap: str, timeout: float, output: str) -> None:
    """Show partitions, offsets, sizes and settings."""
    with connect(bootstrap, timeout) as client:
        found = [_describe(client, name, all_settings) for name in names]
    if output == "json":
        show(found, output, columns=[])
        return
    for topic in found:
        click.echo(click.style(topic["name"], bold=True) + f"  {topic['topic_id']}")
        columns = ["partition", "leader", "replicas", "in_sync", "start", "end", "bytes"]
        show(topic["partitions"], output, columns=columns)
        say_leaderless([f"{topic['name']}[{each['partition']}]" for each in topic["partitions"] if each["leader"] < 0])
        show(topic["settings"], output, columns=["setting", "value", "from"])


def _describe(client: Any, name: str, all_settings: bool) -> dict[str, Any]:
    from headrace.client import Admin, ResourceKind, TopicPartition, end_offsets, start_offsets

    admin = Admin(client)
    topic = client.topic(name)
    partitions = [TopicPartition(name, each.index) for each in topic.partitions if each.leader >= 0]
    starts, ends = start_offsets(client, partitions), end_offsets(client, partitions)
    sizes = admin.partition_bytes()
    settings = admin.describe_config(ResourceKind.TOPIC, name)
    return {
        "name": name,
        "topic_id": id_text(topic.topic_id),
        "internal": topic.internal,
        "partitions": [
            {
                "partition": each.index,
                "leader": each.leader,
                "replicas": list(each.replicas),
                "in_sync": list(each.in_sync),
                "start": starts.get(TopicPartition(name, each.index)),
                "end": ends.get(TopicPartition(name, each.index)),
                "bytes": sizes.get(TopicPartition(name, each.index)),
            }
            for each in topic.partitions
        ],
        "settings": [
            {"setting": each.name, "value": each.value, "from": each.source.name.lower().replace("_", " ")}
            for each in settings
            if all_settings or not each.is_default
        ],
    }


@command.command("alter")
@click.argument("name", shell_complete=complete_topics)
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Grow to this many partitions.")
@click.option("-c", "--config", "pairs", multiple=True, metavar="NAME=VALUE", help="Change a setting; repeatable.")
@click.option("-d", "--default", "removed", multiple=True, metavar="NAME", help="Return a setting to its default.")
@bootstrap_option
@timeout_option
def alter(
    name: str,
    partitions: int | None,
    pairs: tuple[str, ...],
    removed: tuple[str, ...],
    bootstrap: str,
    timeout: float,
) -> None:
    """Change a topic's settings, or give it more partitions."""
    from headrace.client import Admin, ResourceKind

    if partitions is None and not pairs and not removed:
        raise BadArgument("nothing to alter", "give --partitions, --config or --default")
    with connect(bootstrap, timeout) as client:
        client.topic(name)
        if pairs or removed:
            _check_known(client, name, removed)
            put = settings_of(pairs, "--config")
            Admin(client).alter_config(ResourceKind.TOPIC, name, put=put, remove=removed)
        if partitions is not None:
            Admin(client).create_partitions(name, partitions)


def _check_known(client: Client, topic: str, names: tuple[str, ...]) -> None:
    """A broker takes the removal of any name, so a misspelt one would seem to work."""
    from difflib import get_close_matches

    from headrace.client import Admin, ResourceKind

    if not names:
        return
    known = [each.name for each in Admin(client).describe_config(ResourceKind.TOPIC, topic)]
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 3, 0.5)
            hint = f"did you mean {', '.join(near)}?" if near else f"see: headrace topic describe {topic} --all"
            raise BadArgument(f"topics have no setting {name!r}", hint)


@command.command("trim")
@click.argument("name", shell_complete=complete_topics)
@click.option(
    "--before", required=True, metavar="PLACE", help="An offset, end, -N, or @TIME; older records are deleted."
)
@click.option("-p", "--partition", metavar="N,N-M", help="Only these partitions.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@bootstrap_option
@timeout_option
@output_option
def trim(name: str, before: str, partition: str | None, yes: bool, bootstrap: str, timeout: float, output: str) -> None:
    """Delete the oldest records of a topic."""
    from headrace.client import Admin
    from headrace.client.places import parse_place, resolve

    place = parse_place(before, int(time.time() * 1000))
    with connect(bootstrap, timeout) as client:
        cuts = resolve(client, partitions_of(client, name, partition), place)
        confirm(f"delete the records of {name} before {before} in {len(cuts)} partitions?", yes)
        starts = Admin(client).delete_records(cuts)
    rows = [{"topic": each.topic, "partition": each.partition, "start": starts[each]} for each in sorted(starts)]
    show(rows, output, columns=["topic", "partition", "start"])


@command.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_topics)
@click.option("--if-exists", is_flag=True, help="Succeed if the topic does not exist.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@bootstrap_option
@timeout_option
def delete(names: tuple[str, ...], if_exists: bool, yes: bool, bootstrap: str, timeout: float) -> None:
    """Delete topics and all their records."""
    from headrace.client import Admin

    confirm(f"delete {', '.join(names)} and all records?", yes)
    with connect(bootstrap, timeout) as client:
        for name in names:
            try:
                Admin(client).delete_topic(name)
            except KafkaError as error:
                if not (if_exists and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    raise
