"""A killed worker's messages come back in seconds: what each worker's parent process does for that, on a Redis broker.

Every 1.5 seconds it stamps the guarded messages in its own hands, and one of all workers looks for those without a
recent stamp. `orphans.py` says which of them go back to their queue, and `unacked.py` how.

What may happen in between, and why it does no harm:

- *The looking worker dies* before, between or after any two steps: each step is one script, a message is in the hash or
  in its queue, and another worker looks three seconds later. A lost reply is that of a step that was done or was not:
  the next look finds the one or the other.
- *The worker was only stopped, or its parent was busy.* Its stamp is compared in the very step that moves the message:
  if it came first, nothing moves. If it wakes later, its body has lost the lease, and a message that it had not begun
  is a second copy: the store lets one of them run. It acknowledges a tag that is gone.
- *kombu restores the message itself*, at the same time, by any number of workers: theirs is a transaction that watches
  the hash, ours is a script; one of them finds it. A message that is fetched again has another score in kombu's index,
  and is watched anew.
- *The looking worker slept, or the broker did not answer*: then no stamp could be seen to come, and all messages are
  watched anew before any of them counts as silent.
- *A clock is wrong*: all times are the broker's. The clocks of workers are not read.
- *The broker was emptied*: messages, stamps and looks are gone together.
- *The worker died before its first stamp*: whoever looks finds a message that nobody stamped, and stamps it once.
- *The worker died between taking a message from its queue and writing it down*: then kombu has lost it, and only the
  entry of its job is there: see `republish_after`.
- *A worker that shuts down* stamps nothing any more. What it has not begun a lease later goes to others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from celery import Celery

from taskguard.celery.guarding import CALL_TIMEOUT, AppGuard, app_guard_of
from taskguard.celery.orphans import Orphan, Rescued, due_in, entries_of, is_of_store, orphan_in, rescue
from taskguard.celery.settling import LEAVE_ALONE
from taskguard.celery.unacked import TIMEOUT, Look, Suspect, Unacked
from taskguard.errors import StoreError
from taskguard.protocol.policy import Policy
from taskguard.runtime.switch import is_off

EVERY = 1.5
"""Seconds from one stamp, and one look, to the next."""
SOON = 0.1
"""Seconds to the next look where one was not enough."""
LASTS = 0.25
"""Seconds that one look may take: the worker's event loop stands still meanwhile."""
WATCHED = 2.5
"""Seconds for which a message is watched before it counts as silent: a living worker has stamped it by then."""
REMEMBERED = 20_000
"""How many messages of others one worker remembers, so that it reads each of them once."""

_logger = logging.getLogger("taskguard")


@dataclass(slots=True)
class Watched:
    """A message without a recent stamp."""

    stamp: str
    fetched: str
    since: float
    """When it was first seen so, by this worker's own clock."""
    not_before: float = 0.0
    """Until then, by the broker's clock, it is left alone."""


class Rescuer:
    """In the parent process of one worker.

    *in_hand* says which messages this worker has; *connect* makes the broker's side for the store of a name.
    """

    _unacked: Unacked

    def __init__(
        self, app: Celery, in_hand: Callable[[], dict[str, Any] | None], connect: Callable[[str], Any]
    ) -> None:
        self._app = app
        self._app_guard: AppGuard = app_guard_of(app)
        self._in_hand = in_hand
        self._connect = connect
        self._store = ""
        self._stamped: list[str] = []
        self._first = 0
        """The rank that the next look begins with."""
        self._cursor = 0
        self._looked = float("-inf")
        self._watched: dict[str, Watched] = {}
        self._seen: set[str] = set()
        """The messages without a recent stamp, since all of them were last looked at."""
        self._others: set[str] = set()
        """Messages of other stores, and of tasks that are not guarded."""

    def tick(self) -> float:
        """Stamp, and look if it is this worker's turn; seconds until it is to be called again."""
        if is_off():
            return EVERY
        try:
            self._know_store()
            self._stamp()
            return self._look()
        except BaseException:
            self._start_anew()  # whatever was awaited may have come meanwhile
            raise

    def _know_store(self) -> None:
        if self._store and self._is_store_away:
            return  # messages in hand are in hand all the same
        with self._remembering_that_store_is_away():
            store = self._app_guard.identity.name(self._app_guard.calls, CALL_TIMEOUT)
        if store != self._store:
            self._store, self._unacked = store, self._connect(store)
            self._stamped = []
            self._start_anew()

    @property
    def _is_store_away(self) -> bool:
        return time.monotonic() < self._app_guard.away_until

    @contextmanager
    def _remembering_that_store_is_away(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            self._app_guard.away_until = time.monotonic() + LEAVE_ALONE
            raise

    def _start_anew(self) -> None:
        self._first = 0
        self._watched.clear()
        self._seen.clear()

    # -- in hand ---------------------------------------------------------------------------------------------------

    def _stamp(self) -> None:
        messages = self._in_hand()
        if messages is None:
            return
        tags = [tag for tag, message in messages.items() if is_of_store(message.headers, self._store)]
        gone = [tag for tag in self._stamped if tag not in messages]
        if tags or gone:
            self._unacked.stamp(tags, gone)
        self._stamped = tags

    # -- looking ---------------------------------------------------------------------------------------------------

    def _look(self) -> float:
        began = time.monotonic()
        if began - self._looked > 2 * EVERY + TIMEOUT:
            self._start_anew()
        first, look = self._first, self._unacked.look(self._first)
        if look is None:
            self._start_anew()
            return EVERY
        self._looked, self._first = time.monotonic(), look.next  # it may have taken the broker long to answer
        silent = [number for number, suspect in enumerate(look.suspects) if self._is_silent(suspect, look.now)]
        orphans = self._read({look.suspects[number].tag: look.suspects[number].size for number in silent})
        given_back, is_cut_short = 0, False
        for number in silent:
            suspect = look.suspects[number]
            is_cut_short = suspect.tag not in orphans or (number > silent[0] and time.monotonic() - began > LASTS)
            if is_cut_short:
                self._first = first + number - given_back
                break
            given_back += self._judge(suspect, orphans[suspect.tag], look)
        if given_back:
            _logger.warning("%d message(s) of workers that went silent are back in their queues", given_back)
        if self._first or is_cut_short:
            return SOON
        self._watched = {tag: watched for tag, watched in self._watched.items() if tag in self._seen}
        self._seen.clear()
        self._sweep()
        return EVERY

    def _is_silent(self, suspect: Suspect, now: float) -> bool:
        """Whether nothing has happened to the message for as long as a living worker needs to stamp it."""
        self._seen.add(suspect.tag)
        known = self._watched.get(suspect.tag)
        if known is None or (known.stamp, known.fetched) != (suspect.stamp, suspect.fetched):
            self._watched[suspect.tag] = Watched(suspect.stamp, suspect.fetched, self._looked)
            return False
        return self._looked - known.since >= WATCHED and known.not_before <= now

    def _judge(self, suspect: Suspect, orphan: Orphan | None, look: Look) -> bool:
        """Give the message back if that is to be; whether it was."""
        if orphan is None or self._is_store_away:
            return False
        watched, policy, silent_for = self._watched[suspect.tag], self._policy(orphan), look.silent_for(suspect)
        if due := due_in(orphan, silent_for, (policy or Policy()).lease, look.now):
            watched.not_before = look.now + due
            return False
        with self._remembering_that_store_is_away():
            store = self._app_guard.calls.store
            verdict = rescue(orphan, [store.get(entry) for entry in entries_of(orphan, policy)])
        if not isinstance(verdict, Rescued):
            watched.not_before = look.now + verdict
            return False
        queues = self._unacked.give_back(suspect, verdict)
        if queues:
            _logger.info("%s: its worker is silent for %.0f s; it is in %s again", orphan.name, silent_for, queues[0])
        return bool(queues)

    def _policy(self, orphan: Orphan) -> Policy | None:
        guarded = getattr(self._app.tasks.get(orphan.task), "taskguard", None)
        return guarded.policy if guarded is not None else None

    def _read(self, sizes: dict[str, int]) -> dict[str, Orphan | None]:
        """What these messages are, of as many as one look may read; None for those that are not ours."""
        return {
            tag: orphan_in(headers, self._store, self._app_guard.zone) for tag, headers in self._unacked.headers(sizes)
        }

    def _sweep(self) -> None:
        """Find messages of ours that no worker has stamped, a part of all after each look."""
        if len(self._others) > REMEMBERED:
            self._others.clear()
        self._cursor, unstamped = self._unacked.unstamped(self._cursor)
        found = self._read({tag: size for tag, size in unstamped.items() if tag not in self._others})
        self._others |= {tag for tag, orphan in found.items() if orphan is None}
        ours = [tag for tag, orphan in found.items() if orphan is not None]
        if ours:
            self._unacked.stamp(ours, seen=True)
