"""The history in SQLite: one table, trimmed as it grows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from taskguard.history import KEPT_FOR, MOST, Line
from taskguard.protocol.store import MICROS, micros

TRIM_EVERY = 16
"""Additions between two trims."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS taskguard_history (
    id INTEGER PRIMARY KEY, namespace TEXT NOT NULL, notable INTEGER NOT NULL, at INTEGER NOT NULL,
    key TEXT NOT NULL, text TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS taskguard_history_log ON taskguard_history (namespace, notable, id);
"""
_ADD = "INSERT INTO taskguard_history (namespace, notable, at, key, text) VALUES (?, ?, ?, ?, ?)"
_READ = (
    "SELECT key, text, notable, at FROM taskguard_history"
    " WHERE namespace = ? AND notable = ? AND substr(key, 1, length(?3)) = ?3 ORDER BY id DESC LIMIT ?4"
)
_TRIM = (
    "DELETE FROM taskguard_history WHERE namespace = ?1 AND notable = ?2 AND (at < ?3 OR id <= (SELECT id FROM"
    " taskguard_history WHERE namespace = ?1 AND notable = ?2 ORDER BY id DESC LIMIT 1 OFFSET ?4))"
)

Work = Callable[[sqlite3.Connection, int], Any]


class SQLiteHistory:
    def __init__(self, read: Callable[[Work, str], Any], write: Callable[[Work], None], namespace: str) -> None:
        self._read = read
        self._write = write
        self._namespace = namespace
        self._until_trim = 1

    def add(self, lines: Sequence[Line], /, *, last: bool = False) -> None:
        def step(db: sqlite3.Connection, now: int) -> None:
            db.executemany(
                _ADD, [(self._namespace, line.notable, now - micros(line.age), line.key, line.text) for line in lines]
            )
            self._trim_at_times(db, now)

        self._write(step)

    def read(self, prefix: str = "", /, *, limit: int = 1000) -> list[Line]:
        def look(db: sqlite3.Connection, now: int) -> list[Line]:
            rows = [
                row for log in (1, 0) for row in db.execute(_READ, (self._namespace, log, prefix, limit)).fetchall()
            ]
            return [Line(key, text, bool(notable), at=at / MICROS) for key, text, notable, at in reversed(rows)]

        return sorted(self._read(look, "BEGIN"), key=lambda line: line.at)[-limit:]

    def _trim_at_times(self, db: sqlite3.Connection, now: int) -> None:
        self._until_trim -= 1
        if self._until_trim > 0:
            return
        self._until_trim = TRIM_EVERY
        for log in (0, 1):
            db.execute(_TRIM, (self._namespace, log, now - KEPT_FOR * MICROS, MOST))
