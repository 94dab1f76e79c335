from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.scenarios.parity import queues_of
from tests.scenarios.queues import CELERY, CeleryQueue, Queue, RQQueue


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "queue" in metafunc.fixturenames:
        metafunc.parametrize("queue", queues_of(metafunc.function.__name__), indirect=True)


@pytest.fixture
def queue(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    if request.param == CELERY:
        made: CeleryQueue | RQQueue = CeleryQueue(monkeypatch)
    else:
        made = RQQueue(monkeypatch, request.getfixturevalue("redis_server").url)
    with closing(made):
        yield made
