"""A worker that is killed at every boundary between its statements: the money is moved exactly once all the same."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskguard import Guard
from taskguard.fence import Fence
from tests.fencing.databases import Client
from tests.fencing.forked import Forked
from tests.fencing.mover import BOUNDARIES, MOVED, books, move

LEASE = 0.25
AT_ALL = (*BOUNDARIES, "after the end")


def run(store: str, url: str, boundary: Any) -> int:
    guard = Guard(store)
    with closing(guard):

        def work(fence: Fence) -> int:
            return move(fence, url, boundary)

        return guard.run("move", work, keep_for=60, lease=LEASE, wait_up_to=30)


def die_at(name: str) -> Any:
    def boundary(here: str) -> None:
        if here == name:
            os.kill(os.getpid(), signal.SIGKILL)

    return boundary


def test_there_is_a_boundary_at_every_statement(url: str, plain: Client, tmp_path: Path):
    seen: list[str] = []
    run(f"sqlite:///{tmp_path / 'store'}.db", url, seen.append)

    assert seen == list(BOUNDARIES)
    assert books(plain) == MOVED


@pytest.mark.parametrize("name", AT_ALL)
def test_killed(url: str, plain: Client, tmp_path: Path, name: str):
    store = f"sqlite:///{tmp_path / 'store'}.db?timeout=20"

    def victim(tell: Any, hear: Any) -> None:
        run(store, url, die_at(name))
        os.kill(os.getpid(), signal.SIGKILL)  # after the end

    with closing(Forked(victim)) as process:
        assert process.wait() == -signal.SIGKILL
    committed = name in ("after the commit", "after the end")
    assert books(plain) == MOVED if committed else books(plain)["entries"] == []

    run(store, url, lambda here: None)  # whoever takes the job over
    assert books(plain) == MOVED
