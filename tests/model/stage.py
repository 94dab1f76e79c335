"""What publishers, workers and nature share: the configuration, the store, the normal form of a world, the checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from taskguard.rules import Rules
from tests.model.shelf import COPY_FOR, DEAD, NAMES, Answer, Ask, Shelf, Store
from tests.model.world import (
    ACK,
    ASK_AGAIN,
    BODIES,
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

_new = tuple.__new__

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
        counts = config.max_starts > 0
        self.store = Store(rules, config.jobs, ahead=config.ahead, counts_starts=counts)
        # Without revocations to remember, idle workers are alike.
        self.alike = "revoke" not in config.faults
        self._remembers = "wipe" not in config.faults
        self._workers = [f"w{place}" for place in range(config.workers)]
        self._publishers = [f"p{job}" for job in range(config.jobs)]

    def first(self) -> World:
        jobs = range(self.config.jobs)
        return World(
            shelf=self.store.empty,
            newest=0,
            broker=((),) * len(jobs),
            publishers=tuple(Publisher(PUBLISH_BARE if job in self.config.bare else CALL) for job in jobs),
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
        draft.shelf = self.store.rename(draft.shelf, ((attempt, name),))
        for job, publisher in enumerate(draft.publishers):
            if publisher.attempt == attempt:
                draft.set_publisher(job, publisher._replace(attempt=name))

    def attempt_ended(self, draft: Draft, attempt: str, token: int) -> None:
        if draft.late is not None and draft.late.ask.attempt == attempt:
            draft.late = draft.late._replace(token=token)

    def named(self, draft: Draft, before: World) -> None:
        """A copy may have been named: then every stamp that others were told before is void."""
        now, then = draft.shelf.entry, before.shelf.entry
        if draft.shelf.copy and now and then and (now.copy, now.copy_until) != (then.copy, then.copy_until):
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

    def granted(self, draft: Draft, before: World, job: int, answer: Answer) -> str:
        """A new token was granted; says what is broken by that."""
        newest = before.newest
        draft.newest = max(newest, answer.token)
        if answer.token <= newest:
            return TOKEN_FELL
        entry = before.shelf.entry
        if entry is None or entry.owner == NAMES[job]:
            return ""
        if before.shelf.state == "queued" and self.config.policy == "replace":
            return ""
        return CLAIM_TAKEN if before.shelf.live or entry.held_until else ""

    def started(self, draft: Draft, place: int) -> str:
        """The body starts at that worker; says what is broken by it."""
        worker = draft.workers[place]
        job = worker.job
        end = draft.ends[job]
        if end in (OK, FAILED, REVOKED, REVOKING) or end[:1] in (SKIPPED_FOR, JOINED_TO):
            return STARTED_AGAIN
        for other, rival in enumerate(draft.workers):
            if other != place and rival.phase in BODIES and (rival.token == worker.token or not rival.lapsed):
                return SIDE_BY_SIDE
        if self._is_done_by_another(draft, worker):
            return DONE_AGAIN
        if job in self.config.poison:
            starts = draft.starts[job] + 1
            draft.starts = (*draft.starts[:job], starts, *draft.starts[job + 1 :])
            return STARTED_TOO_OFTEN if starts > self.config.max_starts else ""
        return ""

    def _is_done_by_another(self, draft: Draft, worker: Worker) -> bool:
        if worker.join >= 0 and draft.ends[worker.join] in (OK, FAILED):
            return True
        if self.config.reuse == "nothing":
            return False
        good = (OK, FAILED) if self.config.reuse == "anything" else (OK,)
        return any(end in good for other, end in enumerate(draft.ends) if other != worker.job)

    def may_be_skipped(self, job: int) -> bool:
        return self.config.policy != "wait" and job not in self.config.joiners

    def body_elsewhere(self, draft: Draft, place: int, job: int) -> bool:
        return any(
            worker.phase in HOLDING and worker.job == job
            for other, worker in enumerate(draft.workers)
            if other != place
        )

    def runs_elsewhere(self, draft: Draft, place: int, job: int) -> bool:
        """Whether a body of the job runs at another worker under a lease that is its own."""
        return any(
            worker.phase in BODIES and worker.job == job and not worker.lapsed and worker.token == draft.newest
            for other, worker in enumerate(draft.workers)
            if other != place
        )

    # -- asks ----------------------------------------------------------------------------------------------------------

    def ask_to_queue(self, job: int, attempt: str, newest: int) -> Ask:
        return Ask(
            job,
            attempt,
            "queued",
            reuse=self.config.reuse,
            # Who waits in the queue anyway is not answered with its twin, and so need not see to its message.
            copy_for=COPY_FOR if self.config.policy != "wait" and job not in self.config.joiners else 0.0,
            floor=self._floor(newest),
            replace_queued=self.config.policy == "replace",
            keep_for=self.behaviour.keep_for,
        )

    def ask_to_run(self, world: World, worker: Worker, attempt: str, name: int) -> Ask:
        at_once = self.behaviour.names_before_publishing
        return Ask(
            worker.job,
            attempt,
            "running",
            skip=self.may_be_skipped(worker.job),
            join=-1 if self.behaviour.looks_before_joining else worker.join,
            reuse=self.config.reuse,
            copy=name,
            copy_for=COPY_FOR,
            names=at_once or worker.phase == ASK_AGAIN,
            seen=world.shelf.token if at_once else worker.seen,
            floor=self._floor(world.newest),
            keep_for=self.behaviour.keep_for,
        )

    def _floor(self, newest: int) -> int:
        return newest if self.config.floor and not self.behaviour.names_no_floor else 0

    def hurries(self, faults: int) -> bool:
        return faults == 0 and not self.config.poison

    # -- the normal form -----------------------------------------------------------------------------------------------

    def normal(self, draft: Draft) -> World:
        if self.hurries(draft.faults):
            self._hurry(draft)
        self._forget_stamps(draft)
        self._rank_tokens(draft)
        for job in self._marked_copies(draft):
            self._number_copies(draft, job)
            self._forget_twins(draft, job)
        if not self._told_apart:
            self._sort_workers(draft)
        return _new(
            World,
            (
                draft.shelf,
                draft.newest,
                draft.broker,
                draft.publishers,
                draft.workers,
                draft.ends,
                draft.revoked,
                draft.faults,
                draft.retries,
                draft.failures,
                draft.late,
                draft.operator,
                draft.starts,
            ),
        )

    def _hurry(self, draft: Draft) -> None:
        """With no fault to come nothing comes between a decision and the messages that follow from it.

        A message that was taken and not yet looked at is as good as one with the broker.
        """
        for place, worker in enumerate(draft.workers):
            phase = worker.phase
            if phase in AT_ONCE or (phase == CLAIM and not worker.asked and self.alike):
                if phase in (PUT_BACK, CLAIM) or (phase == REJECT and worker.owns):
                    self.publish(draft, worker.job, Message(worker.name, join=join_of(worker)))
                self.to_idle(draft, place)
            elif phase == PUT_BACK_COPY:
                name = worker.name or unused_name(draft, worker.job)
                self.publish(draft, worker.job, Message(name, join=worker.join))
                draft.set_worker(place, worker._replace(phase=ASK_AGAIN, owns=False, name=name))
            elif worker.owns and phase != KILLED:
                draft.set_worker(place, worker._replace(owns=False))

    def _forget_stamps(self, draft: Draft) -> None:
        """One of a claim that is over is as good as none: its token does not come again."""
        token = draft.shelf.token if draft.shelf.state == "running" else 0
        if any(worker.seen not in (0, token) for worker in draft.workers) or (
            draft.late is not None and draft.late.ask.seen not in (0, token)
        ):
            self._void_stamps(draft)

    def _rank_tokens(self, draft: Draft) -> None:
        workers, publishers = draft.workers, draft.publishers
        tokens = {0, draft.newest, draft.shelf.token, draft.operator}
        for worker in workers:
            tokens.add(worker.token)
            tokens.add(worker.seen)
        tokens.update([publisher.token for publisher in publishers])
        if draft.late is not None:
            tokens.add(draft.late.token)
            tokens.add(draft.late.ask.seen)
        if len(tokens) == draft.newest + 1:
            return
        rank = {token: place for place, token in enumerate(sorted(tokens))}
        draft.newest = rank[draft.newest]
        draft.operator = rank[draft.operator]
        draft.workers = tuple([worker._replace(token=rank[worker.token], seen=rank[worker.seen]) for worker in workers])
        draft.publishers = tuple([publisher._replace(token=rank[publisher.token]) for publisher in publishers])
        if draft.late is not None:
            ask = draft.late.ask
            draft.late = Late(ask._replace(seen=rank[ask.seen]), rank[draft.late.token])
        if draft.shelf.entry is not None:
            draft.shelf = self.store.retoken(draft.shelf, rank[draft.shelf.token])

    def _marked_copies(self, draft: Draft) -> set[int]:
        jobs = {worker.job for worker in draft.workers if worker.name or worker.tag or worker.join >= 0}
        if draft.shelf.copy:
            jobs.add(draft.shelf.owner)
        if draft.late is not None:
            jobs.add(draft.late.ask.job)
        for job, messages in enumerate(draft.broker):
            if messages.count(PLAIN) < len(messages):
                jobs.add(job)
        return jobs

    def _number_copies(self, draft: Draft, job: int) -> None:
        """Names and tags that nothing else has are as good as none, as are all names once the job has ended."""
        messages = draft.broker[job]
        hands = [worker for worker in draft.workers if worker.job == job]
        named = draft.shelf.copy if draft.shelf.owner == job else 0
        wire = draft.late.ask.copy if draft.late is not None and draft.late.ask.job == job else 0
        name = _numbers([named, wire, *[worker.name for worker in hands], *[message.name for message in messages]])
        tag = _numbers([*[worker.tag for worker in hands], *[message.tag for message in messages]])
        if draft.shelf.how(job) and self._remembers:
            name = dict.fromkeys(name, 0)
        if _changes_nothing(name) and _changes_nothing(tag):
            return
        if name[named] != named:
            draft.shelf = self.store.recopy(draft.shelf, name[named])
        if wire and draft.late is not None:
            draft.late = draft.late._replace(ask=draft.late.ask._replace(copy=name[wire]))
        draft.workers = tuple(
            worker._replace(name=name[worker.name], tag=tag[worker.tag]) if worker.job == job else worker
            for worker in draft.workers
        )
        draft.set_messages(job, tuple(sorted(Message(name[each.name], tag[each.tag], each.join) for each in messages)))

    def _forget_twins(self, draft: Draft, job: int) -> None:
        """Whom a copy joins does not matter any more once the job has ended."""
        if not (draft.shelf.how(job) and self._remembers):
            return
        draft.workers = tuple(
            worker._replace(join=-1, joins=-1) if worker.job == job else worker for worker in draft.workers
        )
        draft.set_messages(job, tuple(sorted(each._replace(join=-1) for each in draft.broker[job])))

    def _sort_workers(self, draft: Draft) -> None:
        """Workers are alike: worlds that differ only in which of them is which are one world."""
        workers = draft.workers
        if list(workers) == sorted(workers):
            return
        order = sorted(range(len(workers)), key=workers.__getitem__)
        draft.workers = tuple([workers[old] for old in order])
        names = tuple((self._workers[old], self._workers[new]) for new, old in enumerate(order))
        draft.shelf = self.store.rename(draft.shelf, names)
        if any(draft.revoked):
            draft.revoked = tuple(
                sum(1 << new for new, old in enumerate(order) if bits >> old & 1) for bits in draft.revoked
            )
        if draft.late is not None:
            ask = draft.late.ask
            draft.late = draft.late._replace(ask=ask._replace(attempt=dict(names).get(ask.attempt, ask.attempt)))


def join_of(worker: Worker) -> int:
    """The twin named in what it publishes of its job."""
    return worker.joins if worker.joins >= 0 else worker.join


def unused_name(world: World | Draft, job: int) -> int:
    wire = world.late.ask.copy if world.late is not None else 0
    in_hand = [worker.name for worker in world.workers if worker.job == job]
    return 1 + max([world.shelf.copy, wire, *in_hand, *[message.name for message in world.broker[job]]])


def unused_tag(world: World, job: int) -> int:
    in_hand = [worker.tag for worker in world.workers if worker.job == job]
    return 1 + max([0, *in_hand, *[message.tag for message in world.broker[job]]])


def idle_places(workers: Iterable[Worker]) -> list[int]:
    return [place for place, worker in enumerate(workers) if worker.phase == IDLE]


def same_entry(one: Shelf, other: Shelf) -> bool:
    return one is other or one.entry == other.entry


def _changes_nothing(numbers: dict[int, int]) -> bool:
    return all(old == new for old, new in numbers.items())


def _numbers(values: list[int]) -> dict[int, int]:
    numbers = {0: 0}
    for value in values:
        if value not in numbers:
            numbers[value] = max(numbers.values()) + 1 if values.count(value) > 1 else 0
    return numbers
