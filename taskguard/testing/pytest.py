"""Fixtures. Load them in your `conftest.py`: `pytest_plugins = ["taskguard.testing.pytest"]`.

pytest does not load them by itself: a project that does not use them imports nothing and has no extra fixture names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from taskguard.guard import Guard
from taskguard.runtime.switch import unguarded
from taskguard.testing.clock import FakeClock
from taskguard.testing.swap import on_store
from taskguard.testing.watched import WatchedStore

__all__ = ["taskguard_clock", "taskguard_guard", "taskguard_in_memory", "taskguard_off", "taskguard_store"]


@pytest.fixture
def taskguard_clock() -> FakeClock:
    """The clock of the store: `advance(seconds)` makes leases and outcomes expire."""
    return FakeClock()


@pytest.fixture
def taskguard_store(taskguard_clock: FakeClock) -> WatchedStore:
    """An empty store in memory. Set it as the app's `taskguard_store`."""
    return WatchedStore(clock=taskguard_clock)


@pytest.fixture
def taskguard_guard(taskguard_store: WatchedStore) -> Guard:
    """A guard in memory, for code that takes one."""
    return Guard(taskguard_store)


@pytest.fixture
def taskguard_in_memory(taskguard_store: WatchedStore) -> Iterator[Callable[[Any], Any]]:
    """`taskguard_in_memory(app)`: guard the app, or the RQ function, in memory until the test ends."""
    with ExitStack() as stack:
        yield lambda target: stack.enter_context(on_store(target, taskguard_store))


@pytest.fixture
def taskguard_off() -> Iterator[None]:
    """Switch the guard off while the test runs."""
    with unguarded():
        yield
