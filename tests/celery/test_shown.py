"""What a message shows of its arguments is what Celery shows, though the guard has it made at another time.

The store is Redis: only there the answer takes long enough for that.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from celery.app import amqp
from celery.app.amqp import AMQP
from celery.app.routes import Router

from taskguard import StoreUnavailableError
from taskguard.protocol.store import Claim
from tests.servers import RedisServer

from .inprocess import deliver, guarded, make_app, sent

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
    made = []
    theirs = amqp.saferepr
    monkeypatch.setattr(amqp, "saferepr", lambda value, *rest, **how: made.append(value) or theirs(value, *rest, **how))
    app = app_on(redis_server)
    _, ours = make_both(app)
    ours.delay("x", b=1)
    assert made == [("x",), {"b": 1}]
    assert ours.delay("x", b=1).taskguard.duplicate  # whose answer was on its way too
    assert made[2:] == made[:2]


ROUTES: dict[str, Any] = {
    "a map": {"*": {"argsrepr": "(***)"}},
    "a map of queues": {"guarded": {"priority": 1}, "plain": {"priority": 1}},
    "a function": [lambda name, args, kwargs, options, task=None, **_: {"argsrepr": "(***)"}],
}


@pytest.mark.parametrize("routes", ROUTES.values(), ids=ROUTES)
def test_a_route_has_its_say(redis_server: RedisServer, routes: Any):
    app = app_on(redis_server, task_routes=routes)
    plain, ours = make_both(app)
    plain.delay("s3cr3t", b=1)
    ours.delay("s3cr3t", b=1)
    expected, found = sent(app)
    assert found.headers["argsrepr"] == expected.headers["argsrepr"]
    assert found.headers["kwargsrepr"] == expected.headers["kwargsrepr"]


def test_a_route_under_another_name_has_its_say(redis_server: RedisServer):
    app = app_on(redis_server, task_routes={"other": {"argsrepr": "(***)"}})
    _, ours = make_both(app)
    ours.apply_async(("s3cr3t",), route_name="other")
    [message] = sent(app)
    assert message.headers["argsrepr"] == "(***)"


def test_a_function_that_routes_is_asked_once(redis_server: RedisServer):
    asked = []
    app = app_on(redis_server, task_routes=[lambda name, *args, **options: asked.append(name)])
    _, ours = make_both(app)
    ours.delay("x")
    assert asked == ["guarded"]
    assert ours.delay("x").taskguard.duplicate
    assert asked == ["guarded"]


def test_a_router_of_the_call_has_its_say(redis_server: RedisServer):
    class Discreet(Router):
        def route(self, options: Any, *args: Any, **kwargs: Any) -> Any:
            options.setdefault("argsrepr", "(***)")
            return super().route(options, *args, **kwargs)

    app = app_on(redis_server)
    _, ours = make_both(app)
    ours.apply_async(("s3cr3t",), router=Discreet(queues=app.amqp.queues, app=app))
    [message] = sent(app)
    assert message.headers["argsrepr"] == "(***)"


def test_an_app_whose_own_send_task_changes_the_arguments_shows_those(redis_server: RedisServer):
    class Encrypts(Celery):
        def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            return super().send_task(name, ["?" for _ in args], kwargs, **options)

    app = Encrypts("encrypts", set_as_current=False)
    app.conf.update(app_on(redis_server).conf.changes)
    _, ours = make_both(app)
    ours.delay("s3cr3t")
    [message] = sent(app)
    assert message.headers["argsrepr"] == "['?']"


def test_a_message_that_is_put_back_shows_what_it_showed(redis_server: RedisServer):
    app = app_on(redis_server)
    plain, ours = make_both(app)
    guard = ours.taskguard.app_guard.guard
    guard.ask(guard.new_claim(ours.taskguard.key("s3cr3t"), "twin", ours.taskguard.policy))
    deliver(ours, "job", "s3cr3t", request={"argsrepr": "(***,)", "kwargsrepr": "{}", "callbacks": [plain.si()]})
    [message] = sent(app)
    assert (message.headers["id"], message.headers["argsrepr"]) == ("job", "(***,)")
    assert not {"argsrepr", "kwargsrepr"} & set(message.properties)


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
    assert is_free(ours, "x")
    assert not ours.delay("x").taskguard.duplicate


def is_free(task: Any, *args: Any) -> bool:
    entry = task.taskguard.get(*args)
    return entry is None or entry.state == "free"


class TimeLimitError(Exception):
    """Comes at any moment."""


@pytest.mark.parametrize("error", [TimeLimitError, KeyboardInterrupt, SystemExit])
def test_whatever_is_raised_meanwhile_reaches_the_caller_and_the_key_is_free(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
):
    app = app_on(redis_server)
    _, ours = make_both(app)
    ours.delay("y")
    sent(app)

    def interrupted(*args: Any, **options: Any) -> str:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(amqp, "saferepr", interrupted)
        with pytest.raises(error):
            ours.delay("x")
        with pytest.raises(error):
            ours.delay("y")  # a duplicate is told too: a time limit is not its own
    assert sent(app) == []
    assert is_free(ours, "x")
    assert not ours.delay("x").taskguard.duplicate


def test_a_store_may_copy_its_claims(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch):
    _, ours = make_both(app_on(redis_server))
    store = ours.taskguard.app_guard.calls.store
    claim = store.claim
    monkeypatch.setattr(store, "claim", lambda asked: claim(Claim(**asdict(asked))))
    assert not ours.delay("x").taskguard.duplicate
    assert ours.delay("x").taskguard.duplicate


def test_it_reaches_the_caller_also_if_the_store_does_not_answer_then(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    app = app_on(redis_server)
    _, ours = make_both(app)
    store = ours.taskguard.app_guard.calls.store
    claim_of_others = store.claim

    def goes_away_meanwhile(claim: Any) -> Any:
        if claim.meanwhile is None:
            return claim_of_others(claim)  # what is asked once per process, say
        claim.meanwhile()
        raise StoreUnavailableError("the store", "gone")

    theirs = amqp.saferepr

    def interrupted(*args: Any, **options: Any) -> str:
        monkeypatch.setattr(amqp, "saferepr", theirs)  # it comes once, and not again when the message is made
        raise TimeLimitError

    monkeypatch.setattr(store, "claim", goes_away_meanwhile)
    monkeypatch.setattr(amqp, "saferepr", interrupted)
    with pytest.raises(TimeLimitError):
        ours.delay("x")
    assert sent(app) == []
