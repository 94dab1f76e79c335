"""What must not happen in a history, and what has to be remembered to see it."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from taskguard.engine import effects as fx
from taskguard.engine.publisher import Answer
from taskguard.errors import PayloadMismatchError, WaitTimeoutError
from taskguard.protocol.store import Claim, Completed, Entry, Held, Lease
from tests.simulation.jobs import WAIT_UP_TO, Job

Style = Literal["celery", "rq"]
"""How a queue waits: by deferring the message, which has a name then; or here, knowing what becomes of queued jobs."""

FAULTS = 14
LONGEST_ROUND = 30.0
"""Seconds from one delivery of a job to the next, its worker asleep and its store away included."""
MOST_REFUSALS = FAULTS + 1
A_MOMENT = 0.001
"""What clocks that count microseconds may round."""


class Violation(AssertionError):  # noqa: N818 - of what must never happen
    """What must not happen has happened."""


class Judge:
    def __init__(self, jobs: dict[str, Job], style: Style) -> None:
        self.jobs = jobs
        self.style = style
        self.ends: dict[str, str] = {}
        self.outcomes: dict[str, bytes | None] = {}
        self.bodies: Counter[str] = Counter()
        self.begun: list[tuple[float, str]] = []
        """When a body began, and under which key."""
        self.lost: set[str] = set()
        """Jobs of which a message was lost …"""
        self.orphans: set[str] = set()
        """… and those whose caller died."""
        self.untold: set[str] = set()
        """Jobs whose end could not be told to the store."""
        self._answered_with: dict[str, str] = {}
        """The calls that got another job's handle, and whose."""
        self._asked: dict[str, float] = {}
        """When a caller last asked for its place."""
        self._met: dict[str, float] = {}
        """When a job first met another one."""
        self._refused: Counter[str] = Counter()
        self._not_before: dict[str, float] = {}
        """When the next run of a job that is to be retried may begin."""
        self._kept: dict[str, bytes | None] = {}
        """What the store was told that a job returned."""
        self._kept_out: dict[str, tuple[str, float]] = {}
        """Who ended, and until when others are kept out of its entry (`hold_at_least`)."""

    # -- calls ---------------------------------------------------------------------------------------------------------

    def asks_for_its_place(self, owner: str, now: float) -> None:
        self._asked[owner] = now

    def is_not_published(self, job: Job, effect: fx.Effect) -> None:
        self.ends[job.owner] = "answered"
        if not isinstance(effect, Answer):
            return
        if isinstance(effect.found, Held):
            self._answered_with[job.owner] = effect.found.owner
        if not job.policy.enforce:
            raise Violation(f"{job.owner} is not enforced, and is answered with {short(effect.found)}")

    # -- claims --------------------------------------------------------------------------------------------------------

    def meets_another(self, owner: str, now: float) -> None:
        self._met.setdefault(owner, now)

    def is_granted(self, claim: Claim, now: float) -> None:
        other, until = self._kept_out.get(claim.key, (claim.owner, 0.0))
        if other != claim.owner and now < until - A_MOMENT:
            raise Violation(f"{claim.owner} has {claim.key} {until - now:.1f} s too soon: {other} holds it at least")

    def has_told(self, owner: str, step: fx.Settle, outcome: bytes | None, until: float) -> None:
        """The store has accepted an end."""
        self._kept_out[step.entry] = (owner, until)
        if step.how == "succeeded" and outcome is not None:
            self._kept[owner] = outcome

    def pushes_in(self, owner: str, holder: str) -> None:
        raise Violation(f"{owner} cannot wait, and takes the place of {holder}, which is on its way")

    def is_answered_while_it_runs(self, owner: str, done: Completed) -> None:
        raise Violation(f"{owner} runs, and another copy of it is answered with the end of {done.owner}")

    # -- bodies --------------------------------------------------------------------------------------------------------

    def begins(self, job: Job, lease: Lease, floor: int, now: float) -> None:
        owner = job.owner
        self.bodies[owner] += 1
        self.begun.append((now, job.envelope.key))
        # Not enforced, every copy of its message runs, as without a guard.
        is_bound = job.policy.enforce and owner not in self.untold
        if owner in self.ends and is_bound:
            raise Violation(f"{owner} starts, and has ended before: {self.ends[owner]}")
        if lease.token <= floor:
            raise Violation(f"{owner} is granted a token that a resource has refused it with")
        if is_bound and now < self._not_before.get(owner, 0.0):
            raise Violation(f"{owner} starts {self._not_before[owner] - now:.1f} s before its retry is due")

    def runs_beside(self, owner: str, other: str) -> None:
        raise Violation(f"{owner} runs beside {other}, both with valid leases")

    def is_refused_by_the_resource(self, owner: str) -> None:
        self._refused[owner] += 1
        if self._refused[owner] > MOST_REFUSALS:
            raise Violation(f"{owner} is refused by the resource again and again")

    def is_retried(self, job: Job, at: float) -> None:
        # RQ keeps one message of a job: no other copy of it can come sooner.
        if self.style == "celery" and job.is_guarded:
            self._not_before[job.owner] = at

    # -- ends ----------------------------------------------------------------------------------------------------------

    def defers(self, owner: str, effect: fx.Defer, now: float) -> None:
        job = self.jobs[owner]
        is_bounded = job.is_guarded and job.slot is None and job.policy.on_conflict.run == "wait"
        waited = now - (effect.envelope.since or now)
        if is_bounded and effect.reason in ("queued", "running") and waited > WAIT_UP_TO + LONGEST_ROUND:
            raise Violation(f"{owner} has met others {waited:.0f} s ago, and waits on")

    def ended(self, owner: str, effect: fx.Last, now: float) -> None:
        job, outcome = self.jobs[owner], None
        if isinstance(effect, fx.Return):
            word, outcome = "succeeded", effect.value
        elif isinstance(effect, fx.Replay):
            word, outcome = effect.done.how, effect.done.outcome
            self._check_answer(job, effect.done)
        elif isinstance(effect, fx.Raise):
            word = effect.ended_as or "raised"
            self._check_error(owner, effect.error, now)
        else:
            word = getattr(effect, "why", "?")
        known = self.ends.get(owner) if job.policy.enforce and owner not in self.untold else None
        if known == "succeeded" and word == "succeeded" and self.outcomes.get(owner) != outcome:
            raise Violation(f"{owner} had succeeded with {self.outcomes[owner]!r}, and now with {outcome!r}")
        # A copy that is just giving up may report so after another copy has ended; its receipt was not taken.
        is_late = isinstance(effect, fx.Raise) and isinstance(effect.error, WaitTimeoutError)
        if known in ("succeeded", "failed") and word in ("succeeded", "failed") and known != word and not is_late:
            raise Violation(f"{owner} had {known}, and now it has {word}")
        if isinstance(effect, fx.Drop) and effect.why == "skipped":
            self._check_skip(job)
        if known is None:
            self.ends[owner] = word
            self.outcomes[owner] = outcome

    def _check_answer(self, job: Job, done: Completed) -> None:
        owner, source = job.owner, done.twin or done.owner
        if not job.policy.enforce:
            raise Violation(f"{owner} is not enforced, and is answered with another's end")
        if done.owner != owner and job.envelope.idempotency_key:
            theirs = self.jobs[done.owner].envelope.payload
            if theirs != job.envelope.payload:
                raise Violation(f"{owner} is answered with other work under its idempotency key")
        if done.how == "succeeded" and source in self._kept and done.outcome != self._kept[source]:
            raise Violation(f"{owner} is answered with {done.outcome!r}; {source} returned {self._kept[source]!r}")

    def _check_skip(self, job: Job) -> None:
        if job.slot is not None and job.slot.overlap != "skip":
            raise Violation(f"{job.owner} is skipped, and its overlap is {job.slot.overlap}")
        if not job.policy.enforce and job.slot is None:
            raise Violation(f"{job.owner} is not enforced, and is skipped")

    def _check_error(self, owner: str, error: BaseException, now: float) -> None:
        if isinstance(error, WaitTimeoutError) and now - self._met.get(owner, now) < WAIT_UP_TO:
            raise Violation(f"{owner} waited for others since {self._met.get(owner)}, and gave up at {now}")
        if isinstance(error, PayloadMismatchError) and not self.jobs[owner].envelope.idempotency_key:
            raise Violation(f"{owner} has no idempotency key, and is refused for its payload")

    def is_over(self, left: list[Entry]) -> None:
        """Nothing is with the broker, nothing with a worker; *left* is what the store holds now."""
        for owner in self.jobs:
            if owner not in self.ends and owner not in self.lost | self.orphans:
                raise Violation(f"{owner} is gone without an end")
        for owner, holder in self._answered_with.items():
            if holder not in self.ends and holder not in self.lost:
                raise Violation(f"{owner} was answered with {holder}, which never ran")
            self._check_one_more(self.jobs[owner], holder)
        for entry in left:
            is_live = entry.state in ("queued", "running") and entry.remaining > 0
            if is_live and entry.owner not in self.lost | self.untold | self.orphans:
                raise Violation(f"{entry.key} is {entry.state} for {entry.owner}: {self.ends.get(entry.owner)}")

    def _check_one_more(self, job: Job, holder: str) -> None:
        """With `run_once_more` some run of the key begins after each call of it, unless finished work answers it."""
        policy = job.policy
        if policy.on_conflict.enqueue != "run_once_more" or policy.on_done != "rerun":
            return
        key, asked = job.envelope.key, self._asked[job.owner]
        is_known = self.ends.get(holder) == "succeeded" and holder not in self.untold
        if is_known and not any(at >= asked and name == key for at, name in self.begun):
            raise Violation(f"{job.owner} was answered with {holder}, and nothing of {key} began after that call")


def short(answer: Any) -> str:
    if isinstance(answer, Lease):
        return f"granted ({answer.state})"
    if isinstance(answer, Held):
        return f"held by {answer.owner} ({answer.state})"
    return f"{answer.how} by {answer.owner}"
