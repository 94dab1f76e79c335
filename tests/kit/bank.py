"""Jobs of a small bank, some of which are wrong on purpose; its accounts are a SQLite file."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from celery import Celery

from taskguard import Fence, Guard
from taskguard.celery import singleton_task
from taskguard.rq import singleton_task as rq_singleton_task

FILE = "TASKGUARD_TEST_BANK"

app = Celery("bank", broker="memory://", backend="cache+memory://", set_as_current=False)
app.conf.taskguard_store = "redis://127.0.0.1:1"  # as in production: no test may need it


def connect() -> sqlite3.Connection:
    return sqlite3.connect(os.environ[FILE], timeout=20)


def reset() -> None:
    Path(os.environ[FILE]).unlink(missing_ok=True)
    with closing(connect()) as connection, connection:
        connection.execute("CREATE TABLE charge (order_id TEXT, by TEXT)")
        connection.execute("CREATE TABLE seen (id TEXT PRIMARY KEY)")


def charges() -> int:
    with closing(connect()) as connection:
        return int(connection.execute("SELECT count(*) FROM charge").fetchone()[0])


def check() -> None:
    assert charges() == 1, f"charged {charges()} times"


def charge(order: str) -> None:
    """The effect, in a transaction of its own: nothing remembers that it happened."""
    with closing(connect()) as connection, connection:
        connection.execute("INSERT INTO charge VALUES (?, 'a run')", (order,))


def charge_once(order: str, fence: Fence) -> None:
    """The effect, and the memory of it, in one transaction."""
    with closing(connect()) as connection, connection:
        first = connection.execute("INSERT OR IGNORE INTO seen VALUES (?)", (fence.idempotency_key,)).rowcount
        if first:
            connection.execute("INSERT INTO charge VALUES (?, 'a run')", (order,))


@singleton_task(app, shared=False)
def wrong(order: str) -> str:
    charge(order)
    return "charged"


@singleton_task(app, shared=False, bind=True)
def right(self, order: str, fence: Fence) -> str:
    charge_once(order, fence)
    return "charged"


@singleton_task(app, shared=False)
def fenced(order: str, fence: Fence) -> str:
    """Refused where another run has replaced this one; but a second run after a crash is no stale one."""
    with closing(connect()) as connection, connection:
        fence.protect(connection)
        connection.execute("INSERT INTO charge VALUES (?, 'a run')", (order,))
    return "charged"


@singleton_task(app, shared=False)
def remembered(order: str, fence: Fence) -> str:
    with closing(connect()) as connection, connection:
        if fence.once(connection):
            connection.execute("INSERT INTO charge VALUES (?, 'a run')", (order,))
    return "charged"


@singleton_task(app, shared=False, max_starts=1)
def at_most_once(order: str) -> str:
    charge(order)
    return "charged"


@singleton_task(app, shared=False)
def broken(order: str) -> None:
    raise ValueError(order)


@singleton_task(app, shared=False, on_done="reuse_success", keep_for=3600)
def kept(order: str, fence: Fence) -> int:
    charge(order)
    return fence.token


@rq_singleton_task
def wrong_in_rq(order: str) -> str:
    charge(order)
    return "charged"


@rq_singleton_task
def right_in_rq(order: str, fence: Fence) -> str:
    charge_once(order, fence)
    return "charged"


@rq_singleton_task(key="order")
def ship(order: str, fence: Fence) -> str:
    charge(order)
    return fence.idempotency_key


def wrong_by_guard(guard: Guard) -> None:
    guard.run("charge", charge, "order-1", keep_for=3600)


def right_by_guard(guard: Guard) -> None:
    guard.run("charge", charge_once, "order-1", keep_for=3600)
