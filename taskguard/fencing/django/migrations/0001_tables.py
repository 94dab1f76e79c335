from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations

from taskguard.fencing.statements import STATEMENTS


def _create(apps: Any, editor: Any) -> None:
    _run(editor, "tables")


def _drop(apps: Any, editor: Any) -> None:
    _run(editor, "drop")


def _run(editor: Any, what: str) -> None:
    if editor.connection.vendor in STATEMENTS:  # on any other database a fence says so when it is used
        for statement in getattr(STATEMENTS[editor.connection.vendor], what):
            editor.execute(statement)


class Migration(migrations.Migration):  # type: ignore[misc]
    # No models: the tables are read and written by the fence alone. Not atomic by itself: where tables cannot be made
    # in a transaction Django would refuse, and where they can, the whole migration is one anyway.
    operations: ClassVar[list[Any]] = [migrations.RunPython(_create, _drop, atomic=False)]
