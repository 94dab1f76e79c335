from __future__ import annotations

import pytest

from taskguard import Event, Guard
from taskguard.stores.memory import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def guard(store: MemoryStore, events: list[Event]) -> Guard:
    return Guard(store, listeners=[events.append], patience=0.2)
