"""What happens to everybody: messages arrive or are lost, time passes, jobs are revoked, stores lose their memory."""

from __future__ import annotations

from collections.abc import Iterator

from taskguard.protocol.store import Claim
from tests.model.calls import told
from tests.model.deliveries import Deliveries
from tests.model.stage import GHOST, LATE, STALE_ACTED, Stage, Step, idle_places
from tests.model.store import CALLER, COPY_FOR, DEAD, KEEP, KEY, LEASE, NAMES, NOW, Ask, Holder
from tests.model.world import (
    ACK,
    CALL,
    CLAIM,
    FAILED,
    FORGOTTEN,
    HOLDING,
    IDLE,
    JOINED_TO,
    KILLED,
    MAY_BE_GRANTED,
    MISSED,
    OK,
    PUBLISHING,
    PUT_BACK,
    REJECT,
    REVOKED,
    REVOKING,
    SKIPPED_FOR,
    UNREMEMBERED_SKIP,
    Draft,
    Message,
    Worker,
    World,
)

ONCE = "z"
"""The attempt of a later call, which asks once."""


class Nature:
    def __init__(self, stage: Stage, workers: Deliveries) -> None:
        self._stage = stage
        self._workers = workers
        self._config = stage.config
        self._store = stage.store
        reuse, owner = self._config.reuse, NAMES[CALLER]
        claim = Claim(KEY, owner, ONCE, state="queued", lease=LEASE, keep_for=KEEP, reuse=reuse, copy_for=COPY_FOR)
        self._once = stage.store.asks(claim)

    def steps(self, world: World) -> Iterator[Step]:
        yield from self._deliveries(world)
        yield from self._losses(world)
        if world.stored.entry is not None:
            yield from self._deadlines(world)
        if self._config.duplicates and world.stored.live:
            yield from self._duplicate_call(world)
        if world.late is not None:
            yield self._late_packet(world)
        if world.operator:
            yield self._freed_by_hand(world)
        if world.faults > 0:
            yield from self._interventions(world)

    # -- the broker ----------------------------------------------------------------------------------------------------

    def _deliveries(self, world: World) -> Iterator[Step]:
        places = idle_places(world)
        for job, messages in enumerate(world.broker):
            for message in sorted(set(messages)):
                for place in places:
                    yield from self._delivery(world, job, message, place)

    def _delivery(self, world: World, job: int, message: Message, place: int) -> Iterator[Step]:
        draft = Draft(world)
        left = list(world.broker[job])
        left.remove(message)
        draft.set_messages(job, tuple(left))
        hand = self._stage.machines.delivery(job, message)
        worker = Worker(CLAIM, job, owns=True, message=message, floor=message.floor, hand=hand.number)
        draft.set_worker(place, worker)
        if self._stage.hurries(world.faults):
            yield from self._workers.steps_of(draft.frozen(), place)
        else:
            yield self._stage.step(f"W{place} gets the message of {NAMES[job]}", draft)

    def _losses(self, world: World) -> Iterator[Step]:
        # Only a queued job can be published again by others; the message of an unclaimed job has nobody to miss it.
        job = world.stored.owner
        if world.stored.state != "queued" or job in self._config.bare or not self._stage.may(world, "lose"):
            return
        for message in sorted(set(world.broker[job])):
            draft = Draft(world)
            left = list(world.broker[job])
            left.remove(message)
            draft.set_messages(job, tuple(left))
            if not self._config.duplicates and not world.ends[job]:
                draft.set_end(job, MISSED)
            yield self._stage.step(f"the broker loses a message of {NAMES[job]}", draft, fault=True)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _deadlines(self, world: World) -> Iterator[Step]:
        stored, entry = world.stored, world.stored.entry
        assert entry is not None
        if stored.live and stored.state == "running":
            yield from self._lease_ends(world)
        elif stored.live:
            yield from self._queue_ends(world)
        if stored.live and entry.copy_until > NOW and (self._config.copy_ages or self._is_awaited_in_vain(world)):
            draft = Draft(world)
            draft.stored = self._store.age_copy(stored)
            yield self._stage.step("the time of the published copy passes", draft)
        if entry.held_until:
            draft = Draft(world)
            draft.stored = self._store.stop_lingering(stored)
            yield self._stage.step("hold_at_least passes", draft)
        if stored.state == "free" and self._config.frees_forgotten:
            draft = Draft(world)
            draft.stored = self._store.drop_entry(stored)
            yield self._stage.step("the store drops the freed entry", draft)

    def _is_awaited_in_vain(self, world: World) -> bool:
        """The message that alone may start the queued job is nowhere, as its worker died before it left."""
        stored, job = world.stored, world.stored.owner
        if not stored.is_awaited or job < 0:
            return False
        names = {message.name for message in world.broker[job]}
        for worker in world.workers:
            if worker.job == job:
                names |= {worker.message.name, worker.given, worker.out.name if worker.out else 0}
        return stored.copy not in names

    def _lease_ends(self, world: World) -> Iterator[Step]:
        holder = self._holder(world)
        if holder is not None and not self._stage.may(world, "pause"):
            return
        draft = Draft(world)
        draft.stored = self._store.run_out(world.stored)
        if holder is None:
            yield self._stage.step("the lease runs out, its holder is gone", draft)
        else:
            draft.set_worker(holder, world.workers[holder]._replace(lapsed=1))
            yield self._stage.step(f"the lease runs out under W{holder}", draft, fault=True)

    def _holder(self, world: World) -> int | None:
        for place, worker in enumerate(world.workers):
            if worker.token == world.stored.token and worker.phase in HOLDING | MAY_BE_GRANTED:
                return place
        return None

    def _queue_ends(self, world: World) -> Iterator[Step]:
        job = world.stored.owner
        awaited = bool(world.broker[job]) or any(worker.job == job for worker in world.workers)
        awaited = awaited or any(
            publisher.phase in PUBLISHING and (publisher.twin == job or place == job)
            for place, publisher in enumerate(world.publishers)
        )
        if awaited and not self._stage.may(world, "backlog"):
            return
        if not awaited and not self._config.queue_ends:
            return
        draft = Draft(world)
        draft.stored = self._store.run_out(world.stored)
        why = "its message still waits" if awaited else "its message is gone"
        yield self._stage.step(f"the queued entry runs out, {why}", draft, fault=awaited)

    # -- others --------------------------------------------------------------------------------------------------------

    def _duplicate_call(self, world: World) -> Iterator[Step]:
        """One more call of the key: it publishes for the holder if it is told to, and marks that."""
        ask = Ask(CALLER, ONCE, self._once)
        answer, stored = self._store.claim(world.stored, ask, world.newest)
        if answer.kind != "held" or not answer.publish:
            return
        draft = Draft(world)
        broken = self._stage.publish(draft, answer.owner)
        draft.stored = stored
        if not self._stage.behaviour.never_marks:
            _, draft.stored = self._store.mark(stored, Holder(answer.owner, answer.attempt, answer.token))
        draft.stored = self._store.rename(draft.stored, ((ONCE, DEAD),))
        yield self._stage.step(f"a later call publishes {NAMES[answer.owner]} again", draft, broken=broken)

    def _late_packet(self, world: World) -> Step:
        assert world.late is not None
        ask, ended_with = world.late
        answer, stored = self._store.claim(world.stored, ask, world.newest)
        draft = Draft(world)
        draft.stored, draft.late = stored, None
        self._stage.named(draft, world)
        broken = ""
        if answer.kind == "lease":
            if ended_with and ended_with == world.newest:
                broken = GHOST
            if stored.token != world.stored.token:
                broken = broken or self._stage.granted(draft, world, ask, answer)
                self._unheard(draft, ask, answer.token)
        if ask.attempt == LATE:
            self._stage.retire(draft, ask.attempt)
        return self._stage.step(f"the late claim of {NAMES[ask.job]} arrives: {told(answer)}", draft, broken=broken)

    def _unheard(self, draft: Draft, ask: Ask, token: int) -> None:
        """Who still asks with that attempt has this token, and does not know it yet."""
        for job, publisher in enumerate(draft.publishers):
            if publisher.phase == CALL and self._stage.publisher_attempt(job) == ask.attempt:
                draft.set_publisher(job, publisher._replace(token=token))
        for place, worker in enumerate(draft.workers):
            asks = worker.phase in MAY_BE_GRANTED or worker.phase == KILLED
            if asks and self._stage.worker_attempt(place, worker.job) == ask.attempt:
                draft.set_worker(place, worker._replace(token=token))

    def _freed_by_hand(self, world: World) -> Step:
        did, stored = self._store.forget(world.stored, world.operator)
        draft = Draft(world)
        draft.stored, draft.operator = stored, 0
        if did:
            _forget_claims(draft, world.stored.token)
        broken = STALE_ACTED if did and world.operator != world.newest else ""
        return self._stage.step(f"the key is freed by hand: {did}", draft, broken=broken)

    def _interventions(self, world: World) -> Iterator[Step]:
        stage = self._stage
        if stage.may(world, "forget") and world.stored.live and not world.operator:
            draft = Draft(world)
            draft.operator = world.stored.token
            yield stage.step("somebody looks at the entry, to free it by hand", draft, fault=True)
        if stage.may(world, "wipe") and world.stored is not self._store.empty:
            yield self._wiped(world)
        if stage.may(world, "revoke"):
            for job in range(self._config.jobs):
                is_revoked = bool(world.revoked[job] or world.ends[job])
                if not is_revoked and not stage.is_like_the_job_before(world, job):
                    draft = Draft(world)
                    everywhere = (1 << self._config.workers) - 1
                    draft.revoked = (*world.revoked[:job], everywhere, *world.revoked[job + 1 :])
                    yield stage.step(f"{NAMES[job]} is revoked", draft, fault=True)

    def _wiped(self, world: World) -> Step:
        draft = Draft(world)
        draft.stored = self._store.empty
        if self._config.floor:
            self._stage.clock_falls(draft)
        draft.ends = tuple(_unremembered(end) for end in world.ends)
        _forget_claims(draft, 0)
        return self._stage.step("the store loses all it knew", draft, fault=True)


def _forget_claims(draft: Draft, token: int) -> None:
    """Claims with that token (0: all of them) are known to nobody but their holders."""
    for place, worker in enumerate(draft.workers):
        if worker.phase not in (IDLE, ACK, PUT_BACK, REJECT) and token in (0, worker.token):
            draft.set_worker(place, worker._replace(lapsed=2))


def _unremembered(end: str) -> str:
    if end in (OK, FAILED, REVOKED, REVOKING) or end[:1] == JOINED_TO:
        return FORGOTTEN
    return UNREMEMBERED_SKIP + end[1:] if end[:1] == SKIPPED_FOR else end
