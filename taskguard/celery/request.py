"""Celery's request, extended: it notifies the job's settlement of what happens to the child and to the message.

Celery's final decision on a message is `acknowledge` or `reject`. Both come too early if Celery has only signalled the
child to end (revoked with terminate, hard time limit): its `finally` may still run. Then the job is settled once the
child is gone.

Users may have their own request class. Ours is put in front of it and adds only one attribute.
"""

from __future__ import annotations

from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import Terminated, WorkerLostError

from taskguard.celery.internals import WORKERS, require_names
from taskguard.celery.settling import Settlement, settlement_of

require_names(WORKERS)

Base: Any = object
"""Celery's request class, or a user's own, comes behind this one: see `in_front_of`."""


class SettlingRequest(Base):  # type: ignore[misc]
    """In front of Celery's request class. Without a settlement it changes nothing."""

    _taskguard: Settlement | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._taskguard = settlement_of(self)

    # -- what became of the child ----------------------------------------------------------------------------------

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        ours = self._taskguard
        if ours is None:
            return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if isinstance(error, Terminated) and not self._already_cancelled:
            ours.settle("revoked")  # the child is gone now
        ours.is_lost = ours.is_lost or isinstance(error, (WorkerLostError, SystemExit))
        try:
            return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        finally:
            if ours.is_lost and not self._already_cancelled:  # acknowledged early: Celery makes no further decision
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
        elif self._taskguard is not None:  # it never started: whichever job holds the key, this one has ended
            self._taskguard.settle("expired" if expired else "revoked", anyway=True)
        super()._announce_revoked(reason, terminated, signum, expired)

    def cancel(self, *args: Any, **kwargs: Any) -> Any:
        value = super().cancel(*args, **kwargs)
        if self._taskguard is not None and not self._already_cancelled:
            # Celery announces only jobs that it knows to have started, and the child may be a moment ahead.
            self._taskguard.settle_cancelled()
        return value

    def _announce_cancelled(self, *args: Any, **kwargs: Any) -> None:
        if self._taskguard is not None:
            self._taskguard.settle_cancelled()
        super()._announce_cancelled(*args, **kwargs)

    # -- Celery's decision -----------------------------------------------------------------------------------------

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
        # Celery 5.7's retry_on_worker_lost publishes from here. If this delivery may not retry the job, because another
        # delivery runs it, the message is requeued instead and waits for that one.
        return (self._taskguard is None or self._taskguard.requeue()) and super()._retry_worker_lost(*args)


def in_front_of(base: type) -> type:
    """Celery's request class, or a user's own, with ours in front."""
    return base if issubclass(base, SettlingRequest) else type("SettlingRequest", (SettlingRequest, base), {})
