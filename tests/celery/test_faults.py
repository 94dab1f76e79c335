"""Workers that are killed, stopped and shut down, messages that come twice or never, a store that is away."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest
import redis
from celery import chord

from taskguard.guard import PATIENCE as PATIENCE_OF_WORKERS
from tests.celery.accidents import ENVIRONMENT as ACCIDENT
from tests.celery.haste import ENVIRONMENT as HASTE
from tests.celery.haste import IMPATIENT, PATIENCE
from tests.celery.marks import (
    needs_gevent_that_terminates,
    needs_quick_redelivery,
    needs_quorum_queues,
    needs_reserved_callbacks,
)
from tests.celery.scene import Scene
from tests.celery.settings import QUICK_REDELIVERY
from tests.servers import Proxy, require
from tests.waiting import wait_until

REDIS_AND_RABBITMQ = pytest.mark.parametrize("broker", ["redis", "rabbitmq"])


# -- shutting down -----------------------------------------------------------------------------------------------


@REDIS_AND_RABBITMQ
def test_warm_shutdown(make_scene, broker):
    scene = make_scene(broker=broker)
    worker = scene.fleet.start_worker()
    result = scene.call(gate="gate", value=1)
    scene.begun()
    worker.kill("SIGTERM")
    worker.wait_for_log("Warm shutdown")
    scene.gate.open()
    worker.wait_until_gone()
    assert result.get(timeout=20) == 1
    assert scene.state() == "done"


@REDIS_AND_RABBITMQ
def test_cold_shutdown(make_scene, broker):
    scene = make_scene(broker=broker)
    worker = scene.fleet.start_worker()
    result = scene.call(gate="gate", value=1)
    first = scene.begun()[0]
    worker.quit()
    assert scene.state() == "queued"
    scene.gate.open()
    scene.fleet.start_worker()
    assert result.get(timeout=20) == 1
    second = scene.begun(2)[1]
    assert first["token"] < second["token"]
    assert second["starts"] == 1  # nobody died of it
    assert not scene.overlaps


def test_a_cold_shutdown_frees_the_key_of_a_job_that_was_acknowledged_early(make_scene):
    scene = make_scene()
    worker = scene.fleet.start_worker()
    scene.call("early", gate="gate")
    scene.begun()
    worker.quit()
    assert scene.state("early") == "free"
    scene.gate.open()
    scene.fleet.start_worker()
    scene.next_call_runs("early")


# -- killed ------------------------------------------------------------------------------------------------------


def test_a_killed_child_of_a_task_that_acknowledges_early(make_scene):
    scene = make_scene()
    worker = scene.fleet.start_worker(environment=HASTE)
    scene.call("early", gate="gate")
    worker.kill_child(scene.begun()[0]["pid"])
    scene.wait_for_state("free", name="early")
    scene.gate.open()
    scene.next_call_runs("early")


@pytest.mark.safety
@needs_quick_redelivery
@pytest.mark.parametrize("moment", ["before the result", "after the result"])
def test_a_worker_killed_between_the_end_of_the_body_and_the_ack(make_scene, moment):
    scene = make_scene(conf=dict(QUICK_REDELIVERY))
    worker = scene.fleet.start_worker(concurrency=1, environment={ACCIDENT: moment})
    job = scene.job("short")
    result = chord([job.s(scene.key, value=3), job.s(f"{scene.key}-2", value=4)], scene.fleet.tasks.total.s())()
    worker.wait_until_gone()
    died = scene.ledger.lines("accident")[0]["task_id"]
    scene.fleet.start_worker().wait_for_log(f"Task short[{died}] received")
    assert result.get(timeout=30) == 7
    wait_until(lambda: queued_messages(scene) == 0)
    assert scene.runs == 1
    assert scene.ledger.count("begin", key=f"{scene.key}-2") == 1
    assert scene.ledger.count("begin", key="total") == 1


@needs_quick_redelivery
@needs_reserved_callbacks
def test_a_worker_killed_when_it_has_reserved_the_callback_of_a_chord(make_scene):
    """Celery lets nobody else publish it for some seconds, in which the message of the dead worker comes again."""
    brief = {"result_chord_join_timeout": 1, "task_publish_retry": False, "broker_connection_timeout": 1}
    scene = make_scene(conf=QUICK_REDELIVERY | brief)
    worker = scene.fleet.start_worker(concurrency=1, environment={ACCIDENT: "before the callback of a chord"})
    job = scene.job("short")
    result = chord([job.s(scene.key, value=3), job.s(f"{scene.key}-2", value=4)], scene.fleet.tasks.total.s())()
    worker.wait_until_gone()
    scene.fleet.start_worker()
    assert result.get(timeout=30) == 7
    assert scene.runs == 1
    assert scene.ledger.count("begin", key="total") == 1


# -- delivered twice ---------------------------------------------------------------------------------------------


@pytest.mark.safety
@pytest.mark.long
@needs_quick_redelivery
def test_a_job_that_outlives_the_visibility_timeout_five_times_runs_once(make_scene):
    transport = {**QUICK_REDELIVERY["broker_transport_options"], "visibility_timeout": 1}
    scene = make_scene(conf={"broker_transport_options": transport})
    for _ in range(2):
        scene.fleet.start_worker(wait=False)
    result = scene.call("short", gate="gate", value=1)
    scene.begun()
    time.sleep(5)  # five times the timeout: time itself is under test
    assert any("running elsewhere" in worker.log() or "duplicate" in worker.log() for worker in scene.fleet.workers)
    scene.gate.open()
    assert result.get(timeout=20) == 1
    assert scene.runs == 1
    wait_until(lambda: queued_messages(scene) == 0, what="leftover copies to be dropped")
    assert scene.runs == 1


@needs_quick_redelivery
def test_a_redelivered_job_runs_if_its_first_worker_is_then_killed(make_scene):
    scene = make_scene(conf=dict(QUICK_REDELIVERY))
    for _ in range(2):
        scene.fleet.start_worker()
    result = scene.call("short", gate="gate", value=1)
    first = scene.begun()[0]
    runs_it, other = by_child(scene, first["pid"])
    other.wait_for_log(f"owner {result.id}, holder {result.id} (running)")
    # Not while the copy that was put back is on the wire: Redis hands it to whoever asked first, also if that one is
    # being killed, and then it is gone, as any message of Celery's is.
    received = f"Task short[{result.id}] received"

    def deliveries() -> int:
        return sum(worker.log().count(received) for worker in scene.fleet.workers)

    so_far = max(deliveries(), 4)
    wait_until(lambda: deliveries() > so_far)  # just received, it waits for its time in a worker
    runs_it.kill()
    second = scene.begun(2)[1]
    assert second["pid"] in other.children()
    scene.gate.open()
    assert result.get(timeout=20) == 1
    assert scene.runs == 2


@needs_quick_redelivery
def test_a_waiting_copy_does_not_start_a_retry_before_its_time(make_scene):
    scene = make_scene(conf=dict(QUICK_REDELIVERY))
    scene.fleet.start_worker(), scene.fleet.start_worker()
    result = scene.call("short", then="retry in 3 seconds", gate="gate", value=1)
    scene.begun()
    wait_until(lambda: any(f"owner {result.id}, holder " in worker.log() for worker in scene.fleet.workers))
    scene.gate.open()
    assert result.get(timeout=20) == 1
    first, second = scene.begun(2)
    assert second["at"] - first["at"] > 2.5
    assert [first["retries"], second["retries"]] == [0, 1]
    assert scene.runs == 2


@needs_quick_redelivery
def test_a_stopped_worker_that_wakes_while_another_runs_its_job_which_is_then_killed(make_scene):
    scene = make_scene(conf=dict(QUICK_REDELIVERY))
    for _ in range(2):
        scene.fleet.start_worker()
    result = scene.call("short", gate="first", value=1)
    first = scene.begun()[0]
    one, other = by_child(scene, first["pid"])
    one.pause()
    scene.begun(2)
    one.resume()  # its end is refused, its ack takes the other worker's message away: they share a delivery tag
    one.wait_for_log(f"Task short[{result.id}] ignored")
    other.kill()
    third = scene.begun(3)[2]
    scene.gate.open("first")
    assert result.get(timeout=20) == 1
    assert third["token"] > scene.begun(2)[1]["token"] > first["token"]


def by_child(scene: Scene, pid: int) -> tuple[Any, Any]:
    """The worker that has this process, and the other one."""
    one, other = scene.fleet.workers
    return (one, other) if pid in one.children() else (other, one)


def queued_messages(scene: Scene) -> int:
    """Everything the broker still has: waiting, or delivered and not acknowledged."""
    # In one step: a message that goes from the one to the other in between would be in neither.
    both = redis.Redis.from_url(scene.fleet.database(0)).pipeline(transaction=True)
    return sum(both.llen(scene.fleet.queue).zcard("unacked_index").execute())


# -- lost --------------------------------------------------------------------------------------------------------


def lose_message(scene: Scene) -> None:
    assert redis.Redis.from_url(scene.fleet.database(0)).lpop(scene.fleet.queue)


def test_a_message_that_the_broker_lost_is_published_again_under_the_same_id(make_scene):
    scene = make_scene(conf={"taskguard_republish_after": 0.5})
    result = scene.call(value=1)
    wait_until(lambda: scene.entry().copies == 1)
    lose_message(scene)

    def published_again() -> bool:
        assert scene.call(value=1).id == result.id
        return queued_messages(scene) > 0

    wait_until(published_again, what="a duplicate call that publishes the message again")
    scene.fleet.start_worker()
    assert result.get(timeout=20) == 1
    assert scene.runs == 1


@pytest.mark.safety
def test_both_copies_alive_and_it_still_runs_once(make_scene):
    scene = make_scene(conf={"taskguard_republish_after": 0.2})
    result = scene.call(value=1)
    wait_until(lambda: scene.entry().copies == 1)

    def published_again() -> bool:
        scene.call(value=1)
        return queued_messages(scene) == 2

    wait_until(published_again)
    for _ in range(2):
        scene.fleet.start_worker(wait=False)
    assert result.get(timeout=20) == 1
    wait_until(lambda: queued_messages(scene) == 0)
    assert scene.runs == 1


def test_a_job_takes_the_place_of_a_queued_twin_that_does_not_come(make_scene):
    scene = make_scene()
    guard = scene.job("kin").taskguard.app_guard.guard
    key = scene.job("kin").taskguard.key(scene.key)
    guard.ask(guard.new_claim(key, "died", scene.job("kin").taskguard.policy, state="queued", payload="kin:?"))
    result = scene.call("kin", value=1)
    scene.fleet.start_worker()
    assert result.get(timeout=40) == 1
    assert scene.runs == 1


# -- a store that is away ----------------------------------------------------------------------------------------

AWAY = PATIENCE + 3.0
"""Longer than a worker asks in vain, longer than a lease, and than it takes until a message is delivered again."""


@pytest.fixture
def store() -> Any:
    with closing(require("redis-8", persistence="aof", settings={"appendfsync": "always"})) as server:
        yield server


@pytest.mark.long
def test_the_store_is_down_when_a_job_is_called(make_scene, store):
    scene = make_scene(conf={"taskguard_store": store.url})
    scene.fleet.start_worker(environment=IMPATIENT)
    store.stop()
    started = time.monotonic()
    result = scene.call(value=1)
    assert time.monotonic() - started < PATIENCE_OF_WORKERS  # a caller has a second
    time.sleep(AWAY)
    assert scene.runs == 0
    store.start()
    assert result.get(timeout=40) == 1
    assert scene.runs == 1


def test_a_job_waits_until_the_store_takes_the_workers_password(make_scene):
    with closing(require("redis-8", password="right")) as store, closing(redis.Redis.from_url(store.url)) as admin:
        scene = make_scene(conf={"taskguard_store": store.url})
        result = scene.call(value=1)
        admin.config_set("requirepass", "another")
        scene.fleet.start_worker(environment=HASTE)
        scene.fleet.workers[0].wait_for_log(f"[{result.id}]: the store refuses this worker")
        assert scene.runs == 0
        admin.config_set("requirepass", "right")
        assert result.get(timeout=40) == 1
        assert scene.runs == 1


def test_a_call_waits_a_second_for_a_store_that_hangs(make_scene):
    with closing(require("redis-8")) as store, Proxy(store.port) as proxy:
        scene = make_scene(conf={"taskguard_store": proxy.url(store.url)})
        scene.call()
        proxy.blackhole()
        started = time.monotonic()
        assert not scene.call(key="another").taskguard.duplicate
        assert time.monotonic() - started < PATIENCE_OF_WORKERS


@pytest.mark.long
def test_the_store_is_down_when_a_job_starts(make_scene, store):
    scene = make_scene(conf={"taskguard_store": store.url})
    results = [scene.call(value=1), scene.call(value=1, task_id="another")]
    store.stop()
    scene.fleet.start_worker(environment=IMPATIENT)
    time.sleep(AWAY)
    assert scene.runs == 0
    store.start()
    assert [result.get(timeout=40) for result in results] == [1, 1]
    assert scene.runs == 1


@pytest.mark.long
@needs_quick_redelivery
def test_the_store_is_down_when_a_job_ends(make_scene, store):
    scene = make_scene(conf={"taskguard_store": store.url, **QUICK_REDELIVERY})
    for _ in range(2):
        scene.fleet.start_worker(environment=IMPATIENT)
    result = scene.call("short", gate="gate", value=1)
    scene.begun()
    store.stop()
    scene.gate.open()
    scene.ended()
    time.sleep(AWAY)  # its lease is long over, its message was delivered again
    store.start()
    assert result.get(timeout=40) == 1
    assert scene.runs == 1


# -- many --------------------------------------------------------------------------------------------------------


@pytest.mark.safety
@pytest.mark.long
@pytest.mark.parametrize(
    ("calls", "keys"),
    [(800, 80), pytest.param(5000, 500, marks=[pytest.mark.faults, pytest.mark.timeout(600)])],
    ids=["short", "whole"],
)
def test_a_storm(make_scene, calls, keys):
    """8 publishers, 4 workers."""
    scene = make_scene()
    for worker in [scene.fleet.start_worker(wait=False, concurrency=1) for _ in range(4)]:
        worker.wait_until_ready()  # one that is there alone, while the others start, does nothing at the same time
    ids = scene.fleet.publish_at_once(8, calls=calls // 8, keys=keys)
    assert len(ids) == calls
    for task_id in set(ids):
        assert scene.fleet.app.AsyncResult(task_id).get(timeout=60).startswith("storm-")
    lines = scene.ledger.lines("begin")
    assert {line["key"] for line in lines} == {f"storm-{n}" for n in range(keys)}
    assert not any(scene.ledger.overlaps(f"storm-{n}") for n in range(0, keys, 25))
    assert at_most_one_at_a_time(scene)


def at_most_one_at_a_time(scene: Scene) -> bool:
    busy: dict[str, str] = {}
    for line in sorted((line for line in scene.ledger.lines() if "key" in line), key=lambda line: line["at"]):
        if line["what"] == "begin":
            if line["key"] in busy:
                return False
            busy[line["key"]] = line["body"]
        elif busy.pop(line["key"], None) != line["body"]:
            return False
    return True


# -- other pools -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_pools(make_scene, pool):
    scene = make_scene()
    worker = scene.fleet.start_worker(pool=pool, concurrency=1 if pool == "solo" else 3)
    assert scene.call(then="retry once", value=1).get(timeout=20) == 1
    first = scene.call(value=2)
    assert first.get(timeout=20) == 2
    if pool != "solo":
        held = scene.call(gate="gate", value=3)
        scene.begun(4)
        joined = scene.call(task_id="joined")
        assert scene.call().id == held.id
        scene.gate.open()
        assert joined.get(timeout=20) == held.get(timeout=20) == 3
    failed = scene.call(then="fail")
    with pytest.raises(Exception, match="failed"):
        failed.get(timeout=20)
    assert scene.state() == "free"
    worker.stop()


@needs_gevent_that_terminates
def test_terminate_under_gevent(make_scene):
    scene = make_scene()
    scene.fleet.start_worker(pool="gevent")
    result = scene.call(then="clean up slowly")
    scene.begun()
    result.revoke(terminate=True)
    scene.ledger.wait_for("cleaning up")
    scene.wait_for_state("free")
    assert scene.ledger.count("cleaned up") == 1
    scene.next_call_runs()


@pytest.mark.faults
@needs_quorum_queues
def test_a_job_is_put_back_where_rabbitmq_itself_delays(make_scene):
    topic = {"task_default_exchange": "topic", "task_default_exchange_type": "topic"}
    scene = make_scene(broker="rabbitmq-quorum", conf=topic)
    scene.fleet.start_worker()
    held = scene.call(gate="gate", value=1)
    scene.begun()
    joined = scene.call(task_id="joined")
    scene.fleet.workers[0].wait_for_log("Task job[joined] ignored")
    scene.gate.open()
    assert held.get(timeout=20) == joined.get(timeout=20) == 1


@pytest.mark.parametrize("backend", ["sql", "rpc", None])
def test_result_backends(make_scene, backend):
    scene = make_scene(backend=backend)
    scene.fleet.start_worker()
    first = scene.call(gate="gate", value=1)
    scene.begun()
    second = scene.call(value=1)
    third = scene.call(task_id="third")
    scene.gate.open()
    if backend is not None:
        assert [result.get(timeout=20) for result in (first, second, third)] == [1, 1, 1]
    scene.wait_for_state("done")
    scene.call(key="after").forget() if backend == "sql" else scene.call(key="after")
    scene.begun(key="after")
    assert scene.runs == 1


def test_a_leftover_copy_where_there_is_no_result_backend_is_dropped(make_scene):
    scene = make_scene(backend=None, conf={"task_ignore_result": False, "result_backend": None})
    worker = scene.fleet.start_worker()
    result = scene.call(value=1)
    scene.wait_for_state("done")
    scene.fleet.app._taskguard.send("job", (scene.key,), task_id=result.id)
    worker.wait_for_log(f"Task job[{result.id}] ignored")
    assert "raised unexpected" not in worker.log()
    assert scene.runs == 1
