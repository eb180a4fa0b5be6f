"""A folder per pipeline, wherever Spark can write: what its query has done, and the shape it had.

    <checkpoints>/<pipeline>/spark/       Spark's own: positions, commits, state
    <checkpoints>/<pipeline>/shape.json   what of the query the checkpoint depends on (compat.py)

Spark's file systems are used throughout, so a checkpoint may lie on this disk or on any store that the cluster shares.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace.errors import HeadraceError
from headrace.spark.compat import Shape

__all__ = ["Checkpoint"]

SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")


class Checkpoint:
    """The folder of one pipeline."""

    def __init__(self, spark: SparkSession, folder: str, name: str) -> None:
        # Hadoop's paths are not escaped, so this is not what Path.as_uri gives.
        root = folder.rstrip("/") if SCHEME.match(folder) else f"file:{Path(folder).absolute()}"
        self.shown = f"{folder.rstrip('/')}/{name}"
        self._root, self._name = root, name
        # The JVM's gateway has no types to offer.
        self._jvm: Any = spark._jvm
        self._conf: Any = spark._jsc.hadoopConfiguration()

    @property
    def location(self) -> str:
        """What Spark is given as its checkpoint."""
        return f"{self._root}/{self._name}/spark"

    def has_begun(self) -> bool:
        """Whether a micro-batch was ever planned; before that anything fits."""
        offsets = self._path("spark/offsets")
        files = self._files(offsets)
        return bool(files.exists(offsets)) and len(list(files.listStatus(offsets))) > 0

    def shape(self) -> Shape | None:
        """The shape the query had, or None where nobody wrote it down."""
        path = self._path("shape.json")
        files = self._files(path)
        if not files.exists(path):
            return None
        opened = files.open(path)
        try:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(opened, "UTF-8")
        finally:
            opened.close()
        try:
            return Shape.from_json(str(text))
        except (ValueError, KeyError, TypeError) as error:
            raise HeadraceError(f"{self.shown}/shape.json cannot be read: {error}; remove it to go on") from error

    def keep(self, shape: Shape) -> None:
        """Written aside first: a driver that is killed in here leaves a whole shape or none, and no part of one."""
        path, aside = self._path("shape.json"), self._path("shape.json.new")
        files = self._files(path)
        written = files.create(aside, True)
        try:
            written.write(bytearray(shape.to_json().encode()))
        finally:
            written.close()
        files.delete(path, False)
        if not files.rename(aside, path):
            raise HeadraceError(f"{self.shown}/shape.json cannot be written")

    def put_aside(self) -> str | None:
        """Move the whole folder away, so that the query begins anew; the name it has now, or None if there was none."""
        path = self._path("")
        files = self._files(path)
        if not files.exists(path):
            return None
        aside = f"{self._name}.until-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
        if not files.rename(path, self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{aside}")):
            raise HeadraceError(f"{self.shown} cannot be moved to {aside}")
        return aside

    def rename(self, name: str) -> None:
        """Give the whole folder to another pipeline, which must have none."""
        path = self._path("")
        if not self._files(path).rename(path, self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{name}")):
            raise HeadraceError(f"{self.shown} cannot be renamed to {name}")

    def _path(self, below: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{self._name}/{below}".rstrip("/"))

    def _files(self, path: Any) -> Any:
        return path.getFileSystem(self._conf)
