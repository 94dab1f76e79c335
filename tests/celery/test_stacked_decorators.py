"""One decorator over another: what was guarded stays so, or it is refused."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

import pytest
from celery import Celery, Task

from taskguard import ConfigurationError
from taskguard.celery import install, singleton_task

from .inprocess import guarded, make_app

REFUSED = "@app.task or @shared_task over @singleton_task"


def charge(order: int) -> int:
    return order


def wrapped(function: Any) -> Any:
    """As a decorator of the user's own between the two."""

    @functools.wraps(function, assigned=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    wrapper.__name__ = "charge_in_a_wrapper"
    return wrapper


class Charge(Task):
    name = "charge of a class"

    def run(self, order: int) -> int:
        return order


@pytest.mark.parametrize("options", [None, {}, {"name": "other"}, {"lazy": False}, {"bind": True}], ids=str)
@pytest.mark.parametrize("what", ["function", "class", "wrapper", "made already"])
def test_a_plain_task_is_not_made_of_a_guarded_one(options: dict[str, Any] | None, what: str):
    app = make_app()
    inner = guarded(app)(Charge if what == "class" else charge)
    if what == "wrapper":
        inner = wrapped(inner)
    elif what == "made already":
        app.finalize()
        inner = app.tasks[inner.name]

    with pytest.raises(ConfigurationError, match=REFUSED):
        app.task(inner) if options is None else app.task(shared=False, **options)(inner)


def test_plain_tasks_are_made_as_ever():
    app = make_app()
    guarded(app, name="guarded")(charge)

    assert app.task(charge, name="plain", shared=False).apply((1,)).get() == 1
    assert app.task(name="plain too", shared=False)(charge).apply((1,)).get() == 1
    with pytest.raises(TypeError):
        app.task("no function")


def test_what_an_app_without_the_guard_has_made_of_it_does_not_run():
    inner = guarded(make_app())(charge)
    other = make_app()
    outer = other.task(inner, shared=False, name="outer")

    result = outer.apply((1,))
    assert isinstance(result.result, ConfigurationError) and REFUSED in str(result.result)


def test_what_was_made_before_the_guard_came_is_refused_when_it_comes():
    inner = guarded(make_app())(charge)
    other = make_app()
    other.task(inner, shared=False, name="outer", lazy=False)

    with pytest.raises(ConfigurationError, match=REFUSED):
        install(other)


def test_a_direct_call_from_the_body_of_a_plain_task_is_only_a_call():
    app = make_app()
    inner = guarded(app, name="inner")(charge)

    @app.task(name="outer", shared=False)
    def outer(order: int) -> int:
        return inner(order) + 1

    assert outer.apply((1,)).get() == 2


SHARED = """
import sys, warnings
from celery import Celery, shared_task
from celery.exceptions import NotRegistered
from taskguard import ConfigurationError
from taskguard.celery import singleton_task

def charge(order):
    return order

app = Celery("shop", broker="memory://", backend="cache+memory://")
app.conf.taskguard_store = "memory://"
try:
    {code}
    app.finalize()
    result = outer.apply((1,)).result
    if result == 1:
        sys.exit("it ran unguarded")
    raise result
except (ConfigurationError, NotRegistered, TypeError) as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    "code",
    [
        "outer = app.task(name='outer')(singleton_task(name='inner')(charge))",
        "outer = app.task(singleton_task(charge))",
        "outer = shared_task(name='outer')(singleton_task(name='inner')(charge))",
        "outer = shared_task(name='outer')(singleton_task(app, name='inner')(charge))",
        "outer = shared_task(singleton_task(app)(charge))",
    ],
)
def test_shared_tasks_are_no_way_around_it(code: str):
    command = [sys.executable, "-c", SHARED.format(code=code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    # Celery itself refuses a shared task of a shared task since 5.7.
    assert REFUSED in done.stdout or "applied more than once" in done.stdout, done.stdout


@pytest.mark.parametrize("over", ["function", "class", "task"])
def test_a_guarded_task_is_not_guarded_again(over: str):
    app = make_app()
    inner: Any = app.task(charge, shared=False) if over == "task" else Charge if over == "class" else charge
    once = singleton_task()(inner) if over == "task" else guarded(app)(inner)

    with pytest.raises(ConfigurationError, match="guarded already"):
        singleton_task(key="order")(once)


def test_celerys_class_has_its_own_task_decorator_still():
    app = make_app()
    install(app)

    assert "task" in vars(app) and Celery.task.__module__ == "celery.app.base"
