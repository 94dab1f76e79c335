"""Calls in a pipeline of the caller's own: executed later, again, or never."""

from __future__ import annotations

from typing import Any

from tests.rq.scene import Scene


def test_calls_in_one_pipeline_know_of_each_other(scene: Scene):
    with scene.connection.pipeline() as pipeline:
        first = scene.call(pipeline=pipeline)
        second = scene.call(pipeline=pipeline)
        assert scene.queue.count == 0
        pipeline.execute()

    assert first.id == second.id and scene.queue.job_ids == [first.id]


def test_a_pipeline_that_is_never_executed_blocks_nobody(scene: Scene):
    with scene.connection.pipeline() as pipeline:
        scene.call(pipeline=pipeline)
    job = scene.call(value="runs")

    assert not job.taskguard.duplicate and scene.queue.job_ids == [job.id]


def test_a_pipeline_that_is_tried_again(scene: Scene):
    """A job is enqueued with a change of the caller's own, and somebody changes the same."""
    tried = []

    def change(pipeline: Any) -> None:
        pipeline.multi()
        tried.append(scene.call(value=len(tried), pipeline=pipeline))
        if len(tried) == 1:
            scene.connection.set(scene.key, "changed")

    scene.connection.transaction(change, scene.key)
    first, second = tried

    assert not second.taskguard.duplicate and scene.status(first) is None
    scene.work()
    assert scene.result(second) == 1 and scene.runs == 1


def test_a_pipeline_that_is_used_again(scene: Scene):
    pipeline = scene.connection.pipeline()
    first = scene.call(pipeline=pipeline)
    pipeline.execute()
    scene.fetch(first).delete()
    second = scene.call(pipeline=pipeline)
    pipeline.execute()

    assert not second.taskguard.duplicate and scene.status(second) == "queued"
