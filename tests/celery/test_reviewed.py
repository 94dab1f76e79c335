"""Ways in which a job could be lost, doubled or blocked: each of them once was."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError
from kombu.exceptions import EncodeError

from taskguard import TooManyStartsError
from taskguard.guard import PATIENCE as PATIENCE_OF_WORKERS
from tests.celery.accidents import ENVIRONMENT as ACCIDENT
from tests.celery.marks import needs_quick_redelivery
from tests.celery.scene import Scene
from tests.celery.settings import QUICK_REDELIVERY
from tests.servers import Proxy, require
from tests.waiting import wait_until


@pytest.fixture
def scene(make_scene: Any) -> Scene:
    scene = make_scene()
    scene.fleet.start_worker()
    return scene


def test_a_body_that_calls_its_own_task_keeps_the_key(scene):
    first = scene.call(then="call itself")
    scene.ledger.wait_for("called itself")
    assert scene.state() == "running"
    assert scene.call().id == first.id
    scene.gate.open()
    assert first.get(timeout=20) == "outer"


@pytest.mark.parametrize("then", ["replace by a relative", "replace by a chain to a relative"])
def test_replaced_by_another_task_of_the_same_key_space(scene, then):
    result = scene.call("kin", then=then)
    assert result.get(timeout=20) == "relative"


def test_a_map_in_the_only_slot_does_not_wait_for_a_job_behind_it(make_scene):
    scene = make_scene()
    mapped = scene.job("job").map([scene.key]).apply_async()
    behind = scene.call(value=7)
    scene.fleet.start_worker(concurrency=1)
    assert mapped.get(timeout=20) == [None]
    assert behind.get(timeout=20) == 7


def test_the_duplicate_of_an_item_gets_its_outcome(scene):
    mapped = scene.job("job").starmap([(scene.key, "return", "gate", 7)]).apply_async()
    scene.begun()
    duplicate = scene.call()
    scene.gate.open()
    assert mapped.get(timeout=20) == [7]
    assert duplicate.get(timeout=20) == 7
    assert scene.runs == 1


def test_links_of_a_duplicate_are_called(scene):
    told = scene.fleet.tasks.told
    scene.call(gate="gate", value=7)
    scene.begun()
    scene.call(link=told.s("linked"))
    scene.gate.open()
    scene.ledger.wait_for("told", given=["7", "'linked'"])
    assert scene.runs == 1


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


def test_reject_and_requeue_of_a_job_that_was_acknowledged_early_frees_its_key(scene):
    scene.call("early", then="reject and requeue once")
    scene.ledger.wait_for("requeued")
    scene.wait_for_state("free", name="early")
    scene.next_call_runs("early")


@needs_quick_redelivery
def test_a_waiting_copy_does_not_start_a_retry_before_its_time(make_scene):
    scene = make_scene(conf=dict(QUICK_REDELIVERY))
    scene.fleet.start_worker(), scene.fleet.start_worker()
    result = scene.call("short", then="retry in 3 seconds", gate="gate", value=1)
    scene.begun()
    wait_until(lambda: any(f"owner {result.id}, running by" in worker.log() for worker in scene.fleet.workers))
    scene.gate.open()
    assert result.get(timeout=20) == 1
    first, second = scene.begun(2)
    assert second["at"] - first["at"] > 2.5
    assert [first["retries"], second["retries"]] == [0, 1]
    assert scene.runs == 2


def test_a_retry_that_cannot_be_written_fails(scene):
    result = scene.call(then="retry with what cannot be written")
    with pytest.raises(EncodeError):
        result.get(timeout=20)
    assert scene.runs == 1
    assert scene.state() == "free"


def test_a_failure_after_a_retry_was_asked_for_still_retries(scene):
    scene.call(then="retry and fail")
    scene.begun(2)
    scene.wait_for_state("done")
    assert not scene.overlaps


def test_a_group_of_run_once_more_runs_once(make_scene):
    scene = make_scene()
    result = group(scene.job("more").s(scene.key, value=1) for _ in range(4)).apply_async()
    scene.fleet.start_worker()
    assert result.get(timeout=20) == [1, 1, 1, 1]
    assert scene.runs == 1


@needs_quick_redelivery
def test_a_chord_ends_though_the_worker_dies_while_it_raises(make_scene):
    scene = make_scene(conf=dict(QUICK_REDELIVERY))
    scene.fleet.start_worker(concurrency=1)
    scene.call("raises_at_run", gate="gate")
    scene.begun()
    dies = scene.fleet.start_worker(environment={ACCIDENT: "before the failure"})
    header = [scene.job("raises_at_run").s(scene.key), scene.job("job").s("other", value=1)]
    result = chord(header, scene.fleet.tasks.total.s())()
    dies.wait_until_gone()
    scene.fleet.start_worker()
    with pytest.raises(Exception, match="raises_at_run"):
        result.get(timeout=30)
    scene.gate.open()


def test_a_job_takes_the_place_of_a_queued_twin_that_does_not_come(make_scene):
    scene = make_scene()
    guard = scene.job("kin").taskguard.guarding.guard
    key = scene.job("kin").taskguard.key(scene.key)
    guard.ask(guard.new_claim(key, "died", scene.job("kin").taskguard.policy, state="queued", payload="kin:?"))
    result = scene.call("kin", value=1)
    scene.fleet.start_worker()
    assert result.get(timeout=40) == 1
    assert scene.runs == 1


def test_a_job_that_loses_its_lease_every_time_is_stopped(scene):
    result = scene.call("too_long", then="clean up slowly")
    with pytest.raises(TooManyStartsError):
        result.get(timeout=40)
    assert [line["starts"] for line in scene.begun(2)] == [1, 2]


def test_a_large_result_is_reused_though_it_is_not_stored(scene):
    first = scene.call("reused_unheard", value="x" * 2000)
    scene.wait_for_state("done", name="reused_unheard")
    again = scene.call("reused_unheard")
    assert again.taskguard.owner == first.id
    assert again.get(timeout=20) == "x" * 2000


def test_a_chain_goes_on_after_a_twin_that_ignores_its_result(scene):
    scene.call("unheard", gate="gate", value=7)
    scene.begun()
    chain(scene.job("unheard").s(scene.key), scene.fleet.tasks.told.s("next")).apply_async()
    scene.fleet.workers[0].wait_for_log("duplicate")
    scene.gate.open()
    scene.ledger.wait_for("told", given=["7", "'next'"])
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


def test_a_result_that_cannot_be_written_is_a_failure_here_too(scene):
    result = scene.call("reused_if_successful", then="return what cannot be written")
    with pytest.raises(EncodeError):
        result.get(timeout=20)
    assert scene.state("reused_if_successful") == "free"


def test_a_message_in_another_serializer_is_put_back_in_it(make_scene):
    scene = make_scene(conf={"accept_content": ["json", "pickle"]})
    scene.fleet.start_worker(environment={"C_FORCE_ROOT": "1"})
    scene.call("while_running", gate="gate", value=1)
    scene.begun()
    second = scene.job("while_running").apply_async((scene.key,), {"value": {1, 2}}, serializer="pickle")
    scene.fleet.workers[0].wait_for_log(f"owner {second.id}, running by")
    scene.gate.open()
    assert second.get(timeout=20) == 1


def test_a_silent_store_does_not_stop_the_parent(make_scene):
    with closing(require("redis-8")) as store, Proxy(store.port) as proxy:
        scene = make_scene(conf={"taskguard_store": proxy.url(store.url)})
        for number in range(6):
            scene.call(key=f"{scene.key}-{number}", expires=0.5)
        time.sleep(1)
        proxy.blackhole()
        scene.fleet.start_worker()
        scene.fleet.tasks.work.delay(scene.key)
        scene.begun()  # long before the parent would have asked in vain for each of them


def test_an_expired_job_whose_key_cannot_be_made_does_not_stop_the_parent(make_scene):
    scene = make_scene()
    # As from a publisher without the code: the worker's parent is the first to look for its key.
    expired = scene.fleet.app._taskguard.send("keyless", (scene.key,), expires=0.1)
    time.sleep(0.2)
    worker = scene.fleet.start_worker()
    assert scene.call(value=1).get(timeout=20) == 1
    with pytest.raises(TaskRevokedError):
        expired.get(timeout=20)
    assert "Connection to broker lost" not in worker.log()


def test_a_call_waits_a_second_for_a_store_that_hangs(make_scene):
    with closing(require("redis-8")) as store, Proxy(store.port) as proxy:
        scene = make_scene(conf={"taskguard_store": proxy.url(store.url)})
        scene.call()
        proxy.blackhole()
        started = time.monotonic()
        assert not scene.call(key="another").taskguard.duplicate
        assert time.monotonic() - started < PATIENCE_OF_WORKERS
