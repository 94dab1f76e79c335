from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from taskguard import Guard
from taskguard.cli.main import taskguard
from tests.celery.conftest import docker_client, fleet, make_fleet  # noqa: F401 - fixtures
from tests.celery.scene import Scene

Run = Callable[..., Result]


@pytest.fixture
def guard(store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guard]:
    """A guard on each kind of store; commands look at the same one."""
    namespace = f"cli-{uuid4().hex[:8]}"
    monkeypatch.setenv("TASKGUARD_STORE", store_url)
    monkeypatch.setenv("TASKGUARD_NAMESPACE", namespace)
    guard = Guard(store_url, namespace=namespace)
    yield guard
    guard.close()


@pytest.fixture
def run() -> Run:
    """Run a command in this process; its output is no terminal."""

    def run(*arguments: str, **options: Any) -> Result:
        return CliRunner().invoke(taskguard, arguments, prog_name="taskguard", **options)

    return run


@pytest.fixture
def scene(fleet: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:  # noqa: F811
    """A fleet, which commands find with `-A tests.celery.tasks`."""
    for name, value in fleet._environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
    return Scene(fleet, tmp_path)
