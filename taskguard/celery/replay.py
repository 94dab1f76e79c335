"""Replays the end of work that had ended before this delivery, as Celery would report it."""

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
"""The delay, that of this many rounds (two to four seconds), for another process to send the job's callbacks."""
ABOUT_TO_GO = 30.0
"""Seconds before a receipt expires in which nothing is deferred: the receipt might be gone, and the body would run."""

_logger = logging.getLogger("taskguard")


def replay(delivery: CeleryDelivery, done: Completed) -> Any:
    """End as the work ended, as Celery would; drop a leftover copy of a job whose callbacks were sent."""
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
    """The claimant for one call of an id that was called several times: each call has its own entry."""
    return Claimant(f"{job_of(envelope.key, envelope.id)}:{envelope.call}", envelope.id, attempt)


def _claim_call(delivery: CeleryDelivery) -> None:
    """Claim the callbacks of this call: the store grants them once, and not to a leftover copy of the message."""
    assert delivery.guarded is not None
    envelope = delivery.envelope
    name = claimant_of_call(envelope, "").key
    try:
        found = delivery.guard.ask(
            delivery.guard.new_claim(name, delivery.id, delivery.guarded.policy, attempt=delivery.attempt), report=False
        )[1]
    except StoreError as error:
        delivery.defer_as(envelope, f"could not check whether the callbacks of this call were sent: {error}")
    if isinstance(found, Completed):
        raise Ignore(f"{delivery.name}: the callbacks of this call were sent before")
    if isinstance(found, Held):
        delivery.defer_as(envelope, "waits for another delivery, which sends its callbacks", found.remaining)
    _logger.info("%s has already ended; the callbacks of this call get its outcome", delivery.name)


def _end_without_outcome(delivery: CeleryDelivery, done: Completed, is_further_call: bool) -> NoReturn:
    if is_further_call and delivery.message.is_linked:
        if done.how in ("revoked", "expired"):
            _claim_call(delivery)
            delivery.record_end(done.how)
            raise TaskRevokedError(done.how)
        # As in Celery: callbacks do not run after a job that raises Ignore or Reject.
        _logger.warning("%s was already %s; its callbacks do not run", delivery.name, done.how)
    raise Ignore(f"{delivery.name}: {done.how} before")


def _defer_until_answered(delivery: CeleryDelivery) -> None:
    """Defer once: a copy of the message may come between the end of the job and the record that its callbacks were
    sent.

    If there is still no record after the delay, the process that had the job died in between.
    """
    if delivery.request.is_eager:
        return
    envelope = delivery.envelope
    if not envelope.unanswered:
        envelope = envelope._replace(unanswered=True, rounds=ROUNDS_TO_ANSWER + 1)
        delivery.defer_as(envelope, "has ended; another worker may be sending its callbacks")
    reserved_for = _reserved_for(delivery)
    if reserved_for > 0:
        delivery.defer_as(
            envelope, "has ended, and a worker that may have died has reserved the callback of its chord", reserved_for
        )


def _reserved_for(delivery: CeleryDelivery) -> float:
    """Seconds for which only the worker that saw the last part of the chord can publish its callback.

    Celery 5.7 keeps that in Redis. If that worker dies and its message is redelivered meanwhile, no worker publishes
    the callback: Celery treats the end of this job as counted already, and ignores it the second time.
    """
    backend = delivery.task.backend
    if not delivery.request.chord or not hasattr(type(backend), "_chord_claim_extend_script"):
        return 0.0
    name = backend.get_key_for_group(delivery.request.group, ".c")
    try:
        reserved_by, milliseconds = backend.client.pipeline().get(name).pttl(name).execute()
        return 0.0 if reserved_by in (b"done", "done") else float(milliseconds) / 1000
    except (
        Exception
    ) as error:  # a backend's driver may raise anything: the result goes to the same backend, and may fail there too
        _logger.warning("%s: could not check whether the callback of its chord is reserved: %s", delivery.name, error)
        return 0.0


def _is_about_to_go(delivery: CeleryDelivery, done: Completed) -> bool:
    assert delivery.guarded is not None
    return time.time() > done.at + delivery.guarded.policy.keep - ABOUT_TO_GO


def _was_answered(delivery: CeleryDelivery, done: Completed) -> bool:
    """Whether the result is stored and callbacks were sent. Without callbacks, storing the result is all there is."""
    if done.answered:
        return True
    if delivery.message.is_linked or delivery.request.is_eager:
        return False
    if delivery.message.ignores_result:
        return True
    try:
        state: str | None = delivery.task.backend.get_task_meta(delivery.id).get("status")
    except Exception as error:  # a backend's driver may raise anything: storing the same result again does no harm
        _logger.warning("%s: could not read its result, storing it again: %s", delivery.name, error)
        return False
    return state == ("SUCCESS" if done.how == "succeeded" else "FAILURE")


def _value_of(delivery: CeleryDelivery, done: Completed) -> Any:
    problem = "it was too large, or could not be serialized"
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
