"""What a query's checkpoint tells about the batch at hand: whose it is, its number, and where its input ends.

Spark tells a Python sink none of this before its tasks run. But it writes the offsets of a batch into the checkpoint
before it plans the batch, so they are there to be read::

    metadata      {"id": "<the query, for as long as the checkpoint lives>"}
    offsets/17    v1, a line about the batch, then for each source a line: where the batch ends

The driver reads them through Spark's own file systems, so a checkpoint may lie wherever Spark can write. The process
that plans the sink ``headrace`` has no JVM: it reads local disks and what pyarrow knows.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any, Protocol

from pyarrow import fs
from pyspark.sql import SparkSession

from headrace.spark.topic_sink.options import canonical

__all__ = ["PlannedBatch", "is_local", "planned_batch", "read_checkpoint", "read_end_offsets"]

LINES_BEFORE_SOURCES = 2
LOCAL = "file:"
QUERY_ID_PROPERTY = "sql.streaming.queryId"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """The newest batch that Spark has planned, and the query; without a batch when there is none yet."""

    query_id: str
    batch_id: int | None = None
    ends: str | None = None

    def ends_of(self, batch_id: int) -> str | None:
        """Where the input of a batch ends, if it is this one."""
        return self.ends if self.batch_id == batch_id else None


def is_local(location: str) -> bool:
    """Whether every process on this machine can read it."""
    return location.startswith(LOCAL) or "://" not in location


def read_checkpoint(location: str, spark: SparkSession | None = None) -> PlannedBatch | None:
    """None when there is nothing to be read there from this process; the user then names the sink.

    With a session it is read as Spark reads it.
    """
    try:
        folder = _folder(location, spark)
        query_id = str(json.loads(folder.read("metadata"))["id"])
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        logger.warning("the checkpoint %s cannot be read: %s", location, error)
        return None
    try:
        batch_id = max(int(name) for name in folder.names("offsets") if name.isdecimal())
        return PlannedBatch(query_id, batch_id, _ends(folder.read(f"offsets/{batch_id}")))
    except (OSError, ValueError):
        return PlannedBatch(query_id)


def planned_batch(location: str, spark: SparkSession, batch_id: int) -> tuple[str, str | None]:
    """Inside foreachBatch: the query's id, and where the input of the batch ends, by which a replay is recognised.

    Where the checkpoint is out of reach the id is the one that Spark tells its jobs, and the end is not known.
    """
    known = read_checkpoint(location, spark) if location else None
    if known is None:
        return str(spark.sparkContext.getLocalProperty(QUERY_ID_PROPERTY)), None
    return known.query_id, known.ends_of(batch_id)


def read_end_offsets(location: str, batch_id: int, spark: SparkSession | None = None) -> str | None:
    """Where the input of a batch ends: for ``exactly_once_batch`` inside foreachBatch."""
    return _ends(_folder(location, spark).read(f"offsets/{batch_id}"))


def _ends(text: str) -> str | None:
    """One source's offsets as they are; those of several one below the other."""
    sources = [canonical(line) or "" for line in text.splitlines()[LINES_BEFORE_SOURCES:] if line.strip()]
    return "\n".join(sources) or None


# ---- two ways to read a folder -------------------------------------------------------------------------------------


class _Folder(Protocol):
    """What cannot be read raises OSError."""

    def read(self, path: str) -> str: ...
    def names(self, path: str) -> list[str]: ...


def _folder(location: str, spark: SparkSession | None) -> _Folder:
    if spark is not None and not is_local(location):
        from headrace.spark.plan import SparkFiles  # only drivers have a JVM

        return _SparkFolder(SparkFiles(spark), location.rstrip("/"))
    if is_local(location):  # Hadoop's paths are not escaped, as a URI that Arrow reads would be
        plain = f"/{location.removeprefix(LOCAL).lstrip('/')}" if location.startswith(LOCAL) else location
        return _ArrowFolder(fs.LocalFileSystem(), plain.rstrip("/"))
    files, root = fs.FileSystem.from_uri(location)
    return _ArrowFolder(files, root.rstrip("/"))


@dataclass(frozen=True, slots=True)
class _ArrowFolder:
    files: Any
    root: str

    def read(self, path: str) -> str:
        with self.files.open_input_stream(f"{self.root}/{path}") as stream:
            return bytes(stream.read()).decode()

    def names(self, path: str) -> list[str]:
        return [each.base_name for each in self.files.get_file_info(fs.FileSelector(f"{self.root}/{path}"))]


@dataclass(frozen=True, slots=True)
class _SparkFolder:
    files: Any
    root: str

    def read(self, path: str) -> str:
        return str(self.files.read(f"{self.root}/{path}"))

    def names(self, path: str) -> list[str]:
        return list(self.files.names(f"{self.root}/{path}"))
