"""What was decided of late: a capped log in the store, behind `taskguard explain`, `stats` and `watch`.

A process tells its decisions to a `Recorder`, which gathers them and hands them to the store's `History` from a thread
of its own: no job waits for that. A process that is killed takes the last fifth of a second with it, or what it held
back; what holds now is in the entries, never here.
"""

from __future__ import annotations

import atexit
import json
import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from taskguard.errors import ConfigurationError, StoreError
from taskguard.events import Event, Kind
from taskguard.protocol.store import Store
from taskguard.runtime.alarm import Alarm
from taskguard.runtime.clocks import since_boot
from taskguard.runtime.forks import Forked, Living, watch_forks
from taskguard.runtime.interrupt import came_by_signal
from taskguard.runtime.whereabouts import whereabouts

__all__ = ["Decision", "decisions"]

HistoryOption: TypeAlias = bool | Literal["arguments"]
"""Whether a history is kept; with the arguments of calls, if that is asked for."""
ORDINARY: frozenset[Kind] = frozenset({"claimed", "completed", "released", "requeued"})
"""What happens all the time. It has a log of its own, so that it does not crowd out why a call was skipped."""
MOST = 10_000
"""Lines that are kept in each of the two logs, about."""
KEPT_FOR = 30 * 86400
"""Seconds after which a line can go, however few there are."""
GATHER = 0.2
"""Seconds that decisions are gathered for."""
AT_ONCE = 500
"""Lines in one exchange with the store, at most."""
WAITING = 2_000
"""Decisions kept while the store cannot be asked; then the oldest go."""
LONGEST_DETAIL = 500
ASK_AGAIN = 5.0
PATIENCE = 2.0
"""Seconds that a process which ends waits for its own thread to have told."""
LOOK_AGAIN = 0.005

_logger = logging.getLogger("taskguard")


class Line(NamedTuple):
    """One decision as a history keeps it: nothing of *text* is a store's business.

    It is JSON, an array whose second element is the key.
    """

    key: str
    text: str
    notable: bool
    """Not an ordinary one: it belongs to the other log."""
    age: float = 0.0
    """Seconds between the decision and `add`: durations in, never instants, here too."""
    at: float = 0.0
    """When it was, by the store's clock; filled in by `read`."""


class History(Protocol):
    """Two capped logs, of ordinary and of notable lines, about `MOST` in each. A store has it as its `history`.

    It is apart from the verbs of a store: no promise about a key depends on it.
    """

    def add(self, lines: Sequence[Line], /, *, last: bool = False) -> None:
        """Append all of them, in one exchange.

        *last*: the process may end now, and there is no later. A server that can be told not to answer need not be
        waited for.
        """

    def read(self, prefix: str = "", /, *, limit: int = 1000) -> list[Line]:
        """The newest *limit* lines whose key starts so, the oldest of them first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An event, when it was by the store's clock, and in which process."""

    at: float
    where: str
    event: Event


def check_history_option(name: str, value: Any) -> None:
    """ConfigurationError if the setting *name* has no such value."""
    if not isinstance(value, bool) and value != "arguments":
        raise ConfigurationError(f'{name}={value!r} is not known; write True, False, or "arguments" to keep those too')


def history_of(store: Store) -> History | None:
    """The history in *store*; None if it keeps none."""
    return getattr(store, "history", None)


def decisions(store: Store, prefix: str = "", *, limit: int = 1000) -> list[Decision]:
    """The newest decisions about keys that start so, the oldest of them first."""
    history = history_of(store)
    found = [] if history is None else [_decision(line) for line in history.read(prefix, limit=limit)]
    return [decision for decision in found if decision is not None]


class Recorder(Forked):
    """A listener that brings decisions to a history, many at once and not at the cost of a job."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.after_fork()
        watch_forks(self)
        _recorders.add(self)

    def after_fork(self) -> None:
        # What the parent has gathered is the parent's to tell.
        self._waiting: deque[tuple[float, Event]] = deque(maxlen=WAITING)
        self._due: float | None = None
        self._holds_back = False
        self._failing = False
        self._thread_sends = False
        self._alarm = Alarm(self._work, self._upcoming)

    def __call__(self, event: Event) -> None:
        now = since_boot()
        self._waiting.append((now, event))
        if self._holds_back:
            return
        # Two threads may both find it so; that is harmless. Rung each time: a signal may have torn away who was to.
        due = self._due
        self._due = due = now if len(self._waiting) == AT_ONCE else now + GATHER if due is None else due
        self._alarm.ring_by(due)

    def hold_back(self) -> None:
        """Gather until the end, or `go_on`: for a process that mostly ends before a thread for this would pay."""
        self._holds_back = True

    def go_on(self) -> None:
        """It did not end: no longer hold back."""
        if self._holds_back:
            self._holds_back = False
            if self._waiting:
                self._ring_by(since_boot() + GATHER)

    def _ring_by(self, moment: float) -> None:
        self._due = moment
        self._alarm.ring_by(moment)

    def flush(self, *, last: bool = False) -> None:
        """Bring what was gathered to the store now, from this thread. Never raises for the store's sake."""
        if last and self._failing:
            return  # a process does not end later for a log
        self._wait_for_thread()
        self._due = None  # before the lines are taken: one that comes meanwhile asks for the next time
        self._send(last)

    def _wait_for_thread(self) -> None:
        """What it has in its hands is to arrive too, before a process ends; unless its store does not answer."""
        give_up = since_boot() + PATIENCE
        while self._thread_sends and since_boot() < give_up:
            time.sleep(LOOK_AGAIN)

    def _send(self, last: bool) -> None:
        while batch := self._taken():
            try:
                self._history.add(self._lines(batch), last=last)
                self._failing = False
            except StoreError as error:
                self._keep(batch, error)
                return
            except Exception as error:
                if came_by_signal(error):  # a job's time-out is not the history's failure
                    raise
                _logger.exception("%d decisions are not written to the history", len(batch))

    def _upcoming(self) -> float | None:
        return self._due

    def _work(self, now: float) -> None:
        if self._due is None or self._due > now:
            return
        self._thread_sends = True
        try:
            self._due = None
            self._send(last=False)
        finally:
            self._thread_sends = False

    def _taken(self) -> list[tuple[float, Event]]:
        batch: list[tuple[float, Event]] = []
        try:
            while len(batch) < AT_ONCE:
                batch.append(self._waiting.popleft())
        except IndexError:
            pass
        return batch

    def _keep(self, batch: list[tuple[float, Event]], error: StoreError) -> None:
        if not self._failing:  # once per outage
            _logger.warning("decisions are not written to the history for now: %s", error)
        self._failing = True
        room = WAITING - len(self._waiting)
        self._waiting.extendleft(reversed(batch[-room:] if room else []))
        with suppress(RuntimeError):  # the process ends, and no thread can be started any more
            self._ring_by(since_boot() + ASK_AGAIN)

    def _lines(self, batch: Sequence[tuple[float, Event]]) -> list[Line]:
        now, where = since_boot(), whereabouts()
        return [Line(event.key, _text(event, where), event.kind not in ORDINARY, now - when) for when, event in batch]


def _text(event: Event, where: str) -> str:
    # Piece by piece: json.dumps takes three times as long, mostly to get ready.
    return (
        f"[{quoted(event.kind)},{quoted(event.key)},{quoted(event.owner)},{event.token},{quoted(event.holder)},"
        f"{quoted(event.state)},{event.since!r},{quoted(event.detail[:LONGEST_DETAIL])},{event.lasts!r},"
        f"{json.dumps(event.differs) if event.differs else '[]'},{quoted(where)}"
        f"{f',{quoted(event.arguments)}' if event.arguments else ''}]"
    )


def _decision(line: Line) -> Decision | None:
    try:
        kind, key, owner, token, holder, state, since, detail, lasts, differs, where, *more = json.loads(line.text)
    except (ValueError, TypeError):
        return None  # not ours
    event = Event(
        kind=kind,
        key=key,
        owner=owner,
        token=token,
        holder=holder,
        state=state,
        since=since,
        detail=detail,
        lasts=lasts,
        differs=tuple(differs),
        arguments=more[0] if more else "",  # a later version may have even more to tell
    )
    return Decision(at=line.at, where=where, event=event)


_recorders: Living[Recorder] = Living()


@atexit.register
def flush_all(**_: object) -> None:
    """The process ends: what was gathered leaves it."""
    for recorder in _recorders.all():
        recorder.flush(last=True)
