"""A job that has ended calls what is linked to it once, whichever copy of its message does so."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from taskguard.celery import first_success

from .inprocess import deliver, guarded, make_app, ours_of, sent


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


class TestAnswering:
    """Between the end of a job in the store and the mark that its callbacks were sent."""

    @pytest.fixture
    def follow(self):
        app = make_app()
        return app.task(goes_on, name="follow", shared=False)

    @pytest.mark.parametrize("fails", [False, True])
    def test_a_copy_that_comes_in_between_sends_no_callbacks_beside_the_first(self, follow, fails, monkeypatch):
        app, copies = follow.app, []
        task = make_task(app, fails)
        verb = "mark_as_failure" if fails else "mark_as_done"
        tell = getattr(task.backend, verb)

        def tell_and_meet_a_copy(*args: Any, **options: Any) -> None:
            tell(*args, **options)  # the callbacks are sent by now, and that is not marked yet
            if not copies:
                copies.append(None)
                copies[0] = deliver_linked(task, follow)

        monkeypatch.setattr(task.backend, verb, tell_and_meet_a_copy)
        deliver_linked(task, follow)
        assert copies[0].info.state == "IGNORED"
        first, put_back = sorted(sent(app), key=lambda message: message.headers["task"] == task.name)
        assert (first.headers["task"], put_back.headers["id"]) == ("follow", id_of(task))

        # When it comes again all is said.
        assert deliver_linked(task, follow, **ours_of(put_back)).info.state == "IGNORED"
        assert sent(app) == []

    @pytest.mark.parametrize("given_as", ["base", "option"])
    @pytest.mark.parametrize("hook", ["on_success", "on_failure", "after_return"])
    def test_what_the_task_itself_does_at_its_end_comes_after_the_mark(self, follow, hook, given_as):
        app, copies = follow.app, []

        def meet_a_copy(self: Any, *args: Any) -> None:
            if not copies:
                copies.append(None)
                copies[0] = deliver_linked(task, follow)

        hooks = {hook: meet_a_copy}
        base = {"base": type("Base", (app.Task,), {**hooks, "abstract": True})} if given_as == "base" else hooks
        task = make_task(app, hook == "on_failure", **base)
        deliver_linked(task, follow)
        assert copies[0].info.state == "IGNORED"
        assert [message.headers["task"] for message in sent(app)] == ["follow"]  # and nothing is put back

    def test_a_hook_that_is_none_is_no_hook(self, follow):
        hooks = dict.fromkeys(("on_success", "on_failure", "after_return"))
        assert deliver_linked(make_task(follow.app, **hooks), follow).info is None

    def died_in_between(self, follow, monkeypatch, **options: Any) -> Any:
        task = make_task(follow.app, **options)

        def die(*args: Any, **options: Any) -> None:
            raise SystemExit

        with monkeypatch.context() as patch:
            patch.setattr(follow.app, "send_task", die)
            with pytest.raises(SystemExit):
                deliver_linked(task, follow)
        first_success.expect_no_more(id_of(task))  # what it knew is gone with it
        assert sent(follow.app) == []
        return task

    def test_a_copy_that_has_waited_answers_for_a_worker_that_died_in_between(self, follow, monkeypatch):
        app, task = follow.app, self.died_in_between(follow, monkeypatch)
        assert deliver_linked(task, follow).info.state == "IGNORED"
        [put_back] = sent(app)
        assert put_back.headers["taskguard_unanswered"] is True
        assert deliver_linked(task, follow, **ours_of(put_back)).info is None
        assert [message.headers["task"] for message in sent(app)] == ["follow"]
        assert app.AsyncResult(id_of(task)).result == 1
        for headers in ({}, ours_of(put_back)):  # others, whether they have waited or not, have nothing to say then
            assert deliver_linked(task, follow, **headers).info.state == "IGNORED"
        assert sent(app) == []

    def test_a_job_that_has_ended_does_not_expire_while_its_copy_waits(self, follow, monkeypatch):
        task = self.died_in_between(follow, monkeypatch, expires=60)
        soon = (datetime.now(timezone.utc) + timedelta(seconds=1)).isoformat()
        deliver_linked(task, follow, request={"expires": soon})
        [put_back] = sent(follow.app)
        assert put_back.headers["expires"] is None

    def test_a_receipt_that_is_about_to_go_is_not_waited_for(self, follow, monkeypatch):
        task = self.died_in_between(follow, monkeypatch, keep_for=30)
        assert deliver_linked(task, follow).info is None
        assert [message.headers["task"] for message in sent(follow.app)] == ["follow"]

    def test_a_job_that_waited_too_long_tells_so_once(self, follow):
        task = make_task(follow.app, on_conflict="wait", wait_up_to=1)
        guard = task.taskguard.app_guard.guard
        guard.ask(guard.new_claim(task.taskguard.key(1), "twin", task.taskguard.policy))
        first = deliver_linked(task, follow, id=id_of(task), since=time.time() - 5)
        assert first.info.state == "FAILURE"
        self.assert_told_once(task, follow)

    @pytest.mark.parametrize("size", [10, 100_000])
    def test_a_retry_that_cannot_be_written_tells_so_once_and_frees_its_key(self, follow, size):
        class Unwritable:
            def __json__(self) -> None:
                raise ValueError("x" * size)

        @guarded(follow.app, bind=True)
        def work(self, a):
            raise self.retry(args=(Unwritable(),), countdown=0)

        task = follow.app.tasks[work.name]
        assert deliver_linked(task, follow).info.state == "FAILURE"
        assert task.taskguard.get(1).state == "free"
        self.assert_told_once(task, follow)

    def assert_told_once(self, task: Any, follow: Any) -> None:
        assert [message.headers["task"] for message in sent(follow.app)] == ["follow"]
        assert deliver_linked(task, follow, id=id_of(task)).info.state == "IGNORED"
        assert sent(follow.app) == []


def goes_on() -> None: ...


def id_of(task: Any) -> str:
    """All tests of a process have one result backend: the job is called as the app is."""
    return f"job of {task.app.main}"


def make_task(app: Any, fails: bool = False, **options: Any) -> Any:
    @guarded(app, **options)
    def work(a):
        if fails:
            raise ValueError(a)
        return a

    return app.tasks[work.name]


def deliver_linked(task: Any, follow: Any, request: Any = None, **headers: Any) -> Any:
    links = {"callbacks": [follow.si()], "errbacks": [follow.si()]}
    return deliver(task, id_of(task), 1, request={**links, **(request or {})}, **headers)
