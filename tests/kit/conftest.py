from __future__ import annotations

from pathlib import Path

import pytest

from taskguard.testing.pytest import (  # noqa: F401 - fixtures
    taskguard_clock,
    taskguard_guard,
    taskguard_in_memory,
    taskguard_off,
    taskguard_store,
)
from tests.kit import bank


@pytest.fixture(autouse=True)
def accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(bank.FILE, str(tmp_path / "bank.db"))
    bank.reset()
