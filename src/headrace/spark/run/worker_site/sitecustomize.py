"""Runs first in every Python process that Spark starts on this machine: planners of sources, workers, their daemon.

Spark puts PySpark into the path of these processes as a zip file, in front of everything else. The zip has no compiled
modules, so each process compiles what it imports: about a second of processor time, in a dozen processes of a few
pipelines. A PySpark that was installed with pip has the zip inside itself, and the same modules compiled beside it. So
where the zip lies in an installed PySpark, it is taken out of the path. Elsewhere nothing changes.

Python runs one module of this name. So another one on the path, of the user or of the system, is run from here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

__all__ = ["without_packed"]


def without_packed(path: Sequence[str]) -> list[str]:
    """The path without the packed files of an installed PySpark whose folder is on the path too."""
    places = {os.path.realpath(each) for each in path if each}
    return [each for each in path if not _is_packed(each, places)]


def _is_packed(entry: str, places: set[str]) -> bool:
    folder, name = os.path.split(os.path.realpath(entry))
    package = _package_in(name)
    site, inside, _ = folder.rpartition(f"{os.sep}pyspark{os.sep}")
    if not package or not inside or site not in places:
        return False
    return os.path.isfile(os.path.join(site, package, "__init__.py"))


def _package_in(name: str) -> str:
    """What a file that Spark adds has inside; empty for other files."""
    if name == "pyspark.zip" or name.startswith("spark-core_"):
        return "pyspark"
    return name.partition("-")[0] if name.endswith("-src.zip") else ""


def _run_next() -> None:
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = without_packed([each for each in sys.path if os.path.realpath(each) != here])
    found = PathFinder.find_spec(__name__, sys.path)
    if found is not None and found.loader is not None:
        module = sys.modules[__name__] = module_from_spec(found)
        found.loader.exec_module(module)


if __name__ == "sitecustomize":
    _run_next()
