"""Everything that clients can see of a broker, read once, so that two readings can be compared.

A snapshot has one entry per thing that can be asked for. What cannot be read is kept as the error that the client got:
an error is an honest answer, a wrong value is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.batch import Batch
from headrace.client import (
    Admin,
    Client,
    ClientOptions,
    ConfigSource,
    FetchOptions,
    Groups,
    ResourceKind,
    TopicPartition,
    describe_transaction,
    end_offsets,
    fetch_batches,
    list_transactions,
    start_offsets,
)
from headrace.client.client import check
from headrace.client.consumer import committed_batches
from headrace.errors import KafkaError
from headrace.record import decode_records
from headrace.wire.kafka.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)

__all__ = ["Failed", "Snapshot", "differences", "take"]

OPTIONS = ClientOptions(retry_timeout_ms=1, request_timeout_ms=20_000, missing_topic_timeout_ms=1)
"""Nothing is tried twice: a damaged partition stays damaged."""

DECODED_BYTES_MAX = 1 << 24

Snapshot = dict[str, Any]


class Failed(str):
    """The error that stands in the place of what could not be read."""

    __slots__ = ()


def take(bootstrap: str) -> Snapshot:
    found: Snapshot = {}
    with Client(bootstrap, OPTIONS) as client:
        attempt(found, "topics", lambda: topics(client))
        known = found["topics"] if not isinstance(found["topics"], Failed) else {}
        places = [TopicPartition(name, index) for name, (_, count) in known.items() for index in range(count)]
        for place in places:
            attempt(found, f"{place} offsets", lambda place=place: offsets(client, place))
            for level in ("uncommitted", "committed"):
                attempt(found, f"{place} {level}", lambda place=place, level=level: records(client, place, level))
            attempt(found, f"{place} producers", lambda place=place: producers(client, place))
        for name in known:
            attempt(found, f"{name} settings", lambda name=name: settings(client, ResourceKind.TOPIC, name))
        attempt(found, "broker settings", lambda: settings(client, ResourceKind.BROKER, ""))
        attempt(found, "transactions", lambda: transactions(client))
        read_groups(client, found)
    return found


def attempt(found: Snapshot, what: str, read: Callable[[], Any]) -> None:
    try:
        found[what] = read()
    except KafkaError as error:
        found[what] = Failed(f"{error.code.name}: {error.message}")


def topics(client: Client) -> dict[str, tuple[str, int]]:
    return {each.name: (each.topic_id.hex(), len(each.partitions)) for each in Admin(client).topics()}


def offsets(client: Client, place: TopicPartition) -> tuple[int, int, int]:
    """The first offset, the end, and the end of what is stable."""
    first, end = start_offsets(client, [place])[place], end_offsets(client, [place])[place]
    return first, end, end_offsets(client, [place], read_committed=True)[place]


def records(client: Client, place: TopicPartition, level: str) -> tuple[Any, ...]:
    """Every record from the first offset to the end, as its consumer gets it."""
    options = FetchOptions(read_committed=level == "committed")
    position = start_offsets(client, [place])[place]
    found: list[Any] = []
    while True:
        (fetched,) = fetch_batches(client, {place: position}, wait_ms=0, options=options)
        if fetched.error is not None:
            raise fetched.error
        end = fetched.last_stable_offset if level == "committed" else fetched.high_watermark
        batches = committed_batches(fetched) if level == "committed" else fetched.batches
        for batch in batches:
            found += [each for each in decoded(batch) if each[0] >= position]
        if fetched.batches:
            position = max(position, fetched.batches[-1].next_offset)
        if position >= end:
            return tuple(found)
        if not fetched.batches:
            return (*found, Failed(f"stuck: nothing comes from {position} on, and the end is {end}"))


def decoded(batch: Batch) -> list[tuple[Any, ...]]:
    if batch.is_control:
        return []
    return [
        (each.offset, each.timestamp, each.key, each.value, each.headers, batch.producer_id, batch.producer_epoch)
        for each in decode_records(batch, DECODED_BYTES_MAX)
    ]


def producers(client: Client, place: TopicPartition) -> list[tuple[int, int, int, int]]:
    request = DescribeProducersRequest(topics=[TopicRequest(name=place.topic, partition_indexes=[place.partition])])
    (partition,) = client.call(client.leader(place), request, DescribeProducersResponse).topics[0].partitions
    check(partition.error_code, partition.error_message, f"describing the producers of {place}")
    return sorted(
        (each.producer_id, each.producer_epoch, each.last_sequence, each.current_txn_start_offset)
        for each in partition.active_producers
    )


def settings(client: Client, kind: ResourceKind, name: str) -> dict[str, str | None]:
    """Those that somebody has changed."""
    changed = (ConfigSource.TOPIC, ConfigSource.DYNAMIC_BROKER, ConfigSource.DYNAMIC_DEFAULT, ConfigSource.GROUP)
    return {each.name: each.value for each in Admin(client).describe_config(kind, name) if each.source in changed}


def transactions(client: Client) -> dict[str, Any]:
    """State, producer and partitions of each transactional id."""
    found = {}
    for name in list_transactions(client):
        info = describe_transaction(client, name)
        found[name] = None if info is None else (info.state, info.producer_id, info.epoch, sorted(info.partitions))
    return found


def read_groups(client: Client, found: Snapshot) -> None:
    groups = Groups(client)
    attempt(found, "groups", lambda: [each.name for each in groups.list_all()])
    names = found["groups"] if not isinstance(found["groups"], Failed) else []
    for name in names:
        attempt(found, f"group {name}", lambda name=name: dict(sorted(groups.committed(name).items())))
        attempt(found, f"group {name} settings", lambda name=name: settings(client, ResourceKind.GROUP, name))


def differences(truth: Snapshot, found: Snapshot) -> tuple[list[str], list[str]]:
    """What clients were told wrongly, and what they were told in an error."""
    wrong, failed = [], []
    for what in truth.keys() | found.keys():
        ours = found.get(what)
        if ours == truth.get(what):
            continue
        if isinstance(ours, Failed):
            failed.append(f"{what}: {ours}")
        else:
            wrong.append(f"{what}: {shown(ours)} and not {shown(truth.get(what))}")
    return sorted(wrong), sorted(failed)


def shown(value: Any) -> str:
    """Short enough for one line; of records their number and the ends."""
    if isinstance(value, tuple) and len(value) > 3:
        return f"{len(value)} records ({str(value[0])[:60]} … {str(value[-1])[:60]})"
    return str(value)[:160]
