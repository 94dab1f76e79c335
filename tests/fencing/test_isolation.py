"""Every isolation level: an old token is refused, a conflict is the driver's own error, and trying again is safe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psycopg
import pymysql
import pytest

from taskguard import StaleFenceError
from taskguard.fence import Effects
from taskguard.fencing.effects import once
from taskguard.fencing.high_water import protect
from tests.fencing.databases import Client, waits_for_a_row
from tests.waiting import wait_until

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
DRIVER_S = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected, pymysql.err.OperationalError)
TRY_AGAIN = {1213, 1205, 1020}
"""MariaDB: a deadlock, a lock that was not had in time, a row that has changed since the transaction's picture."""
WORK = Effects("work", "job", 3600)


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["postgresql", "mariadb"])
def make(request: pytest.FixtureRequest, url_of: Any, open_client: Any, level: str) -> Callable[[], Client]:
    url = url_of(request.param)

    def open_at_level() -> Client:
        client: Client = open_client(url)
        if request.param == "postgresql":
            client.execute("SET deadlock_timeout = '50ms'")
            client.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")
        else:
            client.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        client.connection.commit()
        return client

    return open_at_level


def fence_of(token: int) -> Any:
    return SimpleNamespace(key="key", token=token)


def persistently(client: Client, act: Callable[[Any], Any]) -> Any:
    """As a careful caller does: the whole transaction again if the database says so."""
    for _ in range(5):
        try:
            with client.transaction() as tx:
                return act(tx)
        except DRIVER_S as error:
            if isinstance(error, pymysql.err.OperationalError) and error.args[0] not in TRY_AGAIN:
                raise
    raise AssertionError("it never came to an end")


def beside(first: Client, second: Client, acts: tuple[Callable[..., Any], Callable[..., Any]]) -> Any:
    """The first acts, the second has looked at the data and acts too, the first commits: what the second gets."""
    answers: list[Any] = []
    has_looked = threading.Event()

    def act(tx: Any) -> Any:
        second.execute("SELECT * FROM account WHERE id = 'two'")
        has_looked.set()
        return acts[1](tx)

    def run() -> None:
        try:
            answers.append(persistently(second, act))
        except StaleFenceError as error:
            answers.append(error)

    with first.transaction() as tx:
        acts[0](tx)
        thread = threading.Thread(target=run)
        thread.start()
        assert has_looked.wait(20)
        wait_until(lambda: waits_for_a_row(first), what="the second one at the row")
        first.execute("UPDATE account SET cents = cents + 1 WHERE id = 'one'")
    thread.join(20)
    return answers[0]


def test_a_newer_holder_waits_for_the_older_one_s_commit(make: Callable[[], Client]):
    answer = beside(
        make(), make(), (lambda tx: protect(fence_of(7), tx, None), lambda tx: protect(fence_of(8), tx, None))
    )
    assert answer is None


def test_an_older_holder_waits_for_the_newer_one_s_commit_and_is_refused(make: Callable[[], Client]):
    answer = beside(
        make(), make(), (lambda tx: protect(fence_of(8), tx, None), lambda tx: protect(fence_of(7), tx, None))
    )
    assert isinstance(answer, StaleFenceError)
    assert answer.mark == 8


def test_a_twin_waits_and_finds_the_effect_and_its_value(make: Callable[[], Client]):
    def look(tx: Any) -> Any:
        found = once(WORK, tx, None)
        return bool(found), found.value

    assert beside(make(), make(), (lambda tx: once(WORK, tx, None).keep("value"), look)) == (False, "value")


def test_a_deadlock_is_the_driver_s_own_error_and_trying_again_is_safe(make: Callable[[], Client]):
    clients = make(), make()
    both = threading.Barrier(2, timeout=20)

    def work(client: Client, names: tuple[str, str]) -> None:
        waits = iter([both.wait])

        def act(tx: Any) -> None:
            protect(fence_of(7), tx, names[0])
            next(waits, lambda: None)()  # only the first time: each has its first row by now
            protect(fence_of(7), tx, names[1])

        persistently(client, act)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(clients, [("a", "b"), ("b", "a")], strict=True)]
    with clients[0].transaction() as tx:
        for name in ("a", "b"):
            protect(fence_of(1), tx, name)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    with clients[0].transaction():
        assert clients[0].execute("SELECT token FROM taskguard_fence") == [(7,), (7,)]
