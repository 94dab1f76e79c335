from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from kombu.transport.redis import Channel

from tests.celery.fleet import Fleet
from tests.celery.haste import ENVIRONMENT as HASTE
from tests.celery.local_docker import LocalDocker
from tests.celery.marks import needs_quorum_queues
from tests.celery.settings import QUICK_REDELIVERY
from tests.scenarios.parity import queues_of
from tests.scenarios.queues import CELERY, CeleryQueue, Queue, RQQueue
from tests.scenarios.workers import KINDS, USUAL, CeleryWorkers, RQWorkers
from tests.servers import durable_redis

Workers: TypeAlias = "CeleryWorkers | RQWorkers"
SEEN = pytest.StashKey["list[Workers]"]()
MARKS = {"celery-rabbitmq-quorum": [needs_quorum_queues]}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    test = metafunc.function
    if "queue" in metafunc.fixturenames:
        metafunc.parametrize("queue", queues_of(test.__name__), indirect=True)
    for fixture in ("workers", "make_workers"):
        if fixture in metafunc.fixturenames:
            shown = [kind for kind in getattr(test, "kinds", USUAL) if KINDS[kind][0] in queues_of(test.__name__)]
            kinds = [pytest.param(kind, marks=MARKS.get(kind, ())) for kind in shown]
            metafunc.parametrize(fixture, kinds, indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed and call.when == "call":
        for workers in item.stash.get(SEEN, []):
            report.sections += [(f"log of {name}", log) for name, log in workers.logs()]
    return report


@pytest.fixture
def queue(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """Deliveries one by one, in the test's own process."""
    if request.param == CELERY:
        made: CeleryQueue | RQQueue = CeleryQueue(monkeypatch)
    else:
        made = RQQueue(monkeypatch, request.getfixturevalue("redis_server").url)
    with closing(made):
        yield made


@pytest.fixture(scope="session")
def docker_client() -> LocalDocker:
    return LocalDocker()


@pytest.fixture(scope="session")
def start_fleet(request: pytest.FixtureRequest, docker_client: Any) -> Callable[[ExitStack, Path, str, Any], Fleet]:
    """Makes a fleet that ends with the stack."""

    def start(stack: ExitStack, directory: Path, broker: Any, conf: Any) -> Fleet:
        rabbitmq = request.getfixturevalue("rabbitmq_server") if broker != "redis" else None
        redis = stack.enter_context(closing(durable_redis()))
        fleet = Fleet(docker_client, redis, rabbitmq, directory, broker=broker, backend="redis", conf=conf)
        return stack.enter_context(closing(fleet))

    return start


@pytest.fixture(scope="session")
def shared_fleet(start_fleet: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """For each broker one worker, for all scenarios that do not end it."""
    made: dict[str, tuple[Fleet, Path]] = {}
    with ExitStack() as stack:

        def get(broker: str) -> tuple[Fleet, Path]:
            if broker not in made:
                directory = tmp_path_factory.mktemp("fleet")
                made[broker] = start_fleet(stack, directory, broker, {}), directory
                made[broker][0].start_worker(concurrency=3, environment=HASTE)
            return made[broker]

        yield get


@pytest.fixture
def workers(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    """Workers that live as long as the scenario, or longer."""
    queue_name, kind = KINDS[request.param]
    seen = request.node.stash.setdefault(SEEN, [])
    if queue_name == CELERY:
        fleet, directory = request.getfixturevalue("shared_fleet")(kind)
        made: Workers = CeleryWorkers(fleet, directory, is_shared=True)
        seen.append(made)
        yield made
        return
    url = request.getfixturevalue("redis_server").url
    with closing(RQWorkers(url, tmp_path, monkeypatch, is_plain=kind == "plain")) as made:
        seen.append(made)
        yield made


@pytest.fixture
def make_workers(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Workers]]:
    """Workers of the scenario's own, which it may kill."""
    queue_name, kind = KINDS[request.param]
    seen = request.node.stash.setdefault(SEEN, [])
    with ExitStack() as stack:

        def make(*, is_redelivered: bool = False) -> Workers:
            if queue_name == CELERY:
                conf = _redelivery() if is_redelivered and kind == "redis" else {}
                start = request.getfixturevalue("start_fleet")
                made: Workers = CeleryWorkers(start(stack, tmp_path, kind, conf), tmp_path, is_shared=False)
            else:
                url = request.getfixturevalue("redis_server").url
                made = stack.enter_context(closing(RQWorkers(url, tmp_path, monkeypatch, is_plain=kind == "plain")))
            seen.append(made)
            return made

        yield make


def _redelivery() -> dict[str, Any]:
    if not hasattr(Channel, "unacked_restore_interval"):
        pytest.skip("this kombu looks for lost messages every 100 s")
    return dict(QUICK_REDELIVERY)
