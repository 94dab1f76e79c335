from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from taskguard import Guard
from tests.fencing.databases import CLIENTS, KINDS, Client, connect, has_mysqlclient, prepare
from tests.servers import MariaDBServer, require


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    with closing(require(MariaDBServer, durable=False)) as server:
        yield server


@pytest.fixture
def url_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """The URL of a database of a kind, with its tables made and empty. Servers, and so tests of a worker, share one."""

    def make(kind: str) -> str:
        if kind == "sqlite":
            url = f"sqlite:///{tmp_path / 'shop'}.db"
        else:
            url = request.getfixturevalue("postgres_server" if kind == "postgresql" else "mariadb_server").url
        prepare(url)
        return url

    return make


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, url_of: Callable[[str], str]) -> str:
    return url_of(request.param)


@pytest.fixture
def open_client() -> Iterator[Callable[..., Client]]:
    with ExitStack() as stack:

        def make(url: str, how: Callable[[str], Client] = connect) -> Client:
            client = how(url)
            stack.callback(_quietly, client.close)
            return client

        yield make


@pytest.fixture(params=CLIENTS)
def make_client(request: pytest.FixtureRequest, url_of: Any, open_client: Any) -> Callable[[], Client]:
    """Makes clients of one database, all of one driver or toolkit; every kind of them in turn."""
    kind, how = CLIENTS[request.param]
    if request.param == "mysqlclient" and not has_mysqlclient():
        pytest.skip("mysqlclient is built from source, with MariaDB's headers")
    url = url_of(kind)
    return lambda: open_client(url, how)


@pytest.fixture
def client(make_client: Callable[[], Client]) -> Client:
    return make_client()


@pytest.fixture
def plain(url: str, open_client: Any) -> Client:
    """A client of each database, by its usual driver."""
    return open_client(url)


@pytest.fixture
def guard() -> Guard:
    return Guard("memory://")


def _quietly(close: Callable[[], None]) -> None:
    with suppress(Exception):
        close()
