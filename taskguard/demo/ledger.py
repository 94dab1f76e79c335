"""The ledger of the demo's shop: a SQLite file that the tasks write and the score reads."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS effect (what TEXT NOT NULL, token INTEGER NOT NULL, worker TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS story (
    id INTEGER PRIMARY KEY, event TEXT NOT NULL, what TEXT NOT NULL, token INTEGER NOT NULL,
    worker TEXT NOT NULL, pid INTEGER NOT NULL, detail TEXT NOT NULL, at REAL NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the log that tasks write. The score does not read it."""

    event: str
    what: str
    token: int
    worker: str
    pid: int
    detail: str


class Ledger:
    def __init__(self, path: Path, worker: str = "") -> None:
        self._path = path
        self._worker = worker
        """The name under which this process writes."""

    def create(self) -> None:
        with self.open() as connection:
            connection.executescript(_SCHEMA)

    @contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """A connection whose block is one transaction."""
        connection = sqlite3.connect(self._path, timeout=30)
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    # -- what the tasks write ----------------------------------------------------------------------------------------

    def charge(self, connection: sqlite3.Connection, what: str, token: int = 0) -> None:
        """Write the effect in the caller's own transaction."""
        connection.execute("INSERT INTO effect VALUES (?, ?, ?)", (what, token, self._worker))

    def log(self, event: str, what: str, token: int = 0, detail: str = "") -> None:
        row = (event, what, token, self._worker, os.getpid(), detail, time.time())
        with self.open() as connection:
            connection.execute(
                "INSERT INTO story (event, what, token, worker, pid, detail, at) VALUES (?, ?, ?, ?, ?, ?, ?)", row
            )

    def wait_for_bank(self, what: str) -> None:
        """Wait until the demo lets the bank answer."""
        give_up = time.monotonic() + 120
        while not self.story("answer", what):
            if time.monotonic() > give_up:
                raise TimeoutError(f"the bank did not answer for {what}")
            time.sleep(0.05)

    # -- what the demo reads -----------------------------------------------------------------------------------------

    def effects(self) -> Counter[str]:
        """How often each effect happened."""
        with self.open() as connection:
            return Counter(what for (what,) in connection.execute("SELECT what FROM effect"))

    def story(self, event: str, what: str) -> list[Line]:
        with self.open() as connection:
            rows = connection.execute(
                "SELECT event, what, token, worker, pid, detail FROM story WHERE event = ? AND what = ? ORDER BY id",
                (event, what),
            )
            return [Line(*row) for row in rows]

    def workers(self) -> dict[int, str]:
        """The worker that ran under each token."""
        with self.open() as connection:
            return dict(connection.execute("SELECT token, worker FROM story WHERE token > 0"))
