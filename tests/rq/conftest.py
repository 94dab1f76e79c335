from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.rq.scene import Scene
from tests.servers import RedisServer, durable_redis

SCENES = pytest.StashKey["list[Scene]"]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed and call.when == "call":
        for scene in item.stash.get(SCENES, []):
            report.sections += [(f"log of worker {n}", worker.log()) for n, worker in enumerate(scene.workers)]
    return report


@pytest.fixture
def make_scene(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Scene]]:
    scenes = request.node.stash[SCENES] = []
    with ExitStack() as stack:

        def make(url: str) -> Scene:
            scene = stack.enter_context(closing(Scene(url, tmp_path, monkeypatch)))
            scenes.append(scene)
            return scene

        yield make


@pytest.fixture
def scene(make_scene: Any, redis_server: RedisServer) -> Scene:
    return make_scene(redis_server.url)


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """The test's own, which may be hurt."""
    with closing(durable_redis()) as server:
        yield server
