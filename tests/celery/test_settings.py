"""Where the store comes from, and what a wrong setting says."""

from __future__ import annotations

import ssl
from contextlib import closing

import pytest
from celery import Celery

from taskguard import ConfigurationError
from taskguard.celery.guarding import AppGuard
from taskguard.celery.settings import Settings, store_of, visibility_timeout
from tests.servers import require

from .inprocess import deliver, guarded, make_app, sent


def app_with(**conf):
    app = Celery("settings", set_as_current=False)
    app.conf.update(conf)
    return app


@pytest.mark.parametrize(
    ("broker", "backend", "store"),
    [
        ("redis://host:1/2", "redis://other", "redis://host:1/2"),
        ("rediss://host:1/2?ssl_cert_reqs=none", None, "rediss://host:1/2?ssl_cert_reqs=none"),
        ("redis://one;redis://two", None, "redis://one"),
        ("redis+socket:///run/redis.sock?virtual_host=3", None, "unix:///run/redis.sock?db=3"),
        ("amqp://host", "redis://other/1", "redis://other/1"),
        ("amqp://host", "db+postgresql+psycopg2://user@host/name", "postgresql://user@host/name"),
        ("sqla+sqlite:////var/jobs.db", None, "sqlite:////var/jobs.db"),
        ("amqp://host", "db+sqlite:///results.db", "sqlite:///results.db"),
    ],
)
def test_the_store_is_the_broker_else_the_result_backend(broker, backend, store):
    assert store_of(app_with(broker_url=broker, result_backend=backend)) == store


@pytest.mark.parametrize(
    "wrong",
    [
        {"listeners": print},
        {"listeners": [print, "print"]},
        {"namespace": 5},
        {"namespace": ""},
        {"on_evicting_store": "panic"},
        {"redeliver_orphans": "no"},
    ],
)
def test_a_wrong_setting_is_told_at_the_first_call_and_nothing_is_published(wrong):
    app = make_app(**{f"taskguard_{name}": value for name, value in wrong.items()})

    @guarded(app)
    def add(a):
        return a

    with pytest.raises(ConfigurationError, match=f"taskguard_{next(iter(wrong))}"):
        add.delay(1)
    assert not sent(app)


def test_a_redis_that_evicts_is_refused_where_the_app_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("taskguard.stores.redis._evictions", {})
    evicting = {"maxmemory": "100mb", "maxmemory-policy": "volatile-lru"}
    with closing(require("valkey", settings=evicting)) as server:
        app = make_app(taskguard_store=server.url, taskguard_on_evicting_store="refuse")

        @guarded(app)
        def add(a):
            return a

        with pytest.raises(ConfigurationError, match="volatile-lru.*set maxmemory-policy noeviction"):
            add.delay(1)
        assert not sent(app)
        deliver(add, "sent-by-another", 1)
        assert app.AsyncResult("sent-by-another").state == "FAILURE"


def test_a_misspelt_setting_is_told_at_the_first_call():
    app = make_app(taskguard_republish_afer=3, taskguard_something_else=4)

    @guarded(app)
    def add(a):
        return a

    with pytest.raises(ConfigurationError, match="taskguard_republish_afer .did you mean taskguard_republish_after"):
        add.delay(1)


def test_settings_are_found_under_the_prefix_of_djangos_settings():
    class Django:
        CELERY_TASKGUARD_NAMESPACE = "shop"
        CELERY_TASKGUARD_TASKS = {"billing.*": {"lease": 60}}  # noqa: RUF012 - as a settings module has it

    app = Celery("django", set_as_current=False)
    app.config_from_object(Django, namespace="CELERY")
    settings = AppGuard(app, app.send_task).settings
    assert (settings.namespace, settings.tasks) == ("shop", {"billing.*": {"lease": 60}})


def test_tls_of_the_broker_is_tls_of_the_store():
    app = app_with(
        broker_url="redis://host/0", broker_use_ssl={"ssl_cert_reqs": ssl.CERT_NONE, "ssl_ca_certs": "/ca.pem"}
    )
    assert store_of(app) == "rediss://host/0?ssl_cert_reqs=none&ssl_ca_certs=%2Fca.pem"


@pytest.mark.parametrize("broker", ["amqp://host", "memory://", "sentinel://host:26379"])
def test_an_app_that_has_no_store_is_told_what_to_set(broker):
    with pytest.raises(ConfigurationError, match="taskguard_store"):
        store_of(app_with(broker_url=broker, result_backend="rpc://"))


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("on_store_error", "ignore", "retry, fail or run_unguarded"),
        ("queued_for", 0, "must be a positive number of seconds"),
        ("queued_for", True, "must be a positive number of seconds"),
        ("republish_after", "5", "must be a positive number of seconds"),
        ("listeners", ["print"], "must be a list of functions"),
        ("namespace", "", "must be a non-empty string"),
        ("namespace", 3, "must be a non-empty string"),
        ("tasks", ["billing.*"], "options by pattern"),
    ],
)
def test_a_wrong_setting_says_what_to_write(name, value, problem):
    with pytest.raises(ConfigurationError, match=problem):
        Settings.of(app_with(**{f"taskguard_{name}": value}), {})


def test_an_end_is_remembered_longer_than_a_message_can_come_back():
    app = app_with(broker_transport_options={"visibility_timeout": 43200})
    assert visibility_timeout(app) == 43200
    assert AppGuard(app, app.send_task).keep_for == 86400
    assert AppGuard(app_with(), app.send_task).keep_for == 7200


def test_a_message_is_put_back_for_less_than_half_the_visibility_timeout():
    app = app_with(broker_transport_options={"visibility_timeout": 9})
    assert AppGuard(app, app.send_task).longest_delay == 3
    assert AppGuard(app_with(), app.send_task).longest_delay == 30
