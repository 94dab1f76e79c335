"""The off switch: nothing is guarded, nothing is asked, and bodies still have what they need."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import closing

import pytest
import redis
from rq import Queue, SimpleWorker

from taskguard import ConfigurationError, Guard
from taskguard.celery.headers import IDEMPOTENCY_KEY
from taskguard.rq import GuardedQueue, GuardedSimpleWorker
from taskguard.runtime import switch
from taskguard.testing import unguarded
from tests.kit import bank

ORDER = "order-1"


class Untouchable:
    """A store that may not be asked."""

    def claim(self, claim, /):
        raise AssertionError("asked")


@pytest.mark.usefixtures("taskguard_off")
def test_every_call_of_celery_runs_and_no_store_is_asked(monkeypatch):
    monkeypatch.setitem(bank.app.conf, "task_always_eager", True)
    first, second = bank.kept.delay(ORDER), bank.kept.delay(ORDER)

    assert bank.charges() == 2
    assert second.get() > first.get()  # tokens still rise
    assert not second.taskguard.duplicate


@pytest.mark.usefixtures("taskguard_off")
def test_every_call_of_celery_is_published():
    first, second = bank.right.delay(ORDER), bank.right.delay(ORDER)

    assert first.id != second.id
    assert not second.taskguard.duplicate


@pytest.mark.usefixtures("taskguard_off")
def test_a_map_is_not_guarded_either():
    result = bank.app.tasks["celery.map"].apply((bank.kept.s(), [ORDER, ORDER]), task_id="a-map")

    assert len(set(result.get())) == 2


@pytest.mark.usefixtures("taskguard_off")
def test_an_idempotency_key_reaches_the_body_all_the_same():
    bank.right.apply((ORDER,), headers={IDEMPOTENCY_KEY: "mine"}).get()
    with closing(bank.connect()) as connection:
        (seen,) = connection.execute("SELECT id FROM seen").fetchone()

    assert seen == "mine"


@pytest.mark.parametrize("worker_class", [SimpleWorker, GuardedSimpleWorker])
def test_every_call_of_rq_runs(redis_server, worker_class):
    with redis.Redis.from_url(redis_server.url) as connection:
        queue = GuardedQueue("off", connection=connection)
        with unguarded():
            jobs = [queue.enqueue(bank.ship, ORDER) for _ in range(2)]
            worker_class([queue], connection=connection).work(burst=True, logging_level="ERROR")

        assert len({job.id for job in jobs}) == 2
        assert [job.return_value(refresh=True) for job in jobs] == [job.id for job in jobs]
        assert bank.charges() == 2
        assert connection.keys("taskguard:*bank.ship*") == []
        assert not Queue("off", connection=connection).count


def test_a_guard_by_itself():
    guard = Guard(Untouchable())
    with unguarded():
        with guard.hold("key") as outer, guard.hold("key") as inner:
            assert outer.token < inner.token
            inner.check()
        assert guard.run("key", lambda fence: fence.key, keep_for=60) == "key"
    with pytest.raises(AssertionError, match="asked"), guard.hold("key"):
        pass


def test_the_variable_switches_a_whole_process_off(monkeypatch, caplog):
    monkeypatch.setenv("TASKGUARD_OFF", "1")
    monkeypatch.setattr(switch, "_has_warned", False)
    with caplog.at_level(logging.WARNING, "taskguard"):
        assert switch.is_off() and switch.is_off()

    assert [record.getMessage() for record in caplog.records] == [
        "TASKGUARD_OFF=1: this process guards nothing; set it in tests only"
    ]


@pytest.mark.parametrize("value", ["", "0"])
def test_the_variable_can_say_no(monkeypatch, value):
    monkeypatch.setenv("TASKGUARD_OFF", value)

    assert not switch.is_off()


def test_a_variable_that_cannot_be_read_is_said(monkeypatch):
    monkeypatch.setenv("TASKGUARD_OFF", "yes")
    with pytest.raises(ConfigurationError, match="TASKGUARD_OFF='yes' is not known; write 1"):
        switch.is_off()


def test_it_is_on_again_after_a_block_that_failed():
    with pytest.raises(ValueError, match="x"), unguarded():
        raise ValueError("x")

    assert not switch.is_off()


def test_the_kit_imports_no_test_runner_and_no_queue():
    program = (
        "import sys; from taskguard.testing import *; import taskguard.testing.asserts, taskguard.testing.swap; "
        "print([name for name in ('pytest', 'celery', 'rq', 'redis') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ}
    )

    assert done.stdout.strip() == "[]"
