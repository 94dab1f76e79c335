"""What the worker's parent process adds to a request, and what it does when the store is away just then."""

from __future__ import annotations

import json
import time
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery import Celery
from celery.exceptions import TaskRevokedError
from celery.worker.request import Request

from taskguard.celery import install, settling, singleton_task
from taskguard.celery.guarding import app_guard_of
from taskguard.celery.headers import ATTEMPT, with_envelope
from taskguard.celery.parent_timer import ParentTimer
from taskguard.celery.scheduled import make_aware
from taskguard.engine.envelope import Envelope
from taskguard.errors import StoreUnavailableError
from taskguard.protocol.store import Lease, Store
from taskguard.schedule.running import claim_of
from taskguard.stores.memory import MemoryStore
from tests.schedule.bench import every
from tests.servers import Proxy, require
from tests.waiting import wait_until

SLOT = every(3600).slot(1_794_873_600_000_000)


class AwayOnce:
    """A store that does not answer the first time that something is to end."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.was_away = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def release(self, *args: Any, **options: Any) -> bool:
        if not self.was_away:
            self.was_away = True
            raise StoreUnavailableError("the store", "a connection was reset")
        return self._store.release(*args, **options)


def make_app(store: Any) -> Celery:
    app = Celery("settling", broker="memory://", set_as_current=False)
    app.conf.task_acks_late = app.conf.task_ignore_result = True
    return install(app, store=store)


def request_of(task: Any, **headers: Any) -> Any:
    message = SimpleNamespace(
        headers={"id": SLOT.job_id, "task": task.name, "lang": "py", **headers},
        payload=((), {}, {}),
        body=json.dumps([[], {}, {}]).encode(),
        content_type="application/json",
        content_encoding="utf-8",
        delivery_info={},
        properties={"reply_to": "", "correlation_id": SLOT.job_id},
        ack_log_error=lambda *_: None,
        reject_log_error=lambda *_: None,
    )
    nothing = lambda *_: None  # noqa: E731
    return task.Request(message, app=task.app, task=task, on_ack=nothing, on_reject=nothing)


def body() -> None: ...


def plain(app: Celery, base: type = Request) -> Any:
    app.task(name="settled", shared=False, Request=base)(body)
    task = app.tasks["settled"]
    make_aware(task)
    return task


def test_what_celery_has_given_up_is_settled_as_soon_as_the_store_is_back(monkeypatch: pytest.MonkeyPatch):
    """Else its run would be taken for one whose worker died, and come again."""
    monkeypatch.setattr(settling, "LEAVE_ALONE", 0.05)
    store = AwayOnce(MemoryStore())
    task = plain(make_app(store))
    request = request_of(task, **with_envelope({}, Envelope(id=SLOT.job_id, slot=SLOT.note().as_dict())))
    claim = claim_of(SLOT.note(), SLOT.job_id, 30, request._request_dict[ATTEMPT], kept=True)
    assert isinstance(store.claim(claim), Lease)
    try:
        raise WorkerLostError("killed")
    except WorkerLostError:
        request.on_failure(ExceptionInfo())

    assert request.acknowledged and store.was_away
    wait_until(lambda: store.get(SLOT.run_key).state == "free")
    assert store.get(SLOT.run_key).how == "failed"


def test_a_store_that_was_away_just_before_the_worker_ends_is_asked_once_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settling, "parent_timer", ParentTimer())
    store = AwayOnce(MemoryStore())
    request = request_of(
        plain(make_app(store)), **with_envelope({}, Envelope(id=SLOT.job_id, slot=SLOT.note().as_dict()))
    )
    claim = claim_of(SLOT.note(), SLOT.job_id, 30, request._request_dict[ATTEMPT], kept=True)
    assert isinstance(store.claim(claim), Lease)
    request._taskguard.settle("failed")
    assert store.get(SLOT.run_key).state == "running"
    settling.parent_timer.finish()

    assert store.get(SLOT.run_key).how == "failed"


def test_what_is_left_when_the_worker_has_stopped_is_settled_then():
    timer, done = ParentTimer(), []
    timer.call(3600, lambda: done.append("first"))
    timer.call(3600, lambda: timer.call(3600, lambda: done.append("again")))  # its time is over too
    timer.finish()

    assert done == ["first"]


class KeepsHeaders(Request):
    def __init__(self, message: Any, *args: Any, **kwargs: Any) -> None:
        self._headers = self._note = self._attempt = self._settle = dict(message.headers)
        super().__init__(message, *args, **kwargs)


class Drops(Request):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reject(requeue=False)


@pytest.mark.parametrize("base", [Request, KeepsHeaders, Drops])
@pytest.mark.parametrize("headers", [{}, {"headers": "odd"}, {"headers": ["odd"]}, {"taskguard_slot": 5}])
def test_the_request_of_any_other_job_is_as_it_was(base: type, headers: dict[str, Any]):
    request = request_of(plain(make_app(MemoryStore()), base), **headers)

    assert request._taskguard is None
    assert ATTEMPT not in request._request_dict
    if base is KeepsHeaders:
        assert request._headers["id"] == SLOT.job_id


@pytest.mark.parametrize("base", [KeepsHeaders, Drops])
def test_a_guarded_task_may_have_a_request_class_of_its_own(base: type):
    app = make_app(MemoryStore())
    task = singleton_task(app, name="guarded", Request=base)(body)
    request = request_of(app.tasks[task.name])

    assert request._request_dict[ATTEMPT] == request._taskguard.attempt


def test_how_a_slot_ended_is_remembered_for_longer_than_its_message_can_come_back():
    app = make_app(MemoryStore())
    app.conf.broker_url = "redis://localhost"
    app.conf.broker_transport_options = {"visibility_timeout": 12 * 3600}

    assert app_guard_of(app).keep_of(every(1).slot(SLOT.at).note()) == 24 * 3600


def test_a_silent_store_does_not_stop_the_parent(make_scene):
    with closing(require("redis-8")) as store, Proxy(store.port) as proxy:
        scene = make_scene(conf={"taskguard_store": proxy.url(store.url)})
        for number in range(6):
            scene.call(key=f"{scene.key}-{number}", expires=0.5)
        time.sleep(1)
        proxy.blackhole()
        scene.fleet.start_worker()
        scene.fleet.tasks.work.delay(scene.key)
        scene.begun()  # long before the parent would have asked in vain for each of them


def test_an_expired_job_whose_key_cannot_be_made_does_not_stop_the_parent(make_scene):
    scene = make_scene()
    # As from a publisher without the code: the worker's parent is the first to look for its key.
    expired = scene.fleet.app._taskguard.send("keyless", (scene.key,), expires=0.1)
    time.sleep(0.2)
    worker = scene.fleet.start_worker()
    assert scene.call(value=1).get(timeout=20) == 1
    with pytest.raises(TaskRevokedError):
        expired.get(timeout=20)
    assert "Connection to broker lost" not in worker.log()
