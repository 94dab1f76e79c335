"""What a call does before any worker sees it: the claim, the message, the handle."""

from __future__ import annotations

import inspect
import time
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from celery import Celery, chain, group, signature
from kombu.exceptions import OperationalError

from taskguard import (
    ConfigurationError,
    DuplicateTaskError,
    KeyArgumentError,
    PayloadMismatchError,
    StoreError,
)
from taskguard.celery import install
from taskguard.celery.app import POSITIONAL
from taskguard.schedule.boundaries import Interval
from taskguard.schedule.entry import ScheduledEntry
from tests.waiting import wait_until

from .inprocess import deliver, deliver_message, guarded, ids, make_app, sent, store_of


def entry(task: Any, *args: Any) -> Any:
    found = task.taskguard.get(*args)
    return found and (found.state, found.owner)


def test_every_spelling_and_every_way_of_one_call_is_one_key():
    app = make_app()

    @guarded(app)
    def add(a, b=2):
        return a + b

    add.delay(1)
    calls = [
        lambda: add.delay(a=1),
        lambda: add.delay(1, 2),
        lambda: add.apply_async((1,), {"b": 2}),
        lambda: add.s(1).apply_async(),
        lambda: add.si(b=2, a=1).delay(),
        lambda: app.send_task(add.name, (1,)),
        lambda: app.send_task(add.name, kwargs={"a": 1, "b": 2}),
        lambda: signature(add.name, args=(1,), app=app).apply_async(),
    ]
    for call in calls:
        assert call().taskguard.duplicate
    assert len(sent(app)) == 1
    assert add.delay(2).taskguard.duplicate is False


@pytest.mark.parametrize("task_id", ["x" * 5000, "a\0b", "\ud800", 7], ids=lambda given: ascii(given)[:12])
def test_a_task_id_that_no_store_can_keep_is_refused_at_the_call(task_id: Any):
    app = make_app()

    @guarded(app)
    def add(a):
        return a

    with pytest.raises(ConfigurationError, match="task_id"):
        add.apply_async((1,), task_id=task_id)
    assert sent(app) == []
    assert entry(add, 1) is None
    assert not add.delay(1).taskguard.duplicate


def test_a_job_of_another_publisher_whose_id_no_store_can_keep_fails_as_itself():
    app, ran = make_app(), []

    @guarded(app)
    def add(a):
        ran.append(a)

    deliver(add, "x" * 5000, 1)
    result = app.AsyncResult("x" * 5000)
    assert result.state == "FAILURE"
    assert "the job's id" in str(result.result)
    assert ran == []


def test_a_call_for_the_end_of_time_is_queued():
    app = make_app()

    @guarded(app)
    def add(a):
        return a

    first = add.apply_async((1,), eta=datetime(9999, 1, 1))
    assert entry(add, 1) == ("queued", first.id)
    assert len(sent(app)) == 1


def no_key(*args: Any, **kwargs: Any) -> str:
    raise LookupError("no key for this")


class TestCallbacks:
    """What Celery itself sends when a job has succeeded: if it were raised for, that job would become a failure."""

    REFUSED: ClassVar[dict[str, tuple[dict[str, Any], bool, Any]]] = {
        "a duplicate": ({"on_conflict": "raise"}, False, DuplicateTaskError),
        "a duplicate that may wait": ({"on_conflict": {"enqueue": "raise", "run": "wait"}}, False, None),
        "a key that is not there": ({"key": "a.id"}, False, KeyArgumentError),
        "a key function that fails": ({"key": no_key}, False, LookupError),
        "other work": ({}, True, PayloadMismatchError),
    }

    @pytest.mark.parametrize("as_step", [False, True], ids=["link", "step of a chain"])
    @pytest.mark.parametrize(("policy", "by_key", "error"), REFUSED.values(), ids=REFUSED)
    def test_it_is_published_and_fails_as_itself_at_the_worker(self, policy, by_key, error, as_step):
        app = make_app()

        @guarded(app, **policy)
        def follow(a):
            return a

        @guarded(app)
        def work(a):
            return a

        task = app.tasks[follow.name]
        if by_key:
            task.apply_async((0,), idempotency_key="used")
            sent(app)
        elif policy.get("on_conflict"):
            guard = task.taskguard.app_guard.guard
            guard.ask(guard.new_claim(task.taskguard.key(1), "twin", task.taskguard.policy))  # it is running
        step = f"step of {app.main}"
        following = follow.s().set(headers={"taskguard_idempotency_key": "used"} if by_key else {})
        following = dict(following.set(task_id=step)) if as_step else following
        answer = deliver(
            app.tasks[work.name],
            f"job of {app.main}",
            1,
            request={"chain": [following]} if as_step else {"callbacks": [following]},
        )
        assert (answer.info, answer.retval) == (None, 1)
        [message] = sent(app)
        assert message.headers["task"] == follow.name
        assert not as_step or message.headers["id"] == step

        ours = {name[10:]: value for name, value in message.headers.items() if name.startswith("taskguard_")}
        refusal = deliver(task, message.headers["id"], 1, **ours)
        if error is None:
            assert refusal.info.state == "IGNORED"
            assert ids(sent(app)) == [message.headers["id"]]  # put back: it waits
        else:
            assert (refusal.info.state, type(refusal.info.retval)) == ("FAILURE", error)

    def test_it_is_published_unclaimed_if_the_store_refuses_it_and_waits_at_the_worker(self, redis_server):
        app = make_app(taskguard_store=redis_server.url, taskguard_namespace=uuid4().hex)

        @guarded(app)
        def follow(a):
            return a

        @guarded(app)
        def work(a):
            return a

        store = store_of(app)
        store.wire.execute(b"SET", store._entry_key(app.tasks[follow.name].taskguard.key(1)), b"foreign")
        with pytest.raises(StoreError, match="a value that taskguard did not write"):
            app.tasks[follow.name].delay(1)
        answer = deliver(app.tasks[work.name], "job", 1, request={"callbacks": [follow.s()]})
        assert (answer.info, answer.retval) == (None, 1)
        [message] = sent(app)
        assert message.headers["task"] == follow.name

        assert deliver_message(app, message).info.state == "IGNORED"
        assert ids(sent(app)) == ids([message])  # put back

    def test_a_body_is_told(self):
        app, told = make_app(), []

        @guarded(app, on_conflict="raise")
        def follow(a):
            return a

        @guarded(app)
        def work(a):
            for options in ({}, {"parent_id": "a trace of its own"}):
                with pytest.raises(DuplicateTaskError):
                    follow.apply_async((a,), **options)
                told.append(options)

        follow.delay(1)
        deliver(app.tasks[work.name], f"job of {app.main}", 1)
        assert len(told) == 2


def test_send_task_takes_what_celerys_takes_by_position():
    assert list(inspect.signature(Celery.send_task).parameters)[4:-1] == list(POSITIONAL)
    app = make_app()

    @guarded(app)
    def add(a):
        return a

    options = dict.fromkeys(POSITIONAL[:9]) | {"link": add.s().set(immutable=True)}
    app.send_task("theirs", (1,), None, *options.values())
    [message] = sent(app)
    assert [link["task"] for link in message.payload[2]["callbacks"]] == [add.name]
    with pytest.raises(TypeError, match="positional"):
        app.send_task("theirs", (1,), None, *POSITIONAL, "one more")


class TestCanvas:
    def test_members_are_always_published_and_join_their_twins(self):
        app = make_app()

        @guarded(app)
        def add(a, b=2):
            return a + b

        result = group(add.s(1), add.s(1), add.s(2)).apply_async()
        messages = sent(app)
        assert ids(messages) == [child.id for child in result.children]
        joins = [message.headers.get("taskguard_join") for message in messages]
        assert joins == [None, result.children[0].id, None]

    def test_a_chain_publishes_its_first_step_and_carries_the_rest(self):
        app = make_app()

        @guarded(app)
        def add(a, b=2):
            return a + b

        add.delay(1)
        sent(app)
        chain(add.s(1), add.s(5)).apply_async()
        [message] = sent(app)
        assert message.headers["taskguard_join"]

    def test_an_id_that_is_queued_is_published_again_and_claims_nothing_new(self):
        app = make_app()

        @guarded(app)
        def add(a):
            return a

        add.apply_async((1,), task_id="chosen")
        add.apply_async((1,), task_id="chosen")
        assert ids(sent(app)) == ["chosen", "chosen"]
        assert entry(add, 1) == ("queued", "chosen")


class TestBroker:
    def test_a_refused_message_frees_the_key_and_the_error_reaches_the_caller(self, monkeypatch):
        app = make_app()

        @guarded(app)
        def add(a):
            return a

        def refuse(*args: Any, **options: Any) -> None:
            raise OperationalError("no broker")

        install(app)
        monkeypatch.setattr(app.amqp, "send_task_message", refuse)
        with pytest.raises(OperationalError):
            add.delay(1)
        assert entry(add, 1)[0] == "free"
        monkeypatch.undo()
        assert not add.delay(1).taskguard.duplicate

    def test_a_message_nobody_is_known_to_have_published_is_published_by_the_duplicate(self):
        app = make_app()

        @guarded(app)
        def add(a):
            return a

        first = add.delay(1)
        wait_until(lambda: store_of(app).get(add.taskguard.key(1)).copies == 1)
        lost = make_claim_without_message(app, add, 2)
        duplicate = add.apply_async((2,), expires=60, countdown=5)
        assert duplicate.id == lost
        messages = sent(app)
        assert ids(messages) == [first.id, lost]
        assert messages[1].headers["expires"] is messages[1].headers["eta"] is None  # those are this call's own
        wait_until(lambda: store_of(app).get(add.taskguard.key(2)).copies == 1)
        add.delay(2)
        assert sent(app) == []

    def test_a_duplicate_in_the_same_process_knows_what_was_published_a_moment_ago(self):
        app = make_app()

        @guarded(app)
        def add(a):
            return a

        add.delay(0)
        app._taskguard.confirmations._send = lambda *batch: None  # the store is told nothing
        add.delay(1), add.delay(1)
        assert len(sent(app)) == 2

    def test_after_a_long_time_in_the_queue_the_message_is_published_again(self):
        app = make_app(taskguard_republish_after=0.05)

        @guarded(app)
        def add(a):
            return a

        first = add.delay(1)
        wait_until(lambda: store_of(app).get(add.taskguard.key(1)).copies == 1)

        def published_again() -> bool:
            assert add.delay(1).id == first.id
            return len(sent(app)) > 0

        sent(app)
        wait_until(published_again)
        assert store_of(app).get(add.taskguard.key(1)).copies == 2


def make_claim_without_message(app: Any, task: Any, *args: Any, owner: str = "died") -> str:
    """What a publisher leaves that died between its claim and its message."""
    guard = app._taskguard.guard
    claim = guard.new_claim(task.taskguard.key(*args), owner, task.taskguard.policy, state="queued")
    guard.ask(claim)
    return owner


class TestMissingMessages:
    def test_a_call_with_other_arguments_brings_a_message_of_its_own_where_one_is_missing(self):
        app = make_app()

        @guarded(app, key="order")
        def charge(order, cents):
            return cents

        charge.delay(0, 0)
        lost = make_claim_without_message(app, charge, 1, 500)
        mine = charge.delay(1, 900)
        assert entry(charge, 1, 900) == ("queued", lost)
        message = sent(app)[-1]
        assert message.headers["id"] == mine.id != lost
        assert message.headers["taskguard_join"] == lost

    def test_a_call_does_not_publish_for_a_scheduled_job_whose_slot_it_does_not_know(self):
        app = make_app()

        @guarded(app)
        def close(day):
            return day

        close.delay(0)
        slot = ScheduledEntry("close", Interval(60), "close").slot(60_000_000)
        make_claim_without_message(app, close, 1, owner=slot.job_id)
        mine = close.delay(1)
        message = sent(app)[-1]
        assert message.headers["id"] == mine.id != slot.job_id
        assert message.headers["taskguard_join"] == slot.job_id

    def test_arguments_that_the_key_leaves_out_need_no_stable_form(self):
        app = make_app(task_serializer="pickle", accept_content=["pickle"])

        @guarded(app, key="order")
        def charge(order, document):
            return order

        first = charge.delay(1, object())
        assert charge.delay(1, object()).id == first.id
        assert len(sent(app)) == 1

    @pytest.mark.parametrize("conflict", ["raise", "run_once_more"])
    def test_whatever_on_conflict_says_a_missing_message_is_published(self, conflict):
        app = make_app()

        @guarded(app, on_conflict=conflict)
        def add(a):
            return a

        add.delay(0)
        lost = make_claim_without_message(app, add, 1)
        try:
            add.delay(1)
        except DuplicateTaskError:
            assert conflict == "raise"
        assert ids(sent(app))[1:] == [lost]

    def test_a_delayed_job_is_not_published_again_before_its_time(self):
        app = make_app(taskguard_republish_after=0.01, taskguard_queued_for=100)

        @guarded(app)
        def add(a):
            return a

        add.apply_async((1,), countdown=50)
        wait_until(lambda: store_of(app).get(add.taskguard.key(1)).copies == 1)
        time.sleep(0.05)
        add.delay(1)
        assert len(sent(app)) == 1
        app._taskguard.confirmations.add = lambda *facts: None  # its publisher dies before it has marked it
        first = add.apply_async((2,), countdown=50)
        add.delay(2)
        again = sent(app)[-1]
        assert again.headers["id"] == first.id
        assert again.headers["eta"] is not None


class TestDelays:
    def test_a_moment_without_a_zone_is_in_the_apps_own(self, monkeypatch):
        app = make_app(timezone="Asia/Tokyo")

        @guarded(app)
        def add(a):
            return a

        there = datetime.now(timezone.utc) + timedelta(hours=9, seconds=600)
        add.apply_async((1,), expires=there.replace(tzinfo=None))
        assert store_of(app).get(add.taskguard.key(1)).remaining == pytest.approx(600, abs=2)

    def test_a_queued_entry_waits_past_the_delay(self):
        app = make_app(taskguard_queued_for=100)

        @guarded(app)
        def add(a):
            return a

        add.apply_async((1,), countdown=50)
        add.apply_async((2,), eta=datetime.now(timezone.utc) + timedelta(seconds=70))
        assert store_of(app).get(add.taskguard.key(1)).remaining == pytest.approx(150, abs=2)
        assert store_of(app).get(add.taskguard.key(2)).remaining == pytest.approx(170, abs=2)

    @pytest.mark.parametrize("spelling", ["seconds", "moment", "text"])
    def test_a_queued_entry_never_outlives_expires(self, spelling):
        app = make_app()

        @guarded(app)
        def add(a):
            return a

        moment = datetime.now(timezone.utc) + timedelta(seconds=40)
        expires = {"seconds": 40, "moment": moment, "text": moment.isoformat()}[spelling]
        add.apply_async((1,), expires=expires)
        assert store_of(app).get(add.taskguard.key(1)).remaining == pytest.approx(40, abs=2)


class TestIdempotencyKeys:
    def test_a_process_without_the_code_leaves_it_to_the_worker(self):
        app = make_app()
        install(app)
        app.send_task("elsewhere.charge", (1, 100), idempotency_key="order-1")
        [message] = sent(app)
        assert message.headers["taskguard_idempotency_key"] == "order-1"
        assert "taskguard_key" not in message.headers


def test_what_is_linked_to_a_duplicate_is_not_forgotten():
    app = make_app()

    @guarded(app)
    def add(a):
        return a

    first = add.delay(1)
    linked = add.apply_async((1,), link=add.s())
    assert linked.id != first.id
    assert sent(app)[1].headers["taskguard_join"] == first.id


@pytest.mark.parametrize("owner", ["map:item:0", "rq:job"])
def test_a_call_whose_twin_is_no_task_has_a_result_of_its_own(owner):
    app = make_app()

    @guarded(app)
    def add(a):
        return a

    guard = app.tasks[add.name].taskguard.app_guard.guard
    guard.ask(guard.new_claim(add.taskguard.key(1), owner, add.taskguard.policy))
    result = add.delay(1)
    assert ids(sent(app)) == [result.id]


def test_a_canvas_of_run_once_more_joins_what_is_no_news():
    app = make_app()

    @guarded(app, on_conflict="run_once_more")
    def add(a):
        return a

    result = group(add.s(1) for _ in range(3)).apply_async()
    joins = [message.headers.get("taskguard_join") for message in sent(app)]
    assert joins == [None, result.children[0].id, result.children[0].id]


class TestHeaders:
    def test_an_error_of_the_key_function_is_not_taken_for_arguments_that_do_not_fit(self):
        app = make_app()

        @guarded(app, key=lambda order: order["id"])
        def charge(order):
            return order

        with pytest.raises(KeyArgumentError, match="raised TypeError"):
            charge.delay(None)

    def test_headers_passed_on_to_another_call_are_not_taken_for_its_own(self):
        app = make_app()

        @guarded(app)
        def add(a):
            return a

        add.delay(1)
        [message] = sent(app)
        passed_on = {name: value for name, value in message.headers.items() if name.startswith("taskguard_")}
        add.apply_async((2,), headers={"trace": "x", **passed_on})
        [other] = sent(app)
        assert other.headers["taskguard_key"] == add.taskguard.key(2)
        assert other.headers["trace"] == "x"

    def test_a_call_whose_arguments_do_not_fit_is_left_to_the_worker(self):
        app = make_app()

        @guarded(app, typing=False)
        def add(a):
            return a

        add.delay(1, 2, 3)
        assert len(sent(app)) == 1

    def test_an_argument_that_makes_no_key_is_an_error_at_the_call(self):
        app = make_app(task_serializer="pickle", accept_content=["pickle"])

        @guarded(app)
        def add(a):
            return a

        with pytest.raises(KeyArgumentError):
            add.delay(object())


class TestOnDone:
    def test_the_outcome_of_an_eager_call_is_the_answer(self):
        app = make_app()

        @guarded(app, on_done="reuse_success", keep_for=60)
        def add(a):
            return a + 1

        first = add.apply((1,))
        again = add.delay(1)
        assert again.get(timeout=20) == 2
        assert again.status == "SUCCESS"
        assert again.ready()
        assert again.taskguard.duplicate
        assert (again.taskguard.owner, again.taskguard.state) == (first.id, "done")
        assert sent(app) == []

    def test_the_failure_of_an_eager_call_is_the_answer_where_that_is_wanted(self):
        app = make_app()

        @guarded(app, on_done="reuse", keep_for=60)
        def fail(a):
            raise ValueError(f"not {a}")

        fail.apply((1,))
        with pytest.raises(ValueError, match="not 1"):
            fail.delay(1).get(timeout=20)
        assert fail.delay(1).status == "FAILURE"

    def test_the_failure_of_an_eager_call_runs_again_with_reuse_success(self):
        app = make_app()

        @guarded(app, on_done="reuse_success", keep_for=60)
        def fail(a):
            raise ValueError(a)

        fail.apply((1,))
        assert not fail.delay(1).taskguard.duplicate

    def test_a_member_of_a_canvas_is_answered_by_a_worker_under_its_own_id(self):
        app = make_app()

        @guarded(app, on_done="reuse_success", keep_for=60)
        def add(a):
            return a + 1

        add.apply((1,))
        result = group(add.s(1)).apply_async()
        assert ids(sent(app)) == [result.children[0].id]


def test_a_result_that_reaches_only_its_caller_is_published_under_the_callers_id():
    app = make_app(result_backend="rpc://")

    @guarded(app)
    def add(a):
        return a

    first, second = add.delay(1), add.delay(1)
    assert first.id != second.id
    assert second.taskguard.duplicate
    assert sent(app)[1].headers["taskguard_join"] == first.id


def test_the_rest_of_a_delay_is_whole_seconds():
    app = make_app(taskguard_queued_for=60)

    @guarded(app)
    def add(a):
        return a

    guard = app._taskguard.calls
    guard.ask(guard.new_claim(add.taskguard.key(1), "lost", add.taskguard.policy, state="queued", lease=60.4))
    before = datetime.now(timezone.utc)
    add.delay(1)
    assert datetime.fromisoformat(sent(app)[0].headers["eta"]) >= before + timedelta(seconds=1)


def test_the_handle_of_a_duplicate_that_wants_no_result_does_not_wait_for_one():
    app = make_app()

    @guarded(app, ignore_result=True)
    def add(a):
        return a

    first, second = add.delay(1), add.delay(1)
    assert second.id == first.id
    assert second.get(timeout=20) is None is first.get(timeout=20)


def test_release_by_hand_frees_the_key():
    app = make_app()

    @guarded(app)
    def add(a):
        return a

    add.delay(1)
    assert add.taskguard.release(1)
    assert not add.delay(1).taskguard.duplicate
