"""The same through RQ, with real workers: killed, refused, and replaced."""

from __future__ import annotations

from typing import Any

from rq import Retry

from tests.fencing.databases import KINDS
from tests.fencing.mover import MOVED, books
from tests.fencing.test_celery import CRASHES
from tests.fencing.test_healing import AHEAD, raise_mark
from tests.rq.conftest import make_scene, scene  # noqa: F401 - fixtures
from tests.rq.scene import Scene

HASTY_OURS = "tests.rq.workers.HastyGuardedWorker"


def test_a_horse_that_is_killed_between_statements_and_a_token_that_is_refused(
    scene: Scene,  # noqa: F811
    url_of: Any,
    open_client: Any,
):
    urls = {kind: url_of(kind) for kind in KINDS}
    raise_mark(open_client(urls["mariadb"]), "resource")
    scene.start_worker()
    for kind, url in urls.items():
        key = f"{scene.key}-{kind}"
        move = scene.call(then="move money", key=key, value=[url, CRASHES[kind]], retry=Retry(max=1))
        assert scene.result(move, within=30) == scene.begun(2, key=key)[1]["token"]
        assert books(open_client(url)) == MOVED

    # The resource has seen a higher token, and nobody has replaced the job: put back, never failed.
    refused = scene.call(then="protect", value=[urls["mariadb"], "resource"])
    assert scene.result(refused, within=30) > AHEAD
    first, second = scene.begun(2)
    assert first["token"] < AHEAD < second["token"]
    assert second["starts"] == 1


def test_a_horse_that_was_replaced_is_refused_and_writes_nothing_to_its_job(
    scene: Scene,  # noqa: F811
    url_of: Any,
    open_client: Any,
):
    url = url_of("postgresql")
    paused = scene.start_worker(HASTY_OURS)
    job = scene.call("stubborn", then="protect", gate="gate", retry=Retry(max=1), value=[url, "account"])
    scene.begun()
    paused.pause()
    scene.passes(3)
    scene.find_abandoned()
    scene.start_worker(HASTY_OURS)
    second = scene.begun(2)[1]
    scene.open()
    assert scene.result(job) == second["token"]
    paused.resume()
    scene.ledger.wait_for("failed", 1, key=scene.key, error="StaleFenceError")
    paused.wait_for_log("nothing to report")

    assert scene.status(job) == "finished"
    assert open_client(url).execute("SELECT cents FROM account WHERE id = 'one'") == [(second["token"],)]
