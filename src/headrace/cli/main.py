"""The root of the command line: finds a command, loads only that one, and turns failures into one line.

Each command has a module that is imported when the command is used, so ``headrace --help`` stays fast.
The table below holds every command's name, module and summary; a test compares the summaries with the commands' own.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

import headrace
from headrace.errors import HeadraceError
from headrace.terminal import is_dumb

__all__ = ["COMMANDS", "cli", "main"]

COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("headrace.cli.up", "Serve: the embedded broker, in the foreground."),
    "demo": ("headrace.cli.demo", "A shop's database, its changes as a stream, and what Spark derives from them."),
    "topic": ("headrace.cli.topic", "List, create, describe, alter, trim and delete topics."),
    "produce": ("headrace.cli.produce", "Send lines or JSON to a topic."),
    "consume": ("headrace.cli.consume", "Print the records of topics."),
    "group": ("headrace.cli.group", "List, describe, reset and delete consumer groups."),
    "console": ("headrace.cli.console", "Serve the web console in front of any Kafka broker."),
    "queue": ("headrace.cli.queue", "List, describe, peek, purge, move, redrive and restore queues."),
    "capture": ("headrace.cli.capture", "Capture the changes of databases into topics."),
    "events": ("headrace.cli.events", "Append to event stores, read, replay and forget."),
    "run": ("headrace.cli.run", "Run the pipelines of a Python file on Spark."),
    "rebuild": (
        "headrace.cli.rebuild",
        "Rebuild what a pipeline keeps up to date, from its topics alone, then switch.",
    ),
    "status": ("headrace.cli.status", "Show what runs, and whether it is well."),
    "backup": ("headrace.cli.backup", "Back up a broker's data directory, while it runs or when it is stopped."),
    "restore": ("headrace.cli.restore", "Make a data directory from a backup."),
    "log": ("headrace.cli.log", "Look at the files of a data directory, check them and repair them."),
    "config": ("headrace.cli.config", "Show every setting and where its value came from."),
    "doctor": ("headrace.cli.doctor", "Check this machine; say what is wrong and how to fix it."),
    "completion": ("headrace.cli.completion", "Print the completion script of a shell."),
}

INTERRUPTED = 130
INTERNAL_ERROR = 70
VARIABLES = (
    "HEADRACE_BOOTSTRAP",
    "HEADRACE_CHECKPOINTS",
    "HEADRACE_CONFIG",
    "HEADRACE_DEBUG",
    "HEADRACE_MANAGEMENT",
    "HEADRACE_PORTABLE",
)


class ReaderGone(Exception):
    """The reader of our output has closed it; that is no failure."""


class Interrupted(Exception):
    """Ctrl-C, kept from click, which would print an empty line for it."""


class LazyGroup(click.Group):
    """Knows the commands' names and summaries without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f"did you mean '{near[0]}'?" if near else "see: headrace --help"
            raise click.UsageError(f"there is no command '{args[0]}'; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError as error:
            raise ReaderGone from error
        except KeyboardInterrupt as error:
            raise Interrupted from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(headrace.__version__, prog_name="headrace")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Stream processing: a durable log for Kafka clients, queues for AMQP clients, change capture from databases,
    event sourcing, and pipelines on Spark."""
    if os.environ.get("NO_COLOR") or is_dumb():
        ctx.color = False
    _check_variables()


def _check_variables() -> None:
    """Of the variables that every command knows. Those that are settings are looked at where settings are read."""
    others = [each for each in os.environ if each.startswith("HEADRACE_") and each not in VARIABLES]
    if others:
        from headrace.config import refuse_misspelt

        for each in others:
            refuse_misspelt(each, VARIABLES, likeness=0.8)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The entry point: exits 0, or non-zero after one line on stderr."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    try:
        status = cli.main(arguments, prog_name="headrace", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except ReaderGone:
        # Python flushes stdout once more as it exits; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Interrupted, KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        complain(_usage_line(error))
        return error.exit_code
    except (HeadraceError, OSError) as error:
        if os.environ.get("HEADRACE_DEBUG") == "1":
            raise
        from headrace.cli.failure import explain

        complain(explain(error))
        return error.exit_code if isinstance(error, HeadraceError) else 1
    except Exception as error:
        if os.environ.get("HEADRACE_DEBUG") == "1":
            raise
        complain(f"internal error, please report it: {type(error).__name__}: {error} (traceback: HEADRACE_DEBUG=1)")
        return INTERNAL_ERROR


def complain(line: str) -> None:
    click.echo(f"headrace: {line}", err=True)


def _usage_line(error: click.ClickException) -> str:
    """Click's own message in our form: one line, small first letter, and where to read on."""
    message = " ".join(error.format_message().split()).rstrip(".")
    message = message[:1].lower() + message[1:]
    context = getattr(error, "ctx", None)
    if isinstance(error, click.UsageError) and context is not None and "--help" not in message:
        message += f" (see: {context.command_path} --help)"
    return message
