"""Each finding is provoked here, and absent where all is well."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from celery.beat import Scheduler

from taskguard import open_store
from taskguard.celery import singleton_task
from taskguard.celery.beat import guarded
from taskguard.celery.guarding import app_guard_of
from taskguard.doctor import IDS, examine
from taskguard.doctor.broker import SETTLES_WITHIN
from taskguard.events import Event
from taskguard.history import Recorder
from tests.doctor.conftest import Examine
from tests.servers import PostgresServer, require
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]

# An app of another test in this process shares its tasks with those made here.
pytestmark = pytest.mark.filterwarnings("ignore:Task name")


# -- the store ---------------------------------------------------------------------------------------------------


def test_a_sound_store_has_no_finding(store_url: str):
    assert examine(open_store(store_url, namespace=f"sound-{uuid4().hex[:8]}")) == []


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_tg101_a_store_that_evicts(make_redis: Any, look: Examine, policy: str):
    [finding] = look(make_redis(maxmemory="100mb", maxmemory_policy=policy).url)["TG101"]

    assert finding.level == "error"
    assert policy in finding.problem


def test_no_tg101_where_nothing_can_be_evicted(make_redis: Any, look: Examine):
    assert look(make_redis(maxmemory_policy="allkeys-lru").url) == {}
    assert look(make_redis(maxmemory="100mb", maxmemory_policy="noeviction").url) == {}


def test_tg102_a_store_that_keeps_nothing_on_disk(make_redis: Any, look: Examine):
    found = look(make_redis(appendonly="no").url)

    assert [(finding.id, finding.level) for [finding] in found.values()] == [("TG102", "error")]


@pytest.fixture(scope="module")
def careless_database() -> Iterator[PostgresServer]:
    with closing(require(PostgresServer, durable=False)) as server:
        yield server


def test_tg102_a_database_that_does_not_wait_for_the_disk(careless_database: PostgresServer, look: Examine):
    assert [*look(careless_database.url)] == ["TG102"]


def test_tg103_a_store_that_keeps_snapshots_only(make_redis: Any, look: Examine):
    assert [*look(make_redis(appendonly="no", save="3600 1").url)] == ["TG103"]


def test_tg103_a_store_that_leaves_writing_to_the_machine(make_redis: Any, look: Examine):
    assert [*look(make_redis(appendfsync="no").url)] == ["TG103"]


def test_a_server_that_does_not_tell_its_settings_is_taken_as_usual(make_redis: Any, look: Examine):
    server = make_redis()
    open_store(server.url).execute("ACL", "SETUSER", "app", "on", ">word", "~*", "&*", "+@all", "-config")

    assert look(server.url.replace("://", "://app:word@")) == {}


def test_tg104_replicas_that_need_not_have_a_write(make_redis: Any, look: Examine):
    primary = make_redis(repl_diskless_sync_delay="0")
    make_redis(replicaof=f"127.0.0.1 {primary.port}")
    wait_until(lambda: b"connected_slaves:1" in open_store(primary.url).execute("INFO", "replication"))
    assert [*look(primary.url)] == ["TG104"]

    open_store(primary.url).execute("CONFIG", "SET", "min-replicas-to-write", "1")
    wait_until(lambda: b"min_slaves_good_slaves:1" in open_store(primary.url).execute("INFO", "replication"))
    assert look(primary.url) == {}


class Standby(PostgresServer):
    """Follows *primary*, as it is set up by the manual."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__()
        self._primary = primary

    def prepare(self) -> None:
        copy, options = str(self.binary.with_name("pg_basebackup")), ["-R", "-X", "stream", "-c", "fast", "--no-sync"]
        self.run([copy, "-D", str(self.data), *options, "-d", self._primary.url])


def test_tg104_a_database_whose_standby_need_not_have_a_write(careless_database: PostgresServer, look: Examine):
    url = careless_database.url
    with closing(require(Standby, careless_database)), psycopg.connect(url, autocommit=True) as admin:
        wait_until(lambda: admin.execute("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'").fetchone())
        admin.execute("CREATE ROLE app LOGIN")
        admin.execute("GRANT CREATE ON DATABASE taskguard TO app")
        with_less_rights = url.replace("://taskguard@", "://app@") + "?schema=of_app"
        assert [*look(with_less_rights)] == ["TG102", "TG104"]

        for names, found in (("*", ["TG102"]), ("", ["TG102", "TG104"])):
            admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
            admin.execute("SELECT pg_reload_conf()")
            wait_until(lambda names=names: admin.execute("SHOW synchronous_standby_names").fetchone() == (names,))
            assert [*look(url)] == found


@pytest.mark.parametrize("ahead", [-3600.0, 30.0])
def test_tg105_a_clock_that_differs(make_redis: Any, look: Examine, ahead: float, monkeypatch: pytest.MonkeyPatch):
    url = make_redis().url
    right = time.time
    monkeypatch.setattr("taskguard.doctor.clock.time.time", lambda: right() + ahead)
    [finding] = look(url)["TG105"]

    assert ("ahead of" if ahead > 0 else "behind") in finding.problem


def test_tg106_a_store_in_the_memory_of_one_process(look: Examine):
    assert [*look("memory://")] == ["TG106"]


def test_tg107_guarding_is_switched_off(look: Examine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TASKGUARD_OFF", "1")
    [finding] = look("memory://")["TG107"]

    assert finding.level == "error"


def test_tg109_a_server_that_does_not_tell_how_it_is_set_up(make_redis: Any, look: Examine):
    server = make_redis(maxmemory="100mb", maxmemory_policy="allkeys-lru")
    open_store(server.url).execute("ACL", "SETUSER", "app", "on", ">word", "~*", "&*", "+@all", "-@dangerous")

    assert [*look(server.url.replace("://", "://app:word@"))] == ["TG109"]


# -- the app -----------------------------------------------------------------------------------------------------


def test_a_sound_app_has_no_finding(make_app: Any, look_at: Examine):
    app = make_app(beat_scheduler="taskguard.celery.beat:GuardedScheduler", beat_schedule={"x": {"task": "x"}})
    app.conf.taskguard_tasks = {"x": {}}

    @app.task(name="x", shared=False)
    def x() -> None: ...

    @singleton_task(
        app, shared=False, name="y", key="a", on_done="reuse_success", keep_for=86400, time_limit=600, hold_at_most=900
    )
    def y(a: int, b: int = 0) -> None: ...

    assert look_at(app) == {}


def test_tg106_a_memory_store_under_workers(make_app: Any, look_at: Examine):
    assert "TG106" in look_at(make_app(taskguard_store="memory://"))


@pytest.mark.parametrize(
    ("broker", "found"), [("amqp://elsewhere", ["TG108"]), ("amqp://localhost", []), ("memory://", [])]
)
def test_tg108_a_file_and_a_broker_elsewhere(make_app: Any, look_at: Examine, tmp_path: Path, broker: str, found: Any):
    assert [*look_at(make_app(broker_url=broker, taskguard_store=f"sqlite:///{tmp_path / 'file.db'}"))] == found


def test_tg210_a_job_that_is_longer_than_rabbitmq_waits(make_app: Any, look_at: Examine):
    app = make_app(broker_url="amqp://")

    @singleton_task(app, shared=False, name="long", time_limit=7200)
    def long() -> None: ...

    @singleton_task(app, shared=False, name="short", time_limit=600)
    def short() -> None: ...

    found = look_at(app)
    assert [(finding.about, finding.level) for finding in found.pop("TG210")] == [("long", "warning")]
    assert found == {}


def test_tg201_a_job_on_sqs_whose_messages_come_back_after_half_an_hour(make_app: Any, look_at: Examine):
    app = make_app(broker_url="sqs://")

    @singleton_task(app, shared=False, name="long", time_limit=2700)
    def long() -> None: ...

    [finding] = look_at(app)["TG201"]
    assert "1800 s" in finding.problem


def test_tg201_a_time_limit_longer_than_the_visibility_timeout(make_app: Any, look_at: Examine):
    app = make_app(broker_transport_options={"visibility_timeout": 600})

    @singleton_task(app, shared=False, name="long", time_limit=1200)
    def long() -> None: ...

    [finding] = look_at(app)["TG201"]
    assert (finding.about, finding.level) == ("long", "warning")
    assert "1200 s" in finding.problem and "600 s" in finding.problem


def test_tg201_a_job_that_ran_longer_than_the_visibility_timeout(make_app: Any, look_at: Examine):
    app = make_app(broker_transport_options={"visibility_timeout": 1})

    @singleton_task(app, shared=False, name="long", keep_for=60)
    def long() -> None: ...

    key = long.taskguard.key()
    guard = app_guard_of(app).guard
    _tell(guard, Event(kind="claimed", key=key, owner="job", state="running"), ago=50)
    _tell(guard, Event(kind="completed", key=key, owner="job"), ago=10)

    assert re.search(r"ran for [4-9]\d s", look_at(app)["TG201"][0].problem)


def test_tg202_a_task_that_is_acknowledged_early(make_app: Any, look_at: Examine):
    app = make_app()

    @singleton_task(app, shared=False, name="early", acks_late=False)
    def early() -> None: ...

    assert "acks_late off" in look_at(app)["TG202"][0].problem


@pytest.mark.parametrize(("broker", "found"), [("", ["taskguard_redeliver_orphans"]), ("amqp://", [])])
def test_tg202_jobs_of_a_killed_worker_that_wait_for_the_visibility_timeout(
    make_app: Any, look_at: Examine, broker: str, found: Any
):
    app = make_app(taskguard_redeliver_orphans=False, **({"broker_url": broker} if broker else {}))

    assert [finding.about for finding in look_at(app).get("TG202", [])] == found


def test_tg203_a_queued_entry_that_is_over_before_its_message_comes_back(make_app: Any, look_at: Examine):
    found = look_at(make_app(taskguard_queued_for=1800, taskguard_republish_after=60))

    assert [finding.level for finding in found["TG203"]] == ["error"]


def test_tg203_a_job_that_waited_longer_than_its_entry(make_app: Any, look_at: Examine):
    app = make_app(taskguard_queued_for=7200)

    @singleton_task(app, shared=False, name="slow")
    def slow() -> None: ...

    key, guard = slow.taskguard.key(), app_guard_of(app).guard
    _tell(guard, Event(kind="claimed", key=key, owner="job", state="queued"), ago=9000)
    _tell(guard, Event(kind="claimed", key=key, owner="job", state="running"), ago=0)

    [finding] = look_at(app)["TG203"]
    assert (finding.about, finding.level) == ("slow", "error")


def test_tg204_an_end_that_is_forgotten_too_soon(make_app: Any, look_at: Examine):
    app = make_app()

    @singleton_task(app, shared=False, name="forgets", keep_for=60)
    def forgets() -> None: ...

    [finding] = look_at(app)["TG204"]
    assert "keep_for=60" in finding.problem


@pytest.mark.parametrize(("keep_for", "found"), [(3650, ["TG204"]), (3701, [])])
def test_tg204_and_tg203_count_the_time_until_somebody_looks(
    make_app: Any, look_at: Examine, keep_for: Any, found: Any
):
    app = make_app(taskguard_queued_for=3650)

    @singleton_task(app, shared=False, name="forgets", keep_for=keep_for)
    def forgets() -> None: ...

    assert [*look_at(app)] == ["TG203", *found]


def test_no_finding_about_visibility_where_the_broker_has_none(make_app: Any, look_at: Examine):
    app = make_app(broker_url="amqp://", taskguard_queued_for=1800)

    @singleton_task(app, shared=False, name="forgets", keep_for=60, time_limit=1200)
    def forgets() -> None: ...

    assert look_at(app) == {}


def test_tg205_no_result_backend(make_app: Any, look_at: Examine):
    app = make_app(result_backend=None)

    @singleton_task(app, shared=False, name="wanted")
    def wanted() -> int:
        return 1

    @singleton_task(app, shared=False, name="unheard", ignore_result=True)
    def unheard() -> None: ...

    about = {finding.about for finding in look_at(app)["TG205"]}
    assert "wanted" in about and "unheard" not in about  # every app has the shared tasks of other tests, too


def test_tg206_options_that_cannot_work_together(make_app: Any, look_at: Examine):
    app = make_app(taskguard_republish_after=90000, taskguard_on_store_error="run_unguarded")

    @singleton_task(app, shared=False, name="let_go", hold_at_most=60, time_limit=600)
    def let_go() -> None: ...

    @singleton_task(app, shared=False, name="reused", on_done="reuse", keep_for=86400)
    def reused() -> None: ...

    found = {finding.about: finding.level for finding in look_at(app)["TG206"]}
    assert found == {"taskguard_republish_after": "warning", "let_go": "error", "reused": "warning"}


def test_tg207_a_pattern_that_fits_no_task(make_app: Any, look_at: Examine):
    [finding] = look_at(make_app(taskguard_tasks={"biling.*": {"lease": 60}}))["TG207"]

    assert "biling.*" in finding.about


SCHEDULE = {"each": {"task": "each", "schedule": 60}}


@pytest.mark.parametrize(
    ("conf", "ours"),
    [
        (
            {"beat_schedule": SCHEDULE},
            '"taskguard.celery.beat:GuardedScheduler", or start each beat with -S taskguard;',
        ),
        ({"beat_scheduler": "django"}, '"taskguard.celery.beat:GuardedDatabaseScheduler", or'),
        ({"beat_scheduler": "redbeat.RedBeatScheduler"}, '"taskguard.celery.beat:GuardedRedBeatScheduler", or'),
        ({"beat_scheduler": "redbeat.schedulers:RedBeatScheduler"}, "or start each beat with -S taskguard_redbeat;"),
        ({"beat_scheduler": "celery.beat.Scheduler", "beat_schedule": SCHEDULE}, "celery.beat:GuardedScheduler"),
        ({"beat_scheduler": "mine.beats:Mine"}, "to the class that taskguard.celery.beat.guarded makes from it"),
    ],
)
def test_tg208_scheduled_jobs_that_are_not_guarded(make_app: Any, look_at: Examine, conf: dict[str, Any], ours: str):
    found = look_at(make_app(**conf))

    assert [*found] == ["TG208"]
    assert ours in found["TG208"][0].advice


@pytest.mark.parametrize("name", ["taskguard", "taskguard_redbeat", "tests.doctor.test_findings:OfTheUser"])
def test_no_tg208_where_the_scheduler_is_guarded(make_app: Any, look_at: Examine, name: str):
    assert look_at(make_app(beat_schedule=SCHEDULE, beat_scheduler=name)) == {}


OfTheUser = guarded(Scheduler)


def test_no_tg208_where_a_guarded_beat_has_run(make_app: Any, look_at: Examine):
    app = make_app(beat_schedule=SCHEDULE)
    OfTheUser(app).tick()  # as `celery beat -S taskguard` does

    assert look_at(app) == {}


def test_tg209_a_delay_longer_than_the_visibility_timeout(make_app: Any, look_at: Examine):
    app = make_app()

    @singleton_task(app, shared=False, name="later")
    def later() -> None: ...

    later.apply_async(countdown=7200)
    app_guard_of(app).calls.recorder.flush()

    [finding] = look_at(app)["TG209"]
    assert (finding.about, finding.level) == ("later", "warning")
    assert "7200 s" in finding.problem


def test_a_delay_is_no_time_in_the_queue(make_app: Any, look_at: Examine):
    app = make_app(broker_transport_options={"visibility_timeout": 100000}, taskguard_queued_for=200000)

    @singleton_task(app, shared=False, name="later")
    def later() -> None: ...

    key, guard = later.taskguard.key(), app_guard_of(app).guard
    _tell(guard, Event(kind="claimed", key=key, owner="job", state="queued", lasts=290000), ago=90000)
    _tell(guard, Event(kind="claimed", key=key, owner="job", state="running", lasts=30), ago=0)

    assert look_at(app) == {}


# -- what was seen -----------------------------------------------------------------------------------------------


def test_tg301_a_key_that_ignores_an_argument_that_varies(make_app: Any, look_at: Examine):
    app = make_app()

    @singleton_task(app, shared=False, name="charge", key="order")
    def charge(order: int, cents: int, note: str = "") -> None: ...

    charge.delay(1, 500)
    charge.delay(1, cents=500)
    charge.delay(1, 700)
    app_guard_of(app).calls.recorder.flush()

    [finding] = look_at(app)["TG301"]
    assert finding.about == "charge"
    assert "1 of 2 skipped calls differed in cents" in finding.problem


@pytest.mark.parametrize(("on_conflict", "found"), [("skip", ["TG301"]), ("wait", []), ("run_once_more", [])])
def test_no_tg301_about_calls_that_are_done_later(make_app: Any, look_at: Examine, on_conflict: Any, found: Any):
    app = make_app()

    @singleton_task(app, shared=False, name="charge", key="order", on_conflict=on_conflict)
    def charge(order: int, cents: int) -> None: ...

    app_guard = app_guard_of(app)
    key, job = charge.taskguard.key(1), Event(kind="claimed", key=charge.taskguard.key(1), owner="b", state="running")
    with app_guard.guard.hold(key):  # a job is running
        for cents in (500, 700, 900):
            charge.delay(1, cents)
        _tell(app_guard.guard, replace(job, kind="duplicate", holder="a", differs=("cents",)), ago=2)
        _tell(app_guard.guard, replace(job, kind="duplicate", holder="a", differs=("cents",)), ago=1)  # it was put back
    if on_conflict == "wait":
        _tell(app_guard.guard, job, ago=0)
    app_guard.calls.recorder.flush()

    assert [*look_at(app)] == found


def test_no_tg301_where_the_same_call_came_twice(make_app: Any, look_at: Examine):
    app = make_app()

    @singleton_task(app, shared=False, name="charge", key="order")
    def charge(order: int, cents: int) -> None: ...

    for _ in range(2):
        charge.delay(1, 500)
    app_guard_of(app).calls.recorder.flush()

    assert look_at(app) == {}


def _queued_job(app: Any, **options: Any) -> Any:
    """A task of which a job has been queued for longer than a call takes to publish its message."""

    @singleton_task(app, name="work", key="a", shared=False)
    def work(a: int) -> int:
        return a

    work.apply_async((1,), **options)
    wait_until(lambda: time.time() - work.taskguard.get(1).since > SETTLES_WITHIN)
    return work


def test_tg211_a_queue_that_was_purged(make_app: Any, look_at: Examine):
    app = make_app()
    work = _queued_job(app)
    assert look_at(app) == {}

    assert app.control.purge() == 1

    [finding] = look_at(app)["TG211"]
    assert finding.about == "work"
    assert "taskguard release --queued" in finding.advice
    work.taskguard.release(1)
    assert look_at(app) == {}


def test_no_tg211_before_the_countdown_is_over(make_app: Any, look_at: Examine):
    app = make_app()
    _queued_job(app, countdown=600)
    app.control.purge()

    assert "TG211" not in look_at(app)


def test_tg212_a_broker_that_cannot_be_asked(make_app: Any, make_redis: Any, look_at: Examine):
    broker = make_redis()
    app = make_app(broker_url=broker.url)
    _queued_job(app)
    broker.close()

    assert [*look_at(app)] == ["TG212"]


def test_tg302_leases_that_were_lost(make_redis: Any, look: Examine):
    from taskguard import Guard

    url = make_redis().url
    guard = Guard(url)
    with guard.hold("key", lease=1, on_lost="continue") as fence:
        guard.free("key")
        wait_until(lambda: fence.lost)
    guard.recorder.flush()

    [finding] = look(url)["TG302"]
    assert finding.about == "key"


# -- all of them -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IDS)
def test_each_finding_has_a_section_and_is_provoked(name: str):
    page = (ROOT / "docs" / "doctor.md").read_text()

    assert f"\n### {name}: {IDS[name]}\n" in page
    assert f"def test_{name.lower()}_" in Path(__file__).read_text()


def test_no_section_is_about_a_finding_that_does_not_exist():
    page = (ROOT / "docs" / "doctor.md").read_text()

    assert set(re.findall(r"^### (TG\d+)", page, re.M)) == set(IDS)


def _tell(guard: Any, event: Event, *, ago: float) -> None:
    recorder: Recorder = guard.recorder
    recorder._waiting.append((_since_boot() - ago, event))
    recorder.flush()


def _since_boot() -> float:
    from taskguard.runtime.clocks import since_boot

    return since_boot()
