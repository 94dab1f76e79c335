"""`taskguard completion`: the script with which a shell completes commands, options and keys."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Write the completion script for your shell.

    \b
    bash:  eval "$(taskguard completion bash)"       in ~/.bashrc
    zsh:   eval "$(taskguard completion zsh)"        in ~/.zshrc
    fish:  taskguard completion fish > ~/.config/fish/completions/taskguard.fish

    The shell completes keys if TASKGUARD_STORE is set, or if --store or -A comes before them.
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"click has no completion for {shell}")
    root = context.find_root().command
    click.echo(found(root, {}, "taskguard", "_TASKGUARD_COMPLETE").source())
