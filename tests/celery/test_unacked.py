"""What is given back of the messages that workers have fetched from a Redis broker, step by step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
import redis

from taskguard import StoreError
from taskguard.celery import rescue, unacked
from tests.celery.hands import LEASE, QUICK, Broker, Hands, tick_for
from tests.servers import RedisServer, durable_redis, require
from tests.waiting import wait_until

LONG = 1.2
"""Seconds within which a message would have been given back several times over."""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with closing(require("redis-7-tls")) as server:
        yield server


@pytest.fixture
def make_broker(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Broker]]:
    for name, value in QUICK.items():
        monkeypatch.setattr(name, value)
    made: list[Broker] = []
    base = server.url.rpartition("/")[0]

    def make(database: int = 0, **conf: Any) -> Broker:
        client = redis.Redis.from_url(base)
        client.flushall()
        client.close()
        made.append(Broker(f"{base}/{database}", **{"taskguard_store": f"{base}/9", **conf}))
        return made[-1]

    yield make
    for broker in made:
        broker.close()


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    return make_broker()


@pytest.fixture
def looker(broker: Broker) -> Hands:
    return Hands(broker)


@pytest.fixture
def dead(broker: Broker) -> Hands:
    """A worker that fetches, and says nothing any more."""
    return Hands(broker)


def until(condition: Callable[[], Any], *workers: Hands) -> Any:
    def met() -> Any:
        for worker in workers:
            worker.tick()
        return condition()

    return wait_until(met, timeout=10)


# -- what the store says of the job ------------------------------------------------------------------------------


def test_a_message_that_was_fetched_and_not_begun_is_given_back(broker, dead, looker):
    broker.charge.delay(1)
    dead.fetch()
    until(lambda: broker.waiting() == 1, looker)
    assert broker.unacked == set()
    message = looker.fetch()
    assert message.headers["redelivered"] and message.delivery_info["redelivered"]
    assert message.headers["taskguard_rescued"][0] == 1


def test_a_job_that_runs_is_left_to_the_process_that_runs_it(broker, dead, looker):
    job = broker.charge.delay(1)
    dead.fetch()
    broker.begin(job, 1)
    tick_for(LONG, looker)
    assert broker.waiting() == 0


def test_a_run_whose_lease_is_over_is_given_back(broker, dead, looker):
    job = broker.charge.delay(1)
    dead.fetch()
    broker.begin(job, 1, lease=0.8)
    tick_for(0.6, looker)
    assert broker.waiting() == 0
    until(lambda: broker.waiting() == 1, looker)


def test_a_job_that_ended_before_its_acknowledgement_is_given_back_to_be_answered(broker, dead, looker):
    job = broker.charge.delay(1)
    dead.fetch()
    broker.end(broker.begin(job, 1))
    until(lambda: broker.waiting() == 1, looker)


def test_a_job_whose_key_another_one_has_is_given_back(broker, dead, looker):
    broker.charge.delay(1)
    dead.fetch()
    broker.store.forget(broker.charge.taskguard.key(1))
    broker.begin(broker.app.AsyncResult("another"), 1)
    until(lambda: broker.waiting() == 1, looker)


def test_nothing_moves_while_the_store_does_not_answer(server, make_broker, monkeypatch):
    monkeypatch.setattr(rescue, "LEAVE_ALONE", 0.2)
    with closing(durable_redis()) as other:
        broker = make_broker(taskguard_store=f"{other.url}?timeout=0.2")
        dead, looker = Hands(broker), Hands(broker)
        broker.charge.delay(1)
        dead.fetch()
        looker.tick()
        other.kill()
        end = time.monotonic() + LONG
        while time.monotonic() < end:
            with suppress(StoreError):
                looker.tick()
            time.sleep(0.02)
        assert broker.waiting() == 0
        other.start()
        until(lambda: broker.waiting() == 1, looker)


# -- whose it is -------------------------------------------------------------------------------------------------


def test_what_a_living_worker_has_in_hand_is_left_there_whatever_the_store_says(broker, looker):
    living = Hands(broker)
    jobs = [broker.charge.delay(order) for order in range(3)]
    for _ in jobs:
        living.fetch()
    broker.begin(jobs[0], 0, lease=0.1)  # its child is stopped: it is for the worker to decide
    broker.end(broker.begin(jobs[1], 1))
    tick_for(LONG, living, looker)
    assert (broker.waiting(), len(broker.unacked)) == (0, 3)


def test_the_message_of_an_unguarded_task_is_never_touched(broker, dead, looker):
    broker.plain.delay(1)
    dead.fetch()
    broker.charge.delay(1)
    dead.fetch()
    until(lambda: broker.waiting() == 1, looker)
    tick_for(LONG, looker)
    (left,) = broker.unacked
    assert dead.in_hand()[left].headers["task"] == "plain"


def test_a_message_of_another_store_is_for_workers_of_that_store(server, broker, dead, looker):
    with closing(Broker(broker.url, taskguard_store=f"{server.url.rpartition('/')[0]}/8")) as other:
        broker.charge.delay(1)
        job = other.charge.delay(1)
        dead.fetch()
        dead.fetch()
        until(lambda: broker.waiting() == 1, looker)
        tick_for(LONG, looker)
        assert [dead.in_hand()[tag].headers["id"] for tag in broker.unacked] == [job.id]
        until(lambda: broker.waiting() == 2, looker, Hands(other))


# -- steps in between --------------------------------------------------------------------------------------------


def suspect(worker: Hands) -> Any:
    """The one message that is looked at, as it is just before it is given back."""
    look = wait_until(lambda: (look := worker.rescuer._unacked.look()) and look.suspects and look)
    return look.suspects[0]


def give_back(worker: Hands, found: Any) -> list[str]:
    return worker.rescuer._unacked.give_back(found, rescue.Rescued(1, 0))


@pytest.fixture
def watched(broker, dead, looker) -> Any:
    """The message of a worker that has just gone silent."""
    broker.charge.delay(1)
    message = dead.fetch()
    looker.tick()
    dead.tick()
    found = suspect(looker)
    assert found.tag == message.delivery_tag
    return found


def test_who_finds_a_message_without_a_stamp_does_not_take_away_the_one_that_came_meanwhile(broker, dead, looker):
    broker.charge.delay(1)
    tag = dead.fetch().delivery_tag
    looker.tick()
    dead.tick()
    stamps = next(key for key in broker.raw.keys("taskguard.*.unacked"))
    before = broker.raw.zscore(stamps, tag)
    looker.rescuer._unacked.stamp([tag], seen=True)
    assert broker.raw.zscore(stamps, tag) == before


def test_a_message_is_given_back_once(broker, looker, watched):
    assert give_back(looker, watched) == ["q"]
    assert give_back(looker, watched) == []
    assert broker.waiting() == 1


def test_a_message_that_was_acknowledged_meanwhile_is_not_given_back(broker, dead, looker, watched):
    dead.channel.basic_ack(watched.tag)
    assert give_back(looker, watched) == []
    assert broker.waiting() == 0


def test_a_message_whose_worker_wakes_meanwhile_is_not_given_back(broker, dead, looker, watched):
    dead.tick()
    assert give_back(looker, watched) == []
    assert broker.waiting() == 0


def test_a_message_that_kombu_restored_and_another_worker_fetched_meanwhile_is_not_given_back(
    broker, dead, looker, watched
):
    dead.channel.qos.restore_by_tag(watched.tag)
    assert looker.fetch().delivery_tag == watched.tag
    assert give_back(looker, watched) == []
    assert broker.waiting() == 0
    # Nor before that worker has had the time to stamp it.
    looker.rescuer._in_hand = lambda: None
    looker.rescuer.tick()
    assert broker.waiting() == 0


def test_a_message_that_kombu_puts_back_and_leaves_in_its_index_meanwhile_is_not_given_back_once_more(
    broker, dead, looker, watched, monkeypatch
):
    ours = looker.rescuer._unacked
    find = ours._queues

    def restore_and_find(*args: Any) -> list[str]:  # between the reading of the message and the step that moves it
        dead.channel._restore(dead.in_hand()[watched.tag])
        return find(*args)

    monkeypatch.setattr(ours, "_queues", restore_and_find)
    assert give_back(looker, watched) == []
    assert broker.waiting() == 1


def test_a_late_acknowledgement_takes_nothing_from_the_worker_that_has_the_message_now(broker, dead, looker, watched):
    assert give_back(looker, watched)
    again = looker.fetch()
    dead.channel.basic_ack(watched.tag)
    assert broker.unacked == {again.delivery_tag}


def test_a_late_rejection_brings_no_second_copy(broker, dead, looker, watched):
    assert give_back(looker, watched)
    looker.fetch()
    dead.channel.basic_reject(watched.tag, requeue=True)
    assert (broker.waiting(), len(broker.unacked)) == (0, 1)


def test_a_worker_that_shuts_down_late_restores_no_second_copy(broker, dead, looker, watched):
    assert give_back(looker, watched)
    dead.channel.qos.restore_unacked()
    assert broker.waiting() == 1


def test_a_message_whose_queue_nobody_knows_any_more_stays_where_it_is(broker, looker, watched):
    broker.raw.delete("_kombu.binding.q")
    broker.raw.hset(
        "unacked", watched.tag, broker.raw.hget("unacked", watched.tag).replace(b'"", "q"]', b'"gone", "q"]')
    )
    assert give_back(looker, watched) == []
    assert broker.unacked == {watched.tag}


def test_any_number_of_kombus_that_restore_at_the_same_time_make_no_second_copy(broker, dead, looker):
    number = 60
    for order in range(number):
        broker.charge.delay(order)
        dead.fetch()
    looker.tick()
    found = wait_until(lambda: (look := looker.rescuer._unacked.look()) and len(look.suspects) == number and look)
    others = [broker.channel() for _ in range(3)]
    begin = threading.Barrier(4)

    def restore(channel: Any, tags: list[str]) -> None:
        begin.wait()
        for tag in tags:
            channel.qos.restore_by_tag(tag)

    tags = [suspect.tag for suspect in found.suspects]
    threads = [
        threading.Thread(target=restore, args=(channel, tags[::step]))
        for channel, step in zip(others, (1, 2, 3), strict=True)
    ]
    for thread in threads:
        thread.start()
    begin.wait()
    ours = sum(bool(give_back(looker, suspect)) for suspect in reversed(found.suspects))
    for thread in threads:
        thread.join()
    assert (broker.waiting(), broker.unacked) == (number, set())
    assert 0 < ours <= number


# -- who looks, and for how long ---------------------------------------------------------------------------------


def test_one_worker_looks_at_a_time_and_another_one_when_it_is_gone(broker, dead, looker):
    other = Hands(broker)
    looker.tick()
    other.tick()
    assert looker.rescuer._unacked.look() is not None
    assert other.rescuer._unacked.look() is None
    broker.charge.delay(1)
    dead.fetch()
    until(lambda: broker.waiting() == 1, other)  # the first one says nothing any more


def test_after_a_sleep_of_all_workers_nobody_counts_as_dead_before_it_could_say_that_it_lives(broker, looker):
    living = Hands(broker)
    broker.charge.delay(1)
    living.fetch()
    tick_for(0.3, looker, living)
    tick_for(0.2, looker)  # its stamp is due
    time.sleep(2 * LEASE + unacked.TIMEOUT)  # the machine was suspended
    looker.tick()
    tick_for(LONG, living, looker)
    assert broker.waiting() == 0


def test_after_an_outage_of_the_broker_nobody_counts_as_dead_before_it_could_say_that_it_lives(server, broker, looker):
    living = Hands(broker)
    broker.charge.delay(1)
    living.fetch()
    tick_for(0.3, living, looker)
    server.pause()
    timer = threading.Timer(2 * LEASE, server.resume)
    timer.start()
    looker.tick()  # answered only when the server goes on
    timer.join()
    looker.tick()
    assert broker.waiting() == 0
    tick_for(LONG, living, looker)
    assert broker.waiting() == 0


def test_a_broker_that_was_emptied_is_used_as_a_new_one(broker, dead, looker):
    broker.charge.delay(1)
    dead.fetch()
    tick_for(0.2, looker)
    broker.raw.flushdb()
    broker.raw.script_flush()
    tick_for(0.2, looker)
    broker.charge.delay(2)
    dead.fetch()
    until(lambda: broker.waiting() == 1, looker)


@pytest.mark.parametrize("off", [-7200.0, 7200.0], ids=["behind", "ahead"])
def test_a_worker_whose_clock_is_wrong_is_neither_robbed_nor_forgotten(broker, dead, looker, monkeypatch, off):
    monkeypatch.setattr("kombu.transport.redis.time", lambda: time.time() + off)
    living = Hands(broker)
    broker.charge.delay(1)
    broker.charge.delay(2)
    living.fetch()
    dead.fetch()
    until(lambda: broker.waiting() == 1, living, looker)
    tick_for(LONG, living, looker)
    assert (broker.waiting(), broker.unacked) == (1, set(living.in_hand()))


def test_a_message_comes_back_three_times_and_is_then_left_to_the_visibility_timeout(broker, dead, looker):
    broker.charge.delay(1)
    for _ in range(3):
        dead.fetch()
        until(lambda: broker.waiting() == 1, looker)
    dead.fetch()
    tick_for(LONG, looker)
    assert broker.waiting() == 0


def test_more_messages_than_one_look_is_about_come_back_all_the_same(broker, dead, looker, monkeypatch):
    monkeypatch.setattr(unacked, "AT_ONCE", 10)
    monkeypatch.setattr(unacked, "READS", 5000)  # a few messages
    left = [broker.charge.apply_async((order,), countdown=3600) for order in range(25)]
    jobs = [broker.charge.delay(order) for order in range(100, 125)]
    for _ in (*left, *jobs):
        dead.fetch()
    until(lambda: broker.waiting() == len(jobs), looker)
    tick_for(LONG / 2, looker)
    assert (broker.waiting(), len(broker.unacked)) == (len(jobs), len(left))


def test_a_look_that_takes_long_goes_on_where_it_stopped(broker, dead, looker, monkeypatch):
    monkeypatch.setattr(rescue, "LASTS", -1.0)
    for order in range(7):
        broker.charge.delay(order)
        dead.fetch()
    until(lambda: broker.waiting() == 7, looker)


# -- where kombu keeps it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("database", "options"),
    [
        (3, {}),
        (0, {"global_keyprefix": "shop:"}),
        (0, {"unacked_key": "mine", "unacked_index_key": "mine_index", "unacked_mutex_key": "mine_mutex"}),
        (0, {"sep": ":", "priority_steps": [0, 5]}),
        (2, {"global_keyprefix": "{shop}", "unacked_key": "mine"}),
    ],
)
def test_wherever_kombu_keeps_them_they_are_found_and_go_back_to_their_queue(make_broker, database, options):
    broker = make_broker(database, broker_transport_options=options)
    dead, looker = Hands(broker), Hands(broker)
    job = broker.charge.delay(1)
    dead.fetch()
    assert len(broker.unacked) == 1
    until(lambda: broker.waiting() == 1, looker)
    assert looker.fetch().headers["id"] == job.id


@pytest.mark.parametrize(("priority", "queue"), [(0, "q"), (4, "q\x06\x163"), (9, "q\x06\x169")])
def test_a_message_goes_back_with_its_priority(broker, dead, looker, priority, queue):
    broker.charge.apply_async((1,), priority=priority)
    dead.fetch()
    until(lambda: broker.waiting(queue) == 1, looker)


def test_a_message_goes_back_before_those_that_came_later(broker, dead, looker):
    job = broker.charge.delay(1)
    dead.fetch()
    broker.charge.delay(2)
    until(lambda: broker.waiting() == 2, looker)
    assert looker.fetch().headers["id"] == job.id


def test_keys_of_ours_end_by_themselves(broker, dead, looker):
    broker.charge.delay(1)
    dead.fetch()
    dead.tick()
    keys = broker.raw.keys("taskguard.*")
    assert len(keys) == 2
    assert all(broker.raw.ttl(key) >= 0 for key in keys)
