"""A task that moves money between two accounts, and can be killed at every boundary between its statements."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from taskguard import Fence, current_fence
from tests.fencing.databases import Client, connect

CENTS = 100
BOUNDARIES = (
    "before the first",
    "after protect",
    "after once",
    "after one was debited",
    "after two was credited",
    "after the entry of one",
    "after the entry of two",
    "after the commit",
)


def move(fence: Fence, url: str, boundary: Callable[[str], Any]) -> int:
    """Tells each boundary as it comes there."""
    client = connect(url)
    try:
        boundary("before the first")
        with client.transaction() as tx:
            fence.protect(tx)
            boundary("after protect")
            first = fence.once(tx)
            boundary("after once")
            if first:
                client.execute("UPDATE account SET cents = cents - ? WHERE id = 'one'", CENTS)
                boundary("after one was debited")
                client.execute("UPDATE account SET cents = cents + ? WHERE id = 'two'", CENTS)
                boundary("after two was credited")
                client.execute("INSERT INTO booking VALUES ('one', ?)", -CENTS)
                boundary("after the entry of one")
                client.execute("INSERT INTO booking VALUES ('two', ?)", CENTS)
                boundary("after the entry of two")
        boundary("after the commit")
    finally:
        client.close()
    return fence.token


def move_and_die_once(url_and_boundary: list[str], *, died: bool, dying: Callable[[], Any]) -> int:
    """For the body of a queue's job: killed at the boundary, the first time that it comes there."""
    url, at = url_and_boundary
    fence = current_fence()
    assert fence is not None

    def boundary(name: str) -> None:
        if name == at and not died:
            dying()
            os.kill(os.getpid(), signal.SIGKILL)

    return move(fence, url, boundary)


def protect(url: str, resource: str) -> int:
    """For the body of a queue's job: one protected transaction."""
    fence = current_fence()
    assert fence is not None
    client = connect(url)
    try:
        with client.transaction() as tx:
            fence.protect(tx, resource)
            client.execute("UPDATE account SET cents = ? WHERE id = 'one'", fence.token)
    finally:
        client.close()
    return fence.token


def books(client: Client) -> dict[str, Any]:
    """What there is to be found, if the money was moved exactly once or not at all."""
    with client.transaction():
        return {
            "accounts": dict(client.execute("SELECT id, cents FROM account")),
            "entries": sorted(client.execute("SELECT id, cents FROM booking")),
            "effects": int(client.execute("SELECT count(*) FROM taskguard_once")[0][0]),
        }


MOVED = {"accounts": {"one": 1000 - CENTS, "two": CENTS}, "entries": [("one", -CENTS), ("two", CENTS)], "effects": 1}
