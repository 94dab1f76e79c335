"""What a process has open for its guards: no more after thousands of renewals, and nothing for a guard that is gone."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from taskguard import Guard
from taskguard.protocol.store import Claimant
from taskguard.runtime.confirmations import Confirmations
from taskguard.stores.memory import MemoryStore
from tests.guard.test_signal_storms import STORES, url_of
from tests.waiting import wait_until

ROUNDS = """
import sys
if sys.argv[2] == "gevent":
    import gevent.monkey
    gevent.monkey.patch_all()
import gc, os, time
from uuid import uuid4
from taskguard import Guard
from taskguard.runtime import alarm

alarm.IDLE = 0.02  # so that the threads end, and others begin, in each round
told = []
guard = Guard(sys.argv[1], namespace=uuid4().hex, listeners=[lambda event: told.append(event.kind)])


def one_round(number):
    with guard.hold(f"key {number}", lease=0.15) as fence:
        until = fence._holding.valid_until
        while fence._holding.valid_until == until:
            time.sleep(0.01)
    while guard.heartbeat._renewer.is_running or guard.recorder._alarm.is_running:
        time.sleep(0.01)


def counted():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


for number in range(5):
    one_round(number)
before = counted()
for number in range(20):
    one_round(number)
after = counted()
print(after[0] - before[0] < 5 and after[1] - before[1] < 3, before, after, set(told) - {"claimed", "released"})
"""


@pytest.mark.parametrize("threads", ["plain", "gevent"])
@pytest.mark.parametrize("kind", STORES)
def test_threads_that_renewed_leave_nothing_open(
    kind: str, threads: str, request: pytest.FixtureRequest, tmp_path: Path
):
    command = [sys.executable, "-c", ROUNDS, url_of(kind, request, tmp_path), threads]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)

    assert done.stdout.startswith("True"), done.stdout + done.stderr
    assert done.stdout.endswith("set()\n"), done.stdout + done.stderr
    assert done.stderr == ""


def tasks() -> int:
    return len(os.listdir("/proc/self/task"))


def test_the_threads_of_a_guard_end_when_nobody_refers_to_it():
    before = tasks()
    gc.disable()  # not when the collector finds it: that may be in an hour
    try:
        for number in range(10):
            guard = Guard(MemoryStore(), listeners=[])
            with guard.hold(f"key {number}"):
                pass
            confirmations = Confirmations(guard.store)
            confirmations.add(Claimant("key", "owner", "attempt"), 60, 60)
        assert tasks() > before
        del guard, confirmations

        wait_until(lambda: tasks() <= before, timeout=10)
    finally:
        gc.enable()


def test_what_a_guard_has_to_tell_is_told_though_it_is_dropped_at_once():
    store = MemoryStore()
    for _ in range(3):  # the thread is asleep, or is only starting
        with Guard(store, listeners=[]).hold("key"):
            pass
    wait_until(lambda: len(store.history.read("key", limit=100)) == 6)


def test_a_lease_is_renewed_though_its_guard_is_referred_to_by_nobody_else():
    with Guard(MemoryStore(), listeners=[]).hold("key", lease=0.3) as fence:
        until = fence._holding.valid_until
        wait_until(lambda: fence._holding.valid_until > until + 0.3)
