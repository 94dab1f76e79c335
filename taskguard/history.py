"""Recent decisions: a capped log in the store, behind `taskguard explain`, `stats` and `watch`.

A process reports its decisions to a `Recorder`, which batches them and writes them to the store's `History` from a
thread of its own, so no job waits for it. A killed process loses the last fifth of a second, or what it held back.
The current state is in the entries, never here.
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
"""Whether a history is kept; "arguments" also records the arguments of calls."""
ORDINARY: frozenset[Kind] = frozenset({"claimed", "completed", "released", "requeued"})
"""Frequent decisions. They have a log of their own, so that they do not crowd out why a call was skipped."""
MOST = 10_000
"""About how many lines each of the two logs keeps."""
KEPT_FOR = 30 * 86400
"""Seconds after which a line may be deleted, however few there are."""
GATHER = 0.2
"""Seconds for which decisions are batched."""
AT_ONCE = 500
"""The most lines in one exchange with the store."""
WAITING = 2_000
"""The most decisions kept while the store is unavailable; beyond that the oldest are dropped."""
LONGEST_DETAIL = 500
ASK_AGAIN = 5.0
PATIENCE = 2.0
"""Seconds that an exiting process waits for its own thread to finish writing."""
LOOK_AGAIN = 0.005

_logger = logging.getLogger("taskguard")


class Line(NamedTuple):
    """One decision as a history keeps it. *text* is a JSON array whose second element is the key; stores do not
    interpret the rest.
    """

    key: str
    text: str
    notable: bool
    """Whether the line belongs to the log of notable lines."""
    age: float = 0.0
    """Seconds between the decision and `add`: stores take durations, never instants, here too."""
    at: float = 0.0
    """The time of the decision by the store's clock; `read` fills it in."""


class History(Protocol):
    """Two capped logs, of ordinary and of notable lines, about `MOST` in each. A store offers it as `history`.

    No promise about a key depends on it.
    """

    def add(self, lines: Sequence[Line], /, *, last: bool = False) -> None:
        """Append all lines in one exchange.

        *last*: the process is about to exit. If the server can skip its reply, `add` need not wait for one.
        """

    def read(self, prefix: str = "", /, *, limit: int = 1000) -> list[Line]:
        """The newest *limit* lines whose key starts with *prefix*, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An event, its time by the store's clock, and the process that reported it."""

    at: float
    where: str
    event: Event


def check_history_option(name: str, value: Any) -> None:
    """Raise ConfigurationError if the setting *name* does not accept *value*."""
    if not isinstance(value, bool) and value != "arguments":
        raise ConfigurationError(
            f'{name} must be True, False or "arguments" (which also records the arguments of calls), not {value!r}'
        )


def history_of(store: Store) -> History | None:
    """The history in *store*; None if it keeps none."""
    return getattr(store, "history", None)


def decisions(store: Store, prefix: str = "", *, limit: int = 1000) -> list[Decision]:
    """The newest *limit* decisions about keys that start with *prefix*, oldest first."""
    history = history_of(store)
    found = [] if history is None else [_decision(line) for line in history.read(prefix, limit=limit)]
    return [decision for decision in found if decision is not None]


class Recorder(Forked):
    """A listener that writes decisions to a history, in batches and without delaying a job."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.after_fork()
        watch_forks(self)
        _recorders.add(self)

    def after_fork(self) -> None:
        # The parent writes what the parent has gathered.
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
        # Two threads may both set it, which is harmless. Ring each time: a signal may have interrupted whoever was to.
        due = self._due
        self._due = due = now if len(self._waiting) == AT_ONCE else now + GATHER if due is None else due
        self._alarm.ring_by(due)

    def hold_back(self) -> None:
        """Batch until the process exits or calls `go_on`: most such processes are too short-lived for a thread."""
        self._holds_back = True

    def go_on(self) -> None:
        """Stop holding back: the process lives longer than expected."""
        if self._holds_back:
            self._holds_back = False
            if self._waiting:
                self._ring_by(since_boot() + GATHER)

    def _ring_by(self, moment: float) -> None:
        self._due = moment
        self._alarm.ring_by(moment)

    def flush(self, *, last: bool = False) -> None:
        """Write what was gathered now, from this thread. Never raises because of the store."""
        if last and self._failing:
            return  # a log must not delay the exit of a process
        self._wait_for_thread()
        self._due = None  # before the lines are taken: a line that arrives now schedules the next write
        self._send(last)

    def _wait_for_thread(self) -> None:
        """Let the thread finish the batch it is writing before the process exits, unless the store does not answer."""
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
                if came_by_signal(error):  # a job's timeout is not the history's failure
                    raise
                _logger.exception("could not write %d decisions to the history; they are dropped", len(batch))

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
            _logger.warning("could not write decisions to the history, will retry: %s", error)
        self._failing = True
        room = WAITING - len(self._waiting)
        self._waiting.extendleft(reversed(batch[-room:] if room else []))
        with suppress(RuntimeError):  # the process is exiting and cannot start threads any more
            self._ring_by(since_boot() + ASK_AGAIN)

    def _lines(self, batch: Sequence[tuple[float, Event]]) -> list[Line]:
        now, where = since_boot(), whereabouts()
        return [Line(event.key, _text(event, where), event.kind not in ORDINARY, now - when) for when, event in batch]


def _text(event: Event, where: str) -> str:
    # Piece by piece: json.dumps takes three times as long, mostly for its set-up.
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
        arguments=more[0] if more else "",  # a later version may append even more fields
    )
    return Decision(at=line.at, where=where, event=event)


_recorders: Living[Recorder] = Living()


@atexit.register
def flush_all(**_: object) -> None:
    """Write what was gathered before the process exits."""
    for recorder in _recorders.all():
        recorder.flush(last=True)
