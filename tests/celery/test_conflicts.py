"""A job that meets another one at the worker: refused, or waiting, and what it holds then."""

from __future__ import annotations

from typing import Any

import pytest

from taskguard import DuplicateTaskError, PayloadMismatchError

from .inprocess import deliver, guarded, live, make_app, ours_of, sent


def make_task(**options: Any) -> Any:
    app = make_app()
    app.ran = []

    @guarded(app, **{"key": "a", **options})
    def add(a, b=None):
        app.ran.append(b)
        return b

    return app.tasks[add.name]


def run_twin(task: Any, key: str, payload: str = "") -> Any:
    """Another job runs under that key."""
    guard = task.taskguard.guarding.guard
    return guard.ask(guard.new_claim(key, "twin", task.taskguard.policy, payload=payload))[1]


REFUSES = {"hold": "one_queued_one_running", "on_conflict": {"enqueue": "skip", "run": "raise"}}


# -- refused ---------------------------------------------------------------------------------------------------------


def test_a_refused_job_leaves_its_place_in_the_queue():
    task = make_task(**REFUSES)
    twin = run_twin(task, task.taskguard.key(1))
    call = task.delay(1)
    [message] = sent(task.app)
    answer = deliver(task, call.id, 1, **ours_of(message))
    assert isinstance(answer.retval.exception, DuplicateTaskError)
    assert [entry.owner for entry in live(task.app)] == [twin.owner]
    assert not task.delay(1).taskguard.duplicate


def test_a_job_whose_idempotency_key_was_used_for_other_work_leaves_its_place_in_the_queue():
    task = make_task(hold="one_queued_one_running")
    twin = run_twin(task, task.taskguard.keys.explicit("order"), "other work")
    call = task.apply_async((1,), idempotency_key="order")
    [message] = sent(task.app)
    answer = deliver(task, call.id, 1, **ours_of(message))
    assert isinstance(answer.retval.exception, PayloadMismatchError)
    assert [entry.owner for entry in live(task.app)] == [twin.owner]


@pytest.mark.parametrize(("options", "given"), [(REFUSES, ""), ({"hold": "one_queued_one_running"}, "order")])
def test_a_leftover_copy_of_a_refused_job_does_not_run(options, given):
    task = make_task(**options)
    key = task.taskguard.keys.explicit(given) if given else task.taskguard.key(1)
    twin = run_twin(task, key, "other work")
    call = task.apply_async((1,), idempotency_key=given) if given else task.delay(1)
    [message] = sent(task.app)
    deliver(task, call.id, 1, **ours_of(message))
    task.taskguard.guarding.guard.store.forget(twin.key)
    deliver(task, call.id, 1, **ours_of(message))
    assert not task.app.ran
