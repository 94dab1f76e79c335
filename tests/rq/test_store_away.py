"""The store goes away between two questions of one run: nothing runs beside itself, and no running job has failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from rq import Queue

from taskguard import StoreUnavailableError
from taskguard.rq import GuardedSimpleWorker, delivery
from taskguard.rq.guarding import Settings
from taskguard.rq.owner import owner_of
from tests.rq import jobs
from tests.rq.scene import Scene
from tests.waiting import wait_until

NAMES = ["job_", "more", "while_running"]


class Flaky:
    """A store that answers so often, and then no more."""

    def __init__(self, guarded: Any, guard: Any) -> None:
        self.guard = guard
        self.key = guarded.key
        self._store = guard.store
        self._left: dict[str, int] = {}
        self.guarantees = guard.store.guarantees
        self.wire = guard.store.wire
        self.eviction = guard.store.eviction

    def goes_away_after(self, times: int, *verbs: str) -> None:
        self._left = dict.fromkeys(verbs, times)
        self.guard.store = self.guard.heartbeat._store = self
        self.guard.patience = 0.0

    def comes_back(self) -> None:
        self.guard.store = self.guard.heartbeat._store = self._store

    def __getattr__(self, verb: str) -> Any:
        def ask(*args: Any, **options: Any) -> Any:
            if verb in self._left:
                self._left[verb] -= 1
                if self._left[verb] < 0:
                    raise StoreUnavailableError("the store", "gone")
            return getattr(self._store, verb)(*args, **options)

        return ask


@pytest.fixture
def flaky(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The store of a job that this process runs itself, with an `on_store_error` of the test's choice."""
    made = []

    def make(name: str, chosen: str) -> Flaky:
        guarded = getattr(jobs, name).taskguard
        monkeypatch.setitem(vars(guarded), "settings", Settings(on_store_error=chosen))
        guard = guarded.guard(scene.connection, scene.queue.serializer)
        made.append((guard, guard.store, guard.patience))
        return Flaky(guarded, guard)

    yield make
    for guard, store, patience in reversed(made):
        guard.store = guard.heartbeat._store = store
        guard.patience = patience


def work_once(scene: Scene) -> None:
    GuardedSimpleWorker([scene.queue], connection=scene.connection).work(burst=True, max_jobs=1)


@pytest.mark.parametrize("chosen", ["retry", "fail", "run_unguarded"])
def test_while_a_copy_of_a_running_job_waits(scene: Scene, flaky: Any, chosen: str):
    store = flaky("job_", chosen)
    job = Queue(scene.queue.name, connection=scene.connection).enqueue(jobs.job_, scene.key)
    policy = jobs.job_.taskguard.policy
    store.guard.ask(store.guard.new_claim(store.key(scene.key), owner_of(job.id, None), policy))  # it runs elsewhere
    store.goes_away_after(1, "claim")
    work_once(scene)

    assert scene.status(job) == "queued" and scene.queue.job_ids == [job.id] and scene.runs == 0


@pytest.mark.parametrize("chosen", ["retry", "fail", "run_unguarded"])
def test_while_a_job_waits_for_its_twin(scene: Scene, flaky: Any, chosen: str):
    store = flaky("while_running", chosen)
    job = scene.call("while_running")
    policy = jobs.while_running.taskguard.policy
    store.guard.ask(store.guard.new_claim(store.key(scene.key), "rq:another", policy))
    store.goes_away_after(1, "claim")
    work_once(scene)

    assert scene.status(job) == "queued" and scene.queue.job_ids == [job.id] and scene.runs == 0


@pytest.mark.parametrize("chosen", ["retry", "fail", "run_unguarded"])
def test_when_the_one_more_run_looks_for_its_place(scene: Scene, flaky: Any, chosen: str):
    store = flaky("more", chosen)
    policy = jobs.more.taskguard.policy
    _, lease = store.guard.ask(store.guard.new_claim(store.key(scene.key), "of another queue", policy))
    job = scene.call("more")
    assert scene.note(job).queue_entry.endswith(":next")
    store.guard.store.forget(lease.key)
    store.goes_away_after(0, "get")
    work_once(scene)

    assert scene.status(job) == "queued" and scene.queue.job_ids == [job.id] and scene.runs == 0
    store.comes_back()
    work_once(scene)
    assert scene.status(job) == "finished" and scene.runs == 1


def test_the_next_delivery_knows_of_the_outage_and_gives_the_holder_time_to_renew(
    scene: Scene, flaky: Any, monkeypatch: pytest.MonkeyPatch
):
    store = flaky("job_", "retry")
    job = Queue(scene.queue.name, connection=scene.connection).enqueue(jobs.job_, scene.key)
    policy, guard = jobs.job_.taskguard.policy, store.guard
    _, lease = guard.ask(guard.new_claim(store.key(scene.key), owner_of(job.id, None), policy, lease=0.01))
    wait_until(lambda: guard.store.get(lease.key).remaining <= 0)
    store.goes_away_after(0, "claim")
    work_once(scene)
    assert scene.note(job).after_outage

    store.comes_back()
    guard._last_failure = float("-inf")  # it is another worker, which noticed nothing itself
    look = guard.store.get
    monkeypatch.setattr(guard.store, "get", lambda key: look(key) and (guard.store.renew([(lease, 30)]), look(key))[1])
    work_once(scene)
    assert scene.status(job) == "queued" and scene.runs == 0
    assert not scene.note(job).after_outage


def test_at_the_first_question_each_choice_is_obeyed(scene: Scene, flaky: Any):
    for chosen, status in (("retry", "queued"), ("fail", "failed"), ("run_unguarded", "finished")):
        store = flaky("job_", chosen)
        job = Queue(scene.queue.name, connection=scene.connection).enqueue(jobs.job_, scene.key)
        store.goes_away_after(0, "claim")
        work_once(scene)
        store.comes_back()

        assert scene.status(job) == status
        scene.queue.empty()
    [begun] = scene.begun()
    # A fence of its own, and its effects are those of the job.
    assert begun["fenced"].startswith(job.id) and begun["token"]


def test_when_a_lease_is_lost_and_nobody_can_be_asked_the_job_is_put_back(scene: Scene, flaky: Any):
    """Its validity is over, the store is silent, and its body wants to be told of that."""
    store = flaky("unsure", "retry")
    job = scene.call("unsure", gate="gate", value="second", job_timeout=10)
    store.goes_away_after(0, "renew", "requeue", "release", "get")
    work_once(scene)

    assert scene.status(job) == "queued" and scene.queue.job_ids == [job.id]
    store.comes_back()
    scene.open()
    scene.burst()
    assert scene.result(job) == "second"


@pytest.mark.parametrize("then", ["return", "fail", "return Retry once"])
@pytest.mark.parametrize("chosen", ["retry", "fail", "run_unguarded"])
def test_an_end_that_the_store_cannot_hear_of(
    scene: Scene, flaky: Any, monkeypatch: pytest.MonkeyPatch, chosen: str, then: str
):
    store = flaky("quickly_held", chosen)
    job = scene.call("quickly_held", then=then)
    store.goes_away_after(0, "complete", "release", "requeue", "renew")
    monkeypatch.setattr(delivery, "UNTIL_REDIS_IS_BACK", 0.0)
    work_once(scene)
    ends = {"return": "finished", "fail": "failed", "return Retry once": "queued"}

    assert scene.status(job) == {"retry": "queued", "fail": "failed", "run_unguarded": ends[then]}[chosen]
    assert scene.runs == 1


class CutOff(redis.Redis):
    """The queue's own Redis, over a line that is cut when one job is looked up."""

    cut_at = ""

    def hgetall(self, name: Any) -> Any:
        if self.cut_at == name:
            raise redis.ConnectionError("cut")
        return super().hgetall(name)


def test_when_rq_is_asked_about_the_twin_in_the_queue(scene: Scene):
    twin = scene.call()
    job = Queue(scene.queue.name, connection=scene.connection).enqueue(jobs.job_, scene.key, at_front=True)
    with CutOff.from_url(scene.url) as connection:
        connection.cut_at = twin.key
        GuardedSimpleWorker([scene.queue.name], connection=connection).work(burst=True, max_jobs=1)

    assert scene.status(job) == "queued" and scene.queue.job_ids == [twin.id, job.id] and scene.runs == 0
