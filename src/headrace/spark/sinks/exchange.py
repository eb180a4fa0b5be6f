"""Rows to an exchange of headrace or RabbitMQ, with confirms: ``hr.sinks.exchange``.

At least once. A micro-batch that is repeated after a crash publishes the same messages with the same ``message_id``:
query, exchange, batch, partition and row. So a consumer, or ``hr.dedup`` after a bridge, can remove the repetitions. A
batch is committed when the broker has confirmed all of its messages. While the broker is away, ``headrace run`` starts
the pipeline again until it is back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.client.amqp import EXAMPLE, amqp_channel, need_pika
from headrace.errors import HeadraceError, UsageError
from headrace.spark.arguments import plain_columns
from headrace.spark.owner import PipelineRun
from headrace.spark.sinks.plain import BatchWrite, Sink

__all__ = ["exchange"]

PERSISTENT = 2
MESSAGE_COLUMNS = ("body", "routing_key", "message_id", "headers")


def exchange(url: str, name: str = "", *, routing_key: str | None = None) -> Sink:
    """An exchange of the AMQP broker at ``url`` (amqp://user:password@host:port/vhost); without a name the default one.

    Rows with a column ``body`` (text or bytes) are messages, and ``routing_key``, ``message_id`` and ``headers`` (a
    map) are columns too; other rows become JSON objects. ``routing_key`` is the key of rows that have none. A message
    that no queue takes is an error.
    """
    if not url.startswith(("amqp://", "amqps://")):
        raise UsageError("the address of an AMQP broker begins with amqp:// or amqps://", EXAMPLE)
    need_pika()
    return _Exchange(url=url, name=name, routing_key=routing_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchange(Sink):
    url: str = field(repr=False)
    name: str
    routing_key: str | None
    query: str = ""

    def describe(self) -> str:
        return f"exchange {self.name!r}"

    def for_run(self, run: PipelineRun) -> _Exchange:
        return replace(self, query=run.pipeline)

    def stream(self, rows: DataFrame, mode: str, checkpoint: str) -> DataStreamWriter:
        return rows.writeStream.outputMode(mode).foreachBatch(self.batches(rows, mode, checkpoint))

    def batches(self, rows: DataFrame, mode: str, checkpoint: str) -> BatchWrite:
        return partial(self._publish, checkpoint=checkpoint)

    def write(self, rows: DataFrame) -> None:
        self._publish(rows, 0, checkpoint="")

    def _publish(self, rows: DataFrame, batch_id: int, *, checkpoint: str) -> None:
        columns = [each for each in rows.columns if not each.startswith("_")]
        if "body" not in columns:
            rows = rows.select(F.to_json(F.struct(*plain_columns(columns))).alias("body"))
        else:
            rows = rows.select(*[each for each in columns if each in MESSAGE_COLUMNS])
        work = partial(
            publish_rows,
            url=self.url,
            exchange=self.name,
            routing_key=self.routing_key,
            prefix=f"{self.query or checkpoint.rstrip('/').rpartition('/')[2] or 'write'}/{self.name}/{batch_id}",
        )
        rows.foreachPartition(work)


def publish_rows(rows: Iterator[Row], *, url: str, exchange: str, routing_key: str | None, prefix: str) -> None:
    """In a task: publish the rows of a partition, and return when all are confirmed."""
    import pika
    from pika.exceptions import UnroutableError
    from pyspark import TaskContext

    context = TaskContext.get()
    number = context.partitionId() if context is not None else 0
    first = next(rows, None)
    if first is None:
        return
    with amqp_channel(url, f"publishing to exchange {exchange!r} failed") as channel:
        channel.confirm_delivery()
        for place, row in enumerate(chain([first], rows)):
            given = row.asDict()
            body = given["body"]
            properties = pika.BasicProperties(
                delivery_mode=PERSISTENT,
                message_id=given.get("message_id") or f"{prefix}/{number}/{place}",
                headers=given.get("headers"),
            )
            key = given.get("routing_key") or routing_key or ""
            data = b"null" if body is None else body.encode() if isinstance(body, str) else bytes(body)
            try:
                channel.basic_publish(exchange, key, data, properties, mandatory=True)
            except UnroutableError as error:
                raise HeadraceError(f"exchange {exchange!r} has no queue for routing key {key!r}: bind one") from error
