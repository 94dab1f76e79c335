"""A guarded job is a job of RQ's: what others do with those, by RQ's own means, they can do with ours."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from rq import Queue, SimpleWorker

from taskguard.rq import GuardedSimpleWorker
from tests.rq import jobs
from tests.rq.scene import Scene

both_kinds = pytest.mark.parametrize("kind", [GuardedSimpleWorker, SimpleWorker])


def _work(scene: Scene, kind: type[Any] = GuardedSimpleWorker, **options: Any) -> None:
    """Do what there is to do, in this very process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        kind([scene.queue.name], connection=scene.connection, **options).work(burst=True, logging_level="WARNING")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _plain(scene: Scene) -> Queue:
    return Queue(scene.queue.name, connection=scene.connection)


# -- an id that is used again, by a queue that knows nothing of guards -------------------------------------------------


@both_kinds
def test_an_id_that_a_plain_queue_uses_again_is_another_job(scene: Scene, kind: type[Any]):
    for n in range(2):
        job = _plain(scene).enqueue(jobs.job_, scene.key, value=n, job_id=scene.key)
        _work(scene, kind)
        assert scene.result(job) == n

    assert scene.runs == 2


@both_kinds
def test_the_note_of_an_earlier_job_of_that_id_is_not_taken_for_its_own(scene: Scene, kind: type[Any]):
    scene.call(value="first", job_id=scene.key)
    _work(scene, kind)
    other = _plain(scene).enqueue(jobs.job_, f"{scene.key}-other", value="other", job_id=scene.key)
    _work(scene, kind)

    assert scene.result(other) == "other" and scene.ledger.count("begin", key=f"{scene.key}-other") == 1


def test_an_id_that_is_used_again_while_the_one_before_waits_for_its_retry(scene: Scene):
    """The hash that RQ had of it is gone: the entry of the first one is nobody's."""
    _plain(scene).enqueue(jobs.job_, scene.key, "fail", retry=jobs.Retry(max=1, interval=60), job_id=scene.key)
    _work(scene)
    assert scene.state() == "queued"
    second = _plain(scene).enqueue(jobs.job_, scene.key, value="second", job_id=scene.key)
    _work(scene)

    assert scene.result(second) == "second"
