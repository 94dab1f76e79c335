from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.register_assert_rewrite("taskguard.testing.contract", "taskguard.testing.walks", "taskguard.testing.histories")

from taskguard import TaskguardError  # noqa: E402 - after the rewriting was asked for
from taskguard.runtime import breaker, whereabouts  # noqa: E402 - after the rewriting was asked for
from taskguard.testing.clock import FakeClock  # noqa: E402 - after the rewriting was asked for
from tests.servers import (  # noqa: E402
    PgBouncer,
    PostgresServer,
    Proxy,
    RabbitMQServer,
    RedisServer,
    durable_redis,
    require,
)

KINDS = ("sqlite", "redis", "postgresql")
BITES = (AssertionError, TaskguardError, pytest.fail.Exception)
"""How a safety test fails on a lock that is not safe; anything else is a fault of the test."""


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has them ignore it that runs these tests in the background, and so would all that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bite", action="store_true", help="run the safety tests on a naive lock: each must fail")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store_url" in metafunc.fixturenames:
        kinds = ("naive",) if metafunc.config.getoption("--bite") else KINDS
        metafunc.parametrize("store_url", kinds, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The servers that are slow to start: one of each is enough, whatever the number of processes.
    for item in items:
        for server, words in (("rabbitmq", ("rabbitmq",)), ("mariadb", ("mariadb", "mysql"))):
            if any(word in item.nodeid.lower() for word in words):
                item.add_marker(pytest.mark.xdist_group(server))
                break


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if item.config.getoption("--bite") and call.when == "call":
        if report.failed and call.excinfo is not None and call.excinfo.errisinstance(BITES):
            report.outcome = "passed"
        elif report.passed:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} passes on the naive lock: it does not bite"
    return report


@pytest.fixture(autouse=True)
def no_outage_of_another_test() -> Iterator[None]:
    """What a process knows of an outage goes by the store's address, which tests share."""
    yield
    breaker._by_address.clear()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with closing(durable_redis()) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with closing(require(PostgresServer)) as server:
        yield server


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    with closing(require(PgBouncer, postgres_server)) as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[RabbitMQServer]:
    with closing(require(RabbitMQServer)) as server:
        yield server


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store of each kind is: those that several processes can share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'taskguard.db'}?timeout=20"
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_server").url
    url = request.getfixturevalue("redis_server").url
    return f"naive+{url}" if request.param == "naive" else url


@pytest.fixture(autouse=True)
def _no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that a test runs in this process makes it a worker: for that test only."""
    monkeypatch.setattr(whereabouts, "_worker", "")
