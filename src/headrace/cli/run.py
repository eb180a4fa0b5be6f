"""``headrace run FILE.py``: the pipelines in a file, on Spark."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.shared import bootstrap_option, output_option, say, show
from headrace.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.launch import LogFile
    from headrace.spark.progress import Board, Snapshot

__all__ = ["CHECKPOINTS", "LOG", "Screen", "command", "need_spark", "stopping_on_signals"]

CHECKPOINTS = "headrace-checkpoints"
LOG = Path("headrace-run.log")
BOUND_INTERVAL_S = 30.0


@click.command("run")
@click.argument("file", metavar="FILE.py", type=click.Path(path_type=Path))
@click.option("--master", metavar="URL", help="Where Spark runs: local[2], spark://HOST:PORT, …; default: here.")
@click.option("--only", multiple=True, metavar="NAME", help="Run this pipeline and not the others; repeatable.")
@click.option("--available-now", is_flag=True, help="Work off what is there now, and end.")
@click.option(
    "--checkpoints",
    default=CHECKPOINTS,
    show_default=True,
    envvar="HEADRACE_CHECKPOINTS",
    show_envvar=True,
    metavar="DIR",
    help="Where pipelines remember how far they are; on a cluster, a place that all of it can reach.",
)
@click.option("--start-over", is_flag=True, help="Put checkpoints aside and begin at the sources' beginning.")
@click.option("--accept-changes", is_flag=True, help="Go on with state that a changed query would read otherwise.")
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    metavar="N",
    help="Give up after so many restarts without a finished batch; default: never, or 3 with --available-now.",
)
@click.option(
    "--log",
    "log_path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=LOG,
    show_default=True,
    metavar="FILE",
    help="Where Spark's own messages go.",
)
@click.option(
    "--state",
    "state_key",
    is_flag=False,
    flag_value="",
    metavar="[KEY]",
    help="Run nothing: show what is held of all keys together, or of one: anna, or shop=7,user=anna, or JSON.",
)
@bootstrap_option
@output_option
def command(
    file: Path,
    master: str | None,
    only: tuple[str, ...],
    available_now: bool,
    checkpoints: str,
    start_over: bool,
    accept_changes: bool,
    restarts: int | None,
    log_path: Path,
    state_key: str | None,
    bootstrap: str,
    output: str,
) -> int:
    """Run the pipelines of a Python file on Spark.

    Each has its checkpoint and goes on where it was. One that fails is started again after a pause. Ctrl-C and SIGTERM
    let micro-batches finish, and exit 0.
    """
    need_spark()
    from headrace.spark.launch import LogFile, open_session
    from headrace.spark.pipelines import check_file, choose, load_file
    from headrace.spark.profile import find_java
    from headrace.spark.progress import board_on
    from headrace.spark.run import Choices, run

    check_file(file)
    find_java()
    choices = Choices(
        command=f"headrace run {file}",
        checkpoints=checkpoints,
        available_now=available_now,
        restarts_max=restarts,
        accept_changes=accept_changes,
        start_over=start_over,
    )
    log = LogFile(log_path)
    with board_on(sys.stderr, width=shutil.get_terminal_size((100, 24)).columns) as board:
        screen = Screen(board, log, output)
        screen.say(f"starting Spark; its messages go to {log_path}")
        spark = open_session(log, master=master, bootstrap=bootstrap, folder=file.resolve().parent)
        try:
            pipelines = choose(load_file(file), only)
            if state_key is not None:
                show_state(spark, [each.name for each in pipelines], checkpoints, state_key, output)
                return 0
            with stopping_on_signals(screen) as stop:
                good = run(spark, pipelines, choices, screen, stop)
            screen.finish()
        finally:
            with contextlib.suppress(Exception):  # the JVM may be gone already, and that has been told
                spark.stop()
    return 0 if good else 1


def need_spark() -> None:
    try:
        import headrace.spark.run  # noqa: F401 only to see whether it can be
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headrace"):
            raise
        raise UsageError(f"pipelines need {error.name}", "pip install 'headrace[spark]'") from error


def show_state(spark: SparkSession, pipelines: Sequence[str], checkpoints: str, key: str, output: str) -> None:
    """What the checkpoints hold, also of pipelines that run elsewhere at this moment."""
    from headrace.spark.checkpoints import Checkpoint
    from headrace.spark.state_inspection import state_operators

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
    from headrace.spark.state_inspection import state_of, state_totals

    if not key:
        return asdict(state_totals(spark, location, operator=operator))
    found = state_of(spark, location, key, operator=operator)
    if found is None:
        return None
    told: dict[str, object] = json.loads(json.dumps(asdict(found), default=str))
    return told


class Screen:
    """Shows a run: lines that live for people, or one JSON object per micro-batch for programs."""

    def __init__(self, board: Board, log: LogFile, output: str) -> None:
        self._board = board
        self._log = log
        self._json = output == "json"
        self._last: Sequence[Snapshot] = ()
        self._bounded_s = time.monotonic()

    def say(self, line: str) -> None:
        self._board.say(line)

    def progressed(self, snapshot: Snapshot) -> None:
        if self._json:
            self._print(snapshot)

    def show(self, snapshots: Sequence[Snapshot]) -> None:
        now_s = time.monotonic()
        self._last = snapshots
        if not self._json:
            self._board.show(snapshots, now_s)
        if now_s - self._bounded_s >= BOUND_INTERVAL_S:
            self._log.keep_bounded()
            self._bounded_s = now_s

    def finish(self) -> None:
        if not self._json:
            self._board.final(self._last, time.monotonic())
        for each in self._last if self._json else ():
            self._print(each)

    def _print(self, snapshot: Snapshot) -> None:
        from headrace.spark.progress import as_json

        with self._board.cleared():
            click.echo(as_json(snapshot))


@contextlib.contextmanager
def stopping_on_signals(screen: Screen) -> Iterator[threading.Event]:
    """The first signal asks for a clean stop, the second does not wait for it."""
    stop = threading.Event()

    def asked(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        screen.say("stopping: micro-batches in flight may finish (once more: at once)")

    before = {each: signal.signal(each, asked) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
