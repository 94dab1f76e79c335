"""The job of a slot at its worker, where Celery has its own words and settings for how it ends."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
from celery.exceptions import Ignore

from taskguard import StoreUnavailableError
from taskguard.celery import install
from taskguard.celery.delivery import Deferred
from taskguard.celery.guarding import app_guard_of
from taskguard.celery.scheduled import make_aware
from taskguard.protocol.store import Lease
from taskguard.schedule.entry import Slot
from taskguard.schedule.running import claim_of
from tests.schedule.bench import every

from .inprocess import deliver, guarded, ids, make_app, sent, store_of

AT = 1_794_873_600_000_000


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


# -- the store is away -----------------------------------------------------------------------------------------------


def away(*args: Any, **options: Any) -> Any:
    raise StoreUnavailableError("the store", "gone")


@pytest.mark.parametrize("chosen", ["fail", "run_unguarded"])
def test_a_slot_whose_skipping_the_store_cannot_hear_of_is_put_back_whatever_was_chosen(chosen, monkeypatch):
    task = make_plain(lambda: None, taskguard_on_store_error=chosen)
    entry = every(3600, overlap="skip")
    store = app_guard_of(task.app).guard.store
    queued = replace(claim_of(entry.slot(AT).note(), "another", 60), state="queued")
    assert isinstance(store.claim(queued), Lease)
    slot = entry.slot(AT + 3_600_000_000)
    monkeypatch.setattr(store, "release", away)
    assert deliver_slot(task, slot).info.state == "IGNORED"
    assert ids(sent(task.app)) == [slot.job_id] and not task.app.ran
