"""What a caller gets: a handle that says whether the call was a duplicate, of which job, and since when."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery import Celery
from celery.result import AsyncResult

from taskguard.celery.outcomes import AppOutcomes
from taskguard.engine.call_info import CallInfo
from taskguard.errors import EarlierFailureError, OutcomeNotKeptError
from taskguard.protocol.outcomes import NotKept
from taskguard.protocol.store import Completed, Held, Lease


def info(key: str, task_id: str, answer: Lease | Held | Completed | None) -> CallInfo:
    if isinstance(answer, Held):
        return CallInfo(key, answer.owner, answer.owner != task_id, answer.state, answer.since)
    if isinstance(answer, Completed):
        return CallInfo(key, answer.owner, True, "done", answer.at)
    return CallInfo(key, task_id)


def handle(result: Any, about: CallInfo) -> Any:
    """The handle, with its `CallInfo`."""
    result.taskguard = about
    return result


def failure_of(outcomes: AppOutcomes, done: Completed) -> BaseException:
    """The error of failed work; `EarlierFailureError` if the error itself was not stored."""
    if done.outcome is not None:
        with suppress(NotKept):
            return outcomes.exception(done.outcome)
    return EarlierFailureError(done.key, done.owner, "the error was not stored")


class StoredResult(AsyncResult):  # type: ignore[misc]
    """The handle of work that was done before: its result comes from the guard's store, not from the result backend."""

    def __init__(self, done: Completed, outcomes: AppOutcomes, app: Celery) -> None:
        super().__init__(done.owner, app=app)
        self._done = done
        self._outcomes = outcomes

    def __reduce_args__(self) -> Any:
        # Pickled, it becomes a plain handle: the stored outcome does not travel.
        return super().__reduce_args__()

    def __reduce__(self) -> Any:
        return AsyncResult, self.__reduce_args__()

    def _get_task_meta(self) -> Any:
        done = self._done
        if self._cache is None and done.outcome is not None and done.how in ("succeeded", "failed"):
            succeeded = done.how == "succeeded"
            value = self._value(done.outcome) if succeeded else failure_of(self._outcomes, done)
            return self._set_cache(
                {"status": "SUCCESS" if succeeded else "FAILURE", "result": value, "task_id": self.id, "children": []}
            )
        return super()._get_task_meta()

    def _value(self, outcome: bytes) -> Any:
        try:
            return self._outcomes.decode(outcome)
        except NotKept as error:
            return OutcomeNotKeptError(self._done.key, self._done.owner, str(error))

    def get(self, *args: Any, **options: Any) -> Any:
        if self._done.outcome is None or self._done.how not in ("succeeded", "failed"):
            return super().get(*args, **options)
        found = self._get_task_meta()["result"]
        if isinstance(found, OutcomeNotKeptError):
            raise found
        if options.get("propagate", True):
            self.maybe_throw(callback=options.get("callback"))
        return self.result
