"""The highest token that each resource has seen, kept in a store of taskguard: one number that only rises.

An entry cannot be that number: whoever is granted a claim replaces what the entry said, without having seen it. So this
is a table of its own beside the entries, changed by one statement, through the connections that the store has.
"""

from __future__ import annotations

import hashlib
from itertools import count
from typing import Any, Protocol

from taskguard.errors import ConfigurationError, StoreError
from taskguard.protocol.store import MICROS, Store, micros
from taskguard.stores.atomic import AtomicDict

PURGE_EVERY = 64


class Marks(Protocol):
    """What a `Receiver` needs; for a store that is not among ours, give it one of your own."""

    def raise_to(self, resource: str, token: int, /) -> int:
        """Keep the higher one of *token* and the mark, in one atomic step, and answer with it."""


def marks_in(store: Store, keep_for: float) -> Marks:
    """The marks that are kept in *store*, each for *keep_for* seconds after it was last asked for."""
    kind = type(store).__name__
    if kind not in _KINDS:
        raise ConfigurationError(f"no marks can be kept in {store!r}; give marks= an object that has raise_to")
    marks: Marks = _KINDS[kind](store, micros(keep_for))
    return marks


class _MemoryMarks:
    def __init__(self, store: Any, keep: int) -> None:
        self._store, self._keep = store, keep
        self._calls = count(1)
        self._marks = AtomicDict()

    def raise_to(self, resource: str, token: int, /) -> int:
        now: int = self._store._clock()

        def step(changes: dict[str, tuple[int, int]]) -> int:
            mark: int = max(token, self._marks.items.get(resource, (0, 0))[0])
            changes[resource] = mark, now + self._keep
            return mark

        if next(self._calls) % PURGE_EVERY == 0:
            self._marks.purge(lambda kept: kept[1] <= now)
        return self._marks.step(step)


class _SQLiteMarks:
    def __init__(self, store: Any, keep: int) -> None:
        self._store, self._keep = store, keep
        self._calls = count()

    def raise_to(self, resource: str, token: int, /) -> int:
        which = (self._store._namespace, resource)

        def step(db: Any, now: int) -> int:
            db.execute(
                "CREATE TABLE IF NOT EXISTS taskguard_http_mark (namespace TEXT NOT NULL, resource TEXT NOT NULL,"
                " token INTEGER NOT NULL, until INTEGER NOT NULL, PRIMARY KEY (namespace, resource)) WITHOUT ROWID"
            )
            if next(self._calls) % PURGE_EVERY == 0:
                db.execute("DELETE FROM taskguard_http_mark WHERE until <= ?", (now,))
            db.execute(
                "INSERT INTO taskguard_http_mark VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE"
                " SET token = max(token, excluded.token), until = max(until, excluded.until)",
                (*which, token, now + self._keep),
            )
            query = "SELECT token FROM taskguard_http_mark WHERE namespace = ? AND resource = ?"
            return int(db.execute(query, which).fetchone()[0])

        return int(self._store._transaction(step))


class _Script:
    # KEYS  the mark        ARGV  token, milliseconds to keep it
    source = b"""
local mark = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), tonumber(ARGV[1]))
redis.call('SET', KEYS[1], string.format('%.0f', mark), 'PX', math.max(tonumber(ARGV[2]), redis.call('PTTL', KEYS[1])))
return mark
"""
    sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()


class _RedisMarks:
    def __init__(self, store: Any, keep: int) -> None:
        self._store, self._keep = store, max(1, keep // 1000)

    def raise_to(self, resource: str, token: int, /) -> int:
        key = f"{self._store._namespace}:http-mark:{resource}"
        return int(self._store.wire.call(_Script, [key], [token, self._keep]))


class _PostgresMarks:
    def __init__(self, store: Any, keep: int) -> None:
        self._store, self._keep = store, keep
        self._table = f'"{store._schema}".http_mark'
        self._calls = count(1)

    def raise_to(self, resource: str, token: int, /) -> int:
        facts = {"namespace": self._store._namespace, "resource": resource, "token": token, "keep": self._keep / MICROS}
        try:
            return self._upsert(facts)
        except StoreError as error:
            if getattr(error.__cause__, "sqlstate", "") != "42P01":
                raise
            # Made at first use. Two that make it at the same moment would fail on each other without the lock.
            self._store._ask(
                "SELECT pg_advisory_xact_lock(7203612470); "
                f"CREATE TABLE IF NOT EXISTS {self._table} (namespace text NOT NULL, resource text NOT NULL,"
                " token bigint NOT NULL, until timestamptz NOT NULL, PRIMARY KEY (namespace, resource))",
                {},
            )
            return self._upsert(facts)

    def _upsert(self, facts: dict[str, Any]) -> int:
        [row] = self._store._ask(
            f"INSERT INTO {self._table} AS mark VALUES (%(namespace)s, %(resource)s, %(token)s,"
            " clock_timestamp() + make_interval(secs => %(keep)s)) ON CONFLICT (namespace, resource) DO UPDATE"
            " SET token = greatest(mark.token, excluded.token), until = greatest(mark.until, excluded.until)"
            " RETURNING token",
            facts,
        )
        if next(self._calls) % PURGE_EVERY == 0:
            self._store._ask(f"DELETE FROM {self._table} WHERE until <= clock_timestamp()", {})
        return int(row.token)


_KINDS: dict[str, Any] = {
    "MemoryStore": _MemoryMarks,
    "SQLiteStore": _SQLiteMarks,
    "RedisStore": _RedisMarks,
    "PostgresStore": _PostgresMarks,
}
