"""One interface to the caller's connection, from whichever driver or toolkit: dialect, transaction, statement.

SQL has `:name` for each bound value; `rendered` translates it for each driver.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, NoReturn, Protocol, TypeAlias

from taskguard.errors import ConfigurationError

Dialect: TypeAlias = Literal["postgresql", "mysql", "sqlite"]

_NAMED = re.compile(r"(?<![:\w\\]):([A-Za-z_]\w*)(?!:)")
_IDLE = 0
"""libpq: no transaction is open."""
_IN_TRANSACTION = 1
"""MySQL's protocol: a transaction is open."""


class Outcome(NamedTuple):
    rows: Sequence[Sequence[Any]]
    changed: int
    last_id: int


class Connected(Protocol):
    """The interface that every kind of connection has here."""

    dialect: Dialect

    def require_transaction(self) -> None:
        """Raise unless the next statement is part of a transaction that the caller ends."""

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Outcome:
        """Run one statement in the connection's current transaction."""


def connected(connection: Any) -> Connected:
    """*connection* behind the interface, chosen by the driver or toolkit of its class."""
    kind = _kind_of(connection.__class__)  # not type(): a tracer's wrapper shows the class of what it wraps
    if kind is None:
        _refuse(connection)
    database: Connected = kind(connection)
    return database


@lru_cache(maxsize=64)
def _kind_of(cls: type) -> Any:
    if "Async" in cls.__name__:
        return None
    packages = (base.__module__.partition(".")[0] for base in cls.__mro__)
    return next((_KINDS[package] for package in packages if package in _KINDS), None)


def _refuse(connection: Any) -> NoReturn:
    raise ConfigurationError(
        f"{connection!r} is not a supported connection; pass one of psycopg, psycopg2, sqlite3, PyMySQL or "
        "mysqlclient, a Connection or Session of SQLAlchemy (an asynchronous one through run_sync), or Django's"
    )


def _needs_transaction(what: str, instead: str) -> NoReturn:
    raise ConfigurationError(
        f"{what} commits each statement by itself, so the fence would not hold until your own writes commit; {instead}"
    )


@lru_cache(maxsize=256)
def rendered(sql: str, placeholder: str) -> tuple[str, tuple[str, ...]]:
    """*sql* with *placeholder* for each `:name`, and the names in order."""
    if placeholder == "%s":
        sql = sql.replace("%", "%%")
    return _NAMED.sub(placeholder, sql), tuple(_NAMED.findall(sql))


class _Driver:
    """A connection as PEP 249 defines it."""

    dialect: Dialect
    placeholder = "%s"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        if not hasattr(connection, "cursor") or not hasattr(connection, "commit"):
            _refuse(connection)

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Outcome:
        text, names = rendered(sql, self.placeholder)
        cursor = self._cursor()
        try:
            cursor.execute(text, tuple(parameters[name] for name in names))
            rows = cursor.fetchall() if cursor.description else ()
            return Outcome(rows, cursor.rowcount, getattr(cursor, "lastrowid", 0) or 0)
        finally:
            cursor.close()

    def _cursor(self) -> Any:
        """A cursor that returns plain tuples, whatever the connection's default."""
        raise NotImplementedError


class _Libpq(_Driver):
    dialect: Dialect = "postgresql"

    def require_transaction(self) -> None:
        if self._connection.autocommit and self._connection.info.transaction_status == _IDLE:
            _needs_transaction("a connection in autocommit", "open a transaction first, or turn autocommit off")


class _Psycopg(_Libpq):
    def _cursor(self) -> Any:
        from psycopg.rows import tuple_row

        return self._connection.cursor(row_factory=tuple_row)


class _Psycopg2(_Libpq):
    def _cursor(self) -> Any:
        from psycopg2.extensions import cursor

        return self._connection.cursor(cursor_factory=cursor)


class _SQLite(_Driver):
    dialect: Dialect = "sqlite"
    placeholder = "?"

    def require_transaction(self) -> None:
        connection = self._connection
        by_itself = connection.isolation_level is None if _is_legacy(connection) else connection.autocommit
        if by_itself and not connection.in_transaction:
            _needs_transaction(
                "a connection with isolation_level=None or autocommit=True", "execute BEGIN IMMEDIATE first"
            )

    def _cursor(self) -> Any:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor


def _is_legacy(connection: Any) -> bool:
    return getattr(connection, "autocommit", -1) == -1  # sqlite3.LEGACY_TRANSACTION_CONTROL, on Python 3.12 and newer


class _MySQL(_Driver):
    dialect: Dialect = "mysql"

    def require_transaction(self) -> None:
        if self._connection.get_autocommit() and not self._is_in_transaction():
            _needs_transaction(
                "a connection in autocommit", "call autocommit(False), or begin() a transaction where the driver has it"
            )

    def _is_in_transaction(self) -> bool:
        raise NotImplementedError


class _PyMySQL(_MySQL):
    def _is_in_transaction(self) -> bool:
        return bool(self._connection.server_status & _IN_TRANSACTION)

    def _cursor(self) -> Any:
        from pymysql.cursors import Cursor

        return self._connection.cursor(Cursor)


class _MySQLdb(_MySQL):
    def _is_in_transaction(self) -> bool:
        # This driver hides the server's status. MariaDB has a variable for it; MySQL does not, and is refused.
        try:
            return bool(self.run("SELECT @@in_transaction", {}).rows[0][0])
        except self._connection.OperationalError:
            return False

    def _cursor(self) -> Any:
        from MySQLdb.cursors import Cursor

        return self._connection.cursor(Cursor)


class _Django:
    def __init__(self, connection: Any) -> None:
        if connection.vendor not in ("postgresql", "mysql", "sqlite"):
            raise ConfigurationError(
                f"fences do not support {connection.vendor}; use PostgreSQL, MariaDB, MySQL or SQLite"
            )
        self._connection = connection
        self.dialect: Dialect = connection.vendor

    def require_transaction(self) -> None:
        if not self._connection.in_atomic_block and self._connection.get_autocommit():
            _needs_transaction("Django outside atomic()", "put both into `with transaction.atomic():`")

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Outcome:
        text, names = rendered(sql, "%s")
        with self._connection.cursor() as cursor:
            cursor.execute(text, [parameters[name] for name in names])
            rows = cursor.fetchall() if cursor.description else ()
            return Outcome(rows, cursor.rowcount, getattr(cursor, "lastrowid", 0) or 0)


class _SQLAlchemy:
    def __init__(self, connection: Any) -> None:
        if _is_session(connection):
            connection = connection.connection()
        if not hasattr(connection, "exec_driver_sql") or not hasattr(connection, "in_transaction"):
            _refuse(connection)
        name = connection.dialect.name
        if name not in ("postgresql", "mysql", "mariadb", "sqlite"):
            raise ConfigurationError(f"fences do not support {name}; use PostgreSQL, MariaDB, MySQL or SQLite")
        self._connection = connection
        self.dialect: Dialect = "mysql" if name == "mariadb" else name

    def require_transaction(self) -> None:
        connection = self._connection
        if not connection.in_transaction():
            if not getattr(connection, "_is_future", True):
                _needs_transaction("a Connection of SQLAlchemy 1.4 without begin()", "use `with engine.begin() as …:`")
            connection.begin()  # as its next statement would: an engine may send BEGIN itself at that point
        raw = connection.connection.dbapi_connection
        if self.dialect == "sqlite" and connection.in_nested_transaction() and _begins_when_it_writes(raw):
            raise ConfigurationError(
                "sqlite3 begins a transaction at the first write, so a savepoint before that is the transaction and "
                "commits at its end; call this before begin_nested(), or let SQLAlchemy send BEGIN (see its docs)"
            )
        if _kind_of(raw.__class__) not in (None, _SQLAlchemy):
            connected(raw).require_transaction()
        elif _is_autocommit(connection, raw):
            _needs_transaction("a Connection in AUTOCOMMIT", "use one that has transactions")

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Outcome:
        text = _text(sql)
        result = self._connection.execute(text, {name: parameters[name] for name in rendered(sql, "?")[1]})
        if result.returns_rows:
            changed = result.rowcount
            return Outcome(result.fetchall(), changed, 0)
        return Outcome((), result.rowcount, result.lastrowid or 0 if self.dialect == "mysql" else 0)


@lru_cache(maxsize=256)
def _text(sql: str) -> Any:
    from sqlalchemy import text

    return text(sql)


def _is_autocommit(connection: Any, raw: Any) -> bool:
    """Whether the connection, its engine or an unknown driver sets autocommit."""
    level = connection.get_execution_options().get("isolation_level")
    if level is None:
        level = getattr(connection.dialect, "_on_connect_isolation_level", None)
    return level == "AUTOCOMMIT" or getattr(raw, "autocommit", False) is True


def _begins_when_it_writes(raw: Any) -> bool:
    return _is_legacy(raw) and getattr(raw, "isolation_level", None) is not None


def _is_session(connection: Any) -> bool:
    orm = sys.modules.get("sqlalchemy.orm")
    return orm is not None and isinstance(connection, (orm.Session, orm.scoped_session))


_KINDS: dict[str, Any] = {
    "psycopg": _Psycopg,
    "psycopg2": _Psycopg2,
    "sqlite3": _SQLite,
    "pymysql": _PyMySQL,
    "MySQLdb": _MySQLdb,
    "django": _Django,
    "sqlalchemy": _SQLAlchemy,
}
