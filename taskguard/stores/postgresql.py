"""Entries in PostgreSQL 12 and later, in a schema of their own.

The rules of a key are carried out in the server, by the functions in `postgresql.sql` beside this file; here is how
they are called. A verb is one message and one transaction and leaves nothing behind in the session, so a pooler that
lends a session for one transaction only (PgBouncer) may stand between.
"""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from importlib.resources import files
from itertools import count
from math import ceil, inf
from typing import Any, TypeVar
from urllib.parse import unquote

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import namedtuple_row

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
from taskguard.stores.turns import Turns

Value = TypeVar("Value")

CONNECTIONS = 10
"""The most that a store opens in one process for all verbs but renew."""
PURGE_EVERY = 64
"""Claims between two looks for what is over."""
PURGE_AT_MOST = 500
"""Rows removed in one look, so that nobody waits long behind it."""
SCAN_PAGE = 100

_ASKED = [field.name for field in fields(Claim) if field.name != "meanwhile"]
_MISSING = (
    errors.InvalidSchemaName,
    errors.UndefinedTable,
    errors.UndefinedColumn,
    errors.UndefinedFunction,
    errors.UndefinedObject,
)
_PASSING = ("08", "40", "53", "57", "58", "25006", "55P03")
"""How the SQLSTATE begins when a server cannot serve us now and may later: connection lost, rolled back, out of
resources, shut down or cancelled, disk trouble, read-only (a standby), not locked in time."""
_REFUSED = re.compile(
    "authentication|password|pg_hba|does not exist|no such (user|database)|permitted to log in|support|certif"
)
"""What is said by a server that will not let us in later either. (A failed connection has no SQLSTATE.)"""
_UNKNOWN_HOST = re.compile(
    rf"\[Errno ({socket.EAI_NONAME}|{getattr(socket, 'EAI_NODATA', socket.EAI_NONAME)})\]"
    "|Name or service not known|nodename nor servname|No address associated"
)
"""What is said of a name that nobody has, by Python's resolver or by libpq."""


def from_url(url: str, *, namespace: str) -> PostgresStore:
    """`postgresql://user:password@host/database`; `?schema=` and `?timeout=seconds` are ours, the rest is libpq's."""
    address, _, query = url.partition("?")
    options = [option.partition("=") for option in query.split("&") if option]
    ours = {name: unquote(value) for name, _, value in options if name in ("schema", "timeout")}
    rest = "&".join("".join(option) for option in options if option[0] not in ours)
    try:
        timeout = float(ours.get("timeout", "5"))
    except ValueError:
        raise ConfigurationError("postgresql://…?timeout= takes a number of seconds") from None
    schema = ours.get("schema", "taskguard")
    return PostgresStore(f"{address}?{rest}", namespace=namespace, schema=schema, timeout=timeout)


class PostgresStore(Forked):
    """Two tables and a function for each verb, made at first use. An entry is a row, and the row is the lock."""

    guarantees = Guarantees(
        survives_restart="yes",
        survives_failover="if configured",
        linearizable=True,
        clock="the server's",
        note="failover: synchronous_standby_names; an asynchronous standby may lack the last verbs, so two holders "
        "can overlap; their tokens still rise, and the fence decides",
    )

    def __init__(
        self, url: str, *, namespace: str = "taskguard", schema: str = "taskguard", timeout: float = 5.0
    ) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
            raise ConfigurationError(f"schema={schema!r} cannot be used; it takes lower-case letters, digits and _")
        if not 0 < timeout < inf:
            raise ConfigurationError(f"timeout={timeout!r} cannot be used; it takes a positive number of seconds")
        check_namespace(namespace)
        self._name = f"PostgresStore({safe_url(url)!r}, namespace={namespace!r}, schema={schema!r})"
        self._server = _server(url)
        self._namespace = namespace
        self._schema = schema
        self._timeout = timeout
        # For one transaction, and whatever the database or the role has as its default: in no other isolation level
        # does a claim that waited for a complete see its receipt, and what we gave up must not be done much later.
        bounded = f"SET LOCAL statement_timeout = {max(1, round(timeout * 1000))}; "
        self._to_look = f"SET TRANSACTION ISOLATION LEVEL READ COMMITTED; {bounded}"
        """What can be done on a standby too."""
        self._to_write = f"SET TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE; {bounded}"
        self._has_answered = False
        """A server that answered once has a name: if it does not resolve any more, that will pass."""
        self._inherited: list[_Connection] = []
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
            # The claim has its answer, whatever becomes of the tidying.
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
        # Keys are ordered by their bytes: those that begin alike follow each other.
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
        """Create what this release needs and does not find, also in a schema that an older one has made."""
        try:
            self._create(None)
        except psycopg.Error as error:
            raise self._explained(error) from error

    def setting(self, name: str) -> str:
        """What the server's own setting *name* is: for whoever looks after the server."""
        [row] = self._see("SELECT current_setting(%(name)s) AS value", {"name": name})
        return str(row.value)

    def standbys(self) -> int:
        """How many servers follow this one: for whoever looks after it."""
        # A role that may not see more of them is still told that they are there. What reads the log alone, for an
        # archive or a backup, is nothing to fail over to.
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

    def _call(self, function: str, idle: list[_Connection] | None = None, /, **arguments: Any) -> Any:
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
        idle: list[_Connection] | None = None,
        *,
        preamble: str = "",
    ) -> list[Any]:
        asked = (preamble or self._to_write) + query
        try:
            try:
                return self._send(asked, arguments, idle)
            except _MISSING:
                # The first use, or somebody dropped it. Nothing was done, so asking again is safe.
                self._create(idle)
                return self._send(asked, arguments, idle)
        except (psycopg.Error, UnicodeError) as error:
            raise self._explained(error) from error

    def _create(self, idle: list[_Connection] | None) -> None:
        self._send(self._to_write + self._creation(), None, idle)

    def _creation(self) -> str:
        text = files(__package__).joinpath("postgresql.sql").read_text("utf-8")
        return re.sub(r"\btaskguard\b", f'"{self._schema}"', text)

    def _send(self, query: str, arguments: dict[str, Any] | None, idle: list[_Connection] | None) -> list[Any]:
        deadline = time.monotonic() + self._timeout
        turn = native.allocate_lock()
        with turn:
            if idle is None:
                idle = self._idle
                if not self._turns.wait(turn, deadline):
                    text = f"{CONNECTIONS} connections were busy for {self._timeout:g} s"
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
            # Used again only if nothing at all was raised while it was in use.
            idle.append(connection)
            self._has_answered = True
        return rows

    def _explained(self, error: psycopg.Error | UnicodeError) -> StoreError:
        state, text = "", str(error).partition("\n")[0]
        if isinstance(error, psycopg.Error):
            state, text = error.sqlstate or "", error.diag.message_primary or text
        lost = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) and not state
        if lost or state.startswith(_PASSING) or _is_of_a_standby(error):
            return StoreUnavailableError(self._name, text)
        if state == "42501":
            text += (
                "; let an administrator run taskguard/stores/postgresql.sql, and to the role of this URL"
                f" GRANT USAGE ON SCHEMA {self._schema}, GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {self._schema} and"
                f" GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {self._schema}"
            )
        elif state.startswith("42"):
            text += (
                f"; schema {self._schema} is not as taskguard/stores/postgresql.sql makes it: name another with"
                " ?schema=, or rename it (ALTER SCHEMA … RENAME TO …) and a new one is made"
            )
        return StoreError(self._name, text)

    # -- connections ---------------------------------------------------------------------------------------------
    # A pool of our own: psycopg_pool has threads, which a fork loses and gevent turns into greenlets. These lists need
    # no lock, so that greenlets can share them with the thread of the operating system that renews.

    def _open(self) -> None:
        self._idle: list[_Connection] = []
        self._renewing: list[_Connection] = []
        self._turns = Turns(CONNECTIONS)
        self._claims = count()

    def after_fork(self) -> None:
        # The parent's connections are kept and not touched: to close one here would be to say goodbye for the parent.
        self._inherited += self._idle + self._renewing
        self._open()

    def _taken(self, idle: list[_Connection], deadline: float) -> _Connection:
        with suppress(IndexError):
            connection = idle.pop()
            if not connection.is_over():
                return connection
            connection.close()
        return self._connected(deadline)

    def _connected(self, deadline: float) -> _Connection:
        # libpq counts whole seconds, and two at least.
        options = {"connect_timeout": max(2, ceil(deadline - time.monotonic()))} | self._server
        try:
            return _Connection.connect(
                autocommit=True,
                prepare_threshold=None,
                cursor_factory=psycopg.ClientCursor,
                row_factory=namedtuple_row,
                **options,
            )
        except psycopg.Error as error:
            # Without its cause: where a URL was misread, the host it names may be a piece of the password.
            raise self._refusal(error) from None

    def _refusal(self, error: psycopg.Error) -> StoreError:
        if isinstance(error, errors.ConnectionTimeout):
            return StoreUnavailableError(self._name, "could not connect: no answer in time")
        # Of "connection to server at … failed: FATAL:  password authentication failed …" only the reason.
        text = str(error)
        if _UNKNOWN_HOST.search(text):
            if self._has_answered:
                return StoreUnavailableError(self._name, "could not connect: its host is not known any more")
            return StoreError(self._name, "its host is not known: check the URL")
        _, found, reason = text.rpartition("failed: ")
        if not found:
            is_resolver = "resolve host" in text or text.startswith("[Errno")
            reason = "the name of its host cannot be resolved now" if is_resolver else "no reason was given"
        reason = reason.partition("\n")[0].removeprefix("FATAL:").strip()
        if _REFUSED.search(reason):
            return StoreError(self._name, f"{reason}; check the URL, and pg_hba.conf of the server")
        return StoreUnavailableError(self._name, f"could not connect: {reason}")


class _Connection(psycopg.Connection[Any]):
    """A connection on which no reply is waited for longer than `deadline`, whatever became of server and network."""

    deadline: float

    def wait(self, gen: Generator[Any, Any, Value], *args: Any, **kwargs: Any) -> Value:
        # psycopg waits here for every reply, itself without end. What it wants and is told are selectors' own numbers.
        try:
            wanted = next(gen)
            with selectors.DefaultSelector() as selector:
                selector.register(self.fileno(), wanted)
                while True:
                    ready = selector.select(max(0.0, self.deadline - time.monotonic()))
                    if not ready and time.monotonic() >= self.deadline:
                        raise psycopg.OperationalError("no answer in time")
                    wanted = gen.send(ready[0][1] if ready else 0)
                    selector.modify(self.fileno(), wanted)
        except StopIteration as end:
            value: Value = end.value
            return value

    def is_over(self) -> bool:
        """Whether the other side hung up since the last verb. Asks nobody."""
        try:
            self.pgconn.consume_input()  # its last words
            self.pgconn.consume_input()  # the end
        except psycopg.OperationalError:
            return True
        return False


def _is_of_a_standby(error: psycopg.Error | UnicodeError) -> bool:
    """Whether READ WRITE was refused, as a server does that follows another one: it may be promoted."""
    # Its SQLSTATE means any "not supported", and its text is in the server's language. Where in the server it was said
    # is in none: where a switch is set, and that is the only one that we set.
    return isinstance(error, errors.FeatureNotSupported) and error.diag.source_function == "call_bool_check_hook"


def _server(url: str) -> dict[str, Any]:
    """What libpq is told: what the URL says before what we suggest."""
    try:
        said = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        # libpq quotes what it cannot read, be it the password. Only the name of an option is safe to show.
        option = re.search(r'invalid URI query parameter: "(\w+)"', str(error))
        problem = f"has an option that libpq does not know, {option[1]}" if option else "cannot be read by libpq"
        raise ConfigurationError(
            f"{safe_url(url)} {problem}; write postgresql://user:password@host:port/database, "
            "and inside each part %40 for @, %2F for /, %3A for :"
        ) from None
    # An idle connection stays known to the firewalls on its way.
    return {"client_encoding": "utf8", "fallback_application_name": "taskguard", "keepalives_idle": 30} | said


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
