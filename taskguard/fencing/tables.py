"""The two small tables in the user's own database: create, purge and query them.

`taskguard_fence` has the high-water mark of each resource (the highest token it has seen), `taskguard_once` the effects
that have happened.
"""

from __future__ import annotations

import hashlib
from typing import Any

from taskguard.errors import ConfigurationError
from taskguard.fencing.connections import Connected, Dialect, Outcome, connected
from taskguard.fencing.statements import STATEMENTS

__all__ = ["create_tables", "purge"]

LONGEST_NAME = 255
"""Bytes of a name in a column of these tables; a longer name is cut and ends with a digest."""
MONTH = 30 * 86400.0

_CREATING_TABLES = 5_279_331_846
_NO_SUCH_TABLE = ("42P01", "42S02", 1146)
"""The error code of PostgreSQL, and the two of MariaDB."""


def create_tables(connection: Any) -> None:
    """Create both tables if they do not exist. On MariaDB and MySQL this commits: call it outside a transaction."""
    database = connected(connection)
    if database.dialect == "postgresql":
        # Two processes that create a table at once can fail even with IF NOT EXISTS.
        database.run("SELECT pg_advisory_xact_lock(:number)", {"number": _CREATING_TABLES})
    for statement in STATEMENTS[database.dialect].tables:
        database.run(statement, {})


def purge(connection: Any, *, older_than: float = MONTH, at_most: int = 1000) -> int:
    """Delete high-water marks and effects older than *older_than* seconds, at most *at_most* of each; return how many.

    `fence.protect` no longer refuses a process that was paused longer than that. An effect stays for its task's
    `keep_for` if that is longer. Commit after each call, and repeat until it returns 0.
    """
    database = connected(connection)
    statements = STATEMENTS[database.dialect]
    page = {"age": int(older_than), "most": at_most}
    gone = 0
    for (resource,) in ask(database, statements.old_marks, page).rows:
        gone += database.run(statements.drop_mark, {**page, "resource": resource}).changed
    for effect, name in ask(database, statements.old_effects, page).rows:
        gone += database.run(statements.drop_effect, {**page, "effect": effect, "name": name}).changed
    return gone


def ask(database: Connected, sql: str, parameters: dict[str, Any]) -> Outcome:
    """Run one statement on these tables. SQLite can create missing tables in the caller's transaction, so it does."""
    try:
        return database.run(sql, parameters)
    except Exception as error:
        if not _is_missing_table(error):
            raise
        if database.dialect != "sqlite":
            raise ConfigurationError(
                "this database has no tables taskguard_fence and taskguard_once: run `taskguard migrate URL`, "
                "or Django's migrate with taskguard.fencing.django among its apps, or call "
                "taskguard.fencing.tables.create_tables(connection) once"
            ) from error
    for statement in STATEMENTS["sqlite"].tables:
        database.run(statement, {})
    return database.run(sql, parameters)


def column_text(name: str, dialect: Dialect) -> str | bytes:
    """*name* for a column: cut if it is too long, and as UTF-8 bytes where the column holds bytes."""
    if not isinstance(name, str):
        raise ConfigurationError(f"the name of a resource or an effect must be a string, not {name!r}")
    data = name.encode("utf-8", "surrogatepass")
    if len(data) > LONGEST_NAME or b"\0" in data or (len(data) != len(name) and not _is_utf8(data)):
        digest = hashlib.sha256(data).hexdigest()
        data = data[:150].replace(b"\0", b"").decode("utf-8", "ignore").encode() + b"#" + digest.encode()
    return data if dialect == "mysql" else data.decode()


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_missing_table(error: BaseException) -> bool:
    """Whether the error means that the table does not exist; toolkits wrap the driver's error."""
    raised = getattr(error, "orig", None) or (error.__cause__ if _is_django(error) else None) or error
    codes = {getattr(raised, "sqlstate", None), getattr(raised, "pgcode", None), *(raised.args or ())[:1]}
    return not codes.isdisjoint(_NO_SUCH_TABLE) or str(raised).startswith("no such table: taskguard_")


def _is_django(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "django"
