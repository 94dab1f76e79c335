"""One delivery of a guarded job, in the process that runs its body: claim, run the body, settle; or answer.

Each question to the store obeys `on_store_error`; and once the store has said that another run has the key, a store
that goes away is no reason to run beside it, nor to call the job failed: it is put back, and asks again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery.exceptions import Ignore, Reject, Retry

from taskguard.celery import first_success
from taskguard.celery.answer import answer
from taskguard.celery.delivery import Delivery, in_hand
from taskguard.celery.ending import outcome_of, requeue, settled
from taskguard.celery.going_on import go_on_elsewhere
from taskguard.celery.inprocess import BodyInThisProcess
from taskguard.celery.obtaining import Obtaining
from taskguard.errors import KeyArgumentError, StoreError, StoreUnavailableError, TooManyStartsError
from taskguard.guard import new_attempt
from taskguard.interrupt import came_by_signal
from taskguard.lone_fence import lone_fence
from taskguard.places import is_queued
from taskguard.store import Claimant, Completed, Ending, Entry
from taskguard.work import Work, effects_of

_logger = logging.getLogger("taskguard")


class Run:
    def __init__(self, task: Any, request: Any, body: Callable[..., Any]) -> None:
        self.it = Delivery(task, request)
        self.body = body
        self._settled: BaseException | None = None
        """What left the body, once the store knows of it."""

    def __call__(self, args: Any, kwargs: Any) -> Any:
        if not self._finds_key(args, kwargs):
            return self.body(*args, **kwargs)  # which says so itself, and nothing of us is in its traceback
        try:
            return self._deliver(args, kwargs)
        except Exception as error:
            # Its time limit, say, which can come at any point of all this. Nothing is known of what it interrupted.
            if error is not self._settled and came_by_signal(error):
                self._cut_off(error)
            raise

    def _deliver(self, args: Any, kwargs: Any) -> Any:
        it = self.it
        try:
            found = Obtaining(it)()
        except StoreError as error:
            return self._without_store(error, args, kwargs)
        except TooManyStartsError:
            it.free_place()
            it.note_end("failed")
            raise
        if isinstance(found, Completed):
            return answer(it, found)
        return self._work(found, args, kwargs)

    def _finds_key(self, args: Any, kwargs: Any) -> bool:
        """False for arguments that do not fit."""
        try:
            self.it.find_key(args, kwargs)
        except KeyArgumentError:
            raise
        except TypeError:
            return False
        return True

    def cancel(self, args: Any, kwargs: Any) -> None:
        """The job ends without a run: what it may hold is freed, and a leftover copy of it finds out."""
        it = self.it
        it.find_key(args, kwargs)
        ending = Ending(how="revoked", keep_for=it.policy.keep)
        it.guard.store.release(Claimant(it.name, it.id, new_attempt()), ending, anyway=True)
        it.free_place()

    def _cut_off(self, error: Exception) -> None:
        """Celery takes *error* for the end of the job: whatever it holds by now is freed, and no copy of it runs."""
        it = self.it
        if it.is_cancelled_by(error):
            it.leave_receipt("revoked", None)
        else:
            it.leave_failure(error)
        it.free_place()

    # -- the body --------------------------------------------------------------------------------------------------

    def _work(self, work: Work, args: Any, kwargs: Any) -> Any:
        it = self.it
        try:
            self._take_place(work)
            if not it.request.is_eager:
                work.patience = it.guarding.settings.patience_at_the_end
            self._tell_started()
            with BodyInThisProcess(it.attempt):
                return self._body(work, args, kwargs)
        finally:
            work.abandon()

    def _body(self, work: Work, args: Any, kwargs: Any) -> Any:
        it = self.it
        before = in_hand.set(it)
        try:
            try:
                with work:
                    value = self.body(*args, **kwargs)
            finally:
                in_hand.reset(before)
            outcome = outcome_of(it, value)
        except Retry as retry:
            self._note_floor(work, retry.exc)
            go_on_elsewhere(it, work)
            raise
        except Reject as rejected:
            goes_back = rejected.requeue and it.task.acks_late  # else the broker has no message to put back
            settled(it, lambda: requeue(it, work) if goes_back else work.release("rejected"))
            raise
        except Ignore:
            go_on_elsewhere(it, work)
            raise
        except Exception as error:
            self._fail(work, error)
            self._settled = error
            raise
        if it.held_back:  # a retry that was not thrown
            go_on_elsewhere(it, work)
            return value
        if settled(it, lambda: work.complete("succeeded", outcome)) and not it.message.ignores_result:
            first_success.expect(it.task.backend, it.id)
        it.note_end("succeeded")
        return value

    def _fail(self, work: Work, error: Exception) -> None:
        it = self.it
        if it.is_cancelled_by(error):
            settled(it, lambda: work.release("revoked"))
        elif work.is_own_loss(error):
            self._lost(work, error)
        elif it.held_back:  # it failed after it had asked for a retry: that is on its way, as without a guard
            go_on_elsewhere(it, work)
        else:
            settled(it, lambda: work.fail(error))
            it.note_end("failed")

    def _tell_started(self) -> None:
        it = self.it
        if it.task.taskguard_tracks_start and not it.message.ignores_result and not it.request.is_eager:
            started = {"pid": os.getpid(), "hostname": it.request.hostname}
            try:
                it.task.backend.store_result(it.id, started, "STARTED", request=it.request)
            except Exception as error:  # whatever the backend's driver raises: it is only a notice
                if came_by_signal(error):
                    raise
                _logger.warning("%s[%s] has started, and its state is not told: %s", it.task.name, it.id, error)

    # -- the place in the queue ------------------------------------------------------------------------------------

    def _take_place(self, work: Work) -> None:
        """The job starts: the next one may take its place in the queue. A newer job may have taken it already."""
        it = self.it
        if not it.place or it.place == it.name:
            return
        if it.is_the_next:
            try:
                newer = self._newer(it.guard.store.get(it.place))
            except StoreError as error:  # whether a newer call has taken the place is not known: not yet, then
                work.give_up()
                it.put_back(f"the store does not say whether it has its place: {error}")
            if newer:
                # With newer arguments, and it may have run since: this one ends as that one does.
                work.give_up()
                it.change(join=newer)
                it.put_back(f"it joins {newer}, which has newer arguments")
        it.free_place()

    def _newer(self, entry: Entry | None) -> str:
        """The job with newer arguments that this one was replaced by."""
        if entry is None or entry.owner in ("", self.it.id):
            return ""
        if not is_queued(entry) and entry.owner == self.it.message.headers.join:
            return ""  # one that it joined has ended with nothing
        return entry.owner

    # -- a lease that was lost -------------------------------------------------------------------------------------

    def _lost(self, work: Work, error: Exception) -> None:
        """Put it back, unless it is eager: then the error is its end."""
        it = self.it
        refused = self._note_floor(work, error)
        if it.request.is_eager:  # nothing can be put back
            if work.release_quietly():
                it.guard.raise_tokens(it.claim.key, it.message.headers.floor, it.policy)
            return
        work.patience = 0.0  # its body has not ended: should the store be silent, the next delivery asks
        with suppress(StoreError):  # if nobody has it by now, that was one of its starts, or its token too low
            requeue(it, work, keep_starts=not refused)
        it.put_back(str(error) if refused else "it lost its lease")

    def _note_floor(self, work: Work, error: BaseException | None) -> bool:
        """Whether a resource refused this run's token; then the next one is to be higher, wherever it runs."""
        floor = work.floor_after(error)
        if floor:
            self.it.change(floor=max(floor, self.it.message.headers.floor))
        return bool(floor)

    # -- the store is away -----------------------------------------------------------------------------------------

    def _without_store(self, error: StoreError, args: Any, kwargs: Any) -> Any:
        it = self.it
        what = it.guarding.settings.on_store_error
        if what == "run_unguarded" and not it.was_held:
            _logger.warning("%s[%s] runs unguarded: %s", it.task.name, it.id, error)
            idempotency_key, effect = it.known_by()
            effects = effects_of(it.policy, it.id, idempotency_key, effect)
            with lone_fence(it.name, it.id, idempotency_key, effects) as fence:
                if it.scheduled is not None:
                    fence.scheduled_for, fence.schedule = it.scheduled.scheduled_for, it.scheduled.schedule
                return self.body(*args, **kwargs)
        passing = isinstance(error, StoreUnavailableError)
        if (what == "fail" and not it.was_held) or it.request.is_eager or not passing:
            raise error
        it.change(after_outage=True)
        return it.put_back("the store does not answer")
