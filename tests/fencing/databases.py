"""Databases, and every way to connect to them that a fence knows: all look the same to a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from typing import Any
from urllib.parse import urlsplit

from taskguard.fencing.tables import create_tables

KINDS = ("postgresql", "mariadb", "sqlite")


class Client:
    """A connection. `handle` is what a fence is given, and `execute` takes SQL with `?` for what is bound."""

    placeholder = "%s"

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @property
    def handle(self) -> Any:
        return self.connection

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        try:
            yield self.handle
        except BaseException:
            self.connection.rollback()
            raise
        self.connection.commit()

    def execute(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        cursor = self.connection.cursor()
        cursor.execute(sql.replace("?", self.placeholder), parameters)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def close(self) -> None:
        self.connection.close()


class SQLiteClient(Client):
    placeholder = "?"


class SQLAlchemyClient(Client):
    def close(self) -> None:
        engine = self.connection.get_bind() if hasattr(self.connection, "get_bind") else self.connection.engine
        self.connection.close()
        engine.dispose()

    def execute(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        import sqlalchemy

        for number in range(len(parameters)):
            sql = sql.replace("?", f":p{number}", 1)
        bound = {f"p{number}": value for number, value in enumerate(parameters)}
        result = self.connection.execute(sqlalchemy.text(sql), bound)
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []


class DjangoClient(Client):
    @contextmanager
    def transaction(self) -> Iterator[Any]:
        from django.db import transaction

        with transaction.atomic(using=self.connection.alias):
            yield self.connection


# -- how to connect, by the URL of the database --------------------------------------------------------------------


def psycopg_client(url: str) -> Client:
    import psycopg

    return Client(psycopg.connect(url))


def psycopg2_client(url: str) -> Client:
    import psycopg2

    return Client(psycopg2.connect(url))


def pymysql_client(url: str) -> Client:
    import pymysql

    return Client(pymysql.connect(**_mysql(url)))


def mysqlclient_client(url: str) -> Client:
    import MySQLdb

    return Client(MySQLdb.connect(**_mysql(url)))


def sqlite_client(url: str) -> Client:
    import sqlite3

    return SQLiteClient(sqlite3.connect(path_of(url), timeout=20))


def core_client(driver: str) -> Callable[[str], Client]:
    def connect(url: str) -> Client:
        engine = engine_of(url, driver)
        return SQLAlchemyClient(engine.connect())

    return connect


def session_client(driver: str) -> Callable[[str], Client]:
    def connect(url: str) -> Client:
        from sqlalchemy.orm import Session

        return SQLAlchemyClient(Session(engine_of(url, driver), future=True))

    return connect


def django_client(url: str) -> Client:
    from django.db import connections

    from tests.django_project import configure

    configure()
    alias = f"db{len(connections.databases)}"
    connections.databases[alias] = connections.configure_settings({"default": {}, alias: _django(url)})[alias]
    return DjangoClient(connections[alias])


CLIENTS: dict[str, tuple[str, Callable[[str], Client]]] = {
    "psycopg": ("postgresql", psycopg_client),
    "psycopg2": ("postgresql", psycopg2_client),
    "pymysql": ("mariadb", pymysql_client),
    "mysqlclient": ("mariadb", mysqlclient_client),
    "sqlite3": ("sqlite", sqlite_client),
    "core-psycopg2": ("postgresql", core_client("postgresql+psycopg2")),
    "core-pymysql": ("mariadb", core_client("mysql+pymysql")),
    "core-sqlite": ("sqlite", core_client("sqlite")),
    "session-psycopg2": ("postgresql", session_client("postgresql+psycopg2")),
    "session-pymysql": ("mariadb", session_client("mysql+pymysql")),
    "session-sqlite": ("sqlite", session_client("sqlite")),
    "django-postgresql": ("postgresql", django_client),
    "django-mariadb": ("mariadb", django_client),
    "django-sqlite": ("sqlite", django_client),
}
ROWS_COUNTED_DIFFERENTLY = (
    "psycopg",
    "psycopg2",
    "sqlite3",
    "pymysql",
    "mysqlclient",
    "core-pymysql",
    "django-mariadb",
)
"""Those that matter where the number of rows that a statement has changed does."""
PLAIN = {"postgresql": psycopg_client, "mariadb": pymysql_client, "sqlite": sqlite_client}
"""The usual driver of each database."""


def kind_of(url: str) -> str:
    return {"mysql": "mariadb"}.get(url.partition(":")[0], url.partition(":")[0])


def connect(url: str) -> Client:
    return PLAIN[kind_of(url)](url)


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


def prepare(url: str) -> None:
    """The fence's tables, empty, and two accounts with their entries."""
    client = connect(url)
    create_tables(client.handle)
    client.execute(
        "CREATE TABLE IF NOT EXISTS account "
        "(id VARCHAR(9) PRIMARY KEY, cents BIGINT NOT NULL, fence BIGINT NOT NULL, version BIGINT NOT NULL)"
    )
    client.execute("CREATE TABLE IF NOT EXISTS booking (id VARCHAR(40) NOT NULL, cents BIGINT NOT NULL)")
    for table in ("account", "booking", "taskguard_fence", "taskguard_once"):
        client.execute(f"DELETE FROM {table}")
    client.execute("INSERT INTO account VALUES ('one', 1000, 0, 0), ('two', 0, 0, 0)")
    client.connection.commit()
    client.close()


def waits_for_a_row(client: Client) -> bool:
    """Whether some transaction waits at a row of the fence's tables that another one has."""
    if client.connection.__class__.__module__.startswith("psycopg"):
        question = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    else:  # what InnoDB itself tells of its locks is not renewed as long as somebody keeps asking
        question = (
            "SELECT count(*) FROM information_schema.processlist "
            "WHERE command = 'Query' AND info REGEXP '^INSERT INTO taskguard'"
        )
    return bool(client.execute(question)[0][0])


def has_mysqlclient() -> bool:
    """The driver itself, and not PyMySQL in its place."""
    return any(distribution.name == "mysqlclient" for distribution in distributions())


def _mysql(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username,
        "password": "",
        "database": parts.path.removeprefix("/"),
    }


def engine_of(url: str, driver: str) -> Any:
    import sqlalchemy

    return sqlalchemy.create_engine(f"{driver}:{url.partition(':')[2]}", future=True)


def _django(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    kind = kind_of(url)
    if kind == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": path_of(url), "OPTIONS": {"timeout": 20}}
    if kind == "mariadb" and not has_mysqlclient():
        import pymysql

        pymysql.version_info = (2, 2, 1, "final", 0)  # that of the driver it stands for, at which Django looks
        pymysql.install_as_MySQLdb()
    engine = {"postgresql": "postgresql", "mariadb": "mysql"}[kind]
    return {
        "ENGINE": f"django.db.backends.{engine}",
        "NAME": parts.path.removeprefix("/"),
        "USER": parts.username,
        "HOST": parts.hostname,
        "PORT": parts.port,
    }
