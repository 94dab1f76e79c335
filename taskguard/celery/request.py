"""The parent's side of a guarded job: it settles for a child that is gone, by the attempt that died.

Celery's final decision on a message is `acknowledge` or `reject`. Both come too early where a child is only told to
end (revoked with terminate, hard time limit): its `finally` may still run. There the key is settled once it is gone.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker import state
from kombu.asynchronous import get_event_loop
from kombu.serialization import registry

from taskguard.celery.guarding import TaskGuard
from taskguard.celery.headers import ATTEMPT, EVENTS, SERIALIZER, Headers
from taskguard.celery.inprocess import remember, runs_here
from taskguard.celery.scheduled import leave_end
from taskguard.errors import StoreError
from taskguard.guard import new_attempt
from taskguard.places import job_of, place_of, run_of
from taskguard.schedule import Note
from taskguard.store import Claimant, Ending, How
from taskguard.switch import is_off
from taskguard.waiting import pauses

LEAVE_ALONE = 5.0
"""Seconds for which a store that did not answer is not asked by the parent."""

_logger = logging.getLogger("taskguard")


Base: Any = object
"""Celery's request class, or a user's own, comes behind this one: see `guarded_request`."""


class GuardedRequest(Base):  # type: ignore[misc]
    """In front of Celery's request class: an attempt of its own, which travels to the child and nowhere else."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._attempt = new_attempt()
        self._is_lost = False
        self._after_body: Callable[[], Any] | None = None
        self._goes_back = False
        self._request_dict[ATTEMPT] = self._attempt
        self._request_dict[SERIALIZER] = registry.type_to_name.get(self._content_type)
        self._request_dict[EVENTS] = bool(self._eventer and self._eventer.enabled and self.task.send_events)
        remember(self._attempt, self)

    # -- what became of the child ----------------------------------------------------------------------------------

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if isinstance(error, Terminated) and not self._already_cancelled:
            self._settle("revoked")  # now it is gone
        self._is_lost = self._is_lost or isinstance(error, (WorkerLostError, SystemExit))
        try:
            return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        finally:
            if self._is_lost and not self._already_cancelled:  # acknowledged early: nobody else decides
                self._settle("failed", error)

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        try:
            return super().on_timeout(soft, timeout)
        finally:
            if not soft:
                self._when_gone(lambda: self._after_time_limit(timeout))

    def _after_time_limit(self, timeout: float) -> None:
        if self._goes_back:
            self._requeue()
        else:
            self._settle("failed", TimeLimitExceeded(timeout))

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        if terminated:
            self._after_body = lambda: self._settle("revoked")  # it is only told to end so far
        else:  # it never started: whoever holds the key, this job has ended
            self._settle("expired" if expired else "revoked", anyway=True)
        super()._announce_revoked(reason, terminated, signum, expired)

    def cancel(self, *args: Any, **kwargs: Any) -> Any:
        value = super().cancel(*args, **kwargs)
        if not self._already_cancelled:
            # Celery announces only what it has heard to have begun, and the child may be a moment ahead of that.
            self._settle_cancelled()
        return value

    def _announce_cancelled(self, *args: Any, **kwargs: Any) -> None:
        self._settle_cancelled()
        super()._announce_cancelled(*args, **kwargs)

    def _settle_cancelled(self) -> None:
        if self.acknowledged:
            self._when_gone(lambda: self._settle("revoked"))  # the broker has no message of it any more
        elif state.should_terminate:
            self._requeue()  # a cold shutdown: the message is restored when all this has ended
        else:
            self._when_gone(lambda: self._requeue(keep_starts=False))  # the connection is lost

    def body_has_unwound(self) -> None:
        """In a pool of this very process."""
        settle, self._after_body = self._after_body, None
        if settle is not None:
            settle()

    # -- Celery's last word ----------------------------------------------------------------------------------------

    def acknowledge(self) -> None:
        if self._is_lost and not self.acknowledged:
            self._settle("failed", WorkerLostError("the process that ran it is gone"))
        super().acknowledge()

    def reject(self, requeue: bool = False) -> None:
        self._goes_back = self._goes_back or requeue
        if self._is_lost and not self.acknowledged:
            if requeue:
                self._requeue()
            else:
                self._settle("failed", WorkerLostError("the process that ran it is gone"))
        super().reject(requeue=requeue)

    def _retry_worker_lost(self, *args: Any) -> Any:
        # Celery 5.7's retry_on_worker_lost publishes from here. If the job is not this delivery's to retry, because
        # another one runs it, the message goes back instead and waits for that one.
        return self._requeue() and super()._retry_worker_lost(*args)

    # -- settling --------------------------------------------------------------------------------------------------

    @property
    def _guarded(self) -> TaskGuard:
        guarded: TaskGuard = self.task.taskguard
        return guarded

    def _entries(self) -> tuple[str, str]:
        """The entry of this job's run, and that of its place in the queue if it is another one."""
        headers = Headers.of(self._request_dict.get("headers") or self._request_dict, self.id)
        given = headers.idempotency_key
        keys = self._guarded.keys
        key = headers.key or (keys.explicit(given) if given else keys(self._args, self._kwargs))
        policy = self._guarded.policy
        note = Note.of(headers.slot)
        run = run_of(policy, key, headers.join or self.id)
        if note is not None and note.overlap == "allow_all":
            run = job_of(key, self.id)
        place = headers.place or place_of(policy, key)
        return run, place if place != run else ""

    def _note(self) -> Note | None:
        return Note.of(Headers.of(self._request_dict.get("headers") or self._request_dict, self.id).slot)

    def _settle(self, how: How, error: BaseException | None = None, *, anyway: bool = False) -> None:
        self._is_lost = False
        self._carefully(lambda: self._end(how, error, anyway))

    def _end(self, how: How, error: BaseException | None, anyway: bool) -> bool:
        guard, policy = self._guarded.guarding.calls, self._guarded.policy
        outcome = None if error is None else guard.outcomes.encode_error(error)
        # A failure that the parent settles is one that Celery's parent answers.
        ending = Ending(how=how, keep_for=policy.keep, outcome=outcome, answered=how == "failed")
        run, place = self._entries()
        claimant = Claimant(run, self.id, self._attempt)
        if how == "failed" and policy.on_done == "reuse":
            done = guard.store.complete(claimant, ending)
        else:
            done = guard.store.release(claimant, ending, anyway=anyway)
        if place and (done or anyway):
            guard.store.release(Claimant(place, self.id, self._attempt), Ending(keep_for=policy.keep), anyway=True)
        note = self._note()
        if note is not None:
            leave_end(guard.store, note, self.id, how, self._attempt)
        if done:
            guard.tell("failed" if how == "failed" else "released", claimant, detail=f"{how}; settled by the parent")
        return done

    def _requeue(self, *, keep_starts: bool = True) -> bool:
        self._is_lost = False
        keep_starts = keep_starts and not state.should_terminate  # nobody died of this job in a cold shutdown

        def requeue() -> bool:
            guarding = self._guarded.guarding
            claimant = Claimant(self._entries()[0], self.id, self._attempt)
            settings = guarding.settings
            done = guarding.calls.store.requeue(
                claimant, settings.queued_for, copy_for=settings.republish_after, keep_starts=keep_starts
            )
            note = self._note()
            if done and note is not None:
                run = Claimant(note.run, self.id, self._attempt)
                guarding.calls.store.requeue(run, settings.queued_for, copy_for=settings.republish_after)
            if done:
                guarding.calls.tell("requeued", claimant, detail="settled by the parent")
            return done

        return self._carefully(requeue)

    def _carefully(self, settle: Callable[[], bool]) -> bool:
        # The parent must go on whatever happens here; what is not settled ends with its lease. A store that is away
        # is not asked for each of a thousand jobs.
        if is_off():
            return False
        guarding = self._guarded.guarding
        if time.monotonic() < guarding.away_until:
            _logger.warning("%s[%s] is not settled, its lease will run out: the store is away", self.name, self.id)
            return False
        try:
            return settle()
        except StoreError as error:
            guarding.away_until = time.monotonic() + LEAVE_ALONE
            _logger.warning("%s[%s] is not settled, its lease will run out: %s", self.name, self.id, error)
        except Exception as error:  # arguments that do not fit or cannot be read, or whatever a key function raises
            _logger.warning("%s[%s] is not settled, it never had a key: %r", self.name, self.id, error)
        return False

    def _when_gone(self, settle: Callable[[], Any]) -> None:
        # By the worker's own event loop, not by a thread: the pool forks a new child just now, and what a thread has
        # locked at that moment (a module that it imports, say) stays locked in the child for ever.
        if runs_here(self._attempt):
            self._after_body = settle
            return
        if state.should_terminate:
            settle()  # there is no later
            return
        pid, loop, looks = self.worker_pid, get_event_loop(), pauses(0.1, 1.0)

        def look() -> None:
            if not _is_alive(pid):
                settle()
            elif loop is not None:
                loop.call_later(next(looks), look)
            else:  # a transport that has none, and so a pool that is watched by threads anyway
                threading.Timer(next(looks), look).start()

        look()


@cache
def guarded_request(base: type) -> type:
    """*base*, which is Celery's request class or a user's own, with the guard in front."""
    if issubclass(base, GuardedRequest):
        return base
    return type("GuardedRequest", (GuardedRequest, base), {})


def _is_alive(pid: int | None) -> bool:
    if pid is None or pid == os.getpid():
        return False  # it ran in this process, and has unwound
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        if os.path.exists("/proc/self/stat"):
            return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
