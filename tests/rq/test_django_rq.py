"""django-rq with our queue: its commit modes say when a job is enqueued, and that is when its key is claimed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.signals import request_finished
from django.db import transaction
from django.test.utils import override_settings

from taskguard import ConfigurationError, DuplicateTaskError
from tests.django_project import configure
from tests.rq import jobs, named
from tests.rq.scene import Scene

GUARDED = "taskguard.rq.django.GuardedDjangoQueue"


@pytest.fixture
def project(scene: Scene) -> Iterator[Callable[..., None]]:
    """Its settings for django-rq; which reads some of them when it is imported."""
    configure()
    changes = []

    def set_up(**options: Any) -> None:
        queues = {scene.queue.name: {"URL": scene.url}}
        made = override_settings(RQ_QUEUES=queues, RQ={"QUEUE_CLASS": GUARDED, **options})
        made.enable()
        changes.append(made)

    set_up()
    yield set_up
    while changes:
        changes.pop().disable()


@pytest.fixture
def queue(scene: Scene, project: Any) -> Callable[..., Any]:
    import django_rq

    def get(**options: Any) -> Any:
        scene.queue = django_rq.get_queue(scene.queue.name, **options)
        return scene.queue

    return get


class RolledBackError(Exception):
    pass


# -- when a job is enqueued --------------------------------------------------------------------------------------------


def test_a_transaction_that_is_rolled_back_enqueues_and_claims_nothing(scene: Scene, queue: Any):
    with pytest.raises(RolledBackError), transaction.atomic():
        queue().enqueue(jobs.job_, scene.key)
        raise RolledBackError

    assert scene.queue.count == 0 and scene.state() is None


def test_a_job_is_claimed_and_enqueued_when_its_transaction_commits(scene: Scene, queue: Any):
    with transaction.atomic():
        assert queue().enqueue(jobs.job_, scene.key, value=1) is None  # as from django-rq: there is no job yet
        queue().enqueue(jobs.job_, scene.key, value=2)
        assert scene.state() is None and scene.queue.count == 0

    [job_id] = scene.queue.job_ids
    assert scene.state() == "queued"
    again = queue().enqueue(jobs.job_, scene.key)
    assert again.id == job_id and again.taskguard.duplicate


def test_a_duplicate_that_is_not_allowed_is_told_when_its_transaction_commits(scene: Scene, queue: Any):
    queue().enqueue(jobs.raises, scene.key)
    others: list[str] = []
    with pytest.raises(DuplicateTaskError), transaction.atomic():
        queue().enqueue(jobs.raises, scene.key)
        transaction.on_commit(lambda: others.append("called"))

    assert scene.queue.count == 1 and others == []  # Django gives up what else waits for the commit


def test_outside_of_a_transaction_a_job_is_enqueued_at_once(scene: Scene, queue: Any):
    job = queue().enqueue(jobs.job_, scene.key, value=1)

    assert scene.state() == "queued" and not job.taskguard.duplicate and scene.queue.job_ids == [job.id]


@pytest.mark.parametrize("how", ["for the queue", "for the project"])
def test_commit_mode_auto_enqueues_at_once(scene: Scene, queue: Any, project: Any, how: str):
    if how == "for the project":
        project(COMMIT_MODE="auto")
    with pytest.raises(RolledBackError), transaction.atomic():
        job = queue(**({"commit_mode": "auto"} if how == "for the queue" else {})).enqueue(jobs.job_, scene.key)
        assert scene.state() == "queued"
        raise RolledBackError

    assert scene.queue.job_ids == [job.id]


def test_commit_mode_request_finished_claims_and_enqueues_then(scene: Scene, queue: Any):
    from django_rq import thread_queue

    request_finished.connect(thread_queue.commit)  # as django-rq does where the settings say so
    try:
        assert queue(commit_mode="request_finished").enqueue(jobs.job_, scene.key) is None
        assert scene.state() is None and scene.queue.count == 0
        request_finished.send(sender=None)
    finally:
        request_finished.disconnect(thread_queue.commit)

    assert scene.state() == "queued" and scene.queue.count == 1


def test_an_idempotency_key_is_kept_until_the_commit(scene: Scene, queue: Any):
    with transaction.atomic():
        queue().enqueue(jobs.job_, scene.key, idempotency_key=f"order-{scene.key}")
    scene.work()

    assert scene.begun()[0]["fenced"] == f"order-{scene.key}"


def test_a_function_enqueues_itself_on_a_queue_of_the_project(scene: Scene, queue: Any, monkeypatch: Any):
    monkeypatch.setattr(jobs.job_.taskguard, "_queue", queue())
    with pytest.raises(RolledBackError), transaction.atomic():
        jobs.job_.enqueue(scene.key)
        raise RolledBackError
    assert scene.queue.count == 0
    with transaction.atomic():
        jobs.job_.delay(scene.key)

    assert scene.queue.count == 1 and scene.state() == "queued"


def test_django_rqs_decorator_above_ours(scene: Scene, queue: Any, monkeypatch: pytest.MonkeyPatch):
    import django_rq

    for name in ("delay", "enqueue"):
        monkeypatch.setattr(jobs.waits, name, None)  # so that ours are there again after the test
    function = django_rq.job(queue().name)(jobs.waits)
    with transaction.atomic():
        function.delay(scene.key)
        assert scene.queue.count == 0

    assert scene.queue.count == 1


def test_a_queue_that_knows_no_commit_modes_is_refused(project: Any, scene: Scene):
    import django_rq

    project(QUEUE_CLASS="taskguard.rq.GuardedQueue")
    with pytest.raises(ConfigurationError, match="GuardedDjangoQueue"):
        django_rq.get_queue(scene.queue.name)


# -- its workers -------------------------------------------------------------------------------------------------------


def _manage(scene: Scene, *line: str) -> Any:
    environment = {"TASKGUARD_TEST_QUEUE": scene.queue.name, "TASKGUARD_TEST_URL": scene.url}
    settings = ("--settings", "tests.rq.django_settings")
    return scene.start_cron([], "django", *line, *settings, scene.queue.name, environment=environment)


@pytest.mark.parametrize("line", [("rqworker",), ("rqworker-pool", "--num-workers", "2")], ids=" ".join)
@pytest.mark.parametrize("function", [jobs.job_, named.charge], ids=["decorated", "by name"])
def test_its_workers_guard(scene: Scene, queue: Any, project: Any, line: Any, function: Any):
    project(QUEUE_CLASS="tests.rq.django_queues.ByName")
    job = queue().enqueue(function, scene.key, gate="gate", value=1)
    _manage(scene, *line)
    [begin] = scene.begun()
    again = queue().enqueue(function, scene.key, gate="gate", value=1)

    assert again.id == job.id and again.taskguard.state == "running" and begin["token"] > 0
    scene.open()
    assert scene.result(job) == 1 and scene.runs == 1
