"""A process that lacks a driver."""

from __future__ import annotations

import sys

import pytest

import taskguard.stores


def without_psycopg(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the test lasts, whoever opens a store in PostgreSQL does not find its driver."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "taskguard.stores.postgresql", raising=False)
    monkeypatch.delattr(taskguard.stores, "postgresql", raising=False)
