"""A holder that was stopped between check and write, and wakes when its successor is done: refused, everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.fencing.elsewhere.service import Service
from tests.fencing.kleppmann import Holder, Story

RESOURCES = "tests.fencing.elsewhere.resources"
KINDS = {"redis": "RedisKey", "cluster": "ClusterKey", "file": "File", "http": "HttpService"}


@pytest.fixture(params=KINDS)
def story(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Story]:
    kind, services = request.param, []
    # Not SQLite: a process that is stopped within a transaction of its heartbeat would keep the file from the other.
    store = request.getfixturevalue("redis_server").url
    if kind == "redis":
        target = store
    elif kind == "cluster":
        target = request.getfixturevalue("cluster").url
    elif kind == "file":
        target = str(tmp_path / "report")
    else:
        services.append(Service("wsgi", f"sqlite:///{tmp_path / 'service.db'}", tmp_path / "ledger"))
        target = f"{services[0].url} {services[0].ledger}"
    where = (store, f"{RESOURCES}:{KINDS[kind]}", target)
    with Holder(*where) as first, Holder(*where) as second:
        yield Story(first, second, seed=7)
    for service in services:
        with closing(service):
            pass


def check(story: Story, rounds: int) -> None:
    """Half of the rounds stop the first holder just before its write, half at a random moment around it."""
    for number in range(rounds):
        outcome, newer, found = story.told(fenced=True, random_moment=number % 2 == 1)

        assert found == newer, outcome
        assert outcome == "refused" or (outcome == "written" and number % 2 == 1)


def test_a_holder_that_wakes_too_late_is_refused(story: Story):
    check(story, 10)
    outcome, newer, found = story.told(fenced=False)

    # Without the fence the same story ends badly, so it is one that bites.
    assert outcome == "written"
    assert found != newer


@pytest.mark.faults
def test_a_holder_that_wakes_too_late_is_refused_200_times(story: Story):
    check(story, 200)
