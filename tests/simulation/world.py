"""A broker, workers and callers, a store, time, and what goes wrong. A seed is a whole history.

One process, no sleep, no thread: every effect of a machine is one step, and between two steps anything may happen: a
worker is killed or stopped, its message is delivered twice or lost, a reply of the store is lost, the store is away, a
time limit hits, a caller dies, a resource refuses a token.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from taskguard.engine import effects as fx
from taskguard.engine.envelope import Envelope
from taskguard.engine.layers import Facts, Terms
from taskguard.engine.leaving import COPY_RUNS, COPY_WAITS
from taskguard.engine.publisher import Answer, Call, Publish
from taskguard.engine.worker import Delivery
from taskguard.errors import PayloadMismatchError, StoreUnavailableError, WaitTimeoutError
from taskguard.protocol.rules import MICROS, Rules
from taskguard.protocol.store import Claim, Claimant, Completed, Ending, Entry, Held, Lease
from taskguard.stores.memory import MemoryStore
from tests.simulation.jobs import KEEP, LEASE, WAIT_UP_TO, Job, some_jobs

Style = Literal["celery", "rq"]
"""How a queue waits: by deferring the message, which has a name then; or here, knowing what becomes of queued jobs."""

START = 1e9
QUEUED_FOR = 400.0
REPUBLISH_AFTER = 20.0
FAULTS = 14
STEPS = 4000
LONGEST_ROUND = 30.0
"""Seconds from one delivery of a job to the next, its worker asleep and its store away included."""
MOST_REFUSALS = FAULTS + 1
COPIES = (COPY_RUNS, COPY_WAITS)


class Violation(AssertionError):  # noqa: N818 - of what must never happen
    """What must not happen has happened."""


class TimeLimit(Exception):  # noqa: N818 - raised by a signal
    pass


@dataclass
class Message:
    owner: str
    envelope: Envelope
    ready: float
    floor: int = 0
    """The token that the resource had seen when it refused this job, whatever the envelope says."""


@dataclass
class Caller:
    job: Job
    call: Call
    effect: Any


@dataclass
class Worker:
    message: Message | None = None
    delivery: Delivery | None = None
    effect: Any = None
    leases: dict[int, Lease] = field(default_factory=dict)
    in_body: bool = False
    sleeps_until: float = 0.0

    @property
    def busy(self) -> bool:
        return self.message is not None

    def clear(self) -> None:
        self.message, self.delivery, self.effect, self.leases, self.in_body = None, None, None, {}, False


class World:
    def __init__(
        self, seed: int, style: Style, rules: Rules | None = None, delivery: type[Delivery] = Delivery
    ) -> None:
        self.by = random.Random(f"{style}{seed}")
        self.style = style
        self.now = START
        self.story: list[str] = []
        self.store = MemoryStore(clock=lambda: round(self.now * MICROS), rules=rules or Rules())
        self.machine = delivery
        self.jobs = {job.owner: job for job in some_jobs(self.by)}
        self.to_call = list(self.jobs.values())
        self.callers: list[Caller] = []
        self.broker: list[Message] = []
        self.workers = [Worker() for _ in range(self.by.choice((2, 3)))]
        self.faults = FAULTS
        self.is_away = False
        self.attempts = 0
        self.ends: dict[str, str] = {}
        self.outcomes: dict[str, bytes | None] = {}
        self.bodies: Counter[str] = Counter()
        self.lost: set[str] = set()
        """Jobs of which a message was lost …"""
        self.orphans: set[str] = set()
        """… and those whose caller died."""
        self.answered_with: dict[str, str] = {}
        """The calls that got another job's handle, and whose."""
        self.untold: set[str] = set()
        """Jobs whose end could not be told to the store."""
        self.met: dict[str, float] = {}
        """When a job first met another one."""
        self.refused: Counter[str] = Counter()
        self.marks: Counter[str] = Counter()
        """The highest token that the resource behind a key has seen."""

    # -- a history ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(STEPS):
            self._step()
            self.now += self.by.choice((0.01, 0.05, 0.3, 1.0))
            self._renew()
            if not (self.to_call or self.callers or self.broker or any(worker.busy for worker in self.workers)):
                self._check_the_end()
                return
        stuck = [
            (worker.message.owner, worker.delivery.phase)
            for worker in self.workers
            if worker.message and worker.delivery
        ]
        raise Violation(f"no end: {[message.owner for message in self.broker]} with the broker, {stuck} at workers")

    def _step(self) -> None:
        if self.to_call and self.by.random() < 0.15:
            self._call(self.to_call.pop())
        if self.faults and self.by.random() < 0.05:
            self._fault()
        if not self.faults:
            self.is_away = False
        if self.callers and self.by.random() < 0.5:
            self._go_on_calling(self.by.choice(self.callers))
        awake = [worker for worker in self.workers if worker.sleeps_until <= self.now]
        if not awake:
            return
        worker = self.by.choice(awake)
        if (worker.busy or self._take(worker)) and self.by.random() < (0.35 if worker.in_body else 1.0):
            self._work(worker)

    def say(self, *words: object) -> None:
        self.story.append(f"{self.now - START:8.2f}  {' '.join(str(word) for word in words)}")

    def _new_attempt(self) -> str:
        self.attempts += 1
        return f"a{self.attempts}"

    def _hurts(self, chance: float) -> bool:
        if not self.faults or self.by.random() > chance:
            return False
        self.faults -= 1
        return True

    # -- callers ------------------------------------------------------------------------------------------------------

    def _call(self, job: Job) -> None:
        names = self.style == "celery"
        call = Call(
            policy=job.policy,
            envelope=job.envelope,
            owner=job.owner,
            new_attempt=self._new_attempt,
            waits_for=QUEUED_FOR,
            copy_for=REPUBLISH_AFTER if names else 0.0,
            needs_own_handle=self.by.random() < 0.5,
        )
        if not job.is_guarded:
            self._publish(job, job.envelope)
            return
        self.say(
            job.owner,
            "is called:",
            job.envelope.key,
            job.policy.hold,
            job.policy.on_conflict,
            job.slot and job.slot.overlap,
        )
        self.callers.append(Caller(job, call, call.begin()))

    def _go_on_calling(self, caller: Caller) -> None:
        job, call, effect = caller.job, caller.call, caller.effect
        if self._hurts(0.03):
            self.say("the caller of", job.owner, "dies at", type(effect).__name__)
            self.callers.remove(caller)
            self.orphans.add(job.owner)
            return
        if isinstance(effect, fx.Last):
            self.callers.remove(caller)
            self._called(job, effect)
            return
        if self.is_away:
            self.callers.remove(caller)
            self._publish(job, call.envelope)  # unclaimed: the worker asks
            return
        caller.effect = self._answer_caller(call, effect)

    def _answer_caller(self, call: Call, effect: fx.Effect) -> fx.Effect:
        if isinstance(effect, fx.Ask):
            answer = self._ask(effect.claim)
            self.say(call.owner, "asks for its place ->", _short(answer))
            return call.answered(answer)
        if isinstance(effect, fx.Look):
            return call.looked(self.store.get(effect.entry))
        if isinstance(effect, fx.LookAfter):
            assert isinstance(effect.holder, Held)
            if self.style == "rq" and any(other.job.owner == effect.holder.owner for other in self.callers):
                return effect  # a moment later: it may just be on its way into its queue
            return call.holder_is(self._known(effect.holder), has_handle=True)
        if isinstance(effect, fx.EndQueued):
            return call.settled(self._end_queued(effect))
        assert isinstance(effect, fx.StandIn)
        self._stand_in(effect)
        return call.stood_in(has_handle=True)

    def _called(self, job: Job, effect: fx.Effect) -> None:
        if isinstance(effect, Publish):
            self._publish(job, effect.envelope)
            if effect.claimed is not None and not self.is_away:
                self.store.mark([(effect.claimed, QUEUED_FOR)], copy_for=REPUBLISH_AFTER)
        else:
            self.say(job.owner, "is not published:", _short(effect.found) if isinstance(effect, Answer) else effect)
            self.ends[job.owner] = "answered"
            if isinstance(effect, Answer) and isinstance(effect.found, Held):
                self.answered_with[job.owner] = effect.found.owner
            if isinstance(effect, Answer) and not job.policy.enforce:
                raise Violation(f"{job.owner} is not enforced, and is answered with {_short(effect.found)}")

    def _publish(self, job: Job, envelope: Envelope) -> None:
        self.say(job.owner, "is published", f"and joins {envelope.join}" if envelope.join else "")
        self.broker.append(Message(job.owner, envelope, self.now))

    # -- workers ------------------------------------------------------------------------------------------------------

    def _take(self, worker: Worker) -> bool:
        ready = [message for message in self.broker if message.ready <= self.now]
        if not ready:
            return False
        message = self.by.choice(ready)
        self.broker.remove(message)
        job, names = self.jobs[message.owner], self.style == "celery"
        terms = Terms(
            queued_for=QUEUED_FOR,
            republish_after=REPUBLISH_AFTER if names else QUEUED_FOR,
            on_store_error="retry",
            names_copies=names,
            trust_copy_for=60.0,
        )
        facts = Facts(attempt=self._new_attempt(), is_this_job=job.owner.__eq__, awaited=job.awaited)
        worker.message = message
        worker.delivery = self.machine.of(
            terms, facts, message.envelope, job.layers(message.envelope), job.queue_entry(message.envelope)
        )
        worker.effect = worker.delivery.begin()
        return True

    def _work(self, worker: Worker) -> None:
        delivery, effect = worker.delivery, worker.effect
        assert delivery is not None
        if isinstance(effect, fx.Last):
            self._end(worker, effect)
            return
        if isinstance(effect, fx.RunBody):
            self._body(worker, delivery)
            return
        if self._is_of_the_store(effect) and self.is_away:
            self._without_store(worker, delivery, effect)
            return
        worker.effect = self._carry_out(worker, delivery, effect)

    def _is_of_the_store(self, effect: fx.Effect) -> bool:
        return isinstance(effect, (fx.Ask, fx.Look, fx.Settle, fx.EndQueued))

    def _without_store(self, worker: Worker, delivery: Delivery, effect: fx.Effect) -> None:
        error = StoreUnavailableError("store", "away")
        if not isinstance(effect, (fx.Settle, fx.EndQueued)):
            worker.effect = delivery.store_away(error)
        elif not (isinstance(effect, fx.Settle) and effect.matters) or self.by.random() < 0.1:  # else it is patient
            self.untold.add(delivery.layers[-1].owner)
            worker.effect = delivery.not_settled(error)

    def _carry_out(self, worker: Worker, delivery: Delivery, effect: fx.Effect) -> fx.Effect:
        owner = delivery.layers[-1].owner
        if isinstance(effect, fx.Ask):
            answer = self._ask(effect.claim)
            self.say(owner, "asks for", effect.claim.key, "->", _short(answer))
            if isinstance(answer, Lease):
                worker.leases[effect.layer] = answer
            elif isinstance(answer, Held) and answer.owner != owner:
                self.met.setdefault(owner, self.now)
            elif isinstance(answer, Completed) and answer.owner != owner and self._runs_elsewhere(owner):
                raise Violation(f"{owner} runs, and another copy of it is answered with the end of {answer.owner}")
            return delivery.answered(answer, self.now)
        if isinstance(effect, fx.Look):
            return delivery.looked(self.store.get(effect.entry))
        if isinstance(effect, fx.LookAfter):
            self.met.setdefault(owner, self.now)
            return delivery.holder_is(self._known(effect.holder), self.now)
        if isinstance(effect, fx.StandIn):
            self._stand_in(effect)
            return delivery.stood_in(self.now)
        if isinstance(effect, fx.Republish):
            self.say(owner, "gives its copy back to the broker")
            self.broker.append(Message(owner, effect.envelope, self._later(effect.envelope, effect.within)))
            return delivery.republished()
        if isinstance(effect, fx.EndQueued):
            return delivery.settled(self._end_queued(effect))
        if isinstance(effect, fx.Settle):
            accepted = self._settle(worker, effect)
            if self._hurts(0.03):
                accepted = self._settle(worker, effect)  # the reply was lost, and it is asked again
            self.say(owner, effect.verb, effect.entry, effect.how, "->", accepted)
            return delivery.settled(accepted)
        assert isinstance(effect, fx.Wait)
        return delivery.waited(here=self.style == "rq" and self.by.random() < 0.7)

    def _body(self, worker: Worker, delivery: Delivery) -> None:
        job = self.jobs[delivery.layers[-1].owner]
        if not worker.in_body:
            if not self._all_valid(worker):  # it slept between the grant and this moment, by its own clock
                worker.effect = delivery.body_ended(fx.Ended("lost", error=TimeLimit()))
                return
            worker.in_body = True
            self._begin(worker, job)
            return
        worker.in_body = False
        ended = self._how_it_ends(worker, job)
        self.say(job.owner, "its body:", ended.kind)
        worker.effect = delivery.body_ended(ended)

    def _begin(self, worker: Worker, job: Job) -> None:
        owner = job.owner
        self.bodies[owner] += 1
        self.say(owner, "BODY", {lease.key: lease.token - round(START * MICROS) for lease in worker.leases.values()})
        # Not enforced, every copy of its message runs, as without a guard.
        if owner in self.ends and job.policy.enforce and owner not in self.untold:
            raise Violation(f"{owner} starts, and has ended before: {self.ends[owner]}")
        assert worker.message is not None
        if worker.leases[max(worker.leases)].token <= worker.message.floor:
            raise Violation(f"{owner} is granted a token that a resource has refused it with")
        mine = {lease.key for lease in worker.leases.values()}
        for other in self.workers:
            theirs = {lease.key for lease in other.leases.values()}
            if other is not worker and other.in_body and mine & theirs and self._all_valid(other):
                raise Violation(f"{owner} runs beside {other.message and other.message.owner}, both with valid leases")

    def _how_it_ends(self, worker: Worker, job: Job) -> fx.Ended:
        if not self._all_newest(worker):
            return fx.Ended("lost", error=TimeLimit())
        inner = worker.leases[max(worker.leases)]
        if inner.token < self.marks[inner.key]:
            self.refused[job.owner] += 1
            if self.refused[job.owner] > MOST_REFUSALS:
                raise Violation(f"{job.owner} is refused by the resource again and again")
            assert worker.message is not None
            worker.message = replace(worker.message, floor=self.marks[inner.key])
            return fx.Ended("lost", error=TimeLimit(), floor=self.marks[inner.key])
        self.marks[inner.key] = inner.token
        kinds: list[Any] = ["returned"] * 6 + ["failed"] * 2 + ["ignored", "goes_back"]
        if self.bodies[job.owner] < 4:
            kinds += ["retry"] * 3
        kind = self.by.choice(kinds)
        if kind == "returned":
            return fx.Ended(kind, value=1, outcome=f"{job.owner} {self.bodies[job.owner]}".encode())
        return fx.Ended(kind, error=ValueError(job.owner), delay=self.by.choice((0.0, 2.0)) if kind == "retry" else 0.0)

    def _end(self, worker: Worker, effect: fx.Last) -> None:
        message, delivery = worker.message, worker.delivery
        assert message is not None and delivery is not None
        owner, again = message.owner, None
        self.say(owner, "->", type(effect).__name__, getattr(effect, "reason", getattr(effect, "why", "")))
        if isinstance(effect, fx.Defer):
            self._check_wait(owner, effect)
            again = Message(owner, effect.envelope, self._later(effect.envelope, effect.within), message.floor)
        elif isinstance(effect, fx.GoOn):
            again = Message(owner, effect.envelope, self.now + effect.ended.delay, message.floor)
        elif isinstance(effect, fx.Raise) and delivery.ended is not None and delivery.ended.kind == "goes_back":
            again = Message(owner, message.envelope, self.now, message.floor)
        elif not (isinstance(effect, fx.Drop) and effect.why in COPIES):
            self._has_ended(owner, effect)
        if again is not None:
            self.broker.append(again)
            if self._hurts(0.1):
                self.say("... and its worker dies before it acknowledges")
                self.broker.append(Message(owner, message.envelope, self.now + self.by.choice((0.5, 3.0, 6.0))))
        worker.clear()

    def _has_ended(self, owner: str, effect: fx.Last) -> None:
        job, outcome = self.jobs[owner], None
        if isinstance(effect, fx.Return):
            word, outcome = "succeeded", f"{owner} {self.bodies[owner]}".encode()
        elif isinstance(effect, fx.Replay):
            word, outcome = effect.done.how, effect.done.outcome
            if not job.policy.enforce:
                raise Violation(f"{owner} is not enforced, and is answered with another's end")
            if effect.done.owner != owner and job.envelope.idempotency_key:
                theirs = self.jobs[effect.done.owner].envelope.payload
                if theirs != job.envelope.payload:
                    raise Violation(f"{owner} is answered with other work under its idempotency key")
        elif isinstance(effect, fx.Raise):
            word = effect.ended_as or "raised"
            self._check_error(owner, effect.error)
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
            if job.slot is not None and job.slot.overlap != "skip":
                raise Violation(f"{owner} is skipped, and its overlap is {job.slot.overlap}")
            if not job.policy.enforce and job.slot is None:
                raise Violation(f"{owner} is not enforced, and is skipped")
        if known is None:
            self.ends[owner] = word
            self.outcomes[owner] = outcome

    def _runs_elsewhere(self, owner: str) -> bool:
        return self.jobs[owner].policy.enforce and any(
            worker.in_body and worker.message is not None and worker.message.owner == owner and self._all_valid(worker)
            for worker in self.workers
        )

    def _check_wait(self, owner: str, effect: fx.Defer) -> None:
        job = self.jobs[owner]
        is_bounded = job.is_guarded and job.slot is None and job.policy.on_conflict.run == "wait"
        waited = self.now - (effect.envelope.since or self.now)
        if is_bounded and effect.reason in ("queued", "running") and waited > WAIT_UP_TO + LONGEST_ROUND:
            raise Violation(f"{owner} has met others {waited:.0f} s ago, and waits on")

    def _check_error(self, owner: str, error: BaseException) -> None:
        if isinstance(error, WaitTimeoutError) and self.now - self.met.get(owner, self.now) < WAIT_UP_TO:
            raise Violation(f"{owner} waited for others since {self.met.get(owner)}, and gave up at {self.now}")
        if isinstance(error, PayloadMismatchError) and not self.jobs[owner].envelope.idempotency_key:
            raise Violation(f"{owner} has no idempotency key, and is refused for its payload")

    # -- the store ----------------------------------------------------------------------------------------------------

    def _ask(self, claim: Claim) -> Lease | Held | Completed:
        answer = self.store.claim(claim)
        if self._hurts(0.03):
            self.say("a reply is lost, and", claim.owner, "asks again")
            answer = self.store.claim(claim)
        return answer

    def _settle(self, worker: Worker | None, step: fx.Settle) -> bool:
        if step.spares_other_run:
            entry = self.store.get(step.entry)
            is_live = entry is not None and entry.state == "running" and entry.remaining > 0
            if is_live and entry is not None and entry.owner == step.owner and entry.attempt != step.attempt:
                return False
        lease = worker.leases.get(step.layer) if worker is not None else None
        who = lease or Claimant(step.entry, step.owner, step.attempt)
        if step.verb == "requeue":
            return self.store.requeue(
                who, step.seconds, copy_for=step.copy_for, keep_starts=step.keep_starts, copy=step.copy
            )
        outcome = step.outcome or (b"error" if step.error is not None else None)
        ending = Ending(how=step.how, keep_for=step.keep_for or KEEP, outcome=outcome)
        if step.verb == "complete":
            return self.store.complete(who, ending)
        return self.store.release(who, ending, anyway=step.anyway)

    def _end_queued(self, effect: fx.EndQueued) -> bool:
        entry = self.store.get(effect.entry)
        if entry is None or entry.state != "queued" or entry.owner != effect.owner:
            return False
        claim = Claim(effect.entry, effect.owner, self._new_attempt(), lease=LEASE, keep_for=KEEP)
        answer = self.store.claim(claim)
        return isinstance(answer, Lease) and self.store.release(answer, Ending(how=effect.how, keep_for=KEEP))

    def _stand_in(self, effect: fx.StandIn) -> None:
        self.say("somebody publishes for", effect.holder.owner)
        self.broker.append(Message(effect.holder.owner, effect.envelope, self.now))
        if not self.is_away:
            self.store.mark([(effect.holder, effect.holder.remaining)], copy_for=REPUBLISH_AFTER)

    def _known(self, holder: Held | Entry) -> fx.Known:
        if self.style == "celery":
            return "unknown"
        owner = holder.owner
        here = any(worker.message is not None and worker.message.owner == owner for worker in self.workers)
        waits = any(message.owner == owner for message in self.broker)
        waits = waits or any(caller.job.owner == owner for caller in self.callers)
        return "coming" if here or waits else "gone"

    def _renew(self) -> None:
        if self.is_away:
            return
        for worker in self.workers:
            delivery = worker.delivery
            if delivery is not None and delivery.phase != "leaving" and worker.sleeps_until <= self.now:
                self.store.renew([(lease, LEASE) for lease in worker.leases.values()])

    def _all_newest(self, worker: Worker) -> bool:
        return self.is_away or all(self.store.renew([(lease, LEASE) for lease in worker.leases.values()]))

    def _all_valid(self, worker: Worker) -> bool:
        return all(self._is_valid(lease) for lease in worker.leases.values())

    def _is_valid(self, lease: Lease) -> bool:
        entry = self.store.get(lease.key)
        return entry is not None and entry.token == lease.token and entry.state == "running" and entry.remaining > 0

    def _later(self, envelope: Envelope, within: float) -> float:
        delay = min(8.0, within + 0.25, 0.25 * 2 ** min(envelope.rounds, 6))
        return self.now + delay * self.by.uniform(0.6, 1.0)

    # -- what goes wrong ----------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        busy = [worker for worker in self.workers if worker.busy]
        kind = self.by.choice(("kill", "kill", "twice", "lose", "away", "sleep", "redeliver", "time limit", "refuse"))
        if kind == "away":
            self.is_away = not self.is_away
            self.say("THE STORE IS", "AWAY" if self.is_away else "BACK")
        elif kind in ("twice", "lose") and self.broker:
            self._hurt_message(kind, self.by.choice(self.broker))
        elif kind == "refuse":
            # As after a store that lost its data, with a clock that went back: a resource has seen higher tokens.
            self.marks[self.by.choice(("K", "L", "schedule:e:run"))] = round((self.now + 100_000) * MICROS)
        elif kind in ("kill", "sleep", "redeliver", "time limit") and busy:
            self._hurt_worker(kind, self.by.choice(busy))
        else:
            return
        self.faults -= 1

    def _hurt_message(self, kind: str, message: Message) -> None:
        self.say("A MESSAGE OF", message.owner, "IS DELIVERED TWICE" if kind == "twice" else "IS LOST")
        if kind == "twice":
            self.broker.append(replace(message))
        else:
            self.broker.remove(message)
            self.lost.add(message.owner)

    def _hurt_worker(self, kind: str, worker: Worker) -> None:
        message, delivery = worker.message, worker.delivery
        assert message is not None and delivery is not None
        self.say(kind.upper(), message.owner, f"({delivery.phase})")
        if kind == "sleep":
            worker.sleeps_until = self.now + self.by.choice((2.0, 6.0))
        elif kind == "redeliver":
            self.broker.append(Message(message.owner, message.envelope, self.now))
        elif kind == "kill":
            self.broker.append(Message(message.owner, message.envelope, self.now + 4.0))
            worker.clear()
        elif delivery.phase in ("body", "over"):
            return  # in the body it is how that ends; at the very end it is the queue's own affair
        else:
            self._cut_off(worker, message, delivery)

    def _cut_off(self, worker: Worker, message: Message, delivery: Delivery) -> None:
        job, has_ended = self.jobs[message.owner], True
        for step in delivery.cut_off(TimeLimit(), job.retries):
            if self.is_away:
                self.untold.add(job.owner)
            elif not self._settle(None, step) and step.spares_other_run:
                has_ended = False  # another delivery of the job says how it ends
        if job.retries:
            self.broker.append(Message(job.owner, message.envelope, self.now + 1.0))
        elif has_ended:
            self.ends.setdefault(job.owner, "cut off")
        worker.clear()

    # -- the end ------------------------------------------------------------------------------------------------------

    def _check_the_end(self) -> None:
        for owner in self.jobs:
            if owner not in self.ends and owner not in self.lost | self.orphans:
                raise Violation(f"{owner} is gone without an end")
        for owner, holder in self.answered_with.items():
            if holder not in self.ends and holder not in self.lost:
                raise Violation(f"{owner} was answered with {holder}, which never ran")
        self.now += LEASE + 1.0
        for entry in self.store.scan():
            is_live = entry.state in ("queued", "running") and entry.remaining > 0
            if is_live and entry.owner not in self.lost | self.untold | self.orphans:
                raise Violation(f"{entry.key} is {entry.state} for {entry.owner}: {self.ends.get(entry.owner)}")


def _short(answer: Any) -> str:
    if isinstance(answer, Lease):
        return f"granted ({answer.state})"
    if isinstance(answer, Held):
        return f"held by {answer.owner} ({answer.state})"
    return f"{answer.how} by {answer.owner}"
