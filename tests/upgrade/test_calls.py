"""Callers of two releases: a call that is made again after an upgrade is a duplicate of the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.bodies import DIRECTORY, ledger_of
from tests.servers import RedisServer
from tests.upgrade.releases import RELEASES, Release, Releases, other

Call = Any


@pytest.fixture
def call(releases: Releases, redis_server: RedisServer, tmp_path: Path) -> Call:
    """`call(release, function, argument, key)`: the id of the job, or None if the call is refused as another one."""
    queue = f"queue-{uuid4().hex[:8]}"

    def make(release: Release, *facts: str) -> str | None:
        log = tmp_path / "caller.log"
        line = ["tests.upgrade.rq_call", redis_server.url, queue, *facts]
        caller = releases.start(release, line, log=log, environment={DIRECTORY: str(tmp_path)})
        assert caller.wait(60) == 0, log.read_text()
        return ledger_of(tmp_path).lines()[-1].get("job")

    return make


@pytest.mark.parametrize("first", RELEASES)
def test_the_same_call_with_its_idempotency_key_is_a_duplicate_for_the_other_release(call: Call, first: Release):
    key = uuid4().hex
    job = call(first, "pay", "order", key)

    assert job is not None
    assert call(other(first), "pay", "order", key) == job


@pytest.mark.parametrize("first", RELEASES)
def test_another_call_with_that_idempotency_key_is_refused_by_the_other_release(call: Call, first: Release):
    key = uuid4().hex
    call(first, "pay", "order", key)

    assert call(other(first), "pay", "another order", key) is None


def test_in_a_shared_key_space_a_call_of_the_older_release_is_known_by_its_arguments(call: Call):
    key = uuid4().hex
    job = call("old", "charge", "order", key)

    assert call("new", "charge", "order", key) == job
    assert call("new", "charge", "another order", key) is None


def test_in_a_shared_key_space_calls_of_this_release_are_known_by_their_function_too(call: Call):
    key = uuid4().hex
    call("new", "charge", "order", key)

    assert call("new", "refund", "order", key) is None
