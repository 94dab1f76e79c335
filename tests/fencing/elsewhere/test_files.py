"""A file behind a fence: crashes at every step, holders of different ages, processes side by side."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from taskguard import Fence, Guard, StaleFenceError, StoreError, StoreUnavailableError
from taskguard.fencing import files
from taskguard.fencing.files import fenced_replace
from tests.fencing.elsewhere.fences import fence, succession
from tests.fencing.forked import Forked

STEPS = ("open", "fsync", "pwrite", "replace", "listdir", "close", "fchmod")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.csv"


def mark_of(path: Path) -> int:
    mark = path.with_name(f".{path.name}.fence")
    return int(mark.read_bytes() or 0) if mark.exists() else 0


def test_a_stale_holder_is_refused_and_nothing_is_left_of_it(guard: Guard, path: Path):
    stale, newer = succession(guard)
    fenced_replace(path, b"new", newer)

    with pytest.raises(StaleFenceError) as refused:
        fenced_replace(path, b"old", stale)
    assert (refused.value.resource, refused.value.mark) == (str(path), newer.token)
    assert path.read_bytes() == b"new"
    assert sorted(os.listdir(path.parent)) == [".report.csv.fence", "report.csv"]


def test_one_holder_replaces_often(guard: Guard, path: Path):
    mine = fence(guard)
    for number in range(3):
        fenced_replace(path, str(number), mine)

    assert path.read_text() == "2"
    assert mark_of(path) == mine.token


def test_content_may_be_written_by_a_function_and_the_old_mode_stays(guard: Guard, path: Path):
    path.write_text("old")
    path.chmod(0o640)
    fenced_replace(path, lambda file: file.write(b"new"), fence(guard))

    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_writer_that_fails_leaves_everything_as_it_was(guard: Guard, path: Path):
    path.write_text("old")
    with pytest.raises(ZeroDivisionError):
        fenced_replace(path, lambda _: 1 / 0, fence(guard))

    assert os.listdir(path.parent) == ["report.csv"]


def test_a_link_stays_a_link(guard: Guard, path: Path, tmp_path: Path):
    path.write_text("old")
    link = tmp_path / "link"
    link.symlink_to(path)
    fenced_replace(link, "new", fence(guard))

    assert link.is_symlink()
    assert path.read_text() == "new"


def test_files_of_one_resource_share_its_mark(guard: Guard, path: Path, tmp_path: Path):
    stale, newer = succession(guard)
    fenced_replace(path, "new", newer, resource=tmp_path / "batch")

    with pytest.raises(StaleFenceError):
        fenced_replace(tmp_path / "other.csv", "old", stale, resource=tmp_path / "batch")
    assert not (tmp_path / "other.csv").exists()


def test_a_mark_that_cannot_be_read_lets_nobody_write(guard: Guard, path: Path):
    path.with_name(".report.csv.fence").write_bytes(b"0000123")

    with pytest.raises(StoreError, match="not a token"):
        fenced_replace(path, "new", fence(guard))
    assert not path.exists()


def test_who_finds_another_within_its_replacement_waits_and_then_says_so(guard: Guard, path: Path):
    with open(path.with_name(".report.csv.fence"), "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        with pytest.raises(StoreUnavailableError, match="a retry is safe"):
            fenced_replace(path, "new", fence(guard), wait_up_to=0.05)
    assert not path.exists()


def test_a_lock_file_that_was_deleted_while_it_was_awaited_is_not_taken_for_the_lock(
    guard: Guard, path: Path, monkeypatch: pytest.MonkeyPatch
):
    lock = path.with_name(".report.csv.fence")
    taken: list[bool] = []
    real = fcntl.flock

    def flock(handle: int, how: int) -> None:
        real(handle, how)
        if not taken and how != fcntl.LOCK_UN:
            lock.unlink()
        if how != fcntl.LOCK_UN:
            taken.append(True)

    monkeypatch.setattr(files.fcntl, "flock", flock)
    mine = fence(guard)
    fenced_replace(path, "new", mine)

    assert len(taken) == 2
    assert mark_of(path) == mine.token


# -- crashes -----------------------------------------------------------------------------------------------------


def killed_at(step: int, work: Callable[[], Any]) -> bool:
    """Whether *work*, in a child, was killed just before its call number *step* to the system; else it came through."""
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            calls = 0

            def counted(function: Callable[..., Any]) -> Callable[..., Any]:
                def call(*args: Any, **kwargs: Any) -> Any:
                    nonlocal calls
                    if calls == step:
                        os.kill(os.getpid(), signal.SIGKILL)
                    calls += 1
                    return function(*args, **kwargs)

                return call

            for name in STEPS:
                setattr(os, name, counted(getattr(os, name)))
            files.fcntl.flock = counted(fcntl.flock)
            work()
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def test_a_crash_at_any_step_leaves_the_old_file_or_the_new_one_and_never_a_mark_below_it(guard: Guard, tmp_path: Path):
    outcomes = []
    for step in range(100):
        path = tmp_path / str(step) / "report.csv"
        path.parent.mkdir()
        first, second, third = (fence(guard, "job") for _ in range(3))
        fenced_replace(path, f"{first.token}", first)
        crashed = killed_at(step, partial(fenced_replace, path, f"{second.token}", second))
        written = int(path.read_text())
        outcomes.append((written == second.token, mark_of(path) == second.token))

        assert written in (first.token, second.token)
        assert mark_of(path) >= written
        fenced_replace(path, "third", third)
        assert path.read_text() == "third"
        assert sorted(os.listdir(path.parent)) == [".report.csv.fence", "report.csv"]  # what the dead left is swept
        if not crashed:
            break

    assert len(outcomes) > 10
    assert set(outcomes) == {(False, False), (False, True), (True, True)}
    assert outcomes == sorted(outcomes)


def test_a_child_that_is_forked_meanwhile_does_not_keep_the_lock(
    guard: Guard, path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As by another thread of the process: the child has what was open, and lives on."""
    children: list[Forked] = []
    replace = os.replace

    def forking(*args: Any) -> None:
        children.append(Forked(lambda tell, hear: hear()))
        replace(*args)

    monkeypatch.setattr(os, "replace", forking)
    for text in ("one", "two"):
        fenced_replace(path, text, fence(guard, "job"), wait_up_to=1)
    for child in children:
        child.close()

    assert path.read_text() == "two"


def test_of_many_holders_at_once_the_highest_token_is_what_stays(guard: Guard, path: Path):
    fences = [fence(guard, "job") for _ in range(12)]
    accepted: list[int] = []

    def write(mine: Fence) -> None:
        with suppress(StaleFenceError):
            fenced_replace(path, str(mine.token), mine)
            accepted.append(mine.token)

    threads = [threading.Thread(target=write, args=(mine,)) for mine in reversed(fences)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert int(path.read_text()) == mark_of(path) == max(accepted) == fences[-1].token
