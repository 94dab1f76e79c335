"""What a message shows of its arguments is what Celery shows, though the guard has it made at another time.

The store is Redis: only there the answer takes long enough for that.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from celery.app.amqp import AMQP

from tests.servers import RedisServer

from .inprocess import guarded, make_app, sent

CALLS: dict[str, dict[str, Any]] = {
    "plain": {"args": ("x",), "kwargs": {"b": 1}},
    "nothing": {},
    "long": {"args": ("x" * 5000, list(range(2000))), "kwargs": {"b": "y" * 5000}},
    "deep": {"args": ([[[[[["x"]]]]]],), "kwargs": {"b": {"c": {"d": {"e": {"f": {"g": 1}}}}}}},
    "shown otherwise by the caller": {"args": ("s3cr3t",), "kwargs": {"b": 1}, "argsrepr": "(***,)", "kwargsrepr": "-"},
    "one shown otherwise": {"args": ("s3cr3t",), "argsrepr": "(***,)"},
    "an empty text": {"args": ("s3cr3t",), "argsrepr": ""},
}


def app_on(server: RedisServer, **conf: Any) -> Celery:
    return make_app(taskguard_store=server.url, taskguard_namespace=uuid4().hex, **conf)


def make_both(app: Celery) -> tuple[Any, Any]:
    def body(a: Any = None, c: Any = None, b: Any = None) -> None: ...

    return app.task(body, name="plain", shared=False), guarded(app, name="guarded")(body)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_guarded_message_shows_what_a_plain_one_does(redis_server: RedisServer, call: dict[str, Any]):
    app = app_on(redis_server)
    plain, ours = make_both(app)
    plain.apply_async(**call)
    ours.apply_async(**call)
    expected, found = sent(app)
    for text in ("argsrepr", "kwargsrepr"):
        assert found.headers[text] == expected.headers[text]
        assert text not in found.properties
    assert set(found.properties) == set(expected.properties) - {"argsrepr", "kwargsrepr"}
    assert set(expected.headers) <= set(found.headers)


def test_it_is_made_once_and_while_the_store_is_asked(redis_server: RedisServer, monkeypatch):
    from celery.app import amqp

    made = []
    theirs = amqp.saferepr
    monkeypatch.setattr(amqp, "saferepr", lambda value, *rest, **how: made.append(value) or theirs(value, *rest, **how))
    app = app_on(redis_server)
    _, ours = make_both(app)
    ours.delay("x", b=1)
    assert made == [("x",), {"b": 1}]
    assert ours.delay("x", b=1).taskguard.duplicate  # whose answer was on its way too
    assert made[2:] == made[:2]


class Discreet(AMQP):
    """An app's own, which shows nothing."""

    def __init__(self, app: Celery) -> None:
        super().__init__(app)
        self.calls = 0

    def as_task_v2(self, task_id: str, name: str, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any):
        self.calls += 1
        options.setdefault("argsrepr", "(hidden)")
        options.setdefault("kwargsrepr", "{hidden}")
        return super().as_task_v2(task_id, name, args, kwargs, *rest, **options)


def test_an_app_that_makes_its_messages_in_its_own_way_is_asked_once_and_keeps_its_secrets(redis_server: RedisServer):
    app = app_on(redis_server)
    app.amqp_cls = Discreet
    _, ours = make_both(app)
    ours.delay("s3cr3t", b="s3cr3t")
    [message] = sent(app)
    assert (message.headers["argsrepr"], message.headers["kwargsrepr"]) == ("(hidden)", "{hidden}")
    assert app.amqp.calls == 1


def test_the_first_protocol_has_no_such_texts(redis_server: RedisServer):
    app = app_on(redis_server, task_protocol=1)
    _, ours = make_both(app)
    ours.delay("x")
    [message] = sent(app)
    assert "argsrepr" not in message.properties
    assert "argsrepr" not in message.headers


def test_arguments_that_make_no_message_leave_the_key_free(redis_server: RedisServer):
    app = app_on(redis_server)
    _, ours = make_both(app)
    with pytest.raises(TypeError, match="must be a list or tuple"):
        ours.apply_async({"x"})
    assert ours.taskguard.get("x") is None or ours.taskguard.get("x").state == "free"
    assert not ours.delay("x").taskguard.duplicate
