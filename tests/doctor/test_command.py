"""`taskguard doctor -A`: what it says, and its exit code for CI."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from taskguard.cli.main import taskguard

# An app of another test in this process shares its tasks with those made here.
pytestmark = pytest.mark.filterwarnings("ignore:Task name")

SHOP = """
from celery import Celery
from taskguard.celery import singleton_task

app = Celery("shop", broker="{url}", backend="{url}", set_as_current=False)
app.conf.taskguard_store = "{url}"

@singleton_task(app, shared=False, {options})
def charge(order, cents=0):
    pass
"""


@pytest.fixture
def doctor(make_redis: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`taskguard doctor -A shop` for a shop whose task has these options."""
    monkeypatch.chdir(tmp_path)

    def run(options: str, *arguments: str) -> Result:
        (tmp_path / "shop.py").write_text(SHOP.format(url=make_redis().url, options=options))
        sys.modules.pop("shop", None)
        return CliRunner().invoke(taskguard, ["doctor", "-A", "shop", *arguments], prog_name="taskguard")

    yield run
    sys.modules.pop("shop", None)


def test_a_sound_shop(doctor: Any):
    result = doctor("key='order'", "--strict")

    assert (result.exit_code, result.stdout) == (0, "No problems found.\n")


def test_a_warning_is_no_error_unless_it_is_to_be_one(doctor: Any):
    assert doctor("acks_late=False").exit_code == 0
    assert doctor("acks_late=False", "--strict").exit_code == 1
    assert doctor("acks_late=False", "--strict", "--ignore", "TG202").exit_code == 0


def test_an_error_says_what_to_do(doctor: Any):
    result = doctor("keep_for=60")

    assert result.exit_code == 1
    assert "TG204 error  shop.charge: keep_for is shorter than a redelivery takes" in result.stdout
    assert "Fix: write keep_for=7200 or more, or leave it out." in result.stdout


def test_findings_in_json(doctor: Any):
    result = doctor("keep_for=60, acks_late=False", "--json")

    assert result.exit_code == 1
    assert [(finding["id"], finding["level"], finding["about"]) for finding in json.loads(result.stdout)] == [
        ("TG204", "error", "shop.charge"),
        ("TG202", "warning", "shop.charge"),
    ]


def test_an_app_without_a_store_is_a_wrong_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "storeless.py").write_text("from celery import Celery\napp = Celery('x', broker='amqp://')\n")
    result = CliRunner().invoke(taskguard, ["doctor", "-A", "storeless"], prog_name="taskguard")

    assert result.exit_code == 2
    assert "taskguard needs a store" in result.output
