"""A task that is called by its short name: who meant which is said, where only one can be meant."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest
from celery import _state

from taskguard import Guard
from tests.cli.conftest import Run

APP = ("-A", "tests.cli.shop")


@pytest.fixture
def guard(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guard]:
    """On the store of the app, which is imported anew for it."""
    url = f"sqlite:///{tmp_path}/store.db"
    monkeypatch.setenv("TASKGUARD_STORE", url)
    monkeypatch.setattr(_state, "_on_app_finalizers", set())  # shared tasks of other tests: one has that name too
    sys.modules.pop("tests.cli.shop", None)
    importlib.import_module("tests.cli.shop")
    guard = Guard(url)
    yield guard
    guard.close()


@pytest.mark.parametrize("command", ["show", "explain", "release"])
@pytest.mark.parametrize("words", [["charge"], ["charge", "42"], ["shop.chrage", "42"]], ids=" ".join)
def test_one_task_that_fits_is_named(guard: Guard, run: Run, command: str, words: list[str]):
    result = run(command, *APP, *words)

    assert result.exit_code == 2
    assert result.stderr.strip().endswith("did you mean shop.charge?")


def test_of_two_tasks_that_fit_none_is_named(guard: Guard, run: Run):
    result = run("show", *APP, "refund", "42")

    assert result.exit_code == 2
    assert "refund is not a task of this app" in result.stderr and "did you mean" not in result.stderr


def test_a_task_that_is_not_guarded_is_not_meant(guard: Guard, run: Run):
    assert "did you mean" not in run("show", *APP, "greet", "42").stderr


def test_a_key_of_that_name_goes_first(guard: Guard, run: Run):
    with guard.hold("charge"):
        assert "running" in run("show", *APP, "charge").stdout
    assert guard.recorder is not None
    guard.recorder.flush()
    guard.store.forget("charge")

    explained = run("explain", *APP, "charge")
    assert explained.exit_code == 0 and "Decisions (UTC" in explained.stdout


def test_ls_names_the_task_that_is_there(guard: Guard, run: Run):
    key = "shop.charge:1:" + "a" * 32
    with guard.hold(key):
        assert "did you mean shop.charge?" in run("ls", "--task", "charge").stdout
        assert "did you mean" not in run("ls", "--task", "shop.*", "--older-than", "1h").stdout
        assert key in run("ls", "--keys", "--task", "shop.charge").stdout
