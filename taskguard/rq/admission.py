"""What happens when a guarded call is made: the engine decides, and RQ enqueues.

A duplicate gets the holder's job only if RQ still has that job. If RQ does not (cancelled, deleted, expired), the call
ends the holder and takes its place in the queue.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any

from redis import Redis
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job

from taskguard.engine import effects as fx
from taskguard.engine.call_info import CallInfo
from taskguard.engine.envelope import Envelope
from taskguard.engine.publisher import Answer, Call, Publish
from taskguard.engine.settle import carry_out
from taskguard.errors import KeyArgumentError, StoreError, StoreUnavailableError
from taskguard.guard import new_attempt
from taskguard.protocol.names import LONGEST, check_claim, check_job_id
from taskguard.protocol.store import Completed, Ending, Entry, Held, Lease
from taskguard.rq.guarded_job import GuardedJob, guarded_job_class
from taskguard.rq.guarding import ADDRESS, JobGuard
from taskguard.rq.holder_job import HolderJob
from taskguard.rq.owner import is_other_run, job_id_of, owner_of, shown
from taskguard.rq.stored_job import StoredJob
from taskguard.runtime.breaker import Breaker, breaker_of

PATIENCE = 1.0
"""Seconds that a call waits for an unavailable store. Then its job is enqueued without a claim."""

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
        self._guard = guarded.guard(queue.connection, queue.serializer)
        self._breaker = _breaker_of(guarded, queue.connection)
        self._arguments = (args, kwargs)
        # The caller may have used its own id before; this is another occurrence of that id.
        run = os.urandom(4).hex() if is_named else ""
        self.envelope = Envelope(run=run, idempotency_key=idempotency_key, queue_class=guarded.named_by(queue))
        """What the job is enqueued with."""
        self._id = job_id
        self._owner = owner_of(job_id, repeats, run)
        queued_for = min(LONGEST, guarded.settings.queued_for + delay)
        self._waits_for = queued_for if ttl is None else min(queued_for, float(ttl))
        self._pending = pending
        """Jobs that this process claimed, and that RQ gets when the caller executes its pipeline."""
        self._lease: Lease | None = None
        self._holder: HolderJob | None = None
        self.info = CallInfo("", job_id)

    def ask(self) -> Any:
        """The job to return to the caller; None if this call must be enqueued."""
        check_job_id("job_id", self._id)
        try:
            self.envelope = self._guarded.identified(self.envelope, *self._arguments)
        except KeyArgumentError:
            raise
        except TypeError:
            return None  # the body refuses arguments that do not fit, as without a guard
        self.info = CallInfo(self.envelope.key, self._id)
        try:
            return self._decide()
        except StoreUnavailableError as error:
            # The worker will ask: an outage is no reason to lose the call.
            _logger.warning("%s[%s] is enqueued unclaimed: %s", self._guarded.name, self._id, error)
            self._name_store(self._guarded.known_store_name)
            self.info = CallInfo(self.envelope.key, self._id, state="unclaimed")
            return None

    def _name_store(self, name: str) -> None:
        """Also where nothing is claimed yet: a worker that uses another store is to notice."""
        if name:
            self.envelope = self.envelope._replace(store=name, at=time.time())

    def _decide(self) -> Any:
        guarded = self._guarded
        name = guarded.known_store_name
        self._name_store(name or self._breaker.ask(partial(guarded.store_name, self._guard, PATIENCE)))
        policy = self._guarded.policy
        call = Call(
            policy=policy,
            envelope=self.envelope,
            owner=self._owner,
            new_attempt=new_attempt,
            waits_for=self._waits_for,
            shown=shown,
        )
        effect = call.begin()
        while not isinstance(effect, fx.Last):
            effect = self._carry_out(call, effect)
        if isinstance(effect, fx.Raise):
            raise effect.error
        if isinstance(effect, Answer):
            return self._answer(effect.found)
        assert isinstance(effect, Publish)
        self.envelope = effect.envelope
        if isinstance(effect.claimed, Lease):
            self._lease = effect.claimed
            self._pending[self._owner] = None
        if isinstance(effect.about, Held):
            self.info = self._about(effect.about)
        return None

    def _carry_out(self, call: Call, effect: fx.Effect) -> fx.Effect:
        if isinstance(effect, fx.Ask):
            arguments = self._guarded.arguments(*self._arguments) if self._guarded.shows_arguments else ""
            question = partial(self._guard.ask, check_claim(effect.claim), patience=PATIENCE, arguments=arguments)
            _, answer = self._breaker.ask(question)
            return call.answered(answer)
        if isinstance(effect, fx.Look):
            return call.looked(self._breaker.ask(partial(self._guard.store.get, effect.entry)))
        if isinstance(effect, fx.LookAfter):
            return call.holder_is(*self._look_after(effect.holder))
        assert isinstance(effect, fx.EndQueued)
        return call.settled(self._breaker.ask(partial(carry_out, self._guard, effect)))

    def _look_after(self, holder: Held | Entry) -> tuple[fx.Known, bool]:
        """What RQ knows of the holder's job, and whether the caller can get it as a handle."""
        if holder.owner in self._pending:
            self._holder = None  # this process claimed it, and its caller has not executed the pipeline yet
            return "coming", True
        holder_job = self._holder = HolderJob(
            holder, self._queue.connection, self._queue.job_class, self._queue.serializer
        )
        holder_job.wait_until_it_appears(self._guard.store)
        if holder_job.is_gone:
            return "gone", holder_job.job is not None
        if holder.state == "queued":
            holder_job.enqueue_if_lost()
        return "coming", holder_job.job is not None

    def enqueued(self, job: Job) -> Any:
        """RQ has the job: return it as the handle, with its `CallInfo`."""
        if self._lease is not None:
            if self._pending is not None and self._owner in self._pending:
                self._pending[self._owner] = job
            if self._guarded.policy.key_space is not None:
                # Celery may share the key: it republishes a holder whose message is not confirmed.
                with suppress(StoreError):
                    self._guard.store.mark([(self._lease, self._waits_for)], copy_for=self._waits_for)
        return handle(job, self.info)

    def refused(self) -> None:
        """RQ refused the job. If a worker has it all the same, the store ignores this release."""
        if self._lease is not None:
            self._pending.pop(self._owner, None)
            with suppress(StoreError):
                self._guard.store.release(self._lease, Ending(keep_for=self._guarded.policy.keep))

    # -- answers ---------------------------------------------------------------------------------------------------

    def _about(self, held: Held) -> CallInfo:
        return CallInfo(self.envelope.key, shown(held.owner), True, held.state, held.since)

    def _answer(self, found: Held | Completed) -> Any:
        if isinstance(found, Completed):
            return handle(self._done(found), CallInfo(self.envelope.key, shown(found.owner), True, "done", found.at))
        if self._holder is not None and self._holder.job is not None:
            return handle(self._holder.job, self._about(found))
        job = self._pending.get(found.owner)
        if job is None:
            job = Job(job_id_of(found.owner), connection=self._queue.connection, serializer=self._queue.serializer)
        return handle(job, self._about(found))

    def _done(self, done: Completed) -> Job:
        queue = self._queue
        job: Job | None = self._fetch(done.owner)
        ended_so = "finished" if done.how == "succeeded" else "failed"
        if job is None or job.get_status(refresh=False) != ended_so:
            return StoredJob.of(done, self._guard.outcomes, queue.connection, queue.serializer)
        return job

    def _fetch(self, owner: str) -> Job | None:
        queue, kind = self._queue, guarded_job_class(self._queue.job_class)
        if not job_id_of(owner):
            return None
        try:
            job: GuardedJob = kind.fetch(job_id_of(owner), connection=queue.connection, serializer=queue.serializer)
        except NoSuchJobError:
            return None
        return job if job.origin == queue.name and not is_other_run(job.run_name, owner) else None


def _breaker_of(guarded: JobGuard, connection: Redis) -> Breaker:
    """That of the function's store: many functions may share it, and some projects make a client for each call."""
    store = guarded.settings.store
    if isinstance(store, str):
        return breaker_of(store)
    pool = connection.connection_pool
    known = {name: pool.connection_kwargs.get(name) for name in ADDRESS}
    if store is None and (known["host"] is not None or known["path"] is not None):
        return breaker_of((pool.connection_class, *known.values()))
    found: Breaker = vars(pool if store is None else guarded).setdefault("_taskguard_breaker", Breaker())
    return found


def handle(job: Any, about: CallInfo) -> Any:
    job.taskguard = about
    return job
