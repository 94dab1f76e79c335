"""The name of one occurrence of a job: its id, and what tells apart the times that RQ runs that id.

An id runs many times with `Repeat` (the repetitions left are part of the name), with rq-scheduler, and when somebody
puts a job that failed back into the queue. Of the last two RQ keeps no count. So a run that ends writes down, in the
job's own hash, which enqueueing it was; and a delivery that finds its name used up, and comes from a later enqueueing,
is the occurrence after that one. A job that is put back is of the same enqueueing as before.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from rq.job import Job
from rq.utils import utcformat

from taskguard.rq.note import Note

PREFIX = "rq:"
"""Keys can be shared with Celery, whose owners look the same: only those that start so are jobs of RQ."""
ENDED = "taskguard_ended"
"""The field of a job's hash that names the enqueueing whose run has ended."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def owner_of(job_id: str, repeats_left: int | None, run: str = "") -> str:
    repetition = "" if repeats_left is None else f"repeat-{repeats_left}"
    return PREFIX + ":".join(part for part in (job_id, run, repetition) if part)


def job_id_of(owner: str) -> str:
    """The id of the RQ job; empty if the owner is none."""
    return owner.removeprefix(PREFIX).partition(":")[0] if owner.startswith(PREFIX) else ""


def is_other_run(meta: Any, owner: str) -> bool:
    """Whether the job with that meta has the owner's id, which its callers chose, and is another call than the owner's.

    A body may have replaced the meta: then nothing speaks against it.
    """
    _, run = [*owner.removeprefix(PREFIX).split(":"), ""][:2]
    known = Note.of(meta, job_id_of(owner)).run
    return known not in ("", run)


def shown(owner: str) -> str:
    """The owner as a caller knows it: by its id."""
    return job_id_of(owner) or owner


def is_scheduled_again(job: Job) -> bool:
    """Whether rq-scheduler enqueues this id time after time."""
    return "interval" in job.meta or "cron_string" in job.meta


def occurrence_of(job: Job, owner: str) -> str:
    """For what must happen once in each occurrence. A job that failed, and is put back by hand, is the same one."""
    name = owner if is_scheduled_again(job) else owner.partition(":after-")[0]
    return name.removeprefix(PREFIX)


def note_end(job: Job) -> None:
    if job.connection.exists(job.key):  # else it was deleted, and would be there again
        job.connection.hset(job.key, ENDED, enqueueing_of(job))


def next_owner(job: Job, owner: str) -> str:
    """The occurrence after the one that has ended; empty if this delivery is a leftover copy of that one."""
    ended: Any = job.connection.hget(job.key, ENDED)
    name = (ended or b"0").decode()
    return "" if name == enqueueing_of(job) else f"{owner}:after-{name}"


def enqueueing_of(job: Any) -> str:
    return "0" if job.enqueued_at is None else str(round(job.enqueued_at.timestamp() * 1_000_000))


def restore_enqueueing(job: Job, name: str) -> None:
    """A job that was put back: for all that RQ tells, it was enqueued when it first was."""
    if name != "0":
        job.enqueued_at = _EPOCH + timedelta(microseconds=int(name))
        job.connection.hset(job.key, "enqueued_at", utcformat(job.enqueued_at))
