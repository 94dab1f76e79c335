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
WAIT_UP_TO = 6.0
AT_LEAST = 4.0
AT_MOST = 8.0


_AT_THE_CALL = {"skip": ("skip", "run_once_more"), "wait": ("wait", "skip"), "raise": ("raise", "skip")}
_HOLDS = ("until_done", "until_done", "until_done", "running", "one_queued_one_running", "queued")


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
    """Its queue runs it again after a time limit, or after its process was killed."""
    is_eager: bool = False
    """Its caller runs it, and waits for it: nothing can be deferred, and nothing comes again."""

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


@dataclass(frozen=True)
class Mix:
    """How often something is chosen in this history. Each history leans another way: what is rare in one is common in
    another, and two rare things meet in some."""

    own_keys: float
    reused: float
    other_keys: float
    awaited: float
    kinds: tuple[str, ...]
    conflicts: tuple[str, ...]
    holds: tuple[str, ...]


def some_jobs(by: random.Random) -> list[Job]:
    mix = Mix(
        by.choice((0.0, 0.3, 0.9)),
        by.choice((0.0, 0.2, 0.8)),
        by.choice((0.0, 0.25)),
        by.choice((0.6, 0.6, 1.0)),
        by.choice((("key", "key", "key", "key", "slot", "slot and key"), ("key",), ("slot", "slot and key"))),
        by.choice((("skip", "skip", "wait", "raise"), ("skip",), ("wait",))),
        by.choice((_HOLDS, _HOLDS, ("running",))),
    )
    # One function for each key, and its slots: who shares a key shares what was decided about it.
    policies = {key: _policy(by, mix) for key in ("K", "L")}
    overlap = by.choice(("skip", "buffer_all", "allow_all"))
    return [_job(by, f"j{number}", policies, overlap, mix) for number in range(by.randint(3, 6))]


def _policy(by: random.Random, mix: Mix) -> Policy:
    run, hold = by.choice(mix.conflicts), by.choice(mix.holds)
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
        on_done="reuse_success" if hold != "queued" and by.random() < mix.reused else "rerun",
        hold_at_least=AT_LEAST if by.random() < 0.15 else None,
        hold_at_most=AT_MOST if by.random() < 0.15 else None,
        **more,
    )


def _job(by: random.Random, owner: str, policies: dict[str, Policy], overlap: Overlap, mix: Mix) -> Job:
    kind = by.choice(mix.kinds)
    note = None
    if kind != "key":
        run_key = f"schedule:e:run:{owner}" if overlap == "allow_all" else "schedule:e:run"
        note = Note("e", 1e9 + int(owner[1:]), f"slot:{owner}", run_key, KEEP, overlap)
    has_own_key = kind == "key" and by.random() < mix.own_keys
    key = "L" if by.random() < mix.other_keys else "K"
    envelope = Envelope(
        id=owner,
        key=f"idempotency:{key}" if has_own_key else key,
        payload=by.choice(("p", "q") if has_own_key else ("p", "p", "q")),
        idempotency_key=key if has_own_key else "",
        slot=note.as_dict() if note is not None else None,
    )
    is_eager = kind == "key" and by.random() < 0.1
    retries = by.random() < 0.3 and not is_eager
    return Job(owner, policies[key], envelope, note, kind != "slot", by.random() < mix.awaited, retries, is_eager)
