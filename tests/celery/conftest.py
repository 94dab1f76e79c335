from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.bodies import DIRECTORY, Gate, ledger_of
from tests.celery.fleet import Fleet, MakeFleet
from tests.celery.local_docker import LocalDocker
from tests.celery.scene import Scene
from tests.celery.settings import AT_LEAST_ONCE, BITE, Backend, Broker
from tests.ledger import Ledger
from tests.servers import durable_redis

FLEETS = pytest.StashKey["list[Fleet]"]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed and call.when == "call":
        for fleet in item.stash.get(FLEETS, []):
            report.sections += [(f"log of {worker.hostname()}", worker.log()) for worker in fleet.workers]
    return report


@pytest.fixture(scope="session")
def docker_client() -> LocalDocker:
    """Stands in for the fixture of this name by which pytest-celery gets Docker; see `local_docker.py`."""
    return LocalDocker()


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))  # for bodies that run in the test process
    return ledger_of(tmp_path)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


@pytest.fixture
def make_fleet(request: pytest.FixtureRequest, docker_client: Any, tmp_path: Path) -> Iterator[MakeFleet]:
    """Makes fleets that end with the test; the logs of their workers are shown if it fails."""
    fleets = request.node.stash[FLEETS] = []
    with ExitStack() as stack:

        def make(broker: Broker = "redis", backend: Backend = "redis", conf: Mapping[str, Any] | None = None) -> Fleet:
            rabbitmq = request.getfixturevalue("rabbitmq_server") if broker.startswith("rabbitmq") else None
            redis = stack.enter_context(closing(durable_redis()))
            conf = {**(conf or {}), BITE: request.config.getoption("--bite")}
            fleet = Fleet(docker_client, redis, rabbitmq, tmp_path, broker=broker, backend=backend, conf=conf)
            fleets.append(stack.enter_context(closing(fleet)))
            return fleet

        yield make


@pytest.fixture
def make_scene(make_fleet: MakeFleet, tmp_path: Path) -> Callable[..., Scene]:
    return lambda **options: Scene(make_fleet(**options), tmp_path)


@pytest.fixture
def fleet(make_fleet: MakeFleet) -> Fleet:
    """The usual: Redis for everything, and tasks that are delivered at least once."""
    return make_fleet(conf=AT_LEAST_ONCE)
