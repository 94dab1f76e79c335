"""What bodies do in a rolling change, whichever release runs them: an effect that counts, and lines in a ledger."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import taskguard
from taskguard import Fence
from tests.bodies import DIRECTORY, Notes

SETTINGS = "TASKGUARD_TEST_SETTINGS"
"""The environment variable that holds the settings of Celery's application, as JSON."""
ON_PURPOSE = "so that RQ retries it"
"""What a body says that fails once."""
RELEASE = os.environ.get("TASKGUARD_TEST_RELEASE", "new")


def _release() -> dict[str, Any]:
    # By where the code was found, not only by what it was told to be.
    is_old = Path(taskguard.__file__).parents[1].name == "old"
    assert is_old == (RELEASE == "old"), taskguard.__file__
    return {"release": RELEASE}


_notes = Notes(_release)
note = _notes.note


def effects_of(directory: Path) -> sqlite3.Connection:
    """The database that bodies write to; it outlives all of them."""
    connection = sqlite3.connect(directory / "effects.db", timeout=60, isolation_level=None)
    connection.execute("PRAGMA synchronous=OFF")  # no power is cut here, and many write
    return connection


def make_tables(directory: Path) -> None:
    with closing(effects_of(directory)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE effect (kind TEXT, key TEXT, job TEXT, slot REAL, release TEXT)")


def work(kind: str, key: str, job: str, fence: Fence, *, seconds: float = 0.05, effect: bool = True) -> None:
    """One body: its effect and the memory of it are committed together."""
    slot = fence.scheduled_for.timestamp() if fence.scheduled_for else None
    facts = {"kind": kind, "job": job, "token": fence.token, "starts": fence.starts, "slot": slot, "effect": effect}
    with _notes.working(key, **facts):
        time.sleep(seconds)
        if effect:
            with closing(effects_of(Path(os.environ[DIRECTORY]))) as database:
                database.execute("BEGIN IMMEDIATE")
                if fence.once(database):
                    database.execute("INSERT INTO effect VALUES (?, ?, ?, ?, ?)", (kind, key, job, slot, RELEASE))
                database.execute("COMMIT")
        time.sleep(seconds)
