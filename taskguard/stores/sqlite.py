"""Entries in one SQLite file: many processes on one host, no server. Not for a network file system.

Every verb loads what is known of its key, applies `taskguard.rules` and saves the step, in one write transaction.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from taskguard import native
from taskguard.errors import ConfigurationError, StoreError, StoreUnavailableError
from taskguard.forks import renew_after_fork
from taskguard.rules import Kept, Receipt, Rules, Step, seen
from taskguard.store import Claim, Claimant, Completed, Ending, Entry, Guarantees, Held, Lease
from taskguard.stores.memory import wall_clock

Answer = TypeVar("Answer")

PURGE_EVERY = 64
"""Claims between two looks for what is over."""
PURGE_AT_MOST = 500
"""Rows removed in one look, so that no verb waits long behind it."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS taskguard_entry (
    namespace TEXT NOT NULL, key TEXT NOT NULL,
    state TEXT NOT NULL, owner TEXT NOT NULL, attempt TEXT NOT NULL, token INTEGER NOT NULL,
    since INTEGER NOT NULL, until INTEGER NOT NULL, keep INTEGER NOT NULL, starts INTEGER NOT NULL,
    took_over INTEGER NOT NULL, payload TEXT NOT NULL,
    copy TEXT NOT NULL, copies INTEGER NOT NULL, copy_until INTEGER NOT NULL, held_until INTEGER NOT NULL,
    requeued_by TEXT NOT NULL, deaths TEXT NOT NULL, how TEXT, outcome BLOB, gone_at INTEGER NOT NULL,
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
_ENTRY = (
    "state, owner, attempt, token, since, until, keep, starts, took_over, payload, "
    "copy, copies, copy_until, held_until, requeued_by, deaths, how, outcome"
)
_RECEIPT = "owner, attempt, how, token, at, until, outcome, twin, answered"
_GET_ENTRY = f"SELECT {_ENTRY} FROM taskguard_entry WHERE namespace = ? AND key = ? AND gone_at > ?"
_PUT_ENTRY = (
    f"INSERT OR REPLACE INTO taskguard_entry (namespace, key, {_ENTRY}, gone_at) VALUES ({', '.join('?' * 21)})"
)
_GET_RECEIPT = f"SELECT {_RECEIPT} FROM taskguard_receipt WHERE namespace = ? AND key = ? AND owner = ? AND until > ?"
_PUT_RECEIPT = f"INSERT OR REPLACE INTO taskguard_receipt (namespace, key, {_RECEIPT}) VALUES ({', '.join('?' * 11)})"


def from_url(url: str, *, namespace: str) -> SQLiteStore:
    """`sqlite:///relative.db` or `sqlite:////absolute.db`, with `?timeout=seconds` at will."""
    parts = urlsplit(url)
    options = parse_qs(parts.query, keep_blank_values=True)
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc or not path or path == ":memory:":
        raise ConfigurationError(
            f"{url} names no file; write sqlite:///relative.db or sqlite:////absolute.db (or memory:// to keep nothing)"
        )
    unknown = sorted(set(options) - {"timeout"})
    if unknown:
        raise ConfigurationError(f"sqlite:// has no option {unknown[0]!r}; it has: timeout")
    try:
        timeout = float(options.get("timeout", ["5"])[-1])
    except ValueError:
        raise ConfigurationError("sqlite://…?timeout= takes a number of seconds") from None
    return SQLiteStore(path, namespace=namespace, timeout=timeout)


class SQLiteStore:
    """A file that every process of this host can open. Survives a power cut: each verb is synced to disk."""

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
        self._path = str(Path(path).absolute())
        self._namespace = namespace
        self._timeout = timeout
        self._clock = clock
        self._rules = rules or Rules()
        self._lock = native.allocate_lock()
        self._opened: tuple[sqlite3.Connection, object] | None = None
        self._abandoned: list[object] = []
        self._until_purge = 1
        renew_after_fork(self)

    def __repr__(self) -> str:
        return f"SQLiteStore({self._path!r}, namespace={self._namespace!r})"

    # -- verbs ---------------------------------------------------------------------------------------------------

    def claim(self, claim: Claim, /) -> Lease | Held | Completed:
        with self._transaction() as (db, now):
            self._purge_at_times(db, now)
            own = self._receipt(db, claim.key, claim.owner, now)
            twin = self._receipt(db, claim.key, claim.join, now) if claim.join else None
            step = self._rules.claim(claim, self._entry(db, claim.key, now), own, twin, now)
            return self._save(db, claim.key, step)

    def renew(self, leases: Sequence[tuple[Lease, float]], /) -> list[bool]:
        with self._transaction() as (db, now):
            return [
                self._save(db, lease.key, self._rules.renew(lease, seconds, self._entry(db, lease.key, now), now))
                for lease, seconds in leases
            ]

    def requeue(
        self, claimant: Claimant, seconds: float, /, *, copy: str = "", copy_for: float, keep_starts: bool = False
    ) -> bool:
        with self._transaction() as (db, now):
            entry = self._entry(db, claimant.key, now)
            step = self._rules.requeue(
                claimant, seconds, entry, now, copy=copy, copy_for=copy_for, keep_starts=keep_starts
            )
            return self._save(db, claimant.key, step)

    def complete(self, claimant: Claimant, ending: Ending, /) -> bool:
        with self._transaction() as (db, now):
            own = self._receipt(db, claimant.key, claimant.owner, now)
            entry = self._entry(db, claimant.key, now)
            return self._save(db, claimant.key, self._rules.complete(claimant, ending, entry, own, now))

    def release(self, claimant: Claimant, ending: Ending, /, *, anyway: bool = False) -> bool:
        with self._transaction() as (db, now):
            own = self._receipt(db, claimant.key, claimant.owner, now)
            entry = self._entry(db, claimant.key, now)
            step = self._rules.release(claimant, ending, entry, own, now, anyway=anyway)
            return self._save(db, claimant.key, step)

    def get(self, key: str, /) -> Entry | None:
        with self._reading() as db:
            now = self._clock()
            entry = self._entry(db, key, now)
            return seen(key, entry, now) if entry else None

    def scan(self, prefix: str = "", /) -> Iterator[Entry]:
        after = ""
        while True:
            with self._reading() as db:
                now = self._clock()
                rows = db.execute(
                    f"SELECT key, {_ENTRY} FROM taskguard_entry"
                    " WHERE namespace = ? AND key > ? AND substr(key, 1, ?) = ? AND gone_at > ? ORDER BY key LIMIT 500",
                    (self._namespace, after, len(prefix), prefix, now),
                ).fetchall()
            if not rows:
                return
            for key, *columns in rows:
                yield seen(key, _kept(columns), now)
            after = rows[-1][0]

    def forget(self, key: str, /, token: int = 0) -> bool:
        with self._transaction() as (db, now):
            return self._save(db, key, self._rules.forget(self._entry(db, key, now), token, now))

    def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened[0].close()
                self._opened = None

    # -- rows ----------------------------------------------------------------------------------------------------

    def _entry(self, db: sqlite3.Connection, key: str, now: int) -> Kept | None:
        row = db.execute(_GET_ENTRY, (self._namespace, key, now)).fetchone()
        return _kept(row) if row else None

    def _receipt(self, db: sqlite3.Connection, key: str, owner: str, now: int) -> Receipt | None:
        row = db.execute(_GET_RECEIPT, (self._namespace, key, owner, now)).fetchone()
        return _receipt(row) if row else None

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

    # -- connections ---------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[tuple[sqlite3.Connection, int]]:
        with self._reading() as db:
            # IMMEDIATE: the write lock is taken before anything is read, so nobody can slip in between.
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db, self._clock()
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        # One connection for all threads: SQLite has one writer at a time anyway.
        with self._lock:
            try:
                yield self._connection()
            except sqlite3.OperationalError as error:
                raise StoreUnavailableError(repr(self), _explained(error, self._path)) from error
            except sqlite3.DatabaseError as error:
                raise StoreError(repr(self), _explained(error, self._path)) from error

    def _connection(self) -> sqlite3.Connection:
        """The connection to the file that has our name now.

        A file that was deleted under an open connection would be written on by nobody but us while others start a new
        one: two stores, two holders.
        """
        if self._opened is not None:
            connection, file = self._opened
            if file == _identity(self._path):
                return connection
            self._opened = None
            connection.close()
        connection = self._open()
        self._opened = connection, _identity(self._path)
        return connection

    def _open(self) -> sqlite3.Connection:
        if not os.path.isdir(os.path.dirname(self._path)):
            raise StoreError(repr(self), "the directory of the file does not exist: create it, or name another")
        connection = sqlite3.connect(self._path, timeout=self._timeout, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        give_up = time.monotonic() + self._timeout
        while True:
            try:
                # To become a WAL file it must be nobody else's for a moment, and for that SQLite does not wait.
                connection.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.005)
        connection.execute("PRAGMA synchronous=FULL")
        connection.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}COMMIT;")

    def after_fork(self) -> None:
        # SQLite forbids a connection to cross a fork, even to be closed there: the parent's is kept, and not used.
        self._abandoned.append(self._opened)
        self._opened = None
        self._lock = native.allocate_lock()


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _kept(row: Sequence[Any]) -> Kept:
    values = list(row)
    values[8] = bool(values[8])
    values[15] = tuple((owner, starts) for owner, starts in json.loads(values[15]))
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
        entry.gone_at,
    )


def _explained(error: sqlite3.Error, path: str) -> str:
    text = str(error)
    if "locked" in text:
        return f"{text}: other processes kept the file busy; ask again, or give ?timeout= more seconds"
    if "not a database" in text or "malformed" in text:
        return f"{text}: {path} is damaged or not ours; nothing was changed. Move it away and a new one is made"
    return text
