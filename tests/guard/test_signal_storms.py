"""Signals whose handlers raise, at any step of `hold` and `run`: no lease is left that nobody is inside of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STORES = ("memory", "sqlite", "redis", "postgresql")


def url_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    if kind == "memory":
        return "memory://"
    if kind == "sqlite":
        return f"sqlite:///{folder / 'taskguard.db'}?timeout=10"
    return request.getfixturevalue({"redis": "redis_server", "postgresql": "postgres_server"}[kind]).url


def weather(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.guard.storm", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=float(str(arguments[-1])) + 90)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def assert_all_is_well(seen: dict[str, Any]) -> None:
    assert seen["errors"] == {}, seen
    assert not seen["left current"]
    assert seen["renewed"] == 0
    assert seen["twice"] == []


@pytest.mark.parametrize("signals", [1, 4])
@pytest.mark.parametrize("fate", ["kept", "dropped"])
@pytest.mark.parametrize("verb", ["hold", "run"])
@pytest.mark.parametrize("kind", STORES)
def test_no_lease_is_held_for_nobody_after_a_storm(
    kind: str, verb: str, fate: str, signals: int, request: pytest.FixtureRequest, tmp_path: Path
):
    assert_all_is_well(weather(url_of(kind, request, tmp_path), verb, fate, signals, 2))


@pytest.mark.faults
@pytest.mark.timeout(300)
@pytest.mark.parametrize("signals", [1, 4])
@pytest.mark.parametrize("fate", ["kept", "dropped"])
@pytest.mark.parametrize("verb", ["hold", "run"])
@pytest.mark.parametrize("kind", STORES)
def test_no_lease_is_held_for_nobody_after_a_long_storm(
    kind: str, verb: str, fate: str, signals: int, request: pytest.FixtureRequest, tmp_path: Path
):
    assert_all_is_well(weather(url_of(kind, request, tmp_path), verb, fate, signals, 60))
