"""The log of decisions: capped, in order, by the store's clock, and at nobody's cost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest

from taskguard import ConfigurationError, Guard, open_store
from taskguard.history import History, Line, decisions, history_of
from taskguard.protocol.store import Claimant, Store
from taskguard.runtime.whereabouts import whereabouts
from taskguard.stores.histories import redis, sqlite
from taskguard.stores.memory import MemoryStore
from taskguard.testing import HistoryContract
from tests.servers import Proxy
from tests.waiting import wait_until


@pytest.fixture
def store(store_url: str) -> Store:
    return open_store(store_url, namespace=f"history-{uuid4().hex[:8]}")


def kinds(store: Store, prefix: str = "") -> list[str]:
    return [decision.event.kind for decision in decisions(store, prefix)]


class TestHistory(HistoryContract):
    """In each kind of store that several processes can share."""

    @pytest.fixture
    def history(self, store: Store) -> History:
        return store.history  # type: ignore[attr-defined, no-any-return]


class TestMemoryHistory(HistoryContract):
    @pytest.fixture
    def history(self) -> History:
        return MemoryStore().history


def test_a_line_that_is_too_old_goes(store: Store):
    history = history_of(store)
    if isinstance(history, redis.RedisHistory):
        pytest.skip("there the whole log goes when nothing was added to it for so long")
    history.add([Line("key", "old", False, age=31 * 86400)])
    for _ in range(sqlite.TRIM_EVERY):
        history.add([Line("key", "new", False)])

    assert "old" not in [line.text for line in history.read()]


def test_the_whole_log_of_a_namespace_that_nobody_uses_goes(redis_server: Any):
    store = open_store(redis_server.url, namespace="left")
    store.history.add([Line("key", '["text", "key"]', False)])

    assert store.execute("TTL", "taskguard:nothing") == -2
    assert 0 < store.execute("TTL", "left:history:{left}:ordinary") <= 30 * 86400


# -- what a guard tells ------------------------------------------------------------------------------------------


def test_a_run_and_its_repetition_are_told(store: Store):
    guard = Guard(store)
    for _ in range(2):
        guard.run("key", lambda: 1, keep_for=60)
    guard.recorder.flush()

    assert kinds(store) == ["claimed", "completed", "reused"]
    assert {decision.where for decision in decisions(store)} == {whereabouts()}


def test_it_is_told_soon_without_being_asked_to(store: Store):
    with Guard(store).hold("key"):
        wait_until(lambda: kinds(store) == ["claimed"])


def test_a_release_by_hand_is_told(store: Store):
    guard = Guard(store)
    guard.run("key", lambda: 1, keep_for=60)
    assert guard.free("key", by="an operator")
    guard.recorder.flush()

    assert decisions(store)[-1].event.detail == "by hand, an operator"


def test_a_script_tells_what_it_did_when_it_ends(store_url: str):
    namespace = f"script-{uuid4().hex[:8]}"
    program = f"from taskguard import Guard\nGuard({store_url!r}, namespace={namespace!r}).run('key', int, keep_for=60)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

    assert kinds(open_store(store_url, namespace=namespace)) == ["claimed", "completed"]


def test_a_forked_child_tells_its_own_decisions_and_not_its_parent_s(store: Store):
    guard = Guard(store)
    guard.run("parent", int, keep_for=60)
    child = os.fork()
    if child == 0:
        try:
            guard.run("child", int, keep_for=60)
            guard.recorder.flush(last=True)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    guard.recorder.flush()

    wait_until(lambda: len(kinds(store)) >= 4, what="what was sent without waiting has arrived")
    assert sorted(decision.event.key for decision in decisions(store)) == ["child", "child", "parent", "parent"]


def test_one_setting_switches_it_off(store: Store):
    guard = Guard(store, history=False)
    guard.run("key", int, keep_for=60)

    assert guard.recorder is None
    assert kinds(store) == []


def test_a_setting_that_is_neither_is_an_error(store: Store):
    with pytest.raises(ConfigurationError, match="history must be True or False, not 'no'"):
        Guard(store, history="no")  # type: ignore[arg-type]


EXCHANGES = {"RedisStore": "_exchange", "SQLiteStore": "use", "PostgresStore": "_send"}
"""By what method each store speaks to its server or its file."""


def test_a_job_makes_no_exchange_with_the_store_for_its_history(store: Store, monkeypatch: pytest.MonkeyPatch):
    name = EXCHANGES[type(store).__name__]
    speaks = getattr(store, "wire", getattr(store, "_file", store))
    original, asking = getattr(speaks, name), []

    def counted(*args: Any, **kwargs: Any) -> Any:
        asking.append(threading.get_ident())
        return original(*args, **kwargs)

    def exchanges(guard: Guard) -> int:
        before = asking.count(threading.get_ident())
        guard.run(uuid4().hex, int, keep_for=60)
        return asking.count(threading.get_ident()) - before

    monkeypatch.setattr(speaks, name, counted)
    with_history, without = Guard(store), Guard(store, history=False)
    exchanges(without)  # the first one finds out what the server knows

    assert exchanges(with_history) == exchanges(without) > 0
    wait_until(lambda: set(asking) - {threading.get_ident()}, what="another thread tells")


class Hanging:
    """A history on a store that does not answer."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.goes_on = threading.Event()

    def add(self, lines: Sequence[Line], /, *, last: bool = False) -> None:
        self.asked.set()
        self.goes_on.wait(60)

    def read(self, prefix: str = "", /, *, limit: int = 1000) -> list[Line]:
        return []


def test_no_job_waits_for_the_history():
    store = MemoryStore()
    store.history = hanging = Hanging()  # type: ignore[assignment]
    guard = Guard(store)
    guard.run("first", int, keep_for=60)
    assert hanging.asked.wait(20)
    guard.run("second", int, keep_for=60)  # ends while the history hangs

    hanging.goes_on.set()


def test_a_history_that_fails_breaks_no_job(caplog: pytest.LogCaptureFixture):
    class Failing(Hanging):
        def add(self, lines: Sequence[Line], /, *, last: bool = False) -> None:
            raise OSError("no room")

    store = MemoryStore()
    store.history = Failing()  # type: ignore[assignment]
    guard = Guard(store)
    guard.run("key", int, keep_for=60)
    guard.recorder.flush(last=True)

    assert "could not write 2 decisions to the history" in caplog.text


def test_a_store_without_a_history_is_a_store():
    store = MemoryStore()
    del store.history
    guard = Guard(store)

    assert guard.run("key", int, keep_for=60) == 0
    assert decisions(store) == []


def test_what_was_decided_while_the_store_was_away_is_told_when_it_is_back(
    redis_server: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("taskguard.history.ASK_AGAIN", 0.2)
    namespace = f"away-{uuid4().hex[:8]}"
    guard = Guard(f"redis://127.0.0.1:{proxy.port}/0?timeout=1", namespace=namespace)
    with guard.hold("key", lease=30):
        proxy.refuse()
        guard.recorder.flush()  # in vain, and from a thread that will not try again
        proxy.heal()
    seen = open_store(redis_server.url, namespace=namespace)

    wait_until(lambda: kinds(seen) == ["claimed", "released"])


def test_many_decisions_at_once_are_told_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("taskguard.history.GATHER", 60)
    monkeypatch.setattr("taskguard.history.AT_ONCE", 10)
    guard = Guard(MemoryStore())
    for number in range(5):
        guard.run(f"key-{number}", int, keep_for=60)

    wait_until(lambda: len(kinds(guard.store)) == 10)


def test_a_key_that_the_store_cannot_have_keeps_no_other_from_being_told(store: Store):
    guard = Guard(store, patience=0)
    guard.report("duplicate", Claimant("with \0", "owner", "attempt"))  # which PostgreSQL refuses
    guard.run("key", int, keep_for=60)
    assert guard.recorder is not None
    guard.recorder.flush()

    assert kinds(store, "key") == ["claimed", "completed"]
    assert kinds(store, "with ")


def test_a_line_that_is_not_ours_is_left_out(store: Store):
    Guard(store).run("key", int, keep_for=60)
    history = history_of(store)
    history.add([Line("key", '["some", "key"]', False)])

    assert set(kinds(store)) <= {"claimed", "completed"}


def test_what_comes_after_the_gathered_is_not_forgotten_at_the_end():
    """A process that ends while its thread is telling waits for it."""
    store = MemoryStore()
    add, slow = store.history.add, threading.Event()

    def add_slowly(lines: Sequence[Line], /, *, last: bool = False) -> None:
        slow.set()
        time.sleep(0.2)
        add(lines, last=last)

    store.history.add = add_slowly  # type: ignore[method-assign]
    guard = Guard(store)
    guard.run("key", int, keep_for=60)
    assert slow.wait(20)
    guard.recorder.flush(last=True)

    assert kinds(store) == ["claimed", "completed"]


def test_what_is_held_back_is_told_at_the_end_and_starts_no_thread():
    store = MemoryStore()
    guard = Guard(store)
    guard.recorder.hold_back()
    guard.run("key", int, keep_for=60)
    assert not guard.recorder._alarm.is_running

    guard.recorder.flush(last=True)
    assert kinds(store) == ["claimed", "completed"]


def test_what_is_held_back_is_told_from_the_first_renewal_on():
    store = MemoryStore()
    guard = Guard(store)
    guard.recorder.hold_back()
    with guard.hold("key", lease=0.3):
        wait_until(lambda: kinds(store) == ["claimed"], what="a renewal to tell it")
