"""`QuerySet.update` that refuses a stale holder or a stale reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections, router
from django.db.models import Q
from django.db.models.sql import UpdateQuery

from taskguard.errors import ConfigurationError, RowCountError, StaleFenceError, VersionConflictError
from taskguard.fencing.connections import connected
from taskguard.fencing.updates import counted

if TYPE_CHECKING:
    from taskguard.fence import Fence


def fenced_update(fence: Fence, queryset: Any, *, column: str = "fence", rows: int = 1, **values: Any) -> None:
    """`queryset.update(**values)` with `fence = token` where `fence <= token`, for exactly *rows* rows.

    Raises `StaleFenceError` if one of the rows has seen a higher token, and `RowCountError` if the number of rows
    differs. Several rows need a transaction, so that all of them change or none.
    """
    queryset = _in_write_database(queryset)
    if rows != 1:
        connected(connections[queryset.db]).require_transaction()
    changed = _update(queryset, {f"{column}__lte": fence.token}, column, {**values, column: fence.token})
    if changed == rows:
        return
    found = _values(queryset, column)
    if max(found, default=0) > fence.token:
        raise StaleFenceError(fence.key, fence.token, queryset.model._meta.label, max(found))
    raise RowCountError(queryset.model._meta.label, rows, counted(changed, found, rows))


def versioned_update(queryset: Any, *, version: int, column: str = "version", **values: Any) -> int:
    """`queryset.update(**values)` on its one row if that still has *version*; increments and returns the version.

    Raises `VersionConflictError` if somebody changed the row since, `RowCountError` if there is not exactly one row.
    """
    queryset = _in_write_database(queryset)
    changed = _update(queryset, {column: version}, column, {**values, column: version + 1}, or_null=not version)
    if changed == 1:
        return version + 1
    found = _values(queryset, column)
    if not changed and len(found) == 1 and found[0] != version:
        raise VersionConflictError(queryset.model._meta.label, version, found[0])
    raise RowCountError(queryset.model._meta.label, 1, counted(changed, found, 1))


def _in_write_database(queryset: Any) -> Any:
    """The same rows in the database for writes: a router may read from a replica, which may lag."""
    return queryset.using(queryset._db or router.db_for_write(queryset.model, **queryset._hints))


def _update(queryset: Any, condition: dict[str, Any], column: str, values: dict[str, Any], or_null: bool = True) -> int:
    """Update in one statement whose own condition reads the column.

    If more than one table is involved, Django first selects the rows and then updates them by their ids. It would
    overwrite what changed in between, or while the second statement waited for a row.
    """
    allowed = Q(**condition)
    if or_null:
        allowed |= Q(**{f"{column}__isnull": True})
    guarded = queryset.filter(allowed)
    query = guarded.query.chain(UpdateQuery)
    query.add_update_values(values)
    query.get_initial_alias()
    if query.related_updates or query.count_active_tables() > 1:
        raise ConfigurationError(
            f"Django would update {queryset.model._meta.label} in two steps, because another table is involved, and "
            "another holder could write in between; filter by columns of its own table, such as pk__in=[…], and set "
            "only those"
        )
    return int(guarded.update(**values))


def _values(queryset: Any, column: str) -> list[int]:
    if connections[queryset.db].in_atomic_block and connections[queryset.db].features.has_select_for_update:
        queryset = queryset.select_for_update()  # as the rows are now, not as this transaction first saw them
    return [value or 0 for value in queryset.values_list(column, flat=True)]
