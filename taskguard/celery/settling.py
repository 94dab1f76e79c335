"""The parent's side of a job: it settles for a child that is gone, by the attempt that died.

Celery's final decision on a message is `acknowledge` or `reject`. Both come too early where a child is only told to
end (revoked with terminate, hard time limit): its `finally` may still run. There the job is settled once it is gone.

A request class that users may have made themselves stands behind ours, so all that we add to it is one attribute. What
there is to settle is said in `guarded_request.py` for guarded tasks, and in `scheduled_request.py` for plain ones.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
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


class Settlement:
    """What the parent knows of one delivery: an attempt of its own, which travels to the child and nowhere else."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self.attempt = new_attempt()
        self.is_lost = False
        """Its child is gone, and Celery has not decided yet what becomes of the message."""
        self.goes_back = False
        self._after_body: Callable[[], Any] | None = None
        facts = request._request_dict
        facts[ATTEMPT] = self.attempt
        facts[SERIALIZER] = registry.type_to_name.get(request._content_type)
        facts[EVENTS] = bool(request._eventer and request._eventer.enabled and request.task.send_events)
        remember(self.attempt, self)

    # -- what there is to settle -----------------------------------------------------------------------------------

    @property
    def guarding(self) -> Guarding:
        raise NotImplementedError

    def end(self, how: How, error: BaseException | None, anyway: bool) -> bool:
        """The job has ended. *anyway*: it never began, so that whoever holds its entry is none of its attempts."""
        raise NotImplementedError

    def put_into_queue(self, keep_starts: bool) -> bool:
        """The job comes again."""
        raise NotImplementedError

    @property
    def id(self) -> str:
        found: str = self._request.id
        return found

    @property
    def headers(self) -> Headers:
        return Headers.of(headers_in(self._request), self.id)

    @property
    def note(self) -> Note | None:
        return Note.of(self.headers.slot)

    # -- when it is to be settled ----------------------------------------------------------------------------------

    def settle(self, how: How, error: BaseException | None = None, *, anyway: bool = False) -> None:
        self.is_lost = False
        self._carefully(lambda: self.end(how, error, anyway))

    def settle_lost(self) -> None:
        self.settle("failed", WorkerLostError("the process that ran it is gone"))

    def requeue(self, *, keep_starts: bool = True) -> bool:
        self.is_lost = False
        keep_starts = keep_starts and not state.should_terminate  # nobody died of this job in a cold shutdown
        return self._carefully(lambda: self.put_into_queue(keep_starts))

    def revoke_after_body(self) -> None:
        """It is only told to end so far."""
        self._after_body = lambda: self.settle("revoked")

    def settle_cancelled(self) -> None:
        if self._request.acknowledged:
            self._when_gone(lambda: self.settle("revoked"))  # the broker has no message of it any more
        elif state.should_terminate:
            self.requeue()  # a cold shutdown: the message is restored when all this has ended
        else:
            self._when_gone(lambda: self.requeue(keep_starts=False))  # the connection is lost

    def settle_after_time_limit(self, timeout: float) -> None:
        def settle() -> None:
            if self.goes_back:
                self.requeue()
            else:
                self.settle("failed", TimeLimitExceeded(timeout))

        self._when_gone(settle)

    def body_has_unwound(self) -> None:
        """In a pool of this very process."""
        settle, self._after_body = self._after_body, None
        if settle is not None:
            settle()

    def _when_gone(self, settle: Callable[[], Any]) -> None:
        if runs_here(self.attempt):
            self._after_body = settle
            return
        if state.should_terminate:
            settle()  # there is no later
            return
        pid, looks = self._request.worker_pid, pauses(0.1, 1.0)

        def look() -> None:
            if _is_alive(pid):
                later.call(next(looks), look)
            else:
                settle()

        look()

    def _carefully(self, settle: Callable[[], bool]) -> bool:
        # The parent must go on whatever happens here. A store that is away is not asked for each of a thousand jobs;
        # but it is asked again: a job that Celery has given up must not be taken for one whose whole worker died.
        if is_off():
            return False
        if time.monotonic() < self.guarding.away_until and not self._is_the_last_try():
            later.call(LEAVE_ALONE, lambda: self._carefully(settle))
            return False
        name = f"{self._request.name}[{self.id}]"
        try:
            return settle()
        except StoreError as error:
            self.guarding.away_until = time.monotonic() + LEAVE_ALONE
            _logger.warning("%s is not settled yet: %s", name, error)
            later.call(LEAVE_ALONE, lambda: self._carefully(settle))
        except Exception as error:  # arguments that do not fit or cannot be read, or whatever a key function raises
            _logger.warning("%s is not settled, it never had a key: %r", name, error)
        return False

    def _is_the_last_try(self) -> bool:
        """Whether the worker ends, and the store was not asked in vain since."""
        return later.over_since > self.guarding.away_until - LEAVE_ALONE


class Later:
    """What is to be done soon, by the worker's own event loop; and what is left of it when the process ends.

    Not by a thread: the pool forks a new child just now, and what a thread has locked at that moment (a module that it
    imports, say) stays locked in the child for ever. When a worker shuts down its loop turns no more, and Celery says
    only of a warm shutdown when that is through.
    """

    def __init__(self) -> None:
        self._left: dict[int, Callable[[], Any]] = {}
        self._number = 0
        self.over_since = 0.0
        self._process = 0

    def call(self, seconds: float, what: Callable[[], Any]) -> None:
        if self.over_since:
            return  # its lease runs out
        if not self._process:
            self._process = os.getpid()
            atexit.register(self.finish)
        self._number += 1
        number = self._number
        self._left[number] = what
        loop = get_event_loop()
        if loop is not None:
            loop.call_later(seconds, self._do, number)
        else:  # a transport that has none, and so a pool that is watched by threads anyway
            timer = threading.Timer(seconds, self._do, (number,))
            timer.daemon = True
            timer.start()

    def _do(self, number: int) -> None:
        what = self._left.pop(number, None)
        if what is not None:
            what()

    def finish(self) -> None:
        """The worker has stopped, and with it all children."""
        if self._process != os.getpid():
            return  # this is one of them
        self.over_since = time.monotonic()
        for number in list(self._left):
            self._do(number)


later = Later()


Base: Any = object
"""Celery's request class, or a user's own, comes behind this one: see `in_front_of`."""


class SettlingRequest(Base):  # type: ignore[misc]
    """In front of Celery's request class. Without a settlement it is as if it were not there."""

    _taskguard: Settlement | None = None
    _taskguard_make: Callable[[Any], Settlement | None]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._taskguard = self._taskguard_make(self)

    # -- what became of the child ----------------------------------------------------------------------------------

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        ours = self._taskguard
        if ours is None:
            return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if isinstance(error, Terminated) and not self._already_cancelled:
            ours.settle("revoked")  # now it is gone
        ours.is_lost = ours.is_lost or isinstance(error, (WorkerLostError, SystemExit))
        try:
            return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        finally:
            if ours.is_lost and not self._already_cancelled:  # acknowledged early: nobody else decides
                ours.settle("failed", error)

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        try:
            return super().on_timeout(soft, timeout)
        finally:
            if self._taskguard is not None and not soft:
                self._taskguard.settle_after_time_limit(timeout)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        if self._taskguard is not None and terminated:
            self._taskguard.revoke_after_body()
        elif self._taskguard is not None:  # it never started: whoever holds the key, this job has ended
            self._taskguard.settle("expired" if expired else "revoked", anyway=True)
        super()._announce_revoked(reason, terminated, signum, expired)

    def cancel(self, *args: Any, **kwargs: Any) -> Any:
        value = super().cancel(*args, **kwargs)
        if self._taskguard is not None and not self._already_cancelled:
            # Celery announces only what it has heard to have begun, and the child may be a moment ahead of that.
            self._taskguard.settle_cancelled()
        return value

    def _announce_cancelled(self, *args: Any, **kwargs: Any) -> None:
        if self._taskguard is not None:
            self._taskguard.settle_cancelled()
        super()._announce_cancelled(*args, **kwargs)

    # -- Celery's last word ----------------------------------------------------------------------------------------

    def acknowledge(self) -> None:
        ours = self._taskguard
        if ours is not None and ours.is_lost and not self.acknowledged:
            ours.settle_lost()
        super().acknowledge()

    def reject(self, requeue: bool = False) -> None:
        ours = self._taskguard
        if ours is not None:
            ours.goes_back = ours.goes_back or requeue
            if ours.is_lost and not self.acknowledged:
                if requeue:
                    ours.requeue()
                else:
                    ours.settle_lost()
        super().reject(requeue=requeue)

    def _retry_worker_lost(self, *args: Any) -> Any:
        # Celery 5.7's retry_on_worker_lost publishes from here. If the job is not this delivery's to retry, because
        # another one runs it, the message goes back instead and waits for that one.
        return (self._taskguard is None or self._taskguard.requeue()) and super()._retry_worker_lost(*args)


@cache
def in_front_of(base: type, make: Callable[[Any], Settlement | None]) -> type:
    """*base*, which is Celery's request class or a user's own, with ours in front."""
    if issubclass(base, SettlingRequest):
        return base
    return type("SettlingRequest", (SettlingRequest, base), {"_taskguard_make": staticmethod(make)})


def headers_in(request: Any) -> Mapping[str, Any]:
    """Those of the message. Where a caller has sent one that is called "headers", Celery takes that for all of them."""
    found = request._request_dict.get("headers")
    return found if isinstance(found, Mapping) and found else request._request_dict


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
