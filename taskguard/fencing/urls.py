"""A connection by the URL of a database, for commands: a task brings its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from importlib import import_module
from typing import Any
from urllib.parse import unquote, urlsplit

from taskguard.errors import ConfigurationError, StoreError
from taskguard.stores import safe_url


def connect(url: str) -> Any:
    """Open the database that *url* names: sqlite, postgresql, mysql or mariadb; dialect+driver by SQLAlchemy."""
    scheme = url.partition("://")[0].lower()
    opener = _sqlalchemy if "+" in scheme else _OPENERS.get(scheme)
    if opener is None:
        raise ConfigurationError(
            f"{safe_url(url)} is not the URL of a database; it must begin with sqlite:///, postgresql://, mysql:// or "
            "mariadb://, or be one of SQLAlchemy's with a driver"
        )
    try:
        return opener(url)
    except (ModuleNotFoundError, ConfigurationError):
        raise
    except Exception as error:  # each driver has its own for a database that cannot be reached
        raise StoreError(safe_url(url), str(error)) from error


def _sqlite(url: str) -> Any:
    path = unquote(urlsplit(url).path).removeprefix("/")
    if not path:
        raise ConfigurationError("sqlite:// names no file; write sqlite:///relative.db or sqlite:////absolute.db")
    return sqlite3.connect(path)


def _postgresql(url: str) -> Any:
    return _driver(("psycopg", "psycopg2")).connect(url)


def _mysql(url: str) -> Any:
    parts = urlsplit(url)
    named = {
        "host": parts.hostname or "localhost",
        "port": parts.port or 3306,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path).removeprefix("/"),
    }
    return _driver(("pymysql", "MySQLdb")).connect(**{name: value for name, value in named.items() if value})


def _sqlalchemy(url: str) -> Any:
    return _driver(("sqlalchemy",)).create_engine(url, future=True).connect()


def _driver(names: tuple[str, ...]) -> Any:
    for name in names:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    raise ConfigurationError(f"this needs one package of: {', '.join(names)}")


_OPENERS: dict[str, Callable[[str], Any]] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "postgres": _postgresql,
    "mysql": _mysql,
    "mariadb": _mysql,
}
