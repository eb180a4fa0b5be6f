"""``headrace completion``: the script that makes a shell complete commands, options, topics and groups."""

from __future__ import annotations

import click

__all__ = ["command"]


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of a shell.

    \b
      eval "$(headrace completion bash)"                                        in ~/.bashrc
      eval "$(headrace completion zsh)"                                         in ~/.zshrc
      headrace completion fish > ~/.config/fish/completions/headrace.fish
    """
    from click.shell_completion import ShellComplete, get_completion_class

    from headrace.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three shells of the choice"
    click.echo(ShellComplete.source(kind(cli, {}, "headrace", "_HEADRACE_COMPLETE")))
