"""No option is swallowed: a name that neither the guard, nor Celery, nor the base class knows is an error."""

from __future__ import annotations

import inspect
import re
from typing import Any

import celery.app.autoretry
import pytest
from celery import Task, _state

from taskguard import ConfigurationError
from taskguard.celery import install, singleton_task
from taskguard.celery.task_options import AUTORETRY, of_functions, of_messages

from .inprocess import guarded, make_app


class Tenanted(Task):
    abstract = True
    tenant = None


class Charge(Task):
    name = "charge"
    tenant = None

    def run(self, user_id: int, day: int = 0) -> int:
        return user_id


def charge(user_id: int, day: int = 0) -> int:
    return user_id


def refusal(what: Any = charge, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        guarded(make_app(), **options)(what)
    return str(caught.value)


@pytest.mark.parametrize("what", [charge, Charge])
@pytest.mark.parametrize(
    ("option", "value", "advice"),
    [
        ("ley", "user_id", "there is no option ley (did you mean key?)"),
        ("on_conflit", "raise", "did you mean on_conflict?"),
        ("max_retrys", 3, "did you mean max_retries?"),
        ("autoretry", (KeyError,), "did you mean autoretry_for?"),
        ("xyz", 1, "write one of: key, hold, on_conflict, on_done, lease,"),
        ("unique_on", "user_id", "unique_on is an option of celery-singleton; write key='user_id'"),
        ("unique_on", ["user_id"], "write key='user_id'"),
        ("unique_on", ["user_id", "day"], "write key=('user_id', 'day')"),
        ("unique_on", [], "leave it out"),
        ("raise_on_duplicate", True, "write on_conflict='raise'"),
        ("raise_on_duplicate", False, "write on_conflict='skip'"),
        ("lock_expiry", 10, "lease=30"),
        ("challenge_lock_on_startup", True, "leave it out"),
        ("celery_app", None, "write @singleton_task(app, …)"),
        ("once", {}, "once is an option of celery-once; write on_conflict='raise'"),
        ("once", {"keys": ["user_id"]}, "write key='user_id', on_conflict='raise'"),
        ("once", {"keys": []}, "write key=lambda *args, **kwargs: 'one', on_conflict='raise'"),
        ("once", {"graceful": True, "timeout": 60}, "write on_conflict='skip'; timeout: leave it out"),
        ("once", {"unlock_before_run": True, "graceful": True}, "write on_conflict='skip', hold='queued'"),
        ("once", None, "write on_conflict='raise'"),
        ("keys", ["user_id"], "write key='user_id'"),
        ("graceful", True, "write on_conflict='skip'"),
        ("unlock_before_run", True, "write hold='queued'"),
        ("ttl", 60, "there is no option ttl; leave it out"),
        ("timeout", 60, "there is no option timeout; leave it out"),
        ("delay", 5, "delay is a method of a task"),
    ],
)
def test_it_is_refused_with_what_to_write(what: Any, option: str, value: Any, advice: str):
    assert advice in refusal(what, **{option: value})


def test_all_of_them_are_named_at_once():
    said = refusal(unique_on="user_id", lock_expiry=60)

    assert "write key='user_id'" in said and "lease=30" in said


def test_over_celerys_decorator_it_is_not_called_an_option_of_celerys():
    with pytest.raises(ConfigurationError, match="did you mean key"):
        singleton_task(ley="user_id")(make_app().task(charge, shared=False))


def test_what_celery_or_the_base_class_knows_passes():
    app = make_app()
    chosen: dict[str, Any] = {
        "max_retries": 7,
        "rate_limit": "5/m",
        "throws": (KeyError,),
        "serializer": "json",
        "routing_key": "somewhere",
        "retry_backoff": True,
        "autoretry_for": (KeyError,),
        "typing": False,
        "tenant": "acme",
    }
    made = guarded(app, base=Tenanted, name="tenanted", **chosen)(charge)

    assert {name: getattr(made, name) for name in chosen} == chosen
    assert guarded(app, tenant="acme")(Charge).tenant == "acme"


def test_an_attribute_of_the_base_class_that_is_misspelt_is_proposed():
    assert "did you mean tenant?" in refusal(base=Tenanted, tenent="acme")
    assert "did you mean tenant?" in refusal(Charge, tenent="acme")


def test_the_base_class_of_the_app_counts():
    app = make_app()
    app.task_cls = Tenanted

    assert guarded(app, name="tenanted", tenant="acme")(charge).tenant == "acme"


@pytest.mark.parametrize("option", ["base", "bind"])
def test_a_task_class_has_no_use_for_options_of_functions(option: str):
    assert f"{option} is an option for a function" in refusal(Charge, **{option: True})


def test_what_the_installed_celery_reads_is_known():
    read = set(re.findall(r"options\.get\(\s*'(\w+)'", inspect.getsource(celery.app.autoretry)))

    assert read == set(AUTORETRY)
    assert {"queue", "priority", "expires", "compression"} <= of_messages()
    assert {"name", "base", "bind", "shared", "lazy"} <= of_functions()


def test_by_name_it_is_refused_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_state, "_on_app_finalizers", set())  # shared tasks of other tests: one has that name too
    app = make_app(taskguard_tasks={"charge": {"unique_on": ["user_id"]}})
    install(app)
    app.finalize()

    with pytest.raises(ConfigurationError, match="write key='user_id'"):
        app.task(charge, name="charge", shared=False)


@pytest.mark.parametrize(
    ("setting", "advice"),
    [
        ("taskguard_stor", "did you mean taskguard_store?"),
        ("taskguard_lease", "lease is an option of a task: write @singleton_task(app, lease=…)"),
        ("taskguard_xyz", "write one of: taskguard_store, taskguard_namespace,"),
    ],
)
def test_a_setting_that_is_none_is_refused(setting: str, advice: str):
    app = make_app(**{setting: 60})
    made = guarded(app)(charge)

    with pytest.raises(ConfigurationError) as caught:
        made.delay(1)
    assert advice in str(caught.value)
