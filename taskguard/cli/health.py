"""`taskguard health beat`, `health cron`, `health worker`: an exit code for probes, and the reason for people."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from taskguard.cli.main import FAILED, STORE
from taskguard.cli.output import Duration, age, json_option, say, write_json
from taskguard.cli.target import find_app, find_target
from taskguard.errors import StoreError
from taskguard.protocol.store import Store
from taskguard.runtime.health_file import ROLE, VARIABLE, path_of, read

MAX_AGE = "90s"
"""A beat ticks every five seconds, RQ's cron at least every sixty, a worker writes every five or (RQ) thirty."""
ASKED = "health"
"""A key that nobody holds: what is asked for is an answer."""


@dataclass
class Health:
    """What was found out, and what is wrong with it."""

    role: str
    file: Path
    said: dict[str, Any] | None = None
    age: float | None = None
    """How long ago the file was written, in seconds."""
    late: float | None = None
    """How old the oldest slot is that is due and not settled; None if there is none, or none is known of."""
    store: dict[str, Any] | None = None
    """The store's answer, if it was asked."""
    problems: list[str] = field(default_factory=list)

    @property
    def code(self) -> int:
        """A process that is dead comes first: only that is what a restart helps against."""
        if not self.problems:
            return 0
        only_the_store = self.store is not None and self.problems == [self.store["error"]]
        return STORE if only_the_store else FAILED

    def as_json(self) -> dict[str, Any]:
        return {
            "healthy": not self.problems,
            "problems": self.problems,
            "role": self.role,
            "file": str(self.file),
            "age": self.age,
            "heartbeat": self.said,
            "oldest_due_age": self.late,
            "store": self.store,
        }


@click.group("health")
def command() -> None:
    """Check whether a process is alive. Exit code: 0 if it is, 1 if it is not, 3 if only the store does not answer."""


def _probe(role: str, about: str, *, has_slots: bool) -> None:
    def probe(file: str | None, max_age: float, as_json: bool, max_late: float | None = None, **_: Any) -> None:
        context = click.get_current_context()
        store, configured = _store_to_ask(context)
        path = _path(role, file, configured)
        health = examine(role, path, time.time(), max_age, max_late)
        if store is not None:
            _ask(store, health)
        if as_json:
            write_json(health.as_json())
        else:
            _tell(health)
        context.exit(health.code)

    probe.__doc__ = about
    options: list[Callable[..., Any]] = [
        click.option("--file", help=f"Heartbeat file.  [default: {VARIABLE}, else the app's taskguard_health_file]"),
        click.option("--max-age", type=Duration(), default=MAX_AGE, show_default=True, help="Maximum age of the file."),
    ]
    if has_slots:
        options.append(click.option("--max-late", type=Duration(), help="Maximum time that a slot may be due."))
    options += [
        click.option("-A", "--app", "app_name", help="Celery app, as for `celery -A`; also checks its store."),
        click.option("--store", "url", help="URL of a store to check too."),
        click.option("--namespace", help="Namespace of its entries.  [default: taskguard]"),
        json_option,
    ]
    for option in reversed(options):
        probe = option(probe)
    command.command(role)(probe)


_probe(
    "beat",
    """Check a guarded Celery beat by its heartbeat file.

    With --file alone the command reads only the file, which is quick and needs no store: use that as a liveness probe.
    With -A or --store it also checks the store.
    """,
    has_slots=True,
)
_probe("cron", """Check a guarded RQ cron (`taskguard rq-cron`) by its heartbeat file.""", has_slots=True)
_probe(
    "worker",
    """Check a worker by its heartbeat file: a Celery worker whose app loads taskguard, or RQ's GuardedWorker.""",
    has_slots=False,
)


def _store_to_ask(context: click.Context) -> tuple[Callable[[], Store] | None, str | None]:
    """How to open the store that the command line names, and the file that the app names."""
    name = context.params.get("app_name")
    if name is None and context.params.get("url") is None:
        return None, None
    configured = None
    if name is not None:
        app = find_app(name)
        from taskguard.celery.guarding import app_guard_of

        configured = app_guard_of(app).settings.health_file
    return lambda: find_target(context).store, configured


def _path(role: str, given: str | None, configured: str | None) -> Path:
    path = Path(given.replace(ROLE, role)) if given else path_of(role, configured)
    if path is None:
        raise click.UsageError(
            f"which heartbeat file? Give --file, or set {VARIABLE} or the app's taskguard_health_file"
        )
    return path


def examine(role: str, path: Path, now: float, max_age: float, max_late: float | None) -> Health:
    """What the file says of its process."""
    health = Health(role, path)
    try:
        said = read(path)
    except (OSError, ValueError) as error:
        health.problems.append(f"could not read the heartbeat file {path}: {error}")
        return health
    if said is None:
        health.problems.append(f"there is no heartbeat file {path}: no {role} has written it yet")
        return health
    health.said = said
    if said["role"] != role:
        health.problems.append(
            f"{path} is the heartbeat file of a {said['role']}; give each its own, as with {ROLE} in the name"
        )
        return health
    health.age = max(0.0, now - said["at"])
    if health.age > max_age:
        health.problems.append(f"the {role} is dead or stuck: its last heartbeat was {age(health.age)} ago")
    due = said.get("oldest_due")
    if due is not None:
        health.late = due["age"] + health.age
        if max_late is not None and health.late > max_late:
            health.problems.append(f"the slot {due['slot']} of {due['entry']} has been due for {age(health.late)}")
    return health


def _ask(store: Callable[[], Store], health: Health) -> None:
    began = time.monotonic()
    try:
        opened = store()
        try:
            opened.get(ASKED)
        finally:
            opened.close()
        error = None
    except StoreError as problem:
        error = f"the store does not answer: {problem}"
        health.problems.append(error)
    health.store = {"answers": error is None, "error": error, "seconds": round(time.monotonic() - began, 3)}


def _tell(health: Health) -> None:
    for problem in health.problems:
        say(problem)
    if not health.problems:
        say(f"The {health.role} is healthy.")
    said = health.said
    if said is None or health.age is None:
        return
    name = f"{said['name']}, " if said.get("name") else ""
    say(f"Last heartbeat: {age(health.age)} ago ({name}process {said['pid']} on {said['host']})")
    if said.get("consumes") is False:
        say("It has stopped consuming: it shut down, or it lost its connection to the broker.")
    if said.get("store_error"):
        say(f"It waits for the store: {said['store_error']}")
    if health.store is not None and health.store["answers"]:
        say(f"The store answers within {health.store['seconds']:.3f} s.")
    due = said.get("oldest_due")
    if due is not None and health.late is not None:
        say(f"Oldest due slot: {due['slot']} of {due['entry']}, due for {age(health.late)}")
    elif "oldest_due" in said:
        say("No slot is due.")
