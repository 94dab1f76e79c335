"""A direct call of a guarded task is only a call; a body that wants a fence has a stand-in, which guards nothing."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from celery import Task

from taskguard import Fence, StaleFenceError, current_fence
from taskguard.celery import singleton_task
from taskguard.fencing.tables import create_tables
from taskguard.testing import unguarded

from .inprocess import guarded, live, make_app


class Charge(Task):
    name = "charge"

    def run(self, order: int, cents: int, fence: Fence) -> Any:
        return fence


def plain(order: int, cents: int, fence: Fence) -> Any:
    return fence


def bound(self: Any, order: int, cents: int, fence: Fence) -> Any:
    assert isinstance(self, Task)
    return fence


def with_default(order: int, cents: int, fence: Fence = None) -> Any:  # type: ignore[assignment]
    return fence


def only_named(order: int, cents: int, fence: Any) -> Any:
    return fence


@pytest.fixture(params=[plain, bound, with_default, only_named, Charge], ids=lambda body: body.__name__)
def charge(request: pytest.FixtureRequest) -> Any:
    options = {"bind": True} if request.param is bound else {}
    return guarded(make_app(), key="order", **options)(request.param)


@pytest.mark.parametrize("how", ["call", "run"])
def test_a_body_that_wants_a_fence_has_a_stand_in(charge: Any, how: str):
    fence = charge(1, 500) if how == "call" else charge.run(1, cents=500)

    fence.check()
    assert fence.unguarded and "unguarded" in repr(fence)
    assert fence.key == charge.taskguard.key(1)
    assert not fence.lost and not fence.unsure and fence.remaining > 0 and fence.starts == 1
    assert live(charge.app) == []
    assert current_fence() is None


def test_each_call_is_work_of_its_own_with_a_newer_token(charge: Any):
    one, other = charge(1, 500), charge(1, 500)

    assert one.idempotency_key != other.idempotency_key and one.owner != other.owner
    assert one.token < other.token
    assert one.headers()["X-Fencing-Token"] == str(one.token)


def test_what_a_fence_does_in_a_database_works():
    app = make_app()
    database = sqlite3.connect(":memory:")
    create_tables(database)

    @guarded(app, key="order")
    def charge(order: int, fence: Fence) -> tuple[bool, bool]:
        with database:
            database.execute("BEGIN")
            fence.protect(database)
            return bool(fence.once(database)), bool(fence.once(database))

    assert charge(1) == (True, False)
    assert charge(1) == (True, False)  # another call, and other work


def test_it_comes_after_those_before_it_and_before_those_after_it():
    app = make_app()
    database = sqlite3.connect(":memory:")
    create_tables(database)

    @guarded(app, key="order")
    def charge(order: int, fence: Fence) -> Fence:
        return fence

    def write(fence: Fence) -> None:
        with database:
            database.execute("BEGIN")
            fence.protect(database)

    before, direct, after = charge.apply((1,)).get(), charge(1), charge.apply((1,)).get()
    write(direct)
    with pytest.raises(StaleFenceError):
        write(before)
    write(after)


def test_a_guarded_body_has_a_fence_that_is_guarded(charge: Any):
    fence = charge.apply((1, 500)).get()

    assert not fence.unguarded and "unguarded" not in repr(fence)


def test_switched_off_it_is_the_same_stand_in(charge: Any):
    with unguarded():
        fence = charge.apply((1, 500)).get()

    assert fence.unguarded


def test_within_a_guarded_body_it_is_that_bodys_fence():
    app = make_app()
    inner = guarded(app, name="inner")(plain)

    @guarded(app, name="outer")
    def outer(order: int) -> bool:
        return inner(order, 500) is current_fence()

    assert outer.apply((1,)).get()


@pytest.mark.parametrize("argument", [object(), ...])
def test_arguments_that_make_no_key_can_be_called_with(argument: Any):
    made = guarded(make_app(), key=lambda order, cents: order.id)(plain)

    assert made(argument, 500).key == made.name


def test_a_shared_task_has_one_too():
    made = singleton_task(name="shared.charge.called.directly")(plain)
    make_app().set_current()

    assert made(1, 500).unguarded


def test_arguments_that_do_not_fit_are_the_bodys_own_error(charge: Any):
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'cents'"):
        charge(1)
    with pytest.raises(TypeError, match="the guard passes 'fence'"):
        charge(1, 500, fence=None)
