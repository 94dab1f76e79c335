from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from celery import Celery

from taskguard import open_store
from taskguard.celery import install
from taskguard.celery.guarding import app_guard_of
from taskguard.doctor import Finding, examine
from tests.servers import RedisServer, require

Examine = Callable[..., dict[str, list[Finding]]]
SOUND = {"appendonly": "yes"}


def by_id(findings: list[Finding]) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        found.setdefault(finding.id, []).append(finding)
    return found


@pytest.fixture
def make_redis() -> Iterator[Callable[..., RedisServer]]:
    """Servers of the test's own, with these lines of redis.conf."""
    with ExitStack() as stack:

        def make(**settings: str) -> RedisServer:
            flavour = "redis-8" if RedisServer("valkey").missing() else "valkey"
            named = {name.replace("_", "-"): value for name, value in settings.items()}
            return stack.enter_context(closing(require(flavour, settings={**SOUND, **named})))

        yield make


@pytest.fixture
def look() -> Examine:
    """The findings about a store, by id."""
    return lambda url: by_id(examine(open_store(url)))


@pytest.fixture
def make_app(make_redis: Any) -> Iterator[Callable[..., Celery]]:
    """An app with nothing to find at it, but for *conf*."""
    with ExitStack() as stack:

        def make(**conf: Any) -> Celery:
            url = make_redis().url
            app = Celery("doctored", broker=url, backend=url, set_as_current=False)
            app.conf.update(taskguard_store=url)
            app.conf.update(conf)
            stack.callback(app.close)
            return install(app)

        yield make


@pytest.fixture
def look_at() -> Examine:
    """The findings about an app and its store, by id."""
    return lambda app: by_id(examine(app_guard_of(app).guard.store, app))
