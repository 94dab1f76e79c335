"""The handle of work that was done before, and that RQ no longer has: the guard's store has its outcome."""

from __future__ import annotations

from typing import Any

from rq.job import Job, JobStatus

from taskguard.errors import OutcomeNotKeptError
from taskguard.protocol.outcomes import NotKept, Outcomes
from taskguard.protocol.store import Completed
from taskguard.rq.owner import shown


class StoredJob(Job):
    """A job that has ended and is no longer in RQ's Redis. It knows its status, its result and its error."""

    @classmethod
    def of(cls, done: Completed, outcomes: Outcomes, connection: Any, serializer: Any) -> StoredJob:
        job = cls(shown(done.owner), connection=connection, serializer=serializer)
        job._done = done
        job._outcomes = outcomes
        return job

    _done: Completed
    _outcomes: Outcomes

    def get_status(self, refresh: bool = True) -> JobStatus:
        return JobStatus.FINISHED if self._done.how == "succeeded" else JobStatus.FAILED

    def return_value(self, refresh: bool = False) -> Any:
        if self._done.how != "succeeded" or self._done.outcome is None:
            return None
        try:
            return self._outcomes.decode(self._done.outcome)
        except NotKept as error:
            raise OutcomeNotKeptError(self._done.key, self.id, str(error)) from error

    @property
    def result(self) -> Any:
        return self.return_value()

    @property
    def exc_info(self) -> str | None:
        if self._done.how == "succeeded" or self._done.outcome is None:
            return None
        try:
            return self._outcomes.decode_error(self._done.outcome)
        except NotKept:
            return "the error was not stored"
