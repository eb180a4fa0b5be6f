"""The options of the source: their names, types and defaults. An unknown one is an error that lists those that exist.

The names are those of Spark's own Kafka source, so that a program changes ``format("kafka")`` to ``format("headrace")``
and nothing else. Spark hands options over in lower case and takes them in any case; errors show them as documented.
"""

from __future__ import annotations

import difflib
import json
import re
import zoneinfo
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.client import Client, ClientOptions
from headrace.errors import UsageError

__all__ = [
    "KAFKA_OPTIONS",
    "Option",
    "Role",
    "Selection",
    "SourceOptions",
    "client_options",
    "connect",
    "flag",
    "number",
    "parse",
    "text_of",
]

FETCH_BYTES = 4 * 1024 * 1024
FORMATS = ("json", "debezium", "text")
READ_COMMITTED = "read_committed"
"""The default, unlike Kafka's: an aborted record that is counted is counted again when its producer retries."""
BAD_RECORD_CHOICES = ("fail", "null", "deadletter")
DURATION = re.compile(r"\s*(\d+)\s*(ms|s|m|min|h|d)?\s*", re.IGNORECASE)
DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

KAFKA_OPTIONS = (
    "kafka.bootstrap.servers",
    "kafka.client.id",
    "kafka.fetch.max.bytes",
    "kafka.group.id",
    "kafka.isolation.level",
    "kafka.max.partition.fetch.bytes",
    "kafka.request.timeout.ms",
    "kafka.sasl.jaas.config",
    "kafka.sasl.mechanism",
    "kafka.sasl.password",
    "kafka.sasl.username",
    "kafka.security.protocol",
    "kafka.ssl.ca.location",
    "kafka.ssl.certificate.location",
    "kafka.ssl.endpoint.identification.algorithm",
    "kafka.ssl.key.location",
    "kafka.ssl.key.password",
    "kafka.ssl.keystore.certificate.chain",
    "kafka.ssl.keystore.key",
    "kafka.ssl.keystore.location",
    "kafka.ssl.keystore.password",
    "kafka.ssl.keystore.type",
    "kafka.ssl.truststore.certificates",
    "kafka.ssl.truststore.location",
    "kafka.ssl.truststore.password",
    "kafka.ssl.truststore.type",
)
"""Settings of the client by Kafka's own names; source and sink take the same."""

_OWN_SETTINGS = (
    "bootstrap.servers",
    "client.id",
    "fetch.max.bytes",
    "group.id",
    "isolation.level",
    "max.partition.fetch.bytes",
    "request.timeout.ms",
)


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its documented name, how its text is read, and what it means."""

    name: str
    read: Callable[[str], Any]
    default: Any
    meaning: str


def number(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError("a whole number of at least 1")
    return int(text)


def _milliseconds(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError("milliseconds since 1970 as a whole number")
    return int(text)


def flag(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.strip().lower() == "true"


def _duration_ms(text: str) -> int:
    found = DURATION.fullmatch(text)
    if found is None:
        raise ValueError("a duration such as 15m, 30s or 500ms")
    return int(found[1]) * DURATION_MS[(found[2] or "ms").lower()]


def text_of(text: str) -> str:
    if not text.strip():
        raise ValueError("a text that is not empty")
    return text.strip()


def _by_partition(*words: str) -> Callable[[str], str]:
    """Numbers by topic and partition, or one of the words. Which partitions there are is known later."""

    def read(text: str) -> str:
        try:
            if text.strip().lower() not in words:
                [(int(index), int(at)) for each in json.loads(text).values() for index, at in each.items()]
        except (ValueError, TypeError, AttributeError):
            raise ValueError(" or ".join([*words, 'JSON such as {"orders":{"0":23,"1":-2}}'])) from None
        return text.strip()

    return read


def _zone(text: str) -> str:
    try:
        return zoneinfo.ZoneInfo(text.strip()).key
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise ValueError("a time zone such as UTC or Europe/Berlin") from None


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.strip().lower() not in choices:
            raise ValueError("one of " + ", ".join(choices))
        return text.strip().lower()

    return read


SOURCE: tuple[Option, ...] = (
    Option("subscribe", text_of, None, "topics, separated by commas"),
    Option("subscribePattern", text_of, None, "a regular expression that whole topic names match"),
    Option("assign", text_of, None, 'partitions as JSON: {"orders":[0,1]}'),
    Option(
        "startingOffsets",
        _by_partition("earliest", "latest"),
        None,
        "earliest, latest, or JSON with -2 for earliest and -1 for latest",
    ),
    Option("startingOffsetsByTimestamp", _by_partition(), None, 'times in ms as JSON: {"orders":{"0":1700000000000}}'),
    Option("startingTimestamp", _milliseconds, None, "one time in ms for all partitions"),
    Option(
        "startingOffsetsByTimestampStrategy",
        _one_of("error", "latest"),
        "error",
        "what to do where nothing is as young as the time asked for",
    ),
    Option("endingOffsets", _by_partition("earliest", "latest"), None, "as startingOffsets; batch only"),
    Option("endingOffsetsByTimestamp", _by_partition(), None, "as startingOffsetsByTimestamp; batch only"),
    Option("endingTimestamp", _milliseconds, None, "as startingTimestamp; batch only"),
    Option("maxOffsetsPerTrigger", number, None, "the most offsets of one micro-batch, over all partitions"),
    Option(
        "alignBy",
        _one_of("timestamp"),
        None,
        "with maxOffsetsPerTrigger: micro-batches end in all partitions at one time, by the records' timestamps",
    ),
    Option("minOffsetsPerTrigger", number, None, "a micro-batch waits for so many offsets"),
    Option("maxTriggerDelay", _duration_ms, 900_000, "but no longer than this"),
    Option("minPartitions", number, None, "split partitions until there are so many tasks"),
    Option("maxRecordsPerPartition", number, None, "split ranges that are longer than this"),
    Option("includeHeaders", flag, False, "whether there is a column of headers"),
    Option("failOnDataLoss", flag, True, "whether records that are gone before they were read end the query"),
    Option(
        "groupIdPrefix",
        text_of,
        "headrace-spark",
        "what the group's name begins with, before the query's, without kafka.group.id",
    ),
    Option("commitGroupOffsets", flag, True, "whether positions are shown to the broker as a consumer group's"),
    Option("valueFormat", _one_of(*FORMATS), None, "how values become typed columns"),
    Option("valueSchema", text_of, None, "the columns of a value, as DDL: id long, name string"),
    Option("onBadRecord", _one_of(*BAD_RECORD_CHOICES), "fail", "what becomes of a value that does not fit"),
    Option("deadLetterTopic", text_of, None, "where bad records go with onBadRecord=deadletter"),
    Option("timeZone", _zone, "UTC", "the zone of times that do not name one"),
    Option(
        "timeUnit",
        _one_of("seconds", "milliseconds", "microseconds", "nanoseconds"),
        None,
        "what numbers in timestamp columns count; without it seconds in JSON, and what a schema says in Debezium's",
    ),
    Option(
        "decimalFormat",
        _one_of("text", "base64"),
        "text",
        "how decimals are written: as text or numbers, or as base64 of the unscaled number (Debezium's default)",
    ),
    Option("bytesPerBatch", number, 4 * 1024 * 1024, "fetched bytes that are decoded together"),
    Option("retryTimeoutMs", number, 120_000, "how long a task waits for a broker that is away"),
)


OF_A_TABLE = "provider"
"""What Spark's catalog adds to the options of a table."""


def parse(
    given: Mapping[str, str], declared: Iterable[Option], *, what: str, also: Iterable[str] = KAFKA_OPTIONS
) -> tuple[dict[str, Any], dict[str, str]]:
    """(options by their documented name with defaults filled in, settings of the client without ``kafka.``)."""
    by_key = {option.name.lower(): option for option in declared}
    kafka_names = {name.lower() for name in also}
    values = {option.name: option.default for option in by_key.values()}
    kafka: dict[str, str] = {}
    if OF_A_TABLE in given:
        raise UsageError(
            "a topic cannot be a table of Spark's catalog: Spark does not pass a table's options on when it is read",
            "CREATE TEMPORARY VIEW … USING headrace OPTIONS (…)",
        )
    for key, text in given.items():
        option = by_key.get(key.lower())
        if option is not None:
            try:
                values[option.name] = option.read(str(text))
            except ValueError as error:
                raise UsageError(f"option {option.name}={text!r} of the {what} must be {error}") from None
        elif key.lower() in kafka_names:
            kafka[key.lower().removeprefix("kafka.")] = str(text)
        else:
            raise _unknown(key, [option.name for option in by_key.values()] + sorted(kafka_names), what)
    return values, kafka


OF_SPARKS_SOURCE = {
    "kafkaconsumer.polltimeoutms": "it tunes the Java consumer; retryTimeoutMs says how long a broker is waited for",
    "fetchoffset.numretries": "it tunes the Java consumer; retryTimeoutMs says how long a broker is waited for",
    "fetchoffset.retryintervalms": "it tunes the Java consumer; retryTimeoutMs says how long a broker is waited for",
    "kafka.auto.offset.reset": "startingOffsets says where a query begins, and its checkpoint where it goes on",
    "kafka.enable.auto.commit": "positions are in the checkpoint; a group is shown them as commitGroupOffsets says",
    "kafka.key.deserializer": "keys are bytes",
    "kafka.value.deserializer": "values are bytes; valueFormat reads them into columns",
}
"""What people bring from Spark's Kafka source, and why it is not here."""


def _unknown(key: str, names: list[str], what: str) -> UsageError:
    if what == "source" and key.lower() in OF_SPARKS_SOURCE:
        return UsageError(f"the {what} has no option {key!r}: {OF_SPARKS_SOURCE[key.lower()]}", "remove it")
    lowered = {name.lower(): name for name in names}
    close = difflib.get_close_matches(key.lower(), list(lowered), n=1)
    hint = f"did you mean {lowered[close[0]]}? " if close else ""
    return UsageError(f"the {what} has no option {key!r}; {hint}valid: {', '.join(sorted(names, key=str.lower))}")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which partitions to read: exactly one of the three."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        if self.pattern:
            return f"topics like {self.pattern!r}"
        return ", ".join(self.topics) or ", ".join(f"{topic}[{index}]" for topic, index in self.partitions)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What the user asked of the source, checked. ``values`` has every option by its documented name."""

    selection: Selection
    bootstrap: str
    values: Mapping[str, Any]
    kafka: Mapping[str, str] = field(repr=False)  # may hold passwords

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
        """Checked for a stream or for a batch read, or with None for what holds for both."""
        values, kafka = parse(given, SOURCE, what="source")
        bootstrap = kafka.get("bootstrap.servers")
        if not bootstrap:
            raise UsageError("the source needs a broker", "option('kafka.bootstrap.servers', 'HOST:PORT')")
        if streaming:
            refused = [name for name in values if name.startswith("ending") and values[name] is not None]
            if refused:
                raise UsageError(f"{refused[0]} is for batch reads; a stream has no end")
            if values["startingOffsets"] is None:
                values["startingOffsets"] = "latest"
        elif streaming is False and (values["startingOffsets"] or "").lower() == "latest":
            raise UsageError("startingOffsets=latest would read nothing in a batch", "use earliest, JSON or a stream")
        if (values["endingOffsets"] or "").lower() == "earliest":
            raise UsageError("endingOffsets=earliest would read nothing", "use latest or JSON")
        _check_values(values, kafka)
        return cls(_selection(values), bootstrap, values, kafka)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def read_committed(self) -> bool:
        return self.kafka.get("isolation.level", READ_COMMITTED) == READ_COMMITTED

    def group(self, query: str = "") -> str | None:
        """The group under which a query's positions are shown: the one asked for, or one of the query's own.

        None when they are not to be shown, or when it is not known whose they are.
        """
        if not self.values["commitGroupOffsets"]:
            return None
        own = f"{self.values['groupIdPrefix']}-{_slug(query)}" if query else None
        return self.kafka.get("group.id") or own

    @property
    def fetch_bytes(self) -> int:
        asked = self.kafka.get("max.partition.fetch.bytes") or self.kafka.get("fetch.max.bytes")
        return int(asked) if asked else FETCH_BYTES


def _check_values(values: Mapping[str, Any], kafka: Mapping[str, str]) -> None:
    isolation = kafka.get("isolation.level", READ_COMMITTED)
    if isolation not in (READ_COMMITTED, "read_uncommitted"):
        raise UsageError(f"kafka.isolation.level={isolation!r} must be read_uncommitted or read_committed")
    for name in ("fetch.max.bytes", "max.partition.fetch.bytes", "request.timeout.ms"):
        if name in kafka and not (kafka[name].isdecimal() and int(kafka[name]) > 0):
            raise UsageError(f"kafka.{name}={kafka[name]!r} must be a whole number of at least 1")
    least, most = values["minOffsetsPerTrigger"], values["maxOffsetsPerTrigger"]
    if least is not None and most is not None and least > most:
        raise UsageError(f"minOffsetsPerTrigger={least} is larger than maxOffsetsPerTrigger={most}")
    if values["alignBy"] and most is None:
        raise UsageError(
            f"alignBy={values['alignBy']} needs maxOffsetsPerTrigger: without a limit a batch is everything there is",
            "option('maxOffsetsPerTrigger', 100_000)",
        )
    if values["onBadRecord"] == "deadletter" and not values["deadLetterTopic"]:
        raise UsageError("onBadRecord=deadletter needs a topic", "option('deadLetterTopic', NAME)")
    if values["valueSchema"] and not values["valueFormat"]:
        raise UsageError("valueSchema needs valueFormat", "option('valueFormat', 'json')")


def _selection(values: Mapping[str, Any]) -> Selection:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if values[name]]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise UsageError(f"the source needs exactly one of subscribe, subscribePattern and assign; there is {found}")
    text = values[given[0]]
    if given[0] == "subscribe":
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not names:
            raise UsageError(f"subscribe={text!r} names no topic")
        return Selection(topics=names)
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise UsageError(f"subscribePattern={text!r} is not a regular expression: {error}") from None
        return Selection(pattern=text)
    return Selection(partitions=_assigned(text))


def _assigned(text: str) -> tuple[tuple[str, int], ...]:
    try:
        found = json.loads(text)
        chosen = {(str(topic), int(index)) for topic, indexes in found.items() for index in indexes}
    except (ValueError, TypeError, AttributeError):
        chosen = set()
    if not chosen or min(index for _, index in chosen) < 0:
        raise UsageError(f"assign={text!r} must be partitions as JSON", 'for example {"orders":[0,1]}')
    return tuple(sorted(chosen))


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")[:180]


Role = Literal["driver", "task", "sink"]


def client_options(kafka: Mapping[str, str], *, retry_timeout_ms: int, role: Role) -> ClientOptions:
    """How the client behaves; what concerns encryption and identity goes to it by Kafka's names."""
    common: dict[str, Any] = {
        "client_id": kafka.get("client.id", f"headrace-spark-{role}"),
        "retry_timeout_ms": retry_timeout_ms,
    }
    if role == "task":  # the driver has reached the broker before, so a broker that is away is one to wait for
        common["first_contact_timeout_ms"] = retry_timeout_ms
    if "request.timeout.ms" in kafka:
        common["request_timeout_ms"] = int(kafka["request.timeout.ms"])
    secured = {name: value for name, value in kafka.items() if name not in _OWN_SETTINGS}
    if not secured:
        return ClientOptions(**common)
    return ClientOptions.from_kafka_config(secured, **common)


def connect(options: SourceOptions, *, role: Role) -> Client:
    return Client(
        options.bootstrap, client_options(options.kafka, retry_timeout_ms=options["retryTimeoutMs"], role=role)
    )
