"""A queue as a scenario speaks of it, by Celery and by RQ: its functions, their calls, and deliveries one by one.

Deliveries run in the test's own process. Celery's broker, result backend and store are in its memory; RQ's are a real
Redis, whose jobs RQ's own worker runs. What needs a process of its own is in `workers.py`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
import redis
import rq
from billiard.exceptions import WorkerLostError
from celery.exceptions import Reject, SoftTimeLimitExceeded
from rq.cron import CronJob
from rq.job import Job

import taskguard.rq
from taskguard import StoreUnavailableError
from taskguard.celery import install, settings
from taskguard.celery.guarding import app_guard_of
from taskguard.celery.headers import ATTEMPT, envelope_in, with_envelope
from taskguard.celery.scheduled import make_aware
from taskguard.engine.envelope import Envelope
from taskguard.guard import Guard
from taskguard.protocol.store import Lease, State
from taskguard.rq import GuardedQueue, GuardedSimpleWorker, delivery
from taskguard.rq.guarded_job import ENVELOPE_FIELD, GuardedJob, as_guarded_job
from taskguard.rq.guarding import guard_on
from taskguard.rq.job_metadata import read, written
from taskguard.rq.owner import owner_of
from taskguard.rq.publishing import SlotPublisher
from taskguard.rq.settle import settle_for
from taskguard.schedule.entry import Slot
from taskguard.stores.memory import MemoryStore
from taskguard.stores.redis import RedisStore
from tests.celery.inprocess import deliver_message, guarded, make_app, request_of, sent

CELERY, RQ = "celery", "rq"
LONGEST_WORK = 20
"""Deliveries after which a queue is not waited for any more: a job that is deferred for ever would never end it."""
SOON = 0.2
"""Seconds that a job of RQ waits in its process before it is deferred; in earnest, a lease and a second."""

RETRIES = 1
"""So often is a body started again that asks for it."""

_numbers = count()
_functions = ModuleType("tests.scenarios.made")
"""Where RQ finds the functions of a scenario: by their names, in a module."""
sys.modules[_functions.__name__] = _functions


class Outcome(NamedTuple):
    """How a job ended, as its queue says it."""

    status: str
    """finished or failed; queued if it comes again; dropped if it does not, and has no outcome of its own."""
    value: Any = None
    error: str = ""
    """The error's name, and what it says."""


class Function(ABC):
    """A function of one queue, called with a key argument and a value that the key does not hold."""

    guard: Guard
    task: Any
    """What the queue's decorator made of it."""

    @property
    def taskguard(self) -> Any:
        return self.task.taskguard

    def key(self, *args: Any) -> str:
        return str(self.taskguard.key(*args))

    def explicit(self, idempotency_key: str) -> str:
        """The key of calls with this key of the caller's own."""
        return str(self.taskguard.keys.explicit(idempotency_key))

    def hold(self, *, key: str = "", owner: str = "holder", lease: float = 60.0, state: State = "running") -> Lease:
        """Another job runs, or is queued, under the key; it does other work, where that is compared."""
        claim = self.guard.new_claim(
            key or self.key(1), owner, self.taskguard.policy, payload="other work", lease=lease, state=state
        )
        _, answer = self.guard.ask(claim)
        assert isinstance(answer, Lease)
        return answer

    def free(self, lease: Lease) -> None:
        assert self.guard.store.forget(lease.key)

    @abstractmethod
    def call(self, *args: Any, idempotency_key: str = "", job_id: str = "", lasts: float | None = None) -> Any:
        """Call it; the job may start for so long as it *lasts*."""

    @abstractmethod
    def leave(self, *args: Any, joins: str = "") -> Any:
        """Publish a call that claims nothing, as a publisher without the code does."""

    @abstractmethod
    def at_once(self, *args: Any) -> Outcome:
        """Run it in the process of its caller."""


class Queue(ABC):
    name: str
    store_class: type
    limit: signal.Signals
    """What a worker sends to the process of a job whose time is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.ran: list[Any] = []
        """The values that bodies were called with, in their order."""
        self.functions: list[Function] = []

    # -- functions -------------------------------------------------------------------------------------------------

    def function(self, body: Callable[[], Any] | None = None, **options: Any) -> Function:
        """A guarded function with those options; it ends as *body* does, or returns the value it was called with."""
        return self._add(self._make(self._body(body), {"key": "a", **options}))

    def plain(self, body: Callable[[], Any] | None = None, **settings: Any) -> Function:
        """One that is not guarded: only its schedule is."""
        return self._add(self._make_plain(self._body(body), settings))

    def either(self, is_guarded: bool, body: Callable[[], Any] | None = None) -> Function:
        return self.function(body) if is_guarded else self.plain(body)

    def _body(self, body: Callable[[], Any] | None) -> Callable[..., Any]:
        def work(a: Any, b: Any = None) -> Any:
            self.ran.append(b)
            return b if body is None else body()

        work.__name__ = work.__qualname__ = f"work{next(_numbers)}"
        work.__module__ = _functions.__name__
        return work

    def _add(self, function: Function) -> Function:
        function.guard.patience = 0.0  # what it does when the store is away is under test, not how long it asks
        self.functions.append(function)
        return function

    @abstractmethod
    def _make(self, work: Callable[..., Any], options: dict[str, Any]) -> Function: ...

    @abstractmethod
    def _make_plain(self, work: Callable[..., Any], settings: dict[str, Any]) -> Function: ...

    @abstractmethod
    def again(self) -> Any:
        """In a body, `return queue.again()`: it asks its queue for another start."""

    @abstractmethod
    def retries(self, most: int) -> dict[str, Any]:
        """The options of a function that its queue starts again, so often, when it has failed."""

    # -- messages --------------------------------------------------------------------------------------------------

    @abstractmethod
    def work(self, times: int = LONGEST_WORK, *, plain: bool = False) -> None:
        """Deliver what is in the queue: *times* messages at most, those that come meanwhile among them.

        With *plain*, by a worker that knows of no guard: where ours looks at a job's status before it asks the store.
        """

    @property
    @abstractmethod
    def ids(self) -> list[str]:
        """Of the jobs in the queue, by message."""

    @abstractmethod
    def copy(self, call: Any, *, anew: bool = False) -> None:
        """Leave another copy of the call's first message in the queue; *anew*, one that knows of no other job."""

    @abstractmethod
    def publish(self, slot: Slot, function: Function, *args: Any) -> Any:
        """Publish the job of a slot, as a scheduler does."""

    @abstractmethod
    def outcome(self, call: Any) -> Outcome: ...

    @abstractmethod
    def answered(self, call: Any) -> str:
        """What the handle of a call says of the job: finished or failed, if it has ended."""

    @abstractmethod
    def read(self, call: Any) -> Any:
        """What the handle of a call gives, once the job has finished."""

    @abstractmethod
    def owner(self, call: Any) -> str:
        """Who has the key of that job."""

    @abstractmethod
    def envelope(self, call: Any) -> Envelope:
        """What travels with the job now."""

    @abstractmethod
    def process_is_gone(self, function: Function, call: Any, *, has_begun: bool, is_stopped: bool) -> None:
        """A worker settles a job whose process died, or that somebody stopped; its body had begun, or had not."""

    # -- the store -------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def guard(self) -> Guard:
        """That of jobs that are not guarded themselves."""

    def entry(self, key: str) -> Any:
        return self.guard.store.get(key)

    def live(self) -> list[str]:
        """The owners of what is queued or running."""
        prefixes = tuple(function.key(1).rpartition(":")[0] + ":" for function in self.functions)
        found = [entry for entry in self.guard.store.scan() if entry.key.startswith(prefixes)]
        return [entry.owner for entry in found if entry.state in ("queued", "running")]

    @contextmanager
    def outage(self, *verbs: str, after: int = 0) -> Iterator[None]:
        """The store answers each of these verbs so many times, and then no more."""
        with self.monkeypatch.context() as patch:
            for verb in verbs:
                patch.setattr(self.store_class, verb, _going_away(getattr(self.store_class, verb), after))
            yield

    @abstractmethod
    def gives_up_early(self) -> None:
        """A job that has run asks a silent store only once to hear of its end."""

    # -- time ------------------------------------------------------------------------------------------------------

    def later(self, seconds: float = 4000.0) -> None:
        real = time.time
        self.monkeypatch.setattr(time, "time", lambda: real() + seconds)

    def time_is_over(self, verb: str, *, before: bool = False, at: int = 1) -> None:
        """The limit of a job comes when the store has carried out the verb for the *at*-th time, or *before* that."""
        original, asked = getattr(self.store_class, verb), count(1)

        def slow(store: Any, *args: Any, **options: Any) -> Any:
            is_over = next(asked) == at
            if is_over and before:
                os.kill(os.getpid(), self.limit)
            answer = original(store, *args, **options)
            if is_over and not before:
                os.kill(os.getpid(), self.limit)
            return answer

        self.monkeypatch.setattr(self.store_class, verb, slow)


def _going_away(verb: Callable[..., Any], after: int) -> Callable[..., Any]:
    asked = count(1)

    def ask(*args: Any, **options: Any) -> Any:
        if next(asked) > after:
            raise StoreUnavailableError("the store", "gone")
        return verb(*args, **options)

    return ask


# -- Celery ----------------------------------------------------------------------------------------------------------


class CeleryFunction(Function):
    def __init__(self, queue: CeleryQueue, task: Any) -> None:
        self.queue = queue
        self.task = task
        self.guard = app_guard_of(task.app).guard

    def key(self, *args: Any) -> str:
        return super().key(*args) if hasattr(self.task, "taskguard") else f"{self.task.name}:"

    def call(self, *args: Any, idempotency_key: str = "", job_id: str = "", lasts: float | None = None) -> Any:
        options = {"idempotency_key": idempotency_key, "task_id": job_id, "expires": lasts}
        return self.task.apply_async(args, **{name: value for name, value in options.items() if value})

    def leave(self, *args: Any, joins: str = "") -> Any:
        call = self.task.AsyncResult(uuid4().hex)
        headers = {"taskguard_id": call.id, "taskguard_join": joins} if joins else {}
        headers |= {"id": call.id, "task": self.task.name}
        self.queue.put(SimpleNamespace(headers=headers, payload=(args, {}, {})))
        return call

    def at_once(self, *args: Any) -> Outcome:
        return _outcome(self.task.apply(args))


class CeleryQueue(Queue):
    name = CELERY
    store_class = MemoryStore
    limit = signal.SIGUSR1

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.app = make_app()
        self._waiting: list[Any] = []
        self._first: dict[str, Any] = {}
        self._before = signal.signal(self.limit, _raise_limit)  # as in a child of the pool

    def close(self) -> None:
        signal.signal(self.limit, self._before)

    def _make(self, work: Callable[..., Any], options: dict[str, Any]) -> Function:
        self._set(options)
        task = guarded(self.app, name=work.__name__, **options)(work)
        return CeleryFunction(self, self.app.tasks[task.name])

    def _make_plain(self, work: Callable[..., Any], settings: dict[str, Any]) -> Function:
        self._set(settings)
        install(self.app)
        self.app.task(name=work.__name__, shared=False, acks_late=True)(work)
        task = self.app.tasks[work.__name__]
        make_aware(task)
        return CeleryFunction(self, task)

    def _set(self, options: dict[str, Any]) -> None:
        """What is an option of the function at RQ, and a setting of the app here."""
        for name in ("on_store_error", "listeners", "store"):
            if name in options:
                self.app.conf[f"taskguard_{name}"] = options.pop(name)

    def again(self) -> Any:
        raise self.app.current_task.retry(countdown=0, max_retries=RETRIES)

    def goes_back(self) -> Any:
        """In a body: its message goes back to the broker."""
        raise Reject("later", requeue=True)

    def retries(self, most: int) -> dict[str, Any]:
        return {"autoretry_for": (Exception,), "max_retries": most, "retry_kwargs": {"countdown": 0}}

    def put(self, message: Any) -> None:
        self._waiting += [message]
        self._first.setdefault(message.headers["id"], message)

    def _messages(self) -> list[Any]:
        for message in sent(self.app):
            self.put(message)
        return self._waiting

    @property
    def ids(self) -> list[str]:
        return [message.headers["id"] for message in self._messages()]

    def work(self, times: int = LONGEST_WORK, *, plain: bool = False) -> None:
        while self._messages() and times:
            times -= 1
            deliver_message(self.app, self._waiting.pop(0))

    def copy(self, call: Any, *, anew: bool = False) -> None:
        self._messages()
        first = self._first[call.id]
        headers = with_envelope(first.headers, self._envelope(first).as_new()) if anew else first.headers
        self.put(SimpleNamespace(headers=headers, payload=first.payload))

    def publish(self, slot: Slot, function: Function, *args: Any) -> Any:
        note = {"taskguard_id": slot.job_id, "taskguard_slot": slot.note().as_dict()}
        headers = {"id": slot.job_id, "task": function.task.name, **note}
        self.put(SimpleNamespace(headers=headers, payload=(args, {}, {})))
        return function.task.AsyncResult(slot.job_id)

    def outcome(self, call: Any) -> Outcome:
        found = _outcome(self.app.AsyncResult(call.id))
        if found.status in ("finished", "failed"):
            return found
        return Outcome("queued" if call.id in self.ids else "dropped")

    def answered(self, call: Any) -> str:
        return _STATUSES.get(call.state, "queued")

    def read(self, call: Any) -> Any:
        return call.get(timeout=5)

    def owner(self, call: Any) -> str:
        return str(call.id)

    def envelope(self, call: Any) -> Envelope:
        found = [message for message in self._messages() if message.headers["id"] == call.id]
        return self._envelope(found[-1])

    def _envelope(self, message: Any) -> Envelope:
        return envelope_in(message.headers, message.headers["id"])

    def process_is_gone(self, function: Function, call: Any, *, has_begun: bool, is_stopped: bool) -> None:
        self._messages()
        request = request_of(function.task, self._first[call.id])
        if has_begun:
            claim = function.guard.new_claim(
                function.key(1), call.id, function.taskguard.policy, attempt=request._request_dict[ATTEMPT]
            )
            assert isinstance(function.guard.store.claim(claim), Lease)
        request._taskguard.settle("revoked" if is_stopped else "failed", WorkerLostError("gone"))

    @property
    def guard(self) -> Guard:
        return app_guard_of(self.app).guard

    def gives_up_early(self) -> None:
        self.monkeypatch.setattr(settings, "UNTIL_THE_STORE_IS_BACK", 0.0)


_STATUSES = {"SUCCESS": "finished", "FAILURE": "failed"}


def _raise_limit(number: int, frame: Any) -> None:
    raise SoftTimeLimitExceeded


def _outcome(result: Any) -> Outcome:
    status = _STATUSES.get(result.state, "")
    if status == "failed":
        return Outcome(status, error=f"{type(result.result).__name__}: {result.result}")
    return Outcome(status, result.result)


# -- RQ --------------------------------------------------------------------------------------------------------------


class RQFunction(Function):
    def __init__(self, queue: RQQueue, task: Any) -> None:
        self.queue = queue
        self.task = task
        self.guard = task.taskguard.guard(queue.connection) if hasattr(task, "taskguard") else queue.guard

    def key(self, *args: Any) -> str:
        return super().key(*args) if hasattr(self.task, "taskguard") else f"rq:{self.task.__name__}:"

    def call(self, *args: Any, idempotency_key: str = "", job_id: str = "", lasts: float | None = None) -> Any:
        options = {"idempotency_key": idempotency_key, "job_id": job_id, "ttl": lasts}
        options = {name: value for name, value in options.items() if value}
        return self.task.enqueue(*args, **options)

    def leave(self, *args: Any, joins: str = "") -> Any:
        job = rq.Queue(self.queue.queue.name, connection=self.queue.connection).enqueue(self.task, *args)
        if joins:
            self.queue.write(job, self.queue.in_hand(job).envelope._replace(join=joins))
        return job

    def at_once(self, *args: Any) -> Outcome:
        queue = rq.Queue("at-once", connection=self.queue.connection, is_async=False)
        return self.queue.outcome(queue.enqueue(self.task, *args))


class RQQueue(Queue):
    name = RQ
    store_class = RedisStore
    limit = signal.SIGALRM

    def __init__(self, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
        super().__init__(monkeypatch)
        monkeypatch.setattr(delivery, "LONGEST_WAIT", SOON)
        monkeypatch.setattr(delivery, "BEHIND", SOON)
        monkeypatch.setattr(delivery, "OTHER_STORE", SOON)
        self.connection = redis.Redis.from_url(url)
        self.queue = GuardedQueue(f"queue-{uuid4().hex[:8]}", connection=self.connection)
        self.guard.patience = 0.0

    def close(self) -> None:
        for function in self.functions:
            delattr(_functions, function.task.__name__)
        self.connection.close()

    def _make(self, work: Callable[..., Any], options: dict[str, Any]) -> Function:
        task = taskguard.rq.singleton_task(queue=self.queue, **options)(work)
        setattr(_functions, work.__name__, task)
        return RQFunction(self, task)

    def _make_plain(self, work: Callable[..., Any], settings: dict[str, Any]) -> Function:
        setattr(_functions, work.__name__, work)
        return RQFunction(self, work)

    def again(self) -> Any:
        return rq.Retry(max=RETRIES)

    def retries(self, most: int) -> dict[str, Any]:
        return {"retry": rq.Retry(max=most)}

    def work(self, times: int = LONGEST_WORK, *, plain: bool = False) -> None:
        kind = rq.SimpleWorker if plain else GuardedSimpleWorker
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            worker = kind([self.queue.name], connection=self.connection)
            worker.work(burst=True, max_jobs=times, logging_level="WARNING")
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    @property
    def ids(self) -> list[str]:
        return list(self.queue.job_ids)

    def copy(self, call: Any, *, anew: bool = False) -> None:
        if anew:
            self.write(call, self.envelope(call).as_new())
        self.queue.push_job_id(call.id)

    def publish(self, slot: Slot, function: Function, *args: Any) -> Any:
        job = CronJob(func=function.task, queue_name=self.queue.name, args=args, interval=3600)
        SlotPublisher(self.connection, self.guard, "taskguard", 300.0).publish(job, slot)
        return Job.fetch(slot.job_id, self.connection)

    def outcome(self, call: Any) -> Outcome:
        job = Job.fetch(call.id, self.connection)
        status = str(job.get_status(refresh=False).value)
        if status == "failed":
            found = job.latest_result()
            return Outcome(status, error="" if found is None else str(found.exc_string))
        return Outcome(status, job.return_value())

    def answered(self, call: Any) -> str:
        return str(call.get_status(refresh=False).value)

    def read(self, call: Any) -> Any:
        return call.return_value()

    def owner(self, call: Any) -> str:
        job = self.in_hand(call)
        return owner_of(job.id, job.repeats_left, job.envelope.run)

    def envelope(self, call: Any) -> Envelope:
        return read(self.connection.hget(call.key, ENVELOPE_FIELD))

    def in_hand(self, call: Any) -> GuardedJob:
        """The job as its worker has it."""
        return as_guarded_job(Job.fetch(call.id, self.connection)).take_in_hand()

    def write(self, job: Job, envelope: Envelope) -> None:
        self.connection.hset(job.key, ENVELOPE_FIELD, written(envelope))

    def process_is_gone(self, function: Function, call: Any, *, has_begun: bool, is_stopped: bool) -> None:
        if has_begun:
            claim = function.guard.new_claim(
                function.key(1), self.owner(call), function.taskguard.policy, attempt="gone"
            )
            assert isinstance(function.guard.store.claim(claim), Lease)
        job = Job.fetch(call.id, self.connection)
        settle_for(job, function.taskguard, "gone" if has_begun else "", is_stopped=is_stopped)

    @property
    def guard(self) -> Guard:
        return guard_on(self.connection, self.queue.serializer)

    def gives_up_early(self) -> None:
        self.monkeypatch.setattr(delivery, "UNTIL_REDIS_IS_BACK", 0.0)
