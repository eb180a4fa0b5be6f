"""The ceiling of any Python source: the batches of a read lie ready, and a task only hands them to Spark.

Each task reads its first batch as the source ``headrace`` does, and gives it again and again until it has given as many
rows as its range has. So columns, values and sizes of batches are those of the real read, and what is left out is
fetching and decoding. What remains is Spark's: the stream of Arrow batches to the JVM, its rows, and the sink.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.spark.source.data_source import HeadraceDataSource, RangePartition

__all__ = ["PreparedSource"]


class PreparedSource(HeadraceDataSource):
    """``spark.read.format("prepared")``, with the options of the source ``headrace``."""

    @classmethod
    def name(cls) -> str:
        return "prepared"

    def reader(self, schema: StructType) -> DataSourceReader:
        return PreparedReader(super().reader(schema))


class PreparedReader(DataSourceReader):
    def __init__(self, real: DataSourceReader) -> None:
        self.real = real

    def partitions(self) -> Sequence[InputPartition]:
        return self.real.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition), f"there is nothing to read: {partition!r}"
        batch = next(iter(self.real.read(partition)))
        left = partition.end - partition.start
        while left > 0:
            yield batch.slice(0, left) if left < batch.num_rows else batch
            left -= batch.num_rows
