"""RQ on a Redis that removes keys when its memory is short."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest

from taskguard import ConfigurationError
from taskguard.rq import GuardedQueue, singleton_task
from tests.rq import jobs
from tests.rq.scene import OURS, Scene
from tests.servers import RedisServer, require


@pytest.fixture
def evicting(monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    monkeypatch.setattr("taskguard.stores.redis._evictions", {})
    settings = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
    with closing(require("valkey", settings=settings)) as server:
        yield server


def test_a_worker_says_once_what_each_of_its_horses_finds(make_scene: Any, evicting: RedisServer):
    scene: Scene = make_scene(evicting.url)
    ids = [scene.queue.enqueue(jobs.job_, f"{scene.key}-{n}", value=n).id for n in range(3)]
    worker = scene.burst(OURS)

    assert [scene.queue.fetch_job(job_id).return_value() for job_id in ids] == [0, 1, 2]
    assert worker.log().count("store evicts") == 1


def test_a_horse_does_not_ask_what_its_worker_has_asked(make_scene: Any, evicting: RedisServer):
    scene: Scene = make_scene(evicting.url)

    def infos_of(number: int) -> int:
        for n in range(number):
            scene.queue.enqueue(jobs.job_, f"{uuid4().hex}-{n}")
        before = scene.connection.info("commandstats").get("cmdstat_info", {"calls": 0})["calls"]
        scene.burst(OURS)
        after = scene.connection.info("commandstats")["cmdstat_info"]["calls"]
        return int(after - before)

    assert infos_of(1) == infos_of(4)


@singleton_task(on_evicting_store="refuse")
def strict(key: str) -> str:
    return key


def test_refused_a_call_is_an_error_and_a_queued_job_fails(make_scene: Any, evicting: RedisServer):
    scene: Scene = make_scene(evicting.url)
    with pytest.raises(ConfigurationError, match="maxmemory-policy noeviction"):
        scene.queue.enqueue(strict, scene.key)
    assert scene.queue.count == 0

    scene.connection.config_set("maxmemory-policy", "noeviction")
    job = GuardedQueue(scene.queue.name, connection=scene.connection).enqueue(strict, scene.key)
    scene.connection.config_set("maxmemory-policy", "allkeys-lru")
    scene.burst(OURS)

    assert job.get_status() == "failed"
    assert "maxmemory-policy noeviction" in job.latest_result().exc_string
