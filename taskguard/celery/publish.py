"""What happens when a guarded task is called: claim its place, then publish; or answer with the twin's handle.

A handle that is given out is backed by a message that somebody saw the broker accept. Who claims a place publishes and
then marks it; a duplicate that finds it unmarked publishes the same job itself, and marks it. Whatever comes twice that
way is recognised by its id at the worker.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import Any

from celery.utils import uuid

from taskguard.celery.call import Call
from taskguard.celery.delivery import running
from taskguard.celery.guarding import Guarding, TaskGuard
from taskguard.celery.headers import Headers
from taskguard.celery.items import is_no_task
from taskguard.celery.result import StoredResult, handle, info
from taskguard.celery.shown import with_texts
from taskguard.errors import DuplicateTaskError, KeyArgumentError, PayloadMismatchError, StoreError
from taskguard.guard import new_attempt
from taskguard.interrupt import came_by_signal
from taskguard.names import check_job_id
from taskguard.places import is_queued, next_of, place_of, run_of
from taskguard.schedule.entry import may_be_of_a_slot
from taskguard.store import Completed, Ending, Held, Lease

PATIENCE = 1.0
"""How long a call waits for a store that does not answer; then its message is published unclaimed."""

_logger = logging.getLogger("taskguard")


class Publisher:
    def __init__(self, guarding: Guarding) -> None:
        self._guarding = guarding

    def call(self, task: TaskGuard, call: Call) -> Any:
        """Publish the call, unless its work is queued, running or done already."""
        one = _OneCall(self._guarding, task, call)
        try:
            return one.publish()
        except StoreError as error:
            if one.has_claimed:
                raise
            # The worker will ask. Whatever the store's trouble is, it is no reason to lose the call.
            _logger.warning("%s[%s] is published unclaimed: %s", call.name, one.task_id, error)
            return one.publish_unclaimed()


class _OneCall:
    def __init__(self, guarding: Guarding, task: TaskGuard, call: Call) -> None:
        self._guarding = guarding
        self._task = task
        self._policy = task.policy
        self._call = call
        given = call.options.get("task_id")
        self._is_named = given is not None
        self.task_id: str = given if given is not None else uuid()
        self.has_claimed = False
        self._headers = call.headers
        self._interrupted: BaseException | None = None
        """What was raised while the message was being prepared."""

    @property
    def _is_awaited(self) -> bool:
        """Only a result under this very id will do (for a canvas, for its links): it is published all the same."""
        return self._is_named or self._call.is_linked or self._guarding.results_are_private

    @property
    def _is_sent_by_celery(self) -> bool:
        """Whether it is a callback of a job that has ended.

        Nobody is there to whom something can be raised: it would make a failure of that job, and the callback would
        be gone. It is published, and refused by the worker, where it fails as itself.
        """
        return bool(self._call.options.get("parent_id")) and running() is None

    def publish(self) -> Any:
        if not self._finds_key():
            return self._call.publish()
        if not self._headers.store:
            store = self._guarding.identity.name(self._guarding.calls, PATIENCE)
            self._headers = self._headers.with_(store=store, at=time.time())
        if self._headers.slot:
            return self.publish_unclaimed()  # the run of its slot is claimed: whether it may run is for that to say
        place = self._headers.place or place_of(self._policy, self._headers.key)
        if place and place != self._headers.place and self._finds_one_more_queued():
            place = next_of(self._headers.key)
            self._headers = self._headers.with_(place=place)
        return self._claim_and_publish(place) if place else self.publish_unclaimed()

    def _finds_key(self) -> bool:
        """False for a call that the body is to refuse, or the worker."""
        try:
            self._headers = self._find_key()
        except Exception as error:
            if came_by_signal(error) or not (_is_for_the_body(error) or self._is_sent_by_celery):
                raise
            return False
        return True

    def _finds_one_more_queued(self) -> bool:
        """The one more run of an earlier call has not begun, though the key may be free: this call is news to it.

        Published beside it, these arguments would run first, and the older ones after them.
        """
        if self._policy.on_conflict.enqueue != "run_once_more":
            return False
        return is_queued(self._guarding.calls.store.get(next_of(self._headers.key)))

    def _find_key(self) -> Headers:
        if self._is_named:
            check_job_id("task_id", self.task_id)
        found = self._headers
        if found.key:
            return found
        keys, args, kwargs = self._task.keys, self._call.args or (), self._call.kwargs or {}
        given = found.idempotency_key
        key = keys.explicit(given) if given else keys(args, kwargs)
        payload = self._task.payload(args, kwargs, explicit=bool(given))
        facts: dict[str, Any] = {"id": self.task_id, "key": key, "payload": payload, "idempotency_key": given}
        if found.slot:
            facts["slot"] = found.slot
        return Headers(**facts)

    # -- asking ----------------------------------------------------------------------------------------------------

    def _claim_and_publish(self, place: str, *, replace: bool = False) -> Any:
        self._delay = self._call.delay(self._guarding.zone)
        self._waits_for = self._call.waits_for(self._guarding.settings.queued_for + self._delay, self._guarding.zone)
        answer = self._ask(place, replace=replace)
        if isinstance(answer, Lease):
            return self._publish_claimed(answer)
        if not self._policy.enforce:
            return self.publish_unclaimed()
        if self._is_other_work(answer):
            if not self._is_sent_by_celery:
                raise PayloadMismatchError(answer.key, answer.owner)
            return self._leave_to_worker(answer)
        if isinstance(answer, Completed):
            return self._answer_done(answer)
        if answer.owner == self.task_id:
            return self._publish_own(answer)
        return self._meet(answer)

    def _ask(self, place: str, *, replace: bool) -> Lease | Held | Completed:
        guard = self._guarding.calls
        claim = guard.new_claim(
            place,
            self.task_id,
            self._policy,
            state="queued",
            lease=self._waits_for,
            payload=self._headers.payload,
            copy_for=self._guarding.settings.republish_after,
            replace_queued=replace,
            meanwhile=lambda: self._prepare(),  # a method would be copied with all of the app, by who copies a claim
        )
        arguments = self._task.arguments(self._call.args or (), self._call.kwargs or {})
        try:
            answer = guard.ask(claim, patience=PATIENCE, arguments=arguments)[1]
        except StoreError:
            if self._interrupted is not None:
                raise self._interrupted from None
            raise
        if self._interrupted is not None:
            if isinstance(answer, Lease):
                self._give_back(answer)
            raise self._interrupted
        return answer

    def _prepare(self) -> None:
        """Part of what Celery does for a message, before it is known whether there will be one."""
        if self._interrupted is not None:
            return
        try:
            self._call = with_texts(self._call, self._guarding.app)
        except BaseException as error:
            # Arguments that make no message, or a time limit, or Ctrl-C: raised once the store has said whether there
            # is a claim to be given back.
            self._interrupted = error

    def _is_other_work(self, answer: Held | Completed) -> bool:
        """Whether its caller's own idempotency key was used with other arguments before."""
        mine = self._headers.payload if self._headers.idempotency_key else ""
        return bool(mine and answer.payload and mine != answer.payload)

    # -- answers ---------------------------------------------------------------------------------------------------

    def publish_unclaimed(self) -> Any:
        self._name_call()
        return handle(self._publish(), info(self._headers.key, self.task_id, None))

    def _name_call(self) -> None:
        """The store was not asked about the run of this id, so this may not be its first call."""
        if self._is_named and self._call.is_linked and self._headers.key and not self._headers.slot:
            self._headers = self._headers.with_(call=new_attempt())

    def _publish(self) -> Any:
        return self._call.publish_as(self.task_id, self._headers)

    def _publish_claimed(self, lease: Lease) -> Any:
        self.has_claimed = True
        if lease.key != run_of(self._policy, self._headers.key, self.task_id):
            self._name_call()
        try:
            result = self._publish()
        except BaseException:
            self._give_back(lease)  # the broker refused it
            raise
        self._mark(lease)
        return handle(result, info(self._headers.key, self.task_id, lease))

    def _give_back(self, lease: Lease) -> None:
        """No message is known to have left. If a worker has one all the same, the claim is not ours any more."""
        with suppress(StoreError):
            self._guarding.calls.store.release(lease, Ending(keep_for=self._policy.keep))

    def _publish_own(self, held: Held) -> Any:
        """This very job is queued or running already: its message goes out once more only if it is queued."""
        if self._is_heard_by_message:
            self._note_further_call(f"is {held.state} already")
        if held.state == "queued":
            result = self._publish()
            self._mark(held)
        elif self._is_heard_by_message:
            result = self._publish()
        else:
            result = self._result_of(self.task_id)
        return handle(result, info(self._headers.key, self.task_id, held))

    @property
    def _is_heard_by_message(self) -> bool:
        """Whether a handle is not enough: something is linked to the call, or waits for a message of its own."""
        call = self._call
        return call.is_linked or bool(call.options.get("group_id")) or self._guarding.results_are_private

    def _note_further_call(self, what: str, *, has_ended: bool = False) -> None:
        self._headers = self._headers.with_(call=new_attempt(), unanswered=has_ended)
        _logger.info("%s[%s] %s: this call is published too, and gets its outcome", self._call.name, self.task_id, what)

    def _answer_done(self, done: Completed) -> Any:
        about = info(self._headers.key, self.task_id, done)
        if done.owner != self.task_id:
            is_published = self._is_awaited
        else:
            is_published = self._is_heard_by_message
            if is_published:
                self._note_further_call("ended before", has_ended=True)
            else:
                _logger.info("%s[%s] ended before: this call gets its outcome", self._call.name, self.task_id)
        if is_published:
            return handle(self._publish(), about)  # a worker answers under this id
        return handle(StoredResult(done, self._guarding.outcomes, self._guarding.app), about)

    def _meet(self, held: Held) -> Any:
        """Another job has the place: what `on_conflict` says."""
        is_unbacked = held.publish and not self._guarding.marks.knows(held.owner)
        if is_unbacked and held.payload == self._headers.payload and not may_be_of_a_slot(held.owner):
            self._publish_for(held)
            is_unbacked = False
        # Else that message cannot be made of this call, which knows of no slot, say: this one is published, and takes
        # its place if need be.
        conflict = self._policy.on_conflict.enqueue
        if conflict == "raise" and not self._is_named:
            if self._is_sent_by_celery:
                return self._leave_to_worker(held)
            if is_unbacked:
                self._headers = self._headers.with_(join=held.owner)
                self._publish()
            raise DuplicateTaskError(held.key, held.owner, held.state, held.since, held.token)
        if conflict == "run_once_more" and self._is_news_to(held):
            following = next_of(self._headers.key)
            self._headers = self._headers.with_(place=following)
            return self._claim_and_publish(following, replace=held.key == following)  # newest arguments
        about = info(self._headers.key, self.task_id, held)
        if not (self._is_awaited or is_unbacked or is_no_task(held.owner)):
            return handle(self._result_of(held.owner), about)
        if conflict != "raise":
            self._headers = self._headers.with_(join=held.owner)
        return handle(self._publish(), about)

    def _leave_to_worker(self, answer: Held | Completed) -> Any:
        return handle(self._publish(), info(self._headers.key, self.task_id, answer))

    def _is_news_to(self, held: Held) -> bool:
        return held.state == "running" or held.payload != self._headers.payload

    def _publish_for(self, held: Held) -> None:
        """Publish the twin's message: nobody is known to have done so lately."""
        guarding = self._guarding
        delay = max(0.0, held.remaining - guarding.settings.queued_for)  # what is left of its own
        self._call.publish_for_twin(held.owner, self._headers, delay)
        guarding.marks.add(held, held.remaining, guarding.settings.republish_after + delay)

    def _mark(self, claimant: Lease | Held) -> None:
        copy_for = self._guarding.settings.republish_after + self._delay
        self._guarding.marks.add(claimant, self._waits_for, copy_for)

    def _result_of(self, task_id: str) -> Any:
        make = self._call.options.get("result_cls") or self._guarding.app.AsyncResult
        result = make(task_id)
        result.ignored = bool(self._call.options.get("ignore_result"))  # as Celery's own: nobody waits for it
        return result


def _is_for_the_body(error: Exception) -> bool:
    """Arguments that do not fit are for the body to refuse, as without a guard."""
    return isinstance(error, TypeError) and not isinstance(error, KeyArgumentError)
