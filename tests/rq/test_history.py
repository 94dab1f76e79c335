"""What a work horse decided is in the history when it has ended, however short its life."""

from __future__ import annotations

import os
import signal
from typing import Any

import psutil
import pytest
import redis

from taskguard import open_store
from taskguard.history import Decision, decisions
from taskguard.rq import GuardedQueue
from tests.rq import jobs
from tests.rq.scene import OURS, PLAIN, Scene
from tests.servers import RedisServer
from tests.waiting import wait_until


def told(scene: Scene, redis_server: RedisServer, name: str = "job_") -> list[Decision]:
    entry = scene.entry(name)
    return decisions(open_store(redis_server.url), entry.key) if entry else []


def kinds(found: list[Decision]) -> list[tuple[str, str]]:
    return [(decision.event.kind, decision.event.state) for decision in found]


@pytest.mark.parametrize("worker", [OURS, PLAIN])
def test_a_horse_tells_before_it_ends(scene: Scene, redis_server: RedisServer, worker: str):
    scene.call(value=1)
    scene.burst(worker)

    expected = [("claimed", "queued"), ("claimed", "running"), ("completed", "")]
    wait_until(lambda: kinds(told(scene, redis_server)) == expected, what=str(told(scene, redis_server)))


def test_a_horse_that_is_killed_has_told_of_its_start(scene: Scene, redis_server: RedisServer):
    scene.start_worker()
    scene.call("short", gate="gate")  # a horse tells when half of its lease is over
    scene.begun()
    wait_until(lambda: ("claimed", "running") in kinds(told(scene, redis_server, "short")))
    start = told(scene, redis_server, "short")[1]
    horse = scene.workers[0].horse()

    assert start.where.endswith(f":{horse}")
    scene.open()


def test_a_worker_tells_that_it_settled_for_its_horse(scene: Scene, redis_server: RedisServer):
    worker = scene.start_worker()
    scene.call(gate="gate")
    scene.begun()
    os.kill(worker.horse(), signal.SIGKILL)

    wait_until(lambda: [d for d in told(scene, redis_server) if "settled by its worker" in d.event.detail])


def test_two_calls_that_differ_are_told_apart(scene: Scene, redis_server: RedisServer):
    scene.call(value=1)
    scene.call(value=2)
    wait_until(lambda: ("duplicate", "queued") in kinds(told(scene, redis_server)))

    assert told(scene, redis_server)[-1].event.differs == ("value",)


@pytest.mark.parametrize("may", [True, False])
def test_a_server_is_told_to_be_silent_only_if_it_is(own_redis: RedisServer, may: bool):
    if not may:
        open_store(own_redis.url).execute("ACL", "SETUSER", "default", "-client|reply")  # type: ignore[attr-defined]
    store: Any = open_store(own_redis.url)
    store.wire.learn_silence()
    store.history.add([_line("first")], last=True)
    store.history.add([_line("second")], last=True)

    assert store.wire.can_be_silent is may
    assert store.execute("ECHO", "mine") == b"mine"  # no reply of another command is in its way
    assert [line.text for line in store.history.read()] == [_line("first").text, _line("second").text]


def _line(name: str) -> Any:
    from taskguard.history import Line

    return Line("key", f'["{name}", "key"]', False)


def test_a_client_for_each_call_costs_no_thread_for_each_call(scene: Scene):
    """As a project does it that asks for its queue each time."""
    before = psutil.Process().num_threads()
    for n in range(20):
        with redis.Redis.from_url(scene.url) as connection:
            GuardedQueue(scene.queue.name, connection=connection).enqueue(jobs.job_, f"{scene.key}-{n}")

    assert psutil.Process().num_threads() - before <= 1
