"""A fencing token, or a version, in a column of the user's own table: SQL for any connection.

`table`, `assignments`, `where` and `column` are SQL that the program writes; bind values from outside as `:name`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from taskguard.errors import RowCountError, StaleFenceError, VersionConflictError
from taskguard.fencing.connections import Connected, connected

if TYPE_CHECKING:
    from taskguard.fence import Fence

__all__ = ["fenced_update", "versioned_update"]


def fenced_update(
    fence: Fence,
    connection: Any,
    table: str,
    assignments: str,
    where: str,
    parameters: Mapping[str, Any],
    *,
    column: str = "fence",
    rows: int = 1,
) -> None:
    """`UPDATE table SET assignments, fence = token WHERE (where) AND fence <= token`, for exactly *rows* rows.

    Raises `StaleFenceError` if one of the rows has seen a higher token, and `RowCountError` if the number of rows
    differs. Success takes one statement. One row may change in autocommit mode too; several rows need a transaction, so
    that all of them change or none.
    """
    database = connected(connection)
    if rows != 1:
        database.require_transaction()
    bound = {**parameters, "taskguard_token": fence.token}
    sql = (
        f"UPDATE {table} SET {assignments}, {column} = :taskguard_token "
        f"WHERE ({where}) AND COALESCE({column}, 0) <= :taskguard_token"
    )
    question = f"SELECT {column} FROM {table} WHERE {where}"
    for last in (False, True):
        changed = database.run(sql, bound).changed
        if changed == rows:
            return
        if changed > rows:
            raise RowCountError(table, rows, changed)
        found = _current_values(database, question, bound)
        if max(found, default=0) > fence.token:
            raise StaleFenceError(fence.key, fence.token, table, max(found))
        if len(found) != rows:
            raise RowCountError(table, rows, len(found))
        if changed or last:
            break
        # Nothing changed, and yet the rows exist, locked by now. Either they began to match the condition between the
        # two statements, or they already had these values, and MariaDB counts only rows that differ.
    if database.dialect != "mysql" or found != [fence.token] * rows:
        raise RowCountError(table, rows, counted(changed, found, rows))


def versioned_update(
    connection: Any,
    table: str,
    assignments: str,
    where: str,
    parameters: Mapping[str, Any],
    *,
    version: int,
    column: str = "version",
) -> int:
    """Update the one row that matches *where* if it still has *version*, increment the version, and return the new one.

    Raises `VersionConflictError` if somebody changed the row since, `RowCountError` if there is not exactly one row.
    """
    database = connected(connection)
    bound = {**parameters, "taskguard_version": version}
    sql = (
        f"UPDATE {table} SET {assignments}, {column} = :taskguard_version + 1 "
        f"WHERE ({where}) AND COALESCE({column}, 0) = :taskguard_version"
    )
    question = f"SELECT {column} FROM {table} WHERE {where}"
    for _ in range(2):
        changed = database.run(sql, bound).changed
        if changed == 1:
            return version + 1
        found = [] if changed else _current_values(database, question, bound)
        if len(found) == 1 and found[0] != version:
            raise VersionConflictError(table, version, found[0])
        if len(found) != 1:
            break
        # The row has that version and is locked by now: a moment ago it did not match the condition.
    raise RowCountError(table, 1, counted(changed, found, 1))


def counted(changed: int, found: list[int], rows: int) -> int:
    """The number of rows to report. If as many as expected are found only afterwards, the update did not match them."""
    return changed if changed or len(found) == rows else len(found)


def _current_values(database: Connected, question: str, bound: dict[str, Any]) -> list[int]:
    """The current values of the column, not those that this transaction first saw."""
    if database.dialect != "sqlite":
        question += " FOR UPDATE"
    return [int(row[0] or 0) for row in database.run(question, bound).rows]
