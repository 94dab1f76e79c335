"""RQ's cron with any number of schedulers: real processes, a real Redis."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psutil
import pytest
from rq.job import Job
from rq.utils import utcparse

from taskguard.rq import GuardedCronScheduler
from taskguard.schedule.boundaries import moment_of
from taskguard.schedule.entry import Timing
from tests.rq import timed
from tests.rq.scene import CONFIG, PLAIN, Scene, WorkerProcess
from tests.servers import RedisServer
from tests.waiting import wait_until

EVERY_SECOND = {"function": "brief", "args": ["every second"], "interval": 1, "overlap": "allow_all"}


def slots(scene: Scene, name: str) -> list[float]:
    """The slots that bodies of that name ran for, in order."""
    return sorted(line["slot"] for line in scene.ledger.lines("ran", name=name))


def gaps(found: Sequence[float], step: float) -> list[float]:
    """Slots between the first and the last that are not there."""
    missing, at = [], min(found)
    while at < max(found):
        if at not in found:
            missing.append(at)
        at += step
    return missing


def twice(found: Sequence[Any]) -> list[Any]:
    return [at for at, times in Counter(found).items() if times > 1]


def doubled(scene: Scene, name: str) -> list[Any]:
    """Runs of a slot that did not begin because an earlier one had died, or slept for longer than its lease."""
    return twice([(line["slot"], line["starts"]) for line in scene.ledger.lines("ran", name=name)])


class Hand:
    """A scheduler that looks when it is told to, by a clock that is set by hand."""

    def __init__(self, scene: Scene, **options: Any) -> None:
        self.scheduler = GuardedCronScheduler(scene.connection, **options)
        self.queue = scene.queue.name
        self.start = (time.time_ns() // 1000 // 3_600_000_000) * 3_600_000_000
        self.scheduler._keeper.clock.now = self.now  # type: ignore[method-assign]
        self.hours = 0.5

    def now(self) -> int:
        return self.start + round(self.hours * 3_600_000_000)

    def register(self, function: Callable[..., Any] = timed.plain, *args: Any, **options: Any) -> None:
        ours = {name: options.pop(name) for name in ("overlap", "catch_up") if name in options}
        meta = {"taskguard": ours} if ours else None
        self.scheduler.register(function, self.queue, args=args or ("hourly",), interval=3600, meta=meta, **options)
        self.look()

    def look(self, hours: float = 0.0) -> int:
        """Some hours later: how many jobs were published?"""
        self.hours += hours
        self.scheduler._look_at.clear()
        return len(self.scheduler.enqueue_jobs())


@pytest.fixture
def hand(scene: Scene) -> Hand:
    return Hand(scene)


# -- many of them ------------------------------------------------------------------------------------------------------


def _at_random(scene: Scene, seconds: float) -> None:
    entries = [
        {**EVERY_SECOND, "catch_up": "all"},
        {**EVERY_SECOND, "args": ["by default"]},
        {"function": "guarded", "args": ["buffered"], "interval": 2, "overlap": "buffer_all", "catch_up": "all"},
        {"function": "plain", "args": ["cron"], "cron": "* * * * * */3", "overlap": "allow_all", "catch_up": "all"},
    ]
    crons = [scene.start_cron(entries) for _ in range(3)]
    workers = [scene.start_worker(wait=False) for _ in range(2)]
    scene.ledger.wait_for("ran", 4, timeout=30)
    stopped: list[tuple[float, WorkerProcess]] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or stopped:
        for moment, process in list(stopped):
            if time.monotonic() > moment:
                stopped.remove((moment, process))
                process.resume()
        # One cron and one worker are hurt at a time: there is always one that is there.
        hurt = [process for _, process in stopped]
        kind, start = random.choice([(crons, lambda: scene.start_cron(entries)), (workers, lambda: _worker(scene))])
        if time.monotonic() < until and not set(hurt) & set(kind):
            victim = random.randrange(len(kind))
            if random.random() < 0.5:
                kind[victim].kill()
                kind[victim] = start()
            else:
                kind[victim].pause()
                stopped.append((time.monotonic() + random.uniform(0.3, 2.5), kind[victim]))
        time.sleep(random.uniform(0.2, 0.8))
    horizon = time.time()
    for name in ("every second", "by default", "buffered", "cron"):
        wait_until(lambda name=name: max(slots(scene, name)) > horizon - 2, timeout=20, what=f"{name} to go on")  # type: ignore[misc]
    # What a killed worker took along is a cron's to enqueue again: they stay until all of that has run.
    wait_until(
        lambda: not _unfinished(scene, horizon), timeout=40, what="what was published amid the faults to have run"
    )
    while crons:
        crons.pop().stop()
    wait_until(lambda: not scene.queue.count and not _unfinished(scene), timeout=30, what="the queue to be empty")


def _worker(scene: Scene) -> WorkerProcess:
    return scene.start_worker(wait=False)


def _unfinished(scene: Scene, before: float = float("inf")) -> list[str]:
    """Jobs that were made before then, and have not ended."""
    found = []
    for key in scene.connection.scan_iter("rq:job:*", _type="hash"):
        origin, status, made = scene.connection.hmget(key, "origin", "status", "created_at")
        is_open = origin == scene.queue.name.encode() and status in (b"queued", b"started")
        if is_open and utcparse(made.decode()).timestamp() < before:
            found.append(key)
    return found


def _check_at_random(scene: Scene) -> None:
    for name, step in (("every second", 1), ("by default", 1), ("buffered", 2), ("cron", 3)):
        found = slots(scene, name)
        assert not doubled(scene, name), (name, doubled(scene, name))
        assert not gaps(found, step), (name, gaps(found, step))


@pytest.mark.long
def test_crons_and_workers_are_killed_and_stopped_and_each_slot_runs_once(own_redis: RedisServer, make_scene: Any):
    scene = make_scene(own_redis.url)
    _at_random(scene, 12)
    _check_at_random(scene)


@pytest.mark.faults
def test_crons_and_workers_are_killed_and_stopped_for_a_minute(own_redis: RedisServer, make_scene: Any):
    scene = make_scene(own_redis.url)
    _at_random(scene, 60)
    _check_at_random(scene)


def test_crons_that_are_all_restarted_at_once_repeat_nothing(scene: Scene):
    entries = [{**EVERY_SECOND, "catch_up": "all"}]
    scene.start_worker()
    for number in (1, 2):
        crons = [scene.start_cron(entries) for _ in range(2)]
        scene.ledger.wait_for("ran", 2 * number, timeout=30)
        for cron in crons:
            cron.kill()
    wait_until(lambda: not scene.queue.count, what="an empty queue")
    found = slots(scene, "every second")

    assert not twice(found)
    assert not gaps(found, 1)


def test_two_crons_of_rq_itself_enqueue_everything_twice(scene: Scene):
    """So that it is known what the others are there for; and an interval begins anew with each start."""
    entries = [{"function": "plain", "args": ["stock"], "interval": 600}]
    crons = [scene.start_cron(entries, "rq.cli", "cron", "-u", scene.url, CONFIG) for _ in range(2)]
    for cron in crons:
        cron.wait_for_log("Enqueued job")

    assert scene.queue.count == 2


def test_crons_that_die_between_two_steps_neither_lose_nor_double_a_slot(scene: Scene):
    points = ["before it publishes", "after it published", "before it moves the mark"]
    entries = {point: {**EVERY_SECOND, "args": [point], "catch_up": "all"} for point in points}
    crons = [scene.start_cron([entries[point]], "tests.rq.dying_cron", point, scene.url) for point in points]
    assert [cron.wait(30) for cron in crons] == [-9, -9, -9]
    died = time.time()
    scene.start_worker(wait=False)
    scene.start_cron(list(entries.values()))
    for point in points:
        found = wait_until(lambda name=point: slots(scene, name)[3:] and slots(scene, name), timeout=30, what=point)  # type: ignore[misc]

        assert found[0] <= died, point
        assert not twice(found), point
        assert not gaps(found, 1), point


# -- one slot ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [timed.plain, timed.plain_with_fence, timed.guarded])
def test_the_body_learns_its_slot(scene: Scene, hand: Hand, function: Any):
    hand.register(function, "name")
    assert hand.look(1) == 1
    scene.burst()
    (line,) = scene.ledger.lines("ran")

    assert line["slot"] * 1_000_000 == hand.start + 3_600_000_000
    assert line["schedule"] == f"tests.rq.timed.{function.__name__}"
    assert "key" not in line or line["key"].endswith("+00:00")  # the slot makes the idempotency key


def test_a_guarded_function_learns_its_slot_at_any_worker(scene: Scene, hand: Hand):
    hand.register(timed.guarded, "name")
    hand.look(1)
    scene.burst(PLAIN)
    (line,) = scene.ledger.lines("ran")

    assert line["slot"] * 1_000_000 == hand.start + 3_600_000_000
    assert hand.look(1) == 1  # and its end is known


def test_a_worker_that_does_not_fork_claims_slots_too(scene: Scene, hand: Hand):
    hand.register()
    hand.look(1)
    (job_id,) = scene.queue.job_ids
    scene.queue.push_job_id(job_id)
    scene.burst("taskguard.rq.GuardedSimpleWorker")

    assert [line["schedule"] for line in scene.ledger.lines("ran")] == ["tests.rq.timed.plain"]


def test_a_second_message_of_a_slot_does_not_run(scene: Scene, hand: Hand):
    hand.register()
    hand.look(1)
    (job_id,) = scene.queue.job_ids
    scene.queue.push_job_id(job_id)
    scene.queue.push_job_id(job_id)
    scene.burst()

    assert scene.ledger.count("ran") == 1
    assert scene.status(Job(job_id, connection=scene.connection)) == "finished"


def test_a_second_message_of_a_slot_that_runs_waits_and_does_not_run(scene: Scene, hand: Hand):
    hand.register(timed.plain, "hourly", "wait")
    hand.look(1)
    (job_id,) = scene.queue.job_ids
    scene.start_worker()
    scene.ledger.wait_for("ran")
    scene.queue.push_job_id(job_id)
    second = scene.start_worker()
    second.wait_for_log(job_id)
    scene.passes(0.5)
    scene.open()
    scene.ledger.wait_for("end")
    wait_until(lambda: not scene.queue.count and not _unfinished_of(scene, job_id), what="an end")

    assert scene.ledger.count("ran") == 1


def _unfinished_of(scene: Scene, job_id: str) -> bool:
    return scene.connection.hget(Job.key_for(job_id), "status") != b"finished"


def test_the_record_of_a_job_is_not_written_again(scene: Scene, hand: Hand):
    """A scheduler that died before it could say that it had published; a worker has the job meanwhile."""
    hand.register(timed.plain, "hourly", "wait")
    hand.look(1)
    (job_id,) = scene.queue.job_ids
    scene.start_worker()
    scene.ledger.wait_for("ran")
    before = scene.connection.hgetall(Job.key_for(job_id))
    ((entry, cron_job),) = hand.scheduler.entries.values()
    hand.scheduler.publisher.publish(cron_job, entry.slot(hand.start + 3_600_000_000))

    assert scene.connection.hgetall(Job.key_for(job_id)) == before
    assert scene.queue.count == 0
    scene.open()


def test_an_id_that_a_worker_took_along_when_it_died_is_enqueued_again(scene: Scene):
    hand = Hand(scene, republish_after=1)
    hand.register()
    hand.look(1)
    scene.connection.delete(scene.queue.key)
    assert hand.look(0.001) == 0
    scene.passes(1.1)
    hand.look(0.001)

    assert scene.queue.count == 1
    scene.burst()
    assert scene.ledger.count("ran") == 1


def test_a_job_that_is_stuck_in_the_hands_of_a_dead_worker_is_not_failed(scene: Scene, hand: Hand):
    hand.register()
    hand.look(1)
    (job_id,) = scene.queue.job_ids
    scene.connection.lmove(scene.queue.key, scene.queue.intermediate_queue_key)
    taken = scene.queue.intermediate_queue
    scene.connection.set(taken.get_first_seen_key(job_id), time.time() - 100)
    scene.find_abandoned()
    scene.burst()
    if not scene.ledger.count("ran"):
        scene.burst()  # the first one looked after it had found its queue empty

    assert scene.ledger.count("ran") == 1


# -- how a run ends ----------------------------------------------------------------------------------------------------


def test_a_slot_whose_body_failed_is_settled(scene: Scene, hand: Hand):
    hand.register(timed.plain, "hourly", "fail")
    hand.look(1)
    scene.burst()
    assert hand.look(0.001) == 0

    assert hand.look(1) == 1
    assert scene.ledger.count("ran") == 1


def test_a_slot_whose_horse_was_killed_keeps_nobody_waiting(scene: Scene, hand: Hand):
    hand.register(timed.plain, "hourly", "die")
    hand.look(1)
    scene.burst()

    assert hand.look(1) == 1
    assert scene.ledger.count("ran") == 1


def test_a_failed_job_that_is_requeued_runs_again(scene: Scene, hand: Hand):
    hand.register(timed.plain, "hourly", "fail")
    hand.look(1)
    (job_id,) = scene.queue.job_ids
    scene.burst()
    scene.queue.failed_job_registry.requeue(job_id)
    scene.burst()

    first, second = scene.ledger.lines("ran")
    assert first["slot"] == second["slot"]
    assert hand.look(1) == 1


def test_a_run_that_has_lost_its_slot_comes_again(scene: Scene, hand: Hand):
    """Of a plain function; that of a guarded one goes on, as its own key is what counts."""
    hand.register(timed.plain, "hourly", "wait")
    hand.look(1)
    (job_id,) = scene.queue.job_ids
    scene.start_worker()
    scene.ledger.wait_for("ran")
    ((entry, _),) = hand.scheduler.entries.values()
    hand.scheduler.store.forget(entry.slot(0).run_key)  # by hand, say
    scene.ledger.wait_for("ran", 2)
    scene.open()
    scene.wait_for_status(Job(job_id, connection=scene.connection), "finished")

    assert len({line["slot"] for line in scene.ledger.lines("ran")}) == 1
    assert hand.look(1) == 1


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_a_job_that_rq_gives_up_keeps_nobody_waiting(scene: Scene, hand: Hand, end: str):
    hand.register()
    hand.look(1)
    (job_id,) = scene.queue.job_ids
    getattr(Job.fetch(job_id, scene.connection), end)()

    assert hand.look(1) == 1


def test_a_returned_retry_is_of_the_same_slot(scene: Scene, hand: Hand):
    hand.register(timed.plain, "hourly", "retry")
    hand.look(1)
    scene.burst()

    first, second = scene.ledger.lines("ran")
    assert first["slot"] == second["slot"] and first["job_id"] == second["job_id"]
    assert hand.look(1) == 1


def test_a_slot_waits_for_the_key_of_its_function(scene: Scene, hand: Hand):
    """Its own key is guarded as ever; while the job is put back for it, so is its slot."""
    scene.start_worker()
    scene.queue.enqueue(timed.brief, "one", "wait")
    scene.ledger.wait_for("ran")
    hand.register(timed.brief, "one", overlap="buffer_one")
    hand.look(1)
    waits = scene.start_worker()
    wait_until(lambda: waits.log().count("timed.brief('one') (") == 2, what="it comes a second time")
    assert hand.look(1) == 0  # it is still the run of its entry
    scene.open()

    _, second = scene.ledger.wait_for("ran", 2)
    assert second["slot"] * 1_000_000 == hand.start + 3_600_000_000


# -- overlap -----------------------------------------------------------------------------------------------------------


def test_a_slot_is_skipped_while_an_earlier_run_lasts(scene: Scene, hand: Hand):
    hand.register(timed.plain, "hourly", "wait")
    hand.look(1)
    scene.start_worker()
    scene.ledger.wait_for("ran")
    assert hand.look(1) == 0
    scene.open()
    scene.ledger.wait_for("end")
    wait_until(lambda: not _unfinished(scene), what="an end")
    assert hand.look(0.001) == 0  # it is gone

    assert hand.look(1) == 1


def test_a_plain_worker_and_a_plain_function_overlap_no_more(scene: Scene, hand: Hand):
    """Nothing of ours runs there; whether the job lasts is asked of RQ."""
    hand.register(timed.plain, "hourly", "wait")
    hand.look(1)
    scene.start_worker(PLAIN)
    scene.ledger.wait_for("ran")
    assert hand.look(1) == 0
    scene.open()
    wait_until(lambda: not _unfinished(scene), what="an end")

    assert hand.look(1) == 1


def test_slots_that_came_while_an_earlier_run_lasted(scene: Scene):
    kinds = ("buffer_one", "buffer_all")
    scene.start_worker()
    scene.start_worker()
    scene.start_cron([{"function": "plain", "args": [kind, "wait"], "interval": 1, "overlap": kind} for kind in kinds])
    scene.ledger.wait_for("ran", 2, timeout=30)
    first = slots(scene, "buffer_all")[0]
    wait_until(lambda: time.time() > first + 2.2, what="two more slots")
    scene.open()
    one = wait_until(lambda: slots(scene, "buffer_one")[3:] and slots(scene, "buffer_one"), what="buffer_one")
    every = wait_until(lambda: slots(scene, "buffer_all")[3:] and slots(scene, "buffer_all"), what="buffer_all")

    assert one[1] >= one[0] + 2 and not twice(one)  # the latest of them
    assert not gaps(every, 1) and not twice(every)


def test_a_slot_that_meets_a_twin_of_its_function_is_skipped_at_once(scene: Scene, hand: Hand):
    """Nobody waits for the outcome of a scheduled job, so it joins nobody, and keeps no worker waiting."""
    scene.start_worker()
    scene.queue.enqueue(timed.guarded, "one", "wait")
    scene.ledger.wait_for("ran")
    hand.register(timed.guarded, "one")
    hand.look(1)
    (job_id,) = scene.queue.job_ids
    scene.burst()

    assert scene.connection.hget(Job.key_for(job_id), "status") == b"finished"
    assert scene.ledger.count("ran") == 1
    assert hand.look(1) == 1
    scene.open()


def test_cancel_other_ends_the_earlier_run(scene: Scene, hand: Hand):
    hand.register(timed.brief, "hourly", "wait", overlap="cancel_other")
    hand.look(1)
    (job_id,) = scene.queue.job_ids
    scene.start_worker()
    scene.ledger.wait_for("ran")
    assert hand.look(1) == 1
    scene.ledger.wait_for("ran", 2)  # though there is one worker, and the first body would wait for ever
    scene.open()
    wait_until(lambda: scene.connection.hget(Job.key_for(job_id), "status") == b"failed", what="the first one's end")

    assert "it was revoked" in str(Job.fetch(job_id, scene.connection).latest_result().exc_string)
    assert scene.ledger.count("ran") == 2


def test_allow_all_runs_beside_an_earlier_one(scene: Scene, hand: Hand):
    hand.register(timed.plain, "hourly", "wait", overlap="allow_all")
    hand.look(1)
    assert hand.look(1) == 1
    scene.start_worker()
    scene.start_worker()

    scene.ledger.wait_for("ran", 2)
    scene.open()


@pytest.mark.parametrize(("catch_up", "number"), [("none", 0), ("latest", 1), ("all", 3)])
def test_slots_that_nobody_was_there_for(scene: Scene, catch_up: str, number: int):
    first = Hand(scene)
    first.register(overlap="allow_all", catch_up=catch_up)
    later = Hand(scene)
    later.hours = first.hours + 3
    later.register(overlap="allow_all", catch_up=catch_up)

    assert scene.queue.count == number


def test_a_default_for_those_who_do_not_say(scene: Scene):
    timing = Timing(overlap="allow_all", catch_up="all")
    Hand(scene, timing=timing).register()
    later = Hand(scene, timing=timing)
    later.hours += 3
    later.register()

    assert scene.queue.count == 3


def test_slots_that_were_missed_are_made_up_for_and_only_those(scene: Scene):
    first = Hand(scene)
    first.hours = -3.5
    first.register(overlap="allow_all", catch_up="none")
    assert first.look(0.5) == 1  # three hours ago
    scene.burst()
    later = Hand(scene)
    later.hours = 0.01
    later.register(overlap="allow_all", catch_up="none")
    assert not scene.queue.count
    assert _backfill(scene, later) == ["done", "published", "published", "published"]
    assert _backfill(scene, later) == ["done", "in progress", "in progress", "in progress"]
    scene.burst()
    found = slots(scene, "hourly")

    assert _backfill(scene, later) == ["done", "done", "done", "done"]
    assert found == [later.start / 1_000_000 - 3600 * hours for hours in (3, 2, 1, 0)]


def _backfill(scene: Scene, hand: Hand) -> list[str]:
    since, until = (moment_of(hand.start + hours * 3_600_000_000).isoformat() for hours in (-3, 6))
    line = ["rq-backfill", "-u", scene.url, "tests.rq.timed.plain", CONFIG, "--json", "--from", since, "--to", until]
    entries = [{"function": "plain", "args": ["hourly"], "interval": 3600, "overlap": "allow_all"}]
    process = scene.start_cron(entries, "taskguard.cli", *line)
    assert process.wait(30) == 0, process.log()
    return [json.loads(text)["state"] for text in process.log().splitlines() if text.startswith("{")]


# -- the process -------------------------------------------------------------------------------------------------------


def test_what_is_wrong_in_the_configuration_is_an_error(scene: Scene):
    cron = scene.start_cron([{**EVERY_SECOND, "overlap": "sometimes"}])

    assert cron.wait(30) == 2
    assert "overlap='sometimes' is not known" in cron.log()


def test_a_cron_outlives_a_restart_of_redis(own_redis: RedisServer, make_scene: Any):
    scene = make_scene(own_redis.url)
    cron = scene.start_cron([{**EVERY_SECOND, "catch_up": "all"}])
    wait_until(lambda: scene.queue.count, timeout=30, what="a job")
    own_redis.kill()
    cron.wait_for_log("again in")
    own_redis.start()
    before = scene.queue.count
    wait_until(lambda: scene.queue.count > before + 1, what="more jobs")
    scene.burst()
    found = slots(scene, "every second")

    assert not twice(found)
    assert not gaps(found, 1)


def test_a_cron_that_is_told_to_stop_stops(scene: Scene):
    cron = scene.start_cron([EVERY_SECOND])
    wait_until(lambda: scene.queue.count, timeout=30, what="a job")
    cron.stop()

    assert "shutdown complete" in cron.log()
    with suppress(psutil.NoSuchProcess):
        assert psutil.Process(cron.pid).status() == psutil.STATUS_ZOMBIE
