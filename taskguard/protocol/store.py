"""What a store is: a handful of verbs on entries, and the values it answers with.

Stores report, the guard decides. A store never waits, never retries and knows no policy: it is told what a claim
needs to know and answers what it found. What passes between them are plain values that nobody changes; frozen, they
would cost a claim more than its key does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

State: TypeAlias = Literal["free", "queued", "running", "done"]
How: TypeAlias = Literal["succeeded", "failed", "ignored", "rejected", "revoked", "expired", "skipped", "released"]
Reuse: TypeAlias = Literal["nothing", "success", "anything"]

TOKEN_LIMIT = 2**53
"""A token is a count of microseconds and must stay exact in a Lua double."""
MICROS = 1_000_000


@dataclass(slots=True)
class Claimant:
    """Who asks: one attempt of one owner at one key.

    The attempt is the random id of one claim. A process that settles for another one that died knows its attempt,
    never its token, so every verb can be called with this much.
    """

    key: str
    owner: str
    attempt: str


@dataclass(slots=True, kw_only=True)
class Claim(Claimant):
    """A request for a key, with all that the store must know to answer in one step."""

    state: Literal["queued", "running"] = "running"
    lease: float
    """Seconds of silence after which the claim is over."""
    keep_for: float
    """Seconds that the entry, with its token and its count of starts, outlives the claim."""
    floor: int = 0
    """The highest token seen elsewhere; the one granted is greater."""
    reuse: Reuse = "nothing"
    """Which finished work of *another* owner answers this claim. (An owner's own end always does.)"""
    skip: bool = False
    """If another owner is running: leave a receipt that this job was skipped in its favour, in the same step."""
    join: str = ""
    """The twin this job waits for: if it ended with an outcome, that is the answer, and the end of this job too."""
    replace_queued: bool = False
    """Take the place of another owner that is queued and not yet running."""
    payload: str = ""
    """A digest of all arguments, so that one key used for two different calls is noticed."""
    copy: str = ""
    """The name of the message in hand, if it can be put back: one copy of a running job's message goes on.

    A worker asks twice: first whether this copy is to go on; and when it is with the broker again, under the same
    attempt and with the `stamp` it was told, to name it in the entry. A copy that was named first and never published,
    because its worker died, would have the others dropped in its favour.
    """
    copy_for: float = 0.0
    """How long a published copy is trusted to be on its way before somebody publishes another.

    0: this claim names no copy, and publishes for no other owner that is queued.
    """
    stamp: str = ""
    """The `Held.stamp` that told this copy to go on; given back once the copy is published, and names it."""
    label: str = ""
    """The key as people read it. Nothing is decided by it; without one the entry keeps the one it has."""
    where: str = ""
    """The worker, or the host and the process, that asks: for people."""
    meanwhile: Callable[[], None] | None = field(default=None, compare=False, repr=False)
    """What the caller would do next, and can do while the answer is on its way. No part of the question.

    A store whose answer takes a while may call it, in the same thread, once the question has left; it need not. It is
    ready to be called again, if the same claim is asked again, and raises nothing.
    """


@dataclass(slots=True, kw_only=True)
class Lease(Claimant):
    """The claim was granted."""

    token: int
    state: Literal["queued", "running"] = "running"
    starts: int = 0
    """How often this owner has been started since its last retry, this start included."""
    took_over: bool = False
    """The key was running under a lease that had run out: its holder is dead, stopped or cut off."""


@dataclass(slots=True, kw_only=True)
class Held(Claimant):
    """The key is held: by whom, under which token, in which state, since when and for how long still.

    `attempt` is told of a queued entry only, so that whoever publishes its message can mark it.
    """

    token: int
    state: State
    since: float
    remaining: float
    payload: str = ""
    publish: bool = False
    """The caller is the one to publish the holder's message (again): nobody is known to have done so lately.

    If the holder is the caller's own job, running elsewhere: the copy in hand goes on, as none is known to be on its
    way or it is the one that is; false means that another copy is, and this one can be dropped.
    """
    stamp: str = ""
    """With a copy that goes on: what the next claim gives back to name it.

    It changes when the key is granted or a copy is named, and then names nothing: the copy that was to be named may
    have been dropped in the meantime, for the other one.
    """


@dataclass(slots=True, kw_only=True)
class Completed:
    """The work has ended: by whom, how, and with what."""

    key: str
    owner: str
    how: How
    token: int
    at: float
    outcome: bytes | None = None
    """What the owner left, as it left it; None if only the fact was kept."""
    twin: str = ""
    """In whose favour a skipped job was skipped; of one that joined, whose end it was answered with."""
    answered: bool = False
    """Whoever waited for this job is known to have been told."""
    payload: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a store knows of a key. A claim whose `remaining` is not positive has run out: it counts as free."""

    key: str
    state: State
    owner: str
    attempt: str
    token: int
    since: float
    remaining: float
    starts: int = 0
    copies: int = 0
    """How many times the job's message is known to have been published; 0 if nobody is known to have done it."""
    payload: str = ""
    how: How | None = None
    outcome: bytes | None = None
    unended: tuple[tuple[str, str], ...] = ()
    """Owners that had begun and lost the key to others, the last few of them, each with the payload of its claim. One
    that claims the key again is none any more."""
    label: str = ""
    """The key as people read it, in 120 characters at most; empty if nobody has said it."""
    where: str = ""
    """Who claimed it last: the worker, or the host, and the process."""


@dataclass(slots=True, kw_only=True)
class Ending:
    """How a job ended, and how long that is remembered."""

    how: How = "released"
    keep_for: float
    outcome: bytes | None = None
    linger: float = 0.0
    """Other owners are kept out for so many seconds more."""
    answered: bool = False
    repeat_for: float = 0.0
    """How long the caller repeats a plain release whose reply is lost: it is remembered so long at least.

    A plain release is remembered for a minute at most otherwise, whatever `keep_for` says: nobody asks for it later,
    and a key that is held often would leave a receipt each time.
    """


Clock: TypeAlias = Literal["the server's", "the host's", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantees:
    """What a store can promise when its machines fail."""

    survives_restart: Literal["yes", "if configured", "no"]
    survives_failover: Literal["yes", "if configured", "no", "not applicable"]
    linearizable: bool
    clock: Clock
    """Whose clock ends a lease."""
    note: str = ""


class Store(Protocol):
    """Where entries live. Eight promises, held by `taskguard.testing.StoreContract`:

    1. Every verb is one atomic step on the store, and one round trip where the store can do that. None of them waits.
    2. A token is greater than every token ever granted for that key: through release, expiry, completion, forget, a
       store restart, and loss of the store's data. Where the store has no counter that survives that, the token is
       `max(last + 1, floor, server time in µs)` made inside the atomic step: it fits a Lua double, needs no counter
       key that lives for ever, and one hash tag per entry keeps it safe on Cluster; `last` is kept as long as the
       receipt of the job that had it (`keep_for`). Where the store's own counter restarts after a wipe (etcd
       revision, zxid, Consul index, SQL sequence), it is added to an incarnation, the time in µs written when the
       store was first used: still one 64-bit integer, still rising. Only data loss (or a retention that is over)
       *and* a clock that falls back together can break this; then the resource refuses, and its high-water mark,
       passed as `floor` with the next claim, heals it.
    3. `renew`, `requeue`, `mark`, `complete`, `release` act while *that lease's token* is the newest granted, and say
       whether they did; `requeue` ends the lease it was called with; `renew` acts on a running entry only, `mark` on a
       queued one only; on an absent entry every verb but `claim` is refused. A late holder can never touch its
       successor; a late holder that nobody replaced may still finish. Whoever settles a job for a dead process (a
       parent for its child) names the attempt that died, never the owner alone: the same owner may already be running
       again elsewhere. If no entry runs under that attempt, nothing is settled.
    4. A claim repeated with the same attempt id gets its own lease back; every verb repeated after a lost reply
       answers as the first time did. A reply lost on the wire is "unknown", never "held": the same claim is asked
       again, and a job is never locked out of its own work. The client's own blind retries are switched off.
    5. An owner that completed a key is answered `Completed` for the whole retention, even if another owner has had
       the key since: a redelivered message never runs twice. Every other end (failed for good, ignored, rejected,
       revoked, expired, skipped at a worker) leaves the same kind of receipt under the job's own id, with how it
       ended, whoever holds the key by then, and frees the key only if it is queued for that owner or running under
       that attempt. An end is never replaced by a plain release ("released" is no end), nor by an end reported without
       the lease; only what the holder of the newest lease reports of its own run replaces one. A skip's receipt is
       written in the same step as the `Held` answer and names the twin. A joiner's claim names its twin: unless the
       joiner itself is running, the store answers that twin's end, and writes the joiner's own receipt of it, in the
       same step. (Read first and claim after, two jobs can skip each other and both be gone. Without a receipt, another
       copy of the joiner's message, which may not know of the twin, would run.)
    6. A queued entry is adopted by its own owner when it starts, under a new token, and by nobody else. A *running*
       entry is not adopted even by the same owner: that is a second delivery of a job that is still running. An entry
       counts its starts.
    7. Durations in, never instants; the store's clock decides. The holder counts its own validity from before the
       request left, on a clock that runs through suspend. "Not allowed" is an answer; "could not ask" is
       `StoreUnavailableError`.
    8. Nothing grows without end: every entry has an end, and `scan` can list them all.

    Names are texts without NUL, and as long as `taskguard.protocol.names` allows: the guard lets no others through,
    and a store carries these through every verb. A namespace has up to 128 bytes, a key 1600, an owner 512.

    Verbs may be called from several threads at once, and `renew` from a thread of its own. A store that was opened
    before a fork works in the child.
    """

    guarantees: Guarantees

    def claim(self, claim: Claim, /) -> Lease | Held | Completed:
        """Ask for the key."""

    def renew(self, leases: Sequence[tuple[Lease, float]], /) -> list[bool]:
        """Keep each lease alive for its number of seconds from now; False for each that is not the newest any more.

        A late holder that nobody replaced is still the holder.
        """

    def requeue(
        self, claimant: Claimant, seconds: float, /, *, copy_for: float, keep_starts: bool = False, copy: str = ""
    ) -> bool:
        """The job is in the queue, its message with the broker, and waits there for *seconds* at most.

        Ends the lease that it was called with. From running that is a retry, or with *keep_starts* a job whose
        worker died. From queued it is the mark of a publisher, or of the duplicate that published in its place; who
        has published many uses `mark`.

        With *copy* the message that goes on has that name, and for *copy_for* the job starts by that one only: an older
        copy of it would not know of the retry's delay, and is told that the job is queued.
        """

    def mark(self, published: Sequence[tuple[Claimant, float]], /, *, copy_for: float) -> list[bool]:
        """The messages of these queued entries are with the broker; each waits for its number of seconds at most.

        The `requeue` of a queued entry, for many in one exchange. False for each that is not queued under that attempt
        (any more): a job that its worker has started meanwhile goes on. Each is a step of its own.
        """

    def complete(self, claimant: Claimant, ending: Ending, /) -> bool:
        """The work is done: the key is done, and the owner has its receipt. Repeated, it can add `answered`."""

    def release(self, claimant: Claimant, ending: Ending, /, *, anyway: bool = False) -> bool:
        """The key is free, and the owner has its receipt. An end that it had stays, if this is a plain release.

        *anyway*: the job ends here whoever holds the key (it was revoked, or expired). It gets its receipt, if it
        has none yet, and the key is freed also if it is queued for that owner. A receipt that says the same end can
        be added `answered` so.
        """

    def get(self, key: str, /) -> Entry | None:
        """What is known of the key; None if nothing is."""

    def scan(self, prefix: str = "", /) -> Iterator[Entry]:
        """Every entry whose key starts so, in no order; not one moment's picture."""

    def forget(self, key: str, /, token: int = 0) -> bool:
        """Free the key by hand and end its lease; with *token*, only if that is the newest still.

        Receipts stay: a job that ended is still not run again.
        """

    def close(self) -> None:
        """Give back what the store holds open. A closed store is not used again."""


def micros(seconds: float) -> int:
    return round(seconds * MICROS)


def token_of(claimant: Claimant) -> int:
    """The token the claimant knows of; 0 for one that settles for a dead process and knows the attempt alone."""
    return claimant.token if isinstance(claimant, (Lease, Held)) else 0
