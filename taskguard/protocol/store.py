"""What a store is: a handful of verbs on entries, and the values it returns.

Stores report, the guard decides. A store never waits, never retries and knows no policy: a claim carries all that the
store needs, and the store returns what it found. These are plain values that nobody changes. They are not frozen,
because freezing them would cost a claim more than making its key does.
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

    The attempt is the random id of one claim. A process that settles for a dead one knows the attempt and never the
    token, so these three fields are enough to call every verb.
    """

    key: str
    owner: str
    attempt: str


@dataclass(slots=True, kw_only=True)
class Claim(Claimant):
    """A request for a key, with all that the store needs to answer in one step."""

    state: Literal["queued", "running"] = "running"
    lease: float
    """Seconds without renewal after which the claim expires."""
    keep_for: float
    """Seconds that the entry, with its token and its count of starts, outlives the claim."""
    floor: int = 0
    """The highest token seen elsewhere; the granted token is greater."""
    reuse: Reuse = "nothing"
    """Which finished work of *another* owner answers this claim. (An owner's own end always does.)"""
    skip: bool = False
    """If another owner is running, write a receipt in the same step that this job was skipped in its favour."""
    join: str = ""
    """The holder this job waits for. If that one ended with an outcome, its outcome answers and ends this job too."""
    replace_queued: bool = False
    """Replace another owner that is queued and not yet running."""
    payload: str = ""
    """A digest of all arguments, by which one key used for two different calls is detected."""
    copy: str = ""
    """The name of the message in hand, if it can be deferred: one copy of a running job's message stays alive.

    A worker asks twice. First it asks whether this copy should be deferred. After the broker has the copy again, it
    asks under the same attempt, with the `stamp` of the first answer, and the store names the copy in the entry. If the
    copy were named before it is published and its worker died in between, the other copies would be dropped for it.
    """
    copy_for: float = 0.0
    """How long a published copy counts as on its way, before a duplicate publishes another.

    0: this claim names no copy, and does not publish for another queued owner.
    """
    stamp: str = ""
    """The `Held.stamp` of the answer that deferred this copy. The claim after the publication passes it, to name it."""
    label: str = ""
    """The readable form of the key. Nothing depends on it; if it is empty, the entry keeps the label it has."""
    where: str = ""
    """The worker, or the host and process, that asks. For people."""
    meanwhile: Callable[[], None] | None = field(default=None, compare=False, repr=False)
    """Work that the caller can do while the answer is on its way. Not part of the request.

    A store may call it, in the same thread, once the request has left; it need not. If the same claim is repeated, it
    may be called again. It raises nothing.
    """


@dataclass(slots=True, kw_only=True)
class Lease(Claimant):
    """The claim was granted."""

    token: int
    state: Literal["queued", "running"] = "running"
    starts: int = 0
    """How often this owner has started since its last retry, including this start."""
    took_over: bool = False
    """The key was running under an expired lease: its holder is dead, stopped or cut off."""


@dataclass(slots=True, kw_only=True)
class Held(Claimant):
    """The key is held: by whom, under which token, in which state, since when and for how much longer.

    `attempt` is filled in for a queued entry only, so that whoever publishes its message can confirm that.
    """

    token: int
    state: State
    since: float
    remaining: float
    payload: str = ""
    publish: bool = False
    """The caller must publish the holder's message (again): no recent publication is known.

    If the holder is the caller's own job, running elsewhere: true means that the caller defers the copy in hand, since
    no other copy is known to be on its way. False means that another copy is, and this one can be dropped.
    """
    stamp: str = ""
    """With a copy that is deferred: the next claim passes this stamp to name the copy.

    The stamp changes when the key is granted or a copy is named. An old stamp names nothing: that copy may already
    have been dropped in favour of the other one.
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
    """The outcome as the owner stored it; None if only completion is recorded."""
    twin: str = ""
    """For a skipped job, the holder it was skipped for; for a job that joined a holder, that holder."""
    answered: bool = False
    """Callbacks and waiting callers of this job are known to have their answer."""
    payload: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a store knows of a key. A claim whose `remaining` is not positive has expired: the key counts as free."""

    key: str
    state: State
    owner: str
    attempt: str
    token: int
    since: float
    remaining: float
    starts: int = 0
    copies: int = 0
    """How many publications of the job's message are known."""
    payload: str = ""
    how: How | None = None
    outcome: bytes | None = None
    unended: tuple[tuple[str, str], ...] = ()
    """The last few owners that started and lost the key to others, each with the payload of its claim. An owner that
    claims the key again leaves the list."""
    label: str = ""
    """The readable form of the key, at most 120 characters; empty if no claim gave one."""
    where: str = ""
    """Who claimed the key last: the worker or the host, and the process."""


@dataclass(slots=True, kw_only=True)
class Ending:
    """How a job ended, and how long the record is kept."""

    how: How = "released"
    keep_for: float
    outcome: bytes | None = None
    linger: float = 0.0
    """Seconds for which other owners are still kept out."""
    answered: bool = False
    repeat_for: float = 0.0
    """How long the caller repeats a plain release whose reply is lost. Its receipt is kept at least that long.

    Otherwise the receipt of a plain release is kept for at most a minute, whatever `keep_for` says: nobody asks for it
    later, and a key that is held often would leave a receipt each time.
    """


Clock: TypeAlias = Literal["the server's", "the host's", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantees:
    """What a store guarantees when its machines fail."""

    survives_restart: Literal["yes", "if configured", "no"]
    survives_failover: Literal["yes", "if configured", "no", "not applicable"]
    linearizable: bool
    clock: Clock
    """Whose clock expires a lease."""
    note: str = ""


class Store(Protocol):
    """Where entries live. Eight promises, held by `taskguard.testing.StoreContract`:

    1. Every verb is one atomic step on the store, and one round trip where the store can do that. None of them waits.
    2. A token is greater than every token ever granted for that key: through release, expiry, completion, forget, a
       store restart, and loss of the store's data. Where the store has no counter that survives that, the token is
       `max(last + 1, floor, server time in µs)` made inside the atomic step: it fits a Lua double, needs no permanent
       counter key, and one hash tag per entry keeps it safe on Cluster; `last` is kept as long as the receipt of the
       job that had it (`keep_for`). Where the store's own counter restarts after a wipe (etcd revision, zxid, Consul
       index, SQL sequence), it is added to an incarnation, the time in µs written when the store was first used: still
       one 64-bit integer, still rising. Only data loss (or an expired retention) *together with* a clock that goes
       back can break this; then the resource refuses, and the next claim passes the resource's high-water mark as
       `floor`.
    3. `renew`, `requeue`, `mark`, `complete`, `release` act only while *that lease's token* is the newest granted, and
       return whether they did. `requeue` ends the lease it was called with; `renew` acts on a running entry only,
       `mark` on a queued one only; if there is no entry, the store refuses every verb but `claim`. A late holder can
       never touch its successor; a late holder that nobody replaced may still finish. Whoever settles a job for a dead
       process (a parent for its child) names the attempt that died, never the owner alone: the same owner may already
       be running again elsewhere. If no entry runs under that attempt, nothing is settled.
    4. A claim repeated with the same attempt id gets its own lease back; every verb repeated after a lost reply
       returns what it returned the first time. A reply lost on the wire is "unknown", never "held": the guard repeats
       the same claim, and a job is never locked out of its own work. The client's own blind retries are switched off.
    5. An owner that completed a key gets `Completed` for the whole retention, even if another owner has held the key
       since: a redelivered message never runs twice. Every other end (failed for good, ignored, rejected, revoked,
       expired, skipped at a worker) leaves the same kind of receipt under the job's own id, with how it ended, whoever
       holds the key by then, and frees the key only if it is queued for that owner or running under that attempt.
       A plain release never replaces an end ("released" is not an end), nor does an end reported without the lease;
       only the holder of the newest lease replaces an end, by reporting how its own run ended. The store writes a
       skip's receipt in the same step as the `Held` answer, and the receipt names the holder. A joiner's claim names
       its holder: unless the joiner itself is running, the store returns that holder's end, and writes the joiner's own
       receipt of it, in the same step. (If they read first and claimed later, two jobs could skip each other and
       neither would run. Without a receipt, another copy of the joiner's message, which may not name the holder, would
       run.)
    6. When a queued owner starts, it adopts its own entry under a new token; nobody else does. Nobody adopts a
       *running* entry, not even the same owner: that is a second delivery of a job that is still running. An entry
       counts its starts.
    7. Verbs take durations, never instants; the store's clock decides. The holder counts its own validity from before
       the request left, on a clock that runs through suspend. "Not allowed" is an answer; "could not ask" is
       `StoreUnavailableError`.
    8. Nothing grows without bound: every entry expires, and `scan` can list them all.

    Names are strings without NUL, within the limits of `taskguard.protocol.names`: the guard refuses all others, and a
    store accepts these in every verb. A namespace has up to 128 bytes, a key 1600, an owner 512.

    Several threads may call verbs at once, and `renew` comes from a thread of its own. A store that was opened before
    a fork works in the child.
    """

    guarantees: Guarantees

    def claim(self, claim: Claim, /) -> Lease | Held | Completed:
        """Claim the key."""

    def renew(self, leases: Sequence[tuple[Lease, float]], /) -> list[bool]:
        """Renew each lease for its number of seconds from now; False for each that is no longer the newest.

        A late holder that nobody replaced is still the holder.
        """

    def requeue(
        self, claimant: Claimant, seconds: float, /, *, copy_for: float, keep_starts: bool = False, copy: str = ""
    ) -> bool:
        """Record that the job is queued: the broker has its message, and it waits there for *seconds* at most.

        Ends the lease that it was called with. On a running entry this is a retry, or with *keep_starts* a job whose
        worker died. On a queued entry it is the confirmation of a publisher, or of the duplicate that published in its
        place; to confirm many, use `mark`.

        With *copy*, that is the name of the republished message, and for *copy_for* seconds the job starts from that
        message only. An older copy does not carry the retry's delay; its claim gets `Held`, queued.
        """

    def mark(self, published: Sequence[tuple[Claimant, float]], /, *, copy_for: float) -> list[bool]:
        """Confirm that the broker has the messages of these queued entries; each waits for its seconds at most.

        The `requeue` of a queued entry, for many in one exchange. False for each that is not queued under that attempt
        (any more): if a worker has started the job in the meantime, the run is not affected. Each is its own step.
        """

    def complete(self, claimant: Claimant, ending: Ending, /) -> bool:
        """Record that the work is done, and write the owner's receipt. A repeated call can add `answered`."""

    def release(self, claimant: Claimant, ending: Ending, /, *, anyway: bool = False) -> bool:
        """Free the key, and write the owner's receipt. A plain release keeps an end that the owner already has.

        *anyway*: the job ends here whoever holds the key (it was revoked, or expired). The store writes its receipt, if
        it has none yet, and frees the key also if it is queued for that owner. If the receipt already has the same end,
        this can add `answered` to it.
        """

    def get(self, key: str, /) -> Entry | None:
        """The entry of the key; None if there is none."""

    def scan(self, prefix: str = "", /) -> Iterator[Entry]:
        """Every entry whose key starts with *prefix*, in no order; not a snapshot."""

    def forget(self, key: str, /, token: int = 0) -> bool:
        """Free the key by hand and end its lease; with *token*, only if that token is still the newest.

        Receipts stay: a job that ended still does not run again.
        """

    def close(self) -> None:
        """Close what the store holds open. A closed store must not be used again."""


def micros(seconds: float) -> int:
    return round(seconds * MICROS)


def token_of(claimant: Claimant) -> int:
    """The claimant's token; 0 for one that settles for a dead process and knows only its attempt."""
    return claimant.token if isinstance(claimant, (Lease, Held)) else 0
