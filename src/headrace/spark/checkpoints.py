"""A folder per pipeline, wherever Spark can write: what its query has done, and the shape it had.

    <checkpoints>/<pipeline>/spark/       Spark's own: positions, commits, state
    <checkpoints>/<pipeline>/shape.json   what of the query the checkpoint depends on (compat.py)
    <checkpoints>/.locks/<pipeline>       the driver that runs it (checkpoint_lock.py)

Spark's file systems are used throughout, so a checkpoint may lie on this disk or on any store that the cluster shares.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from headrace.errors import HeadraceError
from headrace.spark.compat import Shape

__all__ = ["Checkpoint", "HadoopFile"]

SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")
ASIDE = ".until-"
NAMED_ONCE = "v2"
"""How commits begin in a checkpoint whose state files have names that are used once."""


def root_of(folder: str) -> str:
    """As Hadoop wants it. Its paths are not escaped, so this is not what Path.as_uri gives."""
    return folder.rstrip("/") if SCHEME.match(folder) else f"file:{Path(folder).absolute()}"


class Checkpoint:
    """The folder of one pipeline."""

    def __init__(self, spark: SparkSession, folder: str, name: str) -> None:
        self.shown = f"{folder.rstrip('/')}/{name}"
        self._root, self._name = root_of(folder), name
        # The JVM's gateway has no types to offer.
        self._jvm: Any = spark._jvm
        self._conf: Any = spark._jsc.hadoopConfiguration()

    @property
    def location(self) -> str:
        """What Spark is given as its checkpoint."""
        return f"{self._root}/{self._name}/spark"

    def has_begun(self) -> bool:
        """Whether a micro-batch was ever planned; before that anything fits."""
        return bool(self._names("spark/offsets"))

    def may_name_files_once(self) -> bool:
        """Whether its state files have names that are used once, or there are none yet. See ``profile``."""
        commits = [int(each) for each in self._names("spark/commits") if each.isdecimal()]
        if not commits or not self._names("spark/state"):
            return True
        return self._text(self._path(f"spark/commits/{max(commits)}")).startswith(NAMED_ONCE)

    def shape(self) -> Shape | None:
        """The shape the query had, or None where nobody wrote it down."""
        path = self._path("shape.json")
        files = self._files(path)
        if not files.exists(path):
            return None
        try:
            return Shape.from_json(self._text(path))
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
        aside = f"{self._name}{ASIDE}{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
        if not files.rename(path, self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{aside}")):
            raise HeadraceError(f"{self.shown} cannot be moved to {aside}")
        return aside

    def remove(self) -> None:
        """With what was put aside of it: nobody needs the checkpoint of a rebuild that failed."""
        root = self._jvm.org.apache.hadoop.fs.Path(self._root)
        files = self._files(root)
        found = [str(each.getPath().getName()) for each in files.listStatus(root)] if files.exists(root) else []
        for name in found:
            if name == self._name or name.startswith(f"{self._name}{ASIDE}"):
                files.delete(self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{name}"), True)

    def rename(self, name: str) -> None:
        """Give the whole folder to another pipeline, which must have none."""
        path = self._path("")
        if not self._files(path).rename(path, self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{name}")):
            raise HeadraceError(f"{self.shown} cannot be renamed to {name}")

    def _names(self, below: str) -> list[str]:
        path = self._path(below)
        files = self._files(path)
        return [str(each.getPath().getName()) for each in files.listStatus(path)] if files.exists(path) else []

    def _text(self, path: Any) -> str:
        opened = self._files(path).open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(opened, "UTF-8"))
        finally:
            opened.close()

    def _path(self, below: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{self._name}/{below}".rstrip("/"))

    def _files(self, path: Any) -> Any:
        return path.getFileSystem(self._conf)


class HadoopFile:
    """A small file, read and written through Spark's file systems."""

    def __init__(self, spark: SparkSession, folder: str, below: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path(f"{root_of(folder)}/{below}")
        self._text_of = jvm.org.apache.commons.io.IOUtils.toString
        self._files = self._path.getFileSystem(spark._jsc.hadoopConfiguration())

    def read(self) -> str | None:
        try:
            opened = self._files.open(self._path)
        except Py4JJavaError as error:
            if "FileNotFoundException" in str(error.java_exception.getClass().getName()):
                return None
            raise
        try:
            return str(self._text_of(opened, "UTF-8"))
        finally:
            opened.close()

    def create(self, text: str) -> bool:
        try:
            self._write(text, overwrite=False)
        except Py4JJavaError as error:
            if "FileAlreadyExistsException" in str(error.java_exception.getClass().getName()):
                return False
            raise
        return True

    def replace(self, text: str) -> None:
        self._write(text, overwrite=True)

    def remove(self) -> None:
        self._files.delete(self._path, False)

    def _write(self, text: str, *, overwrite: bool) -> None:
        written = self._files.create(self._path, overwrite)
        try:
            written.write(bytearray(text.encode()))
        finally:
            written.close()
