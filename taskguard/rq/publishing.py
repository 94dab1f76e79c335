"""How the job of a slot gets into its queue: once, whichever schedulers publish it and however often.

If an id is enqueued again, RQ overwrites its job, even a running one. So the publisher leaves an existing job alone, in
the same transaction. If only the id is missing from the queue, it pushes just the id.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import rq.cron
from redis import WatchError
from rq import Queue
from rq.cron import CronJob
from rq.job import Job, JobStatus
from rq.utils import now

from taskguard.engine.envelope import Envelope
from taskguard.engine.settle import end_queued
from taskguard.guard import Guard
from taskguard.protocol.store import Ending, Entry, How
from taskguard.rq.guarded_job import ENVELOPE_FIELD, with_envelope
from taskguard.rq.job_metadata import NAMESPACE, written
from taskguard.schedule.entry import Slot

_OVER: dict[str, How] = {
    JobStatus.FINISHED: "succeeded",
    JobStatus.FAILED: "failed",
    JobStatus.STOPPED: "revoked",
    JobStatus.CANCELED: "revoked",
}


class SlotPublisher:
    def __init__(self, connection: Any, guard: Guard, namespace: str, republish_after: float) -> None:
        self._connection = connection
        self._guard = guard
        self._namespace = namespace
        self._republish_after = republish_after

    def publish(self, cron_job: CronJob, slot: Slot) -> None:
        """Enqueue the slot's job if RQ has none; push its id again if the queue has lost it."""
        key = Job.key_for(slot.job_id)
        while True:
            with self._connection.pipeline() as pipeline:
                pipeline.watch(key)
                if pipeline.hexists(key, "data"):
                    break
                pipeline.multi()
                self._enqueue(cron_job, slot, pipeline)
                try:
                    pipeline.execute()
                except WatchError:
                    continue  # another scheduler published it, or a deleted job has just disappeared
                return
        self._enqueue_if_lost(cron_job.queue_name, slot)
        self.end_if_over(self._guard.store.get(slot.run_key), slot.keep_for)

    def end_if_over(self, run: Entry | None, keep_for: float) -> None:
        """End a queued run whose job RQ will not start: it was cancelled or deleted, or a plain worker, which does not
        know slots, has run it."""
        if run is None or run.state != "queued" or run.remaining <= 0 or not run.copies:
            return
        how = self._how_it_ended(run.owner)
        if how:
            ending = Ending(how=how, keep_for=keep_for)
            end_queued(self._guard, run.key, run.owner, ending)

    def _how_it_ended(self, job_id: str) -> How | None:
        data, status = self._connection.hmget(Job.key_for(job_id), "data", "status")
        return "expired" if data is None else _OVER.get((status or b"").decode())

    def _enqueue(self, cron_job: CronJob, slot: Slot, pipeline: Any) -> None:
        envelope = Envelope(slot={**slot.note().as_dict(), NAMESPACE: self._namespace})
        queue = Queue(cron_job.queue_name, connection=self._connection)
        options = {**cron_job.job_options, "job_id": slot.job_id, "pipeline": pipeline}
        function: Any = cron_job.func
        job = queue.enqueue(function, *cron_job.args, **cron_job.kwargs, **options)
        pipeline.hset(job.key, ENVELOPE_FIELD, written(with_envelope(job, envelope).envelope))
        _remember(cron_job, job, pipeline)

    def _enqueue_if_lost(self, queue_name: str, slot: Slot) -> None:
        queue = Queue(queue_name, connection=self._connection)
        if self._connection.lpos(queue.intermediate_queue_key, slot.job_id) is not None:
            taken = queue.intermediate_queue
            if taken.set_first_seen(slot.job_id):
                return  # a worker took it, perhaps a moment ago
            since = taken.get_first_seen(slot.job_id)
            if since is None or now() - since < timedelta(seconds=self._republish_after):
                return
        self._connection.eval(_ENQUEUE_IF_LOST, 2, Job.key_for(slot.job_id), queue.key, slot.job_id)


def _remember(cron_job: CronJob, job: Job, pipeline: Any) -> None:
    """Add the job to RQ's own history of the cron job, which exists since RQ 2.11."""
    key = getattr(cron_job, "job_history_key", None)
    if key is None or job.enqueued_at is None:
        return
    at, rq_cron = job.enqueued_at.timestamp(), cast(Any, rq.cron)
    pipeline.zadd(key, {job.id: at})
    pipeline.zremrangebyrank(key, 0, -(rq_cron.DEFAULT_CRON_JOB_HISTORY_LIMIT + 1))
    pipeline.expire(key, rq_cron.DEFAULT_CRON_JOB_HISTORY_TTL)
    rq_cron.cron_job_registry.add(cron_job.name, pipeline, enqueue_timestamp=at)


_ENQUEUE_IF_LOST = """
-- KEYS: the job, its queue. ARGV: its id.
if redis.call('HGET', KEYS[1], 'status') ~= 'queued' or redis.call('LPOS', KEYS[2], ARGV[1]) then return 0 end
redis.call('RPUSH', KEYS[2], ARGV[1])
return 1
"""
