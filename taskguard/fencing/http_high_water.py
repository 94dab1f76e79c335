"""High-water marks in a store of taskguard: the highest token that each resource has seen, a number that only rises.

An entry cannot hold that number: a granted claim overwrites the entry without reading it. So the marks are in a table
of their own next to the entries. One statement through the store's connections changes a mark.
"""

from __future__ import annotations

import hashlib
from itertools import count
from typing import Any, Protocol

from taskguard.errors import ConfigurationError, StoreError
from taskguard.protocol.store import MICROS, Store, micros
from taskguard.stores.atomic import AtomicDict

PURGE_EVERY = 64


class HighWaterMarks(Protocol):
    """What a `Receiver` needs. For a store of your own, pass it an object with this method as `marks=`."""

    def raise_to(self, resource: str, token: int, /) -> int:
        """Set the mark to the higher of *token* and the mark, in one atomic step, and return it."""


def high_water_marks(store: Store, keep_for: float) -> HighWaterMarks:
    """The high-water marks in *store*; each expires *keep_for* seconds after its last use."""
    kind = type(store).__name__
    if kind not in _KINDS:
        raise ConfigurationError(
            f"{store!r} cannot store high-water marks; pass marks= an object with a method raise_to"
        )
    marks: HighWaterMarks = _KINDS[kind](store, micros(keep_for))
    return marks


class _MemoryHighWater:
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


class _SQLiteHighWater:
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
    # KEYS  the mark        ARGV  token, milliseconds until the mark expires
    source = b"""
local mark = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), tonumber(ARGV[1]))
redis.call('SET', KEYS[1], string.format('%.0f', mark), 'PX', math.max(tonumber(ARGV[2]), redis.call('PTTL', KEYS[1])))
return mark
"""
    sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()


class _RedisHighWater:
    def __init__(self, store: Any, keep: int) -> None:
        self._store, self._keep = store, max(1, keep // 1000)

    def raise_to(self, resource: str, token: int, /) -> int:
        key = f"{self._store._namespace}:http-mark:{resource}"
        return int(self._store.wire.call(_Script, [key], [token, self._keep]))


class _PostgresHighWater:
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
            # Create the table at first use. Without the lock, two processes that create it at once would fail.
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
    "MemoryStore": _MemoryHighWater,
    "SQLiteStore": _SQLiteHighWater,
    "RedisStore": _RedisHighWater,
    "PostgresStore": _PostgresHighWater,
}
