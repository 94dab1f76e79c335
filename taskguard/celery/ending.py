"""The end of a body: what is kept of it, and how the store is told. Nothing is acknowledged before that."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from taskguard.celery.call import Call
from taskguard.celery.delivery import Delivery
from taskguard.celery.outcomes import CannotBeWritten
from taskguard.errors import StoreError
from taskguard.outcomes import NotKept
from taskguard.work import Work

KEPT_OF_THE_IGNORED = 1024
"""Bytes of a result that nobody wants to have stored; a twin in a chain may still need it to go on."""

_logger = logging.getLogger("taskguard")


def outcome_of(it: Delivery, value: Any) -> bytes | None:
    """What is kept of the result. One that Celery cannot store is a failure of the job, here as there."""
    try:
        outcome = it.guarding.outcomes.encode(value)
    except CannotBeWritten as why:
        has_its_own = getattr(it.task, "_backend", None) is not None  # which may be able to write it
        if it.message.ignores_result or it.request.is_eager or has_its_own or why.__cause__ is None:
            _tell_not_kept(it, why)
            return None
        raise why.__cause__ from None
    except NotKept as why:
        _tell_not_kept(it, why)
        return None
    is_unwanted = it.message.says_ignore and not it.message.is_linked and it.policy.on_done == "rerun"
    return None if is_unwanted and len(outcome) > KEPT_OF_THE_IGNORED else outcome


def _tell_not_kept(it: Delivery, why: NotKept) -> None:
    it.guard.tell("not_kept", it.claim, detail=str(why))


def settled(it: Delivery, end: Callable[[], bool]) -> bool:
    """Bring the end to the store. One that is refused is another run's to tell: the message is put back.

    Whether the store has accepted it; it has not where the app would rather go on without.
    """
    try:
        accepted = end()
    except StoreError as error:
        if it.guarding.settings.on_store_error == "run_unguarded":
            return False
        _logger.error("%s[%s] has ended and the store cannot be told: %s", it.task.name, it.id, error)
        if it.guarding.settings.on_store_error == "fail" or it.request.is_eager:
            raise
        it.put_back("the store cannot be told of its end")
    if not accepted and not it.request.is_eager:
        it.put_back("another run of it has begun")
    return accepted


def requeue(it: Delivery, work: Work, call: Call | None = None, *, copy: str = "", keep_starts: bool = False) -> bool:
    """The job will come again: by *call*, or by the message that is there."""
    if it.claim.key != it.name:
        return work.release()  # it ran beside another one, and the next run has an entry of its own
    settings, zone = it.guarding.settings, it.guarding.zone
    delay = 0.0 if call is None else call.delay(zone)
    seconds = settings.queued_for + delay
    if call is not None:
        seconds = call.waits_for(seconds, zone)
    copy_for = settings.republish_after + delay
    return work.requeue(seconds, copy_for=copy_for, copy=copy, keep_starts=keep_starts)
