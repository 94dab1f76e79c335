"""What the bodies of jobs are made of: see `tests.bodies`."""

from __future__ import annotations

import logging
import os
from typing import Any

from rq import get_current_job

from tests.bodies import Notes, wait_at

__all__ = ["note", "noted", "wait_at", "working"]

TELLS = "TASKGUARD_TEST_TELLS"
"""The environment variable of workers whose log has the guard's decisions too, so that a test can await them."""

if os.environ.get(TELLS):
    _logger = logging.getLogger("taskguard")
    _logger.setLevel(logging.INFO)
    _logger.addHandler(logging.StreamHandler())


def _whose() -> dict[str, Any]:
    job = get_current_job()
    return {"job_id": job.id if job else None}


_notes = Notes(_whose)
note, noted, working = _notes.note, _notes.noted, _notes.working
