"""``headrace rebuild FILE.py NAME``: a derived system rebuilt from its topics, then put in place of the old one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.on_spark import on_spark, spark_options, stopping_on_signals

if TYPE_CHECKING:
    from headrace.spark.run.pipelines import Loaded

__all__ = ["command"]


def check(loaded: Loaded) -> None:
    from headrace.spark.run.rebuild import check_rebuildable

    for each in loaded.pipelines:
        check_rebuildable(each)


@click.command("rebuild")
@click.argument("file", metavar="FILE.py", type=click.Path(path_type=Path))
@click.argument("name", metavar="NAME")
@spark_options
def command(
    file: Path,
    name: str,
    master: str | None,
    settings: tuple[str, ...],
    checkpoints: str,
    log_path: Path,
    bootstrap: str,
    output: str,
) -> int:
    """Rebuild what a pipeline keeps up to date, from its topics alone, then switch.

    The table, index or hash is filled beside the one in use, which readers see until the new one takes its place at one
    moment. Stop the pipeline before; headrace run goes on after what was rebuilt.
    """
    with on_spark(
        file,
        (name,),
        master=master,
        settings=settings,
        log_path=log_path,
        bootstrap=bootstrap,
        output=output,
        checkpoints=checkpoints,
        on_loaded=check,
    ) as (spark, screen, loaded):
        from headrace.spark.run.rebuild import rebuild
        from headrace.spark.run.runner import Choices

        choices = Choices(command=f"headrace run {file}", checkpoints=checkpoints)
        (pipeline,) = loaded.pipelines
        with stopping_on_signals(screen) as stop:
            good = rebuild(spark, pipeline, choices, screen, stop)
        screen.finish()
    return 0 if good else 1
