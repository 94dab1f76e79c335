"""A guarded job is a job of RQ's: what others do with those, by RQ's own means, they can do with ours."""

from __future__ import annotations

import functools
import json
import signal
from typing import Any

import pytest
from rq import Queue, SimpleWorker
from rq.job import Callback, Job
from rq.timeouts import JobTimeoutException, UnixSignalDeathPenalty

from taskguard.rq import GuardedSimpleWorker
from taskguard.rq.clock import JobClock
from taskguard.rq.guarded_job import ENVELOPE_FIELD
from taskguard.rq.job_metadata import written
from tests.rq import jobs
from tests.rq.job_classes import SlottedJob, TracedJob
from tests.rq.scene import Scene

both_kinds = pytest.mark.parametrize("kind", [GuardedSimpleWorker, SimpleWorker])


def _plain(scene: Scene) -> Queue:
    return Queue(scene.queue.name, connection=scene.connection)


# -- an id that is used again, by a queue that knows nothing of guards -------------------------------------------------


@both_kinds
def test_an_id_that_a_plain_queue_uses_again_is_another_job(scene: Scene, kind: type[Any]):
    for n in range(2):
        job = _plain(scene).enqueue(jobs.job_, scene.key, value=n, job_id=scene.key)
        scene.work(kind)
        assert scene.result(job) == n

    assert scene.runs == 2


@both_kinds
def test_the_note_of_an_earlier_job_of_that_id_is_not_taken_for_its_own(scene: Scene, kind: type[Any]):
    scene.call(value="first", job_id=scene.key)
    scene.work(kind)
    other = _plain(scene).enqueue(jobs.job_, f"{scene.key}-other", value="other", job_id=scene.key)
    scene.work(kind)

    assert scene.result(other) == "other" and scene.ledger.count("begin", key=f"{scene.key}-other") == 1


def test_an_id_that_is_used_again_while_the_one_before_waits_for_its_retry(scene: Scene):
    """The hash that RQ had of it is gone: the entry of the first one is nobody's."""
    _plain(scene).enqueue(jobs.job_, scene.key, "fail", retry=jobs.Retry(max=1, interval=60), job_id=scene.key)
    scene.work()
    assert scene.state() == "queued"
    second = _plain(scene).enqueue(jobs.job_, scene.key, value="second", job_id=scene.key)
    scene.work()

    assert scene.result(second) == "second"


# -- classes of jobs ---------------------------------------------------------------------------------------------------


def test_a_job_is_equal_to_what_rq_has_of_it(scene: Scene):
    job = scene.call()

    assert job == scene.fetch(job) and scene.fetch(job) == job
    assert scene.queue.jobs == [job] and len({job, scene.fetch(job)}) == 1
    assert job != scene.queue.enqueue(jobs.plain) and job != job.id


@pytest.mark.parametrize("function", [jobs.plain, jobs.job_])
def test_a_class_of_jobs_that_does_something_around_each_of_them(scene: Scene, function: Any):
    scene.queue.enqueue(function, scene.key)
    scene.work(job_class=TracedJob)

    assert scene.ledger.count("traced") == scene.runs == 1


def test_what_is_put_around_rqs_own_class_is_called(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    """As what traces does it."""
    original, seen = Job.perform, []

    @functools.wraps(original)
    def traced(job: Job) -> Any:
        seen.append(job.id)
        return original(job)

    monkeypatch.setattr(Job, "perform", traced)
    job = scene.call()
    scene.work()

    assert seen == [job.id]


@both_kinds
def test_a_class_of_jobs_with_slots(scene: Scene, kind: type[Any]):
    job = scene.call(value=1)
    scene.work(kind, job_class=SlottedJob)

    assert scene.result(job) == 1 and scene.state() == "done"


# -- what a body may do to its job -------------------------------------------------------------------------------------


@both_kinds
def test_a_body_that_takes_away_its_meta(scene: Scene, kind: type[Any]):
    job = scene.call(then="take the meta away", value=1)
    scene.work(kind)

    assert scene.result(job) == 1 and scene.state() == "done"


@both_kinds
def test_a_body_that_asks_what_is_new_and_its_next_occurrence(scene: Scene, kind: type[Any]):
    """A scheduler has enqueued the id again while the body runs. The body asks, and has not ended that one."""
    job = _plain(scene).enqueue(jobs.job_, scene.key, "enqueue itself once and refresh", meta={"interval": 60})
    scene.work(kind)

    assert scene.runs == 2 and scene.status(job) == "finished"


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SimpleWorker, GuardedSimpleWorker])
def test_a_callback_that_cannot_be_imported_is_a_failure_of_its_job_alone(scene: Scene, kind: type[Any]):
    job = scene.call(value=1, on_success=Callback("tests.rq.jobs.missing"))
    after = scene.queue.enqueue(jobs.plain, scene.key)
    scene.work(kind)

    assert scene.status(job) == "failed" and scene.status(after) == "finished"
    assert "missing" in str(scene.fetch(job).latest_result().exc_string)


@both_kinds
def test_a_function_that_is_enqueued_by_another_name_is_guarded(scene: Scene, kind: type[Any]):
    job = scene.queue.enqueue("tests.rq.test_own_classes.jobs.job_", scene.key, value=1)
    scene.work(kind)

    assert scene.result(job) == 1 and scene.state() == "done"
    assert "token" in scene.begun()[0]


def test_a_note_that_a_newer_version_wrote_can_be_read(scene: Scene):
    job = scene.call(value=1)
    scene.connection.hset(job.key, ENVELOPE_FIELD, json.dumps({**json.loads(written(scene.note(job))), "newer": 1}))
    scene.work()

    assert scene.result(job) == 1 and scene.runs == 1


# -- alarms ------------------------------------------------------------------------------------------------------------


def test_a_job_that_runs_at_once_leaves_the_clock_of_the_job_around_it_alone(scene: Scene):
    scene.call().delete()  # its entry is still there, so that the next one waits for a moment
    at_once = Queue("at-once", connection=scene.connection, is_async=False)
    with UnixSignalDeathPenalty(60, JobTimeoutException):
        signal.alarm(20)  # two thirds of its time are over
        at_once.enqueue(jobs.job_, scene.key)

        assert 0 < signal.alarm(0) <= 20
    assert scene.runs == 1


def test_an_alarm_that_was_set_while_a_job_waited_is_not_taken_back():
    """A worker that is told to end gives its horse a few seconds so."""
    clock = JobClock()
    with UnixSignalDeathPenalty(60, JobTimeoutException):
        assert clock.stop()
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.alarm(20)
        clock.start()

        assert 0 < signal.alarm(0) <= 20 and signal.getsignal(signal.SIGALRM) == signal.SIG_IGN
