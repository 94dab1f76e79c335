"""The fixtures in a real run of pytest, beside Celery's own and with pytest-celery loaded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

SHOP = """
from celery import Celery
from taskguard import Fence
from taskguard.celery import singleton_task

app = Celery("shop", broker="redis://127.0.0.1:1", backend="redis://127.0.0.1:1")

@singleton_task(app, key="order", on_done="reuse_success", keep_for=3600)
def charge(order, fence: Fence):
    return fence.token
"""

EAGER = """
import pytest
from shop import app, charge
from taskguard.testing import assert_ran_once, assert_skipped

@pytest.fixture(autouse=True)
def in_memory(taskguard_in_memory, monkeypatch):
    taskguard_in_memory(app)
    monkeypatch.setitem(app.conf, "task_always_eager", True)

def test_twice_is_once(request):
    first, second = charge.delay(1), charge.delay(1)
    assert first.get() == second.get()
    assert_skipped(second, by=first)
    assert_ran_once(charge, 1)

def test_each_test_has_a_store_of_its_own(taskguard_clock):
    charge.delay(1)
    assert_ran_once(charge, 1)
    taskguard_clock.advance(3601)
    charge.delay(1)
    with pytest.raises(AssertionError, match="ran 2 times"):
        assert_ran_once(charge, 1)

def test_off(taskguard_off):
    assert charge.delay(1).get() < charge.delay(1).get()
"""

WITH_WORKER = """
import pytest
from taskguard import Fence
from taskguard.celery import singleton_task
from taskguard.testing import assert_ran_once, assert_skipped

@pytest.fixture
def celery_config(taskguard_store):
    quick = {"polling_interval": 0.1}  # a worker looks once a second, also whether it is to end
    return {
        "broker_url": "memory://",
        "broker_transport_options": quick,
        "result_backend": "cache+memory://",
        "taskguard_store": taskguard_store,
    }

@pytest.fixture
def charge(celery_app):
    @singleton_task(celery_app, key="order", name="charge")
    def charge(order, fence: Fence):
        return fence.token
    return charge

def test_a_worker_of_celerys_own_fixtures(charge, celery_worker):
    celery_worker.reload()
    first = charge.delay(1)
    assert first.get(timeout=20) > 0
    assert_ran_once(charge, 1)

def test_without_a_worker(charge):
    first, second = charge.delay(1), charge.delay(1)
    assert_skipped(second, by=first)
"""


def run(folder: Path, conftest: str, options: Sequence[str], **tests: str) -> str:
    (folder / "conftest.py").write_text(conftest)
    (folder / "shop.py").write_text(SHOP)
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, test in tests.items():
        (folder / f"test_{name}.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_eager_tasks_of_an_app_that_knows_nothing_of_tests(tmp_path):
    ours = 'pytest_plugins = ["taskguard.testing.pytest"]\n'
    alone = ("-p", "no:celery", "-p", "no:docker_tools", "-p", "no:xdist", "-p", "no:hypothesispytest")

    assert "3 passed" in run(tmp_path, ours, alone, eager=EAGER)


def test_beside_the_fixtures_of_celery_itself_and_with_pytest_celery_loaded(tmp_path):
    theirs = (
        'pytest_plugins = ["celery.contrib.pytest", "taskguard.testing.pytest"]\n'
        # pytest-celery hides the worker of Celery's own fixtures: who wants that one imports it.
        "from celery.contrib.pytest import celery_worker\n"
    )
    printed = run(tmp_path, theirs, (), eager=EAGER, worker=WITH_WORKER)

    assert "5 passed" in printed
    assert "celery-1." in printed.partition("\ncollected")[0]  # among the plug-ins


def test_who_does_not_ask_pays_nothing():
    plugins = entry_points(group="pytest11")

    assert not [plugin for plugin in plugins if "taskguard" in plugin.value]
