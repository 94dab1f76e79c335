"""rq-dashboard reads RQ's own records, and deletes and requeues jobs by RQ's own means; guarded ones too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.rq.scene import Scene


class Dashboard:
    def __init__(self, client: Any, queue: str) -> None:
        self._client = client
        self._queue = queue

    def jobs(self, registry: str = "queued") -> list[dict[str, Any]]:
        return self._get(f"/0/data/jobs/{self._queue}/{registry}/10/asc/1.json")["jobs"]

    def job(self, job: Any) -> dict[str, Any]:
        return self._get(f"/0/data/job/{job.id}.json")

    def workers(self) -> list[dict[str, Any]]:
        found = self._get("/0/data/workers.json")["workers"]
        return [worker for worker in found if self._queue in worker["queues"]]

    def delete(self, job: Any) -> None:
        self._post(f"/job/{job.id}/delete")

    def empty(self) -> None:
        self._post(f"/queue/{self._queue}/queued/empty")

    def requeue(self, job: Any) -> None:
        self._post(f"/job/{job.id}/requeue")

    def requeue_all(self) -> None:
        self._post(f"/requeue/{self._queue}")

    def _get(self, path: str) -> Any:
        return self._client.get(path).get_json()

    def _post(self, path: str) -> None:
        assert self._client.post(path).get_json()["status"] == "OK"


@pytest.fixture
def dashboard(scene: Scene) -> Iterator[Dashboard]:
    import rq_dashboard
    from flask import Flask

    app = Flask(__name__)
    app.config.from_object(rq_dashboard.default_settings)
    app.config["RQ_DASHBOARD_REDIS_URL"] = scene.url
    rq_dashboard.web.setup_rq_connection(app)
    app.register_blueprint(rq_dashboard.blueprint)
    yield Dashboard(app.test_client(), scene.queue.name)
    app.redis_conn.close()


def test_it_shows_guarded_jobs_as_any_other(scene: Scene, dashboard: Dashboard):
    job = scene.call(value=1, meta={"mine": 1})
    scene.call()

    [shown] = dashboard.jobs()
    assert shown["id"] == job.id and "job_" in shown["description"]
    assert dashboard.job(job)["metadata"] == '{"mine": 1}'
    scene.start_worker()
    assert scene.result(job) == 1
    assert dashboard.job(job)["status"] == "finished" and dashboard.workers()
    assert [finished["id"] for finished in dashboard.jobs("finished")] == [job.id]


def test_a_job_that_is_deleted_there_holds_its_key_no_longer(scene: Scene, dashboard: Dashboard):
    dashboard.delete(scene.call())
    job = scene.call(value="instead")
    scene.work()

    assert not job.taskguard.duplicate and scene.result(job) == "instead" and scene.runs == 1


def test_a_queue_that_is_emptied_there_holds_no_keys(scene: Scene, dashboard: Dashboard):
    scene.call(), scene.call("more")
    dashboard.empty()
    jobs = [scene.call(value=1), scene.call("more", value=2)]
    scene.work()

    assert [scene.result(job) for job in jobs] == [1, 2]


@pytest.mark.parametrize("which", ["one", "all"])
def test_a_failed_job_that_is_requeued_there_runs_again(scene: Scene, dashboard: Dashboard, which: str):
    job = scene.call(then="fail once", value="second")
    scene.work()
    assert [failed["id"] for failed in dashboard.jobs("failed")] == [job.id]
    dashboard.requeue(job) if which == "one" else dashboard.requeue_all()
    scene.work()

    assert scene.result(job) == "second" and scene.runs == 2


def test_a_job_that_is_deleted_there_while_it_runs_keeps_its_key_until_it_ends(scene: Scene, dashboard: Dashboard):
    scene.start_worker()
    job = scene.call(gate="gate")
    scene.begun()
    dashboard.delete(job)
    again = scene.call(value="after")

    assert again.id != job.id and again.taskguard.duplicate  # it is enqueued, and ends as the running one does
    scene.open()
    scene.wait_for_status(again, "finished")
    assert scene.runs == 1
