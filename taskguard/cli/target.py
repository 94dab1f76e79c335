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
    """The name to show: the URL without its password."""
    app: Any = None
    """The Celery app named with `-A`."""


def with_target(command: Callable[..., Any]) -> Callable[..., Any]:
    """Open the store for the command, pass it as `target`, and close it afterwards."""

    @click.option("--store", "url", envvar="TASKGUARD_STORE", help="URL of the store.", show_envvar=True)
    @click.option("--namespace", envvar="TASKGUARD_NAMESPACE", help="Namespace of the entries.  [default: taskguard]")
    @click.option("-A", "--app", "app_name", help="Use the store of this Celery app, named as for `celery -A`.")
    @wraps(command)
    def wrapper(*args: Any, url: str | None, namespace: str | None, app_name: str | None, **options: Any) -> Any:
        target = find_target(click.get_current_context())
        try:
            return command(*args, target=target, **options)
        finally:
            target.store.close()

    return wrapper


def find_target(context: click.Context) -> Target:
    """The store that the options name. `-A` wins over the environment, and `--store` over both."""
    app_name = context.params.get("app_name")
    app = find_app(app_name) if app_name else None
    url, namespace = (_given(context, name, unless=app is not None) for name in ("url", "namespace"))
    if url:
        return Target(open_store(url, namespace=namespace or "taskguard"), safe_url(url), app)
    if app is None:
        raise click.UsageError("which store? Write --store URL or -A APP, or set TASKGUARD_STORE")
    if namespace:
        raise click.UsageError("--namespace needs --store; with -A the app sets the namespace")
    from taskguard.celery.guarding import app_guard_of
    from taskguard.stores.unusable import check_usable

    return Target(check_usable(app_guard_of(app).guard.store), f"the store of {app.main or app_name}", app)


def _given(context: click.Context, name: str, *, unless: bool) -> str | None:
    """The value of an option; None if it comes from the environment and *unless* is true."""
    if unless and context.get_parameter_source(name) is ParameterSource.ENVIRONMENT:
        return None
    value: str | None = context.params.get(name)
    return value


def find_app(name: str) -> Any:
    """The Celery app called *name*, spelled as for `celery -A`."""
    require("-A", ("celery",), "celery")
    from celery.app.utils import find_app as find

    from taskguard.celery import install

    try:
        app = install(find(name))
        app.loader.import_default_modules()  # as a worker does, so that all tasks are registered
    except TaskguardError:
        raise
    except (Exception, SystemExit) as error:  # the user's module ran, and may raise anything
        raise click.UsageError(f"cannot load the Celery app {name}: {type(error).__name__}: {error}") from error
    return app
