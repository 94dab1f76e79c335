"""Pauses, and a Redis that goes away: what a paused run may not do, and what the others may."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import redis
from rq import Retry
from rq.job import Callback

from tests.rq import jobs, slow
from tests.rq.scene import OURS, PLAIN, Scene
from tests.servers import RedisServer
from tests.waiting import wait_until

HASTY = "tests.rq.workers.HastyWorker"
HASTY_OURS = "tests.rq.workers.HastyGuardedWorker"


def _replaced_while_paused(scene: Scene, first: str, second: str) -> tuple[Any, Any]:
    """A job whose worker sleeps past its lease; RQ takes it for abandoned, and another worker runs it to its end."""
    callbacks = {"on_success": Callback(jobs.told), "on_failure": Callback(jobs.told)}
    paused = scene.start_worker(first)
    job = scene.call("short", gate="gate", retry=Retry(max=1), value="kept", **callbacks)
    scene.begun()
    paused.pause()
    scene.passes(3)
    scene.find_abandoned()
    scene.start_worker(second)
    scene.begun(2)
    scene.open()
    scene.wait_for_status(job, "finished")
    return job, paused


def test_a_run_that_slept_past_its_lease_writes_nothing(scene: Scene):
    job, paused = _replaced_while_paused(scene, HASTY_OURS, HASTY_OURS)
    before = scene.connection.hgetall(job.key)
    scene.connection.delete(scene.queue.key)
    paused.resume()
    paused.wait_for_log("nothing to report")
    scene.passes(0.5)

    assert scene.connection.hgetall(job.key) == before
    assert scene.status(job) == "finished" and scene.fetch(job).return_value() == "kept"
    assert [result.type.name for result in job.results()] == ["SUCCESSFUL"]
    assert scene.ledger.count("told") == 2  # abandoned, and then finished: nothing since
    assert scene.queue.count == 0 and scene.runs == 2
    first, second = scene.begun(2)
    assert second["token"] > first["token"]


def test_a_horse_that_dies_after_it_was_replaced_is_not_told_of(scene: Scene):
    """Its worker sees that it is gone while another one runs the same job."""
    paused = scene.start_worker(HASTY_OURS)
    job = scene.call("short", gate="gate", retry=Retry(max=1), value="kept")
    scene.begun()
    horse = paused.horse()
    paused.pause()
    scene.passes(3)
    scene.find_abandoned()
    scene.start_worker(HASTY_OURS)
    scene.begun(2)
    os.kill(horse, signal.SIGKILL)
    paused.resume()
    paused.wait_for_log("another worker has the job")

    assert scene.status(job) == "started" and scene.queue.count == 0
    scene.open()
    assert scene.result(job) == "kept" and scene.runs == 2
    assert [result.type.name for result in job.results()] == ["SUCCESSFUL"]


def test_a_run_that_slept_past_its_lease_at_a_plain_worker_is_seen_in_its_job(scene: Scene):
    job, paused = _replaced_while_paused(scene, HASTY, HASTY)
    paused.resume()
    paused.wait_for_log("LeaseLostError")

    wait_until(lambda: len(job.results()) == 2, what="a second result")  # what only our worker can prevent
    assert scene.ledger.count("told") > 2
    scene.wait_for_status(job, "finished")
    assert scene.state("short") == "done" and scene.runs == 2  # and the body did not run once more


@pytest.mark.parametrize("kind", [OURS, PLAIN])
def test_a_job_that_slept_while_another_one_took_its_key_runs_after_it(scene: Scene, kind: str):
    paused = scene.start_worker(kind)
    job = scene.call("short", gate="gate", value="first")
    scene.begun()
    paused.pause()
    wait_until(lambda: scene.state("short") == "free", what="the end of its lease")
    other = scene.call("short", value="other")
    assert other.id != job.id and not other.taskguard.duplicate
    scene.start_worker(kind)
    assert scene.result(other) == "other"
    scene.open()
    paused.resume()

    assert scene.result(job) == "first"
    assert [line["value"] for line in scene.ledger.lines("end", key=scene.key)][-1] == "first"
    tokens = [line["token"] for line in scene.begun(3)]
    assert tokens == sorted(tokens) and scene.runs == 3


def test_a_paused_horse_cannot_end_what_another_one_runs(scene: Scene):
    """Only the horse sleeps; its worker lives, and RQ sees nothing."""
    worker = scene.start_worker(OURS)
    job = scene.call("short", gate="gate", value="first")
    scene.begun()
    os.kill(worker.horse(), signal.SIGSTOP)
    wait_until(lambda: scene.state("short") == "free", what="the end of its lease")
    scene.start_worker(OURS)
    other = scene.call("short", gate="other", value="other")
    scene.begun(2)
    scene.open()
    os.kill(worker.horse(), signal.SIGCONT)
    scene.passes(2)

    assert scene.entry("short").owner.endswith(other.id) and scene.state("short") == "running"
    scene.open("other")
    assert scene.result(other) == "other"
    assert scene.result(job) == "other" and scene.runs == 2  # it has joined the one that took its key


def test_a_lease_is_renewed_while_the_horse_runs(scene: Scene):
    scene.start_worker(PLAIN)
    job = scene.call("short", gate="gate")
    scene.begun()
    for _ in range(8):
        scene.passes(0.5)
        assert scene.state("short") == "running"
    scene.open()
    scene.wait_for_status(job, "finished")


def test_the_key_is_freed_by_hand_and_the_body_is_told(scene: Scene):
    scene.start_worker(OURS)
    job = scene.call("short", gate="gate", value="again")
    scene.begun()
    guard = jobs.short.taskguard.guard(scene.connection, scene.queue.serializer)
    guard.store.forget(jobs.short.taskguard.key(scene.key))
    scene.ledger.wait_for("failed", key=scene.key, error="LeaseLostError")
    scene.open()

    assert scene.result(job) == "again"  # nobody else has it: it is put back, not lost


# -- Redis -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [OURS, PLAIN])
def test_redis_is_restarted_with_its_data(make_scene: Any, own_redis: RedisServer, kind: str):
    scene = make_scene(own_redis.url)
    scene.start_worker(kind)
    job = scene.call("short", gate="gate", value="kept")
    scene.begun()
    own_redis.restart()
    assert scene.call("short").id == job.id
    scene.open()

    assert scene.result(job, within=40) == "kept"
    assert scene.state("short") == "done" and scene.runs == 1


@pytest.mark.parametrize("kind", [OURS, PLAIN])
def test_redis_is_restarted_without_its_data(make_scene: Any, own_redis: RedisServer, kind: str):
    scene = make_scene(own_redis.url)
    scene.start_worker(kind)
    scene.call("short", gate="gate")
    [begin] = scene.begun()
    own_redis.restart(wipe=True)
    scene.ledger.wait_for("failed", key=scene.key, error="LeaseLostError")
    scene.open()
    scene.start_worker(kind)
    job = scene.call("short", value="after")

    assert scene.result(job, within=40) == "after"
    assert scene.begun(2)[1]["token"] > begin["token"] and not scene.overlaps


@pytest.mark.parametrize(("then", "end", "state"), [("return", "finished", "done"), ("fail", "failed", "free")])
def test_redis_is_away_when_a_body_ends(make_scene: Any, own_redis: RedisServer, then: str, end: str, state: str):
    scene = make_scene(own_redis.url)
    scene.start_worker(OURS)
    job = scene.call(then=then, gate="gate", value="kept")
    scene.begun()
    own_redis.stop()
    scene.open()
    wait_until(lambda: scene.ledger.count("end") + scene.ledger.count("failed"), what="the end of the body")
    scene.passes(1)
    own_redis.start()

    scene.wait_for_status(job, end, within=40)
    found = scene.fetch(job).latest_result()
    assert found.return_value == "kept" if then == "return" else "TroubleError" in found.exc_string
    assert scene.state() == state and scene.runs == 1


def test_redis_is_away_when_a_body_is_told_that_its_lease_is_unsure(make_scene: Any, own_redis: RedisServer):
    scene = make_scene(own_redis.url)
    scene.start_worker(OURS)
    job = scene.call("unsure", gate="gate", value="second", job_timeout=3)
    scene.begun()
    own_redis.stop()
    scene.ledger.wait_for("failed", key=scene.key, error="LeaseLostError")
    scene.passes(2.5)  # all this is not its body's time
    own_redis.start()
    scene.open()
    scene.burst()

    assert scene.result(job) == "second" and scene.runs == 2


@pytest.mark.faults  # the guard asks for ten seconds before it puts a job back
@pytest.mark.parametrize("kind", [OURS, PLAIN])
def test_redis_is_away_when_a_job_claims(make_scene: Any, own_redis: RedisServer, kind: str):
    scene = make_scene(own_redis.url)
    scene.start_worker(kind, environment={slow.SLOW: "1"})
    job = scene.queue.enqueue(slow.slow, scene.key)
    scene.ledger.wait_for("import")
    own_redis.stop()
    scene.passes(15)
    own_redis.start()
    scene.burst(kind)

    assert scene.result(job, within=40) == scene.key and scene.runs == 1


# -- what it costs -----------------------------------------------------------------------------------------------------


def _connections_made(scene: Scene) -> int:
    return int(scene.connection.info("stats")["total_connections_received"])


@pytest.mark.parametrize("kind", [OURS, PLAIN])
def test_a_short_job_opens_no_second_connection(make_scene: Any, own_redis: RedisServer, kind: str):
    scene = make_scene(own_redis.url)

    def connections_for(function: Any) -> int:
        scene.call(key=f"{scene.key}-warm")  # the caller's process has its own connection for the history
        jobs.job_.taskguard.guard(scene.queue.connection, scene.queue.serializer).recorder.flush()
        before = _connections_made(scene)
        jobs_ = [scene.queue.enqueue(function, f"{scene.key}-{n}") for n in range(5)]
        scene.burst(kind)
        assert [scene.status(job) for job in jobs_] == ["finished"] * 5
        return _connections_made(scene) - before

    assert connections_for(jobs.job_) == connections_for(jobs.plain)


def test_a_call_opens_no_second_connection(make_scene: Any, own_redis: RedisServer):
    scene = make_scene(own_redis.url)
    with redis.Redis.from_url(own_redis.url) as watching:
        scene.connection.ping()
        scene.call(key=f"{scene.key}-warm")  # the history of a process has a connection of its own
        jobs.job_.taskguard.guard(scene.queue.connection, scene.queue.serializer).recorder.flush()
        before = int(watching.info("stats")["total_connections_received"])
        for n in range(10):
            scene.call(key=f"{scene.key}-{n}")

        assert int(watching.info("stats")["total_connections_received"]) == before


def test_a_long_job_opens_one_more(make_scene: Any, own_redis: RedisServer):
    scene = make_scene(own_redis.url)
    scene.start_worker(OURS)
    scene.call("short", gate="gate")
    scene.begun()
    jobs.short.taskguard.guard(scene.queue.connection, scene.queue.serializer).recorder.flush()
    before = _connections_made(scene)
    scene.passes(2)

    assert _connections_made(scene) - before == 1  # its renewals
    scene.open()
