"""What task bodies are made of: see `tests.bodies`."""

from __future__ import annotations

from typing import Any

from celery import current_task

from tests.bodies import Notes, wait_at

__all__ = ["note", "noted", "wait_at", "working"]


def _whose() -> dict[str, Any]:
    return {"task_id": current_task.request.id if current_task else None}


_notes = Notes(_whose)
note, noted, working = _notes.note, _notes.noted, _notes.working
