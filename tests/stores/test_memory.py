from __future__ import annotations

import pytest

from taskguard.stores.memory import MemoryStore
from taskguard.testing import StoreContract
from taskguard.testing.clock import FakeClock


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self, clock: FakeClock):
        return MemoryStore(clock=clock)

    @pytest.fixture
    def elapse(self, clock: FakeClock):
        return clock.advance

    @pytest.fixture
    def opener(self):
        return None  # one process only: its threads race

    @pytest.fixture
    def wipe(self, store: MemoryStore):
        return store._kept.items.clear

    @pytest.fixture
    def restart(self):
        return lambda: None
