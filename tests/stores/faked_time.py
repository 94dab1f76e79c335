"""Stores whose clock is the test's: Redis and PostgreSQL read it from a key, and from a table."""

from __future__ import annotations

import hashlib
from copy import copy
from typing import Any, NamedTuple, Protocol

import psycopg

from taskguard.protocol.rules import MICROS
from taskguard.protocol.store import Store
from taskguard.stores import sqlite
from taskguard.stores.memory import MemoryStore
from taskguard.stores.postgresql import PostgresStore
from taskguard.stores.redis import RedisStore
from taskguard.stores.sqlite import SQLiteStore

BEGINNING = 1_700_000_000_000_000


class Clock:
    now = BEGINNING

    def __call__(self) -> int:
        return self.now


class Side(Protocol):
    """A kind of store whose clock can be set."""

    name: str

    def open(self, namespace: str, clock: Clock) -> Store: ...

    def set_time(self, now: int) -> None: ...

    def purge(self, store: Any, over: Over) -> None:
        """Remove all that is over."""


class Over(NamedTuple):
    """What the rules' own store knows to be over."""

    entries: list[str]
    receipts: list[tuple[str, str]]


class Memory:
    name = "memory"

    def open(self, namespace: str, clock: Clock) -> Store:
        return MemoryStore(clock=clock)

    def set_time(self, now: int) -> None: ...

    def purge(self, store: Any, over: Over) -> None:
        now = store._clock()
        store._kept.purge(lambda kept: not store._is_there(kept, now))


class SQLite:
    name = "sqlite"

    def __init__(self, path: str) -> None:
        self._path = path

    def open(self, namespace: str, clock: Clock) -> Store:
        store = SQLiteStore(self._path, namespace=namespace, clock=clock)
        store._until_purge = sqlite.PURGE_EVERY  # not at the first claim
        return store

    def set_time(self, now: int) -> None: ...

    def purge(self, store: Any, over: Over) -> None:
        def remove(db: Any, now: int) -> None:
            store._until_purge = 0
            store._purge_at_times(db, now)

        store._transaction(remove)


class FakeTimeWire:
    """Scripts that read the time from two keys, and whose keys do not end by the server's own clock."""

    def __init__(self, wire: Any) -> None:
        self._wire = wire
        self._faked: dict[bytes, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)

    def call(self, script: Any, *args: Any, **options: Any) -> Any:
        return self._wire.call(self._with_fake_time(script), *args, **options)

    def call_many(self, script: Any, *args: Any, **options: Any) -> Any:
        return self._wire.call_many(self._with_fake_time(script), *args, **options)

    def _with_fake_time(self, script: Any) -> Any:
        faked = self._faked.get(script.sha)
        if faked is None:
            faked = self._faked[script.sha] = copy(script)
            time_of_test = b"{redis.call('GET', 'clock:seconds'), redis.call('GET', 'clock:micros')}"
            faked.source = script.source.replace(b"redis.call('TIME')", time_of_test).replace(
                b"math.max(1, math.ceil(", b"math.max(100000000, math.ceil("
            )
            assert faked.source.count(time_of_test) and b"'TIME'" not in faked.source
            faked.sha = hashlib.sha1(faked.source, usedforsecurity=False).hexdigest().encode()
        return faked


class Redis:
    def __init__(self, name: str, client: Any) -> None:
        self.name = name
        self._client = client

    def open(self, namespace: str, clock: Clock) -> Store:
        store = RedisStore(self._client, namespace=namespace)
        store.wire = FakeTimeWire(store.wire)  # type: ignore[assignment]
        return store

    def set_time(self, now: int) -> None:
        self._client.mset({"clock:seconds": now // MICROS, "clock:micros": now % MICROS})

    def purge(self, store: Any, over: Over) -> None:
        names = [store._entry_key(key) for key in over.entries]
        names += [f"{store._entry_key(key)}:{owner}" for key, owner in over.receipts]
        if names:
            self._client.delete(*names)


class Postgres:
    name = "postgresql"

    def __init__(self, url: str, schema: str) -> None:
        self._url, self._schema = url, schema
        self._made = PostgresStore(url, schema=schema)
        self._made.get("made")
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(f"CREATE TABLE {schema}.clock (now bigint); INSERT INTO {schema}.clock VALUES (0)")
        self._connection.execute(
            f"CREATE OR REPLACE FUNCTION {schema}.now_1() RETURNS bigint LANGUAGE sql VOLATILE"
            f" AS 'SELECT now FROM {schema}.clock'"
        )

    def open(self, namespace: str, clock: Clock) -> Store:
        store = PostgresStore(self._url, namespace=namespace, schema=self._schema)
        next(store._claims)  # at the first one it would remove what is over
        return store

    def set_time(self, now: int) -> None:
        self._connection.execute(f"UPDATE {self._schema}.clock SET now = %s", (now,))

    def purge(self, store: Any, over: Over) -> None:
        store._call("purge_1", at_most=10_000)

    def close(self) -> None:
        self._made.close()
        self._connection.close()
