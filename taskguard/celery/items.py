"""The items of `map`, `starmap` and `chunks`: Celery calls the body of each directly, so each is guarded here.

An item is guarded as by `Guard.run`: it waits for its twin where it is, and ends with the twin's outcome. Its owner is
the id of the job that has it and its index, so that the job, delivered again, does not run the items that have ended.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from celery._state import get_current_task

from taskguard.celery.guarding import TaskGuard
from taskguard.errors import DuplicateTaskError, EarlierFailureError, OutcomeNotKeptError, WaitTimeoutError
from taskguard.guard import Guard
from taskguard.policy import Policy
from taskguard.store import Completed, Held
from taskguard.waiting import pauses
from taskguard.work import Work

_MAPS = ("celery.map", "celery.starmap")
_COUNT = "_taskguard_items"
_ITEM = ":item:"
_OF_RQ = "rq:"
"""How the owners of RQ's jobs begin, where keys are shared."""


def map_in_hand() -> Any:
    """The request of the `map` or `starmap` job that this code is part of, if it is part of one."""
    task = get_current_task()
    return task.request if task is not None and task.name in _MAPS else None


def is_no_task(owner: str) -> bool:
    """Whether that is no task of Celery's, whose result could be waited for: an item of a map, or a job of RQ's."""
    return _ITEM in owner or owner.startswith(_OF_RQ)


class Item:
    def __init__(self, task: Any, of: Any) -> None:
        self._task = task
        self._guarded: TaskGuard = task.taskguard
        self._policy: Policy = self._guarded.policy
        self._guard: Guard = self._guarded.guarding.guard
        index = getattr(of, _COUNT, 0)
        setattr(of, _COUNT, index + 1)
        self._owner = f"{of.id}{_ITEM}{index}"

    def __call__(self, args: Any, kwargs: Any) -> Any:
        answer = self._obtain(self._guarded.keys(args, kwargs))
        if isinstance(answer, Completed):
            return self._stored(answer)
        try:
            try:
                with answer:
                    value = self._task.run(*args, **kwargs)
            except Exception as error:
                if answer.is_own_loss(error):
                    if answer.release_quietly():
                        self._guard.raise_tokens(answer.lease.key, answer.floor_after(error), self._policy)
                else:
                    answer.fail_quietly(error)
                raise
            answer.succeed(value)
            return value
        finally:
            answer.abandon()

    def _obtain(self, key: str) -> Work | Completed:
        # It takes the place of a twin that is only queued: it may be queued behind this very job.
        claim = self._guard.new_claim(key, self._owner, self._policy, replace_queued=True)
        started = time.monotonic()
        for pause in pauses():
            by_key = self._owner if self._policy.on_done == "rerun" else key
            answer = self._guard.begin(claim, self._policy, idempotency_key=by_key, tell=not claim.join)
            if not isinstance(answer, Held):
                return answer
            self._check_patience(answer, time.monotonic() - started)
            if self._policy.on_conflict.run == "skip" and answer.owner != self._owner:
                claim = replace(claim, join=answer.owner)
            time.sleep(pause)
        raise AssertionError("pauses never end")

    def _check_patience(self, held: Held, waited: float) -> None:
        facts = (held.key, held.owner, held.state, held.since, held.token)
        if self._policy.on_conflict.run == "raise" and held.owner != self._owner:
            raise DuplicateTaskError(*facts)
        if waited > self._policy.wait_up_to:
            raise WaitTimeoutError(*facts, round(waited, 1))

    def _stored(self, done: Completed) -> Any:
        outcomes = self._guarded.guarding.outcomes
        if done.how == "succeeded" and done.outcome is not None:
            return outcomes.decode(done.outcome)
        if done.how == "failed" and done.outcome is not None:
            raise outcomes.exception(done.outcome)
        if done.how == "failed":
            raise EarlierFailureError(done.key, done.owner, "what it failed with was not kept")
        raise OutcomeNotKeptError(done.key, done.owner, f"it was {done.how}")
