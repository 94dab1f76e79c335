"""What a call was called with is in the history if that was asked for, and nowhere else."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import redis
from celery import Celery
from rq import SimpleWorker

from taskguard import ConfigurationError, open_store
from taskguard.celery import singleton_task
from taskguard.history import decisions
from taskguard.keys.maker import KeyMaker
from taskguard.keys.signatures import signature_of
from taskguard.rq import GuardedQueue
from taskguard.rq import singleton_task as rq_singleton_task


@pytest.mark.parametrize("history", [True, "arguments"])
def test_arguments_are_in_it_if_they_were_asked_for(history: Any, caplog: pytest.LogCaptureFixture):
    app = Celery("values", broker="memory://", set_as_current=False)
    app.conf.update(taskguard_store=open_store("memory://"), taskguard_history=history)

    @singleton_task(app, shared=False, name="pay", key="order")
    def pay(order: int, card: str, more: Any = None) -> None: ...

    with caplog.at_level(logging.DEBUG, "taskguard"):
        pay.delay(1, "4111-1111")
        pay.delay(1, card="x" * 1000)
        pay.apply((2, "4222"))
    guard = pay.taskguard.app_guard.calls
    guard.recorder.flush()

    past = decisions(guard.store)
    told = [decision.event.arguments for decision in past if decision.event.kind in ("claimed", "duplicate")]
    if history is True:
        assert told == [""] * 3
    else:
        assert [told[0], told[2]] == ["order=1, card='4111-1111', more=None", "order=2, card='4222', more=None"]
        assert len(told[1]) < 100
    assert "4111" not in caplog.text


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("not me")


def test_arguments_that_cannot_be_shown_break_no_call():
    keys = KeyMaker("space", signature_of(lambda a, b: None), by="a")

    assert keys.shown((1, Unshowable()), {}).startswith("a=1, b=<Unshowable instance")
    assert len(keys.shown(("x" * 10_000, ["y" * 10_000] * 10_000), {})) <= 300
    assert keys.shown((1, 2, 3), {}) == ""


@rq_singleton_task(key="order", history="arguments", namespace="values")
def ship(order: str, carrier: str = "post") -> None: ...


def test_arguments_of_an_rq_function_are_in_it_if_they_were_asked_for(redis_server: Any):
    with redis.Redis.from_url(redis_server.url) as connection:
        queue = GuardedQueue("values", connection=connection)
        queue.enqueue(ship, "order-9")
        SimpleWorker([queue], connection=connection).work(burst=True, logging_level="ERROR")
        guard = ship.taskguard.guard(connection, queue.serializer)
        guard.recorder.flush()
        told = [decision.event for decision in decisions(open_store(redis_server.url, namespace="values"))]

    shown = "order='order-9', carrier='post'"
    assert [(event.kind, event.arguments) for event in told] == [
        ("claimed", shown),
        ("claimed", shown),
        ("completed", ""),
    ]


def test_what_cannot_be_asked_for_is_an_error():
    app = Celery("values", broker="memory://", set_as_current=False)
    app.conf.update(taskguard_store="memory://", taskguard_history="everything")

    @singleton_task(app, shared=False, name="pay")
    def pay() -> None: ...

    with pytest.raises(ConfigurationError, match="taskguard_history must be"):
        pay.delay()
