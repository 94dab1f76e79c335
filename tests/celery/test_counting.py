"""`enforce=False`: what would have been a duplicate is counted, and everything runs as without a guard."""

from __future__ import annotations

from typing import Any

import pytest
from celery.exceptions import Reject

from taskguard import StaleFenceError, current_fence

from .inprocess import deliver, guarded, live, make_app, ours_of, sent, store_of


def make_task(body: Any = None, **options: Any) -> Any:
    app = make_app()
    app.ran = []

    @guarded(app, **{"key": "a", "bind": True, "enforce": False, **options})
    def add(self, a, b=None):
        app.ran.append(b)
        return b if body is None else body(self)

    return app.tasks[add.name]


def work(task: Any) -> None:
    """All that is in the queue."""
    for message in sent(task.app):
        deliver(task, message.headers["id"], *message.payload[0], **ours_of(message))


def run_twin(task: Any) -> Any:
    guard = task.taskguard.guarding.guard
    return guard.ask(guard.new_claim(task.taskguard.key(1), "twin", task.taskguard.policy))[1]


@pytest.mark.parametrize("on_done", ["reuse_success", "reuse"])
def test_what_is_done_already_runs_again(on_done):
    task = make_task(on_done=on_done, keep_for=7200)
    for b in ("first", "second"):
        assert not task.delay(1, b).taskguard.duplicate
        work(task)
    assert task.app.ran == ["first", "second"]


def test_an_idempotency_key_may_be_used_for_other_work():
    task = make_task()
    task.apply_async((1, "first"), idempotency_key="order")
    task.apply_async((2, "second"), idempotency_key="order")
    work(task)
    assert task.app.ran == ["first", "second"]
    task.apply_async((3, "third"), idempotency_key="order")
    work(task)
    assert task.app.ran == ["first", "second", "third"]


def test_a_retry_of_a_run_beside_another_leaves_nothing_in_the_queue():
    task = make_task(lambda self: self.retry(countdown=0, max_retries=2))
    twin = run_twin(task)
    deliver(task, "retried", 1)
    assert len(task.app.ran) == 1
    assert [entry.owner for entry in live(task.app)] == [twin.owner]


def test_a_run_beside_another_that_goes_back_leaves_nothing_in_the_queue():
    task = make_task(lambda self: throw(Reject("later", requeue=True)))
    twin = run_twin(task)
    deliver(task, "rejected", 1)
    assert [entry.owner for entry in live(task.app)] == [twin.owner]


def test_a_run_beside_another_whose_token_is_refused_gets_a_higher_one_and_leaves_nothing_in_the_queue():
    mark, tokens = 2**52, []

    def write(self: Any) -> None:
        fence = current_fence()
        assert fence is not None
        tokens.append(fence.token)
        if fence.token <= mark:
            raise StaleFenceError(fence.key, fence.token, "row 1", mark)

    task = make_task(write)
    twin = run_twin(task)
    deliver(task, "stale", 1)
    assert [entry.owner for entry in live(task.app)] == [twin.owner]
    [message] = sent(task.app)
    deliver(task, "stale", 1, **ours_of(message))
    assert [token > mark for token in tokens] == [False, True]
    assert store_of(task.app).get(twin.key).owner == twin.owner


def throw(error: Exception) -> None:
    raise error
