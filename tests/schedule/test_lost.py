"""Messages that the broker lost, runs whose worker died, and both at once: published again, by one, and told."""

from __future__ import annotations

from typing import Any

import pytest

from taskguard.errors import StoreUnavailableError
from taskguard.protocol.store import Claimant, Completed, Ending, Lease
from taskguard.schedule.backfill import Backfill
from taskguard.schedule.boundaries import Interval
from taskguard.schedule.entry import Slot, Timing
from taskguard.schedule.keeper import Timekeeper
from tests.schedule.bench import Bench, changed, every

REDELIVERED = 5.0


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.kept = True
    return made


def look(bench: Bench, entry: Any, *keepers: Timekeeper, after: float = 0.0) -> None:
    bench.clock.advance(after)
    for keeper in keepers:
        keeper.look(entry, bench.publish)


def test_a_message_that_the_broker_lost_is_published_again_under_the_same_id_by_one(bench: Bench):
    keepers = [bench.keeper(republish_after=5) for _ in range(3)]
    for keeper in keepers:
        keeper.look(every(100), bench.publish)
    bench.clock.advance(100)
    for keeper in keepers:
        keeper.look(every(100), bench.publish)
    bench.queue.clear()
    bench.clock.advance(6)
    for keeper in keepers:
        keeper.look(every(100), bench.publish)

    assert bench.seconds() == [100, 100]
    assert bench.kinds() == ["slot_republished"]


def test_a_message_that_was_lost_before_all_schedulers_restarted_is_published_again(bench: Bench):
    bench.keeper().look(every(100), bench.publish)
    bench.clock.advance(100)
    bench.keeper().look(every(100), bench.publish)
    bench.queue.clear()
    restarted = bench.keeper(republish_after=5)
    restarted.look(every(100), bench.publish)
    bench.clock.advance(400)
    restarted.look(every(100), bench.publish)

    assert bench.seconds()[1] == 100


# -- a worker that died --------------------------------------------------------------------------------------------


def dead(bench: Bench, entry: Any, number: int = 1) -> list[Timekeeper]:
    """Schedulers; the first slot of theirs has begun, its worker died, and its message did not come again."""
    keepers = [bench.keeper(republish_after=REDELIVERED) for _ in range(number)]
    look(bench, entry, *keepers)
    look(bench, entry, *keepers, after=entry.schedule.seconds)
    assert isinstance(bench.start(), Lease)
    bench.ran.clear()
    return keepers


def test_a_run_that_died_is_published_again_under_the_same_id_by_one(bench: Bench):
    entry = every(100)
    keepers = dead(bench, entry, 3)
    for _ in range(20):
        look(bench, entry, *keepers, after=2)

    assert bench.seconds() == [100, 100]
    assert bench.kinds() == ["slot_republished"]
    bench.work()
    assert len(bench.ran) == 1
    assert bench.store.get(bench.published[0].run_key).state == "done"


def test_a_run_that_lasts_is_left_alone(bench: Bench):
    entry = every(900)
    [keeper] = dead(bench, entry)
    for _ in range(15):
        run = bench.store.get(entry.slot(0).run_key)
        assert bench.store.renew([(Lease(run.key, run.owner, run.attempt, token=run.token, starts=1), 30)]) == [True]
        look(bench, entry, keeper, after=20)

    assert bench.seconds() == [900]


def test_a_broker_has_its_time_to_bring_a_dead_run_again(bench: Bench):
    entry = every(100)
    [keeper] = dead(bench, entry)
    bench.clock.advance(29)
    for _ in range(5):
        look(bench, entry, keeper, after=1)
    assert bench.seconds() == [100]
    bench.queue.append(bench.published[0])
    bench.work()
    look(bench, entry, keeper, after=10)

    assert (len(bench.ran), bench.seconds()) == (1, [100])


def test_a_run_that_was_acknowledged_before_it_began_is_gone_with_its_worker(bench: Bench):
    bench.kept = False
    entry = every(100)
    [keeper] = dead(bench, entry)
    for _ in range(10):
        look(bench, entry, keeper, after=9)

    assert bench.seconds() == [100]


def test_a_dead_run_is_not_made_up_for_once_its_message_would_have_expired(bench: Bench):
    entry = every(900, expires_after=20)
    keepers = dead(bench, entry, 2)
    for _ in range(10):
        look(bench, entry, *keepers, after=9)

    assert bench.seconds() == [900]
    assert bench.kinds() == ["slot_missed"]


def test_a_message_expires_by_when_it_was_published_not_by_its_slot(bench: Bench):
    entry = every(900, expires_after=200)
    look(bench, entry, bench.keeper())
    bench.clock.advance(900 + 300)  # nobody is there
    keeper = bench.keeper(republish_after=REDELIVERED)
    look(bench, entry, keeper)
    assert isinstance(bench.start(), Lease)
    for _ in range(4):
        look(bench, entry, keeper, after=9)

    assert bench.seconds() == [900, 900]


def test_a_disabled_entry_brings_nothing_back(bench: Bench):
    entry = every(900)
    [keeper] = dead(bench, entry)
    for _ in range(20):
        look(bench, changed(entry, enabled=False), keeper, after=3)

    assert bench.seconds() == [900]


@pytest.mark.parametrize(("before", "after"), [("skip", "allow_all"), ("allow_all", "skip")])
def test_a_dead_run_is_not_published_under_another_entry_of_the_store(bench: Bench, before: Any, after: Any):
    """Its own message, if it comes after all, would not know of that one."""
    entry = every(900, overlap=before)
    [keeper] = dead(bench, entry)
    for _ in range(20):
        look(bench, changed(entry, timing=Timing(overlap=after)), keeper, after=3)
    bench.queue.append(bench.published[0])
    bench.work()

    assert len(bench.ran) == 1


def test_a_broker_that_refuses_a_dead_run_is_asked_again(bench: Bench):
    entry = every(100)
    [keeper] = dead(bench, entry)

    def refuse(slot: Slot) -> None:
        raise ConnectionError

    bench.clock.advance(36)
    with pytest.raises(ConnectionError):
        keeper.look(entry, refuse)
    for _ in range(4):
        look(bench, entry, keeper, after=2.1)
        bench.work()

    assert bench.seconds() == [100, 100]


def test_a_scheduler_that_dies_with_a_dead_run_in_hand_is_made_up_for(bench: Bench):
    entry = every(100)
    _, other = dead(bench, entry, 2)
    bench.clock.advance(36)
    slot = bench.published[0]
    other._publishing._claim(slot, f"{slot.at}+")  # as by one that dies just then
    for _ in range(6):
        look(bench, entry, other, after=2.1)
        bench.work()

    assert bench.seconds() == [100, 100]


def test_a_scheduler_that_was_not_there_finds_a_dead_run(bench: Bench):
    entry = every(900)
    dead(bench, entry)
    bench.clock.advance(300)
    later = bench.keeper(republish_after=REDELIVERED)
    look(bench, entry, later)
    look(bench, entry, later, after=6)

    assert bench.seconds() == [900, 900]


def test_a_dead_run_may_live_while_the_store_was_away_just_now(bench: Bench):
    entry = every(100)
    [keeper] = dead(bench, entry)
    get = bench.store.get

    def silent(key: str) -> None:
        raise StoreUnavailableError("the store", "away")

    bench.store.get = silent
    bench.clock.advance(60)
    with pytest.raises(StoreUnavailableError):
        keeper.look(entry, bench.publish)
    bench.store.get = get
    look(bench, entry, keeper)

    assert bench.seconds() == [100]


def test_a_run_that_keeps_dying_is_counted(bench: Bench):
    entry = every(900)
    [keeper] = dead(bench, entry)
    starts = []
    for _ in range(3):
        for _ in range(8):
            look(bench, entry, keeper, after=5)
        answer = bench.start()
        assert isinstance(answer, Lease)
        starts.append(answer.starts)

    assert starts == [2, 3, 4]


# -- overtaken -----------------------------------------------------------------------------------------------------


def overtaken(bench: Bench, entry: Any, number: int = 1) -> list[Timekeeper]:
    """The same, and the next slot has come as soon as the lease of the dead run was over."""
    keepers = dead(bench, entry, number)
    look(bench, entry, *keepers, after=30.5)
    assert bench.seconds() == [30, 60]
    return keepers


def test_a_dead_run_that_the_next_slot_has_overtaken_comes_after_it(bench: Bench):
    entry = every(30, overlap="buffer_all")
    keepers = overtaken(bench, entry, 2)
    for _ in range(20):
        bench.work()
        look(bench, entry, *keepers, after=1)

    assert bench.seconds() == [30, 60, 30]
    assert bench.seconds([entry.slot(at) for at in bench.ran]) == [60, 30]
    assert bench.kinds() == ["slot_buffered", "slot_republished"]


def test_a_dead_run_is_skipped_if_another_one_lasts_when_its_turn_comes(bench: Bench):
    entry = every(30)
    [keeper] = overtaken(bench, entry)
    assert isinstance(bench.start(), Lease)
    for _ in range(20):
        look(bench, entry, keeper, after=1)

    assert bench.kinds() == ["slot_skipped"]
    assert bench.events[-1].owner == bench.published[0].job_id
    bench.queue.append(bench.published[0])  # it comes after all
    assert isinstance(bench.start(), Completed)


def test_a_run_that_has_ended_since_it_was_overtaken_is_left_alone(bench: Bench):
    entry = every(30, overlap="buffer_all")
    [keeper] = overtaken(bench, entry)
    bench.work()
    bench.queue.append(bench.published[0])  # the broker brings it
    bench.work()
    for _ in range(20):
        look(bench, entry, keeper, after=1)

    assert bench.seconds() == [30, 60]
    assert len(bench.ran) == 2


def test_a_run_that_was_overtaken_and_then_revoked_is_left_alone(bench: Bench):
    """Who ended it had no claim: the entry still counts it among those that have not ended."""
    entry = every(30, overlap="buffer_all")
    [keeper] = overtaken(bench, entry)
    bench.work()
    first = bench.published[0]
    ending = Ending(how="revoked", keep_for=7200)
    assert bench.store.release(Claimant(first.run_key, first.job_id, "a parent's"), ending, anyway=True)
    for _ in range(20):
        look(bench, entry, keeper, after=1)

    assert bench.store.get(first.run_key).unended == ((first.job_id, f"{first.at}+"),)
    assert bench.seconds() == [30, 60]


def test_a_dead_run_is_cancelled_by_the_next_one_where_that_is_said(bench: Bench):
    entry = every(30, overlap="cancel_other")
    [keeper] = overtaken(bench, entry)
    bench.work()
    for _ in range(20):
        look(bench, entry, keeper, after=1)

    assert bench.seconds() == [30, 60]
    assert bench.kinds() == ["slot_cancelled"]
    bench.queue.append(bench.published[0])
    assert isinstance(bench.start(), Completed)


def test_a_dead_run_is_cancelled_though_a_scheduler_died_with_it_in_hand(bench: Bench):
    entry = every(60, overlap="cancel_other")
    [keeper] = dead(bench, entry)
    first = bench.published[0]
    bench.clock.advance(57)
    keeper._publishing._claim(first, f"{first.at}+")
    other = bench.keeper(republish_after=60)
    look(bench, entry, other)
    look(bench, entry, other, after=3)
    bench.work()

    assert bench.seconds() == [60, 120]
    bench.queue.append(first)
    assert isinstance(bench.start(), Completed)


def test_those_that_are_gone_with_their_worker_stay_so_when_the_task_is_acknowledged_late(bench: Bench):
    bench.kept = False
    entry = every(30, overlap="buffer_all")
    [keeper] = overtaken(bench, entry)
    bench.kept = True
    bench.work()
    for _ in range(20):
        look(bench, entry, keeper, after=1)
        bench.work()

    assert bench.seconds() == [30, 60]


def test_a_dead_run_comes_also_if_the_one_that_overtook_it_never_begins(bench: Bench):
    entry = every(30, overlap="buffer_all")
    [keeper] = overtaken(bench, entry)
    second = bench.queue.pop()
    ending = Ending(how="revoked", keep_for=7200)
    assert bench.store.release(Claimant(second.run_key, second.job_id, "a parent's"), ending, anyway=True)
    for _ in range(20):
        look(bench, entry, keeper, after=1)
        bench.work()

    assert bench.seconds() == [30, 60, 30]


def test_a_dead_run_that_was_overtaken_comes_also_if_the_schedule_is_another_by_then(bench: Bench):
    entry = every(30, overlap="buffer_all")
    [keeper] = overtaken(bench, entry)
    bench.work()
    look(bench, changed(entry, schedule=Interval(7)), keeper)
    for _ in range(12):
        look(bench, changed(entry, schedule=Interval(900)), keeper, after=1)

    assert bench.seconds() == [30, 60, 30]


@pytest.mark.parametrize("is_overtaken", [False, True])
def test_to_look_at_a_dead_run_changes_nothing(bench: Bench, is_overtaken: bool):
    """As `taskguard backfill --dry-run` does."""
    entry = every(30, overlap="buffer_all")
    [keeper] = overtaken(bench, entry) if is_overtaken else dead(bench, entry)
    if is_overtaken:
        bench.work()
    else:
        bench.clock.advance(29)
    first = bench.published[0]
    assert Backfill(bench.store, entry, bench.clock()).find(first) == ("not done" if is_overtaken else "in progress")
    bench.clock.advance(1.2)
    assert Backfill(bench.store, entry, bench.clock()).find(first) == "not done"
    for _ in range(24):
        look(bench, entry, keeper, after=1)
        bench.work()

    assert bench.seconds().count(30) == 2


def test_a_slot_that_was_skipped_was_not_overtaken(bench: Bench):
    """It was never published, so there is no end of it either."""
    entry = every(10)
    [keeper] = dead(bench, entry)
    for _ in range(25):
        look(bench, entry, keeper, after=2)
        bench.work()

    assert bench.kinds() == ["slot_skipped", "slot_skipped", "slot_republished"]
    assert sorted(bench.seconds()) == [10, 10, 40, 50, 60]
