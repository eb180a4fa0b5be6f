"""What a query's checkpoint tells about the batch at hand: whose it is, its number, and where its input ends.

Spark tells a Python sink none of this before its tasks run. But it writes the offsets of a batch into the checkpoint
before it plans the batch, so they are there to be read::

    metadata      {"id": "<the query, for as long as the checkpoint lives>"}
    offsets/17    v1, a line about the batch, then for each source a line: where the batch ends
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

from pyarrow import fs

from headrace.spark.sink_options import canonical

__all__ = ["Checkpoint", "read_checkpoint", "read_end_offsets"]

LINES_BEFORE_SOURCES = 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    query_id: str
    batch_id: int | None = None
    ends: str | None = None


def read_checkpoint(location: str) -> Checkpoint | None:
    """None when there is nothing to be read there from this process; the user then names the sink."""
    try:
        files, root = _open(location)
        query_id = str(json.loads(_read(files, f"{root}/metadata"))["id"])
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        logger.warning("the checkpoint %s cannot be read: %s", location, error)
        return None
    try:
        entries = files.get_file_info(fs.FileSelector(f"{root}/offsets"))
        batch_id = max(int(each.base_name) for each in entries if each.base_name.isdecimal())
        return Checkpoint(query_id, batch_id, _ends(_read(files, f"{root}/offsets/{batch_id}")))
    except (OSError, ValueError):
        return Checkpoint(query_id)


def read_end_offsets(location: str, batch_id: int) -> str | None:
    """Where the input of a batch ends: for ``exactly_once_batch`` inside foreachBatch."""
    files, root = _open(location)
    return _ends(_read(files, f"{root}/offsets/{batch_id}"))


def _open(location: str) -> tuple[Any, str]:
    if "://" not in location and location.startswith("file:"):
        location = location.removeprefix("file:")
    if "://" in location:
        files, root = fs.FileSystem.from_uri(location)
    else:
        files, root = fs.LocalFileSystem(), location
    return files, root.rstrip("/")


def _read(files: Any, path: str) -> str:
    with files.open_input_stream(path) as stream:
        return bytes(stream.read()).decode()


def _ends(text: str) -> str | None:
    """One source's offsets as they are; those of several one below the other."""
    sources = [canonical(line) or "" for line in text.splitlines()[LINES_BEFORE_SOURCES:] if line.strip()]
    return "\n".join(sources) or None
