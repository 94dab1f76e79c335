"""A package that is not installed: one line says which extra installs it."""

from __future__ import annotations

from importlib.util import find_spec

import click

_EXTRAS = {
    # package: the extra that installs it
    "billiard": "celery",
    "celery": "celery",
    "kombu": "celery",
    "psycopg": "postgresql",
    "redis": "redis",
    "rq": "rq",
}


class MissingPackage(click.ClickException):
    """The command cannot run here; the message says what to install."""

    exit_code = 2

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs the package {package}: pip install 'celery-taskguard[{extra}]'")
        self.extra = extra


def missing(what: str, error: ModuleNotFoundError) -> MissingPackage | None:
    """The error to show for *error*; None if no extra installs that module, so that *error* has another cause."""
    package = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(package)
    return None if extra is None or find_spec(package) is not None else MissingPackage(what, package, extra)


def require(what: str, packages: tuple[str, ...], extra: str) -> None:
    """Raise `MissingPackage` for the first of *packages* that is not installed, without importing any."""
    for package in packages:
        if find_spec(package) is None:
            raise MissingPackage(what, package, extra)


def stand_in(name: str, problem: MissingPackage) -> click.Command:
    """A command that only reports what it needs, so that help and completion still list it."""

    def refuse() -> None:
        raise problem

    return click.Command(
        name,
        callback=refuse,
        help=problem.message,
        short_help=f"(needs celery-taskguard[{problem.extra}])",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
