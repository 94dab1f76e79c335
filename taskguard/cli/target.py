"""Which store a command is about: `--store`, `TASKGUARD_STORE`, or the Celery app named with `-A`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click
from click.core import ParameterSource

from taskguard.cli.missing import require
from taskguard.errors import TaskguardError
from taskguard.protocol.store import Store
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
        target = find_target(click.get_current_context())
        try:
            return command(*args, target=target, **options)
        finally:
            target.store.close()

    return wrapper


def find_target(context: click.Context) -> Target:
    """What the options say; of an app that was named the store is its own, whatever the environment says."""
    app_name = context.params.get("app_name")
    app = find_app(app_name) if app_name else None
    url, namespace = (_given(context, name, unless=app is not None) for name in ("url", "namespace"))
    if url:
        return Target(open_store(url, namespace=namespace or "taskguard"), safe_url(url), app)
    if app is None:
        raise click.UsageError("which store? Give --store URL or -A APP, or set TASKGUARD_STORE")
    if namespace:
        raise click.UsageError("--namespace goes with --store; the app has its own")
    from taskguard.celery.guarding import app_guard_of

    guard = app_guard_of(app).guard
    return Target(guard.store, f"the store of {app.main or app_name}", app)


def _given(context: click.Context, name: str, *, unless: bool) -> str | None:
    """What an option says; *unless* it comes from the environment and something nearer was said."""
    if unless and context.get_parameter_source(name) is ParameterSource.ENVIRONMENT:
        return None
    value: str | None = context.params.get(name)
    return value


def find_app(name: str) -> Any:
    """The Celery app called *name* in the spelling of `celery -A`."""
    require("-A", ("celery",), "celery")
    from celery.app.utils import find_app as find

    from taskguard.celery import install

    try:
        app = install(find(name))
        app.loader.import_default_modules()  # as a worker does: its tasks are known by then
    except TaskguardError:
        raise
    except (Exception, SystemExit) as error:  # a module of the user's was run, and may raise anything
        raise click.UsageError(f"there is no Celery app {name}: {type(error).__name__}: {error}") from error
    return app
