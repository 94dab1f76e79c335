"""What is left of a guarded app once it is closed: nothing that Celery itself would not keep."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery, Task, current_app
from celery.worker.request import Request

from taskguard import Fence, open_store
from taskguard.celery import install, singleton_task
from tests.servers import RedisServer
from tests.waiting import wait_until

APPS = 20


def of_a_function(app: Celery) -> Any:
    @singleton_task(app, key="n", shared=False)
    def job(n: int) -> tuple[str, int]:
        return app.main, n

    return job


def with_a_fence(app: Celery) -> Any:
    @singleton_task(app, key="n", shared=False)
    def job(n: int, fence: Fence) -> tuple[str, int]:
        return app.main, fence.token

    return job


def of_a_class(app: Celery) -> Any:
    class OwnRequest(Request):
        def __repr__(self) -> str:
            return app.main

    @singleton_task(app, key="n", Request=OwnRequest)
    class Job(Task):
        name = "job"

        def run(self, n: int) -> tuple[str, int]:
            return app.main, n

    Job.Request  # noqa: B018 - as a worker asks for it when it starts
    return Job


def by_name(app: Celery) -> Any:
    install(app, tasks={"*": {"key": "n"}})

    @app.task(name="job", shared=False)
    def job(n: int) -> tuple[str, int]:
        return app.main, n

    return job


def plain(app: Celery) -> Any:
    @app.task(name="job", shared=False)
    def job(n: int) -> tuple[str, int]:
        return app.main, n

    return job


def _use(make: Callable[[Celery], Any], url: str, name: str, number: int) -> weakref.ref[Celery]:
    with Celery(f"app{number}", broker=url, backend=url, set_as_current=False) as app:
        app.conf.taskguard_store = f"{url}?client_name={name}"
        job = make(app)
        call = job.delay(number)
        assert not call.ready()
        assert job.apply((APPS + number,)).get()[0] == app.main
    return weakref.ref(app)


def _alive(refs: list[weakref.ref[Celery]]) -> list[Celery]:
    gc.collect()
    return [app for ref in refs if (app := ref()) is not None]


@pytest.mark.parametrize("make", [plain, of_a_function, with_a_fence, of_a_class, by_name])
def test_a_closed_app_is_freed_with_its_connections(redis_server: RedisServer, make: Callable[[Celery], Any]):
    with redis.Redis.from_url(redis_server.url) as server:
        name = f"store of {make.__name__}".replace(" ", "-")
        refs = [_use(make, redis_server.url, name, number) for number in range(APPS)]
        assert not _alive(refs)
        # Celery shares connections between apps with the same broker, and keeps those.
        wait_until(lambda: not _named(server, name))


_SHARED = """
import gc, sys, weakref
from celery import Celery
from taskguard.celery import singleton_task

def use(number):
    with Celery(f"app{number}", broker="memory://", backend="cache+memory://", set_as_current=False) as app:
        app.conf.taskguard_store = f"sqlite:///{sys.argv[1]}"

        @singleton_task(app, key="n", name=f"job{number}")
        def job(n):
            return n

        job.delay(1)
        return weakref.ref(app), list(app.tasks)

apps = [use(number) for number in range(20)]
gc.collect()
print(sum(app() is not None for app, _ in apps), "job0" in apps[19][1])
"""


def test_a_closed_app_is_freed_though_its_tasks_are_shared_with_later_apps(tmp_path: Path):
    """In a process of its own: Celery shares them with the apps of all other tests too."""
    command = [sys.executable, "-c", _SHARED, str(tmp_path / "taskguard.db")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    assert found.stdout.split() == ["0", "True"]


def test_a_closed_app_has_no_connection_to_its_store(redis_server: RedisServer):
    """Though somebody still has the app."""
    url = f"{redis_server.url}?client_name=store"
    with redis.Redis.from_url(redis_server.url) as server:
        app = Celery("app", broker="memory://", backend="cache+memory://", set_as_current=False)
        app.conf.taskguard_store = url
        job = of_a_function(app)
        job.delay(1)
        job.apply((2,))
        assert _named(server, "store")

        app.close()

        wait_until(lambda: not _named(server, "store"))
        assert job.delay(1).taskguard.duplicate  # and it can be used again
        app.close()
        wait_until(lambda: not _named(server, "store"))


def _named(server: Any, name: str) -> list[Any]:
    return [client for client in server.client_list() if client["name"] == name]


def test_a_store_that_the_app_was_given_stays_open(redis_server: RedisServer):
    store = open_store(f"{redis_server.url}?client_name=lent")
    with redis.Redis.from_url(redis_server.url) as server:
        app = Celery("app", broker="memory://", backend="cache+memory://", set_as_current=False)
        install(app, store=store)
        of_a_function(app).delay(1)
        assert _named(server, "lent")

        app.close()

        assert _named(server, "lent")
        store.close()
        wait_until(lambda: not _named(server, "lent"))


def test_the_current_app_can_be_guarded_by_its_proxy(redis_server: RedisServer):
    app = Celery("app", broker=redis_server.url, backend=redis_server.url)
    try:
        install(current_app)
        assert of_a_function(current_app).delay(1).taskguard is not None
    finally:
        app.close()
