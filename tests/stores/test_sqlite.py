from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest

from taskguard.errors import ConfigurationError, StoreError, StoreUnavailableError
from taskguard.history import Line
from taskguard.protocol.store import Ending, Held, Lease
from taskguard.runtime.forks import Forked, watch_forks
from taskguard.stores import open_store
from taskguard.stores.memory import wall_clock
from taskguard.stores.sqlite import SQLiteStore
from taskguard.testing import StoreContract
from taskguard.testing.clock import FakeClock
from taskguard.testing.contract import ask, claimed
from tests.children import in_fork


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "taskguard.db"


def remove(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


class TestSQLiteStore(StoreContract):
    @pytest.fixture
    def store(self, path: Path, clock: FakeClock):
        with closing(SQLiteStore(path, clock=clock)) as store:
            yield store

    @pytest.fixture
    def elapse(self, clock: FakeClock):
        return clock.advance

    @pytest.fixture
    def opener(self, path: Path):
        return partial(SQLiteStore, path, timeout=20)

    @pytest.fixture
    def wipe(self, path: Path):
        return lambda: remove(path)

    @pytest.fixture
    def restart(self, store: SQLiteStore):
        return store.close


def test_a_store_opened_before_a_fork_works_in_the_child(path: Path):
    store = SQLiteStore(path)
    claimed(store, "parent", "before")

    assert in_fork(lambda: isinstance(store.claim(ask("child", "before")), Held))
    assert in_fork(lambda: isinstance(store.claim(ask("child", "new")), Lease))
    assert isinstance(store.claim(ask("parent", "new")), Held)


def test_a_file_that_was_deleted_is_not_written_on(path: Path):
    mine, theirs = SQLiteStore(path), SQLiteStore(path)
    claimed(mine, "alice", "first")
    remove(path)
    claimed(theirs, "bob")

    assert isinstance(mine.claim(ask("alice")), Held)


def test_what_is_over_is_removed_from_the_file(path: Path, clock: FakeClock):
    store = SQLiteStore(path, clock=clock)
    for number in range(200):
        store.complete(claimed(store, "alice", f"old {number}", keep_for=10), Ending(how="succeeded", keep_for=10))
    clock.advance(20)
    for number in range(200):
        claimed(store, "alice", f"new {number}", keep_for=10)

    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM taskguard_entry").fetchone() == (200,)
        assert db.execute("SELECT count(*) FROM taskguard_receipt").fetchone() == (0,)


def test_tokens_rise_though_the_clock_falls_back(path: Path, clock: FakeClock):
    store = SQLiteStore(path, clock=clock)
    first = claimed(store, "alice")
    store.release(first, Ending(keep_for=1000))
    clock.advance(-3600)

    assert claimed(store, "bob").token > first.token


def test_namespaces_keep_apart(path: Path):
    one, other = (SQLiteStore(path, namespace=name) for name in ("one", "other"))
    claimed(one, "alice")

    assert isinstance(other.claim(ask("bob")), Lease)
    assert [entry.owner for entry in one.scan()] == ["alice"]


def test_a_damaged_file_is_one_clear_error_and_stays_as_it_was(path: Path):
    path.write_bytes(b"this is not a database, but it may be somebody's letter" * 50)
    before = path.read_bytes()

    with pytest.raises(StoreError, match="damaged, or taskguard did not write it; nothing was changed. Move it away"):
        SQLiteStore(path).claim(ask("alice"))
    assert path.read_bytes() == before


def test_a_file_that_others_keep_busy_is_unavailable(path: Path):
    store = SQLiteStore(path, timeout=0.05)
    claimed(store, "alice")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(StoreUnavailableError, match="timeout"):
            store.claim(ask("bob", "another key"))


def test_who_only_looks_does_not_wait_for_who_writes(path: Path):
    store = SQLiteStore(path, timeout=0.05)
    claimed(store, "alice")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        assert isinstance(store.claim(ask("bob")), Held)


def test_a_directory_that_is_missing_is_one_clear_error(tmp_path: Path):
    with pytest.raises(StoreError, match="directory of the file does not exist: create it"):
        SQLiteStore(tmp_path / "missing" / "taskguard.db").claim(ask("alice"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_unavailable(path: Path):
    path.touch(mode=0o000)

    with pytest.raises(StoreUnavailableError, match="unable to open"):
        SQLiteStore(path).claim(ask("alice"))


def by_nobody(function: Callable[[], Any]) -> Any:
    """What *function* returns in a process that is not root's."""

    def demoted() -> Any:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        return function()

    return in_fork(demoted)


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that every user can reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    folder.chmod(0o700)
    shutil.rmtree(folder)


def test_a_directory_that_became_unreadable_is_unavailable_until_it_can_be_read_again(folder: Path):
    inner = folder / "inner"

    def verbs() -> list[str]:
        inner.mkdir()
        store = SQLiteStore(inner / "taskguard.db")
        lease = claimed(store, "alice")
        inner.chmod(0o000)
        told = []
        for verb in (lambda: store.renew([(lease, 60)]), lambda: store.get("key"), lambda: list(store.scan())):
            with pytest.raises(StoreUnavailableError) as caught:
                verb()
            told.append(str(caught.value))
        inner.chmod(0o700)
        assert store.renew([(lease, 60)]) == [True]
        return told

    told = by_nobody(verbs)
    assert len(told) == 3
    assert all(
        "must be a file that this user may read and write, in a directory where it may create" in t for t in told
    )


def test_a_file_of_an_older_version_is_used_as_it_is(tmp_path: Path):
    path = tmp_path / "taskguard.db"
    claimed(SQLiteStore(path), "alice", "before")
    with closing(sqlite3.connect(path)) as older:
        for column in ("label", "whereabouts"):
            older.execute(f"ALTER TABLE taskguard_entry DROP COLUMN {column}")

    store = SQLiteStore(path)
    claimed(store, "bob", "now", label="order_id=42", where="here:1")

    before, now = store.get("before"), store.get("now")
    assert before is not None and (before.owner, before.label, before.where) == ("alice", "", "")
    assert now is not None and (now.label, now.where) == ("order_id=42", "here:1")


def test_a_file_of_somebody_elses_says_what_it_must_be(folder: Path):
    claimed(SQLiteStore(folder / "taskguard.db"), "alice")
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o444)

    def claim() -> str:
        with pytest.raises(StoreError) as caught:
            SQLiteStore(folder / "taskguard.db").claim(ask("bob", "other"))
        return str(caught.value)

    assert os.geteuid() != 0 or "must be a file that this user may read and write" in by_nobody(claim)


def test_a_path_where_no_file_can_be_is_one_clear_error(tmp_path: Path):
    (tmp_path / "a file").touch()
    (tmp_path / "a directory").mkdir()
    (tmp_path / "a loop").symlink_to(tmp_path / "a loop")
    names = ["a file/taskguard.db", "a file/deeper/taskguard.db", "n" * 300, "a loop", "a loop/taskguard.db"]
    for name in names:
        with pytest.raises(StoreError, match="cannot be a file; name another") as caught:
            SQLiteStore(tmp_path / name).claim(ask("alice"))
        assert not isinstance(caught.value, StoreUnavailableError)
    with pytest.raises(StoreError, match="a directory must be a file that this user may read") as caught:
        SQLiteStore(tmp_path / "a directory").claim(ask("alice"))
    assert not isinstance(caught.value, StoreUnavailableError)


def test_a_directory_that_became_a_file_is_one_clear_error(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    store = SQLiteStore(tmp_path / "folder" / "taskguard.db")
    lease = claimed(store, "alice")
    shutil.rmtree(tmp_path / "folder")
    (tmp_path / "folder").touch()

    with pytest.raises(StoreError, match="cannot be a file"):
        store.renew([(lease, 60)])


def test_a_path_with_a_nul_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="must not contain a NUL"):
        SQLiteStore(tmp_path / "a\0b")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://host/file.db"])
def test_a_url_without_a_file_says_what_to_write(url: str):
    with pytest.raises(ConfigurationError, match="sqlite:///relative.db"):
        open_store(url)


def test_a_url_names_a_relative_or_an_absolute_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    claimed(open_store("sqlite:///here.db"), "alice")
    claimed(open_store(f"sqlite:///{tmp_path}/there.db"), "alice")

    assert (tmp_path / "here.db").exists()
    assert (tmp_path / "there.db").exists()


def test_an_unknown_option_is_refused():
    with pytest.raises(ConfigurationError, match="the only option is timeout"):
        open_store("sqlite:///file.db?timeuot=3")


def open_and_claim(path: Path) -> bool:
    with closing(SQLiteStore(path, timeout=20)) as store:
        return isinstance(store.claim(ask(uuid4().hex)), Lease)


def test_many_processes_that_open_a_new_file_at_once_all_succeed(tmp_path: Path):
    with ProcessPoolExecutor(6, mp_context=multiprocessing.get_context("spawn")) as pool:
        for number in range(15):
            answers = list(pool.map(open_and_claim, [tmp_path / f"{number}.db"] * 6))

            assert sorted(answers) == [False] * 5 + [True]


def test_a_signal_while_a_transaction_waits_leaves_no_lock_behind(path: Path):
    class AlarmError(Exception):
        pass

    def ring(*_: object) -> None:
        raise AlarmError

    store = SQLiteStore(path, timeout=20)
    claimed(store, "alice", "first")
    before = signal.signal(signal.SIGALRM, ring)
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        letting_go = threading.Timer(0.5, other.execute, ["ROLLBACK"])
        letting_go.start()
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)  # raised the moment that BEGIN returns
            with pytest.raises(AlarmError):
                store.claim(ask("bob", "waits for the write lock"))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            letting_go.join()

    assert isinstance(store.claim(ask("carol", "second")), Lease)
    assert isinstance(SQLiteStore(path).claim(ask("dave", "third")), Lease)


def test_a_child_whose_parent_has_gone_shares_the_file_with_others(path: Path):
    # A child that inherited an open connection would believe in its parent's locks, and others would not see its own.
    program = f"""
import os, sys, time
from taskguard.stores.memory import wall_clock
from taskguard.stores.sqlite import SQLiteStore
from taskguard.testing.contract import ask, claimed
store = SQLiteStore({str(path)!r})
claimed(store, "parent", "warm")
if os.fork():
    os._exit(0)
sys.stdin.readline()
print(type(store.claim(ask("child", "one"))).__name__, flush=True)
print(type(store.claim(ask("child", "two"))).__name__, flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        parent.wait(20)
        with closing(SQLiteStore(path)) as other:
            claimed(other, "other", "one")
        answers, _ = parent.communicate("go\n", timeout=20)
        with closing(SQLiteStore(path)) as other:
            last = other.claim(ask("other", "two"))

    assert answers.split() == ["Held", "Lease"]
    assert isinstance(last, Held)


def test_a_fork_while_another_thread_is_in_a_transaction_leaves_the_child_free(path: Path):
    store = SQLiteStore(path, timeout=20)
    claimed(store, "parent", "warm")
    stop = threading.Event()

    def busy() -> None:
        # With pauses: between processes SQLite's waiting is not fair, and one that never pauses starves the other.
        while not stop.wait(0.01):
            store.renew([(claimed(store, uuid4().hex, uuid4().hex), 60)])

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for number in range(10):
            assert in_fork(lambda n=number: isinstance(store.claim(ask("child", f"of {n}")), Lease))
    finally:
        stop.set()
        thread.join()


def test_one_that_fails_around_a_fork_leaves_no_store_waiting(path: Path):
    stores = [SQLiteStore(path, timeout=0.1) for _ in range(8)]  # in no order: some come after it
    failing = [_FailsAfterForks() for _ in range(8)]
    list(map(watch_forks, failing))
    with patch.object(sys, "unraisablehook", lambda _: None):  # where Python tells of it
        assert in_fork(lambda: True)
    for thing in failing:
        thing.fails = False

    assert all(store.get("nobody") is None for store in stores)
    assert in_fork(lambda: all(store.get("nobody") is None for store in stores))


class _FailsAfterForks(Forked):
    fails = True

    def after_fork_in_parent(self) -> None:
        if self.fails:
            raise RuntimeError("after a fork")


def test_a_verb_that_a_fork_could_not_wait_for_begins_again(path: Path):
    inside, go_on = threading.Event(), threading.Event()

    def clock() -> int:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            go_on.wait(20)
        return wall_clock()

    store = SQLiteStore(path, timeout=0.1, clock=clock)
    lease = claimed(store, "parent", "warm")
    answers: list[list[bool]] = []
    thread = threading.Thread(target=lambda: answers.append(store.renew([(lease, 60)])))
    thread.start()
    assert inside.wait(20)  # in a transaction, longer than a fork waits

    assert in_fork(lambda: isinstance(store.claim(ask("child", "own")), Lease))
    go_on.set()
    thread.join()
    assert answers == [[True]]
    claimed(store, "parent", "again")


def test_a_signal_handler_that_forks_in_the_middle_of_a_verb_harms_neither_process(path: Path):
    to_do: list[Callable[[], bool]] = []
    done: list[bool] = []

    def clock() -> int:  # called in the middle of a transaction
        if to_do:
            done.append(in_fork(to_do.pop()))
        return wall_clock()

    store = SQLiteStore(path, clock=clock)
    lease = claimed(store, "parent", "warm")
    to_do.append(lambda: isinstance(store.claim(ask("child", "child's")), Lease))

    assert store.renew([(lease, 60)]) == [True]
    assert done == [True]
    assert isinstance(SQLiteStore(path).claim(ask("other", "child's")), Held)


def test_what_is_written_for_the_log_leaves_every_verb_synced(path: Path):
    store = SQLiteStore(path)

    def interrupted(db: sqlite3.Connection, now: int) -> None:
        raise KeyboardInterrupt

    def synced(db: sqlite3.Connection, now: int) -> int:
        return int(db.execute("PRAGMA synchronous").fetchone()[0])

    store.history.add([Line("key", "text", False)])
    with pytest.raises(KeyboardInterrupt):
        store._log(interrupted)
    assert store._transaction(synced) == 2
    store.history.add([Line("key", "text", False)])
    assert store._transaction(synced) == 2


def test_threads_and_forks_at_once_leave_children_and_file_sound(path: Path):
    store, stop, failures = SQLiteStore(path, timeout=20), threading.Event(), []

    def work(name: str) -> None:
        try:
            while not stop.wait(0.01):  # as above: the children must have their turn
                lease = claimed(store, name, name)
                assert store.renew([(lease, 60)]) == [True]
                assert store.release(lease, Ending(keep_for=60))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for number in range(20):
            assert in_fork(lambda n=number: isinstance(store.claim(ask("child", f"of {n}")), Lease))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "soon"])
def test_a_timeout_that_is_no_duration_is_refused(timeout: str):
    with pytest.raises(ConfigurationError, match="timeout"):
        open_store(f"sqlite:///file.db?timeout={timeout}")
