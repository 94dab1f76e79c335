"""Workers, schedulers and callers of two releases on one server, killed at random: nothing is lost, nothing doubled.

Whatever is killed starts again as the other release, so that every message may be met by both.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.result import AsyncResult
from rq import Queue
from rq.job import Job

from taskguard import open_store
from tests.celery.marks import needs_quick_redelivery
from tests.servers import RedisServer, require
from tests.servers.ports import HOST
from tests.upgrade.bodies import SETTINGS
from tests.upgrade.fleet import Body, Fleet, overlaps
from tests.upgrade.monitor import Monitor
from tests.upgrade.releases import RELEASES, Releases

QUEUE = "upgrade"
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")
SHORT: dict[str, Any] = {"kills": 5, "rounds": 8, "ticks": ("tick",)}
LONG: dict[str, Any] = {"kills": 40, "rounds": 60, "ticks": ("tick", "plain_tick")}
"""The run of a plain task that is killed counts for half a minute: too long to wait for in the short form."""
ALL = {"overlap": "allow_all", "catch_up": "all"}
"""Every slot runs, so that one that did not is one that was lost."""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with closing(require("redis-8")) as made:
        yield made


def database(server: RedisServer, number: int) -> str:
    return f"{server.url.rpartition('/')[0]}/{number}"


@contextmanager
def explained(fleet: Fleet, seed: int) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error}\nseed {seed}; the logs are in {fleet.directory}") from None


# -- what must be true of either queue -------------------------------------------------------------------------------


def check(fleet: Fleet) -> None:
    bodies = list(fleet.bodies().values())
    assert {body.first["release"] for body in bodies} == set(RELEASES)
    assert overlaps([body for body in bodies if body.first["slot"] is None]) == []
    assert twice(bodies) == []

    paid = Counter(key for key, _, _ in fleet.effects("pay"))
    assert paid == dict.fromkeys(fleet.calls("pay"), 1)
    for kind in ("append", "total"):  # every job runs
        called = {job for jobs in fleet.calls(kind).values() for job in jobs}
        assert Counter(job for _, job, _ in fleet.effects(kind)) == dict.fromkeys(called, 1), kind
    for kind in ("refresh", "returns_retry", "sync", "build"):
        assert {job: n for job, n in Counter(job for _, job, _ in fleet.effects(kind)).items() if n > 1} == {}, kind
        assert without_a_run(fleet, kind, bodies, begun=kind in ("sync", "build")) == [], kind
    assert fleet.tracebacks() == []


def twice(bodies: list[Body]) -> list[tuple[Body, Body]]:
    """Bodies of a job that had succeeded, in a process that lived to tell."""
    succeeded: dict[tuple[str, str], Body] = {}
    wrong = []
    for body in sorted(bodies, key=lambda body: body.first["at"]):
        job = body.first["kind"], body.first["job"]
        if job in succeeded:
            wrong.append((succeeded[job], body))
        if body.succeeded and not body.was_cut_off and body.first["effect"]:
            succeeded[job] = body
    return wrong


def without_a_run(fleet: Fleet, kind: str, bodies: list[Body], *, begun: bool) -> list[Any]:
    """Calls after which no body of their key came to its end, or (with *begun*) none that had begun after them.

    Not by their jobs: one whose worker was killed, and whose key has been given to a later call by the time that it
    comes back, ends with the outcome of that one.
    """
    latest: dict[str, float] = {}
    for body in bodies:
        if body.first["kind"] == kind and body.first["effect"] and body.succeeded:
            at = body.first["at"] if begun else body.end
            latest[body.first["key"]] = max(latest.get(body.first["key"], 0.0), at)
    return [call for call in fleet.ledger.lines("called", kind=kind) if latest.get(call["key"], 0.0) < call["since"]]


def live_entries(store_url: str) -> list[Any]:
    """What is queued or running, but for the name that the store itself has."""
    with closing(open_store(store_url)) as store:
        found = [entry for entry in store.scan() if entry.state in ("queued", "running") and entry.remaining > 0]
    return [entry for entry in found if entry.key != "taskguard:identity"]


def wait_until_settled(live: Callable[[], list[Any]], meanwhile: Callable[[], None]) -> None:
    give_up = time.monotonic() + 30
    while found := live():
        assert time.monotonic() < give_up, f"still live: {found}"
        meanwhile()
        time.sleep(0.1)


def slots(fleet: Fleet) -> dict[str, list[float]]:
    """Those that had their effect, by schedule."""
    found: dict[str, list[float]] = defaultdict(list)
    for kind in ("tick", "plain_tick"):
        for _, _, slot in fleet.effects(kind):
            assert slot is not None and slot not in found[kind], f"twice: {kind} {slot}"
            found[kind].append(slot)
    return {kind: sorted(of_kind) for kind, of_kind in found.items() if of_kind}


def gaps(fleet: Fleet, ticks: Sequence[str]) -> list[tuple[str, float]]:
    """Slots between the first and the last with no effect."""
    found = slots(fleet)
    assert found.keys() == set(ticks)
    each = {kind: range(round(found[kind][0]), round(found[kind][-1])) for kind in ticks}
    return [(kind, float(at)) for kind in ticks for at in each[kind] if at not in found[kind]]


# -- Celery ------------------------------------------------------------------------------------------------------------


def celery_settings(server: RedisServer, ticks: Sequence[str]) -> dict[str, Any]:
    return {
        "broker_url": database(server, 0),
        "result_backend": database(server, 1),
        "taskguard_store": database(server, 2),
        "task_default_queue": QUEUE,
        "worker_prefetch_multiplier": 1,
        "broker_connection_retry_on_startup": True,
        "taskguard_republish_after": 2,
        "beat_schedule": {name: {"task": name, "schedule": 1.0, "options": ALL} for name in ticks},
        "broker_transport_options": {
            "visibility_timeout": 6,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "unacked_mutex_expire": 2,  # else one that dies with it keeps all others from it for five minutes
        },
        # Celery reserves the callback of a chord for one worker. The older release does not wait for the end of that if
        # the worker dies: it must be over when the message comes again.
        "result_chord_join_timeout": 1,
        "task_publish_retry": False,
        "broker_connection_timeout": 1,
    }


def roll_celery(
    releases: Releases,
    server: RedisServer,
    directory: Path,
    seed: int,
    *,
    kills: int,
    rounds: int,
    ticks: Sequence[str],
) -> None:
    settings = celery_settings(server, ticks)
    project = ("celery", "-A", "tests.upgrade.celery_project")
    fleet = Fleet(releases, directory, {SETTINGS: json.dumps(settings)})
    with closing(Monitor(HOST, server.port, QUEUE)) as monitor, closing(fleet), explained(fleet, seed):
        for number, release in enumerate((*RELEASES, *RELEASES)):
            name = f"worker{number}"
            fleet.add(name, release, *project, "worker", "-n", f"{name}@upgrade", "-c", "2", "-l", "INFO", *QUIET)
        for release in RELEASES:
            files = ("-s", str(directory / f"beat-{release}"), "--pidfile", "")
            fleet.add(f"beat-{release}", release, *project, "beat", "-S", "taskguard", "-l", "INFO", *files)
        fleet.start_callers("tests.upgrade.celery_calls", str(seed), str(rounds), "0.2")
        fleet.harass(kills, seed, (0.3, 2.0), monitor.restore)
        fleet.wait_for_callers(120)

        app = Celery("test", broker=settings["broker_url"], backend=settings["result_backend"])
        has_ended = lambda job: AsyncResult(job, app=app).ready()  # noqa: E731
        wait_for_all(fleet, has_ended, monitor.restore, patience=30)
        results = {line["job"]: AsyncResult(line["job"], app=app) for line in fleet.ledger.lines("called")}
        assert {job: result.state for job, result in results.items() if not result.successful()} == {}
        assert {results[job].get() for jobs in fleet.calls("total").values() for job in jobs} <= {3}
        stop_ticking(fleet, "beat", monitor.restore, lambda: gaps(fleet, ticks))
        app.close()
        wait_until_settled(lambda: live_entries(settings["taskguard_store"]), monitor.restore)
        assert gaps(fleet, ticks) == []
        check(fleet)


def wait_for_all(
    fleet: Fleet, has_ended: Callable[[str], bool], meanwhile: Callable[[], None], *, patience: float
) -> None:
    """Until each job that a caller was given has ended; fails if none has for as long as *patience*."""
    open_jobs = {line["job"] for line in fleet.ledger.lines("called")}
    give_up = time.monotonic() + patience
    while open_jobs:
        meanwhile()
        still = {job for job in open_jobs if not has_ended(job)}
        if still < open_jobs:
            open_jobs, give_up = still, time.monotonic() + patience
        told = "\n".join(fleet.told(job) for job in sorted(open_jobs)[:3]) if time.monotonic() > give_up else ""
        assert not told, f"{len(open_jobs)} jobs have no outcome: {sorted(open_jobs)}\n{told}"
        time.sleep(0.1)


def stop_ticking(
    fleet: Fleet, kind: str, meanwhile: Callable[[], None], missing: Callable[[], list[tuple[str, float]]]
) -> None:
    """Every slot until now has run; then the schedulers end."""
    now = time.time()
    give_up = time.monotonic() + 60
    while min((found[-1] for found in slots(fleet).values()), default=0.0) < now or missing():
        assert time.monotonic() < give_up, f"the slots until {now} have not run: {missing()}"
        meanwhile()
        time.sleep(0.1)
    for member in [member for member in fleet.members if member.name.startswith(kind)]:
        member.kill()
        fleet.members.remove(member)


@needs_quick_redelivery
@pytest.mark.timeout(240)
def test_a_fleet_of_celery_changes_its_release_while_it_works(releases: Releases, server: RedisServer, tmp_path: Path):
    roll_celery(releases, server, tmp_path, seed=1, **SHORT)


@needs_quick_redelivery
@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_a_fleet_of_celery_changes_its_release_forty_times(
    releases: Releases, server: RedisServer, tmp_path: Path, seed: int
):
    roll_celery(releases, server, tmp_path, seed=seed, **LONG)


# -- RQ ----------------------------------------------------------------------------------------------------------------


def roll_rq(
    releases: Releases,
    server: RedisServer,
    directory: Path,
    seed: int,
    *,
    kills: int,
    rounds: int,
    ticks: Sequence[str],
) -> None:
    connection = redis.Redis.from_url(server.url)
    queue = Queue(QUEUE, connection=connection)
    fleet = Fleet(releases, directory, {"TASKGUARD_TEST_QUEUE": QUEUE, "TASKGUARD_TEST_TICKS": " ".join(ticks)})
    # Idle workers look every second for what was abandoned, and so they do if one has died while it looked.
    options = ("--worker-class", "tests.upgrade.rq_project.HastyWorker", "--maintenance-interval", "1")

    def let_look() -> None:
        connection.delete(queue.registry_cleaning_key)

    with closing(connection), closing(fleet), explained(fleet, seed):
        for number, release in enumerate((*RELEASES, *RELEASES)):
            line = ("rq.cli", "worker", "-u", server.url, *options, "--worker-ttl", "16", QUEUE)
            fleet.add(f"worker{number}", release, *line)
        for release in RELEASES:
            line = (
                "taskguard.cli",
                "rq-cron",
                "-u",
                server.url,
                "--republish-after",
                "2",
                "tests.upgrade.rq_timetable",
            )
            fleet.add(f"cron-{release}", release, *line)
        fleet.start_callers("tests.upgrade.rq_calls", str(seed), str(rounds), "0.2", server.url, QUEUE)
        fleet.harass(kills, seed, (0.3, 2.0), let_look)
        fleet.wait_for_callers(120)

        def status(job: str) -> str:
            return str(Job.fetch(job, connection).get_status().value)

        wait_for_all(fleet, lambda job: status(job) in ("finished", "failed"), let_look, patience=30)
        states = {line["job"]: status(line["job"]) for line in fleet.ledger.lines("called")}
        assert {job: state for job, state in states.items() if state != "finished"} == {}
        stop_ticking(fleet, "cron", let_look, lambda: lost_slots(fleet, ticks, connection))

        def live() -> list[Any]:
            # A worker that is killed before it claims leaves the job to RQ, which tells nobody that it has failed it.
            found = live_entries(server.url)
            return [entry for entry in found if entry.state == "running" or entry.owner not in abandoned(connection)]

        wait_until_settled(live, let_look)
        assert lost_slots(fleet, ticks, connection) == []
        check(fleet)


def lost_slots(fleet: Fleet, ticks: Sequence[str], connection: redis.Redis) -> list[tuple[str, float]]:
    """Slots with no effect, but for those whose worker was killed: RQ retries no scheduled job."""
    missing = gaps(fleet, ticks)
    ended = set(abandoned(connection).values()) if missing else set()
    return [(kind, at) for kind, at in missing if (f"tests.upgrade.rq_project.{kind}", at) not in ended]


def abandoned(connection: redis.Redis) -> dict[str, tuple[str, float]]:
    """The scheduled jobs that RQ has failed, as their workers were killed: schedule and slot by id."""
    found = {}
    for key in connection.scan_iter("rq:job:*", _type="hash"):
        status, note = connection.hmget(key, "status", "taskguard")
        if status == b"failed" and (slot := json.loads(note or b"{}").get("slot")):
            found[key.decode().removeprefix("rq:job:")] = slot["schedule"], slot["at"]
    return found


@pytest.mark.timeout(240)
def test_a_fleet_of_rq_changes_its_release_while_it_works(releases: Releases, server: RedisServer, tmp_path: Path):
    roll_rq(releases, server, tmp_path, seed=1, **SHORT)


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_a_fleet_of_rq_changes_its_release_forty_times(
    releases: Releases, server: RedisServer, tmp_path: Path, seed: int
):
    roll_rq(releases, server, tmp_path, seed=seed, **LONG)
