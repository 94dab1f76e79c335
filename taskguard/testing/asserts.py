"""Assertions about a guarded call: it was a duplicate, or the work ran once."""

from __future__ import annotations

from typing import Any

from taskguard.errors import ConfigurationError, DuplicateTaskError
from taskguard.guard import Guard
from taskguard.protocol.store import Lease
from taskguard.testing.watched import WatchedStore


def assert_skipped(handle: Any, *, by: Any = None) -> None:
    """Assert that the call that returned *handle* was a duplicate: other work was queued, running or done.

    With *by*, the handle or id of another call, assert that it was a duplicate of that one.
    """
    about = getattr(handle, "taskguard", None)
    if about is None:
        raise AssertionError(f"{handle!r} is not the handle of a guarded call")
    owner = about.owner if about.duplicate else _eager_holder(handle)
    if owner is None:
        raise AssertionError(f"the call of {about.key} was not skipped: it is job {about.owner} itself")
    expected = getattr(by, "id", by)
    if expected is not None and owner != expected:
        raise AssertionError(f"the call of {about.key} is a duplicate of {owner}, not of {expected}")


def _eager_holder(handle: Any) -> str | None:
    """The holder in the `DuplicateTaskError` of an eager call, which cannot wait."""
    error = getattr(
        handle, "_result", None
    )  # of Celery's EagerResult; on other handles `result` would query the backend
    return error.owner if isinstance(error, DuplicateTaskError) else None


def assert_ran_once(what: Any, *args: Any, **kwargs: Any) -> None:
    """Assert that the body of that call ran exactly once, whichever job ran it.

    *what* is a guarded task with the arguments of the call, or a `Guard` with the key. Its store must be a
    `WatchedStore`, as in the fixtures.
    """
    key, store = _key_and_store(what, args, kwargs)
    if not isinstance(store, WatchedStore):
        raise ConfigurationError(
            f"{store!r} does not record runs; use the fixture taskguard_in_memory or "
            "taskguard.testing.on_store(app, WatchedStore())"
        )
    # A run may have an entry of its own. A key that only has this one as a prefix (invoice:42, invoice) is other work.
    apart = (f"{key}:job:", f"{key}:beside:")
    runs = [run for run in store.runs if run.key == key or run.key.startswith(apart)]
    if len(runs) != 1:
        raise AssertionError(f"{key} ran {len(runs)} times, not once{''.join(_line(run, store) for run in runs)}")


def _key_and_store(what: Any, args: Any, kwargs: Any) -> tuple[str, Any]:
    if isinstance(what, Guard):
        (key,) = args
        return key, what.store
    guarded = getattr(what, "taskguard", None)
    if guarded is None:
        raise ConfigurationError(f"{what!r} is neither a guarded task nor a Guard")
    given = kwargs.pop("idempotency_key", None)
    key = guarded.keys.explicit(given) if given else guarded.key(*args, **kwargs)
    app_guard = getattr(guarded, "app_guard", None)
    return key, app_guard.guard.store if app_guard is not None else guarded.own_guard.store


def _line(run: Lease, store: WatchedStore) -> str:
    return f"\n  job {run.owner}, token {run.token}, start {run.starts}: {store.ends.get(run.attempt, 'has not ended')}"
