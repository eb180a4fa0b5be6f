"""Every setting, declared once: its Kafka name, type, default, bounds and what it does.

A value comes from the first of: a change made at run time (IncrementalAlterConfigs), a flag, the environment
(``num.partitions`` is ``HEADRACE_NUM_PARTITIONS``), the file ``headrace.toml``, the default. TOML's dotted keys are
Kafka's names as they stand: ``num.partitions = 4``; a name that is also another's prefix needs quotes:
``"headrace.flush" = "os"``.

Topic settings fall back to a broker setting, their *synonym* (``retention.ms`` to ``log.retention.ms``), as in Kafka.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from headrace.errors import BadArgument, ErrorCode, KafkaError

__all__ = [
    "BROKER_SETTINGS",
    "GROUP_SETTINGS",
    "OF_THE_CLUSTER",
    "TOPIC_SETTINGS",
    "Kind",
    "Setting",
    "Settings",
    "Source",
    "parse_value",
    "refuse_misspelt",
    "show_value",
]

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class Kind(IntEnum):
    """The type of a setting; the number is its code in DescribeConfigs."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Source(IntEnum):
    """Where a value came from; the number is its code in DescribeConfigs."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT = 3
    STATIC = 4
    DEFAULT = 5
    GROUP = 8


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    kind: Kind
    default: Any
    doc: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    synonym: str = ""  # of a topic setting: the broker setting that gives its default
    dynamic: bool = False  # of a broker setting: may be altered while the broker runs
    required: bool = False  # the empty string is no value


def parse_value(setting: Setting, raw: Any) -> Any:
    """The typed value of what a user or a peer wrote; INVALID_CONFIG, naming what is valid, where it does not fit."""
    try:
        value = _CONVERT[setting.kind](raw)
    except (ValueError, TypeError):
        raise _refuse(setting, raw, f"is not of type {setting.kind.name.lower()}") from None
    if setting.choices:
        given = value if isinstance(value, list) else [value]
        for each in given:
            if each not in setting.choices:
                raise _refuse(setting, raw, f"is not one of {', '.join(setting.choices)}")
    if setting.required and not value:
        raise _refuse(setting, repr(raw), "is empty")
    if setting.least is not None and value < setting.least:
        raise _refuse(setting, raw, f"is below the least value {setting.least}")
    if setting.most is not None and value > setting.most:
        raise _refuse(setting, raw, f"is above the greatest value {setting.most}")
    return value


def _refuse(setting: Setting, raw: Any, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_CONFIG, f"Invalid value {raw} for configuration {setting.name}: the value {why}"
    )


def show_value(value: Any) -> str:
    """A typed value as Kafka writes it; nothing is the empty string."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    return str(value)


def _boolean(raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    return {"true": True, "false": False}[str(raw).strip().lower()]


def _boolean_or_value_error(raw: Any) -> bool:
    try:
        return _boolean(raw)
    except KeyError:
        raise ValueError(raw) from None


def _integer(bits: int) -> Any:
    def convert(raw: Any) -> int:
        value = int(str(raw).strip())
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise ValueError(raw)
        return value

    return convert


def _list(raw: Any) -> list[str]:
    if isinstance(raw, list):
        return [str(each) for each in raw]
    return [part.strip() for part in str(raw).split(",") if part.strip()]


_CONVERT: dict[Kind, Any] = {
    Kind.BOOLEAN: _boolean_or_value_error,
    Kind.STRING: str,
    Kind.INT: _integer(32),
    Kind.SHORT: _integer(16),
    Kind.LONG: _integer(64),
    Kind.DOUBLE: float,
    Kind.LIST: _list,
    Kind.CLASS: str,
    Kind.PASSWORD: str,
}


def _by_name(settings: Iterable[Setting]) -> dict[str, Setting]:
    return {each.name: each for each in settings}


_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

TOPIC_SETTINGS = _by_name(
    [
        Setting("cleanup.policy", Kind.LIST, ["delete"], "delete old segments, compact by key, or both",
                choices=("delete", "compact"), synonym="log.cleanup.policy"),
        Setting("compression.gzip.level", Kind.INT, -1, "accepted; the codec's default level is used", least=-1,
                most=9, synonym="compression.gzip.level"),
        Setting("compression.lz4.level", Kind.INT, 9, "accepted; the codec's default level is used", least=1,
                most=17, synonym="compression.lz4.level"),
        Setting("compression.type", Kind.STRING, "producer", "codec on disk; 'producer' keeps what was sent",
                choices=_CODECS, synonym="compression.type"),
        Setting("compression.zstd.level", Kind.INT, 3, "accepted; the codec's default level is used",
                least=-131072, most=22, synonym="compression.zstd.level"),
        Setting("delete.retention.ms", Kind.LONG, 86_400_000, "how long compaction keeps a tombstone", least=0,
                synonym="log.cleaner.delete.retention.ms"),
        Setting("file.delete.delay.ms", Kind.LONG, 60_000, "accepted; a removed segment stays readable while in use",
                least=0, synonym="log.segment.delete.delay.ms"),
        Setting("flush.messages", Kind.LONG, LONG_MAX, "accepted; headrace.flush decides when an ack is given",
                least=1, synonym="log.flush.interval.messages"),
        Setting("flush.ms", Kind.LONG, LONG_MAX, "accepted; headrace.flush decides when an ack is given", least=0,
                synonym="log.flush.interval.ms"),
        Setting("follower.replication.throttled.replicas", Kind.LIST, [], "accepted; there are no followers"),
        Setting("headrace.flush", Kind.STRING, "ack", "ack: acknowledged means on disk; interval: synced every "
                "flush.interval.ms; os: left to the operating system", choices=("ack", "interval", "os"),
                synonym="headrace.flush"),
        Setting("headrace.overflow", Kind.STRING, "buffer", "what happens when producers outrun consumers",
                choices=("buffer", "drop-oldest", "drop-newest", "backpressure"), synonym="headrace.overflow"),
        Setting("headrace.overflow.bytes", Kind.LONG, 1 << 30, "the bound per partition for headrace.overflow",
                least=1, synonym="headrace.overflow.bytes"),
        Setting("headrace.overflow.group.timeout.ms", Kind.LONG, 300_000, "after so long without a member, a group "
                "named in headrace.overflow.groups stops holding producers back", least=0,
                synonym="headrace.overflow.group.timeout.ms"),
        Setting("headrace.overflow.groups", Kind.LIST, [], "groups whose lag holds producers back (backpressure)",
                synonym="headrace.overflow.groups"),
        Setting("headrace.validate", Kind.STRING, "batch", "batch: check headers and CRC; records: decode every record",
                choices=("batch", "records"), synonym="headrace.validate"),
        Setting("index.interval.bytes", Kind.INT, 4096, "log bytes between two index entries", least=0,
                synonym="log.index.interval.bytes"),
        Setting("leader.replication.throttled.replicas", Kind.LIST, [], "accepted; there are no followers"),
        Setting("local.retention.bytes", Kind.LONG, -2, "accepted; there is no remote storage", least=-2,
                synonym="log.local.retention.bytes"),
        Setting("local.retention.ms", Kind.LONG, -2, "accepted; there is no remote storage", least=-2,
                synonym="log.local.retention.ms"),
        Setting("max.compaction.lag.ms", Kind.LONG, LONG_MAX, "a record is compacted at the latest after this",
                least=1, synonym="log.cleaner.max.compaction.lag.ms"),
        Setting("max.message.bytes", Kind.INT, 1_048_588, "largest record batch taken", least=0,
                synonym="message.max.bytes"),
        Setting("message.timestamp.after.max.ms", Kind.LONG, 3_600_000, "how far a timestamp may lie in the future",
                least=0, synonym="log.message.timestamp.after.max.ms"),
        Setting("message.timestamp.before.max.ms", Kind.LONG, LONG_MAX, "how far a timestamp may lie in the past",
                least=0, synonym="log.message.timestamp.before.max.ms"),
        Setting("message.timestamp.type", Kind.STRING, "CreateTime", "whose clock stamps a record",
                choices=("CreateTime", "LogAppendTime"), synonym="log.message.timestamp.type"),
        Setting("min.cleanable.dirty.ratio", Kind.DOUBLE, 0.5, "share of uncompacted bytes that starts a compaction",
                least=0, most=1, synonym="log.cleaner.min.cleanable.ratio"),
        Setting("min.compaction.lag.ms", Kind.LONG, 0, "how long a record stays uncompacted at least", least=0,
                synonym="log.cleaner.min.compaction.lag.ms"),
        Setting("min.insync.replicas", Kind.INT, 1, "accepted; one machine is one replica", least=1,
                synonym="min.insync.replicas"),
        Setting("preallocate", Kind.BOOLEAN, False, "accepted; segments grow as they are written",
                synonym="log.preallocate"),
        Setting("remote.log.copy.disable", Kind.BOOLEAN, False, "accepted; there is no remote storage"),
        Setting("remote.log.delete.on.disable", Kind.BOOLEAN, False, "accepted; there is no remote storage"),
        Setting("remote.storage.enable", Kind.BOOLEAN, False, "true is refused: there is no remote storage"),
        Setting("retention.bytes", Kind.LONG, -1, "a partition's size above which old segments go; -1: no bound",
                least=-1, synonym="log.retention.bytes"),
        Setting("retention.ms", Kind.LONG, 604_800_000, "age at which a segment goes; -1: never", least=-1,
                synonym="log.retention.ms"),
        Setting("segment.bytes", Kind.INT, 1 << 30, "size at which a new segment begins", least=1_048_576,
                synonym="log.segment.bytes"),
        Setting("segment.index.bytes", Kind.INT, 10_485_760, "accepted; the index grows with its segment", least=4,
                synonym="log.index.size.max.bytes"),
        Setting("segment.jitter.ms", Kind.LONG, 0, "accepted", least=0, synonym="log.roll.jitter.ms"),
        Setting("segment.ms", Kind.LONG, 604_800_000, "age at which a new segment begins", least=1,
                synonym="log.roll.ms"),
        Setting("unclean.leader.election.enable", Kind.BOOLEAN, False, "accepted; there is one leader",
                synonym="unclean.leader.election.enable"),
    ]
)  # fmt: skip

GROUP_SETTINGS = _by_name(
    [
        Setting("consumer.heartbeat.interval.ms", Kind.INT, 5_000, "heartbeat interval given to members", least=1,
                synonym="group.consumer.heartbeat.interval.ms"),
        Setting("consumer.session.timeout.ms", Kind.INT, 45_000, "silence after which a member is gone", least=1,
                synonym="group.consumer.session.timeout.ms"),
    ]
)  # fmt: skip

_NODE = [
    Setting("data", Kind.STRING, "headrace-data", "where everything is kept", required=True),
    Setting("kafka", Kind.STRING, "127.0.0.1:9092", "address of the Kafka listener; port 0 chooses one; off"),
    Setting("amqp", Kind.STRING, "127.0.0.1:5672", "address of the AMQP listener; port 0 chooses one; off"),
    Setting("amqp.vhosts", Kind.LIST, ["/"], "virtual hosts, besides /"),
    Setting("amqp.users.file", Kind.STRING, "", "users of AMQP, one NAME:PASSWORD a line; default: guest:guest alone"),
    Setting("amqp.consumer.timeout.ms", Kind.LONG, 1_800_000, "a channel that keeps a message longer is closed",
            least=1),
    Setting("amqp.transaction.bytes.max", Kind.LONG, 128 << 20,
            "memory of one AMQP transaction: its messages, and 600 bytes for each step of it", least=1 << 16),
    Setting("amqp.unfinished.bytes.max", Kind.LONG, 256 << 20,
            "bytes of AMQP messages that have begun and not ended, of all connections together; above it the "
            "connection that holds the most is closed", least=1 << 20),
    Setting("amqp.disk.free.limit.bytes", Kind.LONG, 50_000_000,
            "AMQP publishers are held while the disk has less room than this, which is kept for acknowledgements; "
            "0: until a write fails", least=0),
    Setting("http", Kind.STRING, "off", "address of the web console; port 0 chooses one; off"),
    Setting("http.hosts", Kind.LIST, [], "names by which browsers reach the console, besides localhost and addresses"),
    Setting("http.read.only", Kind.BOOLEAN, False, "the console changes nothing"),
    Setting("http.token.file", Kind.STRING, "", "a file with the console's token; default: a random one"),
    Setting("metrics", Kind.STRING, "off", "address of /metrics, /health and /ready; port 0 chooses one; off"),
    Setting("metrics.topics.max", Kind.INT, 1_000, "topics that have their own metrics", least=0),
    Setting("metrics.groups.max", Kind.INT, 1_000, "groups, and pairs of group and topic, that have metrics", least=0),
    Setting("metrics.queues.max", Kind.INT, 1_000, "queues that have metrics", least=0),
    Setting("metrics.partitions.max", Kind.INT, 5_000,
            "partitions, and pairs of group and partition, that have kafka_* metrics", least=0),
    Setting("log.file", Kind.STRING, "", "a file for the log of messages, besides the terminal; SIGHUP opens it again"),
    Setting("log.level", Kind.STRING, "INFO", "the least level of messages that are logged",
            choices=("DEBUG", "INFO", "WARNING", "ERROR")),
    Setting("log.format", Kind.STRING, "text", "the lines of the log of messages", choices=("text", "json")),
    Setting("slow.loop.ms", Kind.INT, 500, "a stall of all requests above this is logged", least=1),
    Setting("slow.sync.ms", Kind.INT, 1_000, "a sync that takes longer is logged", least=1),
    Setting("advertised.kafka", Kind.STRING, "", "host:port that clients connect to; default: where it listens"),
    Setting("insecure", Kind.BOOLEAN, False, "serve on a public address without authentication"),
    Setting("flush.interval.ms", Kind.INT, 1000, "for topics with headrace.flush=interval", least=1),
    Setting("headrace.queue.retention.ms", Kind.LONG, 0,
            "how long a queue keeps messages that are acknowledged, expired or dropped, for `headrace queue restore`; "
            "0 keeps none, -1 all; a queue's argument x-headrace-retention-ms takes precedence",
            least=-1),
    Setting("headrace.queue.retention.bytes", Kind.LONG, -1,
            "and up to how many bytes, in whole segments; -1 has no limit; per queue x-headrace-retention-bytes",
            least=-1),
    Setting("headrace.queue.feeds", Kind.LIST, [],
            "topics whose records become messages: TOPIC -> EXCHANGE:KEY, or TOPIC -> :QUEUE; see docs/queues.md"),
    Setting("headrace.topic.feeds", Kind.LIST, [],
            "exchanges whose messages become records: EXCHANGE:KEY -> TOPIC; see docs/queues.md"),
    Setting("compaction.memory.bytes", Kind.LONG, 64 << 20, "memory for one compaction's keys", least=1 << 20),
    Setting("records.decoded.bytes.max", Kind.INT, 64 << 20, "bound on a decompressed batch", least=1 << 16),
    Setting("request.elements.max", Kind.INT, 20_000, "array elements and tagged fields in one request", least=100),
    Setting("max.batch.records", Kind.INT, 1_000_000, "most records in one batch; librdkafka sends no more either",
            least=1),
    Setting("response.bytes.max", Kind.INT, 100_000_000, "largest answer, records not counted", least=1 << 20),
    Setting("request.other.bytes.max", Kind.INT, 16 << 20, "largest request that is not Produce", least=1024),
    Setting("connection.requests.max", Kind.INT, 64, "requests of one connection under way at once", least=1),
    Setting("connection.handshake.ms", Kind.INT, 10_000, "time a new connection has for its first request", least=1),
    Setting("connection.write.buffer.bytes", Kind.INT, 128 << 10, "answers buffered per connection", least=1 << 14),
    Setting("shutdown.drain.ms", Kind.INT, 5_000, "time in-flight requests have at shutdown", least=0),
]  # fmt: skip

_KAFKA = [
    Setting("auto.create.topics.per.request", Kind.INT, 100, "topics that one Metadata request may make", least=1),
    Setting("auto.create.topics.enable", Kind.BOOLEAN, True, "make a topic when a client asks for it"),
    Setting("broker.id", Kind.INT, 1, "the node's id", least=0),
    Setting("connections.max.idle.ms", Kind.LONG, 600_000, "a silent connection is closed after this", least=1),
    Setting("default.replication.factor", Kind.INT, 1, "one machine, one replica", least=1, most=1),
    Setting("delete.topic.enable", Kind.BOOLEAN, True, "topics may be deleted"),
    Setting("fetch.max.bytes", Kind.INT, 57_671_680, "largest answer to a fetch", least=1024),
    Setting("group.coordinator.rebalance.protocols", Kind.LIST, ["classic", "consumer"], "group protocols offered",
            choices=("classic", "consumer")),
    Setting("group.consumer.assignors", Kind.LIST, ["uniform", "range"], "server-side assignors, the default first",
            choices=("uniform", "range")),
    Setting("group.consumer.heartbeat.interval.ms", Kind.INT, 5_000, "KIP-848: heartbeat interval", least=1),
    Setting("group.consumer.max.size", Kind.INT, INT_MAX, "KIP-848: most members of a group", least=1),
    Setting("group.consumer.migration.policy", Kind.STRING, "bidirectional", "conversion between group protocols",
            choices=("bidirectional", "upgrade", "downgrade", "disabled")),
    Setting("group.consumer.session.timeout.ms", Kind.INT, 45_000, "KIP-848: silence after which a member is gone",
            least=1),
    Setting("group.initial.rebalance.delay.ms", Kind.INT, 3_000, "wait for more members of a new group", least=0),
    Setting("group.max.session.timeout.ms", Kind.INT, 1_800_000, "longest session timeout a member may ask", least=1),
    Setting("group.max.size", Kind.INT, INT_MAX, "most members of a classic group", least=1),
    Setting("group.min.session.timeout.ms", Kind.INT, 6_000, "shortest session timeout a member may ask", least=1),
    Setting("log.cleaner.backoff.ms", Kind.LONG, 15_000, "pause between looks for logs to compact", least=0),
    Setting("log.cleaner.enable", Kind.BOOLEAN, True, "compaction runs"),
    Setting("log.retention.check.interval.ms", Kind.LONG, 300_000, "pause between looks for segments to remove",
            least=1),
    Setting("max.connections", Kind.INT, 4_000, "most connections at once", least=1),
    Setting("max.connections.per.ip", Kind.INT, INT_MAX, "most connections from one address", least=0),
    Setting("max.incremental.fetch.session.cache.slots", Kind.INT, 1_000, "fetch sessions kept", least=0),
    Setting("min.incremental.fetch.session.eviction.ms", Kind.LONG, 120_000,
            "a fetch session is safe from a larger one so long, and unused it is free after so long", least=0),
    Setting("num.partitions", Kind.INT, 1, "partitions of a topic that is made automatically", least=1),
    Setting("offset.metadata.max.bytes", Kind.INT, 4_096, "longest metadata of a committed offset"),
    Setting("offsets.retention.check.interval.ms", Kind.LONG, 600_000, "pause between looks for expired offsets",
            least=1),
    Setting("offsets.retention.minutes", Kind.INT, 10_080, "offsets of an empty group expire after this", least=1),
    Setting("producer.id.expiration.ms", Kind.INT, 86_400_000, "a silent producer is forgotten after this", least=1),
    Setting("queued.max.request.bytes", Kind.LONG, 64 << 20, "request bytes held at once, all connections", least=-1),
    Setting("socket.request.max.bytes", Kind.INT, 104_857_600, "largest request", least=1024),
    Setting("transaction.abort.timed.out.transaction.cleanup.interval.ms", Kind.INT, 10_000,
            "pause between looks for transactions that timed out", least=1),
    Setting("transaction.max.timeout.ms", Kind.INT, 900_000, "longest timeout a transaction may ask", least=1),
    Setting("transactional.id.expiration.ms", Kind.INT, 604_800_000, "an idle transactional id is forgotten after this",
            least=1),
]  # fmt: skip


UNSET = frozenset({"log.flush.interval.ms", "log.retention.ms", "log.roll.jitter.ms", "log.roll.ms"})
"""Kafka leaves these without a value; the topic setting's own default then holds."""

OF_THE_CLUSTER = "min.insync.replicas"
"""Kafka sets it for the whole cluster at the first start, because leaders are elected by it (KIP-966)."""


def _topic_defaults() -> list[Setting]:
    """The broker settings that give topic settings their defaults: same type, same bounds."""
    return [
        Setting(each.synonym, each.kind, None if each.synonym in UNSET else each.default, f"default of {each.name}",
                each.choices, each.least, each.most, dynamic=True)
        for each in TOPIC_SETTINGS.values()
        if each.synonym
    ]  # fmt: skip


BROKER_SETTINGS = _by_name([*_NODE, *_KAFKA, *_topic_defaults()])


@dataclass(slots=True)
class _Given:
    value: Any
    origin: str
    source: Source


class Settings:
    """Effective broker-wide settings. Unknown names are refused with the nearest valid ones.

    A setting may be given by several sources at once. The source with the smallest code takes precedence, as in Kafka;
    when it is dropped, the next one holds again.
    """

    def __init__(self, given: Mapping[str, Any] | None = None, origin: str = "flag") -> None:
        self._layers: dict[str, dict[Source, _Given]] = {}
        self._given: dict[str, _Given] = {}
        """The layer of each setting that holds."""
        for name, raw in (given or {}).items():
            self.give(name, raw, origin)

    @classmethod
    def load(
        cls,
        *,
        file: Path | None = None,
        environ: Mapping[str, str] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> Settings:
        """File, then environment, then flags; the later wins."""
        settings = cls()
        if file is not None:
            for name, raw in _read_file(file).items():
                settings.give(name, raw, f"file {file}")
        by_variable = {_variable(name): name for name in BROKER_SETTINGS}
        for variable, raw_text in (os.environ if environ is None else environ).items():
            if variable in by_variable:
                settings.give(by_variable[variable], raw_text, f"environment {variable}")
            elif variable.startswith(_PREFIX):
                refuse_misspelt(variable, list(by_variable))
        for name, raw in (flags or {}).items():
            if raw is not None:
                settings.give(name, raw, "flag")
        return settings

    def give(self, name: str, raw: Any, origin: str, source: Source = Source.STATIC) -> None:
        setting = self.declared(name, origin)
        try:
            given = _Given(parse_value(setting, raw), origin, source)
        except KafkaError as error:
            raise BadArgument(error.message, f"from {origin}") from None
        self._layers.setdefault(name, {})[source] = given
        self._choose(name)

    @staticmethod
    def declared(name: str, origin: str = "") -> Setting:
        setting = BROKER_SETTINGS.get(name)
        if setting is None:
            import difflib

            near = difflib.get_close_matches(name, BROKER_SETTINGS, 3, 0.5) or sorted(BROKER_SETTINGS)
            raise BadArgument(f"unknown setting '{name}'" + (f" from {origin}" if origin else ""),
                             f"did you mean {', '.join(near[:5])}?")  # fmt: skip
        return setting

    def drop(self, name: str, source: Source) -> None:
        """Undo what a source has given. The next source holds again, or the default."""
        self._layers.get(name, {}).pop(source, None)
        self._choose(name)

    def _choose(self, name: str) -> None:
        layers = self._layers.get(name)
        if layers:
            self._given[name] = layers[min(layers)]
        else:
            self._given.pop(name, None)

    def layers(self, name: str) -> list[tuple[Any, Source]]:
        """(value, source) of everything that was given for a setting, the one that holds first."""
        layers = {source: given.value for source, given in self._layers.get(name, {}).items()}
        if name == OF_THE_CLUSTER:
            configured = layers.get(Source.STATIC, BROKER_SETTINGS[name].default)
            layers.setdefault(Source.DYNAMIC_DEFAULT, configured)
        return [(layers[source], source) for source in sorted(layers)]

    def get(self, name: str) -> Any:
        given = self._given.get(name)
        return given.value if given is not None else self.declared(name).default

    def origin(self, name: str) -> str:
        given = self._given.get(name)
        return given.origin if given is not None else "default"

    def source(self, name: str) -> Source:
        given = self._given.get(name)
        return given.source if given is not None else Source.DEFAULT

    def integer(self, name: str) -> int:
        return int(self.get(name))

    def number(self, name: str) -> float:
        return float(self.get(name))

    def boolean(self, name: str) -> bool:
        return bool(self.get(name))

    def text(self, name: str) -> str:
        return str(self.get(name))

    def items(self, name: str) -> list[str]:
        return list(self.get(name))


_PREFIX = "HEADRACE_"


def _variable(name: str) -> str:
    return _PREFIX + name.upper().replace(".", "_")


def refuse_misspelt(variable: str, known: Sequence[str], likeness: float = 0.7) -> None:
    """Other variables of that prefix are not ours to judge: HEADRACE_BOOTSTRAP is the clients', and Kubernetes sets
    HEADRACE_SERVICE_HOST for a service of that name. One that is almost a known one is a mistake."""
    import difflib

    rest = [each.removeprefix(_PREFIX) for each in known]
    near = difflib.get_close_matches(variable.removeprefix(_PREFIX), rest, 1, likeness)
    if near:
        raise BadArgument(f"the variable {variable} sets nothing", f"did you mean {_PREFIX}{near[0]}?")


def _read_file(file: Path) -> dict[str, Any]:
    try:
        tree = tomllib.loads(file.read_text())
    except OSError as error:
        raise BadArgument(f"cannot read {file}: {error.strerror}", "give --config a readable headrace.toml") from None
    except tomllib.TOMLDecodeError as error:
        raise BadArgument(f"{file} is not valid TOML: {error}", "see docs/configuration.md") from None
    return dict(_flatten(tree, ""))


def _flatten(tree: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
