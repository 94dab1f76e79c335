"""The command line: `taskguard COMMAND`. One file per command, imported when that command runs."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        import click  # noqa: F401 - a dependency of Celery
        import rich  # noqa: F401 - not a dependency of Celery
    except ModuleNotFoundError:
        sys.exit("taskguard: the command line needs one more package: pip install 'celery-taskguard[cli]'")
    from taskguard.cli.main import taskguard

    taskguard(prog_name="taskguard")
