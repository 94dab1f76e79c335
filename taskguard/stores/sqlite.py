"""Entries in one SQLite file: many processes on one host, no server. Not for a network file system.

Every verb loads the state of its key, applies the rules and saves the step, in one write transaction.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from taskguard.errors import ConfigurationError
from taskguard.protocol.rules import Kept, Receipt, Rules, Step, seen
from taskguard.protocol.store import Claim, Claimant, Completed, Ending, Entry, Guarantees, Held, Lease
from taskguard.stores import safe_url
from taskguard.stores.histories import sqlite as histories
from taskguard.stores.memory import wall_clock
from taskguard.stores.sqlite_file import File

Answer = TypeVar("Answer")

PURGE_EVERY = 64
"""Claims between two purges."""
PURGE_AT_MOST = 500
"""The most rows removed in one purge, so that no verb waits long for it."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS taskguard_entry (
    namespace TEXT NOT NULL, key TEXT NOT NULL,
    state TEXT NOT NULL, owner TEXT NOT NULL, attempt TEXT NOT NULL, token INTEGER NOT NULL,
    since INTEGER NOT NULL, until INTEGER NOT NULL, keep INTEGER NOT NULL, starts INTEGER NOT NULL,
    took_over INTEGER NOT NULL, payload TEXT NOT NULL,
    copy TEXT NOT NULL, copies INTEGER NOT NULL, copy_until INTEGER NOT NULL, held_until INTEGER NOT NULL,
    requeued_by TEXT NOT NULL, deaths TEXT NOT NULL, how TEXT, outcome BLOB, gone_at INTEGER NOT NULL,
    label TEXT NOT NULL DEFAULT '', whereabouts TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (namespace, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS taskguard_receipt (
    namespace TEXT NOT NULL, key TEXT NOT NULL,
    owner TEXT NOT NULL, attempt TEXT NOT NULL, how TEXT NOT NULL, token INTEGER NOT NULL,
    at INTEGER NOT NULL, until INTEGER NOT NULL, outcome BLOB, twin TEXT NOT NULL, answered INTEGER NOT NULL,
    PRIMARY KEY (namespace, key, owner)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS taskguard_entry_gone ON taskguard_entry (gone_at);
CREATE INDEX IF NOT EXISTS taskguard_receipt_gone ON taskguard_receipt (until);
"""
_ADDED = {"taskguard_entry": {"label": "TEXT NOT NULL DEFAULT ''", "whereabouts": "TEXT NOT NULL DEFAULT ''"}}
"""Columns that a file of an older version lacks. An older version that uses the same file ignores them."""
_ENTRY = (
    "state, owner, attempt, token, since, until, keep, starts, took_over, payload, "
    "copy, copies, copy_until, held_until, requeued_by, deaths, how, outcome, label, whereabouts"
)
_RECEIPT = "owner, attempt, how, token, at, until, outcome, twin, answered"
_GET_ENTRY = f"SELECT {_ENTRY} FROM taskguard_entry WHERE namespace = ? AND key = ? AND gone_at > ?"
_PUT_ENTRY = (
    f"INSERT OR REPLACE INTO taskguard_entry (namespace, key, {_ENTRY}, gone_at) VALUES ({', '.join('?' * 23)})"
)
_GET_RECEIPT = f"SELECT {_RECEIPT} FROM taskguard_receipt WHERE namespace = ? AND key = ? AND owner = ? AND until > ?"
_PUT_RECEIPT = f"INSERT OR REPLACE INTO taskguard_receipt (namespace, key, {_RECEIPT}) VALUES ({', '.join('?' * 11)})"


def from_url(url: str, *, namespace: str) -> SQLiteStore:
    """`sqlite:///relative.db` or `sqlite:////absolute.db`, optionally with `?timeout=seconds`."""
    parts = urlsplit(url)
    options = parse_qs(parts.query, keep_blank_values=True)
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc or not path or path == ":memory:":
        raise ConfigurationError(
            f"{safe_url(url)} does not name a file; write sqlite:///relative.db or sqlite:////absolute.db, "
            "or memory:// to keep nothing"
        )
    unknown = sorted(set(options) - {"timeout"})
    if unknown:
        raise ConfigurationError(f"sqlite:// has no option {unknown[0]!r}; the only option is timeout")
    try:
        timeout = float(options.get("timeout", ["5"])[-1])
    except ValueError:
        timeout = 0.0
    if not 0 < timeout < 3600:
        raise ConfigurationError("sqlite://…?timeout= must be a number of seconds above 0 and below 3600")
    return SQLiteStore(path, namespace=namespace, timeout=timeout)


class SQLiteStore:
    """A file that every process of this host can open. It survives a power cut: each verb is synced to disk."""

    guarantees = Guarantees(
        survives_restart="yes",
        survives_failover="not applicable",
        linearizable=True,
        clock="the host's",
        note="one host, a local disk; never a network file system",
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        namespace: str = "taskguard",
        timeout: float = 5.0,
        clock: Callable[[], int] = wall_clock,
        rules: Rules | None = None,
    ) -> None:
        self._namespace = namespace
        self._clock = clock
        self._rules = rules or Rules()
        path = str(Path(path).absolute())
        self._name = f"SQLiteStore({path!r}, namespace={namespace!r})"
        self._file = File(path, name=self._name, timeout=timeout, schema=_SCHEMA + histories.SCHEMA, added=_ADDED)
        self._until_purge = 1
        self.history = histories.SQLiteHistory(self._transaction, self._log, namespace)

    def __repr__(self) -> str:
        return self._name

    # -- verbs ---------------------------------------------------------------------------------------------------

    def claim(self, claim: Claim, /) -> Lease | Held | Completed:
        def answer(db: sqlite3.Connection, now: int) -> Step[Lease | Held | Completed]:
            own = self._receipt(db, claim.key, claim.owner, now)
            joined = self._receipt(db, claim.key, claim.join, now) if claim.join else None
            return self._rules.claim(claim, self._entry(db, claim.key, now), own, joined, now)

        def step(db: sqlite3.Connection, now: int) -> Lease | Held | Completed:
            self._purge_at_times(db, now)
            return self._save(db, claim.key, answer(db, now))

        # A job that waits for a key claims again and again, and mostly gets the same answer. That takes no write lock,
        # so it does not delay a holder which must renew.
        seen_now = self._transaction(answer, begin="BEGIN")
        if seen_now.entry is None and seen_now.receipt is None:
            return seen_now.answer
        return self._transaction(step)

    def renew(self, leases: Sequence[tuple[Lease, float]], /) -> list[bool]:
        def step(db: sqlite3.Connection, now: int) -> list[bool]:
            return [
                self._save(db, lease.key, self._rules.renew(lease, seconds, self._entry(db, lease.key, now), now))
                for lease, seconds in leases
            ]

        return self._transaction(step)

    def requeue(
        self, claimant: Claimant, seconds: float, /, *, copy_for: float, keep_starts: bool = False, copy: str = ""
    ) -> bool:
        def step(db: sqlite3.Connection, now: int) -> bool:
            entry = self._entry(db, claimant.key, now)
            own = self._receipt(db, claimant.key, claimant.owner, now)
            requeued = self._rules.requeue(
                claimant, seconds, entry, now, own=own, copy_for=copy_for, keep_starts=keep_starts, copy=copy
            )
            return self._save(db, claimant.key, requeued)

        return self._transaction(step)

    def mark(self, published: Sequence[tuple[Claimant, float]], /, *, copy_for: float) -> list[bool]:
        def marked(db: sqlite3.Connection, now: int, claimant: Claimant, seconds: float) -> bool:
            entry = self._entry(db, claimant.key, now)
            own = self._receipt(db, claimant.key, claimant.owner, now)
            step = self._rules.mark(claimant, seconds, entry, now, own=own, copy_for=copy_for)
            return self._save(db, claimant.key, step)

        return self._transaction(
            lambda db, now: [marked(db, now, claimant, seconds) for claimant, seconds in published]
        )

    def complete(self, claimant: Claimant, ending: Ending, /) -> bool:
        def step(db: sqlite3.Connection, now: int) -> bool:
            own = self._receipt(db, claimant.key, claimant.owner, now)
            entry = self._entry(db, claimant.key, now)
            return self._save(db, claimant.key, self._rules.complete(claimant, ending, entry, own, now))

        return self._transaction(step)

    def release(self, claimant: Claimant, ending: Ending, /, *, anyway: bool = False) -> bool:
        def step(db: sqlite3.Connection, now: int) -> bool:
            own = self._receipt(db, claimant.key, claimant.owner, now)
            entry = self._entry(db, claimant.key, now)
            return self._save(db, claimant.key, self._rules.release(claimant, ending, entry, own, now, anyway=anyway))

        return self._transaction(step)

    def get(self, key: str, /) -> Entry | None:
        def look(db: sqlite3.Connection) -> Entry | None:
            now = self._clock()
            entry = self._entry(db, key, now)
            return seen(key, entry, now) if entry else None

        return self._file.use(look)

    def scan(self, prefix: str = "", /) -> Iterator[Entry]:
        page = self._file.use(lambda db: self._page(db, "key >= ?", prefix))
        while page:
            for entry in page:
                if not entry.key.startswith(prefix):
                    return
                yield entry
            last = page[-1].key
            page = self._file.use(lambda db, last=last: self._page(db, "key > ?", last))  # type: ignore[misc]

    def forget(self, key: str, /, token: int = 0) -> bool:
        def step(db: sqlite3.Connection, now: int) -> bool:
            return self._save(db, key, self._rules.forget(self._entry(db, key, now), token, now))

        return self._transaction(step)

    def close(self) -> None:
        self._file.close()

    # -- rows ----------------------------------------------------------------------------------------------------

    def _entry(self, db: sqlite3.Connection, key: str, now: int) -> Kept | None:
        row = db.execute(_GET_ENTRY, (self._namespace, key, now)).fetchone()
        return _kept(row) if row else None

    def _receipt(self, db: sqlite3.Connection, key: str, owner: str, now: int) -> Receipt | None:
        row = db.execute(_GET_RECEIPT, (self._namespace, key, owner, now)).fetchone()
        return _receipt(row) if row else None

    def _page(self, db: sqlite3.Connection, which: str, key: str) -> list[Entry]:
        now = self._clock()
        rows = db.execute(
            f"SELECT key, {_ENTRY} FROM taskguard_entry WHERE namespace = ? AND {which} AND gone_at > ?"
            " ORDER BY key LIMIT 500",
            (self._namespace, key, now),
        )
        return [seen(name, _kept(columns), now) for name, *columns in rows.fetchall()]

    def _save(self, db: sqlite3.Connection, key: str, step: Step[Answer]) -> Answer:
        if step.entry is not None:
            db.execute(_PUT_ENTRY, (self._namespace, key, *_columns(step.entry)))
        if step.receipt is not None:
            r = step.receipt
            columns = (r.owner, r.attempt, r.how, r.token, r.at, r.until, r.outcome, r.twin, r.answered)
            db.execute(_PUT_RECEIPT, (self._namespace, key, *columns))
        return step.answer

    def _purge_at_times(self, db: sqlite3.Connection, now: int) -> None:
        self._until_purge -= 1
        if self._until_purge > 0:
            return
        self._until_purge = PURGE_EVERY
        for table, column, identity in (
            ("taskguard_entry", "gone_at", "namespace, key"),
            ("taskguard_receipt", "until", "namespace, key, owner"),
        ):
            db.execute(
                f"DELETE FROM {table} WHERE ({identity}) IN"
                f" (SELECT {identity} FROM {table} WHERE {column} <= ? LIMIT {PURGE_AT_MOST})",
                (now,),
            )

    # -- transactions --------------------------------------------------------------------------------------------

    def _transaction(self, step: Callable[[sqlite3.Connection, int], Answer], begin: str = "BEGIN IMMEDIATE") -> Answer:
        return self._file.transaction(lambda db: step(db, self._clock()), begin=begin)

    def _log(self, step: Callable[[sqlite3.Connection, int], None]) -> None:
        """A transaction that need not survive a power cut: neither its writer nor others wait for the disk."""
        self._file.transaction(lambda db: step(db, self._clock()), synchronous="NORMAL")


def _kept(row: Sequence[Any]) -> Kept:
    values = list(row)
    values[8] = bool(values[8])
    values[15] = tuple(tuple(death) for death in json.loads(values[15]))
    return Kept(*values)


def _receipt(row: Sequence[Any]) -> Receipt:
    values = list(row)
    values[8] = bool(values[8])
    return Receipt(*values)


def _columns(entry: Kept) -> tuple[Any, ...]:
    return (
        entry.state,
        entry.owner,
        entry.attempt,
        entry.token,
        entry.since,
        entry.until,
        entry.keep,
        entry.starts,
        entry.took_over,
        entry.payload,
        entry.copy,
        entry.copies,
        entry.copy_until,
        entry.held_until,
        entry.requeued_by,
        json.dumps(entry.deaths),
        entry.how,
        entry.outcome,
        entry.label,
        entry.where,
        entry.gone_at,
    )
