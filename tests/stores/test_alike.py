"""All stores answer alike, to the microsecond, whatever they are asked and however their clock moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import redis

from taskguard.protocol.rules import Kept, Receipt, Rules, Step
from taskguard.protocol.store import Ending, Lease, Store
from taskguard.stores import memory, postgresql, sqlite
from taskguard.stores.memory import MemoryStore
from tests.servers import PostgresServer, require
from tests.stores.differential import find_difference
from tests.stores.faked_time import Clock, Memory, Postgres, Redis, Side, SQLite

FLAVOURS = ("valkey", "redis-6.2", "redis-8")
NEVER = 10**9
STEPS = 150


@pytest.fixture(scope="module")
def sides(tmp_path_factory: Any) -> Iterator[list[Side]]:
    with ExitStack() as stack:
        servers = [(name, stack.enter_context(closing(require(name)))) for name in FLAVOURS]
        clients = [(name, redis.Redis.from_url(server.url)) for name, server in servers]
        postgres = stack.enter_context(closing(require(PostgresServer, durable=False)))
        path = tmp_path_factory.mktemp("alike") / "taskguard.db"
        yield [
            Memory(),
            SQLite(str(path)),
            *[Redis(name, stack.enter_context(closing(client))) for name, client in clients],
            stack.enter_context(closing(Postgres(postgres.url, "alike"))),
        ]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is over is removed all the time."""
    for module in (memory, sqlite, postgresql):
        monkeypatch.setattr(module, "PURGE_EVERY", 3)


@pytest.fixture
def only_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is over is removed where the walk says so, from all stores: each of them would choose its own moment."""
    for module in (memory, sqlite, postgresql):
        monkeypatch.setattr(module, "PURGE_EVERY", NEVER)


def test_as_time_goes_on(sides: list[Side], often: None):
    _assert_alike(sides, range(20), back=False)


def test_as_the_clock_goes_both_ways(sides: list[Side], only_together: None):
    _assert_alike(sides, range(100, 120), back=True)


@pytest.mark.faults
@pytest.mark.timeout(1200)
def test_as_time_goes_on_for_long(sides: list[Side], often: None):
    _assert_alike(sides, range(1_000, 1_300), back=False)


@pytest.mark.faults
@pytest.mark.timeout(1200)
def test_as_the_clock_goes_both_ways_for_long(sides: list[Side], only_together: None):
    _assert_alike(sides, range(2_000, 2_300), back=True)


def _assert_alike(sides: list[Side], seeds: range, *, back: bool) -> None:
    for seed in seeds:
        found = find_difference(sides, seed, STEPS, back=back)
        assert found is None, f"walk {seed}: {found}"


# -- the walks themselves ----------------------------------------------------------------------------------------------


class EndReplaced(Rules):
    def keeps_end(self, own: Receipt, ending: Ending, anyway: bool) -> bool:
        return False


class OneMicrosecondMore(Rules):
    def renew(self, lease: Lease, seconds: float, entry: Kept | None, now: int) -> Step[bool]:
        return super().renew(lease, seconds + 1e-6, entry, now)


class Broken(Memory):
    name = "broken"

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def open(self, namespace: str, clock: Clock) -> Store:
        return MemoryStore(clock=clock, rules=self._rules)


@pytest.mark.parametrize("rules", [EndReplaced(), OneMicrosecondMore()])
def test_a_store_that_differs_is_shown_by_a_short_walk(rules: Rules):
    found = next(
        filter(None, (find_difference([Memory(), Broken(rules)], seed, STEPS, back=False) for seed in range(20)))
    )

    left = [step for step in found.steps[: found.at + 1] if step.verb != "nothing"]
    assert len(left) <= 6
    assert "broken: " in str(found)
