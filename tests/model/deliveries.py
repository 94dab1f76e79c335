"""A worker carries out what its machine, `taskguard.engine.worker.Delivery`, wants done; and what its parent does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from taskguard.engine import effects as fx
from taskguard.engine.parent import Gone
from taskguard.engine.settle import carry_out
from taskguard.engine.worker import Delivery
from taskguard.protocol.rules import seen
from taskguard.protocol.store import Claimant, Ending, Entry
from tests.model.calls import told, yes
from tests.model.machines import IN_HAND, ME, Hand, Heard
from tests.model.stage import (
    ANSWERED_OTHERWISE,
    FLOOR_FORGOTTEN,
    HOLDER_REFUSED,
    STALE_ACTED,
    TOLD_WRONG,
    Stage,
    Step,
    same_entry,
    unused_name,
    unused_tag,
)
from tests.model.store import KEY, NAMES, NOW, Answer, Ask, Holder, Store, Stored
from tests.model.world import (
    ACK,
    ASK_AGAIN,
    ASKING,
    BODY,
    CHILD,
    FAILED,
    HOLDING,
    IDLE,
    JOINED_TO,
    KILLED,
    OK,
    PUBLISH_RETRY,
    PUT_BACK,
    PUT_BACK_COPY,
    RECEIPT,
    REJECT,
    REVOKED,
    REVOKING,
    SETTLE,
    SKIPPED_FOR,
    TAKE_PLACE,
    TERMINATED,
    Draft,
    Late,
    Worker,
    World,
)

LINGER = 10.0


class Deliveries:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._machines = stage.machines
        self._config = stage.config
        self._behaviour = stage.behaviour
        self._store = stage.store

    def steps(self, world: World) -> Iterator[Step]:
        for place, worker in enumerate(world.workers):
            if worker.phase != IDLE:
                yield from self._faults(world, place, worker)
                yield from self.steps_of(world, place)

    def steps_of(self, world: World, place: int) -> Iterator[Step]:
        worker = world.workers[place]
        phase = worker.phase
        if phase in ASKING:
            if world.revoked[worker.job] >> place & 1:
                yield self._drops_revoked(world, place, worker)
            else:
                yield from self._claims(world, place, worker)
        elif phase in HOLDING or phase == PUBLISH_RETRY:
            yield from self._renews(world, place, worker)
            yield from self._works(world, place, worker)
        elif phase == RECEIPT:
            yield self._leaves_a_receipt(world, place, worker)
        elif phase == PUT_BACK_COPY:
            yield self._puts_copy_back(world, place, worker)
        elif phase == PUT_BACK:
            yield self._puts_back(world, place, worker)
        elif phase == ACK:
            yield self._acks(world, place, worker)
        elif phase == KILLED:
            yield from self._settles(world, place, worker)
        elif phase == REJECT:
            yield self._gives_back(world, place, worker)
        elif phase == TERMINATED:
            yield self._drops_revoked(world, place, worker)

    # -- faults --------------------------------------------------------------------------------------------------------

    def _faults(self, world: World, place: int, worker: Worker) -> Iterator[Step]:
        stage = self._stage
        poisoned = worker.phase == BODY and worker.job in self._config.poison
        if poisoned or stage.may(world, "crash"):
            yield self._crashes(world, place, worker, fault=not poisoned)
        if worker.owns and stage.may(world, "redeliver"):
            yield self._is_redelivered(world, place, worker)
        if poisoned or (worker.phase in CHILD and stage.may(world, "kill")):
            draft = Draft(world)
            killed = worker._replace(phase=KILLED, asked="", seen=0, given=0, floor=0, hand=0, out=())
            draft.set_worker(place, killed)
            yield stage.step(f"{_name(place, worker)}: the child is killed", draft, fault=not poisoned)

    def _crashes(self, world: World, place: int, worker: Worker, *, fault: bool) -> Step:
        draft = Draft(world)
        self._stage.to_idle(draft, place)
        broken = self._goes_back(draft, worker)
        draft.revoked = tuple(bits & ~(1 << place) for bits in draft.revoked)
        again = ", its message is delivered again" if worker.owns else ""
        return self._stage.step(
            f"{_name(place, worker)} crashes ({worker.phase}){again}", draft, fault=fault, broken=broken
        )

    def _is_redelivered(self, world: World, place: int, worker: Worker) -> Step:
        draft = Draft(world)
        message = worker.message
        if self._config.shared_tags and not message.tag:
            message = message._replace(tag=unused_tag(world, worker.job))
        if not message.name and self._knows_its_name(worker):
            message = message._replace(name=unused_name(world, worker.job))
        draft.set_worker(place, worker._replace(owns=False, message=message))
        broken = self._stage.publish(draft, worker.job, message)
        label = f"the message of {_name(place, worker)} is delivered again ({worker.phase})"
        return self._stage.step(label, draft, fault=True, broken=broken)

    def _knows_its_name(self, worker: Worker) -> bool:
        """Whether its message has a name, though nothing else had the same one so far."""
        machine = self._stage.hand(worker).machine
        return worker.hand > 0 and machine.envelope.copy == IN_HAND

    def _goes_back(self, draft: Draft, worker: Worker) -> str:
        if not worker.owns:
            return ""
        return self._stage.publish(draft, worker.job, worker.message)

    # -- claim ---------------------------------------------------------------------------------------------------------

    def _claims(self, world: World, place: int, worker: Worker) -> Iterator[Step]:
        stage, hand = self._stage, self._stage.hand(worker)
        ask = self._ask(world, place, worker, hand)
        answer, stored = self._store.claim(world.stored, ask, world.newest)
        draft = Draft(world)
        draft.stored = stored
        stage.named(draft, world)
        worker = draft.workers[place]
        broken = ""
        if answer.kind == "lease" and answer.token != worker.token:
            broken = stage.granted(draft, world, ask, answer)
        broken = broken or _asked_again(worker, answer)
        label = f"{_name(place, worker)} {worker.phase}: {told(answer)}"
        if stored is not world.stored and not worker.asked and stage.may(world, "lost"):
            unheard = draft.copy()
            self._does_not_hear(unheard, place, worker, answer)
            yield stage.step(f"{label}, reply lost", unheard, fault=True, broken=broken)
        if world.late is None and not worker.asked and stage.may(world, "late"):
            slow = Draft(world)
            slow.late = Late(ask)
            slow.set_worker(place, worker._replace(asked="slow"))
            yield stage.step(f"{_name(place, worker)} {worker.phase}, its packet is held up", slow, fault=True)
        heard = self._machines.answered(hand, answer)
        if _only_names_itself(heard.hand):
            # It could as well have asked first now.
            worker = worker._replace(hand=heard.hand.number, asked="")
            draft.set_worker(place, worker)
            ask = self._ask(world, place, worker, heard.hand)
            answer, draft.stored = self._store.claim(draft.stored, ask, draft.newest)
            if answer.kind == "lease":
                broken = broken or stage.granted(draft, world, ask, answer)
            label = f"{label}; and again: {told(answer)}"
            heard = self._machines.answered(heard.hand, answer)
        broken = self._hears(draft, place, worker, answer, heard) or broken
        yield stage.step(label, draft, broken=broken)

    def _ask(self, world: World, place: int, worker: Worker, hand: Hand) -> Ask:
        stage = self._stage
        number = stage.claim_number(hand)
        effect = hand.effect
        assert isinstance(effect, fx.Ask)
        claim, copy = effect.claim, 0
        if claim.copy:
            name = worker.message.name if claim.copy == IN_HAND else worker.given
            copy = name or unused_name(world, worker.job)
        floor = worker.floor if claim.floor else 0
        attempt = stage.worker_attempt(place, worker.job)
        return Ask(worker.job, attempt, number, copy, worker.seen if claim.stamp else 0, floor)

    def _does_not_hear(self, draft: Draft, place: int, worker: Worker, answer: Answer) -> None:
        token = answer.token if answer.kind == "lease" else 0
        skipped = answer.kind == "held" and answer.owner != worker.job and answer.state != "queued"
        asked = "skipped" if skipped else answer.kind
        draft.set_worker(place, worker._replace(token=token, asked=asked))
        if self._behaviour.new_attempt_when_asked_again:
            self._stage.retire(draft, self._stage.worker_attempt(place, worker.job))

    def _hears(self, draft: Draft, place: int, worker: Worker, answer: Answer, heard: Heard) -> str:
        broken = self._stands_in(draft, answer) if heard.stands_in else ""
        if answer.kind == "completed":
            broken = broken or self._learns_of_an_end(draft, place, worker, answer)
        granted = answer.token if answer.kind == "lease" else 0
        seen = answer.token if _needs_stamp(heard.hand.effect) else 0
        draft.set_worker(place, worker._replace(token=granted, lapsed=0, asked="", seen=seen))
        broken = broken or self._goes_to(draft, place, heard.hand)
        if draft.workers[place].phase == BODY:
            broken = broken or self._stage.started(draft, place)
        return broken

    def _learns_of_an_end(self, draft: Draft, place: int, worker: Worker, answer: Answer) -> str:
        job = worker.job
        receipt = draft.stored.receipts[job]
        if answer.owner != job:
            draft.set_end(job, f"{JOINED_TO}{answer.owner}")
            # Told the same again, it ended before the holder of a lease that had run out came back.
            wrong = not worker.asked and self._stage.runs_elsewhere(draft, place, job)
            return TOLD_WRONG if wrong else ""
        if receipt and receipt.twin and answer.how != "skipped":
            draft.set_end(job, f"{JOINED_TO}{NAMES.index(receipt.twin)}")
        elif answer.how == "skipped":
            draft.set_end(job, f"{SKIPPED_FOR}{NAMES.index(receipt.twin)}" if receipt and receipt.twin else "")
        elif answer.how == "revoked":
            self._is_revoked(draft, place, job)
        elif answer.how != "released":
            draft.set_end(job, OK if answer.how == "succeeded" else FAILED)
        return ""

    def _is_revoked(self, draft: Draft, place: int, job: int) -> None:
        draft.set_end(job, REVOKING if self._stage.body_elsewhere(draft, place, job) else REVOKED)

    def _stands_in(self, draft: Draft, answer: Answer) -> str:
        """It publishes for the job it gives way to, and marks that. (A publisher does the same in two steps.)"""
        broken = self._stage.publish(draft, answer.owner)
        if not self._behaviour.never_marks:
            holder = Holder(answer.owner, answer.attempt, answer.token)
            _, draft.stored = self._store.mark(draft.stored, holder)
        return broken

    # -- what its machine wants next -----------------------------------------------------------------------------------

    def _goes_to(self, draft: Draft, place: int, hand: Hand) -> str:
        """The worker is at that state of its machine; says what is broken by what it is told to do."""
        effect, worker = hand.effect, draft.workers[place]
        if isinstance(effect, fx.Last):
            return self._leaves(draft, place, worker, hand)
        draft.set_worker(place, worker._replace(phase=_phase(effect), hand=hand.number))
        return ""

    def _leaves(self, draft: Draft, place: int, worker: Worker, hand: Hand) -> str:
        effect, broken = hand.effect, ""
        if isinstance(effect, (fx.Defer, fx.GoOn)):
            out = self._stage.message_of(draft, place, effect)
            worker = draft.workers[place]
            if worker.floor and not out.floor:
                broken = FLOOR_FORGOTTEN
            if isinstance(effect, fx.GoOn):
                draft.set_worker(place, worker._replace(phase=PUBLISH_RETRY, asked="", out=out, hand=0))
            else:
                self._stage.is_settled(draft, place, worker, PUT_BACK)
                draft.set_worker(place, draft.workers[place]._replace(out=out))
            return broken
        if isinstance(effect, fx.Drop) and effect.why == "skipped":
            receipt, twin = draft.stored.receipts[worker.job], draft.stored.owner
            if receipt is not None and receipt.how == "skipped" and receipt.twin:
                twin = NAMES.index(receipt.twin)
            draft.set_end(worker.job, f"{SKIPPED_FOR}{twin}" if twin >= 0 else "")
        self._stage.is_settled(draft, place, worker, ACK)
        return broken

    # -- the body ------------------------------------------------------------------------------------------------------

    def _renews(self, world: World, place: int, worker: Worker) -> Iterator[Step]:
        holder = Holder(worker.job, self._stage.worker_attempt(place, worker.job), worker.token)
        did, stored = self._store.renew(world.stored, holder)
        ended = worker.phase == PUBLISH_RETRY or worker.asked == "yes"
        broken = ""
        if did and (ended or worker.token != self._stage.newest(world)):
            broken = STALE_ACTED
        elif not did and not ended:
            broken = self._refused(world, worker)
        if broken or stored is not world.stored:
            draft = Draft(world)
            draft.stored = stored
            draft.set_worker(place, worker._replace(lapsed=0) if did else worker)
            yield self._stage.step(f"{_name(place, worker)} renews: {yes(did)}", draft, broken=broken)

    def _works(self, world: World, place: int, worker: Worker) -> Iterator[Step]:
        job, hand = worker.job, self._stage.hand(worker)
        if worker.phase == PUBLISH_RETRY:
            yield self._publishes_retry(world, place, worker)
        elif worker.phase == BODY:
            if world.revoked[job] >> place & 1:
                draft = Draft(world)
                terminated = worker._replace(phase=TERMINATED, asked="", given=0, floor=0, hand=0)
                draft.set_worker(place, terminated)
                yield self._stage.step(f"{_name(place, worker)}: the revoked child is terminated", draft)
            if job in self._config.poison or job in self._config.endless:
                return
            yield from self._body_ends(world, place, worker, hand)
        else:
            yield from self._ends(world, place, worker, hand)

    def _body_ends(self, world: World, place: int, worker: Worker, hand: Hand) -> Iterator[Step]:
        machines = self._machines
        if self._config.floor and worker.token < world.newest:
            seen = worker._replace(floor=world.newest)
            yield from self._ends(world, place, seen, machines.body_ended(hand, "lost", floor=True).hand)
            return
        yield from self._ends(world, place, worker, machines.body_ended(hand, "returned").hand)
        if world.failures:
            failed = machines.body_ended(hand, "failed").hand
            yield from self._ends(world, place, worker, failed, failures=1)
        if worker.lapsed or worker.token != world.newest:
            yield from self._ends(world, place, worker, machines.body_ended(hand, "lost").hand)
        if self._stage.may(world, "give up"):
            gives_up = machines.body_ended(hand, "lost", comes_again=False).hand
            yield from self._ends(world, place, worker, gives_up, faults=1)
        if world.retries:
            retried = machines.body_ended(hand, "retry").hand
            yield from self._ends(world, place, worker, retried, retries=1)

    def _ends(
        self,
        world: World,
        place: int,
        worker: Worker,
        hand: Hand,
        *,
        failures: int = 0,
        retries: int = 0,
        faults: int = 0,
    ) -> Iterator[Step]:
        """Its machine settles the claim: one step with the end of the body, which could as well have come only now."""
        stage, step = self._stage, hand.effect
        assert isinstance(step, fx.Settle)
        draft = Draft(world)
        draft.failures -= failures
        draft.retries -= retries
        draft.set_worker(place, worker)
        copy = stage.publish_given(draft, place, step.copy)
        worker = draft.workers[place]
        did, draft.stored = self._asks_to_end(draft, place, worker, step, copy)
        broken = self._judged(world, worker, did, step)
        label = f"{_name(place, worker)} {_verb(step)}: {yes(did)}"
        if did:
            stage.attempt_ended(draft, stage.worker_attempt(place, worker.job), worker.token)
            if step.verb != "requeue" and step.how in ("succeeded", "failed"):
                draft.set_end(worker.job, OK if step.how == "succeeded" else FAILED)
            if not worker.asked and stage.may(world, "lost") and world.faults > faults:
                unheard = draft.copy()
                unheard.faults -= faults
                unheard.set_worker(place, worker._replace(phase=SETTLE, asked="yes", hand=hand.number))
                yield stage.step(f"{label}, reply lost", unheard, fault=True, broken=broken)
        broken = self._goes_to(draft, place, self._machines.settled(hand, did).hand) or broken
        draft.faults -= faults
        yield Step(label, stage.normal(draft), faults > 0, broken)

    def _asks_to_end(self, draft: Draft, place: int, worker: Worker, step: fx.Settle, copy: int) -> tuple[bool, Stored]:
        holder = Holder(worker.job, self._stage.worker_attempt(place, worker.job), worker.token)
        if step.verb == "requeue":
            return self._store.requeue(draft.stored, holder, keep_starts=step.keep_starts, copy=copy)
        linger = LINGER if self._config.linger and step.how != "released" else 0.0
        if step.verb == "complete":
            return self._store.complete(draft.stored, holder, step.how, linger)
        return self._store.release(draft.stored, holder, step.how, linger)

    def _judged(self, world: World, worker: Worker, did: bool, step: fx.Settle) -> str:
        """What is broken by this answer to the holder."""
        newest = self._stage.newest(world)
        if worker.asked != "yes" and did:
            return STALE_ACTED if worker.token != newest else ""
        if worker.asked != "yes":
            return self._refused(world, worker)
        # A requeue is remembered with the entry, so only until the key is somebody else's; a plain release until the
        # job itself is granted the key again, and ends.
        passes = step.verb == "requeue" or step.how == "released"
        forgotten = worker.lapsed == 2 or (passes and worker.token != newest)
        return "" if did or forgotten else ANSWERED_OTHERWISE

    def _refused(self, world: World, worker: Worker) -> str:
        return HOLDER_REFUSED if worker.token == self._stage.newest(world) and worker.lapsed < 2 else ""

    def _leaves_a_receipt(self, world: World, place: int, worker: Worker) -> Step:
        hand = self._stage.hand(worker)
        assert isinstance(hand.effect, fx.Settle)
        desk = Desk(self._store, world.stored, self._stage.worker_attempt(place, worker.job))
        did = carry_out(desk, hand.effect)  # type: ignore[arg-type]
        draft = Draft(world)
        draft.stored = desk.stored
        broken = self._goes_to(draft, place, self._machines.settled(hand, did).hand)
        return self._stage.step(f"{_name(place, worker)} {_verb(hand.effect)}: {yes(did)}", draft, broken=broken)

    # -- the way of the message ----------------------------------------------------------------------------------------

    def _publishes_retry(self, world: World, place: int, worker: Worker) -> Step:
        draft = Draft(world)
        name = _name(place, worker)
        if self._behaviour.acks_before_retry and worker.owns:
            draft.set_worker(place, worker._replace(owns=False))
            return self._stage.step(f"{name} acks before its retry", draft)
        assert worker.out
        self._stage.is_settled(draft, place, worker, ACK)
        broken = self._stage.publish(draft, worker.job, worker.out)
        return self._stage.step(f"{name} publishes the retry", draft, broken=broken)

    def _puts_copy_back(self, world: World, place: int, worker: Worker) -> Step:
        draft = Draft(world)
        broken = self._stage.republish(draft, place)
        return self._stage.step(f"{_name(place, worker)} puts a copy of its message back", draft, broken=broken)

    def _puts_back(self, world: World, place: int, worker: Worker) -> Step:
        draft = Draft(world)
        name = _name(place, worker)
        if self._behaviour.acks_before_put_back and worker.owns:
            draft.set_worker(place, worker._replace(owns=False))
            return self._stage.step(f"{name} acks before it puts back", draft)
        assert worker.out
        draft.set_worker(place, worker._replace(phase=ACK, out=()))
        broken = self._stage.publish(draft, worker.job, worker.out)
        return self._stage.step(f"{name} puts its message back", draft, broken=broken)

    def _acks(self, world: World, place: int, worker: Worker) -> Step:
        draft = Draft(world)
        self._stage.to_idle(draft, place)
        tag = worker.message.tag
        if tag:
            for other, rival in enumerate(draft.workers):
                if rival.job == worker.job and rival.message.tag == tag:
                    draft.set_worker(other, rival._replace(owns=False))
        return self._stage.step(f"{_name(place, worker)} acks", draft)

    def _gives_back(self, world: World, place: int, worker: Worker) -> Step:
        draft = Draft(world)
        self._stage.to_idle(draft, place)
        broken = self._goes_back(draft, worker)
        return self._stage.step(f"{_name(place, worker)} gives its message back", draft, broken=broken)

    # -- the parent ----------------------------------------------------------------------------------------------------

    def _settles(self, world: World, place: int, worker: Worker) -> Iterator[Step]:
        stage, again = self._stage, self._config.requeues_lost
        gone, desk = self._gone(world, place, worker, by_owner=self._behaviour.settles_by_owner)
        if again:
            keep_starts = not self._behaviour.settles_as_retry
            did = gone.requeue([desk], self._machines.terms, keep_starts=keep_starts)  # type: ignore[list-item]
        else:
            did = gone.end([desk], "failed", ValueError(), answered=True)  # type: ignore[list-item]
        draft = Draft(world)
        draft.stored = desk.stored
        broken = self._settled(world, place, worker, desk.stored)
        label = f"{_name(place, worker)}: the parent settles: {yes(did)}"
        if did:
            stage.attempt_ended(draft, stage.worker_attempt(place, worker.job), worker.token)
            if not again:
                broken = broken or (TOLD_WRONG if desk.stored.how(worker.job) != "failed" else "")
                draft.set_end(worker.job, FAILED)
        if did and not worker.asked and stage.may(world, "lost"):
            unheard = draft.copy()
            unheard.set_worker(place, worker._replace(asked="yes"))
            yield stage.step(f"{label}, reply lost", unheard, fault=True, broken=broken)
        if worker.asked and not did and worker.lapsed < 2 and worker.token == stage.newest(world):
            broken = broken or ANSWERED_OTHERWISE
        self._stage.is_settled(draft, place, worker, REJECT if again else (ACK if did else PUT_BACK))
        if draft.workers[place].phase == PUT_BACK:
            draft.set_worker(place, draft.workers[place]._replace(out=worker.message._replace(tag=0)))
        yield stage.step(label, draft, broken=broken)

    def _gone(self, world: World, place: int, worker: Worker, *, by_owner: bool) -> tuple[Gone, Desk]:
        attempt = self._stage.worker_attempt(place, worker.job)
        if by_owner and world.stored.state == "running" and world.stored.owner == worker.job:
            attempt = world.stored.attempt
        machine = self._machines.delivery(worker.job, worker.message).machine
        assert isinstance(machine, Delivery)
        gone = Gone(layers=machine.layers, queue_entry=machine.queue_entry, attempt=attempt)
        return gone, Desk(self._store, world.stored, attempt)

    def _settled(self, world: World, place: int, worker: Worker, stored: Stored) -> str:
        """A running entry was settled that was not that child's."""
        moved = world.stored.state == "running" and not same_entry(world.stored, stored)
        own = self._stage.worker_attempt(place, worker.job) == world.stored.attempt
        return STALE_ACTED if moved and not own else ""

    def _drops_revoked(self, world: World, place: int, worker: Worker) -> Step:
        """A revoked job ends where its message is found, or where its child was terminated."""
        draft = Draft(world)
        gone, desk = self._gone(world, place, worker, by_owner=self._behaviour.revoked_frees_by_owner)
        broken = ""
        if not self._behaviour.revoked_leaves_no_receipt:
            # Also where a child was terminated: its lease may have run out before its parent hears of that.
            gone.end([desk], "revoked", anyway=True)  # type: ignore[list-item]
            draft.stored = desk.stored
            broken = self._settled(world, place, worker, draft.stored)
        self._is_revoked(draft, place, worker.job)
        self._stage.is_settled(draft, place, worker, ACK)
        return self._stage.step(f"{_name(place, worker)} ends the revoked job", draft, broken=broken)


class Desk:
    """Stands where the engine has a guard, with its store: the stored as it is, and as it is left."""

    def __init__(self, store: Store, stored: Stored, attempt: str) -> None:
        self._verbs = store
        self._attempt = attempt
        self.stored = stored
        self.store = self
        self.outcomes = self

    def _holder(self, claimant: Claimant) -> Holder:
        return Holder(NAMES.index(claimant.owner), self._attempt)

    def requeue(self, claimant: Claimant, seconds: float, **how: Any) -> bool:
        assert not how["copy"]
        did, self.stored = self._verbs.requeue(self.stored, self._holder(claimant), keep_starts=how["keep_starts"])
        return did

    def complete(self, claimant: Claimant, ending: Ending) -> bool:
        did, self.stored = self._verbs.complete(self.stored, self._holder(claimant), ending.how)
        return did

    def release(self, claimant: Claimant, ending: Ending, *, anyway: bool) -> bool:
        did, self.stored = self._verbs.release(self.stored, self._holder(claimant), ending.how, anyway=anyway)
        return did

    def get(self, key: str) -> Entry | None:
        assert key == KEY
        entry = self.stored.entry
        if entry is None:
            return None
        return seen(key, replace(entry, attempt=ME if entry.attempt == self._attempt else entry.attempt), NOW)

    def encode_error(self, error: BaseException) -> None:
        """Outcomes are not modelled."""

    def encoded(self, *_: Any) -> None:
        """Nor are they encoded."""

    def report(self, *_: Any, **__: Any) -> None:
        """Nobody listens."""


def _only_names_itself(hand: Hand) -> bool:
    """It asks the same again, with a name that nobody else has."""
    effect = hand.effect
    return isinstance(effect, fx.Ask) and not effect.claim.stamp and not effect.claim.replace_queued


def _needs_stamp(effect: fx.Effect) -> bool:
    return isinstance(effect, fx.Republish) or (isinstance(effect, fx.Ask) and bool(effect.claim.stamp))


def _phase(effect: fx.Effect) -> str:
    if isinstance(effect, fx.Ask):
        return TAKE_PLACE if effect.claim.replace_queued else ASK_AGAIN
    if isinstance(effect, fx.RunBody):
        return BODY
    if isinstance(effect, fx.Republish):
        return PUT_BACK_COPY
    assert isinstance(effect, fx.Settle), effect
    return SETTLE if effect.layer >= 0 else RECEIPT


def _verb(step: fx.Settle) -> str:
    return "requeues" if step.verb == "requeue" else f"{step.verb}s, {step.how}"


def _asked_again(worker: Worker, answer: Answer) -> str:
    if worker.lapsed or worker.asked not in ("lease", "skipped"):
        return ""
    if worker.asked == "lease":
        return "" if answer.kind == "lease" and answer.token == worker.token else ANSWERED_OTHERWISE
    return "" if answer.kind == "held" else ANSWERED_OTHERWISE


def _name(place: int, worker: Worker) -> str:
    return f"W{place}({NAMES[worker.job]})"
