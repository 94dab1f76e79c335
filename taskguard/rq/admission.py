"""What happens when a guarded call is made: claim its place, then enqueue; or answer with the twin's job.

A job that is answered with is one that RQ has. Where RQ has it no more (cancelled, deleted, expired) the twin is ended,
and this call takes its place.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job

from taskguard.calls import CallInfo
from taskguard.errors import DuplicateTaskError, KeyArgumentError, PayloadMismatchError, StoreError
from taskguard.names import LONGEST, check_job_id
from taskguard.places import is_queued, next_of, place_of
from taskguard.rq.guarding import JobGuard
from taskguard.rq.note import Note
from taskguard.rq.noted import NotedJob, noted_class
from taskguard.rq.owner import is_other_run, job_id_of, owner_of, shown
from taskguard.rq.stored import StoredJob
from taskguard.rq.twin import Twin
from taskguard.store import Completed, Ending, Held, Lease

PATIENCE = 1.0
"""How long a call waits for a store that does not answer; then its job is enqueued unclaimed."""
TRIES = 5
"""So often a twin that is gone is ended, and the place claimed again."""

_logger = logging.getLogger("taskguard")


class Admission:
    """One call, before RQ has seen it."""

    def __init__(
        self,
        queue: Queue,
        guarded: JobGuard,
        *,
        job_id: str,
        is_named: bool,
        args: Any,
        kwargs: Any,
        idempotency_key: str,
        repeats: int | None,
        ttl: float | None,
        delay: float,
        pending: MutableMapping[str, Job | None],
    ) -> None:
        self._queue = queue
        self._guarded = guarded
        self._policy = guarded.policy
        self._guard = guarded.guard(queue.connection, queue.serializer)
        self._call = (args, kwargs)
        # An id that its caller chose may have been used before; this is another occurrence of it.
        run = os.urandom(4).hex() if is_named else ""
        self.note = Note(run=run, idempotency_key=idempotency_key, queue_class=guarded.named_by(queue))
        """What the job is enqueued with."""
        self._id = job_id
        self._owner = owner_of(job_id, repeats, run)
        waits_for = min(LONGEST, guarded.settings.queued_for + delay)
        self._waits_for = waits_for if ttl is None else min(waits_for, float(ttl))
        self._pending = pending
        """Claimed by this process, and enqueued when the caller executes its pipeline."""
        self._lease: Lease | None = None
        self.info = CallInfo("", job_id)

    def ask(self) -> Any:
        """The job that is the answer; None if this call is to be enqueued."""
        check_job_id("job_id", self._id)
        try:
            self._find_key()
        except KeyArgumentError:
            raise
        except TypeError:
            return None  # arguments that do not fit are for the body to refuse, as without a guard
        place = place_of(self._policy, self.note.key)
        try:
            # Also where nothing is claimed yet: a worker that looks at another store is to notice.
            self.note = self.note.with_(store=self._guarded.store_name(self._guard, PATIENCE), at=time.time())
            if not place:
                return None
            return self._claim_next() if self._finds_one_more_queued() else self._claim(place)
        except StoreError as error:
            # The worker will ask. Whatever the store's trouble is, it is no reason to lose the call.
            _logger.warning("%s[%s] is enqueued unclaimed: %s", self._guarded.name, self._id, error)
            return None

    def enqueued(self, job: Job) -> Any:
        """RQ has it: the handle, with what the guard has to say."""
        if self._lease is not None:
            if self._pending is not None and self._owner in self._pending:
                self._pending[self._owner] = job
            if self._policy.key_space is not None:
                # Celery may share the key: it publishes for a twin that nobody is known to have published.
                with suppress(StoreError):
                    self._guard.store.mark([(self._lease, self._waits_for)], copy_for=self._waits_for)
        return handle(job, self.info)

    def refused(self) -> None:
        """RQ does not want it. If a worker has it all the same, the claim is not ours any more to release."""
        if self._lease is not None:
            self._pending.pop(self._owner, None)
            with suppress(StoreError):
                self._guard.store.release(self._lease, Ending(keep_for=self._policy.keep))

    # -- asking ----------------------------------------------------------------------------------------------------

    def _find_key(self) -> None:
        keys, (args, kwargs), given = self._guarded.keys, self._call, self.note.idempotency_key
        key = keys.explicit(given) if given else keys(args, kwargs)
        payload = self._guarded.payload(args, kwargs) if given else self._guarded.likeness(args, kwargs)
        self.note = self.note.with_(key=key, payload=payload)
        self.info = CallInfo(key, self._id)

    def _finds_one_more_queued(self) -> bool:
        """The one more run of an earlier call has not begun, though the key may be free: this call is news to it.

        Enqueued beside it, these arguments might run first, and the older ones after them.
        """
        if self._policy.on_conflict.enqueue != "run_once_more":
            return False
        return is_queued(self._guard.store.get(next_of(self.note.key)))

    def _claim(self, place: str, *, replace: bool = False) -> Any:
        held = None
        for _ in range(TRIES):
            answer = self._ask(place, replace)
            if isinstance(answer, Lease):
                self._lease = answer
                self._pending[self._owner] = None
                return None
            if not self._policy.enforce:
                return None
            self._compare_payload(answer)
            if isinstance(answer, Completed):
                return self._done(answer)
            held = answer
            twin = self._twin(held)
            if twin is None or not twin.is_gone:
                return self._meet(held, twin)
            if held.state != "queued":
                break
            twin.end(self._guard, self._policy)
        return None if held is None else self._meet_what_is_gone(held)

    def _ask(self, place: str, replace: bool) -> Lease | Held | Completed:
        claim = self._guard.new_claim(
            place,
            self._owner,
            self._policy,
            state="queued",
            lease=self._waits_for,
            payload=self.note.payload,
            replace_queued=replace,
        )
        return self._guard.ask(claim, patience=PATIENCE, arguments=self._guarded.arguments(*self._call))[1]

    def _compare_payload(self, answer: Held | Completed) -> None:
        mine = self.note.payload if self.note.idempotency_key else ""
        if mine and answer.payload and mine != answer.payload:
            raise PayloadMismatchError(answer.key, shown(answer.owner))

    # -- a live twin -----------------------------------------------------------------------------------------------

    def _twin(self, held: Held) -> Twin | None:
        """None if it waits, with this very process, for its caller's pipeline."""
        if held.owner in self._pending:
            return None
        twin = Twin(held, self._queue.connection, self._queue.job_class, self._queue.serializer)
        twin.wait_until_it_appears(self._guard.store)
        return twin

    def _meet_what_is_gone(self, held: Held) -> Any:
        """RQ has given it up, and its lease has not run out yet: the worker waits for that."""
        self._may_raise(held)
        if self._policy.on_conflict.enqueue == "run_once_more" and held.key != next_of(self.note.key):
            return self._claim_next()
        self._join(held)
        return None

    def _claim_next(self) -> Any:
        following = next_of(self.note.key)
        self.note = self.note.with_(place=following)
        return self._claim(following)

    def _meet(self, held: Held, twin: Twin | None) -> Any:
        """Another job has the place: what `on_conflict` says."""
        self._may_raise(held)
        if self._policy.on_conflict.enqueue == "run_once_more":
            following = next_of(self.note.key)
            if held.key != following and self._is_news_to(held):
                return self._claim_next()
            if held.key == following and held.state == "queued" and held.payload != self.note.payload:
                return self._claim(following, replace=True)  # newest arguments
        about = CallInfo(self.note.key, shown(held.owner), True, held.state, held.since)
        if twin is None:
            job = self._pending.get(held.owner)
            if job is None:
                job = Job(job_id_of(held.owner), connection=self._queue.connection, serializer=self._queue.serializer)
            return handle(job, about)
        if twin.job is None:
            self._join(held)  # it is no job of RQ
            return None
        if held.state == "queued":
            twin.enqueue_if_lost()
        return handle(twin.job, about)

    def _may_raise(self, held: Held) -> None:
        if self._policy.on_conflict.enqueue == "raise":
            raise DuplicateTaskError(held.key, shown(held.owner), held.state, held.since, held.token)

    def _join(self, held: Held) -> None:
        """There is no job of RQ to answer with: this one is enqueued, and ends as its twin does."""
        self.note = self.note.with_(join=held.owner)
        self.info = CallInfo(self.note.key, shown(held.owner), True, held.state, held.since)

    def _is_news_to(self, held: Held) -> bool:
        return held.state == "running" or held.payload != self.note.payload

    # -- finished work ---------------------------------------------------------------------------------------------

    def _done(self, done: Completed) -> Any:
        queue = self._queue
        job: Job | None = self._fetch(done.owner)
        ended_so = "finished" if done.how == "succeeded" else "failed"
        if job is None or job.get_status(refresh=False) != ended_so:
            job = StoredJob.of(done, self._guard.outcomes, queue.connection, queue.serializer)
        return handle(job, CallInfo(self.note.key, shown(done.owner), True, "done", done.at))

    def _fetch(self, owner: str) -> Job | None:
        queue, kind = self._queue, noted_class(self._queue.job_class)
        if not job_id_of(owner):
            return None
        try:
            job: NotedJob = kind.fetch(job_id_of(owner), connection=queue.connection, serializer=queue.serializer)
        except NoSuchJobError:
            return None
        return job if job.origin == queue.name and not is_other_run(job.run_name, owner) else None


def handle(job: Any, about: CallInfo) -> Any:
    job.taskguard = about
    return job
