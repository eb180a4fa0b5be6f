"""Flink's side, in an environment of its own: reads one task a line, answers one line of JSON for each.

The first line has the tables: ``{"jar": …, "setup": [statements], "settings": {…}}``; each further one a query:
``{"sql": …, "keep": bool}``. This file imports nothing of headrace, which is not installed there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from pyflink.table import EnvironmentSettings, TableDescriptor, TableEnvironment  # type: ignore[import-not-found]


def main() -> None:
    # What Flink and its JVM print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    first = json.loads(sys.stdin.readline())
    tables = environment(first)
    tell(answers, {"ready": True})
    for line in sys.stdin:
        tell(answers, run(tables, json.loads(line)))


def tell(answers: Any, what: dict[str, Any]) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()


def environment(task: dict[str, Any]) -> Any:
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in {"pipeline.jars": f"file://{task['jar']}", **task["settings"]}.items():
        tables.get_config().set(name, value)
    for statement in task["setup"]:
        tables.execute_sql(statement)
    return tables


def run(tables: Any, task: dict[str, Any]) -> dict[str, Any]:
    try:
        return kept(tables, task["sql"]) if task["keep"] else measured(tables, task["sql"])
    except Exception as error:
        return {"error": str(error)[-2000:]}


def measured(tables: Any, sql: str) -> dict[str, Any]:
    """Results are made and thrown away. ``net_s`` is Flink's own figure, without the start of its small cluster."""
    began = time.monotonic()
    result = tables.sql_query(sql).execute_insert(TableDescriptor.for_connector("blackhole").build())
    client = result.get_job_client()
    result.wait()
    seconds = time.monotonic() - began
    return {"seconds": seconds, "net_s": client.get_job_execution_result().result().get_net_runtime() / 1000}


def kept(tables: Any, sql: str) -> dict[str, Any]:
    """What is left when all changes have been made: how often each row was added less how often it was taken back."""
    names = list(tables.sql_query(sql).get_schema().get_field_names())
    texts = ", ".join(f"CAST(`{name}` AS STRING) AS `{name}`" for name in names)  # PyFlink hands out no instants
    result = tables.execute_sql(f"SELECT {texts} FROM ({sql})")
    counts: dict[tuple[str | None, ...], int] = {}
    with result.collect() as rows:
        for row in rows:
            kind = str(row.get_row_kind())
            values = tuple(row)
            counts[values] = counts.get(values, 0) + (-1 if "BEFORE" in kind or "DELETE" in kind else 1)
    return {"columns": names, "rows": [[*row, count] for row, count in counts.items() if count]}


if __name__ == "__main__":
    main()
