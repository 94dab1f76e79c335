"""What RQ knows of the job that holds a key.

Jobs that are cancelled, deleted or expired call no hook: whoever meets their entry looks.
"""

from __future__ import annotations

import time
from typing import Any

from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job, JobStatus

from taskguard.rq.owner import is_other_run, job_id_of
from taskguard.store import Entry, Held

APPEARS_WITHIN = 1.0
"""Between its claim and its enqueueing a job is not to be found in RQ. After so long its caller has died in between."""
LOST_AFTER = 300.0
"""A job that has been queued for so long is looked for in its queue: a worker may have died with it in hand."""

_AHEAD = (JobStatus.QUEUED, JobStatus.STARTED, JobStatus.DEFERRED, JobStatus.SCHEDULED)


class Twin:
    """The holder of a key, as RQ sees it."""

    def __init__(self, held: Held | Entry, connection: Any, job_class: type[Job] = Job, serializer: Any = None) -> None:
        self.held = held
        self.id = job_id_of(held.owner)
        """Empty if it is no job of RQ: then RQ can say nothing about it."""
        self._connection = connection
        self._job_class = job_class
        self._serializer = serializer
        self.job = self._fetch()

    def _fetch(self) -> Job | None:
        if not self.id:
            return None
        try:
            job = self._job_class.fetch(self.id, connection=self._connection, serializer=self._serializer)
        except NoSuchJobError:
            return None
        # The record of an earlier call with this id says nothing about this one, which is still on its way.
        return None if is_other_run(job.meta, self.held.owner) else job

    @property
    def is_gone(self) -> bool:
        """It will not run, for all RQ knows: cancelled, stopped, failed, finished, expired or deleted."""
        if not self.id:
            return False
        return self.job is None or self.job.get_status(refresh=False) not in _AHEAD

    @property
    def is_put_off(self) -> bool:
        """It waits for its time, or for other jobs, and not for a worker."""
        later = (JobStatus.SCHEDULED, JobStatus.DEFERRED)
        return self.job is not None and self.job.get_status(refresh=False) in later

    def wait_until_it_appears(self) -> None:
        """It may have been claimed a moment ago and be on its way to RQ."""
        give_up = time.monotonic() + APPEARS_WITHIN
        recent = time.time() - self.held.since < 2 * APPEARS_WITHIN
        while recent and self.id and self.job is None and time.monotonic() < give_up:
            time.sleep(0.02)
            self.job = self._fetch()

    def enqueue_if_lost(self) -> None:
        """Put its id into its queue again if it should be there, and is not."""
        job = self.job
        if job is None or time.time() - self.held.since < LOST_AFTER or job.get_status(refresh=False) != "queued":
            return
        queue = Queue(job.origin, connection=self._connection)
        waiting = self._connection.lpos(queue.key, job.id) is not None
        if not waiting and self._connection.lpos(queue.intermediate_queue_key, job.id) is None:
            queue.push_job_id(job.id)  # should it turn up after all, the second copy is known by its id
