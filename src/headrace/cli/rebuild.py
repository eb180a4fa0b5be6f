"""``headrace rebuild FILE.py NAME``: a derived system anew from its topics, and then in place of the old one."""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path

import click

from headrace.cli.run import CHECKPOINTS, LOG, Screen, need_spark, stopping_on_signals
from headrace.cli.shared import bootstrap_option, output_option

__all__ = ["command"]


@click.command("rebuild")
@click.argument("file", metavar="FILE.py", type=click.Path(path_type=Path))
@click.argument("name", metavar="NAME")
@click.option("--master", metavar="URL", help="Where Spark runs: local[2], spark://HOST:PORT, …; default: here.")
@click.option(
    "--checkpoints",
    default=CHECKPOINTS,
    show_default=True,
    envvar="HEADRACE_CHECKPOINTS",
    show_envvar=True,
    metavar="DIR",
    help="Where pipelines remember how far they are, as for headrace run.",
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
@bootstrap_option
@output_option
def command(
    file: Path, name: str, master: str | None, checkpoints: str, log_path: Path, bootstrap: str, output: str
) -> int:
    """Build what a pipeline keeps up to date anew, from its topics alone, then switch.

    The table, index or hash is filled beside the one in use, which readers see until the new one takes its place at one
    moment. Stop the pipeline before; headrace run goes on behind what was rebuilt.
    """
    need_spark()
    from headrace.spark.launch import LogFile, open_session
    from headrace.spark.pipelines import check_file, choose, load_file
    from headrace.spark.profile import find_java
    from headrace.spark.progress import board_on
    from headrace.spark.rebuild import rebuild
    from headrace.spark.run import Choices

    check_file(file)
    find_java()
    choices = Choices(command=f"headrace run {file}", checkpoints=checkpoints)
    log = LogFile(log_path)
    with board_on(sys.stderr, width=shutil.get_terminal_size((100, 24)).columns) as board:
        screen = Screen(board, log, output)
        screen.say(f"starting Spark; its messages go to {log_path}")
        spark = open_session(log, master=master, bootstrap=bootstrap, folder=file.resolve().parent)
        try:
            (pipeline,) = choose(load_file(file), (name,))
            with stopping_on_signals(screen) as stop:
                good = rebuild(spark, pipeline, choices, screen, stop)
            screen.finish()
        finally:
            with contextlib.suppress(Exception):  # the JVM may be gone already, and that has been told
                spark.stop()
    return 0 if good else 1
