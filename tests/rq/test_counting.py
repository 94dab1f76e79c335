"""`enforce=False`: what would have been a duplicate is counted, and everything runs as without a guard."""

from __future__ import annotations

import pytest
from rq import Retry

from taskguard.protocol.store import Claim, Lease
from tests.rq import jobs
from tests.rq.scene import Scene


def run_twin(scene: Scene) -> Lease:
    guarded = jobs.counted.taskguard
    guard = guarded.guard(scene.connection)
    lease = guard.store.claim(Claim(guarded.key(scene.key), "twin", "attempt", lease=60, keep_for=60))
    assert isinstance(lease, Lease)
    return lease


def live(scene: Scene) -> list[str]:
    return [entry.owner for entry in scene.live("counted")]


@pytest.mark.parametrize("name", ["counted_reuse_success", "counted_reuse"])
def test_what_is_done_already_runs_again(scene: Scene, name: str):
    for value in ("first", "second"):
        job = scene.call(name, value=value)
        assert not job.taskguard.duplicate
        scene.work()
        assert scene.result(job) == value

    assert scene.runs == 2


def test_an_idempotency_key_may_be_used_for_other_work(scene: Scene):
    first, second = (scene.call("counted", value=n, idempotency_key=scene.key) for n in (1, 2))
    scene.work()
    assert [scene.result(first), scene.result(second)] == [1, 2]
    third = scene.call("counted", value=3, idempotency_key=scene.key)
    scene.work()
    assert scene.result(third) == 3


def test_a_retry_of_a_run_beside_another_leaves_nothing_in_the_queue(scene: Scene):
    twin = run_twin(scene)
    job = scene.call("counted", then="fail once", value="second", retry=Retry(max=1))
    scene.work(max_jobs=1)
    assert live(scene) == [twin.owner]
    scene.work()

    assert scene.result(job) == "second"


def test_a_returned_retry_of_a_run_beside_another_leaves_nothing_in_the_queue(scene: Scene):
    twin = run_twin(scene)
    job = scene.call("counted", then="return Retry once", value="second")
    scene.work(max_jobs=1)
    assert live(scene) == [twin.owner]
    scene.work()

    assert scene.result(job) == "second"


def test_a_run_beside_another_whose_token_is_refused_gets_a_higher_one_and_leaves_nothing_in_the_queue(scene: Scene):
    twin = run_twin(scene)
    job = scene.call("counted", then="be refused", value=2**52)
    scene.work(max_jobs=1)
    assert scene.status(job) == "queued" and live(scene) == [twin.owner]
    scene.work()

    assert scene.status(job) == "finished" and scene.runs == 2
    assert [line["token"] > 2**52 for line in scene.begun(2)] == [False, True]
