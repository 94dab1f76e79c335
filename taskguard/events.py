"""Events: one frozen value per decision, reported to listeners that can never break a job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal, TypeAlias

from taskguard.errors import ConfigurationError, LeaseLostError
from taskguard.runtime.interrupt import came_by_signal

Kind: TypeAlias = Literal[
    "claimed",  # the key was free, and this owner holds it now
    "took_over",  # ... after the previous holder's lease had expired
    "duplicate",  # another owner holds the key (or this same job, running elsewhere)
    "reused",  # the work is done already, and its outcome is replayed
    "completed",
    "failed",  # the work failed, and the key is free (or done, with on_done="reuse")
    "released",
    "requeued",
    "refused",  # the store did not accept the end of the work: another owner holds the key
    "fence_refused",  # a resource has seen a higher token and refused a write of the body
    "lost",  # the store says that this lease is not the newest
    "unsure",  # the lease expired and the store does not answer
    "renewal_failed",  # the store did not answer a renewal; the heartbeat retries
    "store_unavailable",
    "store_failed",  # the store answered, and the answer cannot be used
    "store_evicts",  # the store evicts entries when its memory is short; reported once per process
    "wait_timeout",
    "too_many_starts",
    "not_kept",  # the work is done, but its result could not be stored
    "scheduled",  # a slot was published
    "slot_late",  # ... more than a second after its time
    "slot_caught_up",  # ... although no beat was running at its time
    "slot_buffered",  # ... once the run that it would have overlapped had ended
    "slot_skipped",  # an earlier run is still going, so the slot does not run
    "slot_missed",  # no beat was running, and the slot is not caught up
    "slot_cancelled",  # the earlier run was cancelled for this slot
    "slot_republished",  # the slot's message seems to be lost, and was published again
    "slots_blocked",  # one run has kept several slots in a row from running
]

_QUIET = frozenset({"claimed", "completed", "released", "requeued", "scheduled"})
_LEVEL = dict.fromkeys(
    ("duplicate", "reused", "took_over", "slot_late", "slot_caught_up", "slot_buffered", "slot_skipped"), logging.INFO
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One decision about one key."""

    kind: Kind
    key: str
    owner: str
    token: int = 0
    holder: str = ""
    """The other owner: the one that holds the key, or whose outcome is replayed."""
    state: str = ""
    since: float = 0.0
    detail: str = ""
    lasts: float = 0.0
    """For a claim: seconds until it expires unless it is renewed, including a job's delay in the queue."""
    differs: tuple[str, ...] = ()
    """Names of the arguments in which this call differs from the holder's, although both have the same key."""
    arguments: str = ""
    """The call's argument values, if the app asked to record them; never logged."""

    def __str__(self) -> str:
        parts = [f"{self.kind.replace('_', ' ')}: {self.key}", f"owner {self.owner}"]
        if self.holder:
            parts.append(f"holder {self.holder} ({self.state or 'held'})")
        if self.since:
            parts.append(f"since {datetime.fromtimestamp(self.since, timezone.utc):%Y-%m-%d %H:%M:%S} UTC")
        if self.token:
            parts.append(f"token {self.token}")
        if self.differs:
            parts.append(f"differs in {', '.join(self.differs)}")
        if self.detail:
            parts.append(self.detail)
        return ", ".join(parts)


Listener: TypeAlias = Callable[[Event], None]

_logger = logging.getLogger("taskguard")


def log(event: Event) -> None:
    """The default listener: logs normal decisions at DEBUG or INFO, and problems as warnings."""
    level = logging.DEBUG if event.kind in _QUIET else _LEVEL.get(event.kind, logging.WARNING)
    if _logger.isEnabledFor(level):
        _logger.log(level, "%s", event)


class Listeners:
    """The functions that receive events. If one of them fails, that is logged and the job continues."""

    def __init__(self, listeners: Iterable[Listener] = (log,)) -> None:
        if callable(listeners):
            raise ConfigurationError("listeners= takes a list of functions; write listeners=[function]")
        self._listeners = list(listeners)

    def add(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def notify(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception as error:
                # A job timeout that arrives here, or the loss of an enclosing lease, is not the listener's failure.
                if isinstance(error, LeaseLostError) or came_by_signal(error):
                    raise
                _logger.exception("listener %r failed on: %s", listener, event)
