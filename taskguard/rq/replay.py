"""Replays the end of work that had ended before this delivery, as RQ would report it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rq.job import Job, JobStatus

from taskguard.errors import EarlierFailureError, OutcomeNotKeptError
from taskguard.protocol.outcomes import NotKept
from taskguard.protocol.store import Completed
from taskguard.rq.job_state import status_of
from taskguard.rq.owner import job_id_of, shown

if TYPE_CHECKING:
    from taskguard.rq.delivery import RQDelivery


class NothingToReport(Exception):  # noqa: N818 - not an error: only this delivery ends
    """A guarded worker ends this execution and writes nothing to the job."""


def replay(delivery: RQDelivery, done: Completed) -> Any:
    if not delivery.claims.is_this_job(done.owner) and (done.how == "failed" or delivery.job.is_scheduled_again):
        delivery.record_end()  # it has its receipt, so a later enqueueing is another occurrence
    if delivery.has_our_worker and delivery.claims.is_this_job(done.owner):
        status = status_of(delivery.job)
        if status in (JobStatus.FINISHED, JobStatus.FAILED):
            raise NothingToReport(f"it is a second copy, and the job is {status}")
    if done.how == "succeeded":
        return _value_of(delivery, done)
    words = f"it was {done.how}"
    if done.outcome is not None:
        with suppress(NotKept):
            words = delivery.guards[-1].outcomes.decode_error(done.outcome)
    delivery.forget_waiting()
    raise EarlierFailureError(done.key, shown(done.owner), words)


def _value_of(delivery: RQDelivery, done: Completed) -> Any:
    problem = "it was too large, or could not be serialized"
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
