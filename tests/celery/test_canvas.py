"""Canvases, maps, links and replacements of guarded tasks: each step gets its outcome, whoever did the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from celery import chain, chord, group

from tests.celery.accidents import ENVIRONMENT as ACCIDENT
from tests.celery.conftest import FLEETS
from tests.celery.fleet import Fleet
from tests.celery.marks import needs_quick_redelivery
from tests.celery.scene import Scene
from tests.celery.settings import QUICK_REDELIVERY
from tests.servers import durable_redis


@pytest.fixture(scope="module")
def shared(docker_client: Any, tmp_path_factory: Any) -> Iterator[tuple[Fleet, Any]]:
    """One worker for all tests of this file that do not end it."""
    directory = tmp_path_factory.mktemp("fleet")
    with ExitStack() as stack:
        redis = stack.enter_context(closing(durable_redis()))
        fleet = Fleet(docker_client, redis, None, directory, broker="redis", backend="redis", conf={})
        stack.enter_context(closing(fleet))
        fleet.start_worker(concurrency=3)
        yield fleet, directory


@pytest.fixture
def scene(shared: Any, request: Any) -> Scene:
    fleet, directory = shared
    request.node.stash[FLEETS] = [fleet]
    return Scene(fleet, directory)


@pytest.mark.parametrize("then", ["replace by a relative", "replace by a chain to a relative"])
def test_replaced_by_another_task_of_the_same_key_space(scene, then):
    result = scene.call("kin", then=then)
    assert result.get(timeout=20) == "relative"


def test_a_map_in_the_only_slot_does_not_wait_for_a_job_behind_it(make_scene):
    scene = make_scene()
    mapped = scene.job("job").map([scene.key]).apply_async()
    behind = scene.call(value=7)
    scene.fleet.start_worker(concurrency=1)
    assert mapped.get(timeout=20) == [None]
    assert behind.get(timeout=20) == 7


def test_the_duplicate_of_an_item_gets_its_outcome(scene):
    mapped = scene.job("job").starmap([(scene.key, "return", scene.key, 7)]).apply_async()
    scene.begun()
    duplicate = scene.call()
    scene.gate.open(scene.key)
    assert mapped.get(timeout=20) == [7]
    assert duplicate.get(timeout=20) == 7
    assert scene.runs == 1


def test_links_of_a_duplicate_are_called(scene):
    told = scene.fleet.tasks.told
    scene.call(gate=scene.key, value=7)
    scene.begun()
    scene.call(link=told.s(scene.key))
    scene.gate.open(scene.key)
    scene.ledger.wait_for("told", given=["7", repr(scene.key)])
    assert scene.runs == 1


def test_a_group_of_run_once_more_runs_once(make_scene):
    scene = make_scene()
    result = group(scene.job("more").s(scene.key, value=1) for _ in range(4)).apply_async()
    scene.fleet.start_worker()
    assert result.get(timeout=20) == [1, 1, 1, 1]
    assert scene.runs == 1


def test_a_chain_goes_on_after_a_twin_that_ignores_its_result(scene):
    scene.call("unheard", gate=scene.key, value=7)
    scene.begun()
    step = scene.job("unheard").s(scene.key).set(task_id=f"step-{scene.key}")
    chain(step, scene.fleet.tasks.told.s(scene.key)).apply_async()
    scene.fleet.workers[0].wait_for_log(f"owner step-{scene.key}, holder ")
    scene.gate.open(scene.key)
    scene.ledger.wait_for("told", given=["7", repr(scene.key)])
    assert scene.runs == 1


@needs_quick_redelivery
def test_a_chord_ends_though_the_worker_dies_while_it_raises(make_scene):
    scene = make_scene(conf=dict(QUICK_REDELIVERY))
    scene.fleet.start_worker(concurrency=1)
    scene.call("raises_at_run", gate="gate")
    scene.begun()
    dies = scene.fleet.start_worker(environment={ACCIDENT: "before the failure"})
    header = [scene.job("raises_at_run").s(scene.key), scene.job("job").s("other", value=1)]
    result = chord(header, scene.fleet.tasks.total.s())()
    dies.wait_until_gone()
    scene.fleet.start_worker()
    with pytest.raises(Exception, match="raises_at_run"):
        result.get(timeout=30)
    scene.gate.open()
