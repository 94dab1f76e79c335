"""A store that refuses until somebody puts it right: callers get an error, and jobs wait."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import redis

from taskguard import StoreError, StoreUnavailableError
from tests.drivers import without_psycopg
from tests.scenarios.queues import Queue
from tests.servers import PostgresServer, RedisServer, require

PASSWORD = "right"


@pytest.fixture(scope="module")
def locked_redis(redis_server: RedisServer) -> Iterator[RedisServer]:
    with closing(require(redis_server.name, password=PASSWORD)) as server:
        yield server


# -- whoever calls ---------------------------------------------------------------------------------------------------


def _redis_without_its_password(request: pytest.FixtureRequest) -> str:
    server: RedisServer = request.getfixturevalue("locked_redis")
    return server.url.replace(PASSWORD, "wrong")


def _postgresql_without_its_password(request: pytest.FixtureRequest) -> str:
    server: PostgresServer = request.getfixturevalue("postgres_server")
    role = f"locked_{uuid4().hex[:8]}"
    rules = server.data / "pg_hba.conf"
    rules.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'right'")
        admin.execute("SELECT pg_reload_conf()")
    return server.url.replace("taskguard@", f"{role}:wrong@")


def _postgresql_of_another_version(request: pytest.FixtureRequest) -> str:
    server: PostgresServer = request.getfixturevalue("postgres_server")
    schema = f"other_{uuid4().hex[:8]}"
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(f"CREATE SCHEMA {schema}")
        admin.execute(f"CREATE TABLE {schema}.entry (name text)")
    return f"{server.url}?schema={schema}"


def _sqlite_of_another_version(request: pytest.FixtureRequest) -> str:
    path: Path = request.getfixturevalue("tmp_path") / "other.db"
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE taskguard_entry (name TEXT)")
    return f"sqlite:///{path}"


def _store_without_its_driver(request: pytest.FixtureRequest) -> str:
    without_psycopg(request.getfixturevalue("monkeypatch"))
    return "postgresql://127.0.0.1/taskguard"


REFUSING: dict[str, tuple[Callable[[Any], str], str]] = {
    "a wrong password, Redis": (_redis_without_its_password, "check the user and the password"),
    "a wrong password, PostgreSQL": (_postgresql_without_its_password, "password authentication failed.*check the URL"),
    "a schema of another version, PostgreSQL": (_postgresql_of_another_version, "name another with .schema="),
    "a schema of another version, SQLite": (_sqlite_of_another_version, "do not fit this version"),
    "a missing driver": (_store_without_its_driver, "pip install 'celery-taskguard.postgresql.'"),
    "a name that nobody has, Redis": (lambda _: "redis://nowhere.invalid/0", "its host is not known: check the URL"),
    "a name that nobody has, PostgreSQL": (
        lambda _: "postgresql://nowhere.invalid/taskguard",
        "its host is not known: check the URL",
    ),
}


@pytest.mark.parametrize(("make", "words"), REFUSING.values(), ids=list(REFUSING))
def test_a_call_raises_what_is_wrong_and_publishes_nothing(
    queue: Queue, request: pytest.FixtureRequest, make: Callable[[Any], str], words: str
):
    function = queue.function(store=make(request), on_store_error="run_unguarded")  # which is about outages
    for _ in range(2):  # it does not become an outage by and by
        with pytest.raises(StoreError, match=words) as caught:
            function.call(1)
        assert not isinstance(caught.value, StoreUnavailableError)

    assert queue.ids == []


# -- workers ---------------------------------------------------------------------------------------------------------


def _lock_out(server: RedisServer, password: str, to: str) -> None:
    """The password becomes another one, for those who are connected already too."""
    with closing(redis.Redis(port=server.port, password=password)) as admin:
        admin.config_set("requirepass", to)
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


@pytest.mark.parametrize(("chosen", "status"), [("retry", "queued"), ("fail", "failed"), ("run_unguarded", "queued")])
def test_a_job_waits_while_its_store_refuses_the_worker(
    queue: Queue, locked_redis: RedisServer, chosen: str, status: str
):
    function = queue.function(store=locked_redis.url, on_store_error=chosen)
    call = function.call(uuid4().hex, "ran")
    _lock_out(locked_redis, PASSWORD, "another")
    try:
        queue.work(1)
        assert queue.outcome(call).status == status and not queue.ran
    finally:
        _lock_out(locked_redis, "another", PASSWORD)
    queue.work()

    assert queue.ran == ["ran"] * (status == "queued")
    assert queue.outcome(call).value == ("ran" if status == "queued" else None)


def test_a_job_waits_for_a_worker_that_has_the_driver(queue: Queue, request: pytest.FixtureRequest):
    function = queue.function(store=_store_without_its_driver(request))
    call = function.leave(1)
    queue.work(1)

    assert queue.outcome(call).status == "queued" and queue.ids == [call.id] and not queue.ran


@pytest.mark.parametrize("chosen", ["retry", "fail", "run_unguarded"])
def test_a_call_that_runs_at_once_raises_what_is_wrong(queue: Queue, locked_redis: RedisServer, chosen: str):
    function = queue.function(store=locked_redis.url.replace(PASSWORD, "wrong"), on_store_error=chosen)
    outcome = function.at_once(1)

    assert outcome.status == "failed" and "check the user and the password" in outcome.error and not queue.ran
