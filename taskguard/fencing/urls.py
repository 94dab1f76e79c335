"""Opens a database by its URL, for the command line. (A task passes its own connection.)"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from taskguard.errors import ConfigurationError, StoreError, TaskguardError
from taskguard.fencing.connections import Dialect
from taskguard.stores import safe_url


@contextmanager
def connection_to(url: str, *, make: bool = False) -> Iterator[Any]:
    """Open the database at *url* within the block: sqlite, postgresql, mysql or mariadb; dialect+driver by SQLAlchemy.

    A missing file is an error, unless *make* allows to create it. An error of the driver becomes a `StoreError`.
    """
    dialect_of(url)
    try:
        with closing(_connected(url, make)) as connection:
            yield connection
    except TaskguardError:
        raise
    except ModuleNotFoundError as error:  # SQLAlchemy imports the driver that the URL names
        raise ConfigurationError(f"{safe_url(url)} needs the package {error.name}, which is not installed") from error
    except Exception as error:  # each driver has its own errors for a server that is unreachable or refuses
        raise StoreError(safe_url(url), str(error)) from error


def dialect_of(url: str) -> Dialect:
    """The kind of database at *url*, without a connection."""
    dialect = _DIALECTS.get(_scheme(url).partition("+")[0])
    if dialect is None:
        raise ConfigurationError(
            f"{safe_url(url)} is not a database URL; it must begin with sqlite:///, postgresql://, mysql:// or "
            "mariadb://, or be a URL of SQLAlchemy with a driver"
        )
    return dialect


def _connected(url: str, make: bool) -> Any:
    if "+" in _scheme(url):
        return _driver(("sqlalchemy",)).create_engine(url, future=True).connect()
    dialect = dialect_of(url)
    if dialect == "sqlite":
        return _sqlite(url, make)
    return _mysql(url) if dialect == "mysql" else _driver(("psycopg", "psycopg2")).connect(url)


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower()


def _sqlite(url: str, make: bool) -> Any:
    path = unquote(urlsplit(url).path).removeprefix("/")
    if not path:
        raise ConfigurationError(
            "sqlite:// does not name a file; write sqlite:///relative.db or sqlite:////absolute.db"
        )
    if not make and not Path(path).exists():
        raise StoreError(safe_url(url), "the file does not exist")
    return sqlite3.connect(path)


def _mysql(url: str) -> Any:
    parts = urlsplit(url)
    if parts.query:
        raise ConfigurationError(
            f"{safe_url(url)} has options, which only SQLAlchemy understands; write mysql+pymysql://…"
        )
    named = {
        "host": parts.hostname or "localhost",
        "port": parts.port or 3306,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path).removeprefix("/"),
    }
    return _driver(("pymysql", "MySQLdb")).connect(**{name: value for name, value in named.items() if value})


def _driver(names: tuple[str, ...]) -> Any:
    for name in names:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    raise ConfigurationError(f"this database needs the package {names[0]}: pip install {_INSTALLED_BY[names[0]]}")


_INSTALLED_BY = {
    "psycopg": "'celery-taskguard[postgresql]'",
    "pymysql": "pymysql",
    "sqlalchemy": "sqlalchemy",
}


_DIALECTS: dict[str, Dialect] = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
