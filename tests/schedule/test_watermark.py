"""The watermark on each kind of store, moved by several at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from uuid import uuid4

import pytest

from taskguard import open_store
from taskguard.protocol.store import Store
from taskguard.schedule.boundaries import MICROS
from taskguard.schedule.watermark import ALWAYS, Watermarks
from taskguard.stores.memory import MemoryStore
from taskguard.testing.clock import FakeClock
from tests.schedule.bench import START, every

NOW = round(START.timestamp()) * MICROS


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with closing(open_store(store_url, namespace=uuid4().hex)) as store:
        yield store


def test_the_mark_rises_and_never_falls(store: Store):
    watermarks, entry = Watermarks(store), every(1)
    assert watermarks.read(entry) is None

    assert [watermarks.move(entry, NOW + step * MICROS, NOW) for step in (0, 5, 2, 5, 9)] == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert watermarks.read(entry) == NOW + 9 * MICROS


def test_one_of_many_is_the_first_to_settle_a_slot(store: Store):
    watermarks, entry = Watermarks(store), every(1)
    with ThreadPoolExecutor(6) as threads:
        for step in range(5):
            won = list(threads.map(lambda _, at=NOW + step * MICROS: watermarks.move(entry, at, NOW), range(6)))
            assert won.count(True) == 1

    assert 0 <= (watermarks.read(entry) or 0) - (NOW + 4 * MICROS) < 1000


def test_an_entry_that_has_run_for_good_has_no_slot_any_more(store: Store):
    watermarks, entry = Watermarks(store), every(1, one_off=True)
    watermarks.move(entry, NOW, NOW)
    watermarks.move(entry, ALWAYS, NOW)

    assert watermarks.read(entry) == ALWAYS


def test_a_store_whose_clock_was_set_back_does_not_keep_the_mark(clock: FakeClock):
    """The last claim of the watermark, of no time, seems to last for an hour; nobody waits for that."""
    clock.advance(NOW / MICROS - clock() / MICROS)
    watermarks = Watermarks(MemoryStore(clock=clock))
    watermarks.move(every(1), NOW - 7200 * MICROS, NOW)
    watermarks.make_known(every(1), NOW)
    clock.advance(-3600)
    with ThreadPoolExecutor() as pool:
        moved = pool.submit(watermarks.move, every(1), NOW - 3600 * MICROS, NOW - 3600 * MICROS)
        known = pool.submit(watermarks.make_known, every(1), NOW - 3600 * MICROS)
        try:
            assert moved.result(timeout=10)
            known.result(timeout=10)
        finally:
            clock.advance(7200)  # or the threads would never end


def test_the_schedule_that_an_entry_is_known_under(store: Store):
    watermarks = Watermarks(store)
    assert watermarks.known(every(1)) == ("", 0.0)
    watermarks.make_known(every(1), NOW)
    watermarks.make_known(every(2), NOW)

    assert watermarks.known(every(1))[0] == every(2).version
