"""What the commands that run pipelines on Spark have in common: options, a session, and a screen that shows them."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli.shared import bootstrap_option, output_option, settings_of
from headrace.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.progress import Board, Snapshot
    from headrace.spark.run.launch import LogFile
    from headrace.spark.run.pipelines import Loaded

__all__ = ["Screen", "on_spark", "spark_options", "stopping_on_signals"]

BOUND_INTERVAL_S = 30.0
F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = (
    click.option("--master", metavar="URL", help="Where Spark runs: local[2], spark://HOST:PORT, …; default: here."),
    click.option(
        "--conf",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        help="A setting of Spark, such as spark.driver.memory=4g; repeatable.",
    ),
    click.option(
        "--checkpoints",
        default="headrace-checkpoints",
        show_default=True,
        envvar="HEADRACE_CHECKPOINTS",
        show_envvar=True,
        metavar="DIR",
        help="Folder of the checkpoints; on a cluster, one that all machines reach.",
    ),
    click.option(
        "--log",
        "log_path",
        type=click.Path(dir_okay=False, path_type=Path),
        default=Path("headrace-run.log"),
        show_default=True,
        metavar="FILE",
        help="File for Spark's messages.",
    ),
    bootstrap_option,
    output_option,
)


def spark_options(command: F) -> F:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@contextlib.contextmanager
def on_spark(
    file: Path,
    only: tuple[str, ...],
    *,
    master: str | None,
    settings: Sequence[str],
    log_path: Path,
    bootstrap: str,
    output: str,
    checkpoints: str | None,
    on_loaded: Callable[[Loaded], None] = lambda loaded: None,
) -> Iterator[tuple[SparkSession, Screen, Loaded]]:
    """A session, the screen, and the chosen pipelines of a file with its dashboards. What is wrong with these is said
    before Spark starts, as far as it can be known then; also that one of them runs already, where ``checkpoints`` is
    the folder that has to be free. ``on_loaded`` is called as soon as the file is known: before Spark starts, unless
    only Spark can tell."""
    conf = settings_of(settings, "--conf", "spark.driver.memory=4g")
    _need_spark()
    from headrace.spark.progress import board_on
    from headrace.spark.run.before_spark import check_sinks, check_topics, load_early
    from headrace.spark.run.checkpoint_lock import check_folder, check_free
    from headrace.spark.run.java import find_java
    from headrace.spark.run.launch import LogFile, open_session
    from headrace.spark.run.pipelines import choose, load_file

    loaded = load_early(file, only)
    find_java()
    if checkpoints is not None:
        check_folder(checkpoints)
        check_sinks(loaded)
    check_topics(file, loaded, bootstrap)
    if checkpoints is not None and loaded is not None:
        check_free(checkpoints, [each.name for each in loaded.pipelines])
    log = LogFile(log_path)
    # With JSON, stdout is for programs: rows that the console sink prints would break it.
    tables = sys.stderr if output == "json" else None
    width = shutil.get_terminal_size((100, 24)).columns
    with _sigterm_as_interrupt(), board_on(sys.stderr, width=width, tables=tables) as board:
        screen = Screen(board, log, output)
        screen.say(f"starting Spark; its messages go to {log_path}")
        if loaded is not None:
            on_loaded(loaded)
        folder = file.resolve().parent
        spark = open_session(log, master=master, bootstrap=bootstrap, folder=folder, settings=conf)
        try:
            if loaded is None:
                loaded = choose(load_file(file), only)
                on_loaded(loaded)
            yield spark, screen, loaded
        finally:
            with contextlib.suppress(Exception):  # the JVM may be gone already, and that has been reported
                spark.stop()


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """While Spark starts, SIGTERM ends the command as Ctrl-C does: temporary files are removed."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _need_spark() -> None:
    try:
        import headrace.spark.run.runner  # noqa: F401 only to see whether it can be
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headrace"):
            raise
        raise UsageError(f"pipelines need {error.name}", "pip install 'headrace[spark]'") from error


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
