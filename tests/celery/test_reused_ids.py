"""An id that is called again: it is one job, and whatever is linked to any of its calls gets the outcome."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError

from taskguard.protocol.store import Claimant, Ending
from tests.celery.conftest import FLEETS
from tests.celery.fleet import Fleet
from tests.celery.haste import ENVIRONMENT as HASTE
from tests.celery.jobs import TroubleError
from tests.celery.scene import Scene
from tests.servers import durable_redis

from .inprocess import deliver, guarded, ids, make_app, sent

UNORDERED = {"result_backend_transport_options": {"result_chord_ordered": False}}
BACKENDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "redis": ("redis", {}),
    "redis, unordered": ("redis", UNORDERED),
    "sql": ("sql", {}),
}


@pytest.fixture(scope="module", params=BACKENDS)
def shared(request: Any, docker_client: Any, tmp_path_factory: Any) -> Iterator[tuple[Fleet, Any]]:
    """One worker for all tests of this file: none of them ends it."""
    directory = tmp_path_factory.mktemp("fleet")
    backend, conf = BACKENDS[request.param]
    with closing(durable_redis()) as redis:
        fleet = Fleet(docker_client, redis, None, directory, broker="redis", backend=backend, conf=conf)
        with closing(fleet):
            fleet.start_worker(concurrency=3, environment=HASTE)
            yield fleet, directory


@pytest.fixture
def scene(shared: Any, request: Any) -> Scene:
    fleet, directory = shared
    request.node.stash[FLEETS] = [fleet]
    return Scene(fleet, directory)


def frozen(scene: Scene, number: int, then: str = "return", name: str = "job", **facts: Any) -> Any:
    """One call of a key of this test's own, under an id of its own."""
    signature = scene.job(name).s(f"{scene.key}-{number}", then, value=number, **facts)
    signature.freeze()
    return signature


def runs(scene: Scene, number: int) -> int:
    return scene.ledger.count("begin", key=f"{scene.key}-{number}")


# -- on a worker ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["job", "while_running", "while_queued", "waits", "one_and_one", "raises"])
def test_a_chord_whose_members_have_ended_gets_their_outcomes(scene, name):
    members = [frozen(scene, 1, name=name), frozen(scene, 2, name=name)]
    for _ in range(2):
        header = [member.clone() for member in members]
        assert chord(header, scene.fleet.tasks.total.s()).apply_async().get(timeout=20) == 3
    assert (runs(scene, 1), runs(scene, 2)) == (1, 1)


def test_a_chord_with_one_member_that_has_ended(scene):
    old = frozen(scene, 1)
    old.clone().apply_async().get(timeout=20)
    result = chord([old.clone(), frozen(scene, 2)], scene.fleet.tasks.total.s()).apply_async()
    assert result.get(timeout=20) == 3


def test_a_chord_that_is_applied_again_while_it_runs_counts_each_member_once(scene):
    whole = chord([frozen(scene, 1), frozen(scene, 2, gate=scene.key)], scene.fleet.tasks.total.s())
    whole.freeze()
    first = whole.apply_async()
    scene.ledger.wait_for("end", 1, key=f"{scene.key}-1")
    second = whole.apply_async()
    scene.gate.open(scene.key)
    assert first.get(timeout=20) == second.get(timeout=20) == 3


def test_chords_that_share_a_running_member_all_fire(scene):
    member = frozen(scene, 1, gate=scene.key)
    first = chord([member.clone(), frozen(scene, 2)], scene.fleet.tasks.total.s()).apply_async()
    scene.ledger.wait_for("begin", 1, key=f"{scene.key}-1")
    others = [chord([member.clone(), frozen(scene, n)], scene.fleet.tasks.total.s()).apply_async() for n in (3, 4)]
    scene.gate.open(scene.key)
    assert [body.get(timeout=20) for body in (first, *others)] == [3, 4, 5]
    assert runs(scene, 1) == 1


def test_a_chain_whose_step_has_ended_goes_on(scene):
    step = frozen(scene, 1)
    for _ in range(2):
        told = chain(step.clone(), scene.fleet.tasks.told.s()).apply_async()
        assert told.get(timeout=20) == 1
    assert runs(scene, 1) == 1


def test_an_errback_hears_of_a_failure_that_was_before(scene):
    member = frozen(scene, 1, "fail")
    with pytest.raises(TroubleError):
        member.clone().apply_async().get(timeout=20)
    body = chord([member.clone(), frozen(scene, 2)], scene.fleet.tasks.total.s()).apply_async()
    with pytest.raises(Exception, match="failed"):
        body.get(timeout=20)
    member.clone().apply_async(link_error=scene.fleet.tasks.told.si(f"errback of {scene.key}"))
    scene.ledger.wait_for("told", 1, given=[repr(f"errback of {scene.key}")])
    assert runs(scene, 1) == 1


def test_a_caller_whose_results_are_private_hears_again(make_scene):
    scene = make_scene(backend="rpc")
    scene.fleet.start_worker(environment=HASTE)
    again = group(frozen(scene, 1), frozen(scene, 2))
    again.freeze()
    for _ in range(2):
        assert again.apply_async().get(timeout=20) == [1, 2]
    assert runs(scene, 1) == 1


# -- message by message --------------------------------------------------------------------------------------------


class Calls:
    """One job under one id, and what follows it."""

    def __init__(self, **options: Any) -> None:
        self.app = app = make_app()
        self.id = f"job of {app.main}"

        @guarded(app, name="follow")
        def follow(a):
            return a

        @guarded(app, name="work", **options)
        def work(a):
            if a == "fail":
                raise TroubleError("failed")
            return a

        self.task = app.tasks["work"]

    def call(self, value: Any = 1, **options: Any) -> Any:
        """The message of one more call; None if there is none."""
        link = self.app.tasks["follow"].si("heard")
        self.task.apply_async((value,), task_id=self.id, **(options or {"link": link}))
        return next(iter(sent(self.app)), None)

    def deliver(self, message: Any) -> tuple[str, list[str]]:
        """How the delivery ends, and the tasks whose messages it sends."""
        self.app._taskguard.guard.store.forget(self.app.tasks["follow"].taskguard.key("heard"))
        ours = {name[10:]: value for name, value in message.headers.items() if name.startswith("taskguard_")}
        links = {name: value for name, value in message.payload[2].items() if name in ("callbacks", "errbacks")}
        [value] = message.payload[0]
        answer = deliver(self.task, message.headers["id"], value, request=links, **ours)
        state = "SUCCESS" if answer.info is None else answer.info.state
        return state, [message.headers["task"] for message in sent(self.app)]


@pytest.mark.parametrize("options", [{}, {"hold": "running"}, {"hold": "queued"}, {"on_conflict": "wait"}], ids=repr)
def test_each_call_is_answered_once_whatever_comes_again(options):
    calls = Calls(**options)
    first = calls.call()
    assert calls.deliver(first) == ("SUCCESS", ["follow"])
    second, third = calls.call(), calls.call()
    for message in (second, third):
        answer = calls.deliver(message)
        if answer == ("IGNORED", ["work"]):  # put back once: it might just have been being answered
            message.headers["taskguard_unanswered"] = True
            answer = calls.deliver(message)
        assert answer == ("SUCCESS", ["follow"])
    for message in (first, second, third):
        message.headers["taskguard_unanswered"] = True
        assert calls.deliver(message) == ("IGNORED", [])


def test_the_first_message_is_answered_too_if_a_later_one_overtakes_it():
    calls = Calls()
    first, second = calls.call(), calls.call()
    assert ids([first]) == ids([second])
    assert calls.deliver(second) == ("SUCCESS", ["follow"])
    assert calls.deliver(first) == ("IGNORED", ["work"])  # put back once: it might just have been being answered
    first.headers["taskguard_unanswered"] = True
    assert calls.deliver(first) == ("SUCCESS", ["follow"])
    for message in (first, second):
        message.headers["taskguard_unanswered"] = True
        assert calls.deliver(message) == ("IGNORED", [])


def test_what_is_linked_to_a_revoked_id_hears_that():
    calls = Calls()
    calls.call()
    store, key = calls.app._taskguard.guard.store, calls.task.taskguard.key(1)
    store.release(Claimant(key, calls.id, ""), Ending(how="revoked", keep_for=60), anyway=True)
    errback = calls.app.tasks["follow"].si("heard")
    again = calls.call(link_error=errback)
    assert calls.deliver(again) == ("FAILURE", ["follow"])
    assert isinstance(calls.app.AsyncResult(calls.id).result, TaskRevokedError)
    assert calls.deliver(again) == ("IGNORED", [])


def test_the_log_names_what_ended_before(caplog):
    caplog.set_level(logging.INFO, "taskguard")
    calls = Calls()
    calls.deliver(calls.call())
    calls.deliver(calls.call())
    assert f"work[{calls.id}] ended before: this call is published too, and gets its outcome" in caplog.text
    assert f"work[{calls.id}] has already ended; the callbacks of this call get its outcome" in caplog.text
    caplog.clear()
    assert calls.call(link=None) is None
    assert f"work[{calls.id}] ended before: this call gets its outcome" in caplog.text
