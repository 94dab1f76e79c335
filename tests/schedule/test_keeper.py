"""One look after another: which slots are published, which are not, and what is told of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from taskguard.errors import ConfigurationError, StoreUnavailableError
from taskguard.protocol.store import Claim, Completed, Ending, Held, Lease
from taskguard.schedule.boundaries import MICROS, Clocked, Interval
from taskguard.schedule.clock import StoreClock
from taskguard.schedule.entry import ScheduledEntry, Slot, Timing
from taskguard.schedule.keeper import Timekeeper
from taskguard.stores.memory import MemoryStore
from tests.schedule.bench import START, Bench, changed, every


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_new_entry_starts_now(bench: Bench):
    assert bench.keeper().look(every(10), bench.publish) == pytest.approx(10, abs=0.01)
    assert bench.published == []


def test_each_slot_is_published_once_by_three_schedulers(bench: Bench):
    keepers = [bench.keeper() for _ in range(3)]
    for _ in range(31):
        for keeper in keepers:
            keeper.look(every(10), bench.publish)
            bench.work()
        bench.clock.advance(1)

    assert bench.seconds() == [10, 20, 30]
    assert len(bench.ran) == 3


def test_a_look_says_when_the_next_slot_is(bench: Bench):
    keeper = bench.keeper()
    keeper.look(every(10), bench.publish)
    bench.clock.advance(4)

    assert keeper.look(every(10), bench.publish) == pytest.approx(6, abs=0.01)


def test_schedulers_that_start_at_different_times_mean_the_same_slots(bench: Bench):
    bench.keeper().look(every(10), bench.publish)
    bench.clock.advance(14)
    bench.keeper().look(every(10), bench.publish)
    bench.clock.advance(3)
    bench.keeper().look(every(10), bench.publish)

    assert bench.seconds() == [10]


# -- crashes -------------------------------------------------------------------------------------------------------


class Crash(BaseException):
    pass


def crash(slot: Slot) -> None:
    raise Crash


def dead_after_claim(bench: Bench, entry):
    """A scheduler that dies with a slot claimed: not even its release comes through."""
    keeper = bench.keeper()
    keeper.look(entry, bench.publish)
    bench.clock.advance(10)
    release, bench.store.release = bench.store.release, lambda *_, **__: False
    with pytest.raises(Crash):
        keeper.look(entry, crash)
    bench.store.release = release


def test_a_slot_whose_scheduler_died_before_publishing_is_taken_up_when_its_claim_is_over(bench: Bench):
    other = bench.keeper()
    other.look(every(10), bench.publish)
    dead_after_claim(bench, every(10))

    assert 0 < other.look(every(10), bench.publish) <= 2
    assert bench.published == []
    bench.clock.advance(2.1)
    other.look(every(10), bench.publish)
    assert bench.seconds() == [10]


@pytest.mark.parametrize("verb", ["mark", "claim"])
def test_a_slot_whose_scheduler_died_after_publishing_runs_once(bench: Bench, verb: str):
    """It dies before it says that the message is with the broker, or before it moves the mark."""
    keeper, other = bench.keeper(), bench.keeper()
    keeper.look(every(10), bench.publish)
    other.look(every(10), bench.publish)
    bench.clock.advance(10)
    real = getattr(bench.store, verb)

    def publish_and_die(slot: Slot) -> None:
        bench.publish(slot)
        setattr(bench.store, verb, lambda *_, **__: (_ for _ in ()).throw(Crash))

    with pytest.raises(Crash):
        keeper.look(every(10), publish_and_die)
    setattr(bench.store, verb, real)
    bench.clock.advance(2.1)
    other.look(every(10), bench.publish)
    bench.work()
    bench.clock.advance(1)
    other.look(every(10), bench.publish)

    assert len(bench.ran) == 1
    assert set(bench.seconds()) == {10}


def test_a_slot_whose_message_is_lost_while_another_takes_its_claim_over_and_dies(bench: Bench):
    keeper = bench.keeper(republish_after=5)
    keeper.look(every(10), bench.publish)
    bench.clock.advance(10)

    def publish_and_sleep(slot: Slot) -> None:
        """Its message never arrives; and before this one can say so, another scheduler claims the slot and dies."""
        bench.clock.advance(2.1)
        claim = Claim(slot.run_key, slot.job_id, "another", state="queued", lease=2, keep_for=60, payload=str(slot.at))
        assert isinstance(bench.store.claim(claim), Lease)

    assert keeper.look(every(10), publish_and_sleep) <= 2
    bench.clock.advance(2.1)
    keeper.look(every(10), bench.publish)
    bench.work()

    assert len(bench.ran) == 1


def test_a_worker_that_has_the_job_is_proof_that_it_was_published(bench: Bench):
    keeper, other = bench.keeper(), bench.keeper()
    keeper.look(every(10), bench.publish)
    other.look(every(10), bench.publish)
    bench.clock.advance(10)
    real = bench.store.mark

    def publish_and_die(slot: Slot) -> None:
        bench.publish(slot)
        bench.store.mark = lambda *_, **__: (_ for _ in ()).throw(Crash)

    with pytest.raises(Crash):
        keeper.look(every(10), publish_and_die)
    bench.store.mark = real
    bench.start()
    other.look(every(10), bench.publish)

    assert bench.seconds() == [10]


def test_a_slot_in_the_hands_of_another_scheduler_does_not_keep_one_from_the_next_slot(bench: Bench):
    """That one may die, and the next slot of a short schedule comes before its claim is over."""
    one, other = bench.keeper(), bench.keeper()
    pauses = []

    def publish_while_the_other_looks(slot: Slot) -> None:
        pauses.append(other.look(every(1), bench.publish))
        bench.publish(slot)

    for keeper in (one, other):
        keeper.look(every(1), bench.publish)
    bench.clock.advance(1)
    one.look(every(1), publish_while_the_other_looks)

    assert bench.seconds() == [1]
    assert max(pauses) <= 0.25


def test_a_broker_that_refuses_leaves_the_slot_open(bench: Bench):
    keeper = bench.keeper()
    keeper.look(every(10), bench.publish)
    bench.clock.advance(10)
    with pytest.raises(ZeroDivisionError):
        keeper.look(every(10), lambda slot: 1 / 0)
    keeper.look(every(10), bench.publish)

    assert bench.seconds() == [10]


def test_a_doubled_message_of_a_slot_is_stopped_by_its_id(bench: Bench):
    keeper = bench.keeper()
    keeper.look(every(10), bench.publish)
    bench.clock.advance(10)
    keeper.look(every(10), bench.publish)
    bench.queue *= 2
    bench.finish(bench.start())

    assert isinstance(bench.start(), Completed)


# -- the mark ------------------------------------------------------------------------------------------------------


def test_nothing_is_repeated_when_all_schedulers_restart(bench: Bench):
    bench.keeper().look(every(10), bench.publish)
    bench.clock.advance(10)
    bench.keeper().look(every(10), bench.publish)
    bench.work()
    for _ in range(3):
        bench.keeper().look(every(10), bench.publish)

    assert bench.seconds() == [10]


def test_a_monthly_slot_is_not_repeated_when_all_else_is_forgotten(bench: Bench):
    month = 30 * 86400
    monthly = changed(every(1), schedule=Interval(month, START))
    bench.keeper().look(monthly, bench.publish)
    bench.clock.advance(month)
    bench.keeper().look(monthly, bench.publish)
    bench.work()
    bench.clock.advance(29 * 86400)
    bench.keeper().look(monthly, bench.publish)

    assert bench.seconds() == [month]


def test_a_scheduler_that_slept_with_a_slot_in_hand_cannot_move_the_mark_back(bench: Bench, monkeypatch):
    """It read the mark, slept until all but the mark was forgotten, and wakes between reading and claiming."""
    for part in ("keeper", "publishing"):
        monkeypatch.setattr(f"taskguard.schedule.{part}.since_boot", lambda: bench.clock() / MICROS)
    sleeper, other = bench.keeper(), bench.keeper()
    for keeper in (sleeper, other):
        keeper.look(every(10, overlap="allow_all"), bench.publish)
    bench.clock.advance(10)
    claim = bench.store.claim

    def sleep(request):
        bench.store.claim = claim
        for _ in range(1200):
            other.look(every(10, overlap="allow_all"), bench.publish)
            bench.work()
            bench.clock.advance(10)
        sleeper._watermarks.move(
            every(10, overlap="allow_all"), round((START.timestamp() + 10) * MICROS), bench.clock()
        )
        return claim(request)

    bench.store.claim = sleep
    sleeper.look(every(10, overlap="allow_all"), bench.publish)
    other.look(every(10, overlap="allow_all"), bench.publish)
    bench.work()

    assert len(bench.ran) == len(set(bench.ran)) == 1201
    assert bench.seconds() == [10.0 * number for number in range(1, len(bench.published) + 1)]


def test_a_changed_entry_starts_now_and_so_does_one_that_is_changed_back(bench: Bench):
    keeper = bench.keeper()
    keeper.look(every(10), bench.publish)
    bench.clock.advance(1)
    keeper.look(every(60), bench.publish)
    bench.clock.advance(1000)
    bench.work()
    keeper.look(every(10), bench.publish)
    bench.keeper().look(every(10), bench.publish)

    assert bench.published == []


def test_a_moment_is_one_slot_also_where_one_of_two_schedulers_has_not_seen_a_change_yet(bench: Bench):
    before, after = every(10, overlap="allow_all"), every(20, overlap="allow_all")
    first, second = bench.keeper(), bench.keeper()
    first.look(before, bench.publish), second.look(before, bench.publish)
    bench.clock.advance(15)
    first.look(after, bench.publish)
    bench.clock.advance(5)
    first.look(after, bench.publish)
    bench.work()
    second.look(before, bench.publish)
    bench.work()
    second.look(after, bench.publish)

    assert bench.seconds() == [20]
    assert len(bench.ran) == 1


def test_an_entry_that_was_away_while_the_scheduler_ran_starts_now(bench: Bench):
    keeper = bench.keeper()
    keeper.look(every(10), bench.publish)
    keeper.forget_all_but([])
    bench.clock.advance(1000)
    keeper.look(every(10), bench.publish)

    assert bench.published == []


def test_slots_of_a_disabled_entry_pass(bench: Bench):
    keeper = bench.keeper()
    keeper.look(every(10), bench.publish)
    for _ in range(5):
        bench.clock.advance(10)
        keeper.look(every(10, enabled=False), bench.publish)
    bench.clock.advance(1)
    keeper.look(every(10), bench.publish)

    assert bench.published == []
    bench.clock.advance(9)
    keeper.look(every(10), bench.publish)
    assert bench.seconds() == [60]


def test_an_emptied_store_starts_anew_and_repeats_nothing(bench: Bench):
    keeper = bench.keeper()
    keeper.look(every(10), bench.publish)
    bench.clock.advance(10)
    keeper.look(every(10), bench.publish)
    bench.work()
    empty(bench.store)
    bench.clock.advance(10)
    keeper.look(every(10), bench.publish)
    bench.clock.advance(10)
    keeper.look(every(10), bench.publish)

    assert bench.seconds() == [10, 30]
    assert bench.kinds() == ["slot_missed"]


def empty(store: Any) -> None:
    store._kept.items.clear()


def test_a_store_that_was_emptied_is_seen_before_a_slot_of_a_monthly_entry_comes(bench: Bench):
    monthly = every(30 * 86400)
    keeper = bench.keeper()
    keeper.look(monthly, bench.publish)
    empty(bench.store)
    until = monthly.schedule.after(bench.clock())
    while bench.clock() <= until:
        bench.clock.advance(max(1.0, keeper.look(monthly, bench.publish)))
    bench.keeper().look(monthly, bench.publish)

    assert len(bench.published) == 1
    assert bench.kinds() == []


def test_a_one_off_entry_that_has_run_is_known_to_have_run_also_if_the_store_is_emptied(bench: Bench):
    once = changed(every(10), schedule=Clocked(START))
    keeper = bench.keeper()
    keeper.look(once, bench.publish)
    bench.work()
    empty(bench.store)
    for _ in range(3):
        bench.clock.advance(300)
        keeper.look(once, bench.publish)
    bench.keeper().look(once, bench.publish)

    assert len(bench.published) == 1


def test_another_task_under_the_same_name_is_another_entry(bench: Bench):
    mine, theirs = every(10), changed(every(10), identity="other task")

    assert mine.watermark_key != theirs.watermark_key
    assert mine.slot(0).job_id != theirs.slot(0).job_id


# -- one-off, clocked, bounds --------------------------------------------------------------------------------------


def test_a_one_off_entry_runs_once_with_three_schedulers(bench: Bench):
    keepers = [bench.keeper() for _ in range(3)]
    for _ in range(40):
        for keeper in keepers:
            keeper.look(every(10, one_off=True), bench.publish)
        bench.work()
        bench.clock.advance(1)

    assert bench.seconds() == [10]


def test_a_one_off_entry_whose_scheduler_died_before_the_mark_runs_once(bench: Bench):
    once = every(10, one_off=True)
    keeper, other = bench.keeper(), bench.keeper()
    keeper.look(once, bench.publish)
    other.look(once, bench.publish)
    bench.clock.advance(10)
    real = bench.store.claim

    def publish_and_die(slot: Slot) -> None:
        bench.publish(slot)
        bench.store.claim = lambda *_: (_ for _ in ()).throw(Crash)

    with pytest.raises(Crash):
        keeper.look(once, publish_and_die)
    bench.store.claim = real
    bench.work()
    for _ in range(6):
        other.look(once, bench.publish)
        bench.clock.advance(86400 * 7)  # until the run itself is forgotten
    bench.keeper().look(once, bench.publish)

    assert bench.seconds() == [10]


@pytest.mark.parametrize("ago", [-30, 5, 100])
def test_a_clocked_entry_runs_once_also_if_its_moment_has_passed(bench: Bench, ago: int):
    clocked = changed(every(1), schedule=Clocked(START - timedelta(seconds=ago)))
    keepers = [bench.keeper() for _ in range(2)]
    for _ in range(50):
        for keeper in keepers:
            keeper.look(clocked, bench.publish)
        bench.work()
        bench.clock.advance(1)

    assert bench.seconds() == [-ago]


def test_an_entry_has_no_slots_before_its_start_nor_after_its_end(bench: Bench):
    bounded = every(10, starts_at=START + timedelta(seconds=25), ends_at=START + timedelta(seconds=45))
    keeper = bench.keeper()
    for _ in range(100):
        keeper.look(bounded, bench.publish)
        bench.work()
        bench.clock.advance(1)

    assert bench.seconds() == [30, 40]


def test_what_is_caught_up_is_not_later_than_the_end(bench: Bench):
    bounded = every(10, ends_at=START + timedelta(seconds=25))
    bench.keeper().look(bounded, bench.publish)
    bench.clock.advance(65)
    bench.keeper().look(bounded, bench.publish)

    assert bench.seconds() == [20]


def test_what_is_buffered_is_not_later_than_the_end(bench: Bench):
    keeper, lease = running(bench, bounded := every(10, overlap="buffer_one", ends_at=START + timedelta(seconds=25)))
    bench.finish(lease)
    keeper.look(bounded, bench.publish)

    assert bench.seconds() == [10, 20]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"ends_at": START + timedelta(seconds=5)}, {"ends_at": START + timedelta(days=1)}),
        ({"ends_at": START + timedelta(seconds=5)}, {"ends_at": None}),
        ({"starts_at": START + timedelta(days=1)}, {"starts_at": START - timedelta(days=1)}),
        ({"starts_at": START + timedelta(days=1)}, {"starts_at": None}),
    ],
)
def test_slots_that_passed_while_an_entry_was_not_valid_are_not_made_up_for_when_it_is(bench: Bench, before, after):
    bounded = every(10, overlap="allow_all", **before)
    keeper = bench.keeper()
    for _ in range(10):
        keeper.look(bounded, bench.publish)
        bench.clock.advance(10)
    keeper.look(changed(bounded, **after), bench.publish)
    bench.clock.advance(10)
    keeper.look(changed(bounded, **after), bench.publish)

    assert bench.seconds() == [110]


def test_a_one_off_entry_that_has_run_does_not_run_again_because_its_end_is_changed(bench: Bench):
    once = every(10, one_off=True)
    keeper = bench.keeper()
    for _ in range(20):
        keeper.look(once, bench.publish)
        bench.clock.advance(1)
    for _ in range(20):
        keeper.look(changed(once, ends_at=START + timedelta(days=1)), bench.publish)
        bench.clock.advance(1)

    assert bench.seconds() == [10]


# -- overlap -------------------------------------------------------------------------------------------------------


def running(bench: Bench, entry) -> tuple[Timekeeper, Lease | Held | Completed]:
    """The run of the first slot has begun; two more slots have come since, and were looked at."""
    keeper = bench.keeper()
    keeper.look(entry, bench.publish)
    bench.clock.advance(10)
    keeper.look(entry, bench.publish)
    lease = bench.start()
    for _ in range(2):
        bench.clock.advance(10)
        keeper.look(entry, bench.publish)
    return keeper, lease


def test_skip(bench: Bench):
    keeper, lease = running(bench, every(10))
    bench.finish(lease)
    keeper.look(every(10), bench.publish)
    bench.clock.advance(10)
    keeper.look(every(10), bench.publish)

    assert bench.seconds() == [10, 40]
    assert bench.kinds() == ["slot_skipped", "slot_skipped"]


def test_buffer_one(bench: Bench):
    keeper, lease = running(bench, every(10, overlap="buffer_one"))
    bench.finish(lease)
    keeper.look(every(10, overlap="buffer_one"), bench.publish)
    bench.work()
    keeper.look(every(10, overlap="buffer_one"), bench.publish)

    assert bench.seconds() == [10, 30]
    assert sorted(bench.kinds()) == ["slot_buffered", "slot_skipped"]
    assert [event.owner for event in bench.events if event.kind == "slot_skipped"] == [slot_at(20).job_id]


def slot_at(seconds: float) -> Slot:
    return every(10).slot(round((START.timestamp() + seconds) * MICROS))


@pytest.mark.parametrize("catch_up", ["latest", "all"])
def test_buffer_one_runs_the_newest_of_very_many(bench: Bench, catch_up: str):
    entry = every(10, overlap="buffer_one", catch_up=catch_up)
    keeper = bench.keeper()
    keeper.look(entry, bench.publish)
    bench.clock.advance(10)
    keeper.look(entry, bench.publish)
    lease = bench.start()
    for _ in range(600):
        bench.clock.advance(20)
        assert bench.store.renew([(lease, 30)]) == [True]
        keeper.look(entry, bench.publish)
    bench.finish(lease)
    keeper.look(entry, bench.publish)

    assert bench.seconds() == [10, 12010]
    assert bench.kinds().count("slot_skipped") == 1199


def test_buffer_all_runs_them_one_after_another(bench: Bench):
    entry = every(10, overlap="buffer_all")
    keeper, lease = running(bench, entry)
    bench.finish(lease)
    keeper.look(entry, bench.publish)
    assert bench.seconds() == [10, 20]
    bench.work()
    restarted = bench.keeper()
    restarted.look(entry, bench.publish)
    bench.work()
    keeper.look(entry, bench.publish)

    assert bench.seconds() == [10, 20, 30]


def test_cancel_other(bench: Bench):
    _, lease = running(bench, every(10, overlap="cancel_other"))

    assert bench.seconds() == [10, 20, 30]
    assert not bench.store.renew([(lease, 30)])[0]
    bench.queue.insert(0, bench.published[0])  # put back by the worker that lost it
    assert isinstance(bench.start(), Completed)


def test_allow_all(bench: Bench):
    running(bench, every(10, overlap="allow_all"))
    bench.work()

    assert bench.seconds() == [10, 20, 30]
    assert len(bench.ran) == 3


def test_one_holder_that_blocks_many_slots_is_told_of(bench: Bench):
    keeper = bench.keeper()
    keeper.look(every(10), bench.publish)
    bench.clock.advance(10)
    keeper.look(every(10), bench.publish)
    lease = bench.start()
    for _ in range(12):
        bench.clock.advance(10)
        bench.store.renew([(lease, 30)])
        keeper.look(every(10), bench.publish)
    told = [event for event in bench.events if event.kind == "slots_blocked"]

    assert [event.holder for event in told] == [lease.owner] * 2  # at five, and at ten
    assert "5 slots in a row" in told[0].detail
    assert told[0].since > 0


# -- catch-up ------------------------------------------------------------------------------------------------------


def after_an_absence(bench: Bench, **options) -> list[float]:
    """Nobody is there for 100 seconds; then one scheduler starts, at 105."""
    bench.keeper().look(every(10, **options), bench.publish)
    bench.clock.advance(119)
    keeper = bench.keeper()
    for _ in range(50):
        keeper.look(every(10, **options), bench.publish)
        bench.work()
    return bench.seconds()


def test_catch_up_none(bench: Bench):
    assert after_an_absence(bench, catch_up="none") == [110]


def test_catch_up_latest(bench: Bench):
    assert after_an_absence(bench, catch_up="latest") == [110]


def test_catch_up_latest_when_it_is_long_past(bench: Bench):
    bench.keeper().look(every(3600), bench.publish)
    bench.clock.advance(5 * 3600 + 1000)
    bench.keeper().look(every(3600), bench.publish)

    assert bench.seconds() == [5 * 3600]
    assert bench.kinds() == ["slot_caught_up", "slot_missed"]


def test_catch_up_none_when_it_is_long_past(bench: Bench):
    bench.keeper().look(every(3600, catch_up="none"), bench.publish)
    bench.clock.advance(5 * 3600 + 1000)
    bench.keeper().look(every(3600, catch_up="none"), bench.publish)

    assert bench.published == []
    assert bench.kinds() == ["slot_missed"]


def test_catch_up_all(bench: Bench):
    assert after_an_absence(bench, catch_up="all", overlap="allow_all") == [10.0 * slot for slot in range(1, 12)]


def test_catch_up_all_one_after_another(bench: Bench):
    assert after_an_absence(bench, catch_up="all", overlap="buffer_all") == [10.0 * slot for slot in range(1, 12)]


def test_catch_up_window(bench: Bench):
    slots = after_an_absence(bench, catch_up="all", overlap="allow_all", catch_up_window=45)

    assert slots == [80, 90, 100, 110]


def test_a_catch_up_window_without_end(bench: Bench):
    assert len(after_an_absence(bench, catch_up="all", overlap="allow_all", catch_up_window=float("inf"))) == 11


@pytest.mark.parametrize(
    ("overlap", "catch_up", "ran"),
    [
        ("skip", "none", [10, 40, 90]),
        ("skip", "latest", [10, 40, 90]),
        ("skip", "all", [10, 40, 50]),  # which is at work when those after it are looked at
        ("buffer_one", "none", [10, 30, 40, 90]),
        ("buffer_one", "latest", [10, 30, 40, 90]),
        ("buffer_one", "all", [10, 30, 40, 50, 90]),
        ("buffer_all", "none", [10, 20, 30, 40, 90]),
        ("buffer_all", "latest", [10, 20, 30, 40, 90]),
        ("buffer_all", "all", [10, 20, 30, 40, 50, 60, 70, 80, 90]),
        ("cancel_other", "none", [10, 30, 40, 90]),
        ("cancel_other", "latest", [10, 30, 40, 90]),
        ("cancel_other", "all", [10, 30, 40, 90]),
        ("allow_all", "none", [10, 20, 30, 40, 90]),
        ("allow_all", "latest", [10, 20, 30, 40, 90]),
        ("allow_all", "all", [10, 20, 30, 40, 50, 60, 70, 80, 90]),
    ],
)
def test_overlap_and_catch_up(bench: Bench, overlap, catch_up, ran):
    """The run of 10 lasts until 35; from 45 to 95 nobody is there; all other runs take no time."""
    entry = every(10, overlap=overlap, catch_up=catch_up)
    keeper, lease = running(bench, entry)
    bench.clock.advance(5)
    assert isinstance(lease, Lease)
    bench.store.complete(lease, Ending(how="succeeded", keep_for=7200))  # which is refused if it was cancelled
    for pause in (0, 0, 5, 5, 50, 0, 0, 0, 0, 0):
        bench.clock.advance(pause)
        keeper.look(entry, bench.publish)
        bench.work()

    assert [at / MICROS - START.timestamp() for at in bench.ran] == ran
    told = [event.owner for event in bench.events if event.kind == "slot_skipped"]
    assert len(told) == len(set(told))


def test_a_year_of_seconds_is_not_counted_one_by_one(bench: Bench):
    bench.keeper().look(every(1), bench.publish)
    bench.clock.advance(365 * 86400 / 13)
    keeper = bench.keeper()
    keeper.look(every(1), bench.publish)

    assert len(bench.published) == 1
    assert bench.clock() / MICROS - bench.published[0].at / MICROS < 11


def test_a_scheduler_that_is_there_loses_nothing_that_another_died_with(bench: Bench):
    other = bench.keeper()
    other.look(every(10, catch_up="none", overlap="allow_all"), bench.publish)
    dead_after_claim(bench, every(10, catch_up="none", overlap="allow_all"))
    for _ in range(30):
        other.look(every(10, catch_up="none", overlap="allow_all"), bench.publish)
        bench.clock.advance(1)

    assert bench.seconds() == [10, 20, 30]


# -- the rest ------------------------------------------------------------------------------------------------------


def test_workers_without_taskguard_get_each_slot_once(bench: Bench):
    keepers = [bench.keeper(tracked=False) for _ in range(2)]
    for _ in range(35):
        for keeper in keepers:
            keeper.look(every(10), bench.publish)
        bench.clock.advance(1)

    assert bench.seconds() == [10, 20, 30]


class Host:
    """A scheduler's host, whose clock can be set; the store has its own."""

    def __init__(self, bench: Bench, ahead: float = 0.0) -> None:
        class Server(MemoryStore):
            guarantees = replace(MemoryStore.guarantees, clock="the server's")

        self.ahead = ahead
        bench.store = Server(clock=bench.clock)
        self.clock = StoreClock(
            bench.store, lambda: bench.clock() + round(self.ahead * MICROS), lambda: bench.clock() / MICROS
        )
        self.keeper = Timekeeper(bench.store, clock=self.clock)


def test_the_stores_clock_counts_where_it_has_one(bench: Bench):
    host = Host(bench, ahead=1.5)

    assert host.clock.now() == pytest.approx(bench.clock(), abs=20_000)
    assert host.clock.offset == pytest.approx(-1.5, abs=0.02)


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_host_whose_clock_is_set_settles_no_slot_before_its_time(bench: Bench, step: int):
    host = Host(bench)
    host.keeper.look(every(10), bench.publish)
    host.ahead = step
    for _ in range(31):
        bench.clock.advance(1)
        host.keeper.look(every(10), bench.publish)
        bench.work()

    assert bench.seconds() == [10, 20, 30]


def test_a_store_that_is_slow_at_first_still_says_what_time_it_is(bench: Bench):
    host = Host(bench, ahead=3600)
    claim = bench.store.claim

    def slowly(request):
        bench.clock.advance(0.4)
        answer = claim(request)
        bench.clock.advance(0.4)
        return answer

    bench.store.claim = slowly

    assert host.clock.now() == pytest.approx(bench.clock(), abs=20_000)


def test_a_store_whose_clock_is_set_back_is_believed(bench: Bench):
    host = Host(bench)
    elapsed, start = bench.clock(), host.clock.now()
    host.clock._elapsed = lambda: elapsed / MICROS
    bench.clock.advance(-3600)
    elapsed += 31 * MICROS

    assert host.clock.now() - start == pytest.approx(-3600 * MICROS, abs=20_000)


# -- for months ----------------------------------------------------------------------------------------------------


def test_what_is_known_of_an_entry_is_kept_also_if_no_scheduler_lives_for_a_day(bench: Bench):
    daily = changed(every(1), schedule=Interval(86400, START + timedelta(hours=22)))
    for _ in range(40):
        keeper = bench.keeper()
        for _ in range(20):
            keeper.look(daily, bench.publish)
            bench.work()
            bench.clock.advance(3600)
        bench.clock.advance(4 * 3600)  # nobody is there when the slot comes: it is caught up
    bench.keeper().look(daily, bench.publish)

    assert len(bench.published) == 40


def test_an_entry_that_starts_in_months_does_not_lose_its_first_slot(bench: Bench):
    keeper, later = bench.keeper(), every(10, starts_at=START + timedelta(days=90))
    for _ in range(91):
        keeper.look(later, bench.publish)
        bench.clock.advance(86400)
    bench.clock.advance(-86400)
    keeper.look(later, bench.publish)

    assert bench.seconds()[:1] == [90 * 86400]


def test_a_one_off_entry_is_not_run_again_after_months(bench: Bench):
    once = changed(every(10), schedule=Clocked(START + timedelta(seconds=5)))
    keeper = bench.keeper()
    for _ in range(100):
        keeper.look(once, bench.publish)
        bench.work()
        bench.clock.advance(86400)
    bench.keeper().look(once, bench.publish)
    bench.work()

    assert len(bench.ran) == 1


def away_while_a_run_lasts(bench: Bench, keeper: Timekeeper, entry: ScheduledEntry) -> Any:
    """The store is away for longer than the lease of a run, and comes back; the lease."""
    keeper.look(entry, bench.publish)
    bench.clock.advance(10)
    keeper.look(entry, bench.publish)
    lease = bench.start()
    get, bench.store.get = bench.store.get, _silent
    bench.clock.advance(60)
    with pytest.raises(StoreUnavailableError):
        keeper.look(entry, bench.publish)
    bench.store.get = get
    return lease


def test_a_run_that_could_not_renew_while_the_store_was_away_is_not_taken_for_dead(bench: Bench):
    keeper, entry = bench.keeper(), every(10)
    lease = away_while_a_run_lasts(bench, keeper, entry)
    keeper.look(entry, bench.publish)  # its worker has not come back yet
    assert bench.store.renew([(lease, 30)]) == [True]
    keeper.look(entry, bench.publish)

    assert bench.seconds() == [10]
    assert "slot_skipped" in bench.kinds()


def test_a_run_that_died_while_the_store_was_away_is_in_nobodys_way(bench: Bench, monkeypatch):
    monkeypatch.setattr("taskguard.schedule.keeper.LONGEST_GRACE", 0.0)
    keeper, entry = bench.keeper(), every(10)
    away_while_a_run_lasts(bench, keeper, entry)
    keeper.look(entry, bench.publish)

    assert bench.seconds() == [10, 70]


def _silent(key: str) -> None:
    raise StoreUnavailableError("the store", "away")


def test_a_store_that_does_not_answer_is_the_callers_to_handle(bench: Bench):
    keeper = bench.keeper()
    keeper.look(every(10), bench.publish)
    bench.clock.advance(10)
    get, bench.store.get = bench.store.get, _silent
    with pytest.raises(StoreUnavailableError):
        keeper.look(every(10), bench.publish)
    bench.store.get = get
    keeper.look(every(10), bench.publish)

    assert bench.seconds() == [10]


@pytest.mark.parametrize(
    "wrong", [{"overlap": "no"}, {"catch_up": "some"}, {"catch_up_window": -1}, {"catch_up_window": 0}]
)
def test_options_that_are_none_are_refused(wrong):
    with pytest.raises(ConfigurationError):
        Timing(**wrong)
    with pytest.raises(ConfigurationError):
        Timing.of(wrong)
