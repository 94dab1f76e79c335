"""Which claims a job of Celery's has: for the process that runs it, and for the worker's parent, which may settle."""

from __future__ import annotations

from typing import Any

from taskguard.celery.guarding import Guarding, TaskGuard
from taskguard.engine.envelope import Envelope
from taskguard.engine.layers import Layer, Terms, key_layer, queue_entry_of, slot_layer
from taskguard.policy import Policy
from taskguard.schedule.note import Note


def terms_of(guarding: Guarding) -> Terms:
    settings, longest = guarding.settings, guarding.longest_delay
    return Terms(
        queued_for=settings.queued_for,
        republish_after=settings.republish_after,
        on_store_error=settings.on_store_error,
        names_copies=True,
        trust_copy_for=2 * longest + 10,
    )


def layers_of(
    task: Any,
    guarding: Guarding,
    guarded: TaskGuard | None,
    envelope: Envelope,
    task_id: str,
    slot: Note | None,
    retries: int,
) -> tuple[Layer, ...]:
    layers: tuple[Layer, ...] = ()
    if slot is not None:
        # A run whose end may not be reported is not taken for dead: it would run again. And schedulers do not have the
        # message of a retry.
        kept = bool(task.acks_late) and guarding.settings.patience_at_the_end > 0 and not retries
        layers = (slot_layer(slot, _slot_policy(guarding, guarded, slot), task_id, kept=kept),)
    if guarded is not None:
        layers = (*layers, key_layer(guarded.policy, envelope, task_id, slot))
    return layers


def place_of_job(guarded: TaskGuard | None, envelope: Envelope, slot: Note | None) -> str:
    """The entry that holds the job's place in the queue; a scheduled job has the run of its slot."""
    return "" if guarded is None or slot is not None else queue_entry_of(guarded.policy, envelope)


def _slot_policy(guarding: Guarding, guarded: TaskGuard | None, slot: Note) -> Policy:
    policy = guarded.policy if guarded is not None else Policy()
    # Whose run is to be cancelled must learn of it; else the key of the function is what counts.
    is_outer = guarded is not None and slot.overlap != "cancel_other"
    return Policy.of(
        lease=policy.lease,
        max_starts=policy.max_starts,
        keep_for=max(guarding.keep_of(slot), policy.lease),
        on_lost="continue" if is_outer else policy.on_lost,
    )
