"""The name of one occurrence of a job: its id, and what tells apart the times that RQ runs that id.

An id runs many times with `Repeat` (the repetitions left are part of the name), with rq-scheduler, and when somebody
puts a job that failed back into the queue. Of the last two RQ keeps no count. So a run that ends writes down, in the
job's own hash, which enqueueing it was; and a delivery that finds its name used up, and comes from a later enqueueing,
is the occurrence after that one. A job that is put back is of the same enqueueing as before.

What rq-scheduler enqueues before a worker came to the occurrence before it cannot be told apart by that: RQ's record
names the latest enqueueing only. So of such a job every delivery that finds its name used up is another occurrence, and
the ends of one enqueueing are counted.
"""

from __future__ import annotations

from typing import Any

from taskguard.rq.guarded_job import ENDED, ENDS, GuardedJob

PREFIX = "rq:"
"""Keys can be shared with Celery, whose owners look the same: only those that start so are jobs of RQ."""
AFTER = ":after-"


def owner_of(job_id: str, repeats_left: int | None, run: str = "") -> str:
    repetition = "" if repeats_left is None else f"repeat-{repeats_left}"
    return PREFIX + ":".join(part for part in (job_id, run, repetition) if part)


def job_id_of(owner: str) -> str:
    """The id of the RQ job; empty if the owner is none."""
    return owner.removeprefix(PREFIX).partition(":")[0] if owner.startswith(PREFIX) else ""


def is_other_run(run: str, owner: str) -> bool:
    """Whether a job of that run, and of the owner's id, which its callers chose, is another call than the owner's."""
    _, owner_run = [*owner.removeprefix(PREFIX).split(":"), ""][:2]
    return run not in ("", owner_run)


def shown(owner: str) -> str:
    """The owner as a caller knows it: by its id."""
    return job_id_of(owner) or owner


def occurrence_of(job: GuardedJob, owner: str) -> str:
    """For what must happen once in each occurrence. A job that failed, and is put back by hand, is the same one."""
    name = owner if job.is_scheduled_again else owner.partition(AFTER)[0]
    return name.removeprefix(PREFIX)


def next_owner(job: GuardedJob, owner: str) -> str:
    """The occurrence after those that have ended; empty if this delivery is a leftover copy of one of them."""
    first, _, is_later = owner.partition(AFTER)
    if is_later and not job.is_scheduled_again:
        return ""
    found: Any = job.connection.hmget(job.key, ENDED, ENDS)
    ended, ends = (found[0] or b"0").decode(), (found[1] or b"").decode()
    if ended == job.enqueueing and not job.is_scheduled_again:
        return ""
    # Only by what has ended: an occurrence that is put back keeps its name, whatever is enqueued meanwhile.
    following = f"{first}{AFTER}{ended}" + (f"-{ends}" if ends else "")
    return "" if following == owner else following
