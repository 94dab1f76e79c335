"""Replays the end of work that had ended before this delivery, as RQ would report it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rq.defaults import DEFAULT_RESULT_TTL
from rq.job import Job, JobStatus

from taskguard.errors import EarlierFailureError, OutcomeNotKeptError
from taskguard.protocol.outcomes import NotKept
from taskguard.protocol.store import Completed
from taskguard.rq.job_state import status_of
from taskguard.rq.owner import job_id_of, shown
from taskguard.runtime.backoff import pauses
from taskguard.runtime.clocks import since_boot

if TYPE_CHECKING:
    from taskguard.rq.delivery import RQDelivery
    from taskguard.rq.guarded_job import GuardedJob


LOOK_FOR = 1.0
"""Seconds that a second copy waits here for the end of the first, before it is deferred."""


SAME_MOMENT = 1.0
"""Seconds by which the clocks of the store and of RQ's Redis may differ, where they are not one."""


class NothingToReport(Exception):  # noqa: N818 - no error: this delivery ends, and the job is another one's
    """A guarded worker ends this execution and writes nothing to the job."""


def replay(delivery: RQDelivery, done: Completed) -> Any:
    if not delivery.claims.is_this_job(done.owner) and (done.how == "failed" or delivery.job.is_scheduled_again):
        delivery.record_end()  # it has its receipt, so what is enqueued from now on is another occurrence
    if delivery.has_our_worker and delivery.claims.is_this_job(done.owner) and _is_being_answered(delivery, done):
        return delivery.defer(delivery.machine.envelope, "itself", 0.0)
    if done.how == "succeeded":
        return _value_of(delivery, done)
    words = f"it was {done.how}"
    if done.outcome is not None:
        with suppress(NotKept):
            words = delivery.guards[-1].outcomes.decode_error(done.outcome)
    delivery.forget_waiting()
    raise EarlierFailureError(done.key, shown(done.owner), words)


def _is_being_answered(delivery: RQDelivery, done: Completed) -> bool:
    """Whether another delivery of this very job, which ran the body, has yet to write its end down in RQ.

    It calls the callbacks first. Its worker renews its execution meanwhile; once nobody does, this delivery answers.
    Raises NothingToReport if the end is there.
    """
    give_up = since_boot() + LOOK_FOR
    for pause in pauses():
        is_executed = _is_executed_elsewhere(delivery)  # first: RQ ends an execution in the step that records the end
        status = status_of(delivery.job)
        if status in (JobStatus.FINISHED, JobStatus.FAILED):
            raise NothingToReport(f"it is a second copy, and the job is {status}")
        if not is_executed:
            _leave_if_recorded(delivery.job, done)
            return False
        if since_boot() > give_up:
            return True
        time.sleep(pause)
    raise AssertionError("pauses never end")


def _leave_if_recorded(job: GuardedJob, done: Completed) -> None:
    """NothingToReport if RQ has the result, though this delivery has set the status to started as it began."""
    result = job.latest_result()
    if result is None or result.type != result.Type.SUCCESSFUL or result.created_at.timestamp() < done.at - SAME_MOMENT:
        return
    with job.connection.pipeline() as pipeline:
        job.set_status(JobStatus.FINISHED, pipeline=pipeline)
        job.cleanup(job.get_result_ttl(DEFAULT_RESULT_TTL), pipeline=pipeline, remove_from_queue=False)
        pipeline.execute()
    raise NothingToReport("it is a second copy, and the job has its result")


def _is_executed_elsewhere(delivery: RQDelivery) -> bool:
    """Whether another worker renews an execution of the job. RQ removes one that it takes for abandoned."""
    job, connection = delivery.job, delivery.job.connection
    names: Any = connection.zrangebyscore(job.execution_registry.key, time.time(), "+inf")
    others = [f"{job.id}:{name.decode()}" for name in names if name.decode() != delivery.attempt]
    renewed: Any = connection.zmscore(job.started_job_registry.key, others) if others else []
    return any(until is not None and until > time.time() for until in renewed)


def _value_of(delivery: RQDelivery, done: Completed) -> Any:
    problem = "it was too large, or could not be written down"
    if done.outcome is not None:
        try:
            return delivery.guards[-1].outcomes.decode(done.outcome)
        except NotKept as error:
            problem = str(error)
    if delivery.job.result_ttl == 0:
        return None
    holder_job = Job(
        job_id_of(done.twin or done.owner) or "-",
        connection=delivery.job.connection,
        serializer=delivery.job.serializer,
    )
    found = holder_job.latest_result()
    if found is not None and found.type == found.Type.SUCCESSFUL:
        return found.return_value
    raise OutcomeNotKeptError(done.key, shown(done.owner), problem)
