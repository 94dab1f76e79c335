"""Stands in for a store whose driver is missing: every verb raises the reason.

So a process that lacks the driver treats its calls and its jobs as with any other store that fails.
"""

from __future__ import annotations

from typing import Any, NoReturn

from taskguard.errors import StoreError
from taskguard.protocol.store import Guarantees, Store
from taskguard.stores import open_store


class UnusableStore:
    guarantees = Guarantees(survives_restart="no", survives_failover="no", linearizable=False, clock="none")

    def __init__(self, error: StoreError) -> None:
        self._error = error

    def __repr__(self) -> str:
        return f"UnusableStore({self._error})"

    def refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise StoreError(*self._error.args) from self._error

    claim = renew = requeue = mark = complete = release = get = scan = forget = refuse

    def close(self) -> None:
        """Nothing is open."""


def check_usable(store: Store) -> Store:
    """Return the store; raise StoreError if it could not be opened."""
    if isinstance(store, UnusableStore):
        store.refuse()
    return store


def open_for_queue(url: str, *, namespace: str) -> Store:
    """`open_store`, but if the driver is missing, each verb raises: callers get the error, and jobs wait."""
    try:
        return open_store(url, namespace=namespace)
    except StoreError as error:
        return UnusableStore(error)
