"""What is called in a history: a few jobs that get in each other's way."""

from __future__ import annotations

import random
from dataclasses import dataclass

from taskguard.engine.envelope import Envelope
from taskguard.engine.layers import Layer, job_queue_entry, key_layer, slot_layer
from taskguard.protocol.policy import Policy
from taskguard.schedule.note import Note, Overlap

KEEP = 100_000.0
"""Nothing is forgotten within a history."""
LEASE = 3.0
WAIT_UP_TO = 15.0


_AT_THE_CALL = {"skip": ("skip", "run_once_more"), "wait": ("wait", "skip"), "raise": ("raise", "skip")}


@dataclass(frozen=True)
class Job:
    """One call, and all that is known of it before anything happens."""

    owner: str
    policy: Policy
    envelope: Envelope
    slot: Note | None
    is_guarded: bool
    awaited: bool
    retries: bool
    """Its queue runs it again after a time limit."""

    def layers(self, envelope: Envelope) -> tuple[Layer, ...]:
        layers: tuple[Layer, ...] = ()
        if self.slot is not None:
            # Of two layers only the inner one counts starts.
            policy = Policy.of(lease=LEASE, keep_for=KEEP, max_starts=10 if not self.is_guarded else 1000)
            layers = (slot_layer(self.slot, policy, self.owner, kept=True),)
        if self.is_guarded:
            layers = (*layers, key_layer(self.policy, envelope, self.owner, self.slot))
        return layers

    def queue_entry(self, envelope: Envelope) -> str:
        return job_queue_entry(self.policy, envelope) if self.is_guarded and self.slot is None else ""


def some_jobs(by: random.Random) -> list[Job]:
    # One function for each key, and its slots: who shares a key shares what was decided about it.
    policies = {key: _policy(by) for key in ("K", "L")}
    overlap = by.choice(("skip", "buffer_all", "allow_all"))
    return [_job(by, f"j{number}", policies, overlap) for number in range(by.randint(3, 6))]


def _policy(by: random.Random) -> Policy:
    run = by.choice(("skip", "skip", "wait", "raise"))
    hold = by.choice(("until_done", "until_done", "until_done", "running", "one_queued_one_running", "queued"))
    if hold == "queued":
        run = "skip"
    enqueue = by.choice(_AT_THE_CALL[run])
    if enqueue == "run_once_more" and hold != "until_done":
        enqueue = "skip"
    more = {"wait_up_to": WAIT_UP_TO} if run == "wait" else {}
    return Policy.of(
        lease=LEASE,
        keep_for=KEEP,
        hold=hold,
        on_conflict={"enqueue": enqueue, "run": run},
        max_starts=10,
        enforce=by.random() > 0.1,
        on_done="reuse_success" if hold != "queued" and by.random() < 0.2 else "rerun",
        **more,
    )


def _job(by: random.Random, owner: str, policies: dict[str, Policy], overlap: Overlap) -> Job:
    kind = by.choice(("key", "key", "key", "key", "slot", "slot and key"))
    note = None
    if kind != "key":
        run_key = f"schedule:e:run:{owner}" if overlap == "allow_all" else "schedule:e:run"
        note = Note("e", 1e9 + int(owner[1:]), f"slot:{owner}", run_key, KEEP, overlap)
    has_own_key = kind == "key" and by.random() < 0.35
    key = by.choice(("K", "K", "K", "L"))
    envelope = Envelope(
        id=owner,
        key=f"idempotency:{key}" if has_own_key else key,
        payload=by.choice(("p", "q") if has_own_key else ("p", "p", "q")),
        idempotency_key=key if has_own_key else "",
        slot=note.as_dict() if note is not None else None,
    )
    return Job(owner, policies[key], envelope, note, kind != "slot", by.random() < 0.6, by.random() < 0.3)
