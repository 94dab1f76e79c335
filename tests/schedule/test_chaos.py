"""Three beats and three workers, killed and stopped at random, one beat's clock 1.5 s ahead: every slot once."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis

from taskguard import open_store
from taskguard.schedule.boundaries import MICROS
from taskguard.schedule.watermark import Watermarks
from tests.schedule.deployment import ROOT, Deployment, deployed, harass
from tests.servers import RedisServer
from tests.waiting import wait_until

ALL = {"overlap": "allow_all", "catch_up": "all"}


def entries(options: dict | None = None) -> dict:
    return {
        "second": {"task": "tick", "schedule": 1, "kwargs": {"n": 1}, "options": options or {}},
        "other": {"task": "plain", "schedule": 2, "options": options or {}},
        "minute": {"task": "tick", "schedule": {"minute": "*"}, "kwargs": {"n": 2}, "options": options or {}},
    }


def start(place: Deployment, scheduler: str = "taskguard") -> float:
    for ahead in (0.0, 0.0, 1.5):
        place.beat(scheduler, ahead)
    for _ in range(3):
        place.worker()
    place.wait_until_ready()
    # From the first slot that all of them can know of.
    place.ledger.wait_for("start", 1, timeout=60, entry="second")
    return time.time() + 2


def finish(place: Deployment, since: float, until: float, *, or_told: bool) -> None:
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


def ordeal(place: Deployment, seconds: float, *, or_told: bool, scheduler: str = "taskguard") -> None:
    since = start(place, scheduler)
    spared = (place.processes[0],) if or_told else ()
    faults = harass(place, seconds, seed=round(since), spared=spared)
    finish(place, since, time.time(), or_told=or_told)

    assert place.doubled() == [], faults
    assert sum(faults.values()) > seconds / 4
    if or_told:
        assert place.ledger.lines("slot_missed") == [], faults


@pytest.mark.timeout(150)
@pytest.mark.parametrize("kind", [pytest.param("redis", marks=pytest.mark.safety), "sqlite"])
def test_every_slot_runs_exactly_once(
    kind: str, redis_server: RedisServer, tmp_path: Path, pytestconfig: pytest.Config
):
    store = redis_server.url if kind == "redis" else f"sqlite:///{tmp_path / 'taskguard.db'}?timeout=20"
    bite = pytestconfig.getoption("--bite")
    with deployed(tmp_path, broker=redis_server.url, store=store, entries=entries(ALL), bite=bite) as place:
        ordeal(place, 7, or_told=False)


@pytest.mark.timeout(150)
def test_by_default_no_slot_runs_twice_and_none_is_lost(redis_server: RedisServer, tmp_path: Path):
    with deployed(tmp_path, broker=redis_server.url, store=redis_server.url, entries=entries()) as place:
        ordeal(place, 7, or_told=True)


@pytest.mark.faults
@pytest.mark.timeout(300)
@pytest.mark.parametrize("options", [ALL, None], ids=["all", "default"])
@pytest.mark.parametrize("kind", ["redis", "sqlite"])
def test_a_minute_of_faults(kind: str, options: dict | None, redis_server: RedisServer, tmp_path: Path):
    store = redis_server.url if kind == "redis" else f"sqlite:///{tmp_path / 'taskguard.db'}?timeout=20"
    with deployed(tmp_path, broker=redis_server.url, store=store, entries=entries(options)) as place:
        ordeal(place, 60, or_told=options is None)


# -- other schedulers ----------------------------------------------------------------------------------------------


def with_django(redis_server: RedisServer, directory: Path, options: dict) -> Deployment:
    database = str(directory / "django.sqlite3")
    program = f"from tests.django_project import configure, migrate; configure({database!r}); migrate()"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=60)
    said = {f"taskguard_{name}": value for name, value in options.items()}
    made = {name: {**entry, "kwargs": {**entry.get("kwargs", {}), **said}} for name, entry in entries().items()}
    return Deployment(directory, broker=redis_server.url, store=redis_server.url, entries=made, django=database)


def with_redbeat(redis_server: RedisServer, directory: Path, options: dict) -> Deployment:
    conf = {"redbeat_redis_url": redis_server.url, "redbeat_redis_options": {}, "redbeat_key_prefix": f"{uuid4().hex}:"}
    return Deployment(directory, broker=redis_server.url, store=redis_server.url, entries=entries(options), **conf)


SCHEDULERS = {"taskguard_django": with_django, "taskguard_redbeat": with_redbeat}


@pytest.mark.timeout(150)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_slot_of_another_scheduler_runs_exactly_once(scheduler: str, redis_server: RedisServer, tmp_path: Path):
    with closing(SCHEDULERS[scheduler](redis_server, tmp_path, ALL)) as place:
        ordeal(place, 6, or_told=False, scheduler=scheduler)


@pytest.mark.faults
@pytest.mark.timeout(300)
@pytest.mark.parametrize("options", [ALL, {}], ids=["all", "default"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_minute_of_faults_for_another_scheduler(
    scheduler: str, options: dict, redis_server: RedisServer, tmp_path: Path
):
    with closing(SCHEDULERS[scheduler](redis_server, tmp_path, options)) as place:
        ordeal(place, 60, or_told=not options, scheduler=scheduler)


# -- restarts ------------------------------------------------------------------------------------------------------


def watermarks_of(place: Deployment) -> Watermarks:
    return Watermarks(open_store(place.conf["taskguard_store"], namespace=place.queue))


def make_known(place: Deployment, name: str, ago: float) -> None:
    """The entry was there so many seconds ago, and all was settled then."""
    entry, then = place.entry(name), round((time.time() - ago) * MICROS)
    watermarks_of(place).move(entry, then, then)
    watermarks_of(place).make_known(entry, then)


def settled(place: Deployment, name: str) -> bool:
    last = place.entry(name).schedule.until(round(time.time() * MICROS))
    return (watermarks_of(place).read(place.entry(name)) or 0) >= (last or 0)


def forget_runs(place: Deployment, name: str) -> None:
    """As when `keep_for` is long over: the entry of its runs, and the receipts of its jobs."""
    with closing(redis.Redis.from_url(place.conf["broker_url"])) as client:
        gone = list(client.scan_iter(f"{place.queue}:{{schedule*{place.entry(name).label}*"))
        assert len(gone) > 1
        client.delete(*gone)


def late_after_kill(place: Deployment, beat: Any) -> float:
    """Kill a beat of two, and start it again; how late the next slot ran, in seconds."""
    beat.kill()
    after = time.time()
    wait_until(lambda: [at for at in place.runs("second") if at > after], timeout=30)
    slot = min(at for at in place.runs("second") if at > after)
    beat.start()
    wait_until(lambda: beat.has_said("beat: Starting"), timeout=30)
    seen = len(place.runs("second"))
    wait_until(lambda: len(place.runs("second")) > seen + 2, timeout=30)
    return float(place.runs("second")[slot][0]["at"] - slot)


@pytest.mark.faults
@pytest.mark.timeout(400)
def test_the_next_slot_fires_in_time_by_another_beat(redis_server: RedisServer, tmp_path: Path):
    """A beat that dies within its claim, which takes milliseconds, holds that entry up for two seconds: rarely."""
    made = {"second": {"task": "plain", "schedule": 1, "options": ALL}}
    with deployed(tmp_path, broker=redis_server.url, store=redis_server.url, entries=made) as place:
        beats = [place.beat(), place.beat()]
        place.worker()
        place.wait_until_ready()
        place.ledger.wait_for("end", 2, timeout=60)
        late = [late_after_kill(place, beat) for beat in beats * 4]
    print(f"the next slot after a kill was late by {[round(seconds, 3) for seconds in late]} s")
    assert sum(seconds >= 1 for seconds in late) <= 1


@pytest.mark.timeout(150)
def test_restarts_with_old_files_repeat_nothing_and_one_beat_goes_on_for_the_other(
    redis_server: RedisServer, tmp_path: Path
):
    just_now = {"anchor": datetime.fromtimestamp(time.time() - 60, timezone.utc).isoformat()}
    made = {
        "second": {"task": "plain", "schedule": 1, "options": ALL},
        "monthly": {"task": "plain", "schedule": 30 * 86400, "options": ALL | just_now},
    }
    with deployed(tmp_path, broker=redis_server.url, store=redis_server.url, entries=made) as place:
        make_known(place, "monthly", ago=3600)
        beats = [place.beat(), place.beat()]
        place.worker()
        place.wait_until_ready()
        place.ledger.wait_for("end", 2, timeout=60)
        files = {path: path.read_bytes() for path in tmp_path.glob("beat*.schedule*")}

        for beat in beats:  # one is killed, and the other one goes on
            late_after_kill(place, beat)

        # All are killed, and come back with what their files said long ago. How slots ended is not remembered either.
        place.ledger.wait_for("end", entry="monthly", timeout=30)
        wait_until(lambda: settled(place, "monthly"), timeout=30)
        for beat in beats:
            beat.kill()
        forget_runs(place, "monthly")
        for path, content in files.items():
            path.write_bytes(content)
        for beat in beats:
            beat.start()
        seen = len(place.runs("second"))
        wait_until(lambda: len(place.runs("second")) > seen + 3, timeout=60)
        ran = sorted(place.runs("second"))

        assert place.doubled() == []
        assert ran == place.slots("second", ran[0] - 0.5, ran[-1])
        assert len(place.ledger.lines("start", entry="monthly")) == 1
