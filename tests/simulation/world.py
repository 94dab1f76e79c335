"""A broker, workers and callers, a store, time, and what goes wrong. A seed is a whole history.

One process, no sleep, no thread: every effect of a machine is one step, and between two steps anything may happen: a
worker is killed or stopped, a child is killed and its parent settles, a message is delivered twice or lost, a reply of
the store is lost, the store is away, a time limit hits, a caller dies, a resource refuses a token. `judge.py` says what
must not come of it.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from taskguard.engine import effects as fx
from taskguard.engine.envelope import Envelope
from taskguard.engine.layers import Facts, Terms
from taskguard.engine.leaving import COPY_RUNS, COPY_WAITS
from taskguard.engine.parent import Gone
from taskguard.engine.publisher import Answer, Call, Publish
from taskguard.engine.settle import carry_out
from taskguard.engine.worker import Delivery
from taskguard.errors import StoreUnavailableError
from taskguard.guard import Guard
from taskguard.protocol.rules import MICROS, Rules
from taskguard.protocol.store import Claim, Completed, Ending, Entry, Held, Lease
from taskguard.stores.memory import MemoryStore
from tests.simulation.jobs import KEEP, LEASE, Job, some_jobs
from tests.simulation.judge import FAULTS, Judge, Style, Violation, short

START = 1e9
QUEUED_FOR = 400.0
REPUBLISH_AFTER = 20.0
STEPS = 4000
COPIES = (COPY_RUNS, COPY_WAITS)
KINDS = ("kill", "kill", "child", "twice", "lose", "away", "sleep", "redeliver", "time limit", "refuse")


@dataclass(frozen=True)
class Code:
    """What runs in a history: the shipped code, or a mutant of it."""

    rules: Rules = field(default_factory=Rules)
    delivery: type[Delivery] = Delivery
    call: type[Call] = Call


class TimeLimit(Exception):  # noqa: N818 - raised by a signal
    pass


@dataclass
class Message:
    owner: str
    envelope: Envelope
    ready: float
    floor: int = 0
    """The token that the resource had seen when it refused this job, whatever the envelope says."""
    after_outage: bool = False
    """It was deferred because the store was away, whatever the envelope says."""


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
    since: dict[int, float] = field(default_factory=dict)
    """When each lease was asked for."""
    in_body: bool = False
    floor: int = 0
    """The token that the resource has refused it with."""
    has_retried: bool = False
    """The message of a retry has left, and the body has not ended yet."""
    sleeps_until: float = 0.0

    @property
    def busy(self) -> bool:
        return self.message is not None

    def clear(self) -> None:
        self.message, self.delivery, self.effect, self.leases, self.since = None, None, None, {}, {}
        self.in_body, self.has_retried, self.floor = False, False, 0


class World:
    def __init__(self, seed: int, style: Style, code: Code | None = None) -> None:
        self.by = random.Random(f"{style}{seed}")
        self.style = style
        self.now = START
        self.story: list[str] = []
        self.code = code or Code()
        self.store = MemoryStore(clock=lambda: round(self.now * MICROS), rules=self.code.rules)
        self.guard = Guard(self.store, listeners=(), history=False)
        self.jobs = {job.owner: job for job in some_jobs(self.by)}
        self.judge = Judge(self.jobs, style)
        self.to_call = list(self.jobs.values())
        self.callers: list[Caller] = []
        self.broker: list[Message] = []
        self.workers = [Worker() for _ in range(self.by.choice((2, 3)))]
        self.faults = FAULTS
        share = self.by.choice((0.3, 0.7, 1.0))
        self.kinds = [kind for kind in KINDS if self.by.random() < share]
        """What goes wrong in this history: with fewer kinds there is more of each."""
        self.pace = self.by.choice((0.1, 0.35))
        """How soon bodies end."""
        self.is_away = False
        self.attempts = 0
        self.marks: Counter[str] = Counter()
        """The highest token that the resource behind a key has seen."""

    # -- a history ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(STEPS):
            self._step()
            self.now += self.by.choice((0.01, 0.05, 0.3, 1.0))
            self._renew()
            if not (self.to_call or self.callers or self.broker or any(worker.busy for worker in self.workers)):
                self.now += LEASE + 1.0
                self.judge.is_over(list(self.store.scan()))
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
        if (worker.busy or self._take(worker)) and self.by.random() < (self.pace if worker.in_body else 1.0):
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
        call = self.code.call(
            policy=job.policy,
            envelope=job.envelope,
            owner=job.owner,
            new_attempt=self._new_attempt,
            waits_for=QUEUED_FOR,
            copy_for=REPUBLISH_AFTER if names else 0.0,
            needs_own_handle=self.by.random() < 0.5,
        )
        if not job.is_guarded or job.is_eager:
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
            self.judge.orphans.add(job.owner)
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
            self.judge.asks_for_its_place(call.owner, self.now)
            answer = self._ask(effect.claim)
            self.say(call.owner, "asks for its place ->", short(answer))
            return call.answered(answer)
        if isinstance(effect, fx.Look):
            return call.looked(self.store.get(effect.entry))
        if isinstance(effect, fx.LookAfter):
            assert isinstance(effect.holder, Held)
            if self.style == "rq" and any(other.job.owner == effect.holder.owner for other in self.callers):
                return effect  # a moment later: it may just be on its way into its queue
            return call.holder_is(self._known(effect.holder), has_handle=True)
        if isinstance(effect, fx.EndQueued):
            return call.settled(carry_out(self.guard, effect))
        assert isinstance(effect, fx.StandIn)
        self._stand_in(effect)
        return call.stood_in(has_handle=True)

    def _called(self, job: Job, effect: fx.Effect) -> None:
        if isinstance(effect, Publish):
            self._publish(job, effect.envelope)
            if effect.claimed is not None and not self.is_away:
                self.store.mark([(effect.claimed, QUEUED_FOR)], copy_for=REPUBLISH_AFTER)
        else:
            self.say(job.owner, "is not published:", short(effect.found) if isinstance(effect, Answer) else effect)
            self.judge.is_not_published(job, effect)

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
        if message.after_outage and not message.envelope.after_outage:
            raise Violation(f"{message.owner} was deferred by an outage, and its message does not say so")
        job, names = self.jobs[message.owner], self.style == "celery"
        terms = Terms(
            queued_for=QUEUED_FOR,
            republish_after=REPUBLISH_AFTER if names else QUEUED_FOR,
            on_store_error="retry",
            names_copies=names,
            trust_copy_for=60.0,
        )
        facts = Facts(
            attempt=self._new_attempt(),
            is_this_job=job.owner.__eq__,
            awaited=job.awaited,
            can_wait=not job.is_eager,
        )
        worker.message = message
        worker.delivery = self.code.delivery.of(
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
        return isinstance(effect, (fx.Ask, fx.Look, fx.Settle, fx.EndQueued, fx.RaiseTokens))

    def _without_store(self, worker: Worker, delivery: Delivery, effect: fx.Effect) -> None:
        error = StoreUnavailableError("store", "away")
        if not isinstance(effect, (fx.Settle, fx.EndQueued, fx.RaiseTokens)):
            worker.effect = delivery.store_away(error)
        elif not (isinstance(effect, fx.Settle) and effect.matters) or self.by.random() < 0.1:  # else it is patient
            self.judge.untold.add(delivery.layers[-1].owner)
            worker.effect = delivery.not_settled(error)

    def _carry_out(self, worker: Worker, delivery: Delivery, effect: fx.Effect) -> fx.Effect:
        owner = delivery.layers[-1].owner
        if isinstance(effect, fx.Ask):
            answer = self._ask(effect.claim)
            self.say(owner, "asks for", effect.claim.key, "->", short(answer))
            if isinstance(answer, Lease):
                worker.leases[effect.layer], worker.since[effect.layer] = answer, self.now
            elif isinstance(answer, Held) and answer.owner != owner:
                self.judge.meets_another(owner, self.now)
            elif isinstance(answer, Completed) and answer.owner != owner and self._runs_elsewhere(owner):
                self.judge.is_answered_while_it_runs(owner, answer)
            return delivery.answered(answer, self.now)
        if isinstance(effect, fx.Look):
            return delivery.looked(self.store.get(effect.entry))
        if isinstance(effect, fx.LookAfter):
            self.judge.meets_another(owner, self.now)
            known = self._known(effect.holder)
            then = delivery.holder_is(known, self.now)
            if isinstance(then, fx.Ask) and then.claim.replace_queued and self.jobs[owner].is_eager and known != "gone":
                self.judge.pushes_in(owner, effect.holder.owner)
            return then
        if isinstance(effect, fx.StandIn):
            self._stand_in(effect)
            return delivery.stood_in(self.now)
        if isinstance(effect, fx.Republish):
            self.say(owner, "gives its copy back to the broker")
            self.broker.append(Message(owner, effect.envelope, self._later(effect.envelope, effect.within)))
            return delivery.republished()
        if isinstance(effect, fx.EndQueued):
            return delivery.settled(carry_out(self.guard, effect))
        if isinstance(effect, fx.RaiseTokens):
            self.guard.raise_tokens(effect.entry, effect.floor, delivery.layers[-1].policy)
            return delivery.settled(True)
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
        if self.style == "celery" and not job.is_guarded and not worker.has_retried and self._wants_a_retry(job):
            # Of a plain task Celery sends the message of a retry at once, and ends the body then.
            self.say(job.owner, "sends its retry")
            assert worker.message is not None
            self.broker.append(replace(worker.message, ready=self.now))
            worker.has_retried = True
            return
        worker.in_body = False
        ended = self._how_it_ends(worker, job)
        self.say(job.owner, "its body:", ended.kind)
        worker.effect = delivery.body_ended(ended)

    def _wants_a_retry(self, job: Job) -> bool:
        return self.judge.bodies[job.owner] < 4 and self.by.random() < 0.3

    def _begin(self, worker: Worker, job: Job) -> None:
        owner, message = job.owner, worker.message
        assert message is not None
        self.say(owner, "BODY", {lease.key: lease.token - round(START * MICROS) for lease in worker.leases.values()})
        self.judge.begins(job, worker.leases[max(worker.leases)], message.floor, self.now)
        mine = {lease.key for lease in worker.leases.values()}
        for other in self.workers:
            theirs = {lease.key for lease in other.leases.values()}
            if other is not worker and other.in_body and mine & theirs and self._all_valid(other):
                self.judge.runs_beside(owner, other.message.owner if other.message is not None else "?")

    def _how_it_ends(self, worker: Worker, job: Job) -> fx.Ended:
        if worker.has_retried:
            return fx.Ended("goes_back", error=ValueError(job.owner))
        if not self._all_newest(worker) or self._is_held_too_long(worker):
            return fx.Ended("lost", error=TimeLimit())
        inner = worker.leases[max(worker.leases)]
        if inner.token < self.marks[inner.key]:
            self.judge.is_refused_by_the_resource(job.owner)
            worker.floor = self.marks[inner.key]
            return fx.Ended("lost", error=TimeLimit(), floor=self.marks[inner.key])
        self.marks[inner.key] = inner.token
        kinds: list[Any] = ["returned"] * 6 + ["failed"] * 2 + ["ignored"]
        if not job.is_eager:
            kinds.append("goes_back")
            kinds += ["retry"] * 3 if self.judge.bodies[job.owner] < 4 else []
        kind = self.by.choice(kinds)
        if kind == "returned":
            value = f"{job.owner} {self.judge.bodies[job.owner]}".encode()
            return fx.Ended(kind, value=value, outcome=value)
        return fx.Ended(kind, error=ValueError(job.owner), delay=self.by.choice((0.0, 2.0)) if kind == "retry" else 0.0)

    def _end(self, worker: Worker, effect: fx.Last) -> None:
        message, delivery = worker.message, worker.delivery
        assert message is not None and delivery is not None
        owner, again, floor = message.owner, None, max(message.floor, worker.floor)
        self.say(owner, "->", type(effect).__name__, getattr(effect, "reason", getattr(effect, "why", "")))
        is_over = False
        if isinstance(effect, fx.Defer):
            self.judge.defers(owner, effect, self.now)
            # Where it had its key already, no other holder can have been kept from renewing.
            outage = effect.reason == "store_away" and len(delivery.layers) - 1 not in delivery.granted
            again = Message(owner, effect.envelope, self._later(effect.envelope, effect.within), floor, outage)
        elif isinstance(effect, fx.GoOn):
            due = self.now + effect.ended.delay
            again = Message(owner, effect.envelope, due, floor)
            self.judge.is_retried(self.jobs[owner], due)
        elif isinstance(effect, fx.Raise) and delivery.ended is not None and delivery.ended.kind == "goes_back":
            again = replace(message, ready=self.now) if not worker.has_retried else None
        else:
            is_over = not (isinstance(effect, fx.Drop) and effect.why in COPIES)
        if is_over:
            self.judge.ended(owner, effect, self.now)
        if again is not None:
            self.broker.append(again)
            if self._hurts(0.15):
                self.say("... and its worker dies before it acknowledges")
                self.broker.append(replace(message, ready=self.now + self.by.choice((0.5, 3.0, 6.0))))
        worker.clear()

    def _runs_elsewhere(self, owner: str) -> bool:
        return self.jobs[owner].policy.enforce and any(
            worker.in_body and worker.message is not None and worker.message.owner == owner and self._all_valid(worker)
            for worker in self.workers
        )

    # -- the store ----------------------------------------------------------------------------------------------------

    def _ask(self, claim: Claim) -> Lease | Held | Completed:
        answer = self.store.claim(claim)
        if self._hurts(0.03):
            self.say("a reply is lost, and", claim.owner, "asks again")
            answer = self.store.claim(claim)
        if isinstance(answer, Lease):
            self.judge.is_granted(claim, self.now)
        return answer

    def _settle(self, worker: Worker, step: fx.Settle) -> bool:
        lease = worker.leases.get(step.layer)
        if lease is None:
            return carry_out(self.guard, step)
        assert worker.delivery is not None
        if step.verb == "requeue":
            return self.store.requeue(
                lease, step.seconds, copy_for=step.copy_for, keep_starts=step.keep_starts, copy=step.copy
            )
        layer = worker.delivery.layers[step.layer]
        until = worker.since[step.layer] + (layer.policy.hold_at_least or 0.0)
        outcome = step.outcome or (b"error" if step.error is not None else None)
        ending = Ending(how=step.how, keep_for=KEEP, outcome=outcome, linger=max(0.0, until - self.now))
        ends = self.store.complete if step.verb == "complete" else self.store.release
        accepted = ends(lease, ending)
        if accepted:
            self.judge.has_told(lease.owner, step, outcome, until)
        return accepted

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
            is_awake = worker.sleeps_until <= self.now and not self._is_held_too_long(worker)
            if delivery is not None and delivery.phase != "leaving" and is_awake:
                self.store.renew([(lease, LEASE) for lease in worker.leases.values()])

    def _all_newest(self, worker: Worker) -> bool:
        return self.is_away or all(self.store.renew([(lease, LEASE) for lease in worker.leases.values()]))

    def _is_held_too_long(self, worker: Worker) -> bool:
        """As long as `hold_at_most` allows: nobody renews any more."""
        assert worker.delivery is not None or not worker.since
        for at, since in worker.since.items():
            assert worker.delivery is not None
            longest = worker.delivery.layers[at].policy.hold_at_most
            if longest is not None and self.now - since > longest:
                return True
        return False

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
        sent = [message for message in self.broker if not self.jobs[message.owner].is_eager]
        kind = self.by.choice(self.kinds or KINDS)
        if kind == "away":
            self.is_away = not self.is_away
            self.say("THE STORE IS", "AWAY" if self.is_away else "BACK")
        elif kind in ("twice", "lose") and sent:
            self._hurt_message(kind, self.by.choice(sent))
        elif kind == "refuse":
            # As after a store that lost its data, with a clock that went back: a resource has seen higher tokens.
            self.marks[self.by.choice(("K", "L", "schedule:e:run"))] = round((self.now + 100_000) * MICROS)
        elif kind in ("kill", "child", "sleep", "redeliver", "time limit") and busy:
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
            self.judge.lost.add(message.owner)

    def _hurt_worker(self, kind: str, worker: Worker) -> None:
        message, delivery = worker.message, worker.delivery
        assert message is not None and delivery is not None
        self.say(kind.upper(), message.owner, f"({delivery.phase})")
        if kind == "sleep":
            worker.sleeps_until = self.now + self.by.choice((2.0, 6.0))
        elif self.jobs[message.owner].is_eager and kind != "time limit":
            self.judge.lost.add(message.owner)  # with its caller
            worker.clear()
        elif kind == "redeliver":
            self.broker.append(replace(message, ready=self.now))
        elif kind == "kill":
            self.broker.append(replace(message, ready=self.now + 4.0))
            worker.clear()
        elif kind == "child":
            self._settle_for_child(message, delivery)
            worker.clear()
        elif delivery.phase in ("body", "over"):
            return  # in the body it is how that ends; at the very end it is the queue's own affair
        else:
            self._cut_off(worker, message, delivery)

    def _settle_for_child(self, message: Message, delivery: Delivery) -> None:
        """Its parent lives, and knows the attempt alone."""
        job, guards = self.jobs[message.owner], [self.guard] * len(delivery.layers)
        gone = Gone(layers=delivery.layers, queue_entry=delivery.queue_entry, attempt=delivery.facts.attempt)
        has_ended = False
        if self.is_away:
            self.judge.untold.add(job.owner)
        elif job.retries:
            gone.requeue(guards, delivery.terms, keep_starts=True)
        else:
            has_ended = gone.end(guards, "failed", TimeLimit(), ends_slot=len(gone.layers) > 1)
        self.say("its parent settles:", "failed" if has_ended else "it comes again")
        if has_ended:
            self.judge.ends.setdefault(job.owner, "failed")
        else:
            self.broker.append(replace(message, ready=self.now))

    def _cut_off(self, worker: Worker, message: Message, delivery: Delivery) -> None:
        job, has_ended = self.jobs[message.owner], True
        for step in delivery.cut_off(TimeLimit(), job.retries):
            if self.is_away:
                self.judge.untold.add(job.owner)
            elif not carry_out(self.guard, step) and step.spares_other_run:
                has_ended = False  # another delivery of the job says how it ends
        if not has_ended and not self._comes_otherwise(worker, job):
            # Its queue fails it all the same. The store believes the run that it was spared for, whose end it has not
            # heard of, or which goes on by this very message: the retry of a plain task.
            self.judge.untold.add(job.owner)
            has_ended = True
        if job.retries:
            self.broker.append(replace(message, ready=self.now + 1.0))
        elif has_ended:
            self.judge.ends.setdefault(job.owner, "cut off")
        worker.clear()

    def _comes_otherwise(self, worker: Worker, job: Job) -> bool:
        """Whether another delivery of the job says how it ends."""
        others = [other for other in self.workers if other is not worker and other.message is not None]
        here = [other for other in others if other.message and other.message.owner == job.owner]
        waits = any(message.owner == job.owner for message in self.broker)
        return waits or any(not other.has_retried for other in here)
