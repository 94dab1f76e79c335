"""Entries in PostgreSQL 12 or newer, in a schema of their own: many hosts, durable, no further server.

The rules are carried out in the server, by the functions of `postgresql.sql` beside this file; here is how they are
called. Every verb is one message and one transaction, and leaves nothing behind in the session, so a pooler that hands
each transaction another session (PgBouncer) may stand between.
"""

from __future__ import annotations

import re
import selectors
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from itertools import count
from math import ceil, inf
from queue import Empty, LifoQueue
from time import monotonic
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import namedtuple_row

from taskguard.errors import ConfigurationError, StoreError, StoreUnavailableError
from taskguard.forks import renew_after_fork
from taskguard.rules import MICROS, micros, token_of
from taskguard.store import Claim, Claimant, Completed, Ending, Entry, Guarantees, Held, Lease
from taskguard.stores import safe_url

Value = TypeVar("Value")

CONNECTIONS = 10
"""The most that one store opens in one process, besides the one that renews."""
PURGE_EVERY = 64
"""Claims between two looks for what is over."""
PURGE_AT_MOST = 500
"""Rows removed in one look, so that nobody waits long behind it."""
PAGE = 100
"""Entries that a scan reads at once."""


def from_url(url: str, *, namespace: str) -> PostgresStore:
    """`postgresql://user:password@host/database`; `?schema=` and `?timeout=seconds` are ours, the rest is libpq's."""
    address, _, query = url.partition("?")
    options = [option.partition("=") for option in query.split("&") if option]
    ours = {name: unquote(value) for name, _, value in options if name in ("schema", "timeout")}
    theirs = "&".join("".join(option) for option in options if option[0] not in ours)
    try:
        timeout = float(ours.get("timeout", "5"))
    except ValueError:
        raise ConfigurationError("postgresql://…?timeout= takes a number of seconds") from None
    schema = ours.get("schema", "taskguard")
    return PostgresStore(f"{address}?{theirs}", namespace=namespace, schema=schema, timeout=timeout)


class PostgresStore:
    """Two tables and a handful of functions, made at first use. An entry is a row, and the row is the lock."""

    guarantees = Guarantees(
        survives_restart="yes",
        survives_failover="if configured",
        linearizable=True,
        clock="the server's",
        note="a failover keeps what its synchronous standbys have (synchronous_standby_names); an asynchronous one "
        "may lose the last verbs",
    )

    def __init__(
        self, url: str, *, namespace: str = "taskguard", schema: str = "taskguard", timeout: float = 5.0
    ) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
            raise ConfigurationError(f"schema={schema!r} cannot be used; give lower-case letters, digits and _")
        if not 0 < timeout < inf:
            raise ConfigurationError(f"timeout={timeout!r} cannot be used; give a positive number of seconds")
        self._name = f"PostgresStore({safe_url(url)!r}, namespace={namespace!r}, schema={schema!r})"
        self._server = _server(url)
        self._namespace = namespace
        self._schema = schema
        self._timeout = timeout
        # Whatever the server, the database or the role has set as a default, and for this transaction only: in no other
        # isolation level does a claim that waited behind a complete see the receipt, and a request that we gave up must
        # not be carried out much later.
        self._preamble = (
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; "
            f"SET LOCAL statement_timeout = {max(1, round(timeout * 1000))}; "
        )
        self._inherited: list[_Places] = []
        self._start()
        renew_after_fork(self)

    def __repr__(self) -> str:
        return self._name

    # -- verbs ---------------------------------------------------------------------------------------------------

    def claim(self, claim: Claim, /) -> Lease | Held | Completed:
        if next(self._claims) % PURGE_EVERY == 0:
            # Before the claim, whose answer must not be lost with it; and no claim fails for want of tidiness.
            with suppress(StoreError):
                self._call("purge_1", at_most=PURGE_AT_MOST)
        row = self._call(
            "claim_1",
            namespace=self._namespace,
            key=claim.key,
            owner=claim.owner,
            attempt=claim.attempt,
            state=claim.state,
            lease=micros(claim.lease),
            keep_for=micros(claim.keep_for),
            floor=claim.floor,
            reuse=claim.reuse,
            skip=claim.skip,
            join=claim.join,
            replace_queued=claim.replace_queued,
            payload=claim.payload,
            copy=claim.copy,
            copy_for=micros(claim.copy_for),
        )
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
        self, claimant: Claimant, seconds: float, /, *, copy: str = "", copy_for: float, keep_starts: bool = False
    ) -> bool:
        row = self._call(
            "requeue_1",
            **self._who(claimant),
            period=micros(seconds),
            copy=copy,
            copy_for=micros(copy_for),
            keep_starts=keep_starts,
        )
        return bool(row.requeue_1)

    def complete(self, claimant: Claimant, ending: Ending, /) -> bool:
        return self._end(claimant, "done", ending, anyway=False)

    def release(self, claimant: Claimant, ending: Ending, /, *, anyway: bool = False) -> bool:
        return self._end(claimant, "free", ending, anyway=anyway)

    def get(self, key: str, /) -> Entry | None:
        rows = self._look("key = %(key)s", key)
        return rows[0] if rows else None

    def scan(self, prefix: str = "", /) -> Iterator[Entry]:
        # By bytes, the keys that start so follow each other; nothing in the prefix means anything but itself.
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
        """Close every connection, each when the verb that uses it is done."""
        for places in (self._working, self._renewing):
            with suppress(Empty):
                for _ in range(places.maxsize):
                    connection = places.get(timeout=self._timeout)
                    if connection is not None:
                        connection.close()
        self._start()

    # -- calls ---------------------------------------------------------------------------------------------------

    def _who(self, claimant: Claimant) -> dict[str, Any]:
        return {
            "namespace": self._namespace,
            "key": claimant.key,
            "owner": claimant.owner,
            "attempt": claimant.attempt,
            "token": token_of(claimant),
        }

    def _end(self, claimant: Claimant, state: str, ending: Ending, *, anyway: bool) -> bool:
        row = self._call(
            "end_1",
            **self._who(claimant),
            state=state,
            anyway=anyway,
            how=ending.how,
            keep_for=micros(ending.keep_for),
            linger=micros(ending.linger),
            outcome=ending.outcome,
            answered=ending.answered,
        )
        return bool(row.end_1)

    def _call(self, function: str, places: _Places | None = None, /, **arguments: Any) -> Any:
        given = ", ".join(f"_{name} => %({name})s" for name in arguments)
        [row] = self._ask(f'SELECT * FROM "{self._schema}".{function}({given})', arguments, places)
        return row

    def _look(self, which: str, key: str) -> list[Entry]:
        rows = self._ask(
            "SELECT key, state, owner, attempt, token, since, until - now AS remaining, starts, copies, payload, how,"
            f' outcome FROM "{self._schema}".entry, "{self._schema}".now_1() AS now'
            f" WHERE namespace = %(namespace)s AND {which} AND gone_at > now ORDER BY key LIMIT {PAGE}",
            {"namespace": self._namespace, "key": key},
        )
        return [
            Entry(**row._asdict() | {"since": row.since / MICROS, "remaining": row.remaining / MICROS}) for row in rows
        ]

    def _ask(self, query: str, arguments: dict[str, Any], places: _Places | None = None) -> list[Any]:
        try:
            try:
                return self._run(query, arguments, places)
            except _MISSING:
                # The first use, or somebody dropped it. Nothing was done, so asking again is safe.
                self._run(self._creation(), None, places)
                return self._run(query, arguments, places)
        except (psycopg.Error, UnicodeError) as error:
            raise self._explained(error) from error

    def _creation(self) -> str:
        text = resources.files(__package__).joinpath("postgresql.sql").read_text("utf-8")
        return re.sub(r"\btaskguard\b(?!/)", f'"{self._schema}"', text)

    def _run(self, query: str, arguments: dict[str, Any] | None, places: _Places | None) -> list[Any]:
        with self._connection(self._working if places is None else places) as connection:
            cursor = connection.execute(self._preamble + query, arguments)
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    # -- connections ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        # A pool of our own: psycopg_pool has threads, which a fork loses, and would have to be told of every exception.
        self._working = _places(CONNECTIONS)
        # Renewal has a place to itself: work that keeps all the others busy must not cost a lease.
        self._renewing = _places(1)
        self._claims = count()

    def after_fork(self) -> None:
        # The parent's connections are not used and not closed here: that would end them for the parent.
        self._inherited += self._working, self._renewing
        self._start()

    @contextmanager
    def _connection(self, places: _Places) -> Iterator[_Connection]:
        """A connection that is given back as good only if nothing was raised while it was in use."""
        deadline = monotonic() + self._timeout
        try:
            connection = places.get(timeout=self._timeout)
        except Empty:
            problem = f"all {places.maxsize} connections were busy for {self._timeout:g} s"
            raise StoreUnavailableError(self._name, problem) from None
        try:
            if connection is not None and connection.has_spoken():
                connection.close()
                connection = None
            if connection is None:
                connection = self._connect(deadline)
            connection.deadline = deadline
            yield connection
        except BaseException:
            if connection is not None:
                connection.close()
                connection = None
            raise
        finally:
            places.put(connection)

    def _connect(self, deadline: float) -> _Connection:
        try:
            return _Connection.connect(
                autocommit=True,
                prepare_threshold=None,
                cursor_factory=psycopg.ClientCursor,
                row_factory=namedtuple_row,
                # libpq knows whole seconds, and two at least.
                **{"connect_timeout": max(2, ceil(deadline - monotonic()))} | self._server,
            )
        except psycopg.Error as error:
            # Without its cause: if the URL was misread, what it calls the host may be a piece of the password.
            raise _refused(self._name, error) from None

    def _explained(self, error: Exception) -> StoreError:
        state = (isinstance(error, psycopg.Error) and error.sqlstate) or ""
        text = (isinstance(error, psycopg.Error) and error.diag.message_primary) or str(error).partition("\n")[0]
        lost = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) and not state
        if lost or state in _PASSING or state[:2] in _PASSING:
            return StoreUnavailableError(self._name, text)
        if state == "42501":
            text += (
                "; let an administrator run taskguard/stores/postgresql.sql, and then"
                f" GRANT USAGE ON SCHEMA {self._schema} TO the role of this URL;"
                f" GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {self._schema} TO the same"
            )
        elif state[:2] == "42":
            text += (
                f"; schema {self._schema} is not as taskguard/stores/postgresql.sql makes it: name another one with"
                " ?schema=, or move this one away (ALTER SCHEMA … RENAME) and a new one is made"
            )
        return StoreError(self._name, text)


_MISSING = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName)
_PASSING = ("08", "40", "53", "57", "58", "25006", "55P03")
"""SQLSTATEs of a server that cannot be asked now: connection, rolled back, resources, shutdown or cancelled, disk,
read-only (a standby), not locked in time."""
_REFUSALS = ("authentication", "password", "pg_hba.conf", "does not exist", "no such", "not permitted", "certificate")


class _Connection(psycopg.Connection[Any]):
    """A connection on which nothing lasts longer than `deadline`, whatever becomes of the server or the network."""

    deadline = inf

    def wait(self, gen: Generator[Any, Any, Value], *args: Any, **kwargs: Any) -> Value:
        # Everything psycopg waits for goes through here; a socket on which nothing happens wakes it ten times a second.
        return super().wait(self._in_time(gen), *args, **kwargs)

    def _in_time(self, gen: Generator[Any, Any, Value]) -> Generator[Any, Any, Value]:
        try:
            waiting_for = next(gen)
            while True:
                ready = yield waiting_for
                if not ready and monotonic() > self.deadline:
                    raise psycopg.OperationalError("no answer in time")
                waiting_for = gen.send(ready)
        except StopIteration as end:
            value: Value = end.value
            return value

    def has_spoken(self) -> bool:
        """Whether there is something to read on an idle connection: its end, as a rule."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno(), selectors.EVENT_READ)
            return bool(selector.select(0))


_Places: TypeAlias = "LifoQueue[_Connection | None]"
"""So many connections can be open at once. The last one given back is the first one taken."""


def _places(number: int) -> _Places:
    places: _Places = LifoQueue(number)
    for _ in range(number):
        places.put(None)
    return places


def _server(url: str) -> dict[str, Any]:
    """What libpq is told; what the URL says goes before what we suggest."""
    try:
        said = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        # libpq's own words quote the URL, maybe the password. Only the name of an option is safe to show.
        unknown = re.search(r'invalid URI query parameter: "(\w+)"', str(error))
        problem = f"has an option {unknown[1]} that libpq does not know" if unknown else "cannot be read by libpq"
        raise ConfigurationError(
            f"{safe_url(url)} {problem}; write postgresql://user:password@host:port/database,"
            " with percent-encoding (%40 for @) inside each part"
        ) from None
    return {
        "client_encoding": "utf8",
        "fallback_application_name": "taskguard",
        # An idle connection stays known to the firewalls on its way.
        "keepalives_idle": 30,
        **said,
    }


def _refused(store: str, error: psycopg.Error) -> StoreError:
    if isinstance(error, psycopg.errors.ConnectionTimeout):
        return StoreUnavailableError(store, "no connection in time")
    # The last reason given: "connection to server at … failed: FATAL:  password authentication failed for user …"
    _, found, reason = str(error).rpartition("failed: ")
    if not found:
        return StoreUnavailableError(store, "could not connect: the name of the host cannot be resolved")
    reason = reason.partition("\n")[0].removeprefix("FATAL:").strip()
    if any(word in reason for word in _REFUSALS):
        return StoreError(
            store, f"{reason}; look at the user, the password and the database of the URL, and at the server's pg_hba.conf"
        )
    return StoreUnavailableError(store, f"could not connect: {reason}")


def _answer(key: str, row: Any) -> Lease | Held | Completed:
    if row.answer == "lease":
        return Lease(
            key,
            row.owner,
            row.attempt,
            token=row.token,
            state=row.state,
            starts=row.starts,
            took_over=row.took_over,
        )
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
