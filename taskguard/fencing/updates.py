"""A fence, or a version, in a column of the user's own table: SQL for any connection.

`table`, `assignments`, `where` and `column` are SQL of the program's own; values from elsewhere are bound, as `:name`.
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

    Raises `StaleFenceError` if one of them has seen a higher token, `RowCountError` if there are not so many. One
    statement if it succeeds. One row may be changed in autocommit too; several rows need a transaction, so that all
    of them are changed or none.
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
        found = _as_they_are(database, question, bound)
        if max(found, default=0) > fence.token:
            raise StaleFenceError(fence.key, fence.token, table, max(found))
        if len(found) != rows:
            raise RowCountError(table, rows, len(found))
        if changed or last:
            break
        # Nothing is changed, and yet the rows are there, locked by now. Either they came to be what the condition asks
        # for between the two statements, or they were as they should be, and MariaDB counts only what differs.
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
    """Change the one row that *where* is true for if it still has *version*, and count that up; the new version.

    Raises `VersionConflictError` if another has changed it since, `RowCountError` if there is no such row.
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
        found = [] if changed else _as_they_are(database, question, bound)
        if len(found) == 1 and found[0] != version:
            raise VersionConflictError(table, version, found[0])
        if len(found) != 1:
            break
        # It has that version, and is locked by now: it was not what the condition asks for a moment ago.
    raise RowCountError(table, 1, counted(changed, found, 1))


def counted(changed: int, found: list[int], rows: int) -> int:
    """How many rows to speak of. As many as were expected, found later, were not there when the update looked."""
    return changed if changed or len(found) == rows else len(found)


def _as_they_are(database: Connected, question: str, bound: dict[str, Any]) -> list[int]:
    """The column in the rows as they are now, not as this transaction first saw them."""
    if database.dialect != "sqlite":
        question += " FOR UPDATE"
    return [int(row[0] or 0) for row in database.run(question, bound).rows]
