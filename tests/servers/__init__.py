"""Real servers for tests: Redis, Valkey, PostgreSQL, PgBouncer, MariaDB, RabbitMQ; a proxy breaks the network."""

from __future__ import annotations

import os
from typing import Any, NoReturn, TypeVar, overload

from .mariadb import MariaDBServer
from .postgres import PgBouncer, PostgresServer
from .processes import Server, ServerError
from .proxy import Proxy
from .rabbitmq import RabbitMQServer
from .redis import FLAVOURS, RedisServer
from .sentinel import SentinelServer

__all__ = [
    "FLAVOURS",
    "MariaDBServer",
    "PgBouncer",
    "PostgresServer",
    "Proxy",
    "RabbitMQServer",
    "RedisServer",
    "SentinelServer",
    "Server",
    "ServerError",
    "durable_redis",
    "require",
]

_S = TypeVar("_S", bound=Server)


@overload
def require(kind: str, **options: Any) -> RedisServer: ...


@overload
def require(kind: type[_S], *arguments: Any, **options: Any) -> _S: ...


def require(kind: str | type[Server], *arguments: Any, **options: Any) -> Server:
    """Start a server: a flavour of Redis by its name, any other one by its class.

    One that is missing skips the test. Where the environment variable CI is set it fails the test, unless there is
    no such server for this Python. The caller closes what it gets.
    """
    server = RedisServer(kind, **options) if isinstance(kind, str) else kind(*arguments, **options)
    if reason := server.missing():
        _do_without(f"{server.name}: {reason}", forgiven=server.unobtainable() is not None)
    server.start()
    return server


def durable_redis() -> RedisServer:
    """The Redis that tests use unless they are about another one; what it has confirmed outlives a crash."""
    flavour = "redis-8" if RedisServer("valkey").missing() else "valkey"  # there is no Valkey wheel for Python 3.10
    return require(flavour, persistence="aof", settings={"appendfsync": "always"})


def _do_without(reason: str, forgiven: bool) -> NoReturn:
    # Imported late: the set-up of the servers comes through here too, and needs neither pytest nor its import time.
    import pytest

    if os.environ.get("CI") and not forgiven:
        pytest.fail(reason)
    pytest.skip(reason)
