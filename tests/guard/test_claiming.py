"""From the first question for a key to the moment its body begins."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from taskguard import Event, Guard, LeaseLostError
from taskguard.protocol.store import Ending
from taskguard.runtime.clocks import since_boot
from taskguard.stores.memory import MemoryStore
from taskguard.testing.contract import claimed
from tests.waiting import wait_until


class TimeIsOver(Exception):  # noqa: N818 - as a handler of SIGALRM raises it
    pass


def hold(guard: Guard, body: Callable[[], object], **options: Any) -> None:
    with guard.hold("key", **options):
        body()


def run(guard: Guard, body: Callable[[], object], **options: Any) -> None:
    guard.run("key", body, **{"keep_for": 60, **options})


@pytest.fixture(params=[hold, run], ids=["hold", "run"])
def verb(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("is_granted", [True, False], ids=["granted", "on its way"])
def test_a_time_out_while_the_key_is_claimed_frees_it(
    guard: Guard, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, verb: Any, is_granted: bool
):
    def raise_time_out(number: int, frame: Any) -> None:
        raise TimeIsOver

    claim = store.claim

    def interrupted(question: Any) -> Any:
        if is_granted:
            claim(question)
        os.kill(os.getpid(), signal.SIGUSR1)

    monkeypatch.setattr(store, "claim", interrupted)
    before = signal.signal(signal.SIGUSR1, raise_time_out)
    try:
        with pytest.raises(TimeIsOver):
            verb(guard, lambda: pytest.fail("began"))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [entry for entry in store.scan() if entry.state == "running"] == []


def test_a_body_does_not_begin_if_another_took_the_key_meanwhile(
    guard: Guard, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, verb: Any
):
    claim = store.claim

    def slow(question: Any) -> Any:
        monkeypatch.undo()
        answer, until = claim(question), since_boot() + question.lease
        wait_until(lambda: since_boot() > until)  # as in a process that is stopped as soon as the store has answered
        claimed(store, "another")
        return answer

    began: list[str] = []
    monkeypatch.setattr(store, "claim", slow)
    with pytest.raises(LeaseLostError):
        verb(guard, lambda: began.append("began"), lease=0.1)
    assert began == []


def test_who_waited_for_the_key_is_reported_as_its_holder(
    guard: Guard, store: MemoryStore, events: list[Event], verb: Any
):
    lease = claimed(store, "alice")
    threading.Timer(0.1, lambda: store.release(lease, Ending(keep_for=60))).start()

    verb(guard, lambda: None, wait_up_to=10)
    assert [event.kind for event in events][:2] == ["duplicate", "claimed"]
