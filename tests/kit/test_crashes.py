"""The crash-point helper finds what a crash can do, and nothing else."""

from __future__ import annotations

import psutil
import pytest

from taskguard import ConfigurationError
from taskguard.testing import assert_survives_crashes, assert_survives_pauses
from tests.kit import bank

ORDER = ("order-1",)


@pytest.mark.parametrize("job", [bank.right, bank.right_in_rq], ids=["celery", "rq"])
def test_a_job_whose_effect_and_memory_commit_together_survives_every_crash(job):
    steps = assert_survives_crashes(job, ORDER, check=bank.check, before=bank.reset)

    assert steps >= 10  # claim and complete, before and after, and the lines between


@pytest.mark.parametrize("job", [bank.wrong, bank.wrong_in_rq], ids=["celery", "rq"])
def test_a_job_whose_effect_comes_before_its_record_is_caught(job):
    with pytest.raises(AssertionError) as caught:
        assert_survives_crashes(job, ORDER, check=bank.check, before=bank.reset)

    words = str(caught.value)
    assert "the check failed after" in words
    assert "before complete: AssertionError: charged 2 times" in words
    assert "before line" in words and 'return "charged"' in words
    assert "before claim" not in words and "after complete" not in words


def test_the_same_by_a_guard_alone():
    assert_survives_crashes(bank.right_by_guard, check=bank.check, before=bank.reset)
    with pytest.raises(AssertionError, match="charged 2 times"):
        assert_survives_crashes(bank.wrong_by_guard, check=bank.check, before=bank.reset)


def test_a_job_that_may_start_once_is_not_taken_over():
    def check() -> None:
        assert bank.charges() <= 1

    assert_survives_crashes(bank.at_most_once, ORDER, check=check, before=bank.reset)


def test_a_job_that_fails_by_itself_is_told_apart():
    with pytest.raises(AssertionError, match="fails even without a disturbance(.|\n)*ValueError: order-1"):
        assert_survives_crashes(bank.broken, ORDER, check=bank.check, before=bank.reset)


def test_a_job_that_remembers_its_effect_survives_crashes_and_pauses():
    assert_survives_crashes(bank.remembered, ORDER, check=bank.check, before=bank.reset)
    assert_survives_pauses(bank.remembered, ORDER, check=bank.check, before=bank.reset)


def test_a_job_that_sleeps_and_writes_behind_its_successor_is_caught():
    with pytest.raises(AssertionError, match="after claim: AssertionError: charged 2 times"):
        assert_survives_pauses(bank.wrong, ORDER, check=bank.check, before=bank.reset)


def test_a_fence_alone_stops_the_sleeper_and_not_the_second_run_of_one_that_had_written():
    with pytest.raises(AssertionError) as caught:
        assert_survives_pauses(bank.fenced, ORDER, check=bank.check, before=bank.reset)

    words = str(caught.value)
    assert "before complete: AssertionError: charged 2 times" in words
    assert "after claim" not in words and "fence.protect" not in words


def test_this_process_is_left_as_it_was():
    store, children = bank.app.conf.taskguard_store, psutil.Process().children()
    assert_survives_crashes(bank.right, ORDER, check=bank.check, before=bank.reset)

    assert bank.app.conf.taskguard_store == store
    assert psutil.Process().children() == children


def test_an_interrupted_test_leaves_no_stopped_process_behind(monkeypatch):
    def interrupted(child):
        raise KeyboardInterrupt  # while the sleeper is stopped, and another run has its turn

    children = psutil.Process().children()
    monkeypatch.setattr("taskguard.testing.children.Child.go_on", interrupted)
    with pytest.raises(KeyboardInterrupt):
        assert_survives_pauses(bank.right, ORDER, check=bank.check, before=bank.reset)

    assert psutil.Process().children() == children


def test_too_many_steps_are_said():
    with pytest.raises(AssertionError, match="steps, more than 3"):
        assert_survives_crashes(bank.right, ORDER, check=bank.check, before=bank.reset, at_most=3)


def test_what_is_no_job_is_said():
    with pytest.raises(ConfigurationError, match="neither a guarded task nor a function"):
        assert_survives_crashes("charge", check=bank.check)


def test_a_task_that_is_not_guarded_is_said():
    @bank.app.task(shared=False)
    def plain(order): ...

    with pytest.raises(ConfigurationError, match="neither a guarded task nor a function"):
        assert_survives_crashes(plain, ORDER, check=bank.check)
