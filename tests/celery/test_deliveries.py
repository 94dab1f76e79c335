"""A delivery whose store goes away in the middle: it waits, and nobody is told that the job has failed."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.app.trace import build_tracer
from kombu import Exchange, Queue

from taskguard import StoreUnavailableError
from taskguard.celery import install
from taskguard.celery.guarding import guarding_of
from taskguard.celery.scheduled import make_aware
from taskguard.schedule import claim_of
from taskguard.stores.memory import MemoryStore
from tests.schedule.bench import every
from tests.waiting import wait_until

from .inprocess import guarded, ids, make_app, sent, store_of


def deliver(task: Any, task_id: str, *args: Any, request: Any = None, **headers: Any) -> Any:
    """What a worker's child does with a message."""
    delivery_info = {"exchange": "", "routing_key": task.app.conf.task_default_queue}
    facts = {"id": task_id, "task": task.name, "retries": 0, "is_eager": False, "delivery_info": delivery_info}
    ours = {f"taskguard_{name}": value for name, value in headers.items()}
    facts = {**facts, **(request or {}), **ours, "args": args}
    return build_tracer(task.name, task, app=task.app)(task_id, args, {}, facts)


def goes_away_after(store: Any, verb: str, times: int) -> None:
    """The store answers so many times, and then no more."""
    answered = 0
    original = getattr(store, verb)

    def ask(*args: Any, **options: Any) -> Any:
        nonlocal answered
        answered += 1
        if answered > times:
            raise StoreUnavailableError("store", "gone")
        return original(*args, **options)

    setattr(store, verb, ask)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("chosen", ["retry", "fail", "run_unguarded"])
def test_while_a_copy_of_a_running_job_is_put_back(times, chosen):
    app = make_app(taskguard_on_store_error=chosen)

    @guarded(app)
    def add(a):
        return a

    task = app.tasks[add.name]
    guard = task.taskguard.guarding.guard
    guard.patience = 0.0
    guard.ask(guard.new_claim(task.taskguard.key(1), "job", task.taskguard.policy))  # it runs elsewhere
    goes_away_after(store_of(app), "claim", times)
    answer = deliver(task, "job", 1)
    assert answer.info.state == "IGNORED"
    assert set(ids(sent(app))) == {"job"}
    assert app.AsyncResult("job").status == "PENDING"


@pytest.mark.parametrize(("exchange_type", "for_a_second"), [("topic", True), ("direct", False)])
def test_it_is_put_back_for_a_second_where_rabbitmq_itself_delays(exchange_type, for_a_second):
    app = make_app()
    quorum = {"x-queue-type": "quorum"}
    own = Queue(app.conf.task_default_queue)
    app.conf.task_queues = [own, Queue("other", Exchange("other", exchange_type), queue_arguments=quorum)]

    @guarded(app)
    def add(a):
        return a

    task = app.tasks[add.name]
    guard = task.taskguard.guarding.guard
    guard.ask(guard.new_claim(task.taskguard.key(1), "twin", task.taskguard.policy))
    before = datetime.now(timezone.utc)
    deliver(task, "put back", 1)
    eta = datetime.fromisoformat(sent(app)[0].headers["eta"])
    assert (eta >= before + timedelta(seconds=1)) is for_a_second


def test_a_leftover_copy_of_a_success_is_none_of_a_failure_when_the_result_backend_is_away(monkeypatch):
    app = make_app()
    failed = []

    @guarded(app, on_failure=lambda *args: failed.append(args))
    def add(a):
        return a

    task = app.tasks[add.name]
    deliver(task, "succeeded", 1)

    def away(task_id: str) -> Any:
        raise ConnectionError("gone")

    monkeypatch.setattr(task.backend, "get_task_meta", away)
    answer = deliver(task, "succeeded", 1)
    assert (answer.info, answer.retval) == (None, 1)
    assert not failed


def test_when_the_one_more_run_looks_for_its_place():
    app = make_app()

    @guarded(app, on_conflict="run_once_more")
    def add(a):
        return a

    task = app.tasks[add.name]
    guard = task.taskguard.guarding.guard
    guard.patience = 0.0
    goes_away_after(store_of(app), "get", 0)
    key = task.taskguard.key(1)
    answer = deliver(task, "job", 1, id="job", key=key, place=f"{key}:next")
    assert answer.info.state == "IGNORED"
    assert ids(sent(app)) == ["job"]
    assert app.AsyncResult("job").status == "PENDING"


def test_the_next_delivery_of_a_plain_scheduled_task_knows_of_the_outage_and_gives_the_holder_time_to_renew(
    monkeypatch,
):
    app, slot, runs = make_app(), every(3600).slot(1_794_873_600_000_000), []
    install(app)

    @app.task(name="plain", shared=False, acks_late=True)
    def plain():
        runs.append(1)

    task = app.tasks["plain"]
    make_aware(task)
    guard = guarding_of(app).guard
    guard.patience = 0.0
    lease = guard.store.claim(claim_of(slot.note(), slot.job_id, 0.01))
    wait_until(lambda: guard.store.get(lease.key).remaining <= 0)
    with monkeypatch.context() as patch:
        patch.setattr(guard, "store", MemoryStore())
        goes_away_after(guard.store, "claim", 0)
        deliver(task, slot.job_id, id=slot.job_id, slot=slot.note().as_dict())
    [put_back] = sent(app)
    assert put_back.headers["taskguard_after_outage"] is True

    guard._last_failure = float("-inf")  # it is another worker, which noticed nothing itself
    look = guard.store.get
    monkeypatch.setattr(guard.store, "get", lambda key: look(key) and (guard.store.renew([(lease, 30)]), look(key))[1])
    ours = {name[10:]: value for name, value in put_back.headers.items() if name.startswith("taskguard_")}
    assert deliver(task, slot.job_id, **ours).info.state == "IGNORED"
    assert not runs


class TestAnswering:
    """Between the end of a job in the store and the mark that its callbacks were sent."""

    @pytest.mark.parametrize("fails", [False, True])
    def test_a_copy_that_comes_in_between_sends_no_callbacks_beside_the_first(self, fails):
        app, copies = make_app(), []
        follow = app.task(goes_on, name="follow", shared=False)

        class Base(app.Task):
            abstract = True

            def _meet_a_copy(self) -> None:
                if not copies:  # Celery has sent the callbacks, and says so to nobody yet
                    copies.append(None)
                    copies[0] = deliver_linked(task, "job", follow)

            def on_success(self, *args: Any) -> None:
                self._meet_a_copy()

            def on_failure(self, *args: Any) -> None:
                self._meet_a_copy()

        @guarded(app, base=Base)
        def work(a):
            if fails:
                raise ValueError(a)
            return a

        task = app.tasks[work.name]
        deliver_linked(task, "job", follow)
        assert copies[0].info.state == "IGNORED"
        first, put_back = sorted(sent(app), key=lambda message: message.headers["task"] == work.name)
        assert (first.headers["task"], put_back.headers["id"]) == ("follow", "job")

        # When it comes again all is said.
        assert deliver_linked(task, "job", follow, id="job", unanswered=True).info.state == "IGNORED"
        assert sent(app) == []

    def test_a_copy_that_has_waited_answers_for_a_worker_that_died_in_between(self, monkeypatch):
        app = make_app()
        follow = app.task(goes_on, name="follow", shared=False)

        @guarded(app)
        def work(a):
            return a

        task = app.tasks[work.name]

        def die(*args: Any, **options: Any) -> None:
            raise SystemExit

        with monkeypatch.context() as patch:
            patch.setattr(app, "send_task", die)
            with pytest.raises(SystemExit):
                deliver_linked(task, "job", follow)
        assert sent(app) == []
        assert deliver_linked(task, "job", follow).info.state == "IGNORED"
        [put_back] = sent(app)
        assert put_back.headers["taskguard_unanswered"] is True
        ours = {name[10:]: value for name, value in put_back.headers.items() if name.startswith("taskguard_")}
        assert deliver_linked(task, "job", follow, **ours).info is None
        assert [message.headers["task"] for message in sent(app)] == ["follow"]
        assert app.AsyncResult("job").result == 1


def goes_on() -> None: ...


def deliver_linked(task: Any, task_id: str, follow: Any, **headers: Any) -> Any:
    links = {"callbacks": [follow.si()], "errbacks": [follow.si()]}
    return deliver(task, task_id, 1, request=links, **headers)
