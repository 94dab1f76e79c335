"""What a delivery answers whose work had ended before: the same end, as Celery would have told it."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore

from taskguard.errors import EarlierFailureError, OutcomeNotKeptError
from taskguard.store import Completed

if TYPE_CHECKING:
    from taskguard.celery.delivery import CeleryDelivery

ROUNDS_TO_ANSWER = 4
"""As long as after so many rounds, two to four seconds, it waits for another process to tell of the end of its job."""
ABOUT_TO_GO = 30.0
"""Seconds before a receipt goes in which it is not waited for: it might not be found again, and the body would run."""

_logger = logging.getLogger("taskguard")


def replay(it: CeleryDelivery, done: Completed) -> Any:
    """Answer with how the work ended, as Celery would have; drop a leftover copy of what was answered."""
    own = done.owner == it.id
    if own and _was_answered(it, done):
        raise Ignore(f"{it.name}: {done.how} before, and answered")
    if own and it.message.is_linked and not _is_about_to_go(it, done):
        _let_it_be_answered(it)
    it.note_end(done.how)
    if done.how == "succeeded":
        return _value_of(it, done)
    if done.outcome is None:
        raise EarlierFailureError(done.key, done.owner, "what it failed with was not kept")
    raise it.guarding.outcomes.exception(done.outcome)


def _let_it_be_answered(it: CeleryDelivery) -> None:
    """Once: between the end of a job and the mark that its callbacks were sent, a copy of its message may come.

    If there is no mark after a while, the process that had the job died in between.
    """
    envelope = it.message.envelope
    if not envelope.unanswered and not it.request.is_eager:
        envelope = envelope._replace(unanswered=True, rounds=ROUNDS_TO_ANSWER + 1)
        it.defer(envelope, "has ended, and may just be being answered")


def _is_about_to_go(it: CeleryDelivery, done: Completed) -> bool:
    assert it.guarded is not None
    return time.time() > done.at + it.guarded.policy.keep - ABOUT_TO_GO


def _was_answered(it: CeleryDelivery, done: Completed) -> bool:
    """If nothing goes on after this job, all there was to do is to store its result."""
    if done.answered:
        return True
    if it.message.is_linked or it.request.is_eager:
        return False
    if it.message.ignores_result:
        return True
    try:
        state: str | None = it.task.backend.get_task_meta(it.id).get("status")
    except Exception as error:  # whatever the backend's driver raises: the same answer again does no harm
        _logger.warning("%s is answered again, its result cannot be looked for: %s", it.name, error)
        return False
    return state == ("SUCCESS" if done.how == "succeeded" else "FAILURE")


def _value_of(it: CeleryDelivery, done: Completed) -> Any:
    if done.outcome is not None:
        return it.guarding.outcomes.decode(done.outcome)
    if it.message.ignores_result and not it.message.is_linked:
        return None
    if not isinstance(it.task.backend, DisabledBackend):
        meta = it.task.backend.get_task_meta(done.owner)
        if meta.get("status") == "SUCCESS":
            return meta["result"]
    raise OutcomeNotKeptError(done.key, done.owner, "it was too large, or could not be written down")
