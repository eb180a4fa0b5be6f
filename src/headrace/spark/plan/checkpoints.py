"""Files where Spark keeps its checkpoints, and what Spark can do to the state in one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from headrace.errors import HeadraceError
from headrace.spark.plan.scala import refuse_connect

__all__ = ["NotRepartitioned", "SparkFiles", "repartition_state"]

T = TypeVar("T")


class SparkFiles:
    """Files where Spark keeps its checkpoints: this disk, or a store that the cluster shares. Paths are Hadoop's.

    What cannot be read or written raises OSError.
    """

    def __init__(self, spark: SparkSession) -> None:
        refuse_connect(spark)
        self._jvm: Any = spark._jvm
        self._conf: Any = spark._jsc.hadoopConfiguration()

    def exists(self, path: str) -> bool:
        return bool(self._at(path, lambda files, place: files.exists(place)))

    def names(self, path: str) -> list[str]:
        """What a folder holds."""
        return self._at(path, lambda files, place: [str(each.getPath().getName()) for each in files.listStatus(place)])

    def read(self, path: str) -> str:
        def whole(files: Any, place: Any) -> str:
            opened = files.open(place)
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(opened, "UTF-8"))
            finally:
                opened.close()

        return self._at(path, whole)

    def write(self, path: str, text: str, *, overwrite: bool = True) -> None:
        def create(files: Any, place: Any) -> None:
            written = files.create(place, overwrite)
            try:
                written.write(bytearray(text.encode()))
            finally:
                written.close()

        self._at(path, create)

    def rename(self, path: str, new: str) -> bool:
        """Whether that worked; a store may refuse where ``new`` is there already."""
        return bool(self._at(path, lambda files, place: files.rename(place, self._path(new))))

    def remove(self, path: str) -> None:
        """A file, or a folder with all it holds; nothing happens where there is none."""
        self._at(path, lambda files, place: files.delete(place, True))

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _at(self, path: str, action: Callable[[Any, Any], T]) -> T:
        place = self._path(path)
        try:
            return action(place.getFileSystem(self._conf), place)
        except Py4JJavaError as error:
            name = str(error.java_exception.getClass().getName())
            for java, kind in JAVA_ERRORS.items():
                if java in name:
                    raise kind(str(error.java_exception.getMessage())) from error
            raise OSError(str(error.java_exception.getMessage())) from error


JAVA_ERRORS: dict[str, type[OSError]] = {
    "FileNotFoundException": FileNotFoundError,
    "FileAlreadyExistsException": FileExistsError,
}


class NotRepartitioned(HeadraceError):
    """Spark refused to; ``condition`` is its name for the reason."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        found = CONDITION.search(message)
        self.condition = found[1] if found else ""


CONDITION = re.compile(r"\[([A-Z_.]+)\]")


def repartition_state(spark: SparkSession, checkpoint: str, tasks: int) -> None:
    """Give the state of a stopped query to so many tasks. PySpark 4.3 has this, and does not call it public yet."""
    try:
        spark._streamingCheckpointManager.repartition(checkpoint, tasks)
    except Py4JJavaError as error:
        raise NotRepartitioned(str(error.java_exception.getMessage())) from error
