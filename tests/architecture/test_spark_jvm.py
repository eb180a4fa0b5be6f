"""Spark's JVM is touched in one folder, so that an upgrade of Spark has one place to look at."""

from __future__ import annotations

import re
from pathlib import Path

SPARK = Path(__file__).resolve().parents[2] / "src" / "headrace" / "spark"
DOOR = SPARK / "plan"
HANDLES = re.compile(
    r"\b(py4j|_gateway|_local_iterator_from_socket|_jvm"
    r"|_j(c|df|expr|listener|query|rdd|reader|sc|schema|seq|sparkSession|sq|write))\b"
)
"""What PySpark calls its handles of Java objects."""


def handles_in(source: str) -> list[str]:
    return [
        f"line {number}: {line.strip()}" for number, line in enumerate(source.splitlines(), 1) if HANDLES.search(line)
    ]


def test_only_one_folder_touches_the_jvm() -> None:
    found = {path: handles_in(path.read_text()) for path in SPARK.rglob("*.py") if DOOR not in path.parents}
    assert {str(path.relative_to(SPARK)): lines for path, lines in found.items() if lines} == {}
    assert any(handles_in(path.read_text()) for path in DOOR.glob("*.py"))


def test_the_watcher_finds_a_handle() -> None:
    assert handles_in("plan = rows._jdf.queryExecution()\nfrom py4j.protocol import Py4JError\n") != []
    assert handles_in("text = _json(value)\njoined = self._joined(rows)\n") == []
