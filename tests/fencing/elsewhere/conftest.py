from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from taskguard import Guard
from tests.fencing.elsewhere.cluster import Cluster
from tests.servers import RedisServer


@pytest.fixture
def guard() -> Guard:
    return Guard("memory://")


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with closing(redis.Redis.from_url(redis_server.url)) as client:
        yield client


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with closing(Cluster()) as cluster:
        yield cluster
