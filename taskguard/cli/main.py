"""The list of commands, and how an error looks in a terminal."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click
from click.shell_completion import add_completion_class

from taskguard import __version__
from taskguard.cli.bash import Bash
from taskguard.cli.missing import missing, stand_in
from taskguard.cli.text import clean
from taskguard.errors import ConfigurationError, StoreError, TaskguardError

COMMANDS: dict[str, str] = {
    # command: the module that defines it as `command`
    "backfill": "taskguard.cli.backfill",
    "bench": "taskguard.cli.bench",
    "completion": "taskguard.cli.completion",
    "demo": "taskguard.cli.demo",
    "doctor": "taskguard.cli.doctor",
    "explain": "taskguard.cli.explain",
    "health": "taskguard.cli.health",
    "ls": "taskguard.cli.ls",
    "migrate": "taskguard.cli.migrate",
    "purge": "taskguard.cli.purge",
    "release": "taskguard.cli.release",
    "rq-backfill": "taskguard.cli.rq_backfill",
    "rq-cron": "taskguard.cli.rq_cron",
    "show": "taskguard.cli.show",
    "stats": "taskguard.cli.stats",
    "watch": "taskguard.cli.watch",
}

USAGE, STORE, FAILED, INTERRUPTED = 2, 3, 1, 130
"""Exit codes: wrong usage; the store is unavailable; any other `TaskguardError`; Ctrl-C."""


class _Failure(click.ClickException):
    """Shows a `TaskguardError` as one sentence with an exit code, without a traceback."""

    def __init__(self, error: TaskguardError) -> None:
        super().__init__(clean(str(error)))
        self.code = (
            STORE if isinstance(error, StoreError) else USAGE if isinstance(error, ConfigurationError) else FAILED
        )

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return self.code


class Commands(click.Group):
    """Imports a command's module when the command runs. Help and completion need no driver and no queue."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        module = COMMANDS.get(name)
        if module is None:
            return None
        try:
            command: click.Command = import_module(module).command
        except ModuleNotFoundError as error:
            problem = missing(name, error)
            if problem is None:
                raise
            return stand_in(name, problem)
        return command

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except TaskguardError as error:
            raise _Failure(error) from error
        except ModuleNotFoundError as error:
            problem = missing(context.invoked_subcommand or "taskguard", error)
            if problem is None:
                raise
            raise problem from error
        except KeyboardInterrupt:
            click.echo(err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None


add_completion_class(Bash)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="taskguard")
def taskguard() -> None:
    """Run background work once: show which job holds which key, and free keys by hand."""
