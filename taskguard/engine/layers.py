"""What one delivery claims, from the outside in: its slot's run if it is scheduled, then its key if it is guarded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from taskguard.engine.envelope import Envelope
from taskguard.engine.value import Value
from taskguard.protocol.entry_names import job_of, next_of, queue_entry_of, run_of
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import MICROS
from taskguard.schedule.note import Note
from taskguard.schedule.payload import write

Conflict = Literal["skip", "raise", "wait"]


class Terms(Value):
    """What is the same for every delivery of one function on one queue."""

    queued_for: float
    republish_after: float
    """Seconds after which the message of a queued job counts as lost."""
    on_store_error: Literal["retry", "fail", "run_unguarded"] = "retry"
    names_copies: bool = False
    """Messages can be published again with a delay: one copy waits, under a name, and the others are dropped."""
    trust_copy_for: float = 0.0
    """Seconds that a named copy is trusted to be on its way."""


class Facts(Value):
    """What the queue knows of this delivery."""

    attempt: str
    is_this_job: Callable[[str], bool]
    """Whether an owner is this job."""
    awaited: bool = True
    """Someone may wait for the result under this id."""
    can_wait: bool = True
    """False where nothing can be deferred: the caller runs the body itself, and waits for it."""
    retried: bool = False
    """If it is refused, its queue retries it later: then it has not ended."""
    reuses_ids: bool = False
    """The queue runs one id many times, and knows to which of its occurrences an end belongs."""
    shown: Callable[[str], str] = str
    """An owner as people know it."""


class Layer(Value):
    """One claim of a delivery."""

    owner: str
    """The name of the job in this entry."""
    entry: str
    policy: Policy
    conflict: Conflict
    """What the job does while another one holds the entry."""
    wait_up_to: float = float("inf")
    slot: Note | None = None
    """This is the run of that slot: no job joins it, and the store keeps only that it ended."""
    payload: str = ""
    """The payload of a slot's entry: see `schedule.payload`."""


def key_layer(policy: Policy, envelope: Envelope, owner: str, slot: Note | None = None) -> Layer:
    """The claim of a guarded function's own key."""
    if slot is not None:  # for a scheduled job `overlap` decides, whatever its function was decorated with
        own = slot.overlap == "allow_all"
        entry = job_of(envelope.key, owner) if own else run_of(policy, envelope.key, envelope.join or owner)
        return Layer(owner=owner, entry=entry, policy=policy, conflict=_conflict_of(slot))
    entry = envelope.key if policy.hold != "queued" else run_of(policy, envelope.key, envelope.join or owner)
    conflict = policy.on_conflict.run
    if conflict == "wait":
        return Layer(owner=owner, entry=entry, policy=policy, conflict="wait", wait_up_to=policy.wait_up_to)
    if conflict == "raise":
        return Layer(owner=owner, entry=entry, policy=policy, conflict="raise")
    # It must run after the other one: its queue entry is held for that purpose.
    runs_after = conflict == "run_once_more" or policy.hold == "one_queued_one_running"
    runs_after = runs_after or (envelope.queue_entry != "" and is_next(envelope))
    return Layer(owner=owner, entry=entry, policy=policy, conflict="wait" if runs_after else "skip")


def slot_layer(slot: Note, policy: Policy, owner: str, *, kept: bool) -> Layer:
    """The claim of a scheduled job's slot: it adopts the run that the scheduler has queued for the job.

    *kept*: the queue keeps the message until the job has ended. If its worker dies, the job must come again.
    """
    payload = write(round(slot.at * MICROS), kept=kept)
    return Layer(owner=owner, entry=slot.run, policy=policy, conflict=_conflict_of(slot), slot=slot, payload=payload)


def _conflict_of(slot: Note) -> Conflict:
    return "skip" if slot.overlap == "skip" else "wait"


def job_queue_entry(policy: Policy, envelope: Envelope) -> str:
    """The entry that holds the job's place in the queue; empty if it has none."""
    return envelope.queue_entry or queue_entry_of(policy, envelope.key)


def is_next(envelope: Envelope) -> bool:
    """Whether this is the one more run of `run_once_more`."""
    return bool(envelope.queue_entry) and envelope.queue_entry == next_of(envelope.key)
