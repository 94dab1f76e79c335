"""What RQ knows of the job that holds a key.

RQ calls no hook when a job is cancelled, deleted or expires. So whoever finds its entry held checks the job.
"""

from __future__ import annotations

import time
from typing import Any

from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job, JobStatus

from taskguard.engine.settle import end_queued
from taskguard.guard import Guard
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import MICROS, Claimant, Ending, Entry, Held, How, Store
from taskguard.rq.guarded_job import GuardedJob, guarded_job_class
from taskguard.rq.owner import is_other_run, job_id_of

APPEARS_WITHIN = 1.0
"""Seconds that a job may be missing in RQ between claim and enqueueing. After that its caller has died in between."""
LOST_AFTER = 300.0
"""Seconds after which a queued job is searched for in its queue: a worker may have died after taking it."""

_AHEAD = (JobStatus.QUEUED, JobStatus.STARTED, JobStatus.DEFERRED, JobStatus.SCHEDULED)


class HolderJob:
    """The holder of a key, as RQ sees it."""

    def __init__(self, held: Held | Entry, connection: Any, job_class: type[Job] = Job, serializer: Any = None) -> None:
        self.held = held
        self.id = job_id_of(held.owner)
        """Empty if the holder is not an RQ job: then RQ knows nothing about it."""
        self._connection = connection
        self._job_class = guarded_job_class(job_class)
        self._serializer = serializer
        self.job = self._fetch(self.id)

    def _fetch(self, job_id: str) -> Job | None:
        if not job_id:
            return None
        try:
            job: GuardedJob = self._job_class.fetch(job_id, connection=self._connection, serializer=self._serializer)
        except NoSuchJobError:
            return None
        # A record of an earlier call with this id is not the holder's, which is not enqueued yet.
        return None if is_other_run(job.run_name, self.held.owner) and job_id == self.id else job

    @property
    def is_gone(self) -> bool:
        """Whether RQ will not run it: cancelled, stopped, failed, finished, expired or deleted; or dependent on a job
        that will not finish."""
        if not self.id:
            return False
        return self.job is None or not self._may_run(self.job, set())

    def _may_run(self, job: Job, seen: set[str]) -> bool:
        status = job.get_status(refresh=False)
        if status != JobStatus.DEFERRED:
            return status in _AHEAD
        if job.id in seen:
            return True
        seen.add(job.id)
        parents = [self._fetch(parent) for parent in job.dependency_ids]
        alive = [parent for parent in parents if parent is not None and parent.get_status(refresh=False) in _AHEAD]
        if any(parent is not None and _is_in_the_way(parent, job) for parent in parents):
            return False
        # A deleted parent never enqueues its dependents; one that has just ended may be doing so.
        if not alive:
            return None not in parents
        return all(self._may_run(parent, seen) for parent in alive)

    @property
    def is_put_off(self) -> bool:
        """Whether it waits for its time or for other jobs, not for a worker."""
        later = (JobStatus.SCHEDULED, JobStatus.DEFERRED)
        return self.job is not None and self.job.get_status(refresh=False) in later

    def wait_until_it_appears(self, store: Store) -> None:
        """Wait for a job that was just claimed and is not enqueued yet."""
        if not self.id or self.job is not None:
            return
        from taskguard.schedule.clock import StoreClock  # few calls need it

        # By the store's clock, like `held.since`: a caller whose clock is ahead would treat a new job as gone.
        recent = StoreClock(store).now() / MICROS - self.held.since < 2 * APPEARS_WITHIN
        give_up = time.monotonic() + APPEARS_WITHIN
        while recent and self.job is None and time.monotonic() < give_up:
            time.sleep(0.02)
            self.job = self._fetch(self.id)

    def enqueue_if_lost(self) -> None:
        """Push its id into its queue again if the queue has lost it."""
        job = self.job
        if job is None or time.time() - self.held.since < LOST_AFTER or job.get_status(refresh=False) != "queued":
            return
        queue = Queue(job.origin, connection=self._connection)
        waiting = self._connection.lpos(queue.key, job.id) is not None
        if not waiting and self._connection.lpos(queue.intermediate_queue_key, job.id) is None:
            queue.push_job_id(job.id)  # if the first copy turns up after all, the second is recognised by its id

    def end(self, guard: Guard, policy: Policy) -> None:
        """Release its queue entry: RQ will not run it. If a worker has started it all the same, do nothing."""
        how: How = "expired" if self.job is None else "revoked"
        if end_queued(guard, self.held.key, self.held.owner, Ending(how=how, keep_for=policy.keep)):
            claimant = Claimant(self.held.key, self.held.owner, "")
            guard.report("released", claimant, detail=f"{how}: RQ will not run this job")


def _is_in_the_way(parent: Job, job: Job) -> bool:
    """Whether the way the parent ended keeps RQ from ever enqueueing the job."""
    status = parent.get_status(refresh=False)
    return status in (JobStatus.CANCELED, JobStatus.STOPPED) or (
        status == JobStatus.FAILED and not job.allow_dependency_failures
    )
