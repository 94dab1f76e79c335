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

_TRIES = 2


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
    statement if it succeeds; safe in autocommit too.
    """
    bound = {**parameters, "taskguard_token": fence.token}
    sql = (
        f"UPDATE {table} SET {assignments}, {column} = :taskguard_token "
        f"WHERE ({where}) AND {column} <= :taskguard_token"
    )

    def judge(found: list[int]) -> None:
        if max(found, default=0) > fence.token:
            raise StaleFenceError(fence.key, fence.token, table, max(found))

    _update(connected(connection), sql, f"SELECT {column} FROM {table} WHERE {where}", bound, table, rows, judge)


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
    bound = {**parameters, "taskguard_version": version}
    sql = (
        f"UPDATE {table} SET {assignments}, {column} = :taskguard_version + 1 "
        f"WHERE ({where}) AND {column} = :taskguard_version"
    )

    def judge(found: list[int]) -> None:
        if len(found) == 1 and found[0] != version:
            raise VersionConflictError(table, version, found[0])

    _update(connected(connection), sql, f"SELECT {column} FROM {table} WHERE {where}", bound, table, 1, judge)
    return version + 1


def _update(
    database: Connected, sql: str, question: str, bound: dict[str, Any], table: str, rows: int, judge: Any
) -> None:
    if database.dialect != "sqlite":
        question += " FOR UPDATE"  # the rows as they are now, not as this transaction first saw them
    for _ in range(_TRIES):
        changed = database.run(sql, bound).changed
        if changed == rows:
            return
        if changed > rows:
            raise RowCountError(table, rows, changed)
        found = [int(row[0] or 0) for row in database.run(question, bound).rows]
        judge(found)
        if len(found) != rows:
            raise RowCountError(table, rows, len(found))
        if database.dialect == "mysql":
            return  # it counts only what differs from before, unless its connection was told otherwise
        # The row became one of these between the two statements; by now it is locked, and stays as it is.
    raise RowCountError(table, rows, changed)
