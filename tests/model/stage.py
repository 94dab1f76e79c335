"""What publishers, workers and nature share: the configuration, the store, the normal form of a world, the checks."""

from __future__ import annotations

from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

from taskguard.engine import effects as fx
from taskguard.protocol.rules import Rules
from tests.model.machines import IN_HAND, ME, Hand, Machines
from tests.model.store import CALLER, DEAD, NAMES, NOW, Answer, Ask, Store, Stored
from tests.model.world import (
    ACK,
    ASK_AGAIN,
    BODY,
    CALL,
    CLAIM,
    FAILED,
    HOLDING,
    IDLE,
    IDLER,
    JOINED_TO,
    KILLED,
    OK,
    PLAIN,
    PUBLISH_BARE,
    PUT_BACK,
    PUT_BACK_COPY,
    REJECT,
    REVOKED,
    REVOKING,
    SKIPPED_FOR,
    Behaviour,
    Config,
    Draft,
    Fault,
    Late,
    Message,
    Publisher,
    Worker,
    World,
)

STARTED_AGAIN = "an ended job was started again"
SIDE_BY_SIDE = "two bodies ran side by side"
STALE_ACTED = "a stale holder acted"
HOLDER_REFUSED = "a holder that nobody replaced was refused"
TOKEN_FELL = "a token did not rise"
FLOOR_FORGOTTEN = "the token that a resource has seen was forgotten"
CLAIM_TAKEN = "a live claim was taken"
ANSWERED_OTHERWISE = "a verb asked again was answered otherwise"
TOLD_WRONG = "a job was reported to have ended as it did not"
DONE_AGAIN = "finished work was done again"
TOO_MANY_COPIES = "too many copies of one message"
STARTED_TOO_OFTEN = "a job that kills its workers was started too often"
GHOST = "an attempt that had ended was granted again"
JOB_LOST = "an accepted job was lost"
KEY_BLOCKED = "the key was blocked for ever"
COPIES_STAY = "superfluous copies went round for ever"

AT_ONCE = frozenset({ACK, PUT_BACK, REJECT})
SAME_UNDER_ANY_NAME = frozenset({CLAIM, ASK_AGAIN, BODY})

_new = tuple.__new__
_FORM = attrgetter("stored", "newest", "broker", "publishers", "workers", "revoked", "late", "operator")

LATE = "late"
"""The attempt of a packet on the wire whose sender is past it."""


class Step(NamedTuple):
    label: str
    world: World
    fault: bool
    broken: str
    """The kind of violation that this step is; empty if it is none."""


class Stage:
    def __init__(self, config: Config, rules: Rules, behaviour: Behaviour, *, told_apart: bool = False) -> None:
        self.config = config
        self._told_apart = told_apart
        self.behaviour = behaviour
        self.machines = Machines(config, behaviour.delivery, behaviour.call)
        counts = config.max_starts > 0
        self.store = Store(rules, config.jobs, ahead=config.ahead, counts_starts=counts)
        self._remembers = "wipe" not in config.faults
        self._workers = [f"w{place}" for place in range(config.workers)]
        self._publishers = [f"p{job}" for job in range(config.jobs)]
        self._claims: dict[int, int] = {}
        # One that was called before, or that is like no other, is never among them.
        jobs = range(config.jobs)
        self._uncalled = [self.calling(job) if self._is_like_others(job) else None for job in jobs]
        self._normal: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})

    def _is_like_others(self, job: int) -> bool:
        config = self.config
        own = config.joiners | config.bare | config.poison | config.endless
        return job not in own and not config.called_again and not self._told_apart

    def first(self) -> World:
        jobs = range(self.config.jobs)
        return World(
            stored=self.store.empty,
            newest=0,
            broker=((),) * len(jobs),
            publishers=tuple(self.calling(job) for job in jobs),
            workers=(IDLER,) * self.config.workers,
            ends=("",) * len(jobs),
            revoked=(0,) * len(jobs),
            faults=self.config.budget,
            retries=self.config.retries,
            failures=self.config.failures,
            late=None,
            operator=0,
            starts=(0,) * len(jobs),
        )

    def may(self, world: World, fault: Fault) -> bool:
        return world.faults > 0 and fault in self.config.faults

    def step(self, label: str, draft: Draft, *, fault: bool = False, broken: str = "") -> Step:
        if fault:
            draft.faults -= 1
        return Step(label, self.normal(draft), fault, broken)

    # -- attempts ------------------------------------------------------------------------------------------------------

    def worker_attempt(self, place: int, job: int) -> str:
        return f"m{job}" if self.behaviour.attempt_in_message else self._workers[place]

    def publisher_attempt(self, job: int) -> str:
        return self._publishers[job]

    def retire(self, draft: Draft, attempt: str) -> None:
        """Nobody asks with this attempt any more, unless a packet of it is on the wire: the name can be used anew."""
        name = DEAD
        if draft.late is not None and draft.late.ask.attempt == attempt:
            name = LATE
            draft.late = draft.late._replace(ask=draft.late.ask._replace(attempt=LATE))
        draft.stored = self.store.rename(draft.stored, ((attempt, name),))
        for job, publisher in enumerate(draft.publishers):
            if publisher.attempt == attempt:
                draft.set_publisher(job, publisher._replace(attempt=name))

    def attempt_ended(self, draft: Draft, attempt: str, token: int) -> None:
        if draft.late is not None and draft.late.ask.attempt == attempt:
            draft.late = draft.late._replace(token=token)

    def named(self, draft: Draft, before: World) -> None:
        """A copy may have been named: then every stamp that others were told before is void."""
        now, then = draft.stored.entry, before.stored.entry
        if draft.stored.copy and now and then and (now.copy, now.copy_until) != (then.copy, then.copy_until):
            self._void_stamps(draft)

    def _void_stamps(self, draft: Draft) -> None:
        draft.workers = tuple([worker._replace(seen=0) if worker.seen else worker for worker in draft.workers])
        if draft.late is not None and draft.late.ask.seen:
            draft.late = draft.late._replace(ask=draft.late.ask._replace(seen=0))

    def to_idle(self, draft: Draft, place: int) -> None:
        draft.set_worker(place, IDLER)
        self.retire(draft, self._workers[place])

    # -- the broker ----------------------------------------------------------------------------------------------------

    def publish(self, draft: Draft, job: int, message: Message = PLAIN) -> str:
        """A copy more; says what is broken by it."""
        messages = (*draft.broker[job], message)
        draft.set_messages(job, messages if message is PLAIN and len(messages) == 1 else tuple(sorted(messages)))
        in_hand = sum(worker.job == job and worker.phase != ACK for worker in draft.workers)
        return TOO_MANY_COPIES if len(draft.broker[job]) + in_hand > self.config.copies else ""

    # -- checks --------------------------------------------------------------------------------------------------------

    def granted(self, draft: Draft, before: World, ask: Ask, answer: Answer) -> str:
        """A new token was granted; says what is broken by that."""
        newest = before.newest
        draft.newest = max(newest, answer.token)
        # A clock that fell back gives out tokens that the resource refuses, to whoever does not know of that yet.
        if answer.token <= (ask.floor if self.config.floor else newest):
            return TOKEN_FELL
        entry, claim = before.stored.entry, self.store.claim_of(ask)
        if entry is None or entry.owner == NAMES[ask.job]:
            return ""
        if before.stored.state == "queued" and claim.replace_queued:
            return ""
        return CLAIM_TAKEN if before.stored.live or entry.held_until else ""

    def newest(self, world: World) -> int:
        """The token that nobody has replaced."""
        return world.stored.token if self.config.floor else world.newest

    def started(self, draft: Draft, place: int) -> str:
        """The body starts at that worker; says what is broken by it."""
        worker = draft.workers[place]
        job = worker.job
        end = draft.ends[job]
        if end in (OK, FAILED, REVOKED, REVOKING) or end[:1] in (SKIPPED_FOR, JOINED_TO):
            return STARTED_AGAIN
        for other, rival in enumerate(draft.workers):
            if other != place and rival.phase == BODY and (rival.token == worker.token or not rival.lapsed):
                return SIDE_BY_SIDE
        if self._is_done_by_another(draft, worker):
            return DONE_AGAIN
        if job in self.config.poison:
            starts = draft.starts[job] + 1
            draft.starts = (*draft.starts[:job], starts, *draft.starts[job + 1 :])
            return STARTED_TOO_OFTEN if starts > self.config.max_starts else ""
        return ""

    def _is_done_by_another(self, draft: Draft, worker: Worker) -> bool:
        join = worker.message.join
        if join >= 0 and draft.ends[join] in (OK, FAILED):
            return True
        if self.config.reuse == "nothing":
            return False
        good = (OK, FAILED) if self.config.reuse == "anything" else (OK,)
        return any(end in good for other, end in enumerate(draft.ends) if other != worker.job)

    def body_elsewhere(self, draft: Draft, place: int, job: int) -> bool:
        return any(
            worker.phase in HOLDING and worker.job == job
            for other, worker in enumerate(draft.workers)
            if other != place
        )

    def runs_elsewhere(self, draft: Draft, place: int, job: int) -> bool:
        """Whether a body of the job runs at another worker under a lease that is its own."""
        return any(
            worker.phase == BODY and worker.job == job and not worker.lapsed and worker.token == draft.newest
            for other, worker in enumerate(draft.workers)
            if other != place
        )

    def clock_falls(self, draft: Draft) -> None:
        """Behind every token that anybody remembers."""
        later = {token: token + 1 for token in range(1, draft.newest + 1)} | {0: 0}
        draft.newest = later[draft.newest]
        draft.operator = later[draft.operator]
        self._rename_tokens(draft, later)

    # -- machines ------------------------------------------------------------------------------------------------------

    def hand(self, who: Worker | Publisher) -> Hand:
        return self.machines.hands[who.hand]

    def calling(self, job: int) -> Publisher:
        """Somebody is about to call the function, with this id."""
        hand = self.machines.call(job)
        return Publisher(CALL, hand=hand.number) if isinstance(hand.effect, fx.Ask) else Publisher(PUBLISH_BARE)

    def claim_number(self, hand: Hand) -> int:
        """Of the claim that this state asks for."""
        number = self._claims.get(hand.number)
        if number is None:
            assert isinstance(hand.effect, fx.Ask)
            number = self._claims[hand.number] = self.store.asks(hand.effect.claim)
        return number

    def publish_given(self, draft: Draft, place: int, copy: str) -> int:
        """The name that a machine gives to what its worker publishes, which others see from now on."""
        worker = draft.workers[place]
        if not copy:
            return 0
        if copy == IN_HAND:
            if not worker.message.name:  # nobody else had it, and now there will be two
                named = worker.message._replace(name=unused_name(draft, worker.job))
                draft.set_worker(place, worker._replace(message=named))
            return draft.workers[place].message.name
        if not worker.given:
            draft.set_worker(place, worker._replace(given=unused_name(draft, worker.job)))
        return draft.workers[place].given

    def is_like_the_job_before(self, world: World, job: int) -> bool:
        """Neither was called yet, so they could change places: whatever becomes of one of them becomes of the other."""
        if not job or world.publishers[job] != self._uncalled[job]:
            return False
        is_uncalled = world.publishers[job - 1] == self._uncalled[job - 1]
        return is_uncalled and world.revoked[job] == world.revoked[job - 1]

    def hurries(self, faults: int) -> bool:
        return faults == 0

    # -- the normal form -----------------------------------------------------------------------------------------------

    def normal(self, draft: Draft) -> World:
        """The world that this draft is, by whatever names: what is left to go wrong does not matter to those."""
        hurries = self.hurries(draft.faults)
        raw = _FORM(draft)
        form = self._normal[hurries].get(raw)
        if form is None:
            if hurries:
                self._hurry(draft)
            self._rename(draft)
            form = self._normal[hurries][raw] = _FORM(draft)
        stored, newest, broker, publishers, workers, revoked, late, operator = form
        return _new(
            World,
            (
                stored,
                newest,
                broker,
                publishers,
                workers,
                draft.ends,
                revoked,
                draft.faults,
                draft.retries,
                draft.failures,
                late,
                operator,
                draft.starts,
            ),
        )

    def _rename(self, draft: Draft) -> None:
        self._forget_stamps(draft)
        self._forget_messages(draft)
        if self.config.floor:
            self._forget_floors(draft)
            draft.broker = tuple(_no_crowd(messages) for messages in draft.broker)
        self._rank_tokens(draft)
        for job in self._marked_copies(draft):
            self._number_copies(draft, job)
            self._forget_twins(draft, job)
        self._forget_messages(draft)
        if not self._told_apart:
            self._sort_workers(draft)

    def _hurry(self, draft: Draft) -> None:
        """With no fault to come nothing comes between a decision and the messages that follow from it.

        A message that was taken and not yet looked at is as good as one with the broker.
        """
        for place, worker in enumerate(draft.workers):
            phase = worker.phase
            if phase in AT_ONCE or (phase == CLAIM and not worker.asked):
                if phase == PUT_BACK:
                    assert worker.out
                    self.publish(draft, worker.job, worker.out)
                elif phase == CLAIM or (phase == REJECT and worker.owns):
                    self.publish(draft, worker.job, worker.message._replace(tag=0))
                self.to_idle(draft, place)
            elif phase == PUT_BACK_COPY:
                self.republish(draft, place)
                if worker.job not in self.config.poison:
                    draft.set_worker(place, draft.workers[place]._replace(owns=False))
            elif worker.owns and phase != KILLED and worker.job not in self.config.poison:
                draft.set_worker(place, worker._replace(owns=False))

    def republish(self, draft: Draft, place: int) -> str:
        """Its copy is with the broker again, and it asks once more, to name it."""
        hand = self.hand(draft.workers[place])
        assert isinstance(hand.effect, fx.Republish)
        message = self.message_of(draft, place, hand.effect)
        after, worker = self.machines.republished(hand).hand, draft.workers[place]
        if isinstance(after.effect, fx.Ask):
            draft.set_worker(place, worker._replace(phase=ASK_AGAIN, hand=after.number))
        else:
            self.is_settled(draft, place, worker, ACK)
        return self.publish(draft, worker.job, message)

    def is_settled(self, draft: Draft, place: int, worker: Worker, phase: str) -> None:
        """It has no more to ask for this delivery: its attempt is over."""
        over = worker._replace(phase=phase, token=0, lapsed=0, asked="", seen=0, given=0, floor=0, hand=0, out=())
        draft.set_worker(place, over)
        self.retire(draft, self.worker_attempt(place, worker.job))

    def message_of(self, draft: Draft, place: int, effect: fx.Republish | fx.Defer | fx.GoOn) -> Message:
        envelope = effect.envelope
        return Message(
            name=self.publish_given(draft, place, envelope.copy),
            join=NAMES.index(envelope.join) if envelope.join else -1,
            heir=NAMES.index(envelope.heir) if envelope.heir else -1,
            floor=draft.workers[place].floor if envelope.floor else 0,
        )

    def _forget_stamps(self, draft: Draft) -> None:
        """One of a claim that is over is as good as none: its token does not come again."""
        token = draft.stored.token if draft.stored.state == "running" else 0
        if any(worker.seen not in (0, token) for worker in draft.workers) or (
            draft.late is not None and draft.late.ask.seen not in (0, token)
        ):
            self._void_stamps(draft)

    def _forget_messages(self, draft: Draft) -> None:
        """A message that is not delivered again has no name but the one that the machine knows, whoever gave it."""
        for place, worker in enumerate(draft.workers):
            if worker.owns or not worker.hand:
                continue
            hand, message = self.hand(worker), worker.message
            copy = hand.machine.envelope.copy
            if worker.phase in SAME_UNDER_ANY_NAME:
                name = worker.given if copy == ME else message.name if copy else 0
                sign = IN_HAND if name or worker.phase == ASK_AGAIN else ""
                if copy != sign:
                    hand = self.machines.called(hand, sign)
                if hand.number != worker.hand or worker.given or message.name != name:
                    message = message._replace(name=name)
                    draft.set_worker(place, worker._replace(hand=hand.number, given=0, message=message))
            elif message.name and copy != IN_HAND:
                draft.set_worker(place, worker._replace(message=message._replace(name=0)))

    def _forget_floors(self, draft: Draft) -> None:
        """What the store knows better need not be named."""
        known = dict.fromkeys((floor for floor in _floors(draft) if floor <= draft.stored.token), 0)
        if any(known):
            self._rename_floors(draft, known)

    def _rank_tokens(self, draft: Draft) -> None:
        tokens = {0, draft.newest, draft.stored.token, draft.operator}
        for worker in draft.workers:
            tokens.add(worker.token)
            tokens.add(worker.seen)
        tokens.update([publisher.token for publisher in draft.publishers])
        if draft.late is not None:
            tokens.update((draft.late.token, draft.late.ask.seen))
        if self.config.floor:
            tokens.add(1)  # the clock, which may fall behind all that is remembered
            tokens.update(_floors(draft))
        is_whole = self.config.ahead or all(type(token) is int for token in tokens)
        if is_whole and len(tokens) == max(tokens) + 1:
            return
        rank = {token: place for place, token in enumerate(sorted(tokens))}
        draft.newest = rank[draft.newest]
        draft.operator = rank[draft.operator]
        self._rename_tokens(draft, rank)
        if draft.stored.entry is not None:
            draft.stored = self.store.retoken(draft.stored, rank[draft.stored.token])

    def _rename_tokens(self, draft: Draft, rank: dict[int, int]) -> None:
        draft.workers = tuple(
            [worker._replace(token=rank[worker.token], seen=rank[worker.seen]) for worker in draft.workers]
        )
        draft.publishers = tuple([each._replace(token=rank[each.token]) for each in draft.publishers])
        if draft.late is not None:
            ask = draft.late.ask
            ask = ask._replace(seen=rank[ask.seen])
            draft.late = Late(ask, rank[draft.late.token])
        if self.config.floor:
            self._rename_floors(draft, rank)

    def _rename_floors(self, draft: Draft, rank: dict[int, int]) -> None:
        def renamed(message: Message) -> Message:
            return message._replace(floor=rank.get(message.floor, message.floor)) if message.floor else message

        draft.broker = tuple(tuple(sorted(renamed(message) for message in messages)) for messages in draft.broker)
        draft.workers = tuple(
            worker._replace(
                floor=rank.get(worker.floor, worker.floor),
                message=renamed(worker.message),
                out=worker.out and renamed(worker.out),
            )
            for worker in draft.workers
        )
        if draft.late is not None and draft.late.ask.floor:
            ask = draft.late.ask
            draft.late = draft.late._replace(ask=ask._replace(floor=rank.get(ask.floor, ask.floor)))

    def _marked_copies(self, draft: Draft) -> set[int]:
        jobs = {
            worker.job
            for worker in draft.workers
            if worker.given or (worker.job >= 0 and worker.message != PLAIN) or (worker.out and worker.out != PLAIN)
        }
        if draft.stored.copy:
            jobs.add(draft.stored.owner)
        if draft.late is not None:
            jobs.add(draft.late.ask.job)
        for job, messages in enumerate(draft.broker):
            if messages.count(PLAIN) < len(messages):
                jobs.add(job)
        return jobs - {CALLER}

    def _number_copies(self, draft: Draft, job: int) -> None:
        """Names and tags that nothing else has are as good as none, as are all names once the job has ended."""
        messages, stored = draft.broker[job], draft.stored
        hands = [worker for worker in draft.workers if worker.job == job]
        named = stored.copy if stored.owner == job else 0
        wire = draft.late.ask.copy if draft.late is not None and draft.late.ask.job == job else 0
        names = [named, wire, *[each.name for each in messages]]
        for worker in hands:
            names += [worker.message.name, worker.given, worker.out.name if worker.out else 0]
        name = _numbers(names)
        tag = _numbers([*[worker.message.tag for worker in hands], *[message.tag for message in messages]])
        if stored.how(job) and self._remembers:
            name = dict.fromkeys(name, 0)
        elif named and stored.is_awaited and stored.entry is not None and not name[named]:
            # Who has no name must not be taken for the message that is awaited and does not come any more.
            name[named] = max(name.values()) + 1 if stored.entry.copy_until > NOW else 0
        if _changes_nothing(name) and _changes_nothing(tag):
            return
        if name[named] != named:
            draft.stored = self.store.recopy(stored, name[named])
        if wire and draft.late is not None:
            draft.late = draft.late._replace(ask=draft.late.ask._replace(copy=name[wire]))
        draft.workers = tuple(_renamed(worker, name, tag) if worker.job == job else worker for worker in draft.workers)
        renamed = sorted(each._replace(name=name[each.name], tag=tag[each.tag]) for each in messages)
        draft.set_messages(job, tuple(renamed))

    def _forget_twins(self, draft: Draft, job: int) -> None:
        """Whom a copy joins does not matter any more once the job has ended."""
        if not (draft.stored.how(job) and self._remembers):
            return
        draft.workers = tuple(_untwinned(worker) if worker.job == job else worker for worker in draft.workers)
        draft.set_messages(job, tuple(sorted(each._replace(join=-1, heir=-1) for each in draft.broker[job])))

    def _sort_workers(self, draft: Draft) -> None:
        """Workers are alike: worlds that differ only in which of them is which are one world."""
        workers = draft.workers
        if any(draft.revoked):
            keys = [(worker, *[bits >> place & 1 for bits in draft.revoked]) for place, worker in enumerate(workers)]
        else:
            keys = list(workers)
        if all(one <= other for one, other in pairwise(keys)):
            return
        order = sorted(range(len(workers)), key=keys.__getitem__)
        draft.workers = tuple([workers[old] for old in order])
        names = tuple((self._workers[old], self._workers[new]) for new, old in enumerate(order))
        draft.stored = self.store.rename(draft.stored, names)
        if any(draft.revoked):
            draft.revoked = tuple(
                sum(1 << new for new, old in enumerate(order) if bits >> old & 1) for bits in draft.revoked
            )
        if draft.late is not None:
            ask = draft.late.ask
            draft.late = draft.late._replace(ask=ask._replace(attempt=dict(names).get(ask.attempt, ask.attempt)))


def unused_name(world: World | Draft, job: int) -> int:
    wire = world.late.ask.copy if world.late is not None else 0
    used = [world.stored.copy, wire, *[message.name for message in world.broker[job]]]
    for worker in world.workers:
        if worker.job == job:
            used += [worker.message.name, worker.given, worker.out.name if worker.out else 0]
    return 1 + max(used)


def unused_tag(world: World, job: int) -> int:
    in_hand = [worker.message.tag for worker in world.workers if worker.job == job]
    return 1 + max([0, *in_hand, *[message.tag for message in world.broker[job]]])


def idle_places(world: World) -> list[int]:
    """Of idle workers that remember the same revocations one will do: they are alike."""
    alike = {}
    for place, worker in enumerate(world.workers):
        if worker.phase == IDLE:
            alike.setdefault(tuple([bits >> place & 1 for bits in world.revoked]), place)
    return list(alike.values())


def same_entry(one: Stored, other: Stored) -> bool:
    return one is other or one.entry == other.entry


def _changes_nothing(numbers: dict[int, int]) -> bool:
    return all(old == new for old, new in numbers.items())


def _numbers(values: list[int]) -> dict[int, int]:
    numbers = {0: 0}
    for value in values:
        if value not in numbers:
            numbers[value] = max(numbers.values()) + 1 if values.count(value) > 1 else 0
    return numbers


def _renamed(worker: Worker, name: dict[int, int], tag: dict[int, int]) -> Worker:
    message = worker.message._replace(name=name[worker.message.name], tag=tag[worker.message.tag])
    out = worker.out and worker.out._replace(name=name[worker.out.name])
    return worker._replace(message=message, out=out, given=name[worker.given])


def _untwinned(worker: Worker) -> Worker:
    out = worker.out and worker.out._replace(join=-1, heir=-1)
    return worker._replace(message=worker.message._replace(join=-1, heir=-1), out=out)


def _no_crowd(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Jobs that are refused by turns could leave ever more copies of one message: many are as good as two."""
    return tuple([each for place, each in enumerate(messages) if messages[max(0, place - 2) : place].count(each) < 2])


def _floors(draft: Draft) -> set[int]:
    floors = {message.floor for messages in draft.broker for message in messages}
    for worker in draft.workers:
        floors.update((worker.floor, worker.message.floor, worker.out.floor if worker.out else 0))
    if draft.late is not None:
        floors.add(draft.late.ask.floor)
    return floors
