"""Three beats and three workers, killed and stopped at random, one beat's clock 1.5 s ahead: every slot once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.schedule.yard import Yard, harass, yard
from tests.servers import RedisServer
from tests.waiting import wait_until

ALL = {"overlap": "allow_all", "catch_up": "all"}


def entries(options: dict | None = None) -> dict:
    return {
        "second": {"task": "tick", "schedule": 1, "kwargs": {"n": 1}, "options": options or {}},
        "other": {"task": "plain", "schedule": 2, "options": options or {}},
        "minute": {"task": "tick", "schedule": {"minute": "*"}, "kwargs": {"n": 2}, "options": options or {}},
    }


def start(place: Yard, scheduler: str = "taskguard") -> float:
    for ahead in (0.0, 0.0, 1.5):
        place.beat(scheduler, ahead)
    for _ in range(3):
        place.worker()
    place.wait_until_ready()
    # From the first slot that all of them can know of.
    place.ledger.wait_for("start", 1, timeout=60, entry="second")
    return time.time() + 2


def finish(place: Yard, since: float, until: float, *, or_told: bool) -> None:
    """Every slot between the two has run, or (where that is allowed) was told to be skipped."""

    def missing() -> list[tuple[str, float]]:
        lacking = []
        for name in place.entries:
            done, skipped = place.runs(name, "end"), place.told(name, "slot_skipped") if or_told else set()
            entry = place.entry(name)
            for at in place.slots(name, since, until):
                if at not in done and entry.slot(round(at * 1_000_000)).job_id not in skipped:
                    lacking.append((name, at))
        return lacking

    try:
        wait_until(lambda: not missing(), timeout=45)
    except AssertionError:
        logs = "\n".join(f"{p.name}: {p.log.read_text()[-1500:]}" for p in place.processes)
        raise AssertionError(f"slots that never ran: {missing()}\n{logs}") from None


def ordeal(place: Yard, seconds: float, *, or_told: bool, scheduler: str = "taskguard") -> None:
    since = start(place, scheduler)
    spared = (place.processes[0],) if or_told else ()
    faults = harass(place, seconds, seed=round(since), spared=spared)
    finish(place, since, time.time(), or_told=or_told)

    assert place.doubled() == [], faults
    assert sum(faults.values()) > seconds / 4
    if or_told:
        assert place.ledger.lines("slot_missed") == [], faults


@pytest.mark.timeout(150)
@pytest.mark.parametrize("kind", ["redis", "sqlite"])
def test_every_slot_runs_exactly_once(kind: str, redis_server: RedisServer, tmp_path: Path):
    store = redis_server.url if kind == "redis" else f"sqlite:///{tmp_path / 'taskguard.db'}?timeout=20"
    with yard(tmp_path, broker=redis_server.url, store=store, entries=entries(ALL)) as place:
        ordeal(place, 12, or_told=False)


@pytest.mark.timeout(150)
def test_by_default_no_slot_runs_twice_and_none_is_lost(redis_server: RedisServer, tmp_path: Path):
    with yard(tmp_path, broker=redis_server.url, store=redis_server.url, entries=entries()) as place:
        ordeal(place, 12, or_told=True)


@pytest.mark.faults
@pytest.mark.timeout(300)
@pytest.mark.parametrize("options", [ALL, None], ids=["all", "default"])
@pytest.mark.parametrize("kind", ["redis", "sqlite"])
def test_a_minute_of_faults(kind: str, options: dict | None, redis_server: RedisServer, tmp_path: Path):
    store = redis_server.url if kind == "redis" else f"sqlite:///{tmp_path / 'taskguard.db'}?timeout=20"
    with yard(tmp_path, broker=redis_server.url, store=store, entries=entries(options)) as place:
        ordeal(place, 60, or_told=options is None)
