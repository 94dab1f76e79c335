"""The harness itself, with plain tasks: what the other tests take for granted about Celery and about their tools."""

from __future__ import annotations

import os

import pytest
from celery.exceptions import WorkerLostError

from tests.bodies import Gate
from tests.celery.fleet import Fleet, MakeFleet
from tests.celery.haste import ENVIRONMENT as HASTE
from tests.celery.marks import needs_quick_redelivery, needs_quorum_queues
from tests.celery.settings import AT_LEAST_ONCE, QUICK_REDELIVERY
from tests.ledger import Ledger
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("broker", "backend"),
    [
        ("redis", "redis"),
        ("redis", "sql"),
        ("rabbitmq", "rpc"),
        pytest.param("rabbitmq-quorum", "redis", marks=needs_quorum_queues),
    ],
)
def test_a_task_runs_and_its_result_is_read(make_fleet: MakeFleet, ledger: Ledger, broker: str, backend: str):
    fleet = make_fleet(broker, backend)
    worker = fleet.start_worker()
    answer = fleet.tasks.work.delay("invoice")

    assert answer.get(timeout=20) == "invoice"
    (line,) = ledger.lines("end", task_id=answer.id)
    assert line["pid"] in worker.children()


def test_without_a_backend_only_the_ledger_tells(make_fleet: MakeFleet, ledger: Ledger):
    fleet = make_fleet(backend=None)
    fleet.start_worker("solo")
    fleet.tasks.work.delay()

    assert ledger.wait_for("end")


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_two_bodies_of_one_process_overlap_and_are_seen_to(fleet: Fleet, ledger: Ledger, gate: Gate, pool: str):
    worker = fleet.start_worker(pool)
    answers = [fleet.tasks.work.delay("key", gate="gate") for _ in range(2)]
    ledger.wait_for("begin", 2, pid=worker.pid)
    gate.open()

    assert [answer.get(timeout=20) for answer in answers] == ["key", "key"]
    assert len(ledger.overlaps("key")) == 1


def test_bodies_one_after_the_other_do_not_overlap(fleet: Fleet, ledger: Ledger):
    fleet.start_worker("solo")
    for answer in [fleet.tasks.work.delay() for _ in range(2)]:
        answer.get(timeout=20)

    assert ledger.count("end") == 2
    assert not ledger.overlaps("key")


def test_the_task_of_a_killed_child_is_delivered_again(fleet: Fleet, ledger: Ledger, gate: Gate):
    worker = fleet.start_worker(concurrency=1, environment=HASTE)
    answer = fleet.tasks.work.delay(gate="gate")
    ledger.wait_for("begin")
    victim = worker.kill_child()
    gate.open()

    assert answer.get(timeout=20) == "key"
    assert [line["pid"] == victim for line in ledger.lines("begin")] == [True, False]
    assert not ledger.overlaps("key")


def test_the_task_of_a_killed_child_fails_soon_if_it_may_not_run_twice(make_fleet: MakeFleet, ledger: Ledger):
    fleet = make_fleet()
    worker = fleet.start_worker(concurrency=1, environment=HASTE)
    answer = fleet.tasks.work.delay(gate="gate")
    ledger.wait_for("begin")
    worker.kill_child()

    with pytest.raises(WorkerLostError):
        answer.get(timeout=20)


@needs_quick_redelivery
def test_the_task_of_a_killed_worker_goes_to_another(make_fleet: MakeFleet, ledger: Ledger, gate: Gate):
    fleet = make_fleet(conf=AT_LEAST_ONCE | QUICK_REDELIVERY)
    first = fleet.start_worker(concurrency=1)
    answer = fleet.tasks.work.delay(gate="gate")
    ledger.wait_for("begin")
    children = first.children()
    first.kill()
    gate.open()
    second = fleet.start_worker(concurrency=1)

    assert answer.get(timeout=15) == "key"
    assert [line["pid"] for line in ledger.lines("begin")] == children + second.children()


def test_a_paused_worker_does_nothing_until_it_resumes(fleet: Fleet, ledger: Ledger, gate: Gate):
    worker = fleet.start_worker(concurrency=1)
    answer = fleet.tasks.work.delay(gate="gate")
    ledger.wait_for("begin")
    worker.pause()
    gate.open()
    stopped = [_state(pid) for pid in (worker.pid, *worker.children())]
    ended = ledger.count("end")
    worker.resume()

    assert (stopped, ended) == (["T", "T"], 0)
    assert answer.get(timeout=20) == "key"


def test_a_warm_shutdown_lets_the_body_end(fleet: Fleet, ledger: Ledger, gate: Gate):
    worker = fleet.start_worker(concurrency=1)
    fleet.tasks.work.delay(gate="gate")
    ledger.wait_for("begin")
    worker.kill("SIGTERM")
    worker.wait_for_log("Warm shutdown")
    gate.open()
    worker.wait_until_gone()

    assert ledger.count("end") == 1


def test_a_cold_shutdown_does_not(fleet: Fleet, ledger: Ledger):
    worker = fleet.start_worker(concurrency=1)
    fleet.tasks.work.delay(gate="gate")
    ledger.wait_for("begin")
    worker.quit()

    assert not worker.running
    assert "Cold shutdown" in worker.log()
    assert ledger.count("end") == 0


def test_a_broker_that_comes_back_still_has_the_message(fleet: Fleet, ledger: Ledger):
    answer = fleet.tasks.work.delay()
    fleet.redis.kill()
    fleet.redis.start()
    fleet.start_worker("solo")

    assert answer.get(timeout=20) == "key"


def test_the_verbs_of_pytest_celery_work_too(fleet: Fleet, ledger: Ledger):
    worker = fleet.start_worker("solo")
    before = worker.pid
    worker.restart()
    wait_until(lambda: worker.logs().count(" ready.") == 2)

    assert worker.pid != before
    assert fleet.app.control.ping(timeout=5, limit=1) == [{worker.hostname(): {"ok": "pong"}}]
    worker.assert_log_exists("Warm shutdown")


def test_nothing_is_left_of_a_closed_fleet(make_fleet: MakeFleet):
    fleet = make_fleet()
    worker = fleet.start_worker()
    pids = [worker.pid, *worker.children()]
    worker.pause()
    fleet.close()

    assert all(_state(pid) in ("", "Z") for pid in pids)


def test_bodies_can_run_in_the_test_process(fleet: Fleet, ledger: Ledger):
    fleet.tasks.work()

    assert ledger.count("end", pid=os.getpid()) == 1


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
