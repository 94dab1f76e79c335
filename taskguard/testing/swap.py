"""Swaps the store for a while: a test guards in memory, whatever store the project's settings name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from taskguard.errors import ConfigurationError
from taskguard.protocol.store import Store

T = TypeVar("T")

_OF_APP = ("_store", "guard", "calls", "confirmations", "identity")
"""Attributes that an app's app_guard derives from its store."""


@contextmanager
def on_store(target: T, store: Store) -> Iterator[T]:
    """Guard on *store* while the block runs. *target* is a Celery app, a task of it, or a guarded RQ function."""
    guarded = getattr(target, "taskguard", None)
    app = target if hasattr(target, "send_task") else getattr(target, "app", None)
    if app is not None:
        with _app_on(app, store):
            yield target
    elif hasattr(guarded, "settings"):
        with _function_on(guarded, store):
            yield target
    else:
        raise ConfigurationError(f"{target!r} is not a Celery app, a task of one, or a guarded RQ function")


@contextmanager
def _app_on(app: Any, store: Store) -> Iterator[None]:
    from taskguard.celery import install
    from taskguard.celery.guarding import app_guard_of

    made = vars(app_guard_of(install(app)))
    kept = {name: made.pop(name) for name in _OF_APP if name in made}
    made["_store"] = store
    try:
        yield
    finally:
        for name in _OF_APP:
            made.pop(name, None)
        made.update(kept)


@contextmanager
def _function_on(guarded: Any, store: Store) -> Iterator[None]:
    kept = {"settings": guarded.settings, "_store": guarded._store, "_guards": guarded._guards}
    vars(guarded).update(settings=replace(guarded.settings, store=store), _store=None, _guards={})
    try:
        yield
    finally:
        vars(guarded).update(kept)
