"""What a machine wants done, one thing at a time. Each names the event that answers it."""

from __future__ import annotations

from typing import Any, Literal

from taskguard.engine.envelope import Envelope
from taskguard.engine.under import Ended as Ended
from taskguard.engine.value import Value
from taskguard.protocol.store import Claim, Completed, Entry, Held, How

Known = Literal["coming", "put_off", "gone", "unknown"]
"""What the queue knows of a job that is queued: it will come; its time has not come; it will not come; nothing."""
Reason = Literal[
    "itself",  # another delivery of this very job runs, or a newer message of it is on its way
    "queued",  # another job is queued, and goes first
    "running",  # another job runs
    "other_store",  # its publisher asked another store than this process does
    "store_away",
    "store_refuses",  # a wrong password, a missing driver: somebody must put it right
    "lost",  # its lease was lost, or its token refused
    "replaced",  # its end was refused: another run has begun
    "newer",  # a call with newer arguments has its place
    "whole_time",  # it waited within its own time limit, and starts again with all of it
]
WHY: dict[Reason, str] = {
    "itself": "runs elsewhere, or a newer message of it is on its way",
    "queued": "gives way to a job that is queued",
    "running": "waits for a job that runs",
    "other_store": "was published by a process that uses another store",
    "store_away": "waits for the store, which does not answer",
    "store_refuses": "waits until the store, which refuses this worker, is put right",
    "lost": "lost its lease",
    "replaced": "was replaced by another run",
    "newer": "ends as a call with newer arguments does",
    "whole_time": "starts again with its whole time",
}
"""What a deferred job does, for the log."""
Verb = Literal["complete", "release", "requeue"]


class Effect(Value):
    pass


# -- of the store ------------------------------------------------------------------------------------------------------


class Ask(Effect):
    """Ask the store for a key. -> answered"""

    layer: int
    claim: Claim
    again: bool = False
    """It was asked before in this delivery: who listens has heard of it."""


class Look(Effect):
    """Read an entry. -> looked"""

    entry: str


class Settle(Effect):
    """Tell the store how a claim ended. -> settled, not_settled

    Of a claim that is held (*layer*) the lease ends. Any other is settled by its names alone: a receipt for a job that
    ends without a lease, a place in the queue that becomes free.
    """

    verb: Verb
    entry: str
    owner: str
    attempt: str
    layer: int = -1
    """Of a claim that is held."""
    at: int = -1
    """The layer that it belongs to, where none is held; a place in the queue belongs to the innermost."""
    how: How = "released"
    outcome: bytes | None = None
    error: BaseException | None = None
    """What the job failed with; whoever carries this out encodes it."""
    keep_for: float = 0.0
    seconds: float = 0.0
    copy_for: float = 0.0
    copy: str = ""
    keep_starts: bool = False
    anyway: bool = False
    spares_other_run: bool = False
    """Nothing is settled if another delivery of this very job runs."""
    answered: bool = False
    """Whoever waits for the job is known to have been notified."""
    matters: bool = False
    """It is the end of the body: what follows depends on whether the store accepts it."""


class EndQueued(Effect):
    """End a job that is queued and that its queue will not run. -> settled"""

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
    """Publish the holder's message: nobody is known to have done so lately. -> stood_in"""

    holder: Held
    envelope: Envelope


class Rename(Effect):
    """Ask the queue whether the end that was found is that of an earlier occurrence of this id. -> renamed"""

    done: Completed


class Republish(Effect):
    """Give this copy of the message to the broker again; the delivery goes on. -> republished"""

    envelope: Envelope
    within: float


class Wait(Effect):
    """Wait here for a moment, if the queue can. -> waited"""

    reason: Reason
    holder: Held | Entry | None = None
    within: float = float("inf")
    """Seconds after which there may be news."""


class RunBody(Effect):
    """Run the body under all leases. -> body_ended"""


# -- the end of a delivery ---------------------------------------------------------------------------------------------


class Last(Effect):
    """Nothing comes after it."""


class Return(Last):
    """The body returned, and its end is in the store."""

    value: Any
    ended_as: How | None = None
    """As of an error: a body that left its id to other work has returned, and the job has not succeeded."""
    is_known: bool = True
    """False if the store did not take the end, and the queue would rather go on without."""


class Raise(Last):
    """The job ends with this error; or the body's own word to its queue passes through."""

    error: BaseException
    ended_as: How | None = None
    """What the job's receipt says; None if it has none."""


class GoOn(Last):
    """The job goes on by its next message: a retry, or a replacement by the same key."""

    envelope: Envelope
    ended: Ended


class Replay(Last):
    """The work had ended before: answer with that."""

    done: Completed


class Drop(Last):
    """There is nothing to answer: a leftover copy, a skipped job, or one that had ended without an outcome."""

    why: str
    holder: Held | None = None
    """In whose favour a scheduled job was skipped."""
    done: Completed | None = None
    """How it had ended before."""


class Defer(Last):
    """Publish the message again under the same id, later; then acknowledge this one."""

    envelope: Envelope
    reason: Reason
    holder: Held | Entry | None = None
    within: float = float("inf")


class RunUnguarded(Last):
    """The store does not answer, and the app would rather run the body than wait."""

    error: BaseException
