"""Which store a command is about: `--store`, `TASKGUARD_STORE`, or the Celery app named with `-A`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from taskguard.store import Store
from taskguard.stores import open_store, safe_url


@dataclass(frozen=True, slots=True)
class Target:
    store: Store
    name: str
    """What to call it in front of people: the URL without its secrets."""
    app: Any = None
    """The Celery app, if one was named."""


def with_target(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give the command its `target`, opened and closed around it."""

    @click.option("--store", "url", envvar="TASKGUARD_STORE", help="URL of the store.", show_envvar=True)
    @click.option("--namespace", envvar="TASKGUARD_NAMESPACE", help="Namespace of the entries.  [default: taskguard]")
    @click.option("-A", "--app", "app_name", help="Celery app whose store it is, as for `celery -A`.")
    @wraps(command)
    def wrapper(*args: Any, url: str | None, namespace: str | None, app_name: str | None, **options: Any) -> Any:
        target = find_target(url, namespace, app_name)
        try:
            return command(*args, target=target, **options)
        finally:
            target.store.close()

    return wrapper


def find_target(url: str | None, namespace: str | None, app_name: str | None) -> Target:
    app = find_app(app_name) if app_name else None
    if url:
        return Target(open_store(url, namespace=namespace or "taskguard"), safe_url(url), app)
    if app is None:
        raise click.UsageError("which store? Give --store URL or -A APP, or set TASKGUARD_STORE")
    if namespace:
        raise click.UsageError("--namespace goes with --store; the app has its own")
    from taskguard.celery.guarding import guarding_of

    guard = guarding_of(app).guard
    return Target(guard.store, f"the store of {app.main or app_name}", app)


def find_app(name: str) -> Any:
    """The Celery app called *name* in the spelling of `celery -A`."""
    from celery.app.utils import find_app as find

    from taskguard.celery import install

    try:
        app = install(find(name))
        app.loader.import_default_modules()  # as a worker does: its tasks are known by then
    except (ImportError, AttributeError) as error:
        raise click.UsageError(f"there is no Celery app {name}: {error}") from error
    return app
