"""Redelivers a killed worker's messages within seconds, on a Redis broker: what each worker's parent process does.

Every 1.5 seconds the parent stamps the guarded messages that its worker has, and one of all workers searches for
messages without a recent stamp. `orphans.py` decides which of them to requeue, and `unacked.py` does it.

What may go wrong in between, and why it does no harm:

- *The searching worker dies* before, between or after any two steps. Each step is one script, a message is either in
  the hash or in its queue, and another worker searches three seconds later. If a reply is lost, the step was done or
  was not: the next search finds out.
- *The worker was only stopped, or its parent was busy.* The script that moves the message compares its stamp: if a new
  stamp came first, nothing moves. If the worker continues later, its body has lost the lease, and a message that it had
  not started is a second copy: the store lets one of them run. The worker acknowledges a tag that is gone.
- *kombu restores the message itself* at the same time, in any number of workers. kombu uses a transaction that watches
  the hash, and we use a script: only one of them finds the message. A message that is fetched again has another score
  in kombu's index, and is watched from the start.
- *The searching worker was suspended, or the broker did not answer.* Then it could not see new stamps, so it watches
  all messages from the start before any of them counts as silent.
- *A clock is wrong.* All times are the broker's; the workers' clocks are not used.
- *The broker was emptied.* Messages, stamps and the search lock are gone together.
- *The worker died before its first stamp.* The searching worker finds the message without a stamp and stamps it once.
- *The worker died between taking a message from its queue and recording it.* Then kombu has lost the message, and only
  the entry of its job remains: see `republish_after`.
- *A worker that shuts down* stops stamping. Messages that it has not started a lease later go to other workers.
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
from taskguard.celery.orphans import LEFT_ALONE, Orphan, Rescued, due_in, entries_of, is_of_store, orphan_in, rescue
from taskguard.celery.settling import LEAVE_ALONE
from taskguard.celery.unacked import TIMEOUT, Look, Suspect, Unacked
from taskguard.errors import StoreError
from taskguard.protocol.policy import Policy
from taskguard.runtime.switch import is_off

EVERY = 1.5
"""Seconds between two stamps, and between two searches."""
SOON = 0.1
"""Seconds until the next search if one was not enough."""
LASTS = 0.25
"""Seconds that one search may take: it blocks the worker's event loop."""
WATCHED = 2.5
"""Seconds for which a message is watched before it counts as silent: a live worker stamps it by then."""
REMEMBERED = 20_000
"""How many messages that are not ours a worker remembers, so that it reads each only once."""

_logger = logging.getLogger("taskguard")


@dataclass(slots=True)
class Watched:
    """A message without a recent stamp."""

    stamp: str
    fetched: str
    since: float
    """When this worker first saw it so, by its own clock."""
    not_before: float = 0.0
    """Leave it alone until then, by the broker's clock."""


class Rescuer:
    """In the parent process of one worker.

    *in_hand* returns the messages that this worker has; *connect* opens the broker's side for the store of that name.
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
        """The rank at which the next search starts."""
        self._cursor = 0
        self._looked = float("-inf")
        self._watched: dict[str, Watched] = {}
        self._seen: set[str] = set()
        """The messages without a recent stamp, since the last complete search."""
        self._others: set[str] = set()
        """Messages of other stores, and of unguarded tasks."""

    def tick(self) -> float:
        """Stamp, and search if it is this worker's turn; return the seconds until the next call."""
        if is_off():
            return EVERY
        try:
            self._know_store()
            self._stamp()
            return self._look()
        except BaseException:
            self._start_anew()  # a stamp may have come meanwhile
            raise

    def _know_store(self) -> None:
        if self._store and self._is_store_away:
            return  # this worker still has its messages
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

    # -- searching -------------------------------------------------------------------------------------------------

    def _look(self) -> float:
        began = time.monotonic()
        if began - self._looked > 2 * EVERY + TIMEOUT:
            self._start_anew()
        first, look = self._first, self._unacked.look(self._first)
        if look is None:
            self._start_anew()
            return EVERY
        self._looked, self._first = time.monotonic(), look.next  # the broker may have been slow to answer
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
            _logger.warning("requeued %d message(s) of silent workers", given_back)
        if self._first or is_cut_short:
            return SOON
        self._watched = {tag: watched for tag, watched in self._watched.items() if tag in self._seen}
        self._seen.clear()
        self._sweep()
        return EVERY

    def _is_silent(self, suspect: Suspect, now: float) -> bool:
        """Whether the message did not change for as long as a live worker needs to stamp it."""
        self._seen.add(suspect.tag)
        known = self._watched.get(suspect.tag)
        if known is None or (known.stamp, known.fetched) != (suspect.stamp, suspect.fetched):
            self._watched[suspect.tag] = Watched(suspect.stamp, suspect.fetched, self._looked)
            return False
        return self._looked - known.since >= WATCHED and known.not_before <= now

    def _judge(self, suspect: Suspect, orphan: Orphan | None, look: Look) -> bool:
        """Give the message back if it is due; return whether it was given back."""
        if orphan is None or self._is_store_away:
            return False
        watched, policy, silent_for = self._watched[suspect.tag], self._policy(orphan), look.silent_for(suspect)
        if self._may_run_without_entry(policy):
            watched.not_before = look.now + LEFT_ALONE
            return False
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
            _logger.info(
                "%s: its worker has been silent for %.0f s; requeued to %s", orphan.name, silent_for, queues[0]
            )
        return bool(queues)

    def _may_run_without_entry(self, policy: Policy | None) -> bool:
        """Whether a body may run that the store does not know: then the visibility timeout decides, as without us."""
        is_not_enforced = policy is not None and not policy.enforce
        return is_not_enforced or self._app_guard.settings.on_store_error == "run_unguarded"

    def _policy(self, orphan: Orphan) -> Policy | None:
        guarded = getattr(self._app.tasks.get(orphan.task), "taskguard", None)
        return guarded.policy if guarded is not None else None

    def _read(self, sizes: dict[str, int]) -> dict[str, Orphan | None]:
        """These messages, as many as one search may read; None for those that are not ours."""
        return {
            tag: orphan_in(headers, self._store, self._app_guard.zone) for tag, headers in self._unacked.headers(sizes)
        }

    def _sweep(self) -> None:
        """Find messages of ours that no worker has stamped; each search checks a part of all messages."""
        if len(self._others) > REMEMBERED:
            self._others.clear()
        self._cursor, unstamped = self._unacked.unstamped(self._cursor)
        found = self._read({tag: size for tag, size in unstamped.items() if tag not in self._others})
        self._others |= {tag for tag, orphan in found.items() if orphan is None}
        ours = [tag for tag, orphan in found.items() if orphan is not None]
        if ours:
            self._unacked.stamp(ours, seen=True)
