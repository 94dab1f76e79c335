"""The store goes away in the middle of a delivery: the job waits, and nobody is told that it has failed."""

from __future__ import annotations

import pytest

from taskguard.celery import install, settings
from taskguard.celery.guarding import guarding_of
from taskguard.celery.scheduled import make_aware
from taskguard.schedule import claim_of
from taskguard.stores.memory import MemoryStore
from tests.schedule.bench import every
from tests.waiting import wait_until

from .inprocess import deliver, goes_away_after, guarded, ids, make_app, ours_of, sent, store_of


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("chosen", ["retry", "fail", "run_unguarded"])
def test_while_a_copy_of_a_running_job_is_put_back(times, chosen):
    app = make_app(taskguard_on_store_error=chosen)

    @guarded(app)
    def add(a):
        return a

    task = app.tasks[add.name]
    guard = task.taskguard.guarding.guard
    guard.patience = 0.0
    guard.ask(guard.new_claim(task.taskguard.key(1), "job", task.taskguard.policy))  # it runs elsewhere
    goes_away_after(store_of(app), "claim", times)
    answer = deliver(task, "job", 1)
    assert answer.info.state == "IGNORED"
    assert set(ids(sent(app))) == {"job"}
    assert app.AsyncResult("job").status == "PENDING"


def test_when_the_one_more_run_looks_for_its_place():
    app = make_app()

    @guarded(app, on_conflict="run_once_more")
    def add(a):
        return a

    task = app.tasks[add.name]
    guard = task.taskguard.guarding.guard
    guard.patience = 0.0
    goes_away_after(store_of(app), "get", 0)
    key = task.taskguard.key(1)
    answer = deliver(task, "job", 1, id="job", key=key, place=f"{key}:next")
    assert answer.info.state == "IGNORED"
    assert ids(sent(app)) == ["job"]
    assert app.AsyncResult("job").status == "PENDING"


def test_the_next_delivery_of_a_plain_scheduled_task_knows_of_the_outage_and_gives_the_holder_time_to_renew(
    monkeypatch,
):
    app, slot, runs = make_app(), every(3600).slot(1_794_873_600_000_000), []
    install(app)

    @app.task(name="plain", shared=False, acks_late=True)
    def plain():
        runs.append(1)

    task = app.tasks["plain"]
    make_aware(task)
    guard = guarding_of(app).guard
    guard.patience = 0.0
    lease = guard.store.claim(claim_of(slot.note(), slot.job_id, 0.01))
    wait_until(lambda: guard.store.get(lease.key).remaining <= 0)
    with monkeypatch.context() as patch:
        patch.setattr(guard, "store", MemoryStore())
        goes_away_after(guard.store, "claim", 0)
        deliver(task, slot.job_id, id=slot.job_id, slot=slot.note().as_dict())
    [put_back] = sent(app)
    assert put_back.headers["taskguard_after_outage"] is True

    guard._last_failure = float("-inf")  # it is another worker, which noticed nothing itself
    look = guard.store.get
    monkeypatch.setattr(guard.store, "get", lambda key: look(key) and (guard.store.renew([(lease, 30)]), look(key))[1])
    assert deliver(task, slot.job_id, **ours_of(put_back)).info.state == "IGNORED"
    assert not runs


@pytest.mark.parametrize("then", ["return", "fail", "retry"])
@pytest.mark.parametrize("chosen", ["retry", "fail", "run_unguarded"])
def test_an_end_that_the_store_cannot_hear_of(monkeypatch, chosen, then):
    monkeypatch.setattr(settings, "UNTIL_THE_STORE_IS_BACK", 0.0)
    app, ran = make_app(taskguard_on_store_error=chosen), []

    @guarded(app, bind=True, lease=0.1)
    def work(self, a):
        ran.append(a)
        if then == "retry":
            raise self.retry(countdown=0)
        return 1 // (then == "return")

    task = app.tasks[work.name]
    task.taskguard.guarding.guard.patience = 0.0
    for verb in ("complete", "release", "requeue"):
        goes_away_after(store_of(app), verb, 0)
    answer = deliver(task, f"untold {chosen} {then}", 1)
    ends = {"return": None, "fail": "FAILURE", "retry": "RETRY"}
    state = None if answer.info is None else answer.info.state
    assert state == {"retry": "IGNORED", "fail": "FAILURE", "run_unguarded": ends[then]}[chosen]
    assert len(sent(app)) == (chosen == "retry" or (then, chosen) == ("retry", "run_unguarded"))
    assert ran == [1]
