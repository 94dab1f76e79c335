"""`fence.protect`: in the caller's own transaction, whichever driver or toolkit that is of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from taskguard import ConfigurationError, Guard, StaleFenceError
from taskguard.fencing.high_water import protect
from tests.fencing.databases import Client, engine_of


def fence_of(token: int, key: str = "key") -> Any:
    return SimpleNamespace(key=key, token=token)


def mark(client: Client, resource: str = "key") -> int | None:
    name = resource.encode() if client.execute("SELECT 1") and "ysql" in _dialect(client) else resource
    rows = client.execute("SELECT token FROM taskguard_fence WHERE resource = ?", name)
    return rows[0][0] if rows else None


def _dialect(client: Client) -> str:
    from taskguard.fencing.connections import connected

    return connected(client.handle).dialect


def test_the_mark_rises_with_the_token_and_refuses_what_is_lower(client: Client, guard: Guard):
    with guard.hold("key") as first, client.transaction() as tx:
        first.protect(tx)
    with guard.hold("key") as second, client.transaction() as tx:
        second.protect(tx)
        second.protect(tx)  # again, by the same holder
    with pytest.raises(StaleFenceError) as refused, client.transaction() as tx:
        first.protect(tx)

    assert (refused.value.key, refused.value.token) == ("key", first.token)
    assert (refused.value.resource, refused.value.mark) == ("key", second.token)
    with client.transaction():
        assert mark(client) == second.token


def test_a_mark_is_only_raised_if_the_transaction_commits(client: Client):
    with pytest.raises(ZeroDivisionError), client.transaction() as tx:
        protect(fence_of(7), tx, None)
        raise ZeroDivisionError
    with client.transaction() as tx:
        protect(fence_of(5), tx, None)
        assert mark(client) == 5


def test_a_new_resource_is_not_measured_by_the_one_before(client: Client):
    with client.transaction() as tx:
        for token, name in ((9, "a"), (9, "a"), (3, "b"), (3, "b"), (1, "c")):
            protect(fence_of(token), tx, name)


def test_resources_are_told_apart_to_the_letter(plain: Client):
    names = ["a", "A", "a ", "á", "x" * 300, "x" * 301, "\N{SNOWMAN}" * 100, "nul\0", "nul"]
    with plain.transaction() as tx:
        for number, name in enumerate(names):
            protect(fence_of(100 - number), tx, name)  # each lower than the ones before
    for number, name in enumerate(names):
        with pytest.raises(StaleFenceError), plain.transaction() as tx:
            protect(fence_of(99 - number), tx, name)


def test_a_token_of_53_bits_is_told_exactly(plain: Client):
    with plain.transaction() as tx:
        protect(fence_of(2**53 - 2), tx, None)
    with pytest.raises(StaleFenceError) as refused, plain.transaction() as tx:
        protect(fence_of(2**53 - 3), tx, None)
    assert refused.value.mark == 2**53 - 2


class TestAutocommit:
    """The row would be free again at once, and nothing protected: refused, in words."""

    @pytest.fixture
    def psycopg(self, url_of: Any, open_client: Any) -> Any:
        return open_client(url_of("postgresql")).connection

    def refused(self, connection: Any) -> None:
        with pytest.raises(ConfigurationError, match="commits each statement by itself"):
            protect(fence_of(7), connection, None)

    def test_psycopg(self, psycopg: Any):
        psycopg.autocommit = True
        self.refused(psycopg)
        with psycopg.transaction():
            protect(fence_of(7), psycopg, None)

    def test_psycopg2(self, url_of: Any):
        import psycopg2

        connection = psycopg2.connect(url_of("postgresql"))
        connection.autocommit = True
        self.refused(connection)
        connection.cursor().execute("BEGIN")
        protect(fence_of(7), connection, None)
        connection.close()

    def test_sqlite3(self, url_of: Any):
        import sqlite3

        connection = sqlite3.connect(url_of("sqlite").removeprefix("sqlite:///"), isolation_level=None)
        self.refused(connection)
        connection.execute("BEGIN IMMEDIATE")
        protect(fence_of(7), connection, None)
        connection.close()

    @pytest.mark.skipif("sys.version_info < (3, 12)", reason="autocommit= is new in Python 3.12")
    @pytest.mark.parametrize("autocommit", [True, False])
    def test_sqlite3_with_autocommit(self, url_of: Any, autocommit: bool):
        import sqlite3

        connection = sqlite3.connect(url_of("sqlite").removeprefix("sqlite:///"), autocommit=autocommit)
        if autocommit:
            self.refused(connection)
        else:
            protect(fence_of(7), connection, None)
        connection.close()

    def test_pymysql(self, url_of: Any, open_client: Any):
        connection = open_client(url_of("mariadb")).connection
        connection.autocommit(True)
        self.refused(connection)
        connection.begin()
        protect(fence_of(7), connection, None)

    def test_mysqlclient(self, url_of: Any, open_client: Any):
        from tests.fencing.databases import has_mysqlclient, mysqlclient_client

        if not has_mysqlclient():
            pytest.skip("mysqlclient is built from source, with MariaDB's headers")

        connection = open_client(url_of("mariadb"), mysqlclient_client).connection
        connection.autocommit(True)
        self.refused(connection)
        connection.query("BEGIN")
        protect(fence_of(7), connection, None)

    @pytest.mark.parametrize(
        ("kind", "driver"),
        [("postgresql", "postgresql+psycopg2"), ("mariadb", "mysql+pymysql"), ("sqlite", "sqlite")],
    )
    def test_sqlalchemy(self, url_of: Any, kind: str, driver: str):
        engine = engine_of(url_of(kind), driver)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            self.refused(connection)
        with engine.connect() as connection:
            protect(fence_of(7), connection, None)
            connection.commit()
        with engine.connect() as connection, pytest.raises(StaleFenceError):
            protect(fence_of(6), connection, None)
        engine.dispose()

    def test_sqlalchemy_with_a_driver_that_is_not_known(self, url_of: Any):
        """Its whole engine commits each statement, and its connection is a wrapper around an asynchronous one."""
        import sqlalchemy
        from sqlalchemy.ext.asyncio import create_async_engine

        if sqlalchemy.__version__ < "2":
            pytest.skip("SQLAlchemy 1.4 knows no psycopg 3")
        url = f"postgresql+psycopg:{url_of('postgresql').partition(':')[2]}"

        async def protected(**options: Any) -> None:
            engine = create_async_engine(url, **options)
            async with engine.begin() as connection:
                await connection.run_sync(lambda tx: protect(fence_of(7), tx, None))
            await engine.dispose()

        asyncio.run(protected())
        with pytest.raises(ConfigurationError, match="commits each statement by itself"):
            asyncio.run(protected(isolation_level="AUTOCOMMIT"))

    def test_sqlalchemy_with_a_savepoint_that_sqlite_takes_for_the_transaction(self, url_of: Any):
        """At its end the memory would be committed, whatever becomes of the effect."""
        engine = engine_of(url_of("sqlite"), "sqlite")
        refused = pytest.raises(ConfigurationError, match="before begin_nested")
        with engine.begin() as connection, connection.begin_nested(), refused:
            protect(fence_of(7), connection, None)
        engine.dispose()

    def test_sqlalchemy_that_sends_begin_by_itself(self, url_of: Any):
        from sqlalchemy import event

        engine = engine_of(url_of("sqlite"), "sqlite")
        event.listen(engine, "connect", lambda raw, _: setattr(raw, "isolation_level", None))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        with engine.connect() as connection:
            protect(fence_of(7), connection, None)
            connection.rollback()
        with engine.begin() as connection, connection.begin_nested():
            protect(fence_of(6), connection, None)
        engine.dispose()

    def test_sqlalchemy_1_4_without_begin(self, url_of: Any):
        import sqlalchemy

        if sqlalchemy.__version__ >= "2":
            pytest.skip("this is how SQLAlchemy 1.4 was by default")
        engine = sqlalchemy.create_engine(url_of("sqlite"))
        with engine.connect() as connection:
            self.refused(connection)
        with engine.begin() as connection:
            protect(fence_of(7), connection, None)

    @pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite"])
    def test_django_outside_of_atomic(self, url_of: Any, open_client: Any, kind: str):
        from tests.fencing.databases import django_client

        self.refused(open_client(url_of(kind), django_client).connection)


def test_what_is_no_connection_is_refused_with_what_would_be(url_of: Any):
    import sqlalchemy

    url = url_of("sqlite")
    for thing in (object(), sqlalchemy.create_engine(url), "sqlite:///x"):
        with pytest.raises(ConfigurationError, match="not a supported connection"):
            protect(fence_of(7), thing, None)


def test_rows_of_any_shape_are_understood(url_of: Any, open_client: Any):
    import sqlite3

    import psycopg.rows
    import pymysql.cursors

    postgres = open_client(url_of("postgresql")).connection
    postgres.row_factory = psycopg.rows.dict_row
    mariadb = open_client(url_of("mariadb")).connection
    mariadb.cursorclass = pymysql.cursors.SSDictCursor
    sqlite = open_client(url_of("sqlite")).connection
    sqlite.row_factory = sqlite3.Row
    for connection in (postgres, mariadb, sqlite):
        protect(fence_of(7), connection, None)
        with pytest.raises(StaleFenceError):
            protect(fence_of(6), connection, None)


def test_without_its_tables_a_database_says_what_to_run(url: str, open_client: Any):
    client = open_client(url)
    with client.transaction():
        client.execute("DROP TABLE taskguard_fence")
    if url.startswith("sqlite"):  # making it is part of the transaction, as all else
        with client.transaction() as tx:
            protect(fence_of(7), tx, None)
        with client.transaction():
            assert mark(client) == 7
    else:
        with pytest.raises(ConfigurationError, match="taskguard migrate"), client.transaction() as tx:
            protect(fence_of(7), tx, None)


def test_an_aborted_transaction_says_so_itself(url_of: Any, open_client: Any):
    import psycopg

    client = open_client(url_of("postgresql"))
    with pytest.raises(psycopg.errors.DivisionByZero):
        client.execute("SELECT 1 / 0")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        protect(fence_of(7), client.handle, None)


@pytest.mark.parametrize("verb", ["protect", "once"])
def test_it_is_one_statement(client_with_a_count: Callable[[], int], plain: Client, guard: Guard, verb: str):
    with guard.hold("key") as fence:
        for _ in range(2):  # a new row, and one that is there
            before = client_with_a_count()
            getattr(fence, verb)(plain.handle)
            assert client_with_a_count() - before == 1


@pytest.fixture
def client_with_a_count(plain: Client) -> Any:
    """How many statements the connection has been sent, as the driver or the server counts them."""
    plain.execute("SELECT 1")
    if _dialect(plain) == "postgresql":
        told: list[str] = []
        plain.connection.add_notice_handler(lambda notice: told.append(notice.message_primary))
        plain.execute("SET log_statement = 'all'")
        plain.execute("SET client_min_messages = 'log'")
        return lambda: len([line for line in told if line.startswith(("statement:", "execute"))])
    if _dialect(plain) == "sqlite":
        seen: list[str] = []
        plain.connection.set_trace_callback(seen.append)
        return lambda: len([line for line in seen if not line.startswith("BEGIN")])
    asked = iter(range(10**6))
    return lambda: int(plain.execute("SHOW SESSION STATUS LIKE 'Questions'")[0][1]) - next(asked)
