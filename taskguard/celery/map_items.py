"""The items of `map`, `starmap` and `chunks`: Celery calls the body of each directly, so each is guarded here.

An item is guarded as by `Guard.run`: it waits for its twin where it is, and ends with the twin's outcome. Its owner is
the id of the job that has it and its index, so that the job, delivered again, does not run the items that have ended.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import Any

from celery._state import get_current_task

from taskguard.celery.guarding import TaskGuard
from taskguard.celery.result import failure_of
from taskguard.engine.unguarded import lone_fence
from taskguard.engine.work import Work, effects_of
from taskguard.errors import (
    DuplicateTaskError,
    LeaseLostError,
    OutcomeNotKeptError,
    StoreError,
    StoreUnavailableError,
    WaitTimeoutError,
)
from taskguard.guard import Guard, new_attempt
from taskguard.protocol.entry_names import run_of
from taskguard.protocol.outcomes import NotKept
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import Claimant, Completed, Ending, Held
from taskguard.runtime.backoff import pauses
from taskguard.runtime.interrupt import came_by_signal

_MAPS = ("celery.map", "celery.starmap")
_COUNT = "_taskguard_items"
_ITEM = ":item:"
_OF_RQ = "rq:"
"""How the owners of RQ's jobs begin, where keys are shared."""

_logger = logging.getLogger("taskguard")


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
        self._settings = self._guarded.guarding.settings
        self._can_wait = not of.is_eager
        index = getattr(of, _COUNT, 0)
        setattr(of, _COUNT, index + 1)
        self._owner = f"{of.id}{_ITEM}{index}"
        self._attempt = new_attempt()
        self._was_held = False

    def __call__(self, args: Any, kwargs: Any) -> Any:
        self._key = self._guarded.keys(args, kwargs)
        self._name = run_of(self._policy, self._key, self._owner)
        try:
            answer = self._obtain()
        except StoreError as error:
            if self._settings.on_store_error != "run_unguarded" or self._was_held:
                raise
            return self._run_unguarded(error, args, kwargs)
        except BaseException as error:
            if came_by_signal(error):  # whether the key was granted is not known; by the attempt it is let go
                self._let_go()
            raise
        if isinstance(answer, Completed):
            return self._stored(answer)
        return self._work(answer, args, kwargs)

    # -- the body --------------------------------------------------------------------------------------------------

    def _work(self, work: Work, args: Any, kwargs: Any) -> Any:
        if self._can_wait:
            work.patience = self._settings.patience_at_the_end
        try:
            with work:
                value = self._task.run(*args, **kwargs)
        except BaseException as error:
            if isinstance(error, Exception) and not work.is_own_loss(error):
                work.fail_quietly(error)
            elif work.release_quietly():  # it has not failed: the process, or this run, is told to end
                self._guard.raise_tokens(work.lease.key, work.floor_after(error), self._policy)
            raise
        else:
            if not self._succeeded(work, value):
                raise LeaseLostError(work.lease.key, work.lease.token)  # another run has begun: its end counts
            return value
        finally:
            work.abandon()

    def _succeeded(self, work: Work, value: Any) -> bool:
        try:
            return work.succeed(value)
        except StoreError:
            if self._settings.on_store_error != "run_unguarded":
                raise
            return True

    def _run_unguarded(self, error: StoreError, args: Any, kwargs: Any) -> Any:
        _logger.warning("%s[%s] runs unguarded: %s", self._task.name, self._owner, error)
        effects = effects_of(self._policy, self._owner, self._known_by)
        with lone_fence(self._name, self._owner, self._known_by, effects):
            return self._task.run(*args, **kwargs)

    def _let_go(self) -> None:
        with suppress(StoreError):  # else its lease runs out
            claimant = Claimant(self._name, self._owner, self._attempt)
            self._guard.store.release(claimant, Ending(keep_for=self._policy.keep))

    # -- asking ----------------------------------------------------------------------------------------------------

    @property
    def _known_by(self) -> str:
        return self._owner if self._policy.on_done == "rerun" else self._key

    def _obtain(self) -> Work | Completed:
        join, started = "", time.monotonic()
        for pause in pauses():
            waited = time.monotonic() - started
            try:
                answer = self._begin(self._name, join)
            except StoreUnavailableError:
                if not self._waits_for_store or waited > self._policy.wait_up_to:
                    raise
                time.sleep(pause)
                continue
            if isinstance(answer, Work):
                return answer
            if not self._policy.enforce:
                answer = self._begin(f"{self._key}:beside:{self._attempt}")
            if not isinstance(answer, Held):
                return answer
            self._was_held = True
            self._check_patience(answer, waited)
            if self._policy.on_conflict.run == "skip" and answer.owner != self._owner:
                join = answer.owner
            time.sleep(pause)
        raise AssertionError("pauses never end")

    @property
    def _waits_for_store(self) -> bool:
        """An item cannot be put back: it waits where it is."""
        return self._can_wait and (self._settings.on_store_error == "retry" or self._was_held)

    def _begin(self, name: str, join: str = "") -> Work | Held | Completed:
        # It takes the place of a twin that is only queued: it may be queued behind this very job.
        claim = self._guard.new_claim(
            name, self._owner, self._policy, attempt=self._attempt, join=join, replace_queued=True
        )
        return self._guard.begin(claim, self._policy, idempotency_key=self._known_by, tell=not join)

    def _check_patience(self, held: Held, waited: float) -> None:
        facts = (held.key, held.owner, held.state, held.since, held.token)
        if self._policy.on_conflict.run == "raise" and held.owner != self._owner:
            raise DuplicateTaskError(*facts)
        if waited > self._policy.wait_up_to:
            raise WaitTimeoutError(*facts, round(waited, 1))

    def _stored(self, done: Completed) -> Any:
        outcomes, problem = self._guarded.guarding.outcomes, f"it was {done.how}"
        if done.how == "failed":
            raise failure_of(outcomes, done)
        if done.how == "succeeded" and done.outcome is not None:
            try:
                return outcomes.decode(done.outcome)
            except NotKept as error:
                problem = str(error)
        raise OutcomeNotKeptError(done.key, done.owner, problem)
