"""One delivery of a guarded job, in the process that runs its body: claim, run, settle; or wait, join, or answer.

Nothing is dropped that somebody may wait for, and nothing is acknowledged before its end is in the store. What cannot
run now is **put back**: published again under the same id, with a delay, and then acknowledged.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, NoReturn

from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject, Retry
from kombu.exceptions import OperationalError

from taskguard.celery import first_success
from taskguard.celery.call import Call
from taskguard.celery.guarding import Guarding, TaskGuard
from taskguard.celery.headers import ATTEMPT, Headers
from taskguard.celery.inprocess import BodyInThisProcess
from taskguard.celery.message import Message
from taskguard.celery.outcomes import CannotBeWritten
from taskguard.errors import (
    ConfigurationError,
    DuplicateTaskError,
    EarlierFailureError,
    KeyArgumentError,
    OutcomeNotKeptError,
    PayloadMismatchError,
    StoreError,
    StoreUnavailableError,
    TooManyStartsError,
    WaitTimeoutError,
)
from taskguard.guard import Guard, new_attempt
from taskguard.lone_fence import lone_fence
from taskguard.outcomes import NotKept
from taskguard.places import job_of, next_of, place_of, run_of
from taskguard.policy import Policy
from taskguard.schedule import Note
from taskguard.store import Claim, Claimant, Completed, Ending, Entry, Held, How
from taskguard.work import Work, effects_of

ENDED = "_taskguard_ended"
"""On the request of a job whose end is in the store: how it ended."""
HEIR_WAITS = 5
"""Rounds, some eight seconds in all, that a job waits for a queued twin whose message seems to be lost."""
KEPT_OF_THE_IGNORED = 1024
"""Bytes of a result that nobody wants to have stored; a twin in a chain may still need it to go on."""
UNTIL_THE_STORE_IS_BACK = 3600.0
"""A body that has run is not run again because the store is away: its end waits, as long as the worker lives."""

_logger = logging.getLogger("taskguard")
_running: ContextVar[Run | None] = ContextVar("taskguard_celery_run", default=None)


def running() -> Run | None:
    """The delivery whose body this code is part of."""
    return _running.get()


class Run:
    def __init__(self, task: Any, request: Any, body: Callable[..., Any]) -> None:
        self.task = task
        self.body = body
        self.guarded: TaskGuard = task.taskguard
        self.policy: Policy = self.guarded.policy
        self.guarding: Guarding = self.guarded.guarding
        self.guard: Guard = self.guarding.guard
        self.message = Message(task, request)
        self.request = request
        self.id = self.message.id
        self.note = Note.of(self.message.headers.slot)
        self.held_back: list[Call] = []
        """Messages under this very id that the body wants sent (a retry, a replacement): they leave after it."""
        self.was_held = False
        """The store has said that another run has the key, whatever became of it since."""
        self.replaced_by_itself = False
        """Replaced by work at whose end the same task runs under the same id."""

    @property
    def headers(self) -> Headers:
        return self.message.headers

    def hold_back(self, call: Call) -> Any:
        self.held_back.append(call)
        return self.guarding.app.AsyncResult(self.id)

    def __call__(self, args: Any, kwargs: Any) -> Any:
        try:
            self._find_key(args, kwargs)
        except KeyArgumentError:
            raise
        except TypeError:
            return self.body(*args, **kwargs)  # arguments that do not fit: the body says so itself
        try:
            answer = self._ask()
        except StoreError as error:
            return self._without_store(error, args, kwargs)
        except TooManyStartsError:
            self._free_place()
            self._note_end("failed")
            raise
        if isinstance(answer, Completed):
            return self._ended(answer)
        return self._work(answer, args, kwargs)

    # -- asking ----------------------------------------------------------------------------------------------------

    def _ask(self) -> Work | Completed:
        """The claim, or the end that answers it; whoever has to wait is put back."""
        self._look_at_the_same_store()
        self._give_way_to_the_queued_twin()
        answer = self._begin(self._claim())
        if not self.policy.enforce and not isinstance(answer, Work):
            answer = self._begin(self._claim_beside())
        while isinstance(answer, Held):
            answer = self._held(answer)
        return answer

    def _find_key(self, args: Any, kwargs: Any) -> None:
        headers = self.headers
        if not headers.key:
            keys, given = self.guarded.keys, headers.idempotency_key
            key = keys.explicit(given) if given else keys(args, kwargs)
            payload = self.guarded.payload(args, kwargs, explicit=bool(given))
            self.message.headers = headers.with_(id=self.id, key=key, payload=payload)
            headers = self.headers
        self.key = headers.key
        self.arguments = self.guarded.arguments(args, kwargs)
        self.place = headers.place or place_of(self.policy, self.key)
        self.name = run_of(self.policy, self.key, headers.join or self.id)
        if self.note is not None and self.note.overlap == "allow_all":
            self.name = job_of(self.key, self.id)

    def _claim(self) -> Claim:
        headers = self.headers
        return self.guard.new_claim(
            self.name,
            self.id,
            self.policy,
            attempt=getattr(self.request, ATTEMPT, ""),
            join=headers.join,
            skip=self._ends_at_once(),
            payload=headers.payload,
            copy=headers.copy,
            copy_for=self.guarding.settings.republish_after,
            floor=headers.floor,
        )

    def _claim_beside(self) -> Claim:
        """For a body that runs whoever holds the key (`enforce=False`): it has a fence of its own."""
        attempt = getattr(self.request, ATTEMPT, "") or new_attempt()
        return self.guard.new_claim(f"{self.key}:beside:{attempt}", self.id, self.policy, attempt=attempt)

    def _begin(self, claim: Claim) -> Work | Held | Completed:
        self.claim = claim
        headers = self.headers
        idempotency_key, effect = self._known_by()
        answer = self.guard.begin(
            claim,
            self.policy,
            idempotency_key=idempotency_key,
            effect_key=effect,
            scheduled_for=self.note.scheduled_for if self.note else None,
            schedule=self.note.schedule if self.note else "",
            arguments=self.arguments,
        )
        if isinstance(answer, Work) or not self.policy.enforce:
            return answer
        if headers.idempotency_key and answer.payload and headers.payload != answer.payload:
            raise PayloadMismatchError(answer.key, answer.owner)
        return answer

    def _known_by(self) -> tuple[str, str]:
        """What makes two runs the same work: for others, and for `fence.once`."""
        given = self.headers.idempotency_key
        by_key = self.id if self.policy.on_done == "rerun" else self.key
        if self.note is not None:
            by_key = self.note.key
        # Another task may be called with the same key of the caller's: its effects are others.
        return given or by_key, self.key if given else by_key

    def _ends_at_once(self) -> bool:
        """Whether this job is over if another one is running: it is told in the same step that finds it out."""
        conflict = self._conflict()
        return conflict == "raise" or (conflict == "skip" and not self._is_awaited and self.policy.enforce)

    @property
    def _is_awaited(self) -> bool:
        # Nobody holds the handle of a scheduled call.
        return self.message.is_awaited if self.note is None else self.message.is_linked

    def _conflict(self) -> str:
        conflict = self.policy.on_conflict.run
        if self.note is not None:  # of a scheduled job that is the schedule's to say
            return "skip" if self.note.overlap == "skip" else "wait"
        if conflict == "skip" and (self.policy.hold == "one_queued_one_running" or self._is_the_next()):
            return "wait"  # it has a place in the queue for the very purpose of running after the other one
        return conflict

    def _is_the_next(self) -> bool:
        return self.headers.place == next_of(self.key)

    def _look_at_the_same_store(self) -> None:
        headers = self.headers
        if self.guarding.identity.is_other(self.guard, headers.store, headers.at):
            problem = (
                f"{self.task.name}[{self.id}] was published by a process that looks at another store than "
                f"{self.guard.store!r}; give both the same taskguard_store. The job waits"
            )
            _logger.error("%s", problem)
            if self.request.is_eager:
                raise ConfigurationError(problem)
            self._put_back("its publisher looks at another store")

    def _give_way_to_the_queued_twin(self) -> None:
        """A joiner whose twin has a place in the queue apart from its run: that one runs, this one waits."""
        if self.headers.join and self.place and self.place != self.name:
            entry = self.guard.store.get(self.place)
            if _is_queued(entry) and entry is not None and entry.owner == self.headers.join:
                self._put_back(f"{entry.owner} is queued")

    # -- the body --------------------------------------------------------------------------------------------------

    def _work(self, work: Work, args: Any, kwargs: Any) -> Any:
        try:
            self._take_place(work)
            if self.guarding.settings.on_store_error == "retry" and not self.request.is_eager:
                work.patience = UNTIL_THE_STORE_IS_BACK
            self._tell_started()
            with BodyInThisProcess(getattr(self.request, ATTEMPT, "")):
                return self._body(work, args, kwargs)
        finally:
            work.abandon()

    def _body(self, work: Work, args: Any, kwargs: Any) -> Any:
        before = _running.set(self)
        try:
            try:
                with work:
                    value = self.body(*args, **kwargs)
            finally:
                _running.reset(before)
            outcome = self._outcome_of(value)
        except Retry as retry:
            self._note_floor(work, retry.exc)
            self._go_on_elsewhere(work)
            raise
        except Reject as rejected:
            requeue = rejected.requeue and self.task.acks_late  # else the broker has no message to put back
            self._settled(lambda: self._requeue(work) if requeue else work.release("rejected"))
            raise
        except Ignore:
            self._go_on_elsewhere(work)
            raise
        except Exception as error:
            failure = error
            if work.is_own_loss(failure):
                refused = self._note_floor(work, failure)
                if self.request.is_eager:  # nothing can be put back
                    if work.release_quietly():
                        self.guard.raise_tokens(self.claim.key, self.headers.floor, self.policy)
                    raise
                with suppress(StoreError):  # if nobody has it by now, that was one of its starts, or its token too low
                    self._requeue(work, keep_starts=not refused)
                self._put_back(str(failure) if refused else "it lost its lease")
            if self.held_back:  # it failed after it had asked for a retry: that is on its way, as without a guard
                self._go_on_elsewhere(work)
                raise
            self._settled(lambda: work.fail(failure))
            self._note_end("failed")
            raise
        if self.held_back:  # a retry that was not thrown
            self._go_on_elsewhere(work)
            return value
        if self._settled(lambda: work.complete("succeeded", outcome)) and not self.message.ignores_result:
            first_success.expect(self.task.backend, self.id)
        self._note_end("succeeded")
        return value

    def _note_floor(self, work: Work, error: BaseException | None) -> bool:
        """Whether a resource refused this run's token; then the next one is to be higher, wherever it runs."""
        floor = work.floor_after(error)
        if floor:
            self.message.headers = self.headers.with_(floor=max(floor, self.headers.floor))
        return bool(floor)

    def _outcome_of(self, value: Any) -> bytes | None:
        """What is kept of the result. One that Celery cannot store is a failure of the job, here as there."""
        try:
            outcome = self.guarding.outcomes.encode(value)
        except CannotBeWritten as why:
            has_its_own = getattr(self.task, "_backend", None) is not None  # which may be able to write it
            if self.message.ignores_result or self.request.is_eager or has_its_own or why.__cause__ is None:
                self._tell_not_kept(why)
                return None
            raise why.__cause__ from None
        except NotKept as why:
            self._tell_not_kept(why)
            return None
        is_unwanted = self.message.says_ignore and not self.message.is_linked and self.policy.on_done == "rerun"
        return None if is_unwanted and len(outcome) > KEPT_OF_THE_IGNORED else outcome

    def _tell_not_kept(self, why: NotKept) -> None:
        self.guard.tell("not_kept", self.claim, detail=str(why))

    def _settled(self, end: Callable[[], bool]) -> bool:
        """Bring the end to the store. One that is refused is another run's to tell: the message is put back.

        Whether the store has accepted it; it has not where the app would rather go on without.
        """
        try:
            accepted = end()
        except StoreError as error:
            if self.guarding.settings.on_store_error == "run_unguarded":
                return False
            _logger.error("%s[%s] has ended and the store cannot be told: %s", self.task.name, self.id, error)
            if self.guarding.settings.on_store_error == "fail" or self.request.is_eager:
                raise
            self._put_back("the store cannot be told of its end")
        if not accepted and not self.request.is_eager:
            self._put_back("another run of it has begun")
        return accepted

    def _go_on_elsewhere(self, work: Work) -> None:
        """The body has unwound, and the job goes on as another message, or not at all."""
        same = [call for call in self.held_back if self._is_this_job(call)]
        for call in self.held_back:
            if call not in same:
                # Replaced by other work under this id. It is published before this job ends: if the worker dies
                # between, the body runs again and publishes the same id again, which is recognised.
                self._send(self.guarding.app.send_task, call)
        headers = self.headers.as_new().with_(copy=new_attempt())
        if same and self.claim.key != self.name:
            self._settled(work.release)  # it ran beside another one, and the next run has an entry of its own
        elif same:
            # By name: an older copy of the message would start it at once, and not know which retry it is.
            self._settled(lambda: self._requeue(work, same[0], copy=headers.copy))
        elif self.request.is_eager or self.replaced_by_itself:
            self._settled(work.release)
        else:
            self._settled(lambda: work.release("ignored"))
        for call in same:
            self._send(self.guarding.send, call.with_(headers), work)

    def _is_this_job(self, call: Call) -> bool:
        """Whether it is a retry, or a replacement by the same key."""
        if call.headers.key:
            return call.headers.key == self.key
        if call.name == self.task.name and call.options.get("retries", 0) > self.request.retries:
            return True
        guarded = getattr(call.options.get("task_type"), "taskguard", None)
        if guarded is None:
            return False
        with suppress(TypeError):
            key = guarded.keys(call.args or (), call.kwargs or {})
            return bool(run_of(guarded.policy, key, self.id) == self.name)
        return False

    def _send(self, send: Callable[..., Any], call: Call, requeued: Work | None = None) -> None:
        try:
            send(call.name, call.args, call.kwargs, **call.options)
        except OperationalError as error:
            if requeued is not None and self.task.acks_late:
                self._expect_the_old_message(requeued)
            elif requeued is not None:
                self._leave_receipt("failed", self.guarding.outcomes.encode_error(error))
            self.message.give_back(error)
        except Exception as error:  # it cannot be written, say, and never will be: the job ends here
            self._leave_receipt("failed", self.guarding.outcomes.encode_error(error))
            raise

    def _requeue(self, work: Work, call: Call | None = None, *, copy: str = "", keep_starts: bool = False) -> bool:
        settings, zone = self.guarding.settings, self.guarding.zone
        delay = 0.0 if call is None else call.delay(zone)
        seconds = settings.queued_for + delay
        if call is not None:
            seconds = call.waits_for(seconds, zone)
        copy_for = settings.republish_after + delay
        return work.requeue(seconds, copy_for=copy_for, copy=copy, keep_starts=keep_starts)

    def _expect_the_old_message(self, work: Work) -> None:
        """The one that was named did not leave: the job starts by whichever comes."""
        settings = self.guarding.settings
        with suppress(StoreError):
            self.guard.store.requeue(work.lease, settings.queued_for, copy_for=settings.republish_after)

    def _take_place(self, work: Work) -> None:
        """The job starts: the next one may take its place in the queue."""
        if not self.place or self.place == self.name:
            return
        if self._is_the_next():
            try:
                entry = self.guard.store.get(self.place)
            except StoreError as error:  # whether a newer call has taken the place is not known: not yet, then
                work.give_up()
                self._put_back(f"the store does not say whether it has its place: {error}")
            if entry is not None and self._was_replaced(entry):
                # A newer call has taken the place, with newer arguments, and may have run since: this one ends as that
                # one does.
                work.give_up()
                self.message.headers = self.headers.with_(join=entry.owner)
                self._put_back(f"it joins {entry.owner}, which has newer arguments")
        self._free_place()

    def _was_replaced(self, entry: Entry) -> bool:
        if entry.owner in ("", self.id):
            return False
        return _is_queued(entry) or entry.owner != self.headers.join  # one that it joined has ended with nothing

    def _free_place(self) -> None:
        if not self.place or self.place == self.name:
            return
        ending = Ending(keep_for=self.policy.keep)
        try:
            self.guard.store.release(Claimant(self.place, self.id, new_attempt()), ending, anyway=True)
        except StoreError as error:  # whoever finds the place taken for too long publishes this job again, and here
            _logger.warning("the place of %s[%s] is not free yet: %s", self.task.name, self.id, error)

    def _tell_started(self) -> None:
        if self.task.taskguard_tracks_start and not self.message.ignores_result and not self.request.is_eager:
            started = {"pid": os.getpid(), "hostname": self.request.hostname}
            try:
                self.task.backend.store_result(self.id, started, "STARTED", request=self.request)
            except Exception as error:  # whatever the backend's driver raises: it is only a notice
                _logger.warning("%s[%s] has started, and its state is not told: %s", self.task.name, self.id, error)

    # -- what has ended --------------------------------------------------------------------------------------------

    def _ended(self, done: Completed) -> Any:
        """Answer with how it ended, as Celery would have; drop a leftover copy of what was answered."""
        own = done.owner == self.id
        self._free_place()
        if own and done.how == "skipped" and self._conflict() == "raise" and not self._was_answered(done):
            self._note_end("skipped")
            raise DuplicateTaskError(self.key, done.twin, "running", done.at, done.token)
        if done.how not in ("succeeded", "failed"):
            raise Ignore(f"{self.key}: {done.how} before")
        if own and self._was_answered(done):
            raise Ignore(f"{self.key}: {done.how} before, and answered")
        if not own and self.message.is_linked:
            self._leave_receipt(done.how, done.outcome)
        self._note_end(done.how)
        if done.how == "succeeded":
            return self._value_of(done)
        if done.outcome is None:
            raise EarlierFailureError(done.key, done.owner, "what it failed with was not kept")
        raise self.guarding.outcomes.exception(done.outcome)

    def _was_answered(self, done: Completed) -> bool:
        """If nothing goes on after this job, all there was to do is to store its result."""
        if done.answered:
            return True
        if self.message.is_linked or self.request.is_eager:
            return False
        if self.message.ignores_result:
            return True
        state: str | None = self.task.backend.get_task_meta(self.id).get("status")
        return state == ("SUCCESS" if done.how == "succeeded" else "FAILURE")

    def _value_of(self, done: Completed) -> Any:
        if done.outcome is not None:
            return self.guarding.outcomes.decode(done.outcome)
        if self.message.ignores_result and not self.message.is_linked:
            return None
        if not isinstance(self.task.backend, DisabledBackend):
            meta = self.task.backend.get_task_meta(done.owner)
            if meta.get("status") == "SUCCESS":
                return meta["result"]
        raise OutcomeNotKeptError(done.key, done.owner, "it was too large, or could not be written down")

    def _leave_receipt(self, how: How, outcome: bytes | None) -> None:
        """This job has ended without a lease: a leftover copy of it must find that out."""
        ending = Ending(how=how, keep_for=self.policy.keep, outcome=outcome)
        try:
            self.guard.store.release(self.claim, ending, anyway=True)
        except StoreError as error:
            _logger.warning("the end of %s[%s] is not written down: %s", self.task.name, self.id, error)

    def _note_end(self, how: How) -> None:
        if self.message.is_linked:
            setattr(self.request, ENDED, (self.claim, how))

    # -- what is held ----------------------------------------------------------------------------------------------

    def _held(self, held: Held) -> Work | Held | Completed:
        self.was_held = True
        facts = (self.key, held.owner, held.state, held.since, held.token)
        if self.request.is_eager:
            raise DuplicateTaskError(*facts)  # nothing can be put back
        if held.owner == self.id:
            return self._another_delivery(held)
        if held.state == "queued":
            if self.headers.heir == held.owner and self.headers.rounds >= HEIR_WAITS:
                return self._begin(replace(self.claim, replace_queued=True))
            self._check_patience(held, facts)
            self._give_way(held)
        conflict = self._conflict()
        if conflict == "raise":
            self._note_end("skipped")
            raise DuplicateTaskError(*facts)
        return self._skip(held) if conflict == "skip" else self._wait(held, facts)

    def _give_way(self, held: Held) -> NoReturn:
        """Another job is queued: that one runs, and this one ends as it does."""
        if held.publish and held.payload == self.headers.payload:
            self._publish_for(held)
        elif held.publish and self.headers.heir != held.owner:
            # Its message seems to be lost, and cannot be made of this one. It may also just be on its way.
            self.message.headers = self.headers.with_(heir=held.owner, rounds=0)
        if self._conflict() == "skip":
            self.message.headers = self.headers.with_(join=held.owner)
        self._put_back(f"it gives way to {held.owner}, which is queued")

    def _wait(self, held: Held, facts: tuple[str, str, str, float, int]) -> NoReturn:
        self._check_patience(held, facts)
        self._put_back(f"it waits for {held.owner}", within=held.remaining)

    def _check_patience(self, held: Held, facts: tuple[str, str, str, float, int]) -> None:
        waited = time.time() - (self.headers.since or time.time())
        if self.policy.on_conflict.run == "wait" and waited > self.policy.wait_up_to:
            error = WaitTimeoutError(*facts, round(waited, 1))
            self._free_place()
            self._leave_receipt("failed", self.guarding.outcomes.encode_error(error))
            raise error

    def _skip(self, held: Held) -> NoReturn:
        if not self._is_awaited:
            raise Ignore(f"{self.key}: skipped, {held.owner} is running it")  # its receipt came with the answer
        self.message.headers = self.headers.with_(join=held.owner)
        self._put_back(f"it joins {held.owner}", within=held.remaining)

    def _another_delivery(self, held: Held) -> Work | Held | Completed:
        """This very job is running elsewhere: one copy of its message waits, in case that run dies."""
        if held.state == "queued":
            self._put_back("a newer message of it is on its way")
        if not self.headers.copy:
            # A message is given a name when it first needs one, which is seldom.
            self.message.headers = self.headers.with_(copy=new_attempt())
            return self._begin(replace(self.claim, copy=self.headers.copy))
        if not held.publish:
            raise Ignore(f"{self.key}: {self.id} is running, and another copy of it waits")
        self.message.publish_again(longest=self.guarding.longest_delay, within=held.remaining)
        # Named only now: a copy that was named and never published would let all others be dropped.
        answer = self._begin(replace(self.claim, copy_for=2 * self.guarding.longest_delay + 10, stamp=held.stamp))
        if isinstance(answer, Held):
            raise Ignore(f"put back: {self.id} is running elsewhere")
        return answer

    def _publish_for(self, held: Held) -> None:
        settings = self.guarding.settings
        self.message.publish_for(held.owner, self.headers.with_(place="", slot=None).as_new())
        with suppress(StoreUnavailableError):
            self.guard.store.mark([(held, held.remaining)], copy_for=settings.republish_after)

    # -- put back --------------------------------------------------------------------------------------------------

    def _put_back(self, why: str, *, within: float = float("inf")) -> NoReturn:
        if not self.headers.since:
            self.message.headers = self.headers.with_(since=time.time())
        self.message.put_back(f"{self.key}: {why}", longest=self.guarding.longest_delay, within=within)

    def _without_store(self, error: StoreError, args: Any, kwargs: Any) -> Any:
        what = self.guarding.settings.on_store_error
        if what == "run_unguarded" and not self.was_held:
            _logger.warning("%s[%s] runs unguarded: %s", self.task.name, self.id, error)
            idempotency_key, effect = self._known_by()
            effects = effects_of(self.policy, self.id, idempotency_key, effect)
            with lone_fence(self.name, self.id, idempotency_key, effects) as fence:
                if self.note is not None:
                    fence.scheduled_for, fence.schedule = self.note.scheduled_for, self.note.schedule
                return self.body(*args, **kwargs)
        if (
            (what == "fail" and not self.was_held)
            or self.request.is_eager
            or not isinstance(error, StoreUnavailableError)
        ):
            raise error
        return self._put_back("the store does not answer")


def _is_queued(entry: Entry | None) -> bool:
    return entry is not None and entry.state == "queued" and entry.remaining > 0
