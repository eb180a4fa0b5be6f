"""Flink's side, in its own environment: reads one task a line, answers one line of JSON for each.

The first line is ``{"jar": …, "printed": file, "settings": {…}}``; each further one makes tables, ``{"setup":
[statements]}``, or is a query: ``{"sql": …, "keep": bool}``. This file imports nothing of headrace, which is not
installed there.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from typing import Any

from pyflink.table import EnvironmentSettings, TableDescriptor, TableEnvironment  # type: ignore[import-not-found]

SEPARATOR = "|"
"""Between the columns of a row; no text of Nexmark has one."""


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    first = json.loads(sys.stdin.readline())
    # What Flink's JVM prints must not come between the answers; results are printed too, and read from this file.
    os.dup2(os.open(first["printed"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    tables = environment(first)
    tell(answers, {"ready": True})
    for number, line in enumerate(sys.stdin):
        task = {**json.loads(line), "printed": first["printed"]}
        tell(answers, run(tables, task, number))


def tell(answers: Any, what: dict[str, Any]) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()


def environment(task: dict[str, Any]) -> Any:
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in {"pipeline.jars": f"file://{task['jar']}", **task["settings"]}.items():
        tables.get_config().set(name, value)
    return tables


def run(tables: Any, task: dict[str, Any], number: int) -> dict[str, Any]:
    try:
        if "setup" in task:
            for statement in task["setup"]:
                tables.execute_sql(statement)
            return {"ready": True}
        return kept(tables, task, number) if task["keep"] else measured(tables, task["sql"])
    except Exception as error:
        reasons = [line for line in str(error).splitlines() if not line.startswith("\tat ")]
        return {"error": "\n".join(reasons)[:2000]}


def measured(tables: Any, sql: str) -> dict[str, Any]:
    """Results are made and thrown away. ``net_s`` is Flink's own figure, without the start of its small cluster."""
    began = time.monotonic()
    result = tables.sql_query(sql).execute_insert(TableDescriptor.for_connector("blackhole").build())
    done = result.get_job_client().get_job_execution_result().result()
    return {"seconds": time.monotonic() - began, "net_s": done.get_net_runtime() / 1000}


def kept(tables: Any, task: dict[str, Any], number: int) -> dict[str, Any]:
    """What is left when all changes have been made: how often each row was added less how often it was taken back.

    Flink prints the changes into a file: PyFlink's own way to collect them takes milliseconds a row.
    """
    names = list(tables.sql_query(task["sql"]).get_schema().get_field_names())
    texts = ", ".join(f"COALESCE(CAST(`{name}` AS STRING), '')" for name in names)
    printing = TableDescriptor.for_connector("print").option("print-identifier", f"result-{number}").build()
    lines = tables.sql_query(f"SELECT CONCAT_WS('{SEPARATOR}', {texts}) AS line FROM ({task['sql']})")
    lines.execute_insert(printing).wait()
    change = re.compile(rf"result-{number}(?::\d+)?> ([+-][IUD])\[(.*)\]")
    counts: dict[str, int] = {}
    with open(task["printed"], encoding="utf-8") as printed:
        for each in map(change.fullmatch, printed.read().splitlines()):
            if each is not None:
                counts[each[2]] = counts.get(each[2], 0) + (1 if each[1][0] == "+" else -1)
    rows = [[*line.split(SEPARATOR), count] for line, count in counts.items() if count]
    return {"columns": names, "rows": rows}


if __name__ == "__main__":
    main()
