from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from taskguard import (
    ConfigurationError,
    EarlierFailureError,
    Event,
    Fence,
    Guard,
    LeaseLostError,
    OutcomeNotKeptError,
    StoreUnavailableError,
    TooManyStartsError,
    WaitTimeoutError,
    current_fence,
)
from taskguard.engine.work import Work
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import Completed, Held, Lease
from taskguard.stores.memory import MemoryStore
from taskguard.testing.contract import ask, claimed


def test_later_calls_get_the_stored_outcome(guard: Guard):
    calls = []

    def invoice(number: int) -> dict[str, int]:
        calls.append(number)
        return {"invoice": number}

    for _ in range(3):
        assert guard.run("invoice:42", invoice, 42, keep_for=86400) == {"invoice": 42}
    assert calls == [42]


def test_a_call_that_comes_while_another_runs_waits_for_its_outcome(guard: Guard):
    started, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        started.set()
        go_on.wait(10)
        return "once"

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(guard.run, "key", slow, keep_for=60)
        started.wait(10)
        second = pool.submit(guard.run, "key", lambda: "twice", keep_for=60)
        go_on.set()

        assert (first.result(10), second.result(10)) == ("once", "once")


def test_a_call_that_waits_takes_the_place_of_one_that_fails(guard: Guard):
    started, go_on = threading.Event(), threading.Event()

    def fails() -> None:
        started.set()
        go_on.wait(10)
        raise ZeroDivisionError

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(guard.run, "key", fails, keep_for=60)
        started.wait(10)
        second = pool.submit(guard.run, "key", lambda: "done", keep_for=60)
        go_on.set()

        assert isinstance(first.exception(10), ZeroDivisionError)
        assert second.result(10) == "done"


def test_a_failure_reaches_the_caller_and_runs_again(guard: Guard):
    with pytest.raises(ZeroDivisionError):
        guard.run("key", lambda: 1 / 0, keep_for=60)

    assert guard.run("key", lambda: "done", keep_for=60) == "done"


def test_a_failure_is_the_answer_where_failures_are_reused(guard: Guard):
    with pytest.raises(ZeroDivisionError):
        guard.run("key", lambda: 1 / 0, keep_for=60, on_done="reuse")

    with pytest.raises(EarlierFailureError, match="ZeroDivisionError: division by zero"):
        guard.run("key", lambda: "done", keep_for=60, on_done="reuse")


def test_rerun_runs_each_time(guard: Guard):
    assert [guard.run("key", lambda n: n, n, keep_for=60, on_done="rerun") for n in range(3)] == [0, 1, 2]


def test_a_process_that_is_told_to_end_has_not_failed(guard: Guard, store: MemoryStore):
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard.run("key", interrupted, keep_for=60, on_done="reuse")
    assert guard.run("key", lambda: "done", keep_for=60, on_done="reuse") == "done"


def test_a_run_that_stops_because_a_hold_around_it_was_lost_has_not_failed(guard: Guard, store: MemoryStore):
    def outlast() -> None:
        store.forget("around")
        threading.Event().wait(30)

    with pytest.raises(LeaseLostError, match="around"), guard.hold("around", lease=0.3):
        guard.run("key", outlast, keep_for=60, on_done="reuse")
    assert guard.run("key", lambda: "done", keep_for=60, on_done="reuse") == "done"


class Unwritable(dict[str, int]):
    def items(self):  # as a lazy object does whose database is gone
        raise RuntimeError("cannot be read any more")


class UnwritableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("value", [object(), float("nan"), "x" * 70_000, {1, 2}, Unwritable(a=1)])
def test_a_result_that_cannot_be_kept_is_given_once_and_then_an_error(guard: Guard, events: list[Event], value: object):
    assert guard.run("key", lambda: value, keep_for=60) is value

    assert "not_kept" in [event.kind for event in events]
    with pytest.raises(OutcomeNotKeptError, match="its result was not kept"):
        guard.run("key", lambda: pytest.fail("ran again"), keep_for=60)


def test_a_failure_without_words_reaches_the_caller_and_frees_the_key(guard: Guard):
    def fails() -> None:
        raise UnwritableError

    with pytest.raises(UnwritableError):
        guard.run("key", fails, keep_for=60)
    assert guard.heartbeat._holdings.all() == []
    assert guard.run("key", lambda: 1, keep_for=60) == 1


def test_a_failure_reaches_the_caller_though_the_store_is_down_too(store: MemoryStore, guard: Guard, monkeypatch):
    def down(*_: object, **__: object) -> None:
        raise StoreUnavailableError("store", "down")

    monkeypatch.setattr(store, "release", down)
    with pytest.raises(ZeroDivisionError):
        guard.run("key", lambda: 1 / 0, keep_for=60, lease=0.1)


def test_a_function_that_only_begins_when_called_is_refused(guard: Guard):
    async def coroutine() -> None: ...

    def generator():
        yield

    for function in (coroutine, generator):
        with pytest.raises(ConfigurationError, match="only begins when it is called"):
            guard.run("key", function, keep_for=60)


def test_the_fence_reaches_the_function_by_name_by_annotation_or_not_at_all(guard: Guard):
    def by_name(fence) -> int:
        return fence.token

    def by_annotation(guarded_by: Fence) -> int:
        return guarded_by.token

    def by_neither() -> int:
        fence = current_fence()
        assert fence is not None
        return fence.token

    tokens = [guard.run(str(n), f, keep_for=60) for n, f in enumerate((by_name, by_annotation, by_neither))]
    assert all(tokens)


def test_the_idempotency_key_is_the_key_if_finished_work_is_not_rerun(guard: Guard):
    def which(fence: Fence) -> tuple[str, dict[str, str]]:
        return fence.idempotency_key, fence.headers()

    key, headers = guard.run("payment:1", which, keep_for=60)
    assert key == "payment:1"
    assert headers["Idempotency-Key"] == "payment:1"
    assert headers["X-Fencing-Token"].isdigit()

    def owner(fence: Fence) -> bool:
        return fence.idempotency_key == fence.owner

    assert guard.run("payment:2", owner, keep_for=60, on_done="rerun")


def test_an_outcome_that_came_too_late_is_refused(guard: Guard, store: MemoryStore):
    with pytest.raises(LeaseLostError):
        guard.run("key", lambda: store.forget("key"), keep_for=60, lease=60)
    assert isinstance(store.claim(ask("other", reuse="anything")), Lease)


def test_running_a_key_within_its_own_hold_is_an_error_not_a_wait(guard: Guard):
    with guard.hold("key"), pytest.raises(ConfigurationError, match="call the function directly"):
        guard.run("key", lambda: 1, keep_for=60)


def test_waiting_too_long_is_an_error(guard: Guard, store: MemoryStore):
    claimed(store, "alice")

    with pytest.raises(WaitTimeoutError):
        guard.run("key", lambda: 1, keep_for=60, wait_up_to=0.1)


# -- the engine that queues use ----------------------------------------------------------------------------------------


def test_a_job_is_begun_completed_and_then_answered(guard: Guard):
    policy = Policy(lease=30)
    work = guard.begin(guard.new_claim("key", "job", policy), policy)
    assert isinstance(work, Work)
    with work as fence:
        assert (fence.owner, fence.idempotency_key) == ("job", "job")
    assert work.complete("succeeded", b"outcome")

    again = guard.begin(guard.new_claim("key", "job", policy), policy)
    assert isinstance(again, Completed)
    assert again.outcome == b"outcome"


def test_a_job_that_is_retried_is_begun_again(guard: Guard):
    policy = Policy()
    work = guard.begin(guard.new_claim("key", "job", policy), policy)
    assert isinstance(work, Work)
    with work:
        pass
    assert work.requeue(60, copy_for=60)

    assert isinstance(guard.begin(guard.new_claim("key", "another", policy), policy), Held)
    again = guard.begin(guard.new_claim("key", "job", policy), policy)
    assert isinstance(again, Work)
    assert again.fence.starts == 1


def test_a_job_whose_workers_died_too_often_fails_for_good(guard: Guard, store: MemoryStore, events: list[Event]):
    policy = Policy(max_starts=2)
    for _ in range(2):
        lease = claimed(store, "job")
        store.requeue(lease, 60, copy_for=60, keep_starts=True)  # as a parent does for its child that was killed

    with pytest.raises(TooManyStartsError, match="started 2 times and its worker died each time"):
        guard.begin(guard.new_claim("key", "job", policy), policy)
    assert "too_many_starts" in [event.kind for event in events]
    ended = guard.begin(guard.new_claim("key", "job", policy), policy)
    assert isinstance(ended, Completed)
    assert ended.how == "failed"
