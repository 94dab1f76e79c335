"""What a delivery answers whose work had ended before: the same end, as Celery would have told it."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, NoReturn

from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, TaskRevokedError

from taskguard.celery.result import failure_of
from taskguard.engine.envelope import Envelope
from taskguard.errors import DuplicateTaskError, OutcomeNotKeptError, StoreError
from taskguard.protocol.entry_names import job_of
from taskguard.protocol.outcomes import NotKept
from taskguard.protocol.store import Claimant, Completed, Held

if TYPE_CHECKING:
    from taskguard.celery.delivery import CeleryDelivery

ROUNDS_TO_ANSWER = 4
"""As long as after so many rounds, two to four seconds, it waits for another process to tell of the end of its job."""
ABOUT_TO_GO = 30.0
"""Seconds before a receipt goes in which it is not waited for: it might not be found again, and the body would run."""

_logger = logging.getLogger("taskguard")


def replay(delivery: CeleryDelivery, done: Completed) -> Any:
    """Answer with how the work ended, as Celery would have; drop a leftover copy of what was answered."""
    own = done.owner == delivery.id
    is_further_call = own and bool(delivery.envelope.call)
    is_refusal = own and done.how == "skipped" and delivery.machine.layers[-1].conflict == "raise"
    if not is_refusal and done.how not in ("succeeded", "failed"):
        _end_without_outcome(delivery, done, is_further_call)
    if own and not is_further_call and _was_answered(delivery, done):
        raise Ignore(f"{delivery.name}: {done.how} before, and answered")
    if own and delivery.message.is_linked and not done.answered and not _is_about_to_go(delivery, done):
        _defer_until_answered(delivery)
    if is_further_call and delivery.message.is_linked:
        _claim_call(delivery)
    delivery.record_end(done.how)
    if is_refusal:
        raise DuplicateTaskError(done.key, done.twin, "running", done.at, done.token)
    if done.how == "succeeded":
        return _value_of(delivery, done)
    raise failure_of(delivery.app_guard.outcomes, done)


def claimant_of_call(envelope: Envelope, attempt: str) -> Claimant:
    """Who answers one call of an id that was called several times: each call has an entry of its own."""
    return Claimant(f"{job_of(envelope.key, envelope.id)}:{envelope.call}", envelope.id, attempt)


def _claim_call(delivery: CeleryDelivery) -> None:
    """Whoever is granted it answers what is linked to this call; a leftover copy of its message is not."""
    assert delivery.guarded is not None
    envelope = delivery.envelope
    name = claimant_of_call(envelope, "").key
    try:
        found = delivery.guard.ask(
            delivery.guard.new_claim(name, delivery.id, delivery.guarded.policy, attempt=delivery.attempt), report=False
        )[1]
    except StoreError as error:
        delivery.defer_as(envelope, f"cannot learn whether this call was answered: {error}")
    if isinstance(found, Completed):
        raise Ignore(f"{delivery.name}: this call of it was answered before")
    if isinstance(found, Held):
        delivery.defer_as(envelope, "is being answered by another delivery", found.remaining)
    _logger.info("%s ended before: what is linked to this call gets its outcome", delivery.name)


def _end_without_outcome(delivery: CeleryDelivery, done: Completed, is_further_call: bool) -> NoReturn:
    if is_further_call and delivery.message.is_linked:
        if done.how in ("revoked", "expired"):
            _claim_call(delivery)
            delivery.record_end(done.how)
            raise TaskRevokedError(done.how)
        # As in Celery: nothing follows a job that raises Ignore or Reject.
        _logger.warning("%s was %s before: nothing that is linked to it runs", delivery.name, done.how)
    raise Ignore(f"{delivery.name}: {done.how} before")


def _defer_until_answered(delivery: CeleryDelivery) -> None:
    """Once: between the end of a job and the mark that its callbacks were sent, a copy of its message may come.

    If there is no mark after a while, the process that had the job died in between.
    """
    if delivery.request.is_eager:
        return
    envelope = delivery.envelope
    if not envelope.unanswered:
        envelope = envelope._replace(unanswered=True, rounds=ROUNDS_TO_ANSWER + 1)
        delivery.defer_as(envelope, "has ended, and may just be being answered")
    reserved_for = _reserved_for(delivery)
    if reserved_for > 0:
        delivery.defer_as(
            envelope, "has ended, and a worker that may have died has reserved the callback of its chord", reserved_for
        )


def _reserved_for(delivery: CeleryDelivery) -> float:
    """Seconds for which only the worker that saw the last part of the chord can publish its callback.

    Celery 5.7 keeps that in Redis, and nobody publishes it if that worker dies and its message comes again meanwhile:
    Celery takes the end of this job for one that has been counted, and it is not told of it again.
    """
    backend = delivery.task.backend
    if not delivery.request.chord or not hasattr(type(backend), "_chord_claim_extend_script"):
        return 0.0
    name = backend.get_key_for_group(delivery.request.group, ".c")
    try:
        reserved_by, milliseconds = backend.client.pipeline().get(name).pttl(name).execute()
        return 0.0 if reserved_by in (b"done", "done") else float(milliseconds) / 1000
    except Exception as error:  # whatever the backend's driver raises: the answer goes to it too, and may be refused
        _logger.warning("%s: cannot learn whether the callback of its chord is reserved: %s", delivery.name, error)
        return 0.0


def _is_about_to_go(delivery: CeleryDelivery, done: Completed) -> bool:
    assert delivery.guarded is not None
    return time.time() > done.at + delivery.guarded.policy.keep - ABOUT_TO_GO


def _was_answered(delivery: CeleryDelivery, done: Completed) -> bool:
    """If nothing goes on after this job, all there was to do is to store its result."""
    if done.answered:
        return True
    if delivery.message.is_linked or delivery.request.is_eager:
        return False
    if delivery.message.ignores_result:
        return True
    try:
        state: str | None = delivery.task.backend.get_task_meta(delivery.id).get("status")
    except Exception as error:  # whatever the backend's driver raises: the same answer again does no harm
        _logger.warning("%s is answered again, its result cannot be looked for: %s", delivery.name, error)
        return False
    return state == ("SUCCESS" if done.how == "succeeded" else "FAILURE")


def _value_of(delivery: CeleryDelivery, done: Completed) -> Any:
    problem = "it was too large, or could not be written down"
    if done.outcome is not None:
        try:
            return delivery.app_guard.outcomes.decode(done.outcome)
        except NotKept as error:
            problem = str(error)
    if delivery.message.ignores_result and not delivery.message.is_linked:
        return None
    if not isinstance(delivery.task.backend, DisabledBackend):
        meta = delivery.task.backend.get_task_meta(done.twin or done.owner)
        if meta.get("status") == "SUCCESS":
            return meta["result"]
    raise OutcomeNotKeptError(done.key, done.twin or done.owner, problem)
