"""What a worker does with a message: claim, run the body, settle, acknowledge; and what its parent does."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.publishers import told, yes
from tests.model.shelf import NAMES, Answer, Holder, Shelf
from tests.model.stage import (
    ANSWERED_OTHERWISE,
    HOLDER_REFUSED,
    STALE_ACTED,
    TOLD_WRONG,
    Stage,
    Step,
    join_of,
    same_entry,
    unused_name,
    unused_tag,
)
from tests.model.world import (
    ACK,
    ASK_AGAIN,
    ASKING,
    BODY,
    CHILD,
    COMPLETE,
    FAIL,
    FAILED,
    GIVE_UP,
    HOLDING,
    IDLE,
    JOINED_TO,
    KILLED,
    OK,
    PUBLISH_RETRY,
    PUT_BACK,
    PUT_BACK_COPY,
    REJECT,
    RETRY,
    RETRY_EARLY,
    REVOKED,
    REVOKING,
    SKIPPED_FOR,
    TERMINATED,
    Draft,
    Late,
    Message,
    Worker,
    World,
)

LINGER = 10.0


class Workers:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
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
        elif phase in HOLDING:
            yield from self._renews(world, place, worker)
            yield from self._works(world, place, worker)
        elif phase == PUBLISH_RETRY:
            yield from self._renews(world, place, worker)
            yield self._publishes_retry(world, place, worker)
        elif phase in (PUT_BACK, PUT_BACK_COPY):
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
            draft.set_worker(place, worker._replace(phase=KILLED, asked="", seen=0))
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
        tag = worker.tag
        if self._config.shared_tags and not tag:
            tag = unused_tag(world, worker.job)
        name = self._same_message(world, worker).name
        draft.set_worker(place, worker._replace(owns=False, tag=tag, name=name))
        again = Message(0 if self._behaviour.names_each_delivery else name, tag, worker.join)
        broken = self._stage.publish(draft, worker.job, again)
        label = f"the message of {_name(place, worker)} is delivered again ({worker.phase})"
        return self._stage.step(label, draft, fault=True, broken=broken)

    def _goes_back(self, draft: Draft, worker: Worker) -> str:
        if not worker.owns:
            return ""
        return self._stage.publish(draft, worker.job, Message(worker.name, worker.tag, worker.join))

    # -- claim ---------------------------------------------------------------------------------------------------------

    def _claims(self, world: World, place: int, worker: Worker) -> Iterator[Step]:
        stage, job = self._stage, worker.job
        if self._behaviour.looks_before_joining and worker.join >= 0 and worker.asked != "looked":
            yield self._looks(world, place, worker)
            return
        attempt = stage.worker_attempt(place, job)
        name = worker.name or unused_name(world, job)
        ask = stage.ask_to_run(world, worker, attempt, name)
        answer, shelf = self._store.claim(world.shelf, ask, world.newest)
        draft = Draft(world)
        draft.shelf = shelf
        stage.named(draft, world)
        worker = draft.workers[place]
        broken = ""
        if answer.kind == "lease" and answer.token != worker.token:
            broken = stage.granted(draft, world, job, answer)
        broken = broken or _asked_again(worker, answer)
        label = f"{_name(place, worker)} {worker.phase}: {told(answer)}"
        if shelf is not world.shelf and not worker.asked and stage.may(world, "lost"):
            unheard = draft.copy()
            self._does_not_hear(unheard, place, worker, answer, name)
            yield stage.step(f"{label}, reply lost", unheard, fault=True, broken=broken)
        if world.late is None and not worker.asked and stage.may(world, "late"):
            slow = Draft(world)
            slow.late = Late(ask)
            slow.set_worker(place, worker._replace(asked="slow", name=name))
            yield stage.step(f"{_name(place, worker)} {worker.phase}, its packet is held up", slow, fault=True)
        if shelf.copy == name:
            worker = worker._replace(name=name)
        broken = self._hears(draft, place, worker, answer) or broken
        yield stage.step(label, draft, broken=broken)

    def _does_not_hear(self, draft: Draft, place: int, worker: Worker, answer: Answer, name: int) -> None:
        token = answer.token if answer.kind == "lease" else 0
        skipped = answer.kind == "held" and answer.owner != worker.job and answer.state != "queued"
        asked = "skipped" if skipped else answer.kind
        draft.set_worker(place, worker._replace(token=token, asked=asked, name=name))
        if self._behaviour.new_attempt_when_asked_again:
            self._stage.retire(draft, self._stage.worker_attempt(place, worker.job))

    def _looks(self, world: World, place: int, worker: Worker) -> Step:
        draft = Draft(world)
        ended = world.shelf.how(worker.join) in ("succeeded", "failed")
        if ended:
            draft.set_end(worker.job, f"{JOINED_TO}{worker.join}")
            self._is_settled(draft, place, worker, ACK)
        else:
            draft.set_worker(place, worker._replace(asked="looked"))
        return self._stage.step(f"{_name(place, worker)} looks at its twin", draft)

    def _hears(self, draft: Draft, place: int, worker: Worker, answer: Answer) -> str:
        if answer.kind == "lease":
            return self._is_granted(draft, place, worker, answer)
        if answer.kind == "completed":
            broken = self._learns_of_an_end(draft, place, worker.job, answer)
            self._is_settled(draft, place, worker, ACK)
            return broken
        return self._finds_it_held(draft, place, worker, answer)

    def _is_granted(self, draft: Draft, place: int, worker: Worker, answer: Answer) -> str:
        too_often = 0 < self._config.max_starts < answer.starts and not self._behaviour.ignores_max_starts
        phase = FAIL if too_often else BODY
        draft.set_worker(place, worker._replace(phase=phase, token=answer.token, lapsed=0, asked="", seen=0))
        return "" if too_often else self._stage.started(draft, place)

    def _learns_of_an_end(self, draft: Draft, place: int, job: int, answer: Answer) -> str:
        receipt = draft.shelf.receipts[job]
        if answer.owner != job:
            draft.set_end(job, f"{JOINED_TO}{answer.owner}")
            return TOLD_WRONG if self._stage.runs_elsewhere(draft, place, job) else ""
        if receipt and receipt.twin and answer.how != "skipped":
            draft.set_end(job, f"{JOINED_TO}{NAMES.index(receipt.twin)}")
        elif answer.how == "skipped":
            draft.set_end(job, f"{SKIPPED_FOR}{NAMES.index(receipt.twin)}" if receipt else "")
        elif answer.how == "revoked":
            self._is_revoked(draft, place, job)
        elif answer.how != "released":
            draft.set_end(job, OK if answer.how == "succeeded" else FAILED)
        return ""

    def _is_revoked(self, draft: Draft, place: int, job: int) -> None:
        draft.set_end(job, REVOKING if self._stage.body_elsewhere(draft, place, job) else REVOKED)

    def _finds_it_held(self, draft: Draft, place: int, worker: Worker, answer: Answer) -> str:
        job, twin = worker.job, answer.owner
        if twin == job:
            goes_on = answer.publish or self._behaviour.puts_back_every_copy
            if not goes_on or self._behaviour.drops_own_running or worker.phase == ASK_AGAIN:
                self._is_settled(draft, place, worker, ACK)
            elif self._behaviour.names_before_publishing or self._behaviour.never_names:
                self._is_settled(draft, place, worker, PUT_BACK)
            else:
                back = worker._replace(phase=PUT_BACK_COPY, token=0, lapsed=0, asked="", seen=answer.token)
                draft.set_worker(place, back)
            return ""
        broken = self._stands_in(draft, answer) if answer.publish else ""
        if self._stage.may_be_skipped(job) and (answer.state != "queued" or self._behaviour.gives_way_by_dropping):
            draft.set_end(job, f"{SKIPPED_FOR}{twin}" if twin >= 0 else "")
            self._is_settled(draft, place, worker, ACK)
        else:
            # Waiting for another job, it is an ordinary message; only copies of a running job are told apart.
            joins = twin if self._config.policy == "skip" else -1
            phase = ACK if worker.phase == ASK_AGAIN else PUT_BACK
            self._is_settled(draft, place, worker._replace(joins=joins), phase)
        return broken

    def _stands_in(self, draft: Draft, answer: Answer) -> str:
        """It publishes for the job it gives way to, and marks that. (A publisher does the same in two steps.)"""
        broken = self._stage.publish(draft, answer.owner)
        if not self._behaviour.stand_in_never_marks:
            holder = Holder(answer.owner, answer.attempt, answer.token)
            _, draft.shelf = self._store.requeue(draft.shelf, holder)
        return broken

    def _is_settled(self, draft: Draft, place: int, worker: Worker, phase: str) -> None:
        """It has no more to ask for this delivery: its attempt is over."""
        draft.set_worker(place, worker._replace(phase=phase, token=0, lapsed=0, asked="", seen=0))
        self._stage.retire(draft, self._stage.worker_attempt(place, worker.job))

    # -- the body ------------------------------------------------------------------------------------------------------

    def _renews(self, world: World, place: int, worker: Worker) -> Iterator[Step]:
        holder = Holder(worker.job, self._stage.worker_attempt(place, worker.job), worker.token)
        did, shelf = self._store.renew(world.shelf, holder)
        ended = worker.phase == PUBLISH_RETRY or worker.asked == "yes"
        broken = ""
        if did and (ended or worker.token != world.newest):
            broken = STALE_ACTED
        elif not did and not ended:
            broken = _refused(world, worker)
        if broken or shelf is not world.shelf:
            draft = Draft(world)
            draft.shelf = shelf
            draft.set_worker(place, worker._replace(lapsed=0) if did else worker)
            yield self._stage.step(f"{_name(place, worker)} renews: {yes(did)}", draft, broken=broken)

    def _works(self, world: World, place: int, worker: Worker) -> Iterator[Step]:
        job = worker.job
        if worker.phase == BODY:
            if world.revoked[job] >> place & 1:
                draft = Draft(world)
                draft.set_worker(place, worker._replace(phase=TERMINATED))
                yield self._stage.step(f"{_name(place, worker)}: the revoked child is terminated", draft)
            if job in self._config.poison or job in self._config.endless:
                return
            yield from self._ends(world, place, worker, COMPLETE)
            if world.failures:
                yield from self._ends(world, place, worker, FAIL)
            if self._stage.may(world, "give up"):
                yield from self._ends(world, place, worker, GIVE_UP)
            if world.retries and self._behaviour.publishes_before_requeue:
                yield self._publishes_early(world, place, worker)
            elif world.retries:
                yield from self._ends(world, place, worker, RETRY)
        else:
            yield from self._ends(world, place, worker, RETRY if worker.phase == RETRY_EARLY else worker.phase)

    def _ends(self, world: World, place: int, worker: Worker, verb: str) -> Iterator[Step]:
        did, shelf = self._asks_to_end(world, place, worker, verb)
        broken = self._judged(world, worker, did, verb)
        draft = Draft(world)
        draft.shelf = shelf
        if worker.phase == BODY:
            draft.failures -= verb == FAIL
            draft.retries -= verb == RETRY
        label = f"{_name(place, worker)} {verb}: {yes(did)}"
        gives_up = verb == GIVE_UP and worker.phase == BODY
        if not did:
            phase = ACK if self._behaviour.acks_when_refused else PUT_BACK
            self._is_settled(draft, place, worker, phase)
            yield self._stage.step(label, draft, fault=gives_up, broken=broken)
            return
        self._stage.attempt_ended(draft, self._stage.worker_attempt(place, worker.job), worker.token)
        if verb in (COMPLETE, FAIL):
            draft.set_end(worker.job, OK if verb == COMPLETE else FAILED)
        if not worker.asked and self._stage.may(world, "lost") and world.faults > gives_up:
            unheard = draft.copy()
            unheard.faults -= gives_up
            unheard.set_worker(place, worker._replace(phase=verb, asked="yes"))
            yield self._stage.step(f"{label}, reply lost", unheard, fault=True, broken=broken)
        if verb == RETRY and worker.phase != RETRY_EARLY:
            draft.set_worker(place, worker._replace(phase=PUBLISH_RETRY, asked=""))
        elif verb == GIVE_UP:
            self._is_settled(draft, place, worker, PUT_BACK)
        else:
            self._is_settled(draft, place, worker, ACK)
        yield self._stage.step(label, draft, fault=gives_up, broken=broken)

    def _asks_to_end(self, world: World, place: int, worker: Worker, verb: str) -> tuple[bool, Shelf]:
        holder = Holder(worker.job, self._stage.worker_attempt(place, worker.job), worker.token)
        linger = LINGER if self._config.linger else 0.0
        if verb == RETRY:
            return self._store.requeue(world.shelf, holder)
        if verb == COMPLETE:
            return self._store.complete(world.shelf, holder, linger=linger)
        if verb == GIVE_UP:
            return self._store.release(world.shelf, holder, "released")
        if self._config.reuse == "anything":
            return self._store.complete(world.shelf, holder, "failed", linger)
        return self._store.release(world.shelf, holder, "failed", linger)

    def _judged(self, world: World, worker: Worker, did: bool, verb: str) -> str:
        """What is broken by this answer to the holder."""
        if worker.asked != "yes" and did:
            return STALE_ACTED if worker.token != world.newest else ""
        if worker.asked != "yes":
            return _refused(world, worker)
        # A requeue is remembered with the entry, so only until the key is somebody else's; a plain release until the
        # job itself is granted the key again, and ends.
        forgotten = worker.lapsed == 2 or (verb in (RETRY, GIVE_UP) and worker.token != world.newest)
        return "" if did or forgotten else ANSWERED_OTHERWISE

    def _publishes_early(self, world: World, place: int, worker: Worker) -> Step:
        draft = Draft(world)
        message = self._same_message(world, worker)._replace(join=-1)
        broken = self._stage.publish(draft, worker.job, message)
        draft.retries -= 1
        draft.set_worker(place, worker._replace(phase=RETRY_EARLY, name=message.name))
        return self._stage.step(f"{_name(place, worker)} publishes its retry at once", draft, broken=broken)

    # -- the way of the message ----------------------------------------------------------------------------------------

    def _publishes_retry(self, world: World, place: int, worker: Worker) -> Step:
        draft = Draft(world)
        name = _name(place, worker)
        if self._behaviour.acks_before_retry and worker.owns:
            draft.set_worker(place, worker._replace(owns=False))
            return self._stage.step(f"{name} acks before its retry", draft)
        message = self._same_message(world, worker)._replace(join=-1)
        self._is_settled(draft, place, worker._replace(name=message.name), ACK)
        broken = self._stage.publish(draft, worker.job, message)
        return self._stage.step(f"{name} publishes the retry", draft, broken=broken)

    def _same_message(self, world: World, worker: Worker) -> Message:
        """What is published again keeps its name, so that the store does not take the two for rivals."""
        return Message(worker.name or unused_name(world, worker.job), join=join_of(worker))

    def _puts_back(self, world: World, place: int, worker: Worker) -> Step:
        draft = Draft(world)
        name = _name(place, worker)
        if self._behaviour.acks_before_put_back and worker.owns:
            draft.set_worker(place, worker._replace(owns=False))
            return self._stage.step(f"{name} acks before it puts back", draft)
        message = self._same_message(world, worker)
        phase = ASK_AGAIN if worker.phase == PUT_BACK_COPY else ACK
        draft.set_worker(place, worker._replace(phase=phase, name=message.name))
        broken = self._stage.publish(draft, worker.job, message)
        return self._stage.step(f"{name} puts its message back", draft, broken=broken)

    def _acks(self, world: World, place: int, worker: Worker) -> Step:
        draft = Draft(world)
        self._stage.to_idle(draft, place)
        if worker.tag:
            for other, rival in enumerate(draft.workers):
                if rival.job == worker.job and rival.tag == worker.tag:
                    draft.set_worker(other, rival._replace(owns=False))
        return self._stage.step(f"{_name(place, worker)} acks", draft)

    def _gives_back(self, world: World, place: int, worker: Worker) -> Step:
        draft = Draft(world)
        self._stage.to_idle(draft, place)
        broken = self._goes_back(draft, worker)
        return self._stage.step(f"{_name(place, worker)} gives its message back", draft, broken=broken)

    # -- the parent ----------------------------------------------------------------------------------------------------

    def _settles(self, world: World, place: int, worker: Worker) -> Iterator[Step]:
        stage = self._stage
        holder = self._dead_child(world, place, worker, by_owner=self._behaviour.settles_by_owner)
        if self._config.requeues_lost:
            keep_starts = not self._behaviour.settles_as_retry
            did, shelf = self._store.requeue(world.shelf, holder, keep_starts=keep_starts)
        else:
            did, shelf = self._store.release(world.shelf, holder, "failed")
        draft = Draft(world)
        draft.shelf = shelf
        broken = self._settled(world, place, worker, shelf)
        label = f"{_name(place, worker)}: the parent settles: {yes(did)}"
        if did:
            stage.attempt_ended(draft, stage.worker_attempt(place, worker.job), worker.token)
            if not self._config.requeues_lost:
                broken = broken or (TOLD_WRONG if shelf.how(worker.job) != "failed" else "")
                draft.set_end(worker.job, FAILED)
        if did and not worker.asked and stage.may(world, "lost"):
            unheard = draft.copy()
            unheard.set_worker(place, worker._replace(asked="yes"))
            yield stage.step(f"{label}, reply lost", unheard, fault=True, broken=broken)
        if worker.asked and not did and worker.lapsed < 2 and worker.token == world.newest:
            broken = broken or ANSWERED_OTHERWISE
        if self._config.requeues_lost:
            self._is_settled(draft, place, worker, REJECT)
        else:
            self._is_settled(draft, place, worker, ACK if did else PUT_BACK)
        yield stage.step(label, draft, broken=broken)

    def _dead_child(self, world: World, place: int, worker: Worker, *, by_owner: bool) -> Holder:
        attempt = self._stage.worker_attempt(place, worker.job)
        if by_owner and world.shelf.state == "running" and world.shelf.owner == worker.job:
            attempt = world.shelf.attempt
        return Holder(worker.job, attempt)

    def _settled(self, world: World, place: int, worker: Worker, shelf: Shelf) -> str:
        """A running entry was settled that was not that child's."""
        moved = world.shelf.state == "running" and not same_entry(world.shelf, shelf)
        own = self._stage.worker_attempt(place, worker.job) == world.shelf.attempt
        return STALE_ACTED if moved and not own else ""

    def _drops_revoked(self, world: World, place: int, worker: Worker) -> Step:
        """A revoked job ends where its message is found, or where its child was terminated."""
        draft = Draft(world)
        holder = self._dead_child(world, place, worker, by_owner=self._behaviour.revoked_frees_by_owner)
        broken = ""
        if not self._behaviour.revoked_leaves_no_receipt:
            _, draft.shelf = self._store.release(world.shelf, holder, "revoked", anyway=True)
            broken = self._settled(world, place, worker, draft.shelf)
        self._is_revoked(draft, place, worker.job)
        self._is_settled(draft, place, worker, ACK)
        return self._stage.step(f"{_name(place, worker)} ends the revoked job", draft, broken=broken)


def _asked_again(worker: Worker, answer: Answer) -> str:
    if worker.lapsed or worker.asked not in ("lease", "skipped"):
        return ""
    if worker.asked == "lease":
        return "" if answer.kind == "lease" and answer.token == worker.token else ANSWERED_OTHERWISE
    return "" if answer.kind == "held" else ANSWERED_OTHERWISE


def _refused(world: World, worker: Worker) -> str:
    return HOLDER_REFUSED if worker.token == world.newest and worker.lapsed < 2 else ""


def _name(place: int, worker: Worker) -> str:
    return f"W{place}({NAMES[worker.job]})"
