"""What is settled with the store by names alone: entry, owner and attempt, without a lease in hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from taskguard.engine.effects import EndQueued, Settle
from taskguard.errors import StoreError
from taskguard.guard import Guard, new_attempt
from taskguard.protocol.store import Claim, Claimant, Ending, Entry, Lease

ADOPTED_FOR = 30.0
"""Seconds: the lease of an entry that is adopted only to be ended. It is released at once, unless the process dies."""


def carry_out(guard: Guard, step: Settle | EndQueued) -> bool:
    """Carry out a step that needs no lease: its entry, owner and attempt are enough."""
    if isinstance(step, EndQueued):
        return end_queued(guard, step.entry, step.owner, Ending(how=step.how, keep_for=step.keep_for))
    if step.spares_other_run and _runs_elsewhere(guard.store.get(step.entry), step):
        return False
    claimant = Claimant(step.entry, step.owner, step.attempt)
    if step.verb == "requeue":
        return guard.store.requeue(
            claimant, step.seconds, copy_for=step.copy_for, keep_starts=step.keep_starts, copy=step.copy
        )
    outcome = step.outcome if step.error is None else guard.encoded(guard.outcomes.encode_error, step.error, claimant)
    ending = Ending(how=step.how, keep_for=step.keep_for, outcome=outcome, answered=step.answered)
    if step.verb == "complete":
        return guard.store.complete(claimant, ending)
    return guard.store.release(claimant, ending, anyway=step.anyway)


def _runs_elsewhere(entry: Entry | None, step: Settle) -> bool:
    if entry is None or entry.state != "running" or entry.remaining <= 0:
        return False
    return entry.owner == step.owner and entry.attempt != step.attempt


def end_queued(guard: Guard, entry: str, owner: str, ending: Ending) -> bool:
    """End a job that is queued and will not run.

    By the owner's name alone, the store would end a run that has started meanwhile too. So this adopts the entry first,
    which only one process can do, and then releases it under that lease.
    """
    found = guard.store.get(entry)
    if found is None or found.state != "queued" or found.owner != owner:
        return False
    claim = Claim(entry, owner, new_attempt(), lease=ADOPTED_FOR, keep_for=ending.keep_for)
    _, answer = guard.ask(claim, report=False, patience=0.0)
    return isinstance(answer, Lease) and guard.store.release(answer, ending)


def settle_all(guards: Sequence[Guard], steps: Iterable[Settle]) -> None:
    """Settle as long as the store answers; the leases of the rest expire."""
    with suppress(StoreError):
        for step in steps:
            carry_out(guards[step.at], step)
