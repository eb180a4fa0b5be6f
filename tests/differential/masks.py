"""What differential tests do not compare as it stands. This is the only list, and the document prints it.

``Scenario.normal`` shows every field of an answer; a field that has a ``Mask`` is shown by it. ``LEFT_OUT`` holds what
single tests leave out by hand. ``docs/generate.py`` prints both into docs/compatibility.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = [
    "A_TEXT",
    "LEFT_OUT",
    "MASKS",
    "NOW_WITHIN_MS",
    "OTHER_SETTINGS",
    "OUR_SETTINGS",
    "SENT_WITHIN_MS",
    "LeftOut",
    "Mask",
    "document",
    "mask_of",
]

NOW_WITHIN_MS = 120_000
SENT_WITHIN_MS = 1000
A_TEXT = "a text"


class Run(Protocol):
    """What a mask may ask of the run that it shows an answer of."""

    node: int
    address: tuple[str, int]

    def symbol(self, kind: str, value: Any) -> str: ...

    def epoch(self, value: int) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """Fields that both brokers fill differently, and what of them is compared."""

    fields: tuple[str, ...]
    compared: str
    why: str
    show: Callable[[Run, Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something that no mask can describe: a part of an answer, or a request that is not sent."""

    what: str
    compared: str
    why: str


def _text(run: Run, value: str | None) -> str | None:
    return A_TEXT if value else value


def _host(run: Run, value: str) -> str:
    return "the host of this broker" if value == run.address[0] else value


def _port(run: Run, value: int) -> Any:
    return "the port of this broker" if value == run.address[1] else value


def _node(run: Run, value: int) -> Any:
    return "this broker" if value == run.node else value


def _path(run: Run, value: str) -> str:
    return "a path" if value.startswith("/") else value


def _bytes(run: Run, value: int) -> Any:
    return "a size" if value > 0 else value


def _cluster(run: Run, value: str | None) -> str | None:
    return run.symbol("cluster", value) if value else value


def _member(run: Run, value: str) -> str:
    return run.symbol("member", value) if value else value


def _producer(run: Run, value: int) -> Any:
    return run.symbol("producer", value) if value >= 0 else value


def _topic(run: Run, value: bytes) -> str:
    return run.symbol("topic-id", value) if any(value) else "no id"


def _group_epoch(run: Run, value: int) -> int:
    return run.epoch(value) if value > 0 else value


def _session(run: Run, value: int) -> Any:
    return "a session" if value > 0 else value


def _level(run: Run, value: int) -> Any:
    return "an epoch" if value >= 0 else value


MASKS = (
    Mask(
        fields=("error_message", "batch_index_error_message"),
        compared="whether it is null, empty or a text; for ACLs, credentials and quotas also the text",
        why="our texts name our settings and say what to do; an error of ours may have one where Kafka's has none",
        show=_text,
    ),
    Mask(
        fields=("documentation",),
        compared="whether it is null, empty or a text",
        why="settings are explained in our words",
        show=_text,
    ),
    Mask(
        fields=("host",),
        compared="whether it is the broker's",
        why="each broker listens at its own address",
        show=_host,
    ),
    Mask(
        fields=("port",),
        compared="whether it is the broker's",
        why="each broker listens at its own address",
        show=_port,
    ),
    Mask(
        fields=("node_id", "leader_id", "controller_id", "broker_id", "replica_nodes", "isr_nodes"),
        compared="whether it is the id of the only broker",
        why="the ids of the two brokers are configured",
        show=_node,
    ),
    Mask(
        fields=("cluster_id",),
        compared="whether it is the same in all answers",
        why="made at random at the first start",
        show=_cluster,
    ),
    Mask(
        fields=("topic_id",),
        compared="whether it is the same in all answers, and which topic has it",
        why="made at random for each topic",
        show=_topic,
    ),
    Mask(
        fields=("member_id", "leader"),
        compared="whether it is the same in all answers, and who has it",
        why="made at random for each member",
        show=_member,
    ),
    Mask(
        fields=("producer_id", "ongoing_txn_producer_id"),
        compared="whether it is the same in all answers, and who has it; -1",
        why="counted from where the broker's other producers stopped",
        show=_producer,
    ),
    Mask(
        fields=("member_epoch", "group_epoch", "assignment_epoch"),
        compared="as counted from the first one that a test sees; 0 and below as they are",
        why="epochs of consumer groups only grow; with which number they begin is not part of the protocol",
        show=_group_epoch,
    ),
    Mask(
        fields=("session_id",),
        compared="whether there is a session",
        why="made at random for each fetch session",
        show=_session,
    ),
    Mask(
        fields=("finalized_features_epoch",),
        compared="whether there is one",
        why="an offset in Kafka's metadata log",
        show=_level,
    ),
    Mask(fields=("log_dir",), compared="whether it is a path", why="each broker has its own directory", show=_path),
    Mask(
        fields=("total_bytes", "usable_bytes"),
        compared="whether it is above 0",
        why="other programs fill the disk between two questions",
        show=_bytes,
    ),
)

_BY_FIELD = {field: mask for mask in MASKS for field in mask.fields}


def mask_of(field: str) -> Mask | None:
    return _BY_FIELD.get(field)


OUR_SETTINGS = frozenset(
    {"amqp.disk.free.limit.bytes", "amqp.unfinished.bytes.max", "http.hosts", "http.read.only", "http.token.file"}
    | {"amqp.consumer.timeout.ms", "amqp.transaction.bytes.max", "amqp.users.file", "amqp.vhosts", "metrics.queues.max"}
    | {"headrace.queue.feeds", "headrace.queue.retention.bytes", "headrace.queue.retention.ms", "headrace.topic.feeds"}
    | {
        "advertised.kafka",
        "amqp",
        "auto.create.topics.per.request",
        "compaction.memory.bytes",
        "connection.handshake.ms",
    }
    | {"connection.requests.max", "connection.write.buffer.bytes", "data", "flush.interval.ms", "headrace.flush"}
    | {"headrace.overflow", "headrace.overflow.bytes", "headrace.overflow.group.timeout.ms", "headrace.overflow.groups"}
    | {
        "headrace.validate",
        "http",
        "insecure",
        "kafka",
        "log.file",
        "log.format",
        "log.level",
        "max.batch.records",
        "metrics",
    }
    | {"metrics.groups.max", "metrics.partitions.max", "metrics.topics.max"}
    | {"min.incremental.fetch.session.eviction.ms"}
    | {"records.decoded.bytes.max", "request.elements.max", "request.other.bytes.max", "response.bytes.max"}
    | {"shutdown.drain.ms", "slow.loop.ms", "slow.sync.ms"}
)
"""Settings of the broker that Kafka does not have, or does not show."""

OTHER_SETTINGS = {
    "broker.id": "given to Kafka in its file",
    "group.coordinator.rebalance.protocols": "streams groups are not offered",
    "log.cleaner.backoff.ms": "cannot be changed while running",
    "max.connections": "everything has a limit; cannot be changed while running",
    "max.connections.per.ip": "cannot be changed while running",
    "producer.id.expiration.ms": "cannot be changed while running",
    "queued.max.request.bytes": "everything has a limit",
}
"""Settings of the broker that Kafka has with another default, source or way to change it, and why."""

LEFT_OUT = (
    LeftOut(
        what="times",
        compared=f"whether a time is one that the test sent, and which; else whether it is within "
        f"{NOW_WITHIN_MS // 1000} s of now",
        why="each broker has its clock",
    ),
    LeftOut(
        what="the order of lists of structs",
        compared="all elements, sorted; records and batches in their order",
        why="Kafka's is that of its hash tables and changes from version to version",
    ),
    LeftOut(
        what="the beginning of a batch that a Fetch has no room for",
        compared="all whole batches, with the checksum of their records",
        why="Kafka sends it and clients drop it; headrace sends whole batches only",
    ),
    LeftOut(
        what="requests that an authorizer denies",
        compared="names, error codes and authorized operations",
        why="they are compared without a live Kafka, with answers recorded by `tests/differential/denials.py`",
    ),
    LeftOut(
        what="settings that only one of the two has",
        compared="all that both have",
        why="Kafka does not have ours; we do not have its settings for share groups, streams groups and replication",
    ),
    *(
        LeftOut(what=f"the broker's setting `{name}`", compared="not at all", why=why)
        for name, why in OTHER_SETTINGS.items()
    ),
    LeftOut(
        what="synonyms in other units, such as `log.roll.hours`",
        compared="all other synonyms",
        why="headrace has these settings in milliseconds only",
    ),
    LeftOut(
        what="the settings in the answer of CreateTopics",
        compared="in one test, whole; in the others whether there are any",
        why="they are the same fifty each time",
    ),
    LeftOut(
        what="the id of a topic that is only validated",
        compared="not at all",
        why="Kafka makes one up that no topic ever has",
    ),
    LeftOut(
        what="`__consumer_offsets` among the topics of a transaction, and internal topics in lists",
        compared="all other topics",
        why="positions are not a topic in headrace",
    ),
    LeftOut(
        what="`generation_id` of a classic member in a consumer group",
        compared="the rest of the answer",
        why="it is the group's epoch, see there",
    ),
    LeftOut(
        what="the first answer to a subscription by pattern",
        compared="the assignment that follows",
        why="Kafka resolves patterns in the background",
    ),
    LeftOut(
        what="which partition gets the only batch when a Fetch has room for one",
        compared="how many get one",
        why="each broker goes on in its own order",
    ),
    LeftOut(
        what="versions of AddPartitionsToTxn; APIs that headrace does not offer; features other than "
        "`group.version` and `transaction.version`",
        compared="the versions of every other API",
        why="above version 3 it is spoken among brokers; the others are listed in support-matrix.md",
    ),
    LeftOut(
        what="requests at which Kafka itself stumbles: a null record set, an unknown operation on a setting, Metadata "
        "for a topic with neither name nor id, an unknown codec, one partition twice in a Produce, the latest "
        "timestamp of a topic whose records were all deleted, a SCRAM credential without a password",
        compared="not sent",
        why="Kafka's answer is an accident: UNKNOWN_SERVER_ERROR, a closed connection, or one of several",
    ),
    LeftOut(
        what="setting a SCRAM credential or a client quota",
        compared="not sent",
        why="headrace refuses it, see below",
    ),
)


def document() -> str:
    """The table of docs/compatibility.md."""
    rows = ["| not compared as it stands | compared instead | why |", "|---|---|---|"]
    for mask in MASKS:
        fields = ", ".join(f"`{field}`" for field in mask.fields)
        rows.append(f"| {fields} | {mask.compared} | {mask.why} |")
    rows += [f"| {each.what} | {each.compared} | {each.why} |" for each in LEFT_OUT]
    return "\n".join(rows) + "\n"
