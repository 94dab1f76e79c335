"""Eager calls: the same guard, but nothing can be put back, so a conflict is answered at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject

from taskguard import DuplicateTaskError, Fence, current_fence
from taskguard.stores.sqlite import SQLiteStore

from .inprocess import guarded, make_app, store_of


def state_of(task: Any, *args: Any) -> str:
    return task.taskguard.get(*args).state


def test_a_body_runs_under_its_fence_and_leaves_its_outcome():
    app = make_app()

    @guarded(app)
    def add(a, fence: Fence):
        entry = add.taskguard.get(a)
        return entry.state, entry.owner == fence.owner, entry.token == fence.token

    assert add.apply((1,)).get() == ("running", True, True)
    assert state_of(add, 1) == "done"
    assert current_fence() is None


def test_a_second_eager_call_while_one_runs_is_told_at_once():
    app = make_app()

    @guarded(app)
    def nested(a, depth):
        return nested.apply((a, depth)).get() if depth else a

    with pytest.raises(DuplicateTaskError):
        nested.apply((1, 1)).get()
    assert state_of(nested, 1, 1) == "free"


def test_the_same_id_is_answered_with_its_outcome():
    app = make_app()
    runs = []

    @guarded(app)
    def add(a):
        runs.append(a)
        return a + 1

    assert add.apply((1,), task_id="same").get() == 2
    assert add.apply((1,), task_id="same").get() == 2
    assert add.apply((1,)).get() == 2
    assert len(runs) == 2


def test_a_failure_frees_the_key():
    app = make_app()

    @guarded(app)
    def fail(a):
        raise ValueError(a)

    with pytest.raises(ValueError, match="1"):
        fail.apply((1,)).get()
    assert state_of(fail, 1) == "free"


@pytest.mark.parametrize("error", [Ignore(), Reject(), Reject(requeue=True)], ids=["ignore", "reject", "requeue"])
def test_ignore_and_reject_run_in_no_loop(error):
    app = make_app()

    @guarded(app)
    def stop(a):
        raise error

    stop.apply((1,))
    assert state_of(stop, 1) in ("free", "queued")


def test_an_eager_retry_runs_under_the_same_id():
    app = make_app()

    @guarded(app, bind=True, max_retries=3)
    def flaky(self, a):
        if self.request.retries < 2:
            raise self.retry(countdown=0)
        return self.request.retries

    assert flaky.apply((1,)).get() == 2
    assert state_of(flaky, 1) == "done"


def test_always_eager():
    app = make_app(task_always_eager=True)

    @guarded(app)
    def add(a, fence: Fence):
        return a + 1

    assert add.delay(1).get() == 2
    assert add.delay(1).get() == 2
    assert add.apply_async((1,), idempotency_key="x").get() == 2
    assert state_of(add, 1) == "done"


def test_a_direct_call_is_not_guarded():
    app = make_app()

    @guarded(app)
    def add(a):
        return a + 1, current_fence()

    assert add(1) == (2, None)
    assert add.taskguard.get(1) is None


def test_a_body_that_calls_itself_directly_keeps_its_lease():
    app = make_app()

    @guarded(app)
    def nested(a, depth=1):
        inner = nested(a, depth - 1) if depth else "inner"
        return [inner, nested.taskguard.get(a).state]

    assert nested.apply((1,)).get() == [["inner", "running"], "running"]


def test_an_eager_result_tells_its_key():
    app = make_app()

    @guarded(app)
    def add(a):
        return a

    assert add.apply((1,)).taskguard.key == add.taskguard.key(1)


def test_with_enforce_false_a_conflict_runs_with_a_fence_of_its_own():
    app = make_app()

    @guarded(app, enforce=False)
    def nested(a, fence: Fence):
        if a:
            a[0] = 0
        return [fence.key, *(nested.apply((a,)).get() if a and not a.append(1) and len(a) < 3 else [])]

    keys = nested.apply(([1],)).get()
    assert len(set(keys)) == len(keys)


def test_a_map_is_guarded_item_by_item():
    app = make_app()
    runs = []

    @guarded(app)
    def add(a, b=1):
        runs.append(a)
        return a + b

    result = app.tasks["celery.map"].apply((add.s(), [1, 2]), task_id="a-map")
    assert result.get() == [2, 3]
    assert store_of(app).get(add.taskguard.key(1)).owner == "a-map:item:0"
    assert app.tasks["celery.map"].apply((add.s(), [1, 2]), task_id="a-map").get() == [2, 3]
    assert app.tasks["celery.starmap"].apply((add.s(), [(5, 5)]), task_id="b-map").get() == [10]
    assert runs == [1, 2, 5]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("error", [SystemExit, ZeroDivisionError, None])
def test_a_child_forked_in_the_body_does_not_end_the_job(tmp_path: Path, error: type[BaseException] | None):
    app = make_app(taskguard_store=SQLiteStore(tmp_path / "taskguard.db"))
    parent = os.getpid()

    @guarded(app)
    def forks(a):
        child = os.fork()
        if child == 0:
            if error is not None:
                raise error
            return "the child's"
        os.waitpid(child, 0)
        return state_of(forks, a)

    try:
        result = forks.apply((1,))
    finally:
        if os.getpid() != parent:
            os._exit(0)
    assert result.get() == "running"
    assert state_of(forks, 1) == "done"
