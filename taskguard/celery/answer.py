"""What a delivery answers whose work had ended before: the same end, as Celery would have told it."""

from __future__ import annotations

import logging
import time
from typing import Any, NoReturn

from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, TaskRevokedError

from taskguard.celery.delivery import Delivery
from taskguard.celery.headers import Headers
from taskguard.celery.result import failure_of
from taskguard.errors import DuplicateTaskError, OutcomeNotKeptError, StoreError
from taskguard.outcomes import NotKept
from taskguard.places import job_of
from taskguard.store import Claimant, Completed, Held

ROUNDS_TO_ANSWER = 4
"""As long as after so many rounds, two to four seconds, it waits for another process to tell of the end of its job."""
ABOUT_TO_GO = 30.0
"""Seconds before a receipt goes in which it is not waited for: it might not be found again, and the body would run."""

_logger = logging.getLogger("taskguard")


def answer(it: Delivery, done: Completed) -> Any:
    """Answer with how it ended, as Celery would have; drop a leftover copy of what was answered."""
    own = done.owner == it.id
    it.free_place()
    is_refusal = own and done.how == "skipped" and it.conflict == "raise"
    is_further_call = own and bool(it.message.headers.call)
    if not is_refusal and done.how not in ("succeeded", "failed"):
        _end_without_outcome(it, done, is_further_call)
    if own and not is_further_call and _was_answered(it, done):
        raise Ignore(f"{it.key}: {done.how} before, and answered")
    if own and it.message.is_linked and not done.answered and not _is_about_to_go(it, done):
        _let_it_be_answered(it)
    if is_further_call and it.message.is_linked:
        _claim_call(it)
    if is_refusal:
        it.note_end("skipped")
        raise DuplicateTaskError(it.key, done.twin, "running", done.at, done.token)
    it.note_end(done.how)
    if done.how == "succeeded":
        return _value_of(it, done)
    raise failure_of(it.guarding.outcomes, done)


def claimant_of_call(headers: Headers, attempt: str) -> Claimant:
    """Who answers one call of an id that was called several times: each call has an entry of its own."""
    return Claimant(f"{job_of(headers.key, headers.id)}:{headers.call}", headers.id, attempt)


def _claim_call(it: Delivery) -> None:
    """Whoever is granted it answers what is linked to this call; a leftover copy of its message is not."""
    name = claimant_of_call(it.message.headers, "").key
    it.claim = it.guard.new_claim(name, it.id, it.policy, attempt=it.attempt)
    try:
        found = it.guard.ask(it.claim, tell=False)[1]
    except StoreError as error:
        it.put_back(f"the store does not say whether this call was answered: {error}")
    if isinstance(found, Completed):
        raise Ignore(f"{it.key}: this call of {it.id} was answered before")
    if isinstance(found, Held):
        it.put_back("another delivery of it is being answered", within=found.remaining)
    _logger.info("%s[%s] ended before: what is linked to this call gets its outcome", it.task.name, it.id)


def _end_without_outcome(it: Delivery, done: Completed, is_further_call: bool) -> NoReturn:
    if is_further_call and it.message.is_linked:
        if done.how in ("revoked", "expired"):
            _claim_call(it)
            it.note_end(done.how)
            raise TaskRevokedError(done.how)
        # As in Celery: nothing follows a job that raises Ignore or Reject.
        _logger.warning("%s[%s] was %s before: nothing that is linked to it runs", it.task.name, it.id, done.how)
    raise Ignore(f"{it.key}: {done.how} before")


def _let_it_be_answered(it: Delivery) -> None:
    """Once: between the end of a job and the mark that its callbacks were sent, a copy of its message may come.

    If there is no mark after a while, the process that had the job died in between.
    """
    if it.message.headers.unanswered or it.request.is_eager:
        return
    it.change(unanswered=True, rounds=ROUNDS_TO_ANSWER)
    it.put_back("it has ended, and may just be being answered")


def _is_about_to_go(it: Delivery, done: Completed) -> bool:
    return time.time() > done.at + it.policy.keep - ABOUT_TO_GO


def _was_answered(it: Delivery, done: Completed) -> bool:
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
        _logger.warning("%s[%s] is answered again, its result cannot be looked for: %s", it.task.name, it.id, error)
        return False
    return state == ("SUCCESS" if done.how == "succeeded" else "FAILURE")


def _value_of(it: Delivery, done: Completed) -> Any:
    problem = "it was too large, or could not be written down"
    if done.outcome is not None:
        try:
            return it.guarding.outcomes.decode(done.outcome)
        except NotKept as error:
            problem = str(error)
    if it.message.ignores_result and not it.message.is_linked:
        return None
    if not isinstance(it.task.backend, DisabledBackend):
        meta = it.task.backend.get_task_meta(done.twin or done.owner)
        if meta.get("status") == "SUCCESS":
            return meta["result"]
    raise OutcomeNotKeptError(done.key, done.twin or done.owner, problem)
