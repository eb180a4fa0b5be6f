"""``headrace run FILE.py``: the pipelines in a file, on Spark."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.on_spark import on_spark, spark_options, stopping_on_signals
from headrace.cli.shared import say, show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.client import StatePublisher
    from headrace.spark.run.pipelines import Loaded

__all__ = ["command", "show_state"]

PUBLISH_MS_MAX = 2_000
"""Dashboards are published before Spark starts, and that does not wait for a broker that never answers."""

logger = logging.getLogger(__name__)


@click.command("run")
@click.argument("file", metavar="FILE.py", type=click.Path(path_type=Path))
@click.option("--only", multiple=True, metavar="NAME", help="Run this pipeline and not the others; repeatable.")
@click.option("--available-now", is_flag=True, help="Process what is there now, then end.")
@click.option("--start-over", is_flag=True, help="Set checkpoints aside and read sources from the beginning.")
@click.option("--accept-changes", is_flag=True, help="Continue with state whose meaning the query has changed.")
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    metavar="N",
    help="Give up after so many restarts without a finished batch; default: never, or 3 with --available-now.",
)
@click.option(
    "--tasks",
    type=click.IntRange(min=1),
    metavar="N",
    help="The number of tasks that share the state of a pipeline from now on; default: as when it first ran.",
)
@click.option(
    "--state",
    "state_key",
    is_flag=False,
    flag_value="",
    metavar="[KEY]",
    help="Run nothing: show what is held of all keys together, or of one: anna, or shop=7,user=anna, or JSON.",
)
@click.option("--no-publish", is_flag=True, help="Do not publish progress and dashboards for the console.")
@spark_options
def command(
    file: Path,
    only: tuple[str, ...],
    available_now: bool,
    start_over: bool,
    accept_changes: bool,
    restarts: int | None,
    tasks: int | None,
    state_key: str | None,
    no_publish: bool,
    master: str | None,
    settings: tuple[str, ...],
    checkpoints: str,
    log_path: Path,
    bootstrap: str,
    output: str,
) -> int:
    """Run the pipelines of a Python file on Spark.

    Each has its checkpoint and goes on where it was. One that fails is started again after a pause. Ctrl-C and SIGTERM
    let micro-batches finish, and exit 0.
    """
    wanted = not no_publish and state_key is None
    with (
        publishing(bootstrap) if wanted else contextlib.nullcontext() as publisher,
        on_spark(
            file,
            only,
            master=master,
            settings=settings,
            log_path=log_path,
            bootstrap=bootstrap,
            output=output,
            checkpoints=checkpoints if state_key is None else None,
            on_loaded=lambda loaded: publish_dashboards(publisher, bootstrap, file, loaded),
        ) as (spark, screen, loaded),
    ):
        from headrace.spark.run.runner import Choices, run

        if state_key is not None:
            show_state(spark, [each.name for each in loaded.pipelines], checkpoints, state_key, output)
            return 0
        choices = Choices(
            command=f"headrace run {file}",
            rebuild=f"headrace rebuild {file}",
            checkpoints=checkpoints,
            available_now=available_now,
            restarts_max=restarts,
            accept_changes=accept_changes,
            start_over=start_over,
            tasks=tasks,
        )
        with stopping_on_signals(screen) as stop:
            good = run(spark, loaded.pipelines, choices, screen, stop, publisher)
        screen.finish()
    return 0 if good else 1


def publishing(bootstrap: str) -> StatePublisher:
    from headrace.client import StatePublisher

    return StatePublisher(bootstrap)


def publish_dashboards(publisher: StatePublisher | None, bootstrap: str, file: Path, loaded: Loaded) -> None:
    """The dashboards of a file, for the console; what goes wrong with that is in the log and stops nothing."""
    from headrace.client import Client, ClientOptions
    from headrace.errors import HeadraceError
    from headrace.spark.run import dashboards

    if publisher is None:
        return
    try:
        options = ClientOptions(
            client_id="headrace-run", request_timeout_ms=PUBLISH_MS_MAX, retry_timeout_ms=PUBLISH_MS_MAX
        )
        with Client(bootstrap, options) as client:
            dashboards.publish(publisher, client, file, loaded.dashboards)
    except HeadraceError as error:
        if loaded.dashboards:  # with none there was perhaps nothing to take away either
            logger.warning("dashboards were not published: %s", error.message)


def show_state(spark: SparkSession, pipelines: Sequence[str], checkpoints: str, key: str, output: str) -> None:
    """What the checkpoints hold, also of pipelines that run elsewhere at this moment."""
    from headrace.spark.run.checkpoints import Checkpoint
    from headrace.spark.state.inspection import state_operators

    rows: list[dict[str, object]] = []
    for name in pipelines:
        checkpoint = Checkpoint(spark, checkpoints, name)
        operators = state_operators(spark, checkpoint.location) if checkpoint.has_begun() else []
        if not operators:
            say(f"{name} holds no state by keys in {checkpoint.shown}")
        for operator in operators:
            found = _held(spark, checkpoint.location, operator, key)
            if found is None:
                say(f"{name} holds nothing of {key}")
            else:
                rows.append({"pipeline": name, "operator": operator, **found})
    if key and output == "table":
        rows = [{**row, "state": json.dumps(row["state"])} for row in rows]
    columns = ("state", "wake", "expire") if key else ("keyed_by", "keys", "timers", "bytes", "late_rows")
    show(rows, output, columns=("pipeline", "operator", *columns))


def _held(spark: SparkSession, location: str, operator: int, key: str) -> dict[str, object] | None:
    from headrace.spark.state.inspection import state_of, state_totals

    if not key:
        return asdict(state_totals(spark, location, operator=operator))
    found = state_of(spark, location, key, operator=operator)
    if found is None:
        return None
    found_as_json: dict[str, object] = json.loads(json.dumps(asdict(found), default=str))
    return found_as_json
