"""One delivery of a guarded job, where its body runs: claim, run, settle; or wait, join, or answer.

What cannot run now waits inside its work horse, for one lease at most: RQ delays nothing without a scheduler. Then it
is **put back**: enqueued again under the same id, at the end of its queue, so that other jobs have their turn.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from rq.job import Job, JobStatus, Retry

from taskguard import interrupt
from taskguard.clocks import since_boot
from taskguard.errors import (
    DuplicateTaskError,
    EarlierFailureError,
    KeyArgumentError,
    LeaseLostError,
    OutcomeNotKeptError,
    PayloadMismatchError,
    StoreError,
    StoreUnavailableError,
    TooManyStartsError,
    WaitTimeoutError,
)
from taskguard.guard import Guard, new_attempt, pauses
from taskguard.outcomes import NotKept
from taskguard.places import next_of, place_of, run_of
from taskguard.policy import Policy
from taskguard.rq.guarding import BEGUN, JobGuard
from taskguard.rq.note import Note
from taskguard.rq.owner import (
    enqueueing_of,
    is_other_run,
    is_scheduled_again,
    job_id_of,
    next_owner,
    note_end,
    occurrence_of,
    owner_of,
    restore_enqueueing,
    shown,
)
from taskguard.rq.twin import Twin
from taskguard.store import Claim, Claimant, Completed, Ending, Entry, Held
from taskguard.work import Work

ATTEMPT = "_taskguard_attempt"
"""On a job that a guarded worker runs: the attempt of this execution, which its parent process knows too."""
BEHIND = 1.0
"""A job that gives way to one in the queue waits so long; that one may be behind it in this very queue."""
MARGIN = 1.0
UNTIL_THE_STORE_IS_BACK = 3600.0
"""A body that has run is not run again because the store is away: its end waits, as long as the job may run."""

_logger = logging.getLogger("taskguard")


class NothingToTell(Exception):  # noqa: N818 - no error: this delivery ends, and the job is another one's
    """A guarded worker ends this execution and writes nothing to the job."""


class PutBack(Retry):
    """What a body returns to RQ so that its job is enqueued again, at once and at the end of the queue."""

    def __init__(self) -> None:
        super().__init__(max=sys.maxsize)

    def __reduce__(self) -> Any:
        return Retry, (self.max,)  # RQ keeps it with the job's results, to be read where we are not installed


class Run:
    def __init__(self, job: Job, guarded: JobGuard) -> None:
        self.job = job
        self.guarded = guarded
        self.policy: Policy = guarded.policy
        self.guard: Guard = guarded.guard(job.connection, job.serializer)
        self.note = Note.of(job.meta, job.id)
        if self.note.enqueueing:
            self._comes_back()
        self.owner = owner_of(job.id, job.repeats_left, self.note.run)
        self.attempt: str = getattr(job, ATTEMPT, "") or new_attempt()
        self.began = since_boot()
        self.is_settled = False

    @property
    def is_sync(self) -> bool:
        """Run by a queue with `is_async=False`, in its caller's process: nothing can be put back."""
        return self.job.worker_name == "sync"

    @property
    def has_our_worker(self) -> bool:
        return hasattr(self.job, ATTEMPT)

    def __call__(self, args: Any, kwargs: Any) -> Any:
        setattr(self.job, BEGUN, True)
        try:
            return self._run(args, kwargs)
        finally:
            setattr(self.job, BEGUN, False)
            if self.guard.recorder is not None:
                self.guard.recorder.flush(last=True)  # a horse ends without what Python does at exit

    def _run(self, args: Any, kwargs: Any) -> Any:
        try:
            self._find_key(args, kwargs)
        except KeyArgumentError:
            raise
        except TypeError:
            return self.guarded.call(args, kwargs)  # arguments that do not fit: the body says so itself
        try:
            answer = self._obtain()
        except StoreError as error:
            return self._without_store(error, args, kwargs)
        except TooManyStartsError:
            self.job.retries_left = 0  # RQ shall not start it again either
            self._end_for_good()
            raise
        except (DuplicateTaskError, PayloadMismatchError):
            self._free_place()
            raise
        if isinstance(answer, PutBack):
            return answer
        if isinstance(answer, Completed):
            return self._ended(answer)
        return self._work(answer, args, kwargs)

    # -- asking ----------------------------------------------------------------------------------------------------

    def _find_key(self, args: Any, kwargs: Any) -> None:
        if not self.note.key:
            keys, given = self.guarded.keys, self.note.idempotency_key
            key = keys.explicit(given) if given else keys(args, kwargs)
            payload = keys.payload(args, kwargs) if given else self.guarded.likeness(args, kwargs)
            self.note = self.note.with_(id=self.job.id, key=key, payload=payload)
        self.key = self.note.key
        self.place = self.note.place or place_of(self.policy, self.key)

    @property
    def name(self) -> str:
        """The entry of this run."""
        return run_of(self.policy, self.key, self.note.join or self.owner)

    def _claim(self) -> Claim:
        return self.guard.new_claim(
            self.name,
            self.owner,
            self.policy,
            attempt=self.attempt,
            join=self.note.join,
            payload=self.note.payload,
            floor=self.note.floor,
        )

    def _begin(self, claim: Claim, tell: bool = True) -> Work | Held | Completed:
        by_key = occurrence_of(self.job, self.owner) if self.policy.on_done == "rerun" else self.key
        given = self.note.idempotency_key
        # Another function may be called with the same key of the caller's: its effects are others.
        effect = self.key if given else by_key
        answer = self.guard.begin(claim, self.policy, idempotency_key=given or by_key, effect_key=effect, tell=tell)
        if given and not isinstance(answer, Work) and answer.payload and self.note.payload != answer.payload:
            raise PayloadMismatchError(answer.key, shown(answer.owner))
        return answer

    def _obtain(self) -> Work | Completed | PutBack:
        """Ask until the key is ours or the work has ended; or, after a while, give the turn to other jobs."""
        claim = self._claim()
        held = None
        for pause in pauses(longest=1.0):
            patience = BEHIND
            if not self._gives_way_to_the_one_it_joins():
                answer = self._begin(claim, tell=held is None)  # once is enough while it waits
                if isinstance(answer, Completed) and self._is_over_by_now(answer):
                    claim = self._claim()
                    continue
                if not isinstance(answer, Held):
                    return answer
                if not self.policy.enforce:
                    return self._beside()
                held = answer
                patience = self._patience_with(held)
                claim = self._claim()  # it may join somebody now
                if patience < 0:
                    claim = replace(claim, replace_queued=True)
                    continue
            if since_boot() - self.began + pause > patience:
                return self._put_back(held)
            time.sleep(pause)
        raise AssertionError("pauses never end")

    def _beside(self) -> Work | Completed | PutBack:
        """For a body that runs whoever holds the key (`enforce=False`): it has a fence of its own."""
        name = f"{self.key}:beside:{self.attempt}"
        answer = self._begin(self.guard.new_claim(name, self.owner, self.policy, attempt=self.attempt))
        return self._put_back(answer) if isinstance(answer, Held) else answer

    def _is_over_by_now(self, done: Completed) -> bool:
        """Whether the end that was found is that of an earlier occurrence of this id; then this is the next one."""
        if done.owner != self.owner or (done.how == "succeeded" and not is_scheduled_again(self.job)):
            return False
        following = "" if ":after-" in self.owner else next_owner(self.job, self.owner)
        self.owner = following or self.owner
        return bool(following)

    # -- what is held ----------------------------------------------------------------------------------------------

    def _patience_with(self, held: Held) -> float:
        """How long to wait here for the one who holds the key. Negative: not at all, its place can be taken."""
        longest = self.policy.lease + MARGIN
        if self.job.timeout and self.job.timeout > 0:
            longest = min(longest, self.job.timeout / 2)
        if self._is_this_job(held.owner):
            return longest  # this very job, elsewhere: never run beside it, and never dropped, for it may die
        if held.state == "queued":
            return self._patience_with_queued(held)
        conflict = self._conflict()
        if conflict == "raise" or self.is_sync:
            raise DuplicateTaskError(*_facts(held))
        if conflict == "skip":
            self.note = self.note.with_(join=held.owner)
        else:
            self._wait_no_longer_than_told(held)
        return longest

    def _patience_with_queued(self, held: Held) -> float:
        twin = self._twin(held)
        if not twin.is_gone and (twin.is_put_off or self.is_sync):
            return -1.0  # its time has not come, and it claims anew when it has
        return BEHIND

    def _twin(self, held: Held | Entry) -> Twin:
        """Whoever is queued, as RQ sees it: ended if RQ has given it up."""
        twin = Twin(held, self.job.connection, type(self.job), self.job.serializer)
        twin.wait_until_it_appears()
        if twin.is_gone:
            ending = Ending(how="expired" if twin.job is None else "revoked", keep_for=self.policy.keep)
            self.guard.store.release(Claimant(held.key, held.owner, ""), ending, anyway=True)
        else:
            twin.enqueue_if_lost()
        return twin

    def _is_this_job(self, owner: str) -> bool:
        return job_id_of(owner) == self.job.id and not is_other_run(self.job.meta, owner)

    def _conflict(self) -> str:
        conflict = self.policy.on_conflict.run
        if conflict == "skip" and (self.policy.hold == "one_queued_one_running" or self._is_the_next()):
            return "wait"  # it has a place in the queue for the very purpose of running after the other one
        return conflict

    def _is_the_next(self) -> bool:
        return self.note.place == next_of(self.key)

    def _wait_no_longer_than_told(self, held: Held) -> None:
        now = time.time()
        if not self.note.since:
            self.note = self.note.with_(since=now)
        waited = now - self.note.since
        if self.policy.on_conflict.run == "wait" and waited > self.policy.wait_up_to:
            self._forget_waiting()
            raise WaitTimeoutError(*_facts(held), round(waited, 1))

    def _gives_way_to_the_one_it_joins(self) -> bool:
        """Its twin has a place in the queue apart from its run: that one runs, this one waits."""
        if not self.note.join or not self.place or self.place == self.name:
            return False
        entry = self.guard.store.get(self.place)
        if entry is None or not _is_queued(entry) or entry.owner != self.note.join:
            return False
        return not self._twin(entry).is_gone

    def _put_back(self, held: Held | None) -> PutBack:
        if self.is_sync and held is not None:
            raise DuplicateTaskError(*_facts(held))
        _logger.info("%s[%s] is put back: it waits for %s", self.guarded.name, self.job.id, held and held.owner)
        self.note = self.note.with_(enqueueing=enqueueing_of(self.job))
        self.job.meta = self.note.within(self.job.meta)
        if not self.has_our_worker:
            # RQ counts it as one of the retries that a body may ask for; those are the body's own.
            self.job.number_of_retries = (self.job.number_of_retries or 0) - 1
        return PutBack()

    def _comes_back(self) -> None:
        """It was put back, by whichever worker."""
        restore_enqueueing(self.job, self.note.enqueueing)
        self.note = self.note.with_(enqueueing="")
        self.job.meta = self.note.within(self.job.meta)
        self.job.save_meta()  # type: ignore[no-untyped-call]

    # -- the body --------------------------------------------------------------------------------------------------

    def _work(self, work: Work, args: Any, kwargs: Any) -> Any:
        if self.guarded.settings.on_store_error == "retry":
            work.patience = UNTIL_THE_STORE_IS_BACK
        try:
            newer = self._take_place()
            if newer:
                work.release_quietly()
                self.note = self.note.with_(join=newer)
                return self._put_back(None)
            return self._body(work, args, kwargs)
        except BaseException as error:
            # The time of the job can be over at any point, also after its body, in these very lines.
            if interrupt.came_by_signal(error) and not self.is_settled:
                with suppress(StoreError):
                    self._fail(work, error)
            raise
        finally:
            work.abandon()

    def _body(self, work: Work, args: Any, kwargs: Any) -> Any:
        try:
            with work:
                value = self.guarded.call(args, kwargs)
                if inspect.iscoroutine(value):
                    value = _awaited(value)
        except BaseException as error:  # RQ takes any of them for the end of the job
            if work.is_own_loss(error):
                floor = work.floor_after(error)
                self.note = self.note.with_(floor=max(floor, self.note.floor))
                if self._has_job() and self._kept(work, keep_starts=not floor):
                    return self._put_back(None)
                work.release_quietly()
                return self._lost(work)
            self._forget_waiting()
            failure = error
            if not self._settled(lambda: self._fail(work, failure)):
                return self._lost(work)
            raise
        if isinstance(value, Retry):
            return self._retry(work, value)
        if is_scheduled_again(self.job):
            note_end(self.job)
        if not self._settled(lambda: self._succeed(work, value)):
            return self._lost(work)
        return value

    def _fail(self, work: Work, error: BaseException) -> bool:
        if self.job.should_retry:
            return self._requeue(work, self.job.get_retry_interval())
        note_end(self.job)  # before the store is told: a second copy looks there when it finds the end
        accepted = work.fail(error)
        if accepted:
            self._free_place()
        return accepted

    def _succeed(self, work: Work, value: Any) -> bool:
        if self.job.result_ttl == 0 and self.policy.on_done == "rerun":
            return work.complete("succeeded", None)  # nobody will ask what it was
        return work.succeed(value)

    def _retry(self, work: Work, retry: Retry) -> Any:
        """The body wants to be run again."""
        count = self.job.number_of_retries or 0
        self._forget_waiting()
        if count and count >= retry.max:
            error = EarlierFailureError(self.key, shown(self.owner), f"it wants more than {retry.max} retries")
            note_end(self.job)
            accepted = self._settled(lambda: work.fail(error))
            self._free_place()
        else:
            accepted = self._settled(lambda: self._requeue(work, Retry.get_interval(count, retry.intervals)))
        return retry if accepted else self._lost(work)

    def _requeue(self, work: Work, delay: float) -> bool:
        seconds = self.guarded.settings.queued_for + delay
        return work.requeue(seconds, copy_for=seconds)

    def _settled(self, end: Callable[[], bool]) -> bool:
        """Bring the end to the store; False if it is refused, as another run has begun."""
        try:
            accepted = end()
            self.is_settled = True
            return accepted
        except StoreError as error:
            _logger.error("%s[%s] has ended and the store cannot be told: %s", self.guarded.name, self.job.id, error)
            if self.guarded.settings.on_store_error == "run_unguarded":
                return True
            raise

    def _kept(self, work: Work, *, keep_starts: bool) -> bool:
        """Requeue a run that lost its lease, if nobody has the key by now. That was one of its starts.

        A run whose token a resource refused, and that nobody has replaced, has not lost it: the next token is higher.
        """
        seconds = self.guarded.settings.queued_for
        try:
            return work.requeue(seconds, copy_for=seconds, keep_starts=keep_starts)
        except StoreError:
            return False

    def _lost(self, work: Work) -> Any:
        """This run was replaced. It has nothing to say about a job that somebody else has in hand."""
        if self._is_left_to_us():
            return self._put_back(None)
        if self.has_our_worker:
            raise NothingToTell(f"{self.key}: the lease with token {work.lease.token} is over")
        raise LeaseLostError(self.key, work.lease.token)

    def _is_left_to_us(self) -> bool:
        """Whether nobody else will end this job: it was another one that took the key, or somebody's hand."""
        if not self._has_job():
            return False
        try:
            entry = self.guard.store.get(self.name)
        except StoreError:
            return False
        is_held = entry is not None and entry.state in ("queued", "running") and entry.remaining > 0
        return not (is_held and entry is not None and job_id_of(entry.owner) == self.job.id)

    def _has_job(self) -> bool:
        """Whether the job is this worker's to put back: RQ has not given it to another one, and has not ended it."""
        if self.is_sync:
            return False
        status, worker = cast(Any, self.job.connection.hmget(self.job.key, "status", "worker_name"))
        return (status or b"").decode() == JobStatus.STARTED and (worker or b"").decode() == self.job.worker_name

    def _forget_waiting(self) -> None:
        """Should RQ run it again, it waits for nobody yet."""
        if self.note.join or self.note.since:
            self.note = self.note.as_new()
            self.job.meta = self.note.within(self.job.meta)
            self.job.save_meta()  # type: ignore[no-untyped-call] # RQ does not when a job fails for good

    # -- the place in the queue ------------------------------------------------------------------------------------

    def _take_place(self) -> str:
        """The job starts: the next one may take its place in the queue. The newer job that has taken it already."""
        if not self.place or self.place == self.name:
            return ""
        if self._is_the_next():
            entry = self.guard.store.get(self.place)
            if entry is not None and self._was_replaced(entry) and not self._is_gone(entry):
                return entry.owner
        self._free_place()
        return ""

    def _was_replaced(self, entry: Entry) -> bool:
        if entry.owner in ("", self.owner):
            return False
        return _is_queued(entry) or entry.owner != self.note.join  # one that it joined has ended with nothing

    def _is_gone(self, entry: Entry) -> bool:
        return _is_queued(entry) and self._twin(entry).is_gone

    def _free_place(self) -> None:
        if not self.place or self.place == self.name:
            return
        try:
            claimant = Claimant(self.place, self.owner, new_attempt())
            self.guard.store.release(claimant, Ending(keep_for=self.policy.keep), anyway=True)
        except StoreError as error:  # whoever finds the place taken by a job that has ended takes it
            _logger.warning("the place of %s[%s] is not free yet: %s", self.guarded.name, self.job.id, error)

    # -- what has ended --------------------------------------------------------------------------------------------

    def _ended(self, done: Completed) -> Any:
        """Answer with how it ended, as RQ would have."""
        self._free_place()
        if self.has_our_worker and self._is_this_job(done.owner):
            status = cast(Any, self.job.connection.hget(self.job.key, "status") or b"").decode()
            if status in (JobStatus.FINISHED, JobStatus.FAILED):
                raise NothingToTell(f"it is a second copy, and the job is {status}")
        if done.how == "succeeded":
            return self._value_of(done)
        words = f"it was {done.how}"
        if done.outcome is not None:
            with suppress(NotKept):
                words = self.guard.outcomes.decode_error(done.outcome)
        self._forget_waiting()
        raise EarlierFailureError(done.key, shown(done.owner), words)

    def _value_of(self, done: Completed) -> Any:
        problem = "it was too large, or could not be written down"
        if done.outcome is not None:
            try:
                return self.guard.outcomes.decode(done.outcome)
            except NotKept as error:
                problem = str(error)
        if self.job.result_ttl == 0:
            return None
        result = Job(job_id_of(done.owner) or "-", connection=self.job.connection, serializer=self.job.serializer)
        found = result.latest_result()
        if found is not None and found.type == found.Type.SUCCESSFUL:
            return found.return_value
        raise OutcomeNotKeptError(done.key, shown(done.owner), problem)

    def _end_for_good(self) -> None:
        self._free_place()
        note_end(self.job)

    # -- the store is away -----------------------------------------------------------------------------------------

    def _without_store(self, error: StoreError, args: Any, kwargs: Any) -> Any:
        what = self.guarded.settings.on_store_error
        if what == "run_unguarded":
            _logger.warning("%s[%s] runs unguarded: %s", self.guarded.name, self.job.id, error)
            return self.guarded.call(args, kwargs)
        if what == "fail" or self.is_sync or not isinstance(error, StoreUnavailableError):
            raise error
        return self._put_back(None)  # the guard has been asking for a while already


def _facts(held: Held) -> tuple[str, str, str, float, int]:
    return held.key, shown(held.owner), held.state, held.since, held.token


def _is_queued(entry: Entry) -> bool:
    return entry.state == "queued" and entry.remaining > 0


def _awaited(coroutine: Any) -> Any:
    # As RQ does; but here, where the lease is renewed.
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()
