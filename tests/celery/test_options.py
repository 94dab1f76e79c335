"""Options and settings at work, on a real worker."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from typing import Any

import celery
import pytest
from celery.exceptions import WorkerLostError

from taskguard import StoreUnavailableError
from tests.celery.haste import ENVIRONMENT as HASTE
from tests.celery.haste import IMPATIENT
from tests.celery.marks import needs_quick_redelivery
from tests.celery.scene import Scene
from tests.celery.settings import QUICK_REDELIVERY
from tests.servers import require


@pytest.fixture
def scene(make_scene: Any) -> Scene:
    scene = make_scene()
    scene.fleet.start_worker(environment=HASTE)
    return scene


@needs_quick_redelivery
def test_on_lost_continue_lets_the_body_end_and_refuses_its_outcome(make_scene):
    scene = make_scene(conf=dict(QUICK_REDELIVERY))
    scene.fleet.start_worker(), scene.fleet.start_worker()
    result = scene.call("stubborn", gate="gate", value=1)
    first = scene.begun()[0]
    one = next(worker for worker in scene.fleet.workers if first["pid"] in worker.children())
    one.pause()
    second = scene.begun(2)[1]
    one.resume()
    scene.gate.open()
    assert result.get(timeout=20) == 1
    scene.ended(2)  # both came to their end; one of them counts
    assert scene.entry("stubborn").token == second["token"]


@pytest.mark.skipif(celery.VERSION < (5, 5), reason="acks_on_timeout has its own setting in later versions")
def test_a_job_that_is_not_acknowledged_on_timeout_goes_back(scene):
    if not hasattr(celery.Task, "acks_on_timeout"):
        pytest.skip("this Celery has no acks_on_timeout")
    scene.call("requeued_on_timeout", then="clean up slowly", time_limit=1, value=1)
    first, second = scene.begun(2, timeout=15)[:2]
    assert first["token"] < second["token"]
    assert not scene.overlaps


@pytest.mark.skipif(not hasattr(celery.Task, "retry_on_worker_lost"), reason="Celery has it since 5.7")
def test_retry_on_worker_lost(scene):
    result = scene.call("retried_on_loss", then="die once", value=1)
    assert result.get(timeout=20) == 1
    assert [line["retries"] for line in scene.begun(2)] == [0, 1]
    assert scene.begun(2)[1]["starts"] == 2
    hopeless = scene.call("retried_on_loss", then="die", key="hopeless")
    with pytest.raises(WorkerLostError):
        hopeless.get(timeout=20)
    assert scene.state("retried_on_loss", key="hopeless") == "free"


@pytest.mark.parametrize("chosen", ["fail", "run_unguarded"])
def test_on_store_error(make_scene, chosen):
    with closing(require("redis-8")) as store:
        scene = make_scene(conf={"taskguard_store": store.url, "taskguard_on_store_error": chosen})
        scene.fleet.start_worker(environment=IMPATIENT)
        result = scene.call("counted", value=1)
        assert result.get(timeout=20) == 1
        store.stop()
        again = scene.call("unfenced", value=2)
        if chosen == "fail":
            with pytest.raises(StoreUnavailableError):
                again.get(timeout=40)
        else:
            assert again.get(timeout=40) == 2


DJANGO = """
from celery import Celery
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
import django
django.setup()
from django.db import transaction
from taskguard.celery import singleton_task

app = Celery("shop", broker="memory://", backend="cache+memory://", task_cls="celery.contrib.django.task:DjangoTask")
app.conf.taskguard_store = "memory://"

@singleton_task(app)
def charge(order):
    return order

@singleton_task(name="shared")
def shared(order):
    return order

for task in (charge, shared):
    with transaction.atomic():
        task.delay_on_commit(1)
        task.delay_on_commit(1)
        assert task.taskguard.get(1) is None
    assert task.taskguard.get(1).state == "queued"
"""


def test_delay_on_commit_of_django():
    done = subprocess.run([sys.executable, "-c", DJANGO], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
