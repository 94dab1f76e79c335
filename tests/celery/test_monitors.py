"""What a monitor of Celery's events shows of a duplicate: the task's name, as for any other task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from celery.events.state import State

from tests.waiting import wait_until

from .inprocess import guarded, make_app
from .test_events import watching


@pytest.fixture
def app(redis_server: Any) -> Iterator[Celery]:
    """Events need a broker that can fan out."""
    app = make_app(broker_url=redis_server.url, task_send_sent_event=True)
    yield app
    app.close()


@pytest.fixture
def shown(app: Celery) -> Iterator[Callable[[], list[tuple[Any, str]]]]:
    """The rows of a monitor: name and state of each task that it has heard of."""
    state = State()
    with watching(app, "*") as seen:

        def rows() -> list[tuple[Any, str]]:
            while seen:
                state.event(seen.pop(0))
            return [(task.name, task.state) for _, task in state.tasks_by_time() if task.state == "DUPLICATE"]

        yield rows


def test_a_duplicate_call_has_the_tasks_name(app: Celery, shown: Callable[[], list[Any]]):
    charge = guarded(app, name="shop.charge", key_space="money")(lambda_named("charge"))
    charge.delay(1), charge.delay(1)

    wait_until(shown)
    assert shown() == [("shop.charge", "DUPLICATE")]


def test_a_call_from_another_tasks_body_has_its_own_name(app: Celery, shown: Callable[[], list[Any]]):
    charge = guarded(app, name="shop.charge")(lambda_named("charge"))
    charge.delay(1)

    @app.task(name="shop.close", shared=False)
    def close() -> None:
        charge.delay(1)

    close.apply()
    wait_until(shown)
    assert shown() == [("shop.charge", "DUPLICATE")]


def lambda_named(name: str) -> Any:
    def body(order: int) -> int:
        return order

    body.__name__ = name
    return body
