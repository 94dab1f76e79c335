"""What the kit says of calls: in memory, without a worker."""

from __future__ import annotations

import pytest
import redis
from rq import SimpleWorker

from taskguard import ConfigurationError, DuplicateTaskError, Guard
from taskguard.rq import GuardedQueue
from taskguard.testing import WatchedStore, assert_ran_once, assert_skipped, on_store
from taskguard.testing.contract import ask
from tests.kit import bank

ORDER = "order-1"


@pytest.fixture
def eager(taskguard_in_memory, monkeypatch):
    monkeypatch.setitem(bank.app.conf, "task_always_eager", True)
    return taskguard_in_memory(bank.app)


def test_a_second_call_is_skipped_in_favour_of_the_first(taskguard_in_memory):
    taskguard_in_memory(bank.app)
    first, second = bank.right.delay(ORDER), bank.right.delay(ORDER)

    assert_skipped(second)
    assert_skipped(second, by=first)
    with pytest.raises(AssertionError, match="was not skipped: it is job"):
        assert_skipped(first)
    with pytest.raises(AssertionError, match=f"is a duplicate of {first.id}, not of somebody"):
        assert_skipped(second, by="somebody")


def test_a_call_that_a_finished_one_answers_is_skipped(eager):
    first, second = bank.kept.delay(ORDER), bank.kept.delay(ORDER)

    assert first.get() == second.get()
    assert_skipped(second, by=first)
    assert_ran_once(bank.kept, ORDER)


def test_an_eager_call_that_meets_a_running_one_is_skipped(eager, taskguard_store):
    taskguard_store.claim(ask("another", bank.right.taskguard.key(ORDER)))
    met = bank.right.apply((ORDER,))

    assert isinstance(met.result, DuplicateTaskError)
    assert_skipped(met, by="another")


def test_a_task_that_ran_twice_did_not_run_once(eager):
    bank.right.delay(ORDER)
    assert_ran_once(bank.right, ORDER)
    bank.right.delay(ORDER)

    with pytest.raises(AssertionError, match="ran 2 times, not once(.|\n)*start 1: succeeded"):
        assert_ran_once(bank.right, ORDER)


def test_a_task_that_never_ran_did_not_run_once(eager):
    with pytest.raises(AssertionError, match="ran 0 times"):
        assert_ran_once(bank.right, ORDER)


def test_one_that_was_taken_over_ran_twice(taskguard_store, taskguard_clock):
    guard = Guard(taskguard_store)
    taskguard_store.claim(ask("gone", "key", lease=30))
    taskguard_clock.advance(31)
    guard.run("key", lambda: 1, keep_for=60)

    with pytest.raises(AssertionError, match="job gone, token .*: has not ended"):
        assert_ran_once(guard, "key")


def test_a_guard_and_its_clock(taskguard_guard, taskguard_clock):
    runs = []
    for _ in range(2):
        taskguard_guard.run("invoice", lambda: runs.append(1), keep_for=60)
    assert_ran_once(taskguard_guard, "invoice")
    taskguard_clock.advance(61)
    taskguard_guard.run("invoice", lambda: runs.append(1), keep_for=60)

    assert len(runs) == 2


def test_an_rq_function_is_guarded_in_memory(redis_server, taskguard_in_memory, taskguard_store):
    taskguard_in_memory(bank.ship)
    with redis.Redis.from_url(redis_server.url) as connection:
        queue = GuardedQueue("in-memory", connection=connection)
        first, second = queue.enqueue(bank.ship, ORDER), queue.enqueue(bank.ship, ORDER)
        assert_skipped(second, by=first)
        SimpleWorker([queue], connection=connection).work(burst=True, logging_level="ERROR")

    assert_ran_once(bank.ship, ORDER)
    assert taskguard_store.ends == {taskguard_store.runs[0].attempt: "succeeded"}


def test_an_idempotency_key_names_the_call(eager):
    bank.right.apply_async((ORDER,), idempotency_key="mine")

    assert_ran_once(bank.right, ORDER, idempotency_key="mine")


def test_a_store_that_does_not_remember_is_said():
    with pytest.raises(ConfigurationError, match="does not record runs"):
        assert_ran_once(Guard("memory://"), "key")


def test_what_is_not_guarded_is_said():
    with pytest.raises(AssertionError, match="is not the handle of a guarded call"):
        assert_skipped(object())
    with pytest.raises(ConfigurationError, match="neither a guarded task nor a Guard"):
        assert_ran_once(len, "key")
    with pytest.raises(ConfigurationError, match="is not a Celery app"), on_store(len, WatchedStore()):
        pass


def test_the_app_has_its_own_store_again_afterwards(taskguard_store):
    with on_store(bank.app, taskguard_store):
        assert bank.right.taskguard.app_guard.guard.store is taskguard_store
        with on_store(bank.right, WatchedStore()):
            assert bank.right.taskguard.app_guard.guard.store is not taskguard_store
        assert bank.right.taskguard.app_guard.guard.store is taskguard_store

    assert bank.right.taskguard.app_guard._store == "redis://127.0.0.1:1"


def test_a_key_that_only_begins_so_is_another_one(taskguard_guard):
    taskguard_guard.run("invoice", int, keep_for=60)
    taskguard_guard.run("invoice:42", int, keep_for=60)

    assert_ran_once(taskguard_guard, "invoice")


def test_an_eager_call_that_its_idempotency_key_answers_is_skipped(eager):
    first, second = (bank.kept.apply_async((ORDER,), idempotency_key="of the caller") for _ in range(2))

    assert_skipped(second, by=first)
    assert_ran_once(bank.kept, idempotency_key="of the caller")
