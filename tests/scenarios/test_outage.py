"""The store is away. Calls are published unclaimed; a job waits, and no running job has failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from taskguard import current_fence
from taskguard.engine.call_info import CallInfo
from taskguard.protocol.store import Lease
from taskguard.runtime import breaker
from taskguard.schedule.running import claim_of
from tests.scenarios.queues import CELERY, Queue
from tests.schedule.bench import every
from tests.servers import RedisServer, require
from tests.waiting import wait_until

AT = 1_794_873_600_000_000
each_choice = pytest.mark.parametrize("chosen", ["retry", "fail", "run_unguarded"])


# -- whoever calls ---------------------------------------------------------------------------------------------------


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[RedisServer]:
    """One that no queue needs."""
    with closing(require(redis_server.name)) as server:
        yield server


def test_a_call_that_is_published_unclaimed_says_so(queue: Queue, store: RedisServer):
    function = queue.function(store=store.url)
    store.stop()
    call = function.call(1, "ran")
    assert call.taskguard == CallInfo(function.key(1), call.id, state="unclaimed") and queue.ids == [call.id]
    store.start()
    queue.work()

    assert queue.outcome(call).value == "ran"


def test_a_store_that_is_down_is_asked_by_the_first_call_only(
    queue: Queue, store: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(breaker, "FIRST", 1000.0)
    events: list[Any] = []
    functions = [queue.function(store=store.url, listeners=[events.append]) for _ in range(2)]
    store.stop()
    calls = [function.call(1) for function in functions for _ in range(3)]

    assert {call.taskguard.state for call in calls} == {"unclaimed"} and len(queue.ids) == 6
    assert [event.kind for event in events] == ["store_unavailable"]


def test_a_store_that_is_back_is_asked_again(queue: Queue, store: RedisServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(breaker, "FIRST", 0.0)
    function = queue.function(store=store.url)
    store.stop()
    function.call(1)
    store.start()
    first, second = function.call(2), function.call(2)

    assert first.taskguard.state == "queued" and second.id == first.id


def test_a_call_that_asks_the_store_nothing_needs_none(
    queue: Queue, store: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    """Nor does it say that the store is back."""
    monkeypatch.setattr(breaker, "FIRST", 1000.0)
    asking, other = queue.function(store=store.url), queue.function(store=store.url, hold="running")
    asking.call(0), other.call(0)  # the store's name is known
    store.stop()
    calls = [asking.call(1), other.call(1), asking.call(2)]

    assert [call.taskguard.state for call in calls] == ["unclaimed", "queued", "unclaimed"]
    assert all(queue.envelope(call).store for call in calls)


# -- before the body -------------------------------------------------------------------------------------------------


@each_choice
@pytest.mark.parametrize("answers", [1, 2])
def test_while_a_copy_of_a_running_job_waits(queue: Queue, answers: int, chosen: str):
    function = queue.function(on_store_error=chosen)
    call = function.leave(1)
    function.hold(owner=queue.owner(call))  # it runs elsewhere
    with queue.outage("claim", after=answers):
        queue.work(1)

    assert queue.outcome(call).status == "queued" and set(queue.ids) == {call.id} and not queue.ran


@each_choice
def test_while_a_job_waits_for_its_twin(queue: Queue, chosen: str):
    function = queue.function(on_store_error=chosen, hold="running")
    call = function.call(1)
    function.hold()
    with queue.outage("claim", after=1):
        queue.work(1)

    assert queue.outcome(call).status == "queued" and queue.ids == [call.id] and not queue.ran


@each_choice
def test_when_the_one_more_run_looks_for_its_place(queue: Queue, chosen: str):
    function = queue.function(on_store_error=chosen, on_conflict="run_once_more")
    holder = function.hold()
    call = function.call(1)
    assert queue.envelope(call).queue_entry.endswith(":next")
    function.free(holder)
    with queue.outage("get"):
        queue.work(1)
    assert queue.outcome(call).status == "queued" and queue.ids == [call.id] and not queue.ran
    queue.work()

    assert queue.outcome(call).status == "finished" and len(queue.ran) == 1


@pytest.mark.parametrize(
    ("chosen", "status", "runs"), [("retry", "queued", 0), ("fail", "failed", 0), ("run_unguarded", "finished", 1)]
)
def test_at_the_first_question_each_choice_is_obeyed(queue: Queue, chosen: str, status: str, runs: int):
    fences: list[Any] = []
    function = queue.function(lambda: fences.append(current_fence()), on_store_error=chosen)
    call = function.leave(1)
    with queue.outage("claim"):
        queue.work(1)

    assert queue.outcome(call).status == status and len(queue.ran) == runs
    # A fence of its own, and its effects are those of the job.
    assert all(fence.token and fence.idempotency_key.startswith(call.id) for fence in fences)


@pytest.mark.parametrize("is_scheduled", [False, True], ids=["guarded", "plain scheduled"])
def test_the_next_delivery_knows_of_the_outage_and_gives_the_holder_time_to_renew(
    queue: Queue, is_scheduled: bool, monkeypatch: pytest.MonkeyPatch
):
    call, lease = _scheduled_elsewhere(queue) if is_scheduled else _running_elsewhere(queue)
    guard = queue.guard
    wait_until(lambda: guard.store.get(lease.key).remaining <= 0)
    with queue.outage("claim"):
        queue.work(1)
    assert queue.envelope(call).after_outage

    guard._last_failure = float("-inf")  # it is another worker, which noticed nothing itself
    look = guard.store.get
    monkeypatch.setattr(guard.store, "get", lambda key: look(key) and (guard.store.renew([(lease, 30)]), look(key))[1])
    queue.work(1)

    assert queue.outcome(call).status == "queued" and not queue.ran
    assert not queue.envelope(call).after_outage


def _running_elsewhere(queue: Queue) -> tuple[Any, Lease]:
    """A job whose first worker could not renew its lease."""
    function = queue.function()
    call = function.leave(1)
    return call, function.hold(owner=queue.owner(call), lease=0.01)


def _scheduled_elsewhere(queue: Queue) -> tuple[Any, Lease]:
    function = queue.plain()
    slot = every(3600, function.task.__name__).slot(AT)
    lease = queue.guard.store.claim(claim_of(slot.note(), slot.job_id, 0.01))
    assert isinstance(lease, Lease)
    return queue.publish(slot, function, 1), lease


# -- after its beginning ---------------------------------------------------------------------------------------------


def test_when_a_lease_is_lost_and_nobody_can_be_asked_the_job_is_put_back(queue: Queue):
    """Its validity is over, the store is silent, and its body wants to be told of that."""

    def wait() -> str:
        if len(queue.ran) == 1:
            wait_until(lambda: False, timeout=10)
        return "second"

    function = queue.function(wait, on_lost="abort_if_unsure", lease=1)
    call = function.call(1)
    if queue.name == CELERY:
        queue.gives_up_early()  # RQ does not wait for the store here
    with queue.outage("renew", "requeue", "release", "get"):
        queue.work(1)
    assert queue.outcome(call).status == "queued" and queue.ids == [call.id]
    wait_until(lambda: queue.entry(function.key(1)).remaining <= 0)
    queue.work()

    assert queue.outcome(call).value == "second"


@each_choice
@pytest.mark.parametrize(("then", "end"), [("return", "finished"), ("fail", "failed"), ("again", "queued")])
def test_an_end_that_the_store_cannot_hear_of(queue: Queue, chosen: str, then: str, end: str):
    def body() -> Any:
        if then == "again":
            return queue.again()
        return 1 // (then == "return")

    function = queue.function(body, on_store_error=chosen, lease=0.1)
    call = function.call(1)
    queue.gives_up_early()
    with queue.outage("complete", "release", "requeue", "renew"):
        queue.work(1)

    assert queue.outcome(call).status == {"retry": "queued", "fail": "failed", "run_unguarded": end}[chosen]
    assert len(queue.ids) == (queue.outcome(call).status == "queued") and len(queue.ran) == 1
