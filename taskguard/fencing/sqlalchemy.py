"""A fencing token, or a version, in a column of a SQLAlchemy table: mixins for models, and updates of Core and ORM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Column, Table, __version__, func, select
from sqlalchemy.sql import Update

from taskguard.errors import RowCountError, StaleFenceError, VersionConflictError
from taskguard.fencing.connections import connected
from taskguard.fencing.updates import counted

if TYPE_CHECKING:
    from taskguard.fence import Fence

__all__ = ["FencedMixin", "VersionedMixin", "fenced_update", "versioned_update"]

_IS_1 = __version__.startswith("1.")


class FencedMixin:
    """A column `fence`: the token of the holder that last changed the row."""

    fence = Column(BigInteger, nullable=False, default=0, server_default="0")


class VersionedMixin:
    """A column `version`, which each change increments."""

    version = Column(BigInteger, nullable=False, default=0, server_default="0")


def fenced_update(fence: Fence, connection: Any, statement: Update, *, column: str = "fence", rows: int = 1) -> None:
    """Execute *statement* with `fence = token` where `fence <= token`, for exactly *rows* rows.

    *connection* is a Connection or a Session. Raises `StaleFenceError` if one of the rows has seen a higher token, and
    `RowCountError` if the number of rows differs. Several rows need a transaction, so that all of them change or none.
    """
    if rows != 1:
        connected(connection).require_transaction()
    table, target = _column(statement, column)
    guarded = _with_condition(statement, func.coalesce(target, 0) <= fence.token).values({column: fence.token})
    changed = connection.execute(guarded).rowcount
    if changed == rows:
        return
    found = _values(connection, statement, target)
    if max(found, default=0) > fence.token:
        raise StaleFenceError(fence.key, fence.token, table.name, max(found))
    raise RowCountError(table.name, rows, counted(changed, found, rows))


def versioned_update(connection: Any, statement: Update, *, version: int, column: str = "version") -> int:
    """Execute *statement* on its one row if that still has *version*, increment the version, and return the new one.

    Raises `VersionConflictError` if somebody changed the row since, `RowCountError` if there is not exactly one row.
    """
    table, target = _column(statement, column)
    guarded = _with_condition(statement, func.coalesce(target, 0) == version).values({column: version + 1})
    changed = connection.execute(guarded).rowcount
    if changed == 1:
        return version + 1
    found = _values(connection, statement, target)
    if not changed and len(found) == 1 and found[0] != version:
        raise VersionConflictError(table.name, version, found[0])
    raise RowCountError(table.name, 1, counted(changed, found, 1))


def _with_condition(statement: Update, condition: Any) -> Update:
    if _IS_1 and "synchronize_session" not in statement.get_execution_options():
        # By default SQLAlchemy evaluates conditions on the session's objects in Python, and cannot evaluate this one.
        statement = statement.execution_options(synchronize_session="fetch")
    return statement.where(condition)


def _column(statement: Update, name: str) -> tuple[Table, Any]:
    """The table, and the column; for a statement on a model, its attribute."""
    table: Any = statement.table
    entity = statement.entity_description.get("entity")
    return table, table.c[name] if entity is None else getattr(entity, name)


def _values(connection: Any, statement: Update, target: Any) -> list[int]:
    """The current values of the column in the rows that match the user's condition."""
    question = select(target).with_for_update()
    condition = statement.whereclause
    if condition is not None:
        question = question.where(condition)
    return [int(row[0] or 0) for row in connection.execute(question)]
