"""The job of a slot at its worker: what its schedule says of it, and how its slot ends."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
from celery.exceptions import Ignore

from taskguard import LeaseLostError, StaleFenceError, StoreUnavailableError, current_fence
from taskguard.celery import install
from taskguard.celery.delivery import Deferred
from taskguard.celery.guarding import guarding_of
from taskguard.celery.scheduled import make_aware
from taskguard.protocol.store import Lease
from taskguard.schedule.entry import Slot
from taskguard.schedule.running import claim_of
from tests.schedule.bench import every

from .inprocess import deliver, guarded, ids, make_app, ours_of, sent, store_of

AT = 1_794_873_600_000_000
BECOMES = {"skip": "skipped", "buffer_one": "waits", "buffer_all": "waits", "allow_all": "runs"}
ENDS = {"skipped": ("free", "skipped"), "waits": ("queued", None), "runs": ("done", "succeeded")}


def make_task(body: Any = None, **options: Any) -> Any:
    app = make_app()
    app.ran = []

    @guarded(app, **options)
    def add(a=1):
        app.ran.append(a)
        return a if body is None else body()

    return app.tasks[add.name]


def make_plain(body: Any, **conf: Any) -> Any:
    app = make_app(**conf)
    app.ran = []
    install(app)

    @app.task(name="plain", shared=False, acks_late=True)
    def plain(a=1):
        app.ran.append(a)
        return body()

    make_aware(app.tasks["plain"])
    return app.tasks["plain"]


def deliver_slot(task: Any, slot: Slot) -> Any:
    return deliver(task, slot.job_id, 1, id=slot.job_id, slot=slot.note().as_dict())


def run_twin(task: Any) -> Any:
    guard = task.taskguard.guarding.guard
    return guard.ask(guard.new_claim(task.taskguard.key(1), "twin", task.taskguard.policy))[1]


# -- another job has the key -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_conflict", ["skip", "raise", "wait"])
@pytest.mark.parametrize(
    ("overlap", "becomes"),
    [("skip", "skipped"), ("buffer_one", "waits"), ("buffer_all", "waits"), ("allow_all", "runs")],
)
def test_overlap_wins_over_on_conflict(on_conflict, overlap, becomes):
    task = make_task(on_conflict=on_conflict)
    run_twin(task)
    slot = every(3600, overlap=overlap).slot(AT)
    answer = deliver_slot(task, slot)
    run = store_of(task.app).get(slot.run_key)
    assert (ids(sent(task.app)) == [slot.job_id]) is (becomes == "waits")
    assert task.app.ran == ([1] if becomes == "runs" else [])
    assert answer.info is None if becomes == "runs" else answer.info.state == "IGNORED"
    assert (run.state, run.how) == ENDS[becomes]


# -- how its body ends -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [make_task, make_plain])
@pytest.mark.parametrize("words", ["nothing to do", "put back into stock", "put back: later"])
def test_what_a_body_says_when_it_ends_does_not_decide_whether_it_comes_again(make, words):
    def ignore() -> None:
        raise Ignore(words)

    task, slot = make(ignore), every(3600).slot(AT)
    assert deliver_slot(task, slot).info.state == "IGNORED"
    run = store_of(task.app).get(slot.run_key)
    assert (run.state, run.how) == ("free", "ignored")


def test_a_job_that_is_deferred_is_known_in_the_process_around_it():
    """What a child of the pool raises is pickled."""
    again = pickle.loads(pickle.dumps(Deferred("deferred: why")))
    assert type(again) is Deferred and str(again) == "deferred: why"


@pytest.mark.parametrize("make", [make_task, make_plain])
def test_a_scheduled_job_whose_token_is_refused_gets_a_higher_one(make):
    """The store has lost its data, say, and the resource has not."""
    mark, tokens = 2**52, []

    def write() -> None:
        fence = current_fence()
        assert fence is not None
        tokens.append((fence.token > mark, fence.starts))
        if fence.token <= mark:
            raise StaleFenceError(fence.key, fence.token, "row 1", mark)

    task, slot = make(write), every(3600).slot(AT)
    assert deliver_slot(task, slot).info.state == "IGNORED"
    assert store_of(task.app).get(slot.run_key).state == "queued"
    [message] = sent(task.app)
    assert deliver(task, slot.job_id, 1, **ours_of(message)).info is None
    assert tokens == [(False, 1), (True, 1)]
    assert store_of(task.app).get(slot.run_key).how == "succeeded"


def test_a_plain_scheduled_job_that_lost_its_lease_waits_in_the_queue():
    """Nobody has taken its slot: it is not taken for dead until its lease is over, and that was one of its starts."""
    starts = []

    def lose() -> None:
        fence = current_fence()
        assert fence is not None
        starts.append(fence.starts)
        if len(starts) == 1:
            raise LeaseLostError(fence.key, fence.token)

    task, slot = make_plain(lose), every(3600).slot(AT)
    assert deliver_slot(task, slot).info.state == "IGNORED"
    assert store_of(task.app).get(slot.run_key).state == "queued"
    [message] = sent(task.app)
    assert deliver(task, slot.job_id, 1, **ours_of(message)).info is None
    assert starts == [1, 2]


# -- the store is away -----------------------------------------------------------------------------------------------


def away(*args: Any, **options: Any) -> Any:
    raise StoreUnavailableError("the store", "gone")


@pytest.mark.parametrize("make", [make_task, make_plain])
def test_the_next_delivery_of_a_scheduled_job_knows_of_the_outage(make, monkeypatch):
    task, slot = make(lambda: None), every(3600).slot(AT)
    guard = guarding_of(task.app).guard
    guard.patience = 0.0
    with monkeypatch.context() as patch:
        patch.setattr(guard.store, "claim", away)
        deliver_slot(task, slot)
    [message] = sent(task.app)
    assert message.headers["taskguard_after_outage"] is True
    asked = []
    ask = guard.ask
    monkeypatch.setattr(guard, "ask", lambda *a, **o: asked.append(o["after_outage"]) or ask(*a, **o))
    deliver(task, slot.job_id, 1, **ours_of(message))
    assert task.app.ran == [1] and set(asked) == {True}


@pytest.mark.parametrize("chosen", ["retry", "fail", "run_unguarded"])
def test_the_store_goes_away_before_it_hears_that_a_slot_is_skipped(chosen, monkeypatch):
    task = make_plain(lambda: None, taskguard_on_store_error=chosen)
    entry = every(3600, overlap="skip")
    store = guarding_of(task.app).guard.store
    queued = replace(claim_of(entry.slot(AT).note(), "another", 60), state="queued")
    assert isinstance(store.claim(queued), Lease)
    slot = entry.slot(AT + 3_600_000_000)
    monkeypatch.setattr(store, "release", away)
    assert deliver_slot(task, slot).info.state == "IGNORED"
    assert ids(sent(task.app)) == [slot.job_id] and not task.app.ran
