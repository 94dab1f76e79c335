"""What a task can be made of, and what is refused while it is made."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import pytest
from celery import Celery, Task, shared_task
from pydantic import BaseModel

from taskguard import ConfigurationError, Fence, current_fence
from taskguard.celery import GuardedTask, install, singleton_task
from taskguard.celery.guarding import is_installed

from .inprocess import guarded, ids, make_app, sent

celery_has_pydantic = tuple(map(int, __import__("celery").__version__.split(".")[:2])) >= (5, 5)


class Base(Task):
    abstract = True
    seen: ClassVar[list[str]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.append(self.request.id)
        return self.run(*args, **kwargs)


class Patient(Task):
    abstract = True
    acks_late = False


class Order(BaseModel):
    id: int
    cents: int


def identity(a: Any) -> Any:
    return a


def wants_fence(a: Any, fence: Any) -> Any:
    return a


def test_it_installs_itself_and_acknowledges_late():
    app = make_app()
    assert not is_installed(app)

    @guarded(app)
    def add(a):
        return a

    assert is_installed(app)
    assert isinstance(app.tasks[add.name], GuardedTask)
    assert add.acks_late
    assert add.reject_on_worker_lost


def test_celerys_options_pass_through():
    app = make_app()

    @guarded(app, bind=True, name="renamed", max_retries=7, queue="other", acks_late=False, rate_limit="5/m")
    def add(self, a):
        return self.name, a

    assert add.name == "renamed"
    assert (add.max_retries, add.queue, add.acks_late, add.rate_limit) == (7, "other", False, "5/m")
    assert add.apply((1,)).get() == ("renamed", 1)


def test_a_base_class_keeps_its_call_and_what_it_says_of_acknowledgement():
    app = make_app()

    @guarded(app, base=Base)
    def add(a):
        return a + 1

    @guarded(app, base=Patient)
    def late(a):
        return a

    result = add.apply((1,))
    assert result.get() == 2
    assert Base.seen == [result.id]
    assert not late.acks_late
    assert isinstance(add, Base)


def test_a_task_class_can_be_guarded():
    app = make_app()

    @singleton_task(app, key="order")
    class Charge(Task):
        name = "charge"

        def run(self, order: int, cents: int, fence: Fence) -> Any:
            return self.name, order, fence.token > 0

    assert app.tasks["charge"] is Charge
    assert Charge.apply((1, 100)).get() == ("charge", 1, True)
    first = Charge.delay(2, 100)
    assert Charge.delay(2, 200).id == first.id


def test_a_shared_task_is_guarded_in_every_app():
    @singleton_task(name="shared.add")
    def add(a, fence):
        return a, fence.key

    one, other = make_app(), make_app()
    for app in (one, other):
        assert app.tasks["shared.add"].apply((1,)).get()[1] == app.tasks["shared.add"].taskguard.key(1)
        assert is_installed(app)
        assert isinstance(app.tasks["shared.add"], GuardedTask)


def test_a_shared_task_class_belongs_to_each_app_by_itself():
    @singleton_task
    class SharedCharge(Task):
        name = "shared.charge"

        def run(self, a):
            return a

    one, other = make_app(), make_app()
    assert one.tasks["shared.charge"].app is one
    assert other.tasks["shared.charge"].app is other
    assert len({app.tasks["shared.charge"].delay(1).id for app in (one, other)}) == 2


def test_without_brackets_it_is_a_shared_task():
    @singleton_task
    def bare_add(a):
        return a + 1

    app = make_app()
    assert app.tasks["tests.celery.test_decorator.bare_add"].apply((1,)).get() == 2


def test_it_can_be_put_over_celerys_own_decorator():
    app = make_app()

    @singleton_task(key="a")
    @app.task(bind=True, shared=False)
    def add(self, a, b):
        return a + b

    app.finalize()
    assert isinstance(app.tasks[add.name], GuardedTask)
    assert add.delay(1, 2).id == add.delay(1, 3).id
    assert add.apply((7, 8)).get() == 15


def test_over_celerys_own_decorator_acknowledgement_can_be_chosen():
    app = make_app()

    @singleton_task(acks_late=False)
    @app.task(shared=False)
    def add(a):
        return a

    app.finalize()
    assert not app.tasks[add.name].acks_late


def test_over_a_shared_task_it_says_what_to_write():
    with pytest.raises(ConfigurationError, match="in place of @shared_task"):
        singleton_task()(shared_task(identity, name="a shared task that stays plain"))


def test_hooks_of_a_base_class_are_called():
    app = make_app()
    called = []

    class Hooked(Task):
        abstract = True

        def before_start(self, task_id, args, kwargs):
            called.append("before_start")

        def on_success(self, retval, task_id, args, kwargs):
            called.append("on_success")

        def after_return(self, status, retval, task_id, args, kwargs, einfo):
            called.append("after_return")

        @classmethod
        def on_bound(cls, app):
            called.append("on_bound")

    @guarded(app, base=Hooked)
    def add(a):
        return a

    assert add.apply((1,)).get() == 1
    assert called == ["on_bound", "before_start", "on_success", "after_return"]


def test_annotations_of_the_app_reach_guarded_tasks():
    app = make_app(task_annotations={"annotated": {"rate_limit": "7/m"}})

    @guarded(app, name="annotated")
    def add(a):
        return a

    assert app.tasks["annotated"].rate_limit == "7/m"


class TestFence:
    def test_it_reaches_the_body_and_is_never_demanded_of_the_caller(self):
        app = make_app()

        @guarded(app)
        def named(a, fence):
            return a, fence is current_fence()

        @guarded(app, bind=True)
        def annotated(self, a, mine: Fence, b=3):
            return a, b, mine.owner == self.request.id

        assert named.apply((1,)).get() == (1, True)
        assert annotated.apply((1,), {"b": 4}).get() == (1, 4, True)
        named.delay(1), annotated.delay(1)
        assert len(sent(app)) == 2

    def test_a_caller_cannot_pass_it(self):
        app = make_app()

        @guarded(app)
        def add(a, fence):
            return a

        with pytest.raises(TypeError, match="fence"):
            add.delay(1, fence="mine")
        with pytest.raises(TypeError):
            add.delay(1, 2)

    @pytest.mark.skipif(not celery_has_pydantic, reason="Celery has pydantic tasks since 5.5")
    def test_with_pydantic(self):
        app = make_app()

        @guarded(app, pydantic=True, bind=True, key="order.id")
        def charge(self, order: Order, fence: Fence) -> Order:
            assert isinstance(order, Order)
            assert fence.token
            return Order(id=order.id, cents=order.cents + 1)

        assert charge.apply(({"id": 1, "cents": 2},)).get() == {"id": 1, "cents": 3}
        first = charge.delay({"id": 1, "cents": 2})
        assert charge.delay({"id": 1, "cents": 5}).id == first.id


class TestRefused:
    @pytest.mark.parametrize("conflict", ["replace_queued", "cancel_running"])
    def test_a_conflict_that_nothing_supports(self, conflict):
        with pytest.raises(ConfigurationError, match=f'on_conflict="{conflict}" is not known'):
            guarded(make_app(), on_conflict=conflict)(lambda a: a)

    def test_a_misspelt_option(self):
        with pytest.raises(ConfigurationError, match="did you mean on_conflict"):
            guarded(make_app(), on_conflit="raise")(lambda a: a)

    def test_a_key_that_no_call_has(self):
        with pytest.raises(ConfigurationError, match="order"):
            guarded(make_app(), key="order")(lambda a: a)

    def test_a_coroutine_is_refused(self):
        async def later(a):
            return a

        with pytest.raises(ConfigurationError, match="coroutine"):
            guarded(make_app())(later)

    def test_celerys_options_over_celerys_decorator(self):
        app = make_app()
        task = app.task(identity, name="x", shared=False)
        with pytest.raises(ConfigurationError, match="max_retries"):
            singleton_task(max_retries=3)(task)


class TestByName:
    def test_tasks_are_guarded_by_pattern_whenever_they_are_made(self):
        app = make_app()

        @app.task(name="billing.before", shared=False)
        def before(a):
            return a

        app.conf.taskguard_tasks = {"billing.*": {"on_conflict": "skip", "lease": 60}, "other.late": {}}
        install(app)

        @app.task(name="billing.charge", bind=True, shared=False, autoretry_for=(KeyError,), max_retries=1)
        def charge(self, a):
            return current_fence().owner == self.request.id

        @app.task(name="other.plain", shared=False)
        def plain(a):
            return a

        app.finalize()

        @app.task(name="other.late", shared=False)
        def late(a):
            return a

        class OfAClass(Task):
            name = "billing.of_a_class"

            def run(self, a):
                return a

        app.register_task(OfAClass())
        ours = {name: task for name, task in app.tasks.items() if name.startswith(("billing.", "other."))}
        assert {name for name, task in ours.items() if isinstance(task, GuardedTask)} == {
            "billing.before",
            "billing.charge",
            "other.late",
            "billing.of_a_class",
        }
        assert app.tasks["billing.before"].taskguard.policy.lease == 60
        assert app.tasks["billing.before"].acks_late
        assert charge.apply((1,)).get() is True
        first = charge.delay(1)
        assert charge.delay(1).id == first.id
        assert ids(sent(app)) == [first.id]

    def test_a_shared_task_that_installs_the_guard_is_not_too_late_for_lazy_tasks(self):
        @singleton_task(name="shared.installs")
        def installs(a):
            return a

        app = make_app(taskguard_tasks={"lazy.*": {}})
        lazy = app.task(identity, name="lazy.one", shared=False)
        app.finalize()
        assert isinstance(app.tasks["lazy.one"], GuardedTask)
        assert isinstance(lazy._get_current_object(), GuardedTask)

    def test_patterns_that_are_given_later_fit_tasks_that_are_there(self):
        app = make_app()
        install(app)
        app.task(identity, name="there", shared=False)
        app.finalize()
        install(app, tasks={"there": {}})
        assert isinstance(app.tasks["there"], GuardedTask)

    def test_celerys_own_tasks_are_meant_by_their_name_alone(self):
        app = make_app(taskguard_tasks={"celery.backend_*": {}, "*": {}})
        install(app)
        app.task(identity, name="own", shared=False)
        app.finalize()
        assert isinstance(app.tasks["own"], GuardedTask)
        guarded_here = {name for name, task in app.tasks.items() if isinstance(task, GuardedTask)}
        assert {name for name in guarded_here if name.startswith("celery.")} == {"celery.backend_cleanup"}

    def test_acknowledgement_can_be_left_as_it_was(self):
        app = make_app(taskguard_tasks={"x": {"acks_late": False}})
        install(app)
        task = app.task(identity, name="x", shared=False)
        app.finalize()
        assert not task.acks_late

    def test_a_task_that_wants_a_fence_must_be_decorated(self):
        app = make_app(taskguard_tasks={"wants": {}})
        install(app)
        app.finalize()
        with pytest.raises(ConfigurationError, match="current_fence"):
            app.task(wants_fence, name="wants", shared=False)

    def test_an_unknown_option_is_an_error(self):
        app = make_app(taskguard_tasks={"x": {"lase": 3}})
        install(app)
        app.finalize()
        with pytest.raises(ConfigurationError, match="did you mean lease"):
            app.task(identity, name="x", shared=False)


class TestInstall:
    def test_nothing_happens_on_import(self):
        app = Celery("untouched", set_as_current=False)
        assert app.send_task.__func__ is Celery.send_task
        assert not is_installed(app)

    def test_a_setting_that_is_none(self):
        with pytest.raises(ConfigurationError, match="no setting stor;"):
            install(make_app(), stor="redis://")

    def test_settings_count_that_come_after_a_task_was_made(self):
        app = make_app()

        @guarded(app)
        class Made(Task):
            name = "made"

            def run(self, a):
                return a

        app.conf.taskguard_namespace = "late"
        install(app, queued_for=3)
        assert (app._taskguard.settings.namespace, app._taskguard.settings.queued_for) == ("late", 3)

    def test_settings_come_too_late_once_in_use(self):
        app = make_app()

        @guarded(app)
        def add(a):
            return a

        add.delay(1)
        install(app)
        with pytest.raises(ConfigurationError, match="already uses taskguard"):
            install(app, queued_for=3)

    def test_what_was_given_wins_over_the_configuration(self):
        app = make_app(taskguard_queued_for=5, taskguard_republish_after=6)
        install(app, queued_for=7)
        assert app._taskguard.settings.queued_for == 7
        assert app._taskguard.settings.republish_after == 6


class TestWhatTheUserSees:
    @pytest.mark.parametrize("with_fence", [False, True])
    def test_a_traceback_of_arguments_that_do_not_fit_shows_the_bodys_error_alone(self, with_fence):
        app = make_app()
        body = wants_fence if with_fence else identity
        guarded(app, name="job", key="a")(body)
        app.task(name="plain", shared=False)(identity)
        ours, plain = (app.tasks[name].apply((1, 2)) for name in ("job", "plain"))

        assert isinstance(ours.result, TypeError)
        assert with_fence or str(ours.result) == str(plain.result)
        assert ours.traceback.count("Traceback") == plain.traceback.count("Traceback") == 1
        assert "inspect.py" not in ours.traceback

    @pytest.mark.parametrize("wrong", [{"args": (1, 2)}, {"kwargs": {"b": 1}}, {}])
    def test_arguments_that_do_not_fit_are_refused_by_celery_as_without_a_guard(self, wrong):
        app = make_app()
        guarded(app, name="job", key="a")(identity)
        app.task(name="plain", shared=False)(identity)
        errors = []
        for name in ("job", "plain"):
            with pytest.raises(TypeError) as caught:
                app.tasks[name].apply_async(**wrong)
            errors.append(str(caught.value))
            assert caught.value.__context__ is None
            assert caught.traceback[-1].path.name == "task.py"
        assert errors[0] == errors[1]

    @pytest.mark.skipif(not hasattr(Celery, "_warn_duplicate_task_name"), reason="before Celery 5.7 nobody is warned")
    @pytest.mark.parametrize("how", ["function", "function, at once", "class", "by name", "lazily by name"])
    def test_a_name_that_is_taken_is_warned_of_at_the_users_line(self, how):
        app = make_app()
        if how.endswith("by name"):
            install(app, tasks={"*": {}})
            make = app.task(name="job", shared=False, lazy=how.startswith("lazily"))
        else:
            make = guarded(app, name="job", lazy=how != "function, at once")

        class Job(Task):
            name = "job"

            def run(self, a):
                return a

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            make(identity)
            if how == "class":
                guarded(app)(Job)
            else:
                make(lambda a: a)
            app.finalize()
        taken = [warning for warning in caught if "Task name 'job' is already registered" in str(warning.message)]
        assert [warning.filename for warning in taken] == [__file__]
