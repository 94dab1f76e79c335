"""Fixtures. Ask for them in your `conftest.py`: `pytest_plugins = ["taskguard.testing.pytest"]`.

They are no plug-in that pytest loads by itself: who does not ask for them pays nothing, and no name is taken.
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
    """The clock of the store: `advance(seconds)` lets leases run out and outcomes be forgotten."""
    return FakeClock()


@pytest.fixture
def taskguard_store(taskguard_clock: FakeClock) -> WatchedStore:
    """An empty store in memory. Give it to an app as its setting `taskguard_store`."""
    return WatchedStore(clock=taskguard_clock)


@pytest.fixture
def taskguard_guard(taskguard_store: WatchedStore) -> Guard:
    """A guard in memory, for code that takes one."""
    return Guard(taskguard_store)


@pytest.fixture
def taskguard_in_memory(taskguard_store: WatchedStore) -> Iterator[Callable[[Any], Any]]:
    """`taskguard_in_memory(app)`: the app, or the RQ function, is guarded in memory until the test ends."""
    with ExitStack() as stack:
        yield lambda target: stack.enter_context(on_store(target, taskguard_store))


@pytest.fixture
def taskguard_off() -> Iterator[None]:
    """Nothing is guarded while the test runs."""
    with unguarded():
        yield
