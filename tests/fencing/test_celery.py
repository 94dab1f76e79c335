"""The same through Celery, with real workers: killed, refused, and replaced."""

from __future__ import annotations

from typing import Any

import pytest

from tests.celery.conftest import docker_client, make_fleet  # noqa: F401 - fixtures
from tests.celery.haste import ENVIRONMENT as HASTE
from tests.celery.marks import needs_quick_redelivery
from tests.celery.scene import Scene
from tests.celery.settings import QUICK_REDELIVERY
from tests.fencing.databases import KINDS
from tests.fencing.mover import MOVED, books
from tests.fencing.test_healing import AHEAD, raise_mark

CRASHES = dict(zip(KINDS, ("after once", "after two was credited", "after the commit"), strict=True))


@pytest.fixture
def make_scene(make_fleet: Any, tmp_path: Any) -> Any:  # noqa: F811
    return lambda **options: Scene(make_fleet(**options), tmp_path)


def test_a_child_that_is_killed_between_statements_and_a_token_that_is_refused(
    make_scene: Any, url_of: Any, open_client: Any
):
    scene = make_scene()
    urls = {kind: url_of(kind) for kind in KINDS}
    scene.fleet.start_worker(environment=HASTE)
    moves = {
        kind: scene.call(then="move money", key=f"{scene.key}-{kind}", value=[url, CRASHES[kind]])
        for kind, url in urls.items()
    }
    for kind, move in moves.items():
        assert move.get(timeout=30) == scene.begun(2, key=f"{scene.key}-{kind}")[1]["token"]
        assert books(open_client(urls[kind])) == MOVED

    # The resource has seen a higher token, and nobody has replaced the job: put back, never failed.
    for name in ("job", "retried"):
        key = f"{scene.key}-{name}"
        raise_mark(open_client(urls["postgresql"]), key)
        refused = scene.call(name, then="protect", key=key, value=[urls["postgresql"], key])
        assert refused.get(timeout=30) > AHEAD
        first, second = scene.begun(2, key=key)
        assert first["token"] < AHEAD < second["token"]
        assert second["starts"] == 1


@needs_quick_redelivery
def test_a_worker_that_was_replaced_is_refused_and_its_job_is_not_failed(
    make_scene: Any, url_of: Any, open_client: Any
):
    scene = make_scene(conf=QUICK_REDELIVERY)
    url = url_of("postgresql")
    paused = scene.fleet.start_worker(concurrency=1)
    result = scene.call("stubborn", then="protect", gate="gate", value=[url, "account"])
    scene.begun()
    paused.pause()
    scene.fleet.start_worker(concurrency=1)
    second = scene.begun(2)[1]
    scene.gate.open()
    assert result.get(timeout=20) == second["token"]
    paused.resume()
    scene.ledger.wait_for("failed", 1, key=scene.key, error="StaleFenceError")
    paused.wait_for_log("ignored")

    assert result.state == "SUCCESS" and scene.state("stubborn") == "done"
    assert open_client(url).execute("SELECT cents FROM account WHERE id = 'one'") == [(second["token"],)]
