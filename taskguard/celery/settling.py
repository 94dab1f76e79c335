"""The parent's side of a job: it settles for a dead child, by the attempt that died.

`request.py` decides when. A guarded task has its key and its queue entry; a plain task has something to settle only if
a schedule made the call. Without a settlement, the run of a slot whose child died would last until its lease expires,
and a scheduler could not distinguish a job that Celery has given up from one whose whole worker died.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.worker import state
from kombu.serialization import registry

from taskguard.celery import inprocess
from taskguard.celery.guarding import AppGuard, TaskGuard, app_guard_of, is_installed
from taskguard.celery.headers import ATTEMPT, EVENTS, SERIALIZER, SLOT, envelope_in
from taskguard.celery.parent_timer import parent_timer
from taskguard.celery.replay import claimant_of_call
from taskguard.engine.envelope import Envelope
from taskguard.engine.parent import Gone
from taskguard.errors import StoreError
from taskguard.guard import new_attempt
from taskguard.protocol.store import Ending, How
from taskguard.runtime.backoff import pauses
from taskguard.runtime.switch import is_off
from taskguard.schedule.note import Note

LEAVE_ALONE = 5.0
"""Seconds for which the parent does not ask a store that failed to answer."""

_logger = logging.getLogger("taskguard")


class Settlement:
    """What the parent knows of one delivery: its attempt, which travels only to the child."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self.attempt = new_attempt()
        self.is_lost = False
        """Its child died, and Celery has not yet acknowledged or rejected the message."""
        self.goes_back = False
        self._after_body: Callable[[], Any] | None = None
        facts = request._request_dict
        facts[ATTEMPT] = self.attempt
        facts[SERIALIZER] = registry.type_to_name.get(request._content_type)
        facts[EVENTS] = bool(request._eventer and request._eventer.enabled and request.task.send_events)
        inprocess.settlements[self.attempt] = self

    # -- what there is to settle -----------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        found: str = self._request.id
        return found

    @property
    def app_guard(self) -> AppGuard:
        return app_guard_of(self._request.task.app)

    @property
    def _envelope(self) -> Envelope:
        return envelope_in(headers_in(self._request), self.id)

    @property
    def _gone(self) -> Gone:
        request, task, envelope = self._request, self._request.task, self._envelope
        guarded: TaskGuard | None = getattr(task, "taskguard", None)
        if guarded is not None:
            envelope = guarded.identified(envelope, request._args, request._kwargs)
        slot = Note.of(envelope.slot)
        layers, queue_entry = self.app_guard.claims(task, guarded, envelope, self.id, slot, retries=0)
        return Gone(
            layers=layers, queue_entry=queue_entry if queue_entry != layers[-1].entry else "", attempt=self.attempt
        )

    def _end(self, how: How, error: BaseException | None, anyway: bool) -> bool:
        # If the parent settles a failure, Celery's parent also stores the result and sends the callbacks.
        detail, answered = f"{how}; settled by the parent", how == "failed"
        gone = self._gone
        guards = [self.app_guard.calls] * len(gone.layers)
        # A guarded task has its own receipt. A plain task has only its slot's, which another delivery may hold.
        ends_slot = how == "revoked" or len(gone.layers) > 1
        done = gone.end(guards, how, error, answered=answered, anyway=anyway, ends_slot=ends_slot, detail=detail)
        if answered and self._envelope.call:
            call, keep = claimant_of_call(self._envelope, self.attempt), gone.layers[-1].policy.keep
            ending = Ending(how=how, keep_for=keep, answered=True)
            self.app_guard.calls.store.release(call, ending, anyway=True)
        return done

    def _requeue(self, keep_starts: bool) -> bool:
        gone, terms = self._gone, self.app_guard.terms
        guards = [self.app_guard.calls] * len(gone.layers)
        return gone.requeue(guards, terms, keep_starts=keep_starts, detail="settled by the parent")

    # -- when to settle --------------------------------------------------------------------------------------------

    def settle(self, how: How, error: BaseException | None = None, *, anyway: bool = False) -> None:
        self.is_lost = False
        self._carefully(lambda: self._end(how, error, anyway))

    def settle_lost(self) -> None:
        self.settle("failed", WorkerLostError("the process that ran it died"))

    def requeue(self, *, keep_starts: bool = True) -> bool:
        self.is_lost = False
        keep_starts = keep_starts and not state.should_terminate  # in a cold shutdown the job did not kill the child
        return self._carefully(lambda: self._requeue(keep_starts))

    def revoke_after_body(self) -> None:
        """Settle once the body has ended: so far Celery has only signalled it."""
        self._after_body = lambda: self.settle("revoked")

    def settle_cancelled(self) -> None:
        if self._request.acknowledged:
            self._when_gone(lambda: self.settle("revoked"))  # the broker no longer has its message
        elif state.should_terminate:
            self.requeue()  # a cold shutdown: the broker gets the message back when the worker has ended
        else:
            self._when_gone(lambda: self.requeue(keep_starts=False))  # the connection to the broker is lost

    def settle_after_time_limit(self, timeout: float) -> None:
        def settle() -> None:
            if self.goes_back:
                self.requeue()
            else:
                self.settle("failed", TimeLimitExceeded(timeout))

        self._when_gone(settle)

    def body_has_unwound(self) -> None:
        """In a pool that runs bodies in this process: the body has ended."""
        settle, self._after_body = self._after_body, None
        if settle is not None:
            settle()

    def _when_gone(self, settle: Callable[[], Any]) -> None:
        if self.attempt in inprocess.bodies:
            self._after_body = settle
            return
        if state.should_terminate:
            settle()  # the process ends now
            return
        pid, looks = self._request.worker_pid, pauses(0.1, 1.0)

        def look() -> None:
            if _is_alive(pid):
                parent_timer.call(next(looks), look)
            else:
                settle()

        look()

    def _carefully(self, settle: Callable[[], bool]) -> bool:
        # The parent must continue whatever happens here. It does not ask an unavailable store for each of a thousand
        # jobs, but it tries again: a job that Celery has given up must not look like one whose whole worker died.
        if is_off():
            return False
        if time.monotonic() < self.app_guard.away_until and not self._is_the_last_try():
            parent_timer.call(LEAVE_ALONE, lambda: self._carefully(settle))
            return False
        name = f"{self._request.name}[{self.id}]"
        try:
            return settle()
        except StoreError as error:
            self.app_guard.away_until = time.monotonic() + LEAVE_ALONE
            _logger.warning("%s: could not settle the job, will retry: %s", name, error)
            parent_timer.call(LEAVE_ALONE, lambda: self._carefully(settle))
        except Exception as error:  # arguments that do not fit or cannot be read, or an error in a key function
            _logger.warning("%s: could not make a key, so there is nothing to settle: %r", name, error)
        return False

    def _is_the_last_try(self) -> bool:
        """Whether the worker ends, and the store has not failed since."""
        return parent_timer.over_since > self.app_guard.away_until - LEAVE_ALONE


def headers_in(request: Any) -> Mapping[str, Any]:
    """The headers of the message. If a caller sent one called "headers", Celery uses that in place of all."""
    found = request._request_dict.get("headers")
    return found if isinstance(found, Mapping) and found else request._request_dict


def _is_alive(pid: int | None) -> bool:
    if pid is None or pid == os.getpid():
        return False  # it ran in this process, and has ended
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends between open and read
        if os.path.exists("/proc/self/stat"):
            return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def settlement_of(request: Any) -> Settlement | None:
    """The settlement of the request; None for a plain task that no schedule called."""
    if hasattr(request.task, "taskguard"):
        return Settlement(request)
    headers = headers_in(request)
    if not headers.get(SLOT) or not is_installed(request.task.app):
        return None  # like most requests
    return None if Note.of(envelope_in(headers, request.id).slot) is None else Settlement(request)
