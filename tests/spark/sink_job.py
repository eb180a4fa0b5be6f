"""A query from topic to topic in its own process, which can be given the moment to die.

``python sink_job.py BOOTSTRAP FROM TO CHECKPOINT BATCH,MOMENT FENCE``, with one of the moments ``written`` (all tasks
are done, nothing is decided), ``decided`` (nothing is committed yet), ``one-committed`` (of several) and ``committed``
(but Spark does not know it). With ``-1,never`` it runs to the end of what is there. With the fence ``off`` the sink
does not look at what was decided.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.types import StructType

from headrace.spark.run.session import session
from headrace.spark.source.data_source import HeadraceDataSource
from headrace.spark.topic_sink import protocol as sink_protocol
from headrace.spark.topic_sink.decisions import DecisionTopic
from headrace.spark.topic_sink.protocol import Protocol
from headrace.spark.topic_sink.sink import StreamWriter, make_stream_writer

TASKS = 8


def die(pids: Sequence[int]) -> None:
    """The driver, its Java and this process, without a word to anybody."""
    for pid in (*pids, os.getpid()):
        os.kill(pid, signal.SIGKILL)


class DoomedWriter(StreamWriter):
    """Commits, until its moment comes."""

    doom: tuple[int, str, list[int]] = (-1, "", [])

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        batch_id, moment, pids = self.doom
        if batch_id != batchId:
            super().commit(messages, batchId)
            return
        if moment == "written":
            die(pids)
        real = sink_protocol.commit_all
        if moment == "decided":
            sink_protocol.commit_all = lambda client, identities: (die(pids), {})[1]
        if moment == "one-committed":
            sink_protocol.commit_all = lambda client, identities: (real(client, list(identities)[:1]), die(pids))[0]
        super().commit(messages, batchId)
        die(pids)


class UnfencedTopic(DecisionTopic):
    def last(self, sink: str) -> None:
        return None


class UnfencedWriter(DoomedWriter):
    """Knows no decision, and so writes what it has written before."""

    def _protocol(self) -> Protocol:
        protocol = super()._protocol()
        protocol._topic = UnfencedTopic(protocol._client, protocol._settings.decision_topic)
        return protocol


class DoomedSource(HeadraceDataSource):
    @classmethod
    def name(cls) -> str:
        return "doomed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        options: Mapping[str, str] = {
            name: value for name, value in self.options.items() if name not in ("doom", "fence")
        }
        writer = make_stream_writer(schema, options, overwrite)
        batch_id, moment, *pids = self.options["doom"].split(",")
        writer.__class__ = DoomedWriter if self.options["fence"] == "on" else UnfencedWriter
        writer.doom = int(batch_id), moment, [int(each) for each in pids]  # type: ignore[attr-defined]
        return writer


def main(bootstrap: str, source: str, target: str, checkpoint: str, doom: str, fence: str) -> None:
    spark = session(master="local[2]", conf={"spark.log.level": "ERROR"})
    assert spark.sparkContext._jvm is not None
    java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    spark.dataSource.register(DoomedSource)
    rows = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .options(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=400, minPartitions=TASKS)
        .load()
    )
    query = (
        rows.selectExpr("key", "concat(cast(value AS string), '!') AS value")
        .writeStream.format("doomed")
        .option("kafka.bootstrap.servers", bootstrap)
        .options(topic=target, checkpointLocation=checkpoint, retryTimeoutMs="60000")
        .options(doom=f"{doom},{os.getpid()},{java}", fence=fence)
        .trigger(availableNow=True)
    )
    query.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
