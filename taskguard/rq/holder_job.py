"""What RQ knows of the job that holds a key.

Jobs that are cancelled, deleted or expired call no hook: whoever meets their entry looks.
"""

from __future__ import annotations

import time
from typing import Any

from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job, JobStatus

from taskguard.engine.drive import end_queued
from taskguard.guard import Guard
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import MICROS, Claimant, Ending, Entry, Held, How, Store
from taskguard.rq.guarded_job import GuardedJob, guarded_job_class
from taskguard.rq.owner import is_other_run, job_id_of

APPEARS_WITHIN = 1.0
"""Between its claim and its enqueueing a job is not to be found in RQ. After so long its caller has died in between."""
LOST_AFTER = 300.0
"""A job that has been queued for so long is looked for in its queue: a worker may have died with it in hand."""

_AHEAD = (JobStatus.QUEUED, JobStatus.STARTED, JobStatus.DEFERRED, JobStatus.SCHEDULED)


class HolderJob:
    """The holder of a key, as RQ sees it."""

    def __init__(self, held: Held | Entry, connection: Any, job_class: type[Job] = Job, serializer: Any = None) -> None:
        self.held = held
        self.id = job_id_of(held.owner)
        """Empty if it is no job of RQ: then RQ can say nothing about it."""
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
        # The record of an earlier call with this id says nothing about this one, which is still on its way.
        return None if is_other_run(job.run_name, self.held.owner) and job_id == self.id else job

    @property
    def is_gone(self) -> bool:
        """It will not run, for all RQ knows: cancelled, stopped, failed, finished, expired, deleted; or deferred
        behind a job that will not finish."""
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
        # A parent that is gone calls nobody when it ends; one that has just ended may be calling.
        if not alive:
            return None not in parents
        return all(self._may_run(parent, seen) for parent in alive)

    @property
    def is_put_off(self) -> bool:
        """It waits for its time, or for other jobs, and not for a worker."""
        later = (JobStatus.SCHEDULED, JobStatus.DEFERRED)
        return self.job is not None and self.job.get_status(refresh=False) in later

    def wait_until_it_appears(self, store: Store) -> None:
        """It may have been claimed a moment ago and be on its way to RQ."""
        if not self.id or self.job is not None:
            return
        from taskguard.schedule.clock import StoreClock  # few calls meet a job that is not there

        # By the store's clock, as since when it is held: a caller whose own is ahead would take what comes for gone.
        recent = StoreClock(store).now() / MICROS - self.held.since < 2 * APPEARS_WITHIN
        give_up = time.monotonic() + APPEARS_WITHIN
        while recent and self.job is None and time.monotonic() < give_up:
            time.sleep(0.02)
            self.job = self._fetch(self.id)

    def enqueue_if_lost(self) -> None:
        """Put its id into its queue again if it should be there, and is not."""
        job = self.job
        if job is None or time.time() - self.held.since < LOST_AFTER or job.get_status(refresh=False) != "queued":
            return
        queue = Queue(job.origin, connection=self._connection)
        waiting = self._connection.lpos(queue.key, job.id) is not None
        if not waiting and self._connection.lpos(queue.intermediate_queue_key, job.id) is None:
            queue.push_job_id(job.id)  # should it turn up after all, the second copy is known by its id

    def end(self, guard: Guard, policy: Policy) -> None:
        """RQ has given it up: its place is free. If a worker has started it all the same, it is left alone."""
        how: How = "expired" if self.job is None else "revoked"
        if end_queued(guard, self.held.key, self.held.owner, Ending(how=how, keep_for=policy.keep)):
            claimant = Claimant(self.held.key, self.held.owner, "")
            guard.report("released", claimant, detail=f"{how}: RQ has no such job to run")


def _is_in_the_way(parent: Job, job: Job) -> bool:
    """Whether RQ never enqueues the job because its parent ended so."""
    status = parent.get_status(refresh=False)
    return status in (JobStatus.CANCELED, JobStatus.STOPPED) or (
        status == JobStatus.FAILED and not job.allow_dependency_failures
    )
