"""A folder per pipeline, wherever Spark can write: what its query has done, and the shape it had.

    <checkpoints>/<pipeline>/spark/       Spark's own: positions, commits, state
    <checkpoints>/<pipeline>/shape.json   what of the query the checkpoint depends on (shape.py)
    <checkpoints>/.locks/<pipeline>       the driver that runs it (checkpoint_lock.py)

Spark's file systems are used throughout, so a checkpoint may lie on this disk or on any store that the cluster shares.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.errors import HeadraceError
from headrace.spark.plan import SparkFiles
from headrace.spark.run.session import SHUFFLE_PARTITIONS
from headrace.spark.shape import Shape
from headrace.spark.state.inspection import names_files_once

__all__ = ["Checkpoint", "HadoopFile"]

SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")
ASIDE = ".until-"
LINES_BEFORE_SOURCES = 2
"""In a file of Spark's offset log."""


def root_of(folder: str) -> str:
    """As Hadoop wants it. Its paths are not escaped, so this is not what Path.as_uri gives."""
    return folder.rstrip("/") if SCHEME.match(folder) else f"file:{Path(folder).absolute()}"


class Checkpoint:
    """The folder of one pipeline."""

    def __init__(self, spark: SparkSession, folder: str, name: str) -> None:
        self.shown = f"{folder.rstrip('/')}/{name}"
        self._root, self._name = root_of(folder), name
        self._spark, self._files = spark, SparkFiles(spark)

    @property
    def location(self) -> str:
        """What Spark is given as its checkpoint."""
        return f"{self._root}/{self._name}/spark"

    def has_begun(self) -> bool:
        """Whether a micro-batch was ever planned; before that anything fits."""
        return any(each.isdecimal() for each in self._names("spark/offsets"))

    def sweep(self) -> None:
        """Remove what is left of a first micro-batch that could not be planned: the disk was full, or the driver was
        killed. Spark takes no checkpoint that has such a file and no batch, also when there is room again."""
        for each in [] if self.has_begun() else self._names("spark/offsets"):
            if each.startswith("."):
                self._files.remove(self._path(f"spark/offsets/{each}"))

    def may_name_files_once(self) -> bool:
        """Whether its state files have names that are used once, or there are none yet. See ``session``."""
        if not self._names("spark/state"):
            return True
        return names_files_once(self._spark, self.location) is not False

    def state_tasks(self) -> int | None:
        """How many tasks share the state of each stateful operator: the first batch's number of shuffle partitions."""
        batches = [int(each) for each in self._names("spark/offsets") if each.isdecimal()]
        if not batches:
            return None
        about = self._files.read(self._path(f"spark/offsets/{max(batches)}")).splitlines()[1]
        return int(json.loads(about)["conf"][SHUFFLE_PARTITIONS])

    def committed_offsets(self) -> list[str]:
        """Where the last finished micro-batch ended, a text for each source; nothing before the first one."""
        done = [int(each) for each in self._names("spark/commits") if each.isdecimal()]
        if not done:
            return []
        return self._files.read(self._path(f"spark/offsets/{max(done)}")).splitlines()[LINES_BEFORE_SOURCES:]

    def shape(self) -> Shape | None:
        """The shape the query had, or None where nobody wrote it down."""
        path = self._path("shape.json")
        if not self._files.exists(path):
            return self._shape_aside()
        try:
            return Shape.from_json(self._files.read(path))
        except (ValueError, KeyError, TypeError) as error:
            raise HeadraceError(f"{self.shown}/shape.json cannot be read: {error}; remove it to go on") from error

    def _shape_aside(self) -> Shape | None:
        """Of a driver that was killed in ``keep``: whole where it had one to replace, perhaps cut where it was the
        first, before anything ran."""
        try:
            return Shape.from_json(self._files.read(self._path("shape.json.new")))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, shape: Shape) -> None:
        """Written aside first: a driver that is killed in here leaves a whole shape or none, and no part of one."""
        path, aside = self._path("shape.json"), self._path("shape.json.new")
        self._files.write(aside, shape.to_json())
        self._files.remove(path)
        if not self._files.rename(aside, path):
            raise HeadraceError(f"{self.shown}/shape.json cannot be written")

    def put_aside(self) -> str | None:
        """Move the whole folder away, so that the query starts over; the name it has now, or None if there was none."""
        path = self._path("")
        if not self._files.exists(path):
            return None
        aside = f"{self._name}{ASIDE}{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
        if not self._files.rename(path, f"{self._root}/{aside}"):
            raise HeadraceError(f"{self.shown} cannot be moved to {aside}")
        return aside

    def remove(self) -> None:
        """With what was put aside of it: nobody needs the checkpoint of a rebuild that failed."""
        found = self._files.names(self._root) if self._files.exists(self._root) else []
        for name in found:
            if name == self._name or name.startswith(f"{self._name}{ASIDE}"):
                self._files.remove(f"{self._root}/{name}")

    def rename(self, name: str) -> None:
        """Give the whole folder to another pipeline, which must have none.

        Spark keeps the whole path of the file with a state's schema, so the new one is written first.
        """
        for operator in self._names("spark/state"):
            below = f"spark/state/{operator}/_metadata/v2"
            for each in self._names(below):
                path = self._path(f"{below}/{each}")
                text = self._files.read(path)
                self._files.write(path, text.replace(f"/{self._name}/spark/state/", f"/{name}/spark/state/"))
        if not self._files.rename(self._path(""), f"{self._root}/{name}"):
            raise HeadraceError(f"{self.shown} cannot be renamed to {name}")

    def _names(self, below: str) -> list[str]:
        path = self._path(below)
        return self._files.names(path) if self._files.exists(path) else []

    def _path(self, below: str) -> str:
        return f"{self._root}/{self._name}/{below}".rstrip("/")


class HadoopFile:
    """A small file, read and written through Spark's file systems."""

    def __init__(self, spark: SparkSession, folder: str, below: str) -> None:
        self._files, self._path = SparkFiles(spark), f"{root_of(folder)}/{below}"

    def read(self) -> str | None:
        try:
            return self._files.read(self._path)
        except FileNotFoundError:
            return None

    def create(self, text: str) -> bool:
        try:
            self._files.write(self._path, text, overwrite=False)
        except FileExistsError:
            return False
        return True

    def replace(self, text: str) -> None:
        self._files.write(self._path, text)

    def remove(self) -> None:
        self._files.remove(self._path)
