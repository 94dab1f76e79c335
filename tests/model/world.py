"""What a state of the model is: the store, the broker, the publishers, the workers, and what really happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from taskguard.engine.publisher import Call
from taskguard.engine.worker import Delivery
from taskguard.protocol.store import Reuse
from tests.model.store import Ask, Stored

# Phases of a publisher, one for each job.
CALL = "calls"
PUBLISH = "publishes"
PUBLISH_BARE = "publishes without a claim"
MARK = "marks"
STAND_IN = "publishes for its twin"
STAND_IN_MARK = "marks for its twin"
WITHDRAW = "withdraws"
ACCEPTED = "accepted"
ANSWERED = "answered with its twin"
REFUSED = "refused"
GONE = "gone"

# Phases of a worker: what its machine wants done, or what is left to be done when that is over.
IDLE = "idle"
CLAIM = "claims"
BODY = "body"
SETTLE = "settles its claim"
RECEIPT = "leaves a receipt"
PUBLISH_RETRY = "publishes the retry"
PUT_BACK = "puts back"
PUT_BACK_COPY = "puts a copy back"
ASK_AGAIN = "asks again, with its copy back"
TAKE_PLACE = "takes the place of its twin"
ACK = "acks"
KILLED = "child killed"
REJECT = "gives the message back"
TERMINATED = "child terminated"

HOLDING = frozenset({BODY, SETTLE})
"""A child is there that holds the lease, or may not know yet that it gave it back."""
ASKING = frozenset({CLAIM, ASK_AGAIN, TAKE_PLACE})
MAY_BE_GRANTED = ASKING | {PUT_BACK_COPY}
"""It asks with its attempt still, and a packet that comes late may be granted the key under it."""
CHILD = HOLDING | MAY_BE_GRANTED | {PUBLISH_RETRY, PUT_BACK, RECEIPT}
PUBLISHING = frozenset({CALL, PUBLISH, PUBLISH_BARE, MARK, STAND_IN, STAND_IN_MARK, WITHDRAW})

# How a job really ended. A twin follows as one digit.
OK = "ok"
FAILED = "failed"
REVOKED = "revoked"
REVOKING = "revoking"
"""Revoked at one worker, while a body runs at another that may still finish it."""
FORGOTTEN = "forgotten"
"""It ended, and the store lost its memory of that."""
MISSED = "missed"
"""The broker lost a message of it, and no later call is there to publish it again."""
ANSWERED_WITH = "a"
SKIPPED_FOR = "s"
UNREMEMBERED_SKIP = "u"
JOINED_TO = "j"


class Message(NamedTuple):
    """One copy with the broker. Names and tags are 0 unless something else has the same one."""

    name: int = 0
    tag: int = 0
    join: int = -1
    """The twin that this copy waits for. The copies of one job need not agree: what was published first names none."""
    heir: int = -1
    """The queued twin whose place it takes if that one does not come."""
    floor: int = 0
    """The token that the resource had seen when it refused this job."""


PLAIN = Message()


class Publisher(NamedTuple):
    phase: str
    token: int = 0
    attempt: str = ""
    """The attempt of the entry that it publishes for, if that is not its own."""
    twin: int = -1
    """The one that it publishes for, or that its message joins."""
    asked: str = ""
    """What it was told by an answer that got lost on the way."""
    hand: int = 0
    """The state of its machine; 0 once that has said its last word."""


class Worker(NamedTuple):
    phase: str
    job: int = -1
    token: int = 0
    """The token really granted to its attempt, also where the answer was lost."""
    owns: bool = False
    """The broker waits for its acknowledgement, and delivers again if it dies."""
    lapsed: int = 0
    """1: its lease ran out under it; 2: the store forgot its claim."""
    message: Message = PLAIN
    """As it has it in hand, and as it is delivered again if it dies."""
    asked: str = ""
    seen: int = 0
    """The token of the entry that told its copy to go on; 0 once another copy was named."""
    given: int = 0
    """The name that it gave to the next message of its job, which others can see."""
    floor: int = 0
    """The token that its machine knows the resource to have seen."""
    hand: int = 0
    """The state of its machine; 0 once that has said its last word."""
    out: Message | tuple[()] = ()
    """What it is about to publish then."""


IDLER = Worker(IDLE)


class Late(NamedTuple):
    """A claim that was asked again, while its first packet is still on the wire."""

    ask: Ask
    token: int = 0
    """The token with which that attempt ended; 0 as long as it has not ended."""


class World(NamedTuple):
    stored: Stored
    newest: int
    """The newest token ever granted, whatever the store remembers."""
    broker: tuple[tuple[Message, ...], ...]
    publishers: tuple[Publisher, ...]
    workers: tuple[Worker, ...]
    ends: tuple[str, ...]
    revoked: tuple[int, ...]
    """For each job a bit for each worker that remembers its revocation."""
    faults: int
    retries: int
    failures: int
    late: Late | None
    operator: int
    """The token of the entry that somebody looked at, about to free it by hand."""
    starts: tuple[int, ...]


class Draft:
    """A world being changed."""

    __slots__ = World._fields

    def __init__(self, world: World) -> None:
        (
            self.stored,
            self.newest,
            self.broker,
            self.publishers,
            self.workers,
            self.ends,
            self.revoked,
            self.faults,
            self.retries,
            self.failures,
            self.late,
            self.operator,
            self.starts,
        ) = world

    def frozen(self) -> World:
        return World(*[getattr(self, field) for field in World._fields])

    def copy(self) -> Draft:
        return Draft(self.frozen())

    def set_worker(self, place: int, worker: Worker) -> None:
        self.workers = (*self.workers[:place], worker, *self.workers[place + 1 :])

    def set_publisher(self, job: int, publisher: Publisher) -> None:
        self.publishers = (*self.publishers[:job], publisher, *self.publishers[job + 1 :])

    def set_messages(self, job: int, messages: tuple[Message, ...]) -> None:
        self.broker = (*self.broker[:job], messages, *self.broker[job + 1 :])

    def set_end(self, job: int, end: str) -> None:
        """The first real end counts; being skipped is none as long as the job may still run."""
        if self.ends[job] in ("", REVOKING, MISSED) or self.ends[job][0] in (ANSWERED_WITH, UNREMEMBERED_SKIP):
            self.ends = (*self.ends[:job], end, *self.ends[job + 1 :])


Fault = Literal[
    "crash",  # a whole worker dies; the broker delivers its message again
    "pause",  # a lease runs out under a live holder
    "lost",  # the reply to a verb is lost, and the verb asked again
    "redeliver",  # the broker delivers an unacknowledged message again
    "kill",  # a child is killed, its parent settles
    "publisher",  # a publisher dies
    "published",  # the broker accepts a message and the publisher does not hear of it
    "refuse",  # the broker refuses, or accepts and reports that it refused
    "lose",  # the broker loses a message of a queued job
    "backlog",  # a queued entry runs out while its message still waits
    "revoke",
    "wipe",  # the store loses all it knows
    "late",  # a claim is asked again while its first packet is still on the wire
    "forget",  # somebody frees the key by hand
    "give up",  # a worker frees the key without an end, as its body cannot run now, and puts its message back
]


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is there, and what may go wrong: any *budget* faults of those named, anywhere."""

    faults: frozenset[Fault]
    budget: int
    jobs: int = 2
    workers: int = 2
    retries: int = 0
    failures: int = 0
    policy: Literal["skip", "wait"] = "skip"
    payloads_differ: bool = False
    """No call is like another: nobody can publish for another job, but takes its place if that does not come."""
    reuse: Reuse = "nothing"
    joiners: frozenset[int] = frozenset()
    """Jobs with somebody waiting for them: they join whoever holds the key, and are never skipped."""
    bare: frozenset[int] = frozenset()
    """Jobs whose publisher could not claim."""
    called_again: bool = False
    """A caller that saw no success calls again with the same id."""
    duplicates: bool = False
    """Later calls of the same key keep coming. (Without them nobody misses a lost message: that is no violation.)"""
    queue_ends: bool = True
    """A queued entry whose message is gone runs out in the end. (False: nobody waits that long.)"""
    copy_ages: bool = False
    """`republish_after` passes."""
    frees_forgotten: bool = False
    """The store drops freed entries."""
    requeues_lost: bool = True
    """`reject_on_worker_lost`."""
    poison: frozenset[int] = frozenset()
    """Jobs that kill their worker every time."""
    max_starts: int = 0
    linger: bool = False
    """`hold_at_least`."""
    ahead: bool = True
    """The clock is ahead of all tokens. (False: it stands still.)"""
    floor: bool = False
    """A resource refuses what is older than it has seen, and claims name that: the clock falls back with the data."""
    shared_tags: bool = False
    """A redelivered message keeps its delivery tag: an acknowledgement of one copy is one of the other too."""
    endless: frozenset[int] = frozenset()
    """Jobs whose body does not come to an end: what is asked is only that superfluous copies of them die out."""
    copies: int = 9
    """More copies than that of one message are a violation."""


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """The machines, and what queues and parents do around them; each flag drops one rule."""

    delivery: type[Delivery] = Delivery
    call: type[Call] = Call
    settles_by_owner: bool = False
    attempt_in_message: bool = False
    never_marks: bool = False
    revoked_frees_by_owner: bool = False
    revoked_leaves_no_receipt: bool = False
    acks_before_put_back: bool = False
    acks_before_retry: bool = False
    settles_as_retry: bool = False
    new_attempt_when_asked_again: bool = False
