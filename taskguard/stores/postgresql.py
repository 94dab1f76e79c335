"""Entries in PostgreSQL 12 and later, in a schema of their own.

The functions in `postgresql.sql`, beside this file, carry out the rules of a key in the server; this module calls them.
A verb is one message and one transaction and leaves nothing behind in the session, so it works through a pooler that
lends a session for one transaction only (PgBouncer).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from importlib.resources import files
from itertools import count
from math import inf
from typing import Any
from urllib.parse import unquote

import psycopg
from psycopg import errors

from taskguard.errors import ConfigurationError, StoreError, StoreUnavailableError
from taskguard.protocol.names import check_namespace
from taskguard.protocol.store import (
    MICROS,
    Claim,
    Claimant,
    Completed,
    Ending,
    Entry,
    Guarantees,
    Held,
    Lease,
    micros,
    token_of,
)
from taskguard.runtime import native
from taskguard.runtime.forks import Forked, watch_forks
from taskguard.stores import safe_url
from taskguard.stores.histories.postgresql import PostgresHistory
from taskguard.stores.postgresql_wire import Connection, connect, explained, options_of
from taskguard.stores.turns import Turns

CONNECTIONS = 10
"""The most connections that a store opens in one process for all verbs but renew."""
PURGE_EVERY = 64
"""Claims between two purges."""
PURGE_AT_MOST = 500
"""The most rows removed in one purge, so that nobody waits long for it."""
SCAN_PAGE = 100

_ASKED = [field.name for field in fields(Claim) if field.name != "meanwhile"]
_MISSING = (
    errors.InvalidSchemaName,
    errors.UndefinedTable,
    errors.UndefinedColumn,
    errors.UndefinedFunction,
    errors.UndefinedObject,
)


def from_url(url: str, *, namespace: str) -> PostgresStore:
    """`postgresql://user:password@host/database`; `?schema=` and `?timeout=seconds` are ours, the rest is libpq's."""
    address, _, query = url.partition("?")
    options = [option.partition("=") for option in query.split("&") if option]
    ours = {name: unquote(value) for name, _, value in options if name in ("schema", "timeout")}
    rest = "&".join("".join(option) for option in options if option[0] not in ours)
    try:
        timeout = float(ours.get("timeout", "5"))
    except ValueError:
        raise ConfigurationError("postgresql://…?timeout= must be a number of seconds") from None
    schema = ours.get("schema", "taskguard")
    return PostgresStore(f"{address}?{rest}", namespace=namespace, schema=schema, timeout=timeout)


class PostgresStore(Forked):
    """Three tables and one function per verb, created at first use. An entry is a row, and the row is the lock."""

    guarantees = Guarantees(
        survives_restart="yes",
        survives_failover="if configured",
        linearizable=True,
        clock="the server's",
        note="failover: synchronous_standby_names; an asynchronous standby may lack the last verbs, so two holders "
        "can overlap; their tokens still rise, and a fenced resource accepts only the newer holder's writes",
    )

    def __init__(
        self, url: str, *, namespace: str = "taskguard", schema: str = "taskguard", timeout: float = 5.0
    ) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
            raise ConfigurationError(f"schema must consist of lower-case letters, digits and _, not {schema!r}")
        if not 0 < timeout < inf:
            raise ConfigurationError(f"timeout must be a positive number of seconds, not {timeout!r}")
        check_namespace(namespace)
        self._name = f"PostgresStore({safe_url(url)!r}, namespace={namespace!r}, schema={schema!r})"
        self._options = options_of(url)
        self._namespace = namespace
        self._schema = schema
        self._timeout = timeout
        # Set per transaction, whatever the default of the database or role is. Only in this isolation level does a
        # claim that waited for a complete see its receipt. And a verb that we gave up must not run much later.
        bounded = f"SET LOCAL statement_timeout = {max(1, round(timeout * 1000))}; "
        self._to_look = f"SET TRANSACTION ISOLATION LEVEL READ COMMITTED; {bounded}"
        """For statements that a standby can run too."""
        self._to_write = f"SET TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE; {bounded}"
        self._has_answered = False
        """A server that answered once has a name: if the name no longer resolves, that will pass."""
        self._inherited: list[Connection] = []
        self._open()
        self.history = PostgresHistory(self._add_history, self._read_history, f'"{schema}".history')
        watch_forks(self)

    def __repr__(self) -> str:
        return self._name

    # -- verbs ---------------------------------------------------------------------------------------------------

    def claim(self, claim: Claim, /) -> Lease | Held | Completed:
        durations = {name: micros(getattr(claim, name)) for name in ("lease", "keep_for", "copy_for")}
        asked = {name: getattr(claim, name) for name in _ASKED}
        row = self._call("claim_4", namespace=self._namespace, **asked | durations)
        if next(self._claims) % PURGE_EVERY == 0:
            # The claim has its answer, even if the purge fails.
            with suppress(StoreError):
                self._call("purge_1", at_most=PURGE_AT_MOST)
        return _answer(claim.key, row)

    def renew(self, leases: Sequence[tuple[Lease, float]], /) -> list[bool]:
        if not leases:
            return []
        row = self._call(
            "renew_1",
            self._renewing,
            namespace=self._namespace,
            keys=[lease.key for lease, _ in leases],
            owners=[lease.owner for lease, _ in leases],
            attempts=[lease.attempt for lease, _ in leases],
            tokens=[lease.token for lease, _ in leases],
            periods=[micros(seconds) for _, seconds in leases],
        )
        return list(row.renew_1)

    def requeue(
        self, claimant: Claimant, seconds: float, /, *, copy_for: float, keep_starts: bool = False, copy: str = ""
    ) -> bool:
        how = {"period": micros(seconds), "copy_for": micros(copy_for), "keep_starts": keep_starts, "copy": copy}
        return bool(self._call("requeue_2", **self._who(claimant), **how).requeue_2)

    def mark(self, published: Sequence[tuple[Claimant, float]], /, *, copy_for: float) -> list[bool]:
        if not published:
            return []
        row = self._call(
            "mark_2",
            namespace=self._namespace,
            keys=[claimant.key for claimant, _ in published],
            owners=[claimant.owner for claimant, _ in published],
            attempts=[claimant.attempt for claimant, _ in published],
            tokens=[token_of(claimant) for claimant, _ in published],
            periods=[micros(seconds) for _, seconds in published],
            copy_for=micros(copy_for),
        )
        return list(row.mark_2)

    def complete(self, claimant: Claimant, ending: Ending, /) -> bool:
        return self._end(claimant, ending, state="done", anyway=False)

    def release(self, claimant: Claimant, ending: Ending, /, *, anyway: bool = False) -> bool:
        return self._end(claimant, ending, state="free", anyway=anyway)

    def get(self, key: str, /) -> Entry | None:
        rows = self._look("key = %(key)s", key)
        return rows[0] if rows else None

    def scan(self, prefix: str = "", /) -> Iterator[Entry]:
        # Keys are ordered by their bytes: keys with one prefix are adjacent.
        rows = self._look("key >= %(key)s", prefix)
        while rows:
            for entry in rows:
                if not entry.key.startswith(prefix):
                    return
                yield entry
            rows = self._look("key > %(key)s", rows[-1].key)

    def forget(self, key: str, /, token: int = 0) -> bool:
        return bool(self._call("forget_1", namespace=self._namespace, key=key, token=token).forget_1)

    def close(self) -> None:
        idle = self._idle + self._renewing
        self._open()
        for connection in idle:
            connection.close()

    def make_ready(self) -> None:
        """Create what this release needs and is missing, also in a schema that an older release created."""
        try:
            self._create(None)
        except psycopg.Error as error:
            raise explained(error, self._name, self._schema) from error

    def setting(self, name: str) -> str:
        """The server's own setting *name*, for diagnosis."""
        [row] = self._see("SELECT current_setting(%(name)s) AS value", {"name": name})
        return str(row.value)

    def standbys(self) -> int:
        """How many servers replicate from this one, for diagnosis."""
        # A role without further permissions still sees how many there are. A process that only reads the log, for an
        # archive or a backup, is not a server to fail over to.
        [row] = self._see(
            "SELECT count(*) AS number FROM pg_stat_replication"
            " WHERE coalesce(application_name, '') NOT IN ('pg_receivewal', 'pg_basebackup')",
            {},
        )
        return int(row.number)

    # -- calls ---------------------------------------------------------------------------------------------------

    def _who(self, claimant: Claimant) -> dict[str, Any]:
        return {
            "namespace": self._namespace,
            "key": claimant.key,
            "owner": claimant.owner,
            "attempt": claimant.attempt,
            "token": token_of(claimant),
        }

    def _end(self, claimant: Claimant, ending: Ending, **how: Any) -> bool:
        durations = {name: micros(getattr(ending, name)) for name in ("keep_for", "linger", "repeat_for")}
        how |= asdict(ending) | durations
        return bool(self._call("end_2", **self._who(claimant), **how).end_2)

    def _call(self, function: str, idle: list[Connection] | None = None, /, **arguments: Any) -> Any:
        named = ", ".join(f"_{name} => %({name})s" for name in arguments)
        [row] = self._ask(f'SELECT * FROM "{self._schema}".{function}({named})', arguments, idle)
        return row

    def _look(self, which: str, key: str) -> list[Entry]:
        rows = self._see(
            "SELECT key, state, owner, attempt, token, since, until - now AS remaining, starts, copies, payload, how,"
            ' outcome, deaths, label, whereabouts AS "where"'
            f' FROM "{self._schema}".entry, "{self._schema}".now_1() AS now'
            f" WHERE namespace = %(namespace)s AND {which} AND gone_at > now ORDER BY key LIMIT {SCAN_PAGE}",
            {"namespace": self._namespace, "key": key},
        )
        return [_entry(row) for row in rows]

    def _add_history(self, function: str, **arguments: Any) -> None:
        self._call(function, self._renewing, namespace=self._namespace, **arguments)

    def _read_history(self, query: str, arguments: dict[str, Any]) -> list[Any]:
        return self._see(query, {"namespace": self._namespace, **arguments})

    def _see(self, query: str, arguments: dict[str, Any]) -> list[Any]:
        return self._ask(query, arguments, preamble=self._to_look)

    def _ask(
        self,
        query: str,
        arguments: dict[str, Any],
        idle: list[Connection] | None = None,
        *,
        preamble: str = "",
    ) -> list[Any]:
        asked = (preamble or self._to_write) + query
        try:
            try:
                return self._send(asked, arguments, idle)
            except _MISSING:
                # The first use, or somebody dropped the schema. Nothing was done, so a retry is safe.
                self._create(idle)
                return self._send(asked, arguments, idle)
        except (psycopg.Error, UnicodeError) as error:
            raise explained(error, self._name, self._schema) from error

    def _create(self, idle: list[Connection] | None) -> None:
        self._send(self._to_write + self._creation(), None, idle)

    def _creation(self) -> str:
        text = files(__package__).joinpath("postgresql.sql").read_text("utf-8")
        return re.sub(r"\btaskguard\b", f'"{self._schema}"', text)

    def _send(self, query: str, arguments: dict[str, Any] | None, idle: list[Connection] | None) -> list[Any]:
        deadline = time.monotonic() + self._timeout
        turn = native.allocate_lock()
        with turn:
            if idle is None:
                idle = self._idle
                if not self._turns.wait(turn, deadline):
                    text = f"all {CONNECTIONS} connections were busy for {self._timeout:g} s"
                    raise StoreUnavailableError(self._name, text)
            connection = self._taken(idle, deadline)
            try:
                connection.deadline = deadline
                cursor = connection.execute(query, arguments)
                while cursor.nextset():
                    pass
                rows = cursor.fetchall() if cursor.description else []
            except BaseException:
                connection.close()
                raise
            # Reused only if nothing was raised while it was in use.
            idle.append(connection)
            self._has_answered = True
        return rows

    # -- connections ---------------------------------------------------------------------------------------------
    # A pool of our own: psycopg_pool has threads, which a fork loses and gevent turns into greenlets. These lists need
    # no lock, so greenlets can share them with the operating system thread that renews.

    def _open(self) -> None:
        self._idle: list[Connection] = []
        self._renewing: list[Connection] = []
        self._turns = Turns(CONNECTIONS)
        self._claims = count()

    def after_fork(self) -> None:
        # Keep the parent's connections and do not touch them: closing one here would end the parent's session.
        self._inherited += self._idle + self._renewing
        self._open()

    def _taken(self, idle: list[Connection], deadline: float) -> Connection:
        with suppress(IndexError):
            connection = idle.pop()
            if not connection.is_over():
                return connection
            connection.close()
        return connect(self._options, deadline, self._name, has_answered=self._has_answered)


def _entry(row: Any) -> Entry:
    facts = row._asdict()
    unended = tuple((owner, payload) for owner, _, payload in facts.pop("deaths"))
    return Entry(**facts | {"since": row.since / MICROS, "remaining": row.remaining / MICROS, "unended": unended})


def _answer(key: str, row: Any) -> Lease | Held | Completed:
    if row.answer == "lease":
        counts = {"starts": row.starts, "took_over": row.took_over}
        return Lease(key, row.owner, row.attempt, token=row.token, state=row.state, **counts)
    if row.answer == "held":
        return Held(
            key,
            row.owner,
            row.attempt,
            token=row.token,
            state=row.state,
            since=row.since / MICROS,
            remaining=row.remaining / MICROS,
            payload=row.payload,
            publish=row.publish,
            stamp=row.stamp,
        )
    return Completed(
        key=key,
        owner=row.owner,
        how=row.how,
        token=row.token,
        at=row.since / MICROS,
        outcome=row.outcome,
        twin=row.twin,
        answered=row.answered,
        payload=row.payload,
    )
