from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations

from taskguard.fencing.statements import STATEMENTS


def _create(apps: Any, editor: Any) -> None:
    _run(editor, "tables")


def _drop(apps: Any, editor: Any) -> None:
    _run(editor, "drop")


def _run(editor: Any, what: str) -> None:
    if editor.connection.vendor in STATEMENTS:  # on any other database the fence raises when it is used
        for statement in getattr(STATEMENTS[editor.connection.vendor], what):
            editor.execute(statement)


class Migration(migrations.Migration):  # type: ignore[misc]
    # No models: only the fence reads and writes the tables. Not atomic itself: where a transaction cannot create tables
    # Django would refuse, and where it can, the whole migration is one transaction anyway.
    operations: ClassVar[list[Any]] = [migrations.RunPython(_create, _drop, atomic=False)]
