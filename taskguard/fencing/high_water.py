"""`fence.protect`: a resource stores its high-water mark, the highest token it has seen, and refuses a lower one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskguard.errors import StaleFenceError
from taskguard.fencing.connections import connected
from taskguard.fencing.statements import STATEMENTS
from taskguard.fencing.tables import ask, column_text

if TYPE_CHECKING:
    from taskguard.fence import Fence


def protect(fence: Fence, connection: Any, resource: str | None) -> None:
    database = connected(connection)
    database.require_transaction()
    name = fence.key if resource is None else resource
    dialect = database.dialect
    parameters = {"resource": column_text(name, dialect), "token": fence.token}
    outcome = ask(database, STATEMENTS[dialect].mark, parameters)
    mark = int(outcome.rows[0][0]) if outcome.rows else outcome.last_id
    if mark > fence.token:
        raise StaleFenceError(fence.key, fence.token, name, mark)
