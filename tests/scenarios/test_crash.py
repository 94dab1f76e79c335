"""Processes that die in the middle of a job: it runs again, under a higher token, and not for ever."""

from __future__ import annotations

from collections.abc import Callable

from tests.scenarios.conftest import Workers
from tests.scenarios.workers import on

Make = Callable[..., Workers]


@on("celery", "celery-rabbitmq", "rq")
def test_a_killed_process(make_workers: Make):
    """Its lease is 30 seconds: nobody waits for that here."""
    workers = make_workers()
    workers.start()
    call = workers.call(gate=workers.key, value="second", starts=3)
    [first] = workers.begun()
    workers.kill_process()
    second = workers.begun(2, timeout=10)[1]
    workers.open()

    assert workers.result(call) == "second"
    assert (first["starts"], second["starts"]) == (1, 2) and second["token"] > first["token"]
    workers.next_call_runs()


def test_a_job_that_kills_its_process_every_time_fails_and_the_worker_lives(make_workers: Make):
    workers = make_workers()
    workers.start()
    call = workers.call(then="die", starts=11)

    assert "TooManyStartsError" in workers.failure(call)
    assert workers.runs == 3 and workers.state() == "free"  # max_starts
    workers.next_call_runs()


def test_at_most_once(make_workers: Make):
    workers = make_workers()
    workers.start()
    call = workers.call("once", then="die", starts=4)

    assert "TooManyStartsError" in workers.failure(call)
    assert workers.runs == 1


@on("celery", "celery-rabbitmq", "rq", "rq-plain-worker")
def test_a_killed_worker(make_workers: Make):
    """All of it, as if its machine went: the lease runs out."""
    workers = make_workers(is_redelivered=True)
    workers.start_mortal()
    call = workers.call("short", gate=workers.key, value="second", starts=2)
    [first] = workers.begun()
    workers.kill_worker()
    second = workers.begun(2)[1]
    workers.open()

    assert workers.result(call) == "second"
    assert (first["starts"], second["starts"]) == (1, 2) and second["token"] > first["token"]
    assert workers.runs == 2


def test_a_worker_killed_between_the_claim_and_the_body(make_workers: Make):
    workers = make_workers(is_redelivered=True)
    call = workers.call("short", value=3, starts=2)
    workers.start_and_die("after the claim")

    assert workers.result(call) == 3
    assert [line["starts"] for line in workers.begun()] == [2]
    workers.next_call_runs("short")


def test_a_worker_killed_between_the_end_of_the_body_and_the_result(make_workers: Make):
    workers = make_workers(is_redelivered=True)
    call = workers.call("short", value="kept", starts=2)
    workers.start_and_die("after the body")

    assert workers.result(call) == "kept"
    assert workers.runs == 1 and workers.state("short") == "done"


def test_a_job_that_holds_longer_than_it_may_is_not_run_for_ever(make_workers: Make):
    workers = make_workers()
    workers.start()
    call = workers.call("too_long", gate="never")

    assert "TooManyStartsError" in workers.failure(call)
    assert [line["starts"] for line in workers.begun(2)] == [1, 2] and workers.runs == 2


def test_a_stopped_worker_is_told_and_its_outcome_is_refused(make_workers: Make):
    """Another one has taken its job while it slept past its lease."""
    workers = make_workers(is_redelivered=True)
    workers.start_mortal()
    call = workers.call("short", gate=workers.key, value="kept", starts=2)
    [first] = workers.begun()
    paused = workers.pause()
    second = workers.begun(2)[1]
    paused.resume()
    workers.ledger.wait_for("failed", key=workers.key, error="LeaseLostError", pid=first["pid"])
    workers.open()

    assert workers.result(call) == "kept"
    assert workers.entry("short").token == second["token"] > first["token"]
    assert workers.ledger.count("end", key=workers.key) == 1 and "lost" in paused.log()
