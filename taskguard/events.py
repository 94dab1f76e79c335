"""What happened, told to whoever listens: one frozen event per outcome, and listeners that can never break a job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal, TypeAlias

from taskguard.errors import ConfigurationError, LeaseLostError
from taskguard.runtime.interrupt import came_by_signal

Kind: TypeAlias = Literal[
    "claimed",  # the key was free and is this owner's now
    "took_over",  # ... it was running under a lease that had run out
    "duplicate",  # the key is held by another owner (or by this very job, running elsewhere)
    "reused",  # the work had ended before, and that is the answer
    "completed",
    "failed",  # the work failed, and the key is free (or done, with on_done="reuse")
    "released",
    "requeued",
    "refused",  # the end of the work was not accepted: somebody else holds the key
    "fence_refused",  # a resource has seen a higher token and refused a write of the body
    "lost",  # the store says that this lease is not the newest
    "unsure",  # the lease ran out and the store is silent
    "renewal_failed",  # the store could not be asked; it is asked again
    "store_unavailable",
    "store_failed",  # it answered, and the answer cannot be used
    "store_evicts",  # it removes entries when its memory is short; told once per process
    "wait_timeout",
    "too_many_starts",
    "not_kept",  # the work is done, its result could not be kept
    "scheduled",  # a slot was published
    "slot_late",  # ... more than a second after its time
    "slot_caught_up",  # ... though nobody had been there at its time
    "slot_buffered",  # ... once the run that it would have overlapped had ended
    "slot_skipped",  # an earlier run lasts, so it is not run
    "slot_missed",  # nobody was there, and it is not caught up
    "slot_cancelled",  # the earlier run was ended for it
    "slot_republished",  # its message seems to be lost, and was published again
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
    """The other one: who holds the key, or whose outcome is reused."""
    state: str = ""
    since: float = 0.0
    detail: str = ""
    lasts: float = 0.0
    """Of a claim: seconds that it holds unless it is renewed, a job's delay in the queue included."""
    differs: tuple[str, ...] = ()
    """Arguments, by name, in which this call is not like the holder's: its key does not tell them apart."""
    arguments: str = ""
    """The values that the call has, where the app has asked for them to be told; in no line of the log."""

    def __str__(self) -> str:
        parts = [f"{self.kind.replace('_', ' ')}: {self.key}", f"owner {self.owner}"]
        if self.holder:
            parts.append(f"{self.state or 'held'} by {self.holder}")
        if self.since:
            parts.append(f"since {datetime.fromtimestamp(self.since, timezone.utc):%Y-%m-%d %H:%M:%S} UTC")
        if self.token:
            parts.append(f"token {self.token}")
        if self.differs:
            parts.append(f"with other {', '.join(self.differs)}")
        if self.detail:
            parts.append(self.detail)
        return ", ".join(parts)


Listener: TypeAlias = Callable[[Event], None]

_logger = logging.getLogger("taskguard")


def log(event: Event) -> None:
    """The listener every guard starts with: quiet on what goes as it should, a warning on what does not."""
    level = logging.DEBUG if event.kind in _QUIET else _LEVEL.get(event.kind, logging.WARNING)
    if _logger.isEnabledFor(level):
        _logger.log(level, "%s", event)


class Listeners:
    """Those who are told. One that fails is reported in the log, and the job goes on."""

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
                # A time-out of the job that arrives meanwhile, or the loss of a lease around this one, is not the
                # listener's failure.
                if isinstance(error, LeaseLostError) or came_by_signal(error):
                    raise
                _logger.exception("listener %r failed on: %s", listener, event)
