"""The parent's side of a job: it settles for a child that is gone, by the attempt that died.

Celery's final decision on a message is `acknowledge` or `reject`. Both come too early where a child is only told to
end (revoked with terminate, hard time limit): its `finally` may still run. There the job is settled once it is gone.

What there is to settle is said in `request.py` for guarded tasks, and in `scheduled_request.py` for plain ones.
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

from taskguard.celery.guarding import Guarding
from taskguard.celery.headers import ATTEMPT, EVENTS, SERIALIZER, Headers
from taskguard.celery.inprocess import remember, runs_here
from taskguard.errors import StoreError
from taskguard.guard import new_attempt
from taskguard.schedule import Note
from taskguard.store import How
from taskguard.switch import is_off
from taskguard.waiting import pauses

LEAVE_ALONE = 5.0
"""Seconds for which a store that did not answer is not asked by the parent."""

_logger = logging.getLogger("taskguard")


Base: Any = object
"""Celery's request class, or a user's own, comes behind this one: see `in_front_of`."""


class SettlingRequest(Base):  # type: ignore[misc]
    """In front of Celery's request class: an attempt of its own, which travels to the child and nowhere else."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._attempt = new_attempt() if self._is_watched() else ""
        self._is_lost = False
        self._after_body: Callable[[], Any] | None = None
        self._goes_back = False
        if not self._attempt:
            return
        self._request_dict[ATTEMPT] = self._attempt
        self._request_dict[SERIALIZER] = registry.type_to_name.get(self._content_type)
        self._request_dict[EVENTS] = bool(self._eventer and self._eventer.enabled and self.task.send_events)
        remember(self._attempt, self)

    def _is_watched(self) -> bool:
        """Whether there may be something to settle."""
        return True

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
        return (not self._attempt or self._requeue()) and super()._retry_worker_lost(*args)

    # -- settling --------------------------------------------------------------------------------------------------

    @property
    def _guarding(self) -> Guarding:
        raise NotImplementedError

    def _end(self, how: How, error: BaseException | None, anyway: bool) -> bool:
        """The job has ended. *anyway*: it never began, so that whoever holds its entry is none of its attempts."""
        raise NotImplementedError

    def _put_into_queue(self, keep_starts: bool) -> bool:
        """The job comes again."""
        raise NotImplementedError

    @property
    def _headers(self) -> Headers:
        return Headers.of(self._request_dict.get("headers") or self._request_dict, self.id)

    def _note(self) -> Note | None:
        return Note.of(self._headers.slot)

    def _settle(self, how: How, error: BaseException | None = None, *, anyway: bool = False) -> None:
        self._is_lost = False
        self._carefully(lambda: self._end(how, error, anyway))

    def _requeue(self, *, keep_starts: bool = True) -> bool:
        self._is_lost = False
        keep_starts = keep_starts and not state.should_terminate  # nobody died of this job in a cold shutdown
        return self._carefully(lambda: self._put_into_queue(keep_starts))

    def _carefully(self, settle: Callable[[], bool]) -> bool:
        # The parent must go on whatever happens here; what is not settled ends with its lease. A store that is away
        # is not asked for each of a thousand jobs.
        if is_off() or not self._attempt:
            return False
        guarding = self._guarding
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
        if not self._attempt:
            return
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
def in_front_of(base: type, kind: type[SettlingRequest]) -> type:
    """*base*, which is Celery's request class or a user's own, with this one in front."""
    return base if issubclass(base, kind) else type(kind.__name__, (kind, base), {})


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
