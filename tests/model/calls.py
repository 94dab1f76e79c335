"""A caller carries out what its machine, `taskguard.engine.publisher.Call`, wants done."""

from __future__ import annotations

from collections.abc import Iterator

from taskguard.engine import effects as fx
from taskguard.engine.publisher import Answer as AnswerWith
from taskguard.engine.publisher import Publish
from taskguard.protocol.store import Lease
from tests.model.machines import Hand
from tests.model.stage import ANSWERED_OTHERWISE, STALE_ACTED, Stage, Step, same_entry
from tests.model.store import NAMES, Answer, Ask, Holder, Stored
from tests.model.world import (
    ACCEPTED,
    ANSWERED,
    ANSWERED_WITH,
    CALL,
    GONE,
    MARK,
    PLAIN,
    PUBLISH,
    PUBLISH_BARE,
    PUBLISHING,
    REFUSED,
    STAND_IN,
    STAND_IN_MARK,
    WITHDRAW,
    Draft,
    Late,
    Message,
    Publisher,
    World,
)


class Calls:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._machines = stage.machines
        self._config = stage.config
        self._behaviour = stage.behaviour

    def steps(self, world: World) -> Iterator[Step]:
        for job, publisher in enumerate(world.publishers):
            if self._stage.is_like_the_job_before(world, job):
                continue
            phase = publisher.phase
            if phase in PUBLISHING:
                yield from self._goes_on(world, job, publisher)
                if self._stage.may(world, "publisher"):
                    yield self._dies(world, job, phase)
            elif phase in (GONE, REFUSED) and self._config.called_again:
                draft = Draft(world)
                draft.set_publisher(job, self._stage.calling(job))
                yield self._stage.step(f"{NAMES[job]} is called again with the same id", draft)

    def _goes_on(self, world: World, job: int, publisher: Publisher) -> Iterator[Step]:
        phase = publisher.phase
        if phase == CALL:
            yield from self._claims(world, job, publisher)
        elif phase in (PUBLISH, PUBLISH_BARE):
            yield from self._publishes(world, job, publisher)
        elif phase == STAND_IN:
            yield self._stands_in(world, job, publisher)
        elif phase in (MARK, STAND_IN_MARK):
            yield from self._marks(world, job, publisher)
        else:
            yield from self._withdraws(world, job, publisher)

    # -- claim ---------------------------------------------------------------------------------------------------------

    def _claims(self, world: World, job: int, publisher: Publisher) -> Iterator[Step]:
        stage = self._stage
        hand, attempt = stage.hand(publisher), stage.publisher_attempt(job)
        ask = Ask(job, attempt, stage.claim_number(hand))
        answer, stored = stage.store.claim(world.stored, ask, world.newest)
        draft = Draft(world)
        draft.stored = stored
        broken = ""
        if answer.kind == "lease" and answer.token != publisher.token:
            broken = stage.granted(draft, world, ask, answer)
        if answer.kind == "held" and (answer.attempt == attempt or (stored.mover == attempt and not answer.publish)):
            broken = ANSWERED_OTHERWISE
        label = f"publisher {NAMES[job]} claims: {told(answer)}"
        if stored is not world.stored and not publisher.asked and stage.may(world, "lost"):
            unheard = draft.copy()
            token = answer.token if answer.kind == "lease" else 0
            unheard.set_publisher(job, publisher._replace(token=token, asked=answer.kind))
            yield stage.step(f"{label}, reply lost", unheard, fault=True, broken=broken)
        if world.late is None and not publisher.asked and stage.may(world, "late"):
            slow = Draft(world)
            slow.late = Late(ask)
            slow.set_publisher(job, publisher._replace(asked="slow"))
            yield stage.step(f"publisher {NAMES[job]} claims, its packet is held up", slow, fault=True)
        heard = Publisher(CALL, answer.token, answer.attempt if answer.kind == "held" else "", answer.owner)
        self._goes_to(draft, job, heard, self._machines.answered(hand, answer).hand)
        yield stage.step(label, draft, broken=broken)

    def _goes_to(self, draft: Draft, job: int, heard: Publisher, hand: Hand) -> None:
        """What its machine wants done next; *heard* has what the store said of the holder."""
        effect = hand.effect
        if isinstance(effect, fx.StandIn):
            draft.set_publisher(job, heard._replace(phase=STAND_IN, hand=hand.number))
        elif isinstance(effect, Publish):
            claimed, join = effect.claimed, effect.envelope.join
            twin = NAMES.index(join) if join else -1
            if claimed is None:
                draft.set_publisher(job, Publisher(PUBLISH_BARE, twin=twin))
            else:
                attempt = self._stage.publisher_attempt(job) if isinstance(claimed, Lease) else heard.attempt
                draft.set_publisher(job, Publisher(PUBLISH, heard.token, attempt, twin))
        else:
            assert isinstance(effect, AnswerWith), effect
            found = NAMES.index(effect.found.owner)
            if found != job:
                draft.set_end(job, f"{ANSWERED_WITH}{found}")
                self._is_over(draft, job, ANSWERED)
            else:
                self._is_over(draft, job, ACCEPTED)

    def _is_over(self, draft: Draft, job: int, phase: str) -> None:
        draft.set_publisher(job, Publisher(phase))
        self._stage.retire(draft, self._stage.publisher_attempt(job))

    # -- publish -------------------------------------------------------------------------------------------------------

    def _publishes(self, world: World, job: int, publisher: Publisher) -> Iterator[Step]:
        stage = self._stage
        name = f"publisher {NAMES[job]} publishes"
        message = Message(join=publisher.twin) if publisher.twin >= 0 else PLAIN
        draft = Draft(world)
        broken = stage.publish(draft, job, message)
        if publisher.phase == PUBLISH and not self._behaviour.never_marks:
            draft.set_publisher(job, publisher._replace(phase=MARK))
        else:
            self._is_over(draft, job, ACCEPTED)
        yield stage.step(name, draft, broken=broken)
        if stage.may(world, "published"):
            draft = Draft(world)
            broken = stage.publish(draft, job, message)
            yield stage.step(f"{name}, reply lost", draft, fault=True, broken=broken)
        if publisher.attempt == stage.publisher_attempt(job) and stage.may(world, "refuse"):
            for accepted in (False, True):
                draft = Draft(world)
                broken = stage.publish(draft, job) if accepted else ""
                draft.set_publisher(job, publisher._replace(phase=WITHDRAW))
                ending = ", accepted but reported as refused" if accepted else ", refused"
                yield stage.step(name + ending, draft, fault=True, broken=broken)

    def _stands_in(self, world: World, job: int, publisher: Publisher) -> Step:
        draft = Draft(world)
        broken = self._stage.publish(draft, publisher.twin)
        draft.set_publisher(job, publisher._replace(phase=STAND_IN_MARK))
        if self._behaviour.never_marks:
            self._stood_in(draft, job, publisher)
        return self._stage.step(f"publisher {NAMES[job]} publishes {NAMES[publisher.twin]}", draft, broken=broken)

    def _stood_in(self, draft: Draft, job: int, publisher: Publisher) -> None:
        self._goes_to(draft, job, publisher, self._machines.stood_in(self._stage.hand(publisher)).hand)

    # -- mark, withdraw ------------------------------------------------------------------------------------------------

    def _marks(self, world: World, job: int, publisher: Publisher) -> Iterator[Step]:
        stage = self._stage
        stands_in = publisher.phase == STAND_IN_MARK
        whom = publisher.twin if stands_in else job
        did, stored = stage.store.mark(world.stored, Holder(whom, publisher.attempt, publisher.token))
        draft = Draft(world)
        draft.stored = stored
        broken = self._acted(world, publisher, stored)
        label = f"publisher {NAMES[job]} marks {NAMES[whom]}: {yes(did)}"
        if stored is not world.stored and not publisher.asked and stage.may(world, "lost"):
            unheard = Draft(world)
            unheard.stored = stored
            unheard.set_publisher(job, publisher._replace(asked="yes"))
            yield stage.step(f"{label}, reply lost", unheard, fault=True, broken=broken)
        if stands_in:
            self._stood_in(draft, job, publisher)
        else:
            self._is_over(draft, job, ACCEPTED)
        yield stage.step(label, draft, broken=broken)

    def _withdraws(self, world: World, job: int, publisher: Publisher) -> Iterator[Step]:
        stage = self._stage
        attempt = stage.publisher_attempt(job)
        did, stored = stage.store.release(world.stored, Holder(job, attempt, publisher.token), "released")
        draft = Draft(world)
        draft.stored = stored
        if did:
            stage.attempt_ended(draft, attempt, publisher.token)
        broken = self._acted(world, publisher, stored)
        label = f"publisher {NAMES[job]} withdraws: {yes(did)}"
        if publisher.asked == "yes" and not did and publisher.token == stage.newest(world):
            broken = broken or ANSWERED_OTHERWISE
        if did and not publisher.asked and stage.may(world, "lost"):
            unheard = draft.copy()
            unheard.set_publisher(job, unheard.publishers[job]._replace(asked="yes"))
            yield stage.step(f"{label}, reply lost", unheard, fault=True, broken=broken)
        self._is_over(draft, job, REFUSED)
        yield stage.step(label, draft, broken=broken)

    def _acted(self, world: World, publisher: Publisher, stored: Stored) -> str:
        moved = not same_entry(world.stored, stored)
        return STALE_ACTED if moved and publisher.token != self._stage.newest(world) else ""

    def _dies(self, world: World, job: int, phase: str) -> Step:
        draft = Draft(world)
        # With its message accepted the job is in the queue, whether or not its caller lived to hear of it.
        self._is_over(draft, job, ACCEPTED if phase == MARK else GONE)
        return self._stage.step(f"publisher {NAMES[job]} dies", draft, fault=True)


def told(answer: Answer) -> str:
    """The answer, as a trace shows it."""
    if answer.kind == "lease":
        return f"lease t{answer.token}"
    if answer.kind == "completed":
        return f"completed by {NAMES[answer.owner]}, {answer.how}"
    publish = ", to be published" if answer.publish else ""
    owner = NAMES[answer.owner] if answer.owner >= 0 else "nobody"
    return f"held by {owner}, {answer.state}{publish}"


def yes(did: bool) -> str:
    return "yes" if did else "refused"
