"""More rows than fit into memory, in parts that do: for operators on bounded frames.

Spark gives a task the rows of one bucket after the other, each as a stream of batches. A bucket that is small is one
table. The rows of a larger one are written to files, one per part of its keys, and come back part by part. All rows of
a key are in one part, in the order in which they came; a row for every key is in every part.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["PARTS", "in_parts"]

PARTS = 64
"""The most files that a task has open. A bucket can be this many times larger than the memory for it."""


def in_parts(batches: Iterable[pa.RecordBatch], column: str, bytes_max: int) -> Iterator[pa.Table]:
    """The rows as tables of about ``bytes_max`` bytes at most. ``column`` has the part of each row, null for all.

    One key with more rows than that is still one table, since an operator must see all rows of a key.
    """
    held: list[pa.RecordBatch] = []
    byte_count = 0
    with ExitStack() as stack:
        files: _Files | None = None
        for batch in batches:
            held.append(batch)
            byte_count += batch.nbytes
            if byte_count > bytes_max:
                files = files or stack.enter_context(_Files(column, held[0].schema))
                files.write(pa.Table.from_batches(held))
                held, byte_count = [], 0
        if files is None:
            if held:
                yield pa.Table.from_batches(held)
            return
        if held:
            files.write(pa.Table.from_batches(held))
        yield from files.tables()


class _Files:
    """A file for each part that has rows, removed at the end."""

    def __init__(self, column: str, schema: pa.Schema) -> None:
        self._column, self._schema = column, schema
        self._writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        self._stack = ExitStack()

    def __enter__(self) -> _Files:
        # Spark names the disks that its tasks may fill.
        disks = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
        place = tempfile.TemporaryDirectory(prefix="headrace-spill-", dir=disks if os.path.isdir(disks) else None)
        self._folder = Path(self._stack.enter_context(place))
        return self

    def __exit__(self, *error: object) -> None:
        for writer in self._writers.values():
            writer.close()
        self._stack.close()

    def write(self, rows: pa.Table) -> None:
        parts = rows.column(self._column)
        everywhere = np.asarray(pc.is_null(parts))
        numbers = np.asarray(pc.fill_null(parts, -1), np.int64)
        every_part = range(PARTS) if everywhere.any() else np.unique(numbers).tolist()
        for part in every_part:
            chosen = np.flatnonzero((numbers == part) | everywhere)
            self._writer(part).write_table(rows.take(pa.array(chosen)))

    def _writer(self, part: int) -> pa.ipc.RecordBatchStreamWriter:
        if part not in self._writers:
            self._writers[part] = pa.ipc.new_stream(str(self._folder / str(part)), self._schema)
        return self._writers[part]

    def tables(self) -> Iterator[pa.Table]:
        while self._writers:
            part, writer = self._writers.popitem()
            writer.close()
            path = self._folder / str(part)
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
                yield reader.read_all()
            path.unlink()
