"""The options of the sink, and which columns it takes: those of Spark's Kafka sink, and what exactly-once adds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
)

from headrace.client import Client, ClientOptions, ProducerOptions
from headrace.errors import UsageError
from headrace.record import Codec
from headrace.spark.source.options import KAFKA_OPTIONS, Option, flag, number, parse, text_of
from headrace.spark.topic_sink.decisions import DECISION_TOPIC
from headrace.spark.topic_sink.protocol import PipelineName, Settings, check_sink_id

__all__ = ["SINK", "SinkOptions", "canonical", "check_columns", "check_options"]

CODECS = {codec.name.lower(): codec for codec in Codec}
READING_ONLY = ("kafka.fetch.max.bytes", "kafka.group.id", "kafka.isolation.level", "kafka.max.partition.fetch.bytes")
SINK_KAFKA_OPTIONS = (*(name for name in KAFKA_OPTIONS if name not in READING_ONLY), "kafka.compression.type")
OWN_KAFKA_OPTIONS = ("bootstrap.servers", "compression.type")


def _batch_number(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError("the number of a batch, 0 or more")
    return int(text)


SINK: tuple[Option, ...] = (
    Option("topic", text_of, None, "where all rows go; without it every row's column topic tells"),
    Option("sinkId", text_of, None, "the name under which batches are recorded; default: the id of the query"),
    Option("writeId", text_of, None, "batch only: repeating a write with the same id completes it and adds nothing"),
    Option("batchId", _batch_number, None, "batch only, with sinkId: the number of a batch inside foreachBatch"),
    Option("endOffsets", text_of, None, "batch only, with batchId: where the input of the batch ended"),
    Option("pipeline", text_of, None, "the pipeline that the query is; another checkpoint of it is refused"),
    Option("startOver", flag, False, "with pipeline: write all rows a second time, from another checkpoint"),
    Option("decisionTopic", text_of, DECISION_TOPIC, "the compacted topic that records which batches count"),
    Option("transactionTimeoutMs", number, 900_000, "how long a batch may take before the broker gives it up"),
    Option("batchBytes", number, 512 * 1024, "the largest record batch that is sent, before compression"),
    Option("retryTimeoutMs", number, 120_000, "how long to wait for a broker that is away"),
    Option(
        "checkpointLocation",
        text_of,
        None,
        "stream only, of Spark itself: the id and offsets of batches are read there",
    ),
    Option("queryName", text_of, None, "of Spark itself: passed on to sinks by queryName(); it has no effect here"),
    Option("path", text_of, None, "of Spark itself: what start() or save() was given; a topic"),
)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What the user asked of the sink, checked."""

    bootstrap: str
    values: Mapping[str, Any]
    kafka: Mapping[str, str] = field(repr=False)  # may hold passwords

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
        values, kafka = check_options(given)
        if not kafka.get("bootstrap.servers"):
            raise UsageError("the sink needs a broker", "option('kafka.bootstrap.servers', 'HOST:PORT')")
        for_batches = [name for name in ("writeId", "batchId", "endOffsets") if values[name] is not None]
        if streaming and for_batches:
            raise UsageError(f"{for_batches[0]} is for batch writes; a stream numbers its batches itself")
        if not streaming:
            _check_batch_ids(values)
        for name in ("sinkId", "writeId"):
            if values[name] is not None:
                check_sink_id(values[name])
        values["topic"] = values["topic"] or values["path"]
        return cls(kafka["bootstrap.servers"], values, kafka)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def connect(self) -> Client:
        """A client that waits for a broker that is away, also when it has never seen it."""
        settings = {name: value for name, value in self.kafka.items() if name not in OWN_KAFKA_OPTIONS}
        settings.setdefault("client.id", "headrace-spark-sink")
        patience = self.values["retryTimeoutMs"]
        options = ClientOptions.from_kafka_config(settings)
        return Client(
            self.bootstrap, replace(options, retry_timeout_ms=patience, first_contact_timeout_ms=min(patience, 30_000))
        )

    @property
    def settings(self) -> Settings:
        return Settings(
            decision_topic=self.values["decisionTopic"],
            transaction_timeout_ms=self.values["transactionTimeoutMs"],
            producer=ProducerOptions(
                codec=CODECS[self.kafka.get("compression.type", "none").lower()],
                delivery_timeout_ms=self.values["retryTimeoutMs"],
            ),
        )

    @property
    def pipeline(self) -> PipelineName | None:
        name, topic = self.values["pipeline"], self.values["topic"]
        return PipelineName(name, topic, self.values["startOver"]) if name and topic else None

    @property
    def client_key(self) -> str:
        """Equal for options that can share a connection."""
        return json.dumps([self.bootstrap, self.values["retryTimeoutMs"], sorted(self.kafka.items())])


def check_options(given: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The options with their defaults, and the client's settings; what one of them says of another is not looked at."""
    values, kafka = parse(given, SINK, what="sink", also=SINK_KAFKA_OPTIONS)
    codec = kafka.get("compression.type", "none").lower()
    if codec not in CODECS:
        raise UsageError(f"kafka.compression.type={codec!r} must be one of {', '.join(CODECS)}")
    return values, kafka


def _check_batch_ids(values: Mapping[str, Any]) -> None:
    if values["writeId"] is not None and values["batchId"] is not None:
        raise UsageError("give either writeId, or sinkId and batchId")
    if (values["batchId"] is None) != (values["sinkId"] is None):
        raise UsageError("in a batch write sinkId and batchId belong together", "or give writeId")
    if values["endOffsets"] is not None and values["batchId"] is None:
        raise UsageError("endOffsets needs sinkId and batchId")


def canonical(end_offsets: str | Mapping[str, Any] | None) -> str | None:
    """The same text for the same offsets, however they were written."""
    if end_offsets is None:
        return None
    if isinstance(end_offsets, str):
        try:
            end_offsets = json.loads(end_offsets)
        except ValueError:
            return str(end_offsets).strip()
    return json.dumps(end_offsets, sort_keys=True, separators=(",", ":"))


# ---- columns -------------------------------------------------------------------------------------------------------

BYTES = (BinaryType, StringType)
COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "key": BYTES,
    "value": BYTES,
    "headers": (ArrayType,),
    "topic": (StringType,),
    "partition": (IntegerType,),
}
WANTED = (
    "key string or binary, value string or binary, headers array<struct<key:string,value:binary>>, topic string, "
    "partition int"
)


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """The columns of Spark's Kafka sink; only ``value`` must be there, and ``topic`` unless an option names it."""
    for each in schema.fields:
        allowed = COLUMNS.get(each.name)
        if allowed is None:
            raise UsageError(f"the sink does not know the column {each.name!r}; it takes {WANTED}", HINT)
        fits = isinstance(each.dataType, allowed)
        if each.name == "headers" and fits:
            fits = _are_headers(each.dataType)
        if not fits:
            raise UsageError(f"column {each.name!r} is {each.dataType.simpleString()}; the sink takes {WANTED}", HINT)
    if "value" not in schema.fieldNames():
        raise UsageError(f"the sink needs a column value; there is {', '.join(schema.fieldNames()) or 'none'}", HINT)
    if "topic" not in schema.fieldNames() and options["topic"] is None:
        raise UsageError("the sink does not know where to write", "option('topic', NAME) or a column topic")


HINT = "for example df.selectExpr('id AS key', 'to_json(struct(*)) AS value')"


def _are_headers(kind: DataType) -> bool:
    assert isinstance(kind, ArrayType)
    item = kind.elementType
    if not isinstance(item, StructType) or item.fieldNames() != ["key", "value"]:
        return False
    return isinstance(item["key"].dataType, StringType) and isinstance(item["value"].dataType, BinaryType)
