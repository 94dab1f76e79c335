"""What a machine wants done, one effect at a time. Each names the event that answers it."""

from __future__ import annotations

from typing import Any, Literal

from taskguard.engine.envelope import Envelope
from taskguard.engine.under import Ended as Ended
from taskguard.engine.value import Value
from taskguard.protocol.store import Claim, Completed, Entry, Held, How

Known = Literal["coming", "put_off", "gone", "unknown"]
"""What the queue knows of a queued job: it will run; it is not due yet; it will not run; nothing."""
Reason = Literal[
    "itself",  # another delivery of the same job runs, or a newer message of it is coming
    "queued",  # another job is queued, and goes first
    "running",  # another job runs
    "other_store",  # its publisher uses another store than this process
    "store_away",
    "store_refuses",  # a wrong password, a missing driver: somebody must put it right
    "lost",  # its lease was lost, or its token refused
    "replaced",  # the store refused its end: another run has started
    "newer",  # a call with newer arguments has its place
    "whole_time",  # it waited within its own time limit, and starts again with all of it
]
WHY: dict[Reason, str] = {
    "itself": "runs elsewhere, or has a newer message",
    "queued": "waits for a queued job",
    "running": "waits for a running job",
    "other_store": "was published by a process that uses another store",
    "store_away": "waits for the store, which does not answer",
    "store_refuses": "waits for the store, which refuses this worker",
    "lost": "lost its lease",
    "replaced": "was superseded by another run",
    "newer": "ends with the outcome of a call with newer arguments",
    "whole_time": "starts again with its full time limit",
}
"""Why a job is deferred, for the log."""
Verb = Literal["complete", "release", "requeue"]


class Effect(Value):
    pass


# -- of the store ------------------------------------------------------------------------------------------------------


class Ask(Effect):
    """Ask the store for a key. -> answered"""

    layer: int
    claim: Claim
    again: bool = False
    """This delivery asked before: listeners were notified then."""


class Look(Effect):
    """Read an entry. -> looked"""

    entry: str


class Settle(Effect):
    """Record in the store how a claim ended. -> settled, not_settled

    For a held claim (*layer*) this ends the lease. Any other claim is settled by entry, owner and attempt: a receipt
    for a job that ends without a lease, or a queue entry to release.
    """

    verb: Verb
    entry: str
    owner: str
    attempt: str
    layer: int = -1
    """The layer of a held claim; -1 if none is held."""
    at: int = -1
    """The layer that it belongs to if none is held; a queue entry belongs to the innermost."""
    how: How = "released"
    outcome: bytes | None = None
    error: BaseException | None = None
    """The job's error; the driver encodes it."""
    keep_for: float = 0.0
    seconds: float = 0.0
    copy_for: float = 0.0
    copy: str = ""
    keep_starts: bool = False
    anyway: bool = False
    spares_other_run: bool = False
    """Do nothing if another delivery of the same job runs."""
    answered: bool = False
    """The job's callbacks are known to be sent."""
    matters: bool = False
    """It is the end of the body: what follows depends on whether the store accepts it."""


class EndQueued(Effect):
    """End a queued job that its queue will not run. -> settled"""

    entry: str
    owner: str
    how: How
    keep_for: float = 0.0


class RaiseTokens(Effect):
    """Make the key's next token higher than the one that a resource has seen. -> settled"""

    entry: str
    floor: int


# -- of the queue ------------------------------------------------------------------------------------------------------


class LookAfter(Effect):
    """Ask the queue about a job that holds the key. -> holder_is"""

    holder: Held | Entry


class StandIn(Effect):
    """Publish the holder's message, which has no recent confirmation. -> stood_in"""

    holder: Held
    envelope: Envelope


class Rename(Effect):
    """Ask the queue whether the end found is that of an earlier occurrence of this id. -> renamed"""

    done: Completed


class Republish(Effect):
    """Republish this copy of the message; the delivery continues. -> republished"""

    envelope: Envelope
    within: float


class Wait(Effect):
    """Wait here for a moment, if the queue can. -> waited"""

    reason: Reason
    holder: Held | Entry | None = None
    within: float = float("inf")
    """Seconds after which the answer may change."""


class RunBody(Effect):
    """Run the body under all leases. -> body_ended"""


# -- the end of a delivery ---------------------------------------------------------------------------------------------


class Last(Effect):
    """Nothing comes after it."""


class Return(Last):
    """The body returned, and the store has its end."""

    value: Any
    ended_as: How | None = None
    """What the job's receipt says; None if the body left its id to other work, so that the job has not ended."""
    is_known: bool = True
    """False if the store did not accept the end, and the app continues without it."""


class Raise(Last):
    """The job ends with this error; or the body's own signal to its queue passes through."""

    error: BaseException
    ended_as: How | None = None
    """What the job's receipt says; None if it has none."""


class GoOn(Last):
    """The job continues with its next message: a retry, or a replacement with the same key."""

    envelope: Envelope
    ended: Ended


class Replay(Last):
    """The work had ended before: end the same way."""

    done: Completed


class Drop(Last):
    """There is nothing to replay: a leftover copy, a skipped job, or one that had ended without an outcome."""

    why: str
    holder: Held | None = None
    """The holder for which a scheduled job was skipped."""
    done: Completed | None = None
    """How it had ended before."""


class Defer(Last):
    """Publish the message again under the same id, later; then acknowledge this one."""

    envelope: Envelope
    reason: Reason
    holder: Held | Entry | None = None
    within: float = float("inf")


class RunUnguarded(Last):
    """The store is unavailable, and the app chose to run the body unguarded."""

    error: BaseException
