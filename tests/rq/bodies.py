"""What the bodies of jobs are made of: see `tests.bodies`."""

from __future__ import annotations

from typing import Any

from rq import get_current_job

from tests.bodies import Notes, wait_at

__all__ = ["note", "noted", "wait_at", "working"]


def _whose() -> dict[str, Any]:
    job = get_current_job()
    return {"job_id": job.id if job else None}


_notes = Notes(_whose)
note, noted, working = _notes.note, _notes.noted, _notes.working
