"""`QuerySet.update` that a stale holder, or a stale reader, cannot carry out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskguard.errors import RowCountError, StaleFenceError, VersionConflictError

if TYPE_CHECKING:
    from taskguard.fence import Fence


def fenced_update(fence: Fence, queryset: Any, *, column: str = "fence", rows: int = 1, **values: Any) -> None:
    """`queryset.update(**values)` with `fence = token` where `fence <= token`, for exactly *rows* rows.

    Raises `StaleFenceError` if one of the rows has seen a higher token, `RowCountError` if there are not so many.
    """
    changed = queryset.filter(**{f"{column}__lte": fence.token}).update(**values, **{column: fence.token})
    if changed == rows:
        return
    found = _values(queryset, column)
    if max(found, default=0) > fence.token:
        raise StaleFenceError(fence.key, fence.token, queryset.model._meta.label, max(found))
    raise RowCountError(queryset.model._meta.label, rows, changed or len(found))


def versioned_update(queryset: Any, *, version: int, column: str = "version", **values: Any) -> int:
    """`queryset.update(**values)` on its one row if that still has *version*, counted up; the new version.

    Raises `VersionConflictError` if another has changed the row since, `RowCountError` if there is no such row.
    """
    changed = queryset.filter(**{column: version}).update(**values, **{column: version + 1})
    if changed == 1:
        return version + 1
    found = _values(queryset, column)
    if not changed and len(found) == 1 and found[0] != version:
        raise VersionConflictError(queryset.model._meta.label, version, found[0])
    raise RowCountError(queryset.model._meta.label, 1, changed or len(found))


def _values(queryset: Any, column: str) -> list[int]:
    from django.db import connections

    if connections[queryset.db].in_atomic_block and connections[queryset.db].features.has_select_for_update:
        queryset = queryset.select_for_update()  # as the rows are now, not as this transaction first saw them
    return [value or 0 for value in queryset.values_list(column, flat=True)]
