"""The name of one occurrence of a job: its id, and what distinguishes the runs of that id.

An id runs many times with `Repeat` (the repetitions left are part of the name), with rq-scheduler, and when a person
requeues a failed job. RQ does not count the last two. So a run that ends records in the job's hash which enqueueing it
was. If a delivery finds its name used by an ended run, and comes from a later enqueueing, it is the next occurrence. A
deferred job keeps its enqueueing.

rq-scheduler may enqueue an id again before a worker took the previous occurrence, and RQ records only the latest
enqueueing. So for such a job every delivery that finds its name used is another occurrence, and the ends of one
enqueueing are counted.
"""

from __future__ import annotations

from typing import Any

from taskguard.rq.guarded_job import ENDED, ENDS, GuardedJob

PREFIX = "rq:"
"""The prefix of RQ's owners: keys can be shared with Celery, whose owners are plain ids."""
AFTER = ":after-"


def owner_of(job_id: str, repeats_left: int | None, run: str = "") -> str:
    repetition = "" if repeats_left is None else f"repeat-{repeats_left}"
    return PREFIX + ":".join(part for part in (job_id, run, repetition) if part)


def job_id_of(owner: str) -> str:
    """The id of the RQ job; empty if the owner is not an RQ job."""
    return owner.removeprefix(PREFIX).partition(":")[0] if owner.startswith(PREFIX) else ""


def is_other_run(run: str, owner: str) -> bool:
    """Whether *run* is another call than the owner's, under the same id, which their callers chose."""
    _, owner_run = [*owner.removeprefix(PREFIX).split(":"), ""][:2]
    return run not in ("", owner_run)


def shown(owner: str) -> str:
    """The owner as a caller knows it: by its id."""
    return job_id_of(owner) or owner


def occurrence_of(job: GuardedJob, owner: str) -> str:
    """The name for effects that happen once per occurrence. A failed job that a person requeues is the same one."""
    name = owner if job.is_scheduled_again else owner.partition(AFTER)[0]
    return name.removeprefix(PREFIX)


def next_owner(job: GuardedJob, owner: str) -> str:
    """The occurrence after those that ended; empty if this delivery is a leftover copy of one of them."""
    first, _, is_later = owner.partition(AFTER)
    if is_later and not job.is_scheduled_again:
        return ""
    found: Any = job.connection.hmget(job.key, ENDED, ENDS)
    ended, ends = (found[0] or b"0").decode(), (found[1] or b"").decode()
    if ended == job.enqueueing and not job.is_scheduled_again:
        return ""
    # Derived only from what ended: a deferred occurrence keeps its name, whatever is enqueued meanwhile.
    following = f"{first}{AFTER}{ended}" + (f"-{ends}" if ends else "")
    return "" if following == owner else following
