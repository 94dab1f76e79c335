"""What a guarded scheduler makes of entries: the default one, django-celery-beat's and RedBeat's, tick by tick."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, schedules
from celery.beat import BeatLazyFunc, Scheduler
from dateutil import tz
from kombu import Connection

from taskguard.celery import install
from taskguard.celery.beat import GuardedScheduler, SlotScheduler, guarded
from taskguard.celery.headers import envelope_in
from taskguard.celery.timetable import schedule_of
from taskguard.protocol.store import Ending
from taskguard.schedule.boundaries import MICROS, Interval, micros, moment_of
from taskguard.schedule.note import Note
from taskguard.schedule.running import claim_of
from taskguard.stores.memory import MemoryStore
from taskguard.testing.clock import FakeClock
from tests.django_project import configure, migrate
from tests.schedule.bench import START
from tests.servers import Proxy, RedisServer

UTC = timezone.utc


class Hall:
    """Beats of one app, on a clock of their own; what they publish stays in the queue."""

    def __init__(self, make: Callable[[Celery], Scheduler], **conf: Any) -> None:
        self.clock = FakeClock()
        self.clock.advance(START.timestamp() - self.clock() / MICROS)
        self.store = MemoryStore(clock=self.clock)
        self.app = Celery(f"hall-{uuid4().hex}", set_as_current=False)
        self.queue = uuid4().hex
        self.app.conf.update(broker_url="memory://", task_default_queue=self.queue, result_expires=None, **conf)
        install(self.app, store=self.store)
        self._make = make
        self.beats: list[Any] = []

    def beat(self) -> Any:
        made = self._make(self.app)
        made.taskguard.clock._wall = self.clock
        self.beats.append(made)
        made.tick()
        return made

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1)
            for beat in self.beats:
                beat.tick()

    def messages(self) -> list[Any]:
        found = []
        with Connection("memory://") as connection, closing(connection.SimpleQueue(self.queue)) as queue:
            while queue.qsize():
                message = queue.get_nowait()
                message.ack()
                found.append(message)
        return found

    def slots(self) -> list[tuple[str, float]]:
        """Entry and seconds since the start, of each message."""
        notes = [Note.of(envelope_in(message.headers, message.headers["id"]).slot) for message in self.messages()]
        assert all(notes)
        return [(note.schedule, note.at - START.timestamp()) for note in notes if note]


def in_memory(app: Celery) -> Scheduler:
    made: Scheduler = guarded(Scheduler)(app)
    return made


def every(seconds: float, **more: Any) -> dict[str, Any]:
    return {"task": "elsewhere", "schedule": seconds, **more}


def test_two_beats_publish_each_slot_once_also_of_tasks_whose_code_they_lack():
    hall = Hall(in_memory, beat_schedule={"a": every(10), "b": every(15)})
    hall.beat(), hall.beat()
    hall.pass_time(31)

    # Nobody runs them, so a slot that finds the last one in the queue is skipped.
    assert hall.slots() == [("a", 10), ("b", 15)]


def test_runs_may_overlap_where_the_entry_says_so():
    hall = Hall(in_memory, beat_schedule={"a": every(10, options={"overlap": "allow_all", "queue": None})})
    hall.beat(), hall.beat()
    hall.pass_time(31)

    assert hall.slots() == [("a", 10), ("a", 20), ("a", 30)]


def test_the_apps_settings_are_the_default():
    hall = Hall(in_memory, beat_schedule={"a": every(10)}, taskguard_overlap="allow_all")
    hall.beat()
    hall.pass_time(21)

    assert len(hall.messages()) == 2


def test_options_of_the_guard_do_not_reach_the_task():
    kwargs = {"taskguard_overlap": "allow_all", "taskguard_catch_up": "all", "x": BeatLazyFunc(lambda: 7)}
    options = {"catch_up_window": 60, "expires": 30, "headers": {"mine": 1}}
    hall = Hall(in_memory, beat_schedule={"a": every(10, args=(1,), kwargs=kwargs, options=options)})
    beat = hall.beat()
    hall.pass_time(21)
    first, second = hall.messages()

    assert first.payload[:2] == [[1], {"x": 7}]
    assert first.headers["mine"] == 1 and first.headers["expires"]
    assert first.headers["id"] != second.headers["id"]
    assert beat.schedule["a"].options == options


def test_an_entry_that_cannot_be_scheduled_does_not_stop_the_others(caplog: pytest.LogCaptureFixture):
    hall = Hall(in_memory, beat_schedule={"a": every(10, options={"overlap": "perhaps"}), "b": every(10)})
    hall.beat()
    hall.pass_time(11)

    assert hall.slots() == [("b", 10)]
    assert "overlap='perhaps'" in caplog.text


def test_an_entry_that_cannot_be_read_does_not_stop_the_others(caplog: pytest.LogCaptureFixture):
    hall = Hall(in_memory, beat_schedule={"a": every(10), "b": every(10), "c": every(10)})
    beat = hall.beat()
    beat.schedule["a"].kwargs = 7
    del beat.schedule["b"].schedule  # as an entry of Django whose crontab was deleted
    hall.pass_time(11)

    assert hall.slots() == [("c", 10)]
    assert caplog.text.count("entry a cannot be read") == 1
    assert caplog.text.count("entry b is not scheduled: None is not a schedule") == 1


def test_a_quiet_entry_is_not_worked_out_again(monkeypatch: pytest.MonkeyPatch):
    """With thousands of entries a tick would last for seconds."""
    hall = Hall(in_memory, beat_schedule={"a": every(10, options={"overlap": "allow_all"}), "b": every(3600)})
    beat = hall.beat()
    asked: list[str] = []
    after = Interval.after
    monkeypatch.setattr(Interval, "after", lambda self, at: asked.append(self.spec) or after(self, at))
    hall.pass_time(40)
    beat.schedule["b"].options["overlap"] = "buffer_all"  # said anew, it is looked at anew
    before = asked.count(Interval(3600).spec)
    hall.pass_time(1)

    assert before == 0
    assert asked.count(Interval(3600).spec) > 0
    assert len(hall.slots()) == 4


def test_a_message_that_waits_for_its_countdown_is_not_lost():
    options = {"countdown": 3600, "overlap": "skip"}
    hall = Hall(in_memory, beat_schedule={"a": every(86400, options=options)})
    hall.beat()
    hall.clock.advance(43200 - 10)
    hall.pass_time(11)
    for _ in range(35):
        hall.pass_time(1)
        hall.clock.advance(99)

    assert len(hall.slots()) == 1
    for _ in range(10):
        hall.pass_time(1)
        hall.clock.advance(99)
    assert len(hall.slots()) == 1  # by now it is


def test_entries_are_added_changed_and_removed_while_it_runs():
    hall = Hall(in_memory, beat_schedule={"a": every(10, options={"overlap": "allow_all"})})
    beat = hall.beat()
    hall.pass_time(11)
    beat.add(name="b", task="other", schedule=5)
    beat.add(name="a", task="elsewhere", schedule=30)
    hall.pass_time(5)
    del beat.schedule["b"]
    hall.pass_time(20)

    assert hall.slots() == [("a", 10), ("b", 15), ("a", 30)]


def test_a_renamed_entry_starts_now():
    hall = Hall(in_memory, beat_schedule={"a": every(10)})
    beat = hall.beat()
    hall.pass_time(5)
    beat.schedule.clear()
    beat.add(name="b", task="elsewhere", schedule=10)
    hall.pass_time(6)

    assert hall.slots() == [("b", 10)]


def test_a_broker_that_refuses_leaves_the_slot_to_the_next_tick(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    hall = Hall(in_memory, beat_schedule={"a": every(10)})
    beat = hall.beat()
    with monkeypatch.context() as patch:
        patch.setattr(beat, "send_task", lambda *_, **__: 1 / 0)
        hall.pass_time(12)
    hall.pass_time(2)

    assert hall.slots() == [("a", 10)]
    assert len([record for record in caplog.records if "will try again" in record.message]) == 1


def test_the_file_of_the_default_scheduler_may_be_old(tmp_path: Path):
    def with_file(app: Celery) -> Any:
        return GuardedScheduler(app, schedule_filename=str(tmp_path / uuid4().hex))

    hall = Hall(with_file, beat_schedule={"a": every(10, options={"overlap": "allow_all"})})
    hall.beat()
    hall.pass_time(21)
    for _ in range(3):
        hall.beat()  # each knows nothing but what the store says

    assert hall.slots() == [("a", 10), ("a", 20)]


def test_workers_that_do_not_load_taskguard_are_told_of(caplog: pytest.LogCaptureFixture):
    app = Celery(set_as_current=False)
    app.conf.update(broker_url="memory://", taskguard_store="memory://", result_expires=None)
    guarded(Scheduler)(app)

    assert "call taskguard.celery.install(app)" in caplog.text


def test_a_lazy_scheduler_opens_nothing():
    assert not hasattr(guarded(Scheduler)(Celery(set_as_current=False), lazy=True), "taskguard")


def test_schedulers_are_found_by_their_short_names():
    from celery.beat import Service

    app = Celery(set_as_current=False)
    made = Service(app, scheduler_cls="taskguard", schedule_filename=os.devnull).get_scheduler(lazy=True)

    assert isinstance(made, SlotScheduler)


# -- schedules -----------------------------------------------------------------------------------------------------


class LikePytz(tzinfo):
    """A zone of pytz, used as any other, is at the offset that the place had before there were zones."""

    zone = "Europe/Berlin"

    def localize(self, moment: datetime) -> datetime:
        raise NotImplementedError

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(minutes=53)

    def dst(self, moment: datetime | None) -> timedelta:
        return timedelta()


@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", tz.gettz("Europe/Berlin"), LikePytz()], ids=["name", "dateutil", "pytz"]
)
def test_a_crontab_is_in_its_apps_time_zone(zone: Any):
    app = Celery(set_as_current=False)
    app.conf.timezone = zone
    found = schedule_of(schedules.crontab(minute=30, hour=2, app=app))

    assert moment_of(found.after(micros(datetime(2026, 7, 1, tzinfo=UTC)))) == datetime(2026, 7, 1, 0, 30, tzinfo=UTC)


def test_the_sun_at_a_place():
    found = schedule_of(schedules.solar("sunrise", 52.5, 13.4))
    asked = {found.after(micros(datetime(2026, 5, 1, 7, minute, tzinfo=UTC))) for minute in range(0, 60, 7)}

    assert len(asked) == 1
    assert moment_of(asked.pop()).strftime("%H:%M") in ("03:32", "03:33", "03:34", "03:35")


def test_an_interval_can_start_on_a_monday():
    found = schedule_of(schedules.schedule(timedelta(days=7)), "2026-01-05T06:00:00+00:00")

    assert moment_of(found.after(micros(START))) == datetime(2026, 11, 23, 6, tzinfo=UTC)


def test_a_schedule_of_ones_own_is_asked():
    class Odd(schedules.BaseSchedule):
        def remaining_estimate(self, last_run_at: datetime) -> timedelta:
            following = last_run_at.replace(second=0, microsecond=0) + timedelta(minutes=1)
            return following - self.now()

    found = schedule_of(Odd(app=Celery(set_as_current=False)))
    at = micros(START + timedelta(seconds=30))

    assert moment_of(found.after(at)) == START + timedelta(minutes=1)
    assert moment_of(found.until(at)) == START


def test_what_a_schedule_of_ones_own_says_is_taken_to_the_second():
    class Often(schedules.schedule):
        def is_due(self, last_run_at: datetime) -> Any:
            return super().is_due(last_run_at)

    found = schedule_of(Often(timedelta(seconds=0.4), app=Celery(set_as_current=False)))

    assert moment_of(found.after(micros(START))) == START + timedelta(seconds=1)


# -- django-celery-beat --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> None:
    configure(str(tmp_path_factory.mktemp("django") / "db.sqlite3"))
    migrate()


@pytest.fixture
def periodic(database: None) -> Iterator[Callable[..., Any]]:
    from django_celery_beat.models import IntervalSchedule, PeriodicTask

    def make(name: str, seconds: int = 10, **fields: Any) -> Any:
        interval, _ = IntervalSchedule.objects.get_or_create(every=seconds, period="seconds")
        fields = {"interval": interval, **fields}
        kwargs = '{"taskguard_overlap": "allow_all", "x": 1}'
        return PeriodicTask.objects.create(name=name, task="elsewhere", kwargs=kwargs, **fields)

    yield make
    PeriodicTask.objects.all().delete()


def of_database(app: Celery) -> Any:
    from taskguard.celery import beat

    return beat.GuardedDatabaseScheduler(app)


def changed(model: Any) -> None:
    from django_celery_beat.models import PeriodicTasks

    model.save()
    PeriodicTasks.update_changed()


def test_django_entries(periodic: Callable[..., Any]):
    model = periodic("a")
    hall = Hall(of_database)
    hall.beat(), hall.beat()
    hall.pass_time(11)
    model.refresh_from_db()
    model.enabled = False
    changed(model)
    hall.pass_time(20)
    model.enabled = True
    changed(model)
    periodic("b", 7)
    changed(model)
    hall.pass_time(10)

    slots = hall.slots()
    assert [slot for slot in slots if slot[0] == "a"] == [("a", 10), ("a", 40)]
    assert [slot for slot in slots if slot[0] == "b"] != []


def test_a_one_off_entry_of_django_runs_once_and_is_disabled(periodic: Callable[..., Any]):
    model = periodic("a", one_off=True)
    hall = Hall(of_database)
    hall.beat(), hall.beat()
    hall.pass_time(35)
    model.refresh_from_db()

    assert hall.slots() == [("a", 10)]
    assert not model.enabled


def test_the_message_of_a_one_off_entry_of_django_may_be_lost(periodic: Callable[..., Any]):
    """It is disabled by then, and so not in the list of entries any more."""
    periodic("a", one_off=True)
    hall = Hall(of_database, taskguard_republish_after=5)
    hall.beat(), hall.beat()
    hall.pass_time(12)
    assert hall.slots() == [("a", 10)]
    hall.pass_time(8)
    [found] = hall.messages()
    note = Note.of(envelope_in(found.headers, found.headers["id"]).slot)
    assert note is not None and note.at == START.timestamp() + 10
    lease = hall.store.claim(claim_of(note, found.headers["id"], 30))
    hall.store.complete(lease, Ending(how="succeeded", keep_for=60))
    hall.pass_time(20)

    assert hall.slots() == []
    assert [beat._once for beat in hall.beats] == [{}, {}]


def test_start_and_end_of_an_entry_of_django(periodic: Callable[..., Any]):
    periodic("a", start_time=START + timedelta(seconds=15), expires=START + timedelta(seconds=35))
    hall = Hall(of_database)
    hall.beat()
    hall.pass_time(50)

    assert hall.slots() == [("a", 20), ("a", 30)]


def test_a_clocked_entry_of_django(periodic: Callable[..., Any]):
    from django_celery_beat.models import ClockedSchedule

    clocked = ClockedSchedule.objects.create(clocked_time=START + timedelta(seconds=12))
    periodic("a", interval=None, clocked=clocked, one_off=True)
    hall = Hall(of_database)
    hall.beat(), hall.beat()
    hall.pass_time(30)

    assert hall.slots() == [("a", 12)]


# -- RedBeat -------------------------------------------------------------------------------------------------------


def test_redbeat_entries_with_no_leader(redis_server: RedisServer):
    from redbeat import RedBeatSchedulerEntry

    from taskguard.celery import beat

    prefix = f"redbeat-{uuid4().hex}:"
    options = {"overlap": "allow_all"}
    hall = Hall(
        lambda app: beat.GuardedRedBeatScheduler(app),
        beat_schedule={"a": every(10, options=options)},
        redbeat_redis_url=redis_server.url,
        redbeat_redis_options={},
        redbeat_key_prefix=prefix,
    )
    hall.beat(), hall.beat()
    hall.pass_time(11)
    added = RedBeatSchedulerEntry("b", "elsewhere", schedules.schedule(7), options=options, app=hall.app)
    added.save()
    hall.pass_time(11)
    added.enabled = False
    added.save()
    hall.pass_time(10)
    added.delete()

    slots = hall.slots()
    assert [slot for slot in slots if slot[0] == "a"] == [("a", 10), ("a", 20), ("a", 30)]
    assert len([slot for slot in slots if slot[0] == "b"]) in (1, 2)


def test_a_redbeat_entry_that_cannot_be_read_does_not_stop_the_others(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
):
    from redbeat.schedulers import get_redis

    from taskguard.celery import beat

    prefix = f"redbeat-{uuid4().hex}:"
    hall = Hall(
        lambda app: beat.GuardedRedBeatScheduler(app),
        beat_schedule={"a": every(10)},
        redbeat_redis_url=redis_server.url,
        redbeat_redis_options={},
        redbeat_key_prefix=prefix,
    )
    made = hall.beat()
    client = get_redis(hall.app)
    client.hset(f"{prefix}b", "definition", "{")
    client.zadd(made.app.redbeat_conf.schedule_key, {f"{prefix}b": 0})
    hall.pass_time(11)

    assert hall.slots() == [("a", 10)]
    assert caplog.text.count(f"{prefix}b cannot be read") == 1


def test_a_redbeat_whose_redis_is_away_waits_for_it(proxy: Proxy, caplog: pytest.LogCaptureFixture):
    from taskguard.celery import beat

    hall = Hall(
        lambda app: beat.GuardedRedBeatScheduler(app),
        beat_schedule={"a": every(10)},
        redbeat_redis_url=f"redis://127.0.0.1:{proxy.port}",
        redbeat_redis_options={"socket_timeout": 5},
        redbeat_key_prefix=f"redbeat-{uuid4().hex}:",
    )
    hall.beat()
    proxy.refuse()
    hall.pass_time(3)
    proxy.heal()
    hall.pass_time(8)

    assert hall.slots() == [("a", 10)]
    assert caplog.text.count("slots wait for the store") == 1
