"""A name that does not resolve is an error of the URL, until the store has answered once; then it is an outage."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import Any, NoReturn

import psycopg
import pytest
import redis

from taskguard import StoreError, StoreUnavailableError, open_store
from taskguard.stores import Store
from tests.servers import PostgresServer, RedisServer

KINDS = ["redis", "postgresql"]
each_kind = pytest.mark.parametrize("kind", KINDS)


def _does_not_resolve(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise socket.gaierror(code, "the resolver's own words")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def server(kind: str, request: pytest.FixtureRequest) -> RedisServer | PostgresServer:
    name = "redis_server" if kind == "redis" else "postgres_server"
    found: RedisServer | PostgresServer = request.getfixturevalue(name)
    return found


def _url(server: RedisServer | PostgresServer) -> str:
    return server.url.replace("127.0.0.1", "localhost")  # libpq resolves no numbers


def _hang_up(server: RedisServer | PostgresServer) -> None:
    """The server ends the connections of the store."""
    if isinstance(server, RedisServer):
        with closing(redis.Redis.from_url(server.url)) as admin:
            admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        return
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'taskguard'"
        )


def _error_of(store: Store) -> StoreError:
    with pytest.raises(StoreError) as caught:
        store.get("key")
    return caught.value


@pytest.mark.parametrize("url", ["redis://nowhere.invalid/0", "postgresql://nowhere.invalid/taskguard"])
def test_a_name_that_nobody_has_is_an_error_of_the_url(url: str):
    with closing(open_store(url)) as store:
        error = _error_of(store)

    assert not isinstance(error, StoreUnavailableError) and "its host is not known: check the URL" in str(error)


@each_kind
def test_a_resolver_that_is_in_trouble_is_an_outage(
    server: RedisServer | PostgresServer, monkeypatch: pytest.MonkeyPatch
):
    _does_not_resolve(monkeypatch, socket.EAI_AGAIN)
    with closing(open_store(_url(server))) as store:
        assert isinstance(_error_of(store), StoreUnavailableError)


@each_kind
def test_a_name_that_is_gone_after_the_store_has_answered_is_an_outage(
    server: RedisServer | PostgresServer, monkeypatch: pytest.MonkeyPatch
):
    with closing(open_store(_url(server))) as store:
        assert store.get("key") is None
        _hang_up(server)
        with monkeypatch.context() as patch:
            _does_not_resolve(patch, socket.EAI_NONAME)
            assert isinstance(_error_of(store), StoreUnavailableError)
        assert store.get("key") is None
