"""Past slots that were not done are run, and only those."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from taskguard.protocol.store import Ending, Lease
from taskguard.schedule.backfill import Backfill
from taskguard.schedule.boundaries import MICROS
from tests.schedule.bench import START, Bench, every
from tests.schedule.project import ENVIRONMENT
from tests.servers import RedisServer


@pytest.fixture
def bench() -> Bench:
    return Bench()


def states(backfill: Backfill) -> dict[float, str]:
    start = round(START.timestamp()) * MICROS
    slots = backfill.slots(start + 1, start + 1000 * MICROS)
    return {slot.at / MICROS - START.timestamp(): backfill.find(slot) for slot in slots}


def test_what_was_done_is_told_from_what_was_not(bench: Bench):
    keeper = bench.keeper()
    keeper.look(every(10), bench.publish)
    bench.clock.advance(10)
    keeper.look(every(10), bench.publish)
    bench.work()  # 10 is done
    bench.clock.advance(10)
    keeper.look(every(10), bench.publish)
    lease = bench.start()
    bench.clock.advance(10)
    keeper.look(every(10), bench.publish)  # 30 is skipped
    bench.store.release(lease, Ending(how="failed", keep_for=7200))  # 20 has failed
    bench.clock.advance(10)
    keeper.look(every(10), bench.publish)
    bench.start()  # 40 is running
    backfill = Backfill(bench.store, every(10), bench.clock())

    assert states(backfill) == {10: "done", 20: "not done", 30: "not done", 40: "in progress"}


def test_each_slot_is_made_up_for_once_however_often_it_is_asked_for(bench: Bench):
    keeper = bench.keeper()
    keeper.look(every(10, catch_up="none"), bench.publish)
    bench.clock.advance(45)
    keeper = bench.keeper()
    keeper.look(every(10, catch_up="none"), bench.publish)
    bench.work()
    backfill = Backfill(bench.store, every(10, catch_up="none"), bench.clock())
    missed = [
        slot
        for slot in backfill.slots(round(START.timestamp()) * MICROS, bench.clock())
        if backfill.find(slot) == "not done"
    ][-3:]
    bench.published.clear()

    assert [backfill.run(slot, bench.publish) for slot in missed] == [True] * 3
    assert [backfill.run(slot, bench.publish) for slot in missed] == [False] * 3
    bench.work()
    assert [backfill.find(slot) for slot in missed] == ["done"] * 3
    assert [slot.at for slot in bench.published] == [slot.at for slot in missed]


@pytest.mark.parametrize("overlap", ["skip", "allow_all"])
def test_one_whose_worker_died_is_made_up_for_once_also_if_its_message_comes_back(bench: Bench, overlap: str):
    entry = every(10, overlap=overlap)
    keeper = bench.keeper()
    keeper.look(entry, bench.publish)
    bench.clock.advance(10)
    keeper.look(entry, bench.publish)
    (slot,) = bench.queue
    late = bench.start()
    bench.clock.advance(31)
    backfill = Backfill(bench.store, entry, bench.clock())
    bench.ran.clear()

    assert backfill.find(slot) == "not done"
    assert backfill.run(slot, bench.publish)
    bench.work()
    bench.queue.append(slot)
    bench.work()
    assert bench.ran == [slot.at]
    assert isinstance(late, Lease) and bench.store.renew([(late, 30)]) == [False]


def test_one_that_came_back_by_itself_is_left_alone(bench: Bench):
    entry = every(10)
    keeper = bench.keeper()
    keeper.look(entry, bench.publish)
    bench.clock.advance(10)
    keeper.look(entry, bench.publish)
    (slot,) = bench.queue
    bench.start()
    bench.clock.advance(31)
    backfill = Backfill(bench.store, entry, bench.clock())
    assert backfill.find(slot) == "not done"
    bench.queue.append(slot)
    lease = bench.start()

    assert not backfill.run(slot, bench.publish)
    assert isinstance(lease, Lease)
    bench.finish(lease)
    assert backfill.find(slot) == "done"


def test_one_that_fails_again_can_be_run_again(bench: Bench):
    bench.keeper().look(every(10), bench.publish)
    bench.clock.advance(100)
    backfill = Backfill(bench.store, every(10), bench.clock())
    slot = every(10).slot(round(START.timestamp() + 10) * MICROS)
    ids = set()
    for _ in range(3):
        assert backfill.run(slot, bench.publish)
        ids.add(bench.queue[0].job_id)
        bench.store.release(bench.start(), Ending(how="failed", keep_for=7200))

    assert len(ids) == 3


def test_what_nobody_remembers_is_said_to_be_so(bench: Bench):
    bench.keeper().look(every(10), bench.publish)
    slot = every(10).slot(round(START.timestamp()) * MICROS - 86400 * MICROS)

    assert Backfill(bench.store, every(10), bench.clock()).find(slot) == "not remembered"


def test_there_was_no_slot_before_the_entrys_start_nor_after_its_end(bench: Bench):
    valid = {"starts_at": START + timedelta(seconds=15), "ends_at": START + timedelta(seconds=35)}
    bench.clock.advance(60)

    assert list(states(Backfill(bench.store, every(10, **valid), bench.clock()))) == [20, 30]


def test_the_command(redis_server: RedisServer, tmp_path: Path):
    conf = {
        "broker_url": redis_server.url,
        "taskguard_store": redis_server.url,
        "taskguard_namespace": uuid4().hex,
        "task_default_queue": uuid4().hex,
        "result_expires": 0,
        "beat_schedule": {"hourly": {"task": "plain", "schedule": 3600}},
    }
    environment = {**os.environ, ENVIRONMENT: json.dumps(conf)}
    now = int(time.time())
    first, last = (now - 3 * 3600, now)
    moments = ["--from", _iso(first), "--to", _iso(last)]

    def backfill(*more: str) -> list[str]:
        command = [sys.executable, "-m", "taskguard.cli", "backfill", "hourly", "-A", "tests.schedule.project"]
        done = subprocess.run(
            [*command, *moments, "--json", *more], env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line)["state"] for line in done.stdout.splitlines()]

    assert backfill() == ["published"] * 3
    assert backfill("--dry-run") == ["in progress"] * 3


def _iso(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(seconds))
