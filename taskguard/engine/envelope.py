"""What travels with a message, from one delivery of a job to the next. Each queue writes it in its own way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Envelope(NamedTuple):
    """The guard's part of a message. Empty fields do not travel, and a reader ignores those it does not know."""

    id: str = ""
    """Whose envelope this is: people pass a message's headers on to other calls, and those are not this job."""
    made: str = ""
    """When the job was made that it belongs to, where an id can be given to another job."""
    run: str = ""
    """Tells apart the calls that were given one id by their callers."""
    key: str = ""
    """The key, fixed when the call was made."""
    label: str = ""
    """The key as people read it."""
    queue_entry: str = ""
    """The entry that holds the job's place in the queue, where that is not the one its `hold` says."""
    payload: str = ""
    """A digest of all arguments, where two calls of one key may differ."""
    idempotency_key: str = ""
    """The caller's own, if it gave one."""
    queue_class: str = ""
    """Where a function is guarded by its name alone: the class of its caller's queue, whose patterns say so."""
    store: str = ""
    """The name of the store that the publisher asked …"""
    at: float = 0.0
    """… and when, by the publisher's clock."""
    join: str = ""
    """The holder whose outcome this job ends with."""
    copy: str = ""
    """The name of this copy of the message, once it has one."""
    heir: str = ""
    """The queued holder whose place this job takes if that one does not come."""
    rounds: int = 0
    """How often the message was deferred in a row."""
    since: float = 0.0
    """When it first had to wait for another job."""
    slot: Mapping[str, Any] | None = None
    """Of a scheduled job: the slot it is for (`taskguard.schedule.Note`)."""
    floor: int = 0
    """The highest token that a resource refused it with: the next one is higher."""
    after_outage: bool = False
    """It was deferred because the store did not answer: a holder may not have been able to renew."""
    call: str = ""
    """Which call of the id this is, where it may not be the first: each call's callbacks hear of the end once."""
    unanswered: bool = False
    """It was deferred because its job had ended, and whoever waits for it may just have been notified."""

    def as_new(self) -> Envelope:
        """For the job's next start: it was not deferred, waits for nobody and is not a copy."""
        return self._replace(join="", copy="", heir="", rounds=0, since=0.0, after_outage=False, unanswered=False)


WIRE_NAMES = {"queue_entry": "place"}
"""What a field is called in a message, where that is not its name here: messages outlive a release."""
