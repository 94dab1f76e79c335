"""The command line: `taskguard COMMAND`. One file per command, loaded when it is asked for."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        import click  # noqa: F401 - which Celery brings along
        import rich  # noqa: F401 - and which it does not
    except ModuleNotFoundError:
        sys.exit("taskguard: the command line needs one package more: pip install 'celery-taskguard[cli]'")
    from taskguard.cli.main import taskguard

    taskguard(prog_name="taskguard")
