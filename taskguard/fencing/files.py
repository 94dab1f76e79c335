"""Files that a holder replaces as a whole, behind a fence.

Next to `report.csv` is `.report.csv.fence`. It is a lock that one process at a time holds, and it contains the
high-water mark: the highest token that has written. First the holder writes and syncs the new content to a temporary
file, without the lock. Then, under the lock, it

1. reads the high-water mark, and raises `StaleFenceError` if that is higher than its token
2. writes its token as the new mark, and syncs it
3. renames the temporary file over the old one, and syncs the directory

A crash before step 3 leaves the old file, after it the new one. The mark is never below the token of the data.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import BinaryIO

from taskguard.errors import ConfigurationError, StaleFenceError, StoreError, StoreUnavailableError
from taskguard.fence import Fence
from taskguard.runtime.backoff import pauses
from taskguard.runtime.clocks import since_boot

__all__ = ["fenced_replace"]

_DIGITS = 20
"""Fixed length of the mark: one write within one sector overwrites it in place."""


def fenced_replace(
    path: str | os.PathLike[str],
    content: bytes | str | Callable[[BinaryIO], object],
    fence: Fence,
    *,
    resource: str | os.PathLike[str] | None = None,
    wait_up_to: float = 10.0,
) -> None:
    """Replace the file at *path* by *content*, or leave it as it is and raise `StaleFenceError`.

    *content* is what to write, or a function that takes the open file. A reader sees the old file or the new one.
    To share one high-water mark between files, pass the same *resource*: a path, which need not exist. If another
    process is replacing the file, wait at most *wait_up_to* seconds, then raise `StoreUnavailableError`.
    """
    target = Path(os.path.realpath(path))
    home = target if resource is None else Path(os.path.realpath(resource))
    fresh = _write_beside(target, content, fence.token)
    try:
        with _locked(home.with_name(f".{home.name}.fence"), wait_up_to) as lock:
            mark = _read_mark(lock, home)
            if mark > fence.token:
                raise StaleFenceError(fence.key, fence.token, str(home), mark)
            if mark < fence.token:
                _write_mark(lock, fence.token, home.parent)
            os.replace(fresh, target)
            _sync(target.parent)
            _sweep(target, fence.token)
    except BaseException:
        with suppress(FileNotFoundError):
            fresh.unlink()
        raise


def _write_beside(target: Path, content: bytes | str | Callable[[BinaryIO], object], token: int) -> Path:
    fresh = target.with_name(f".{target.name}.{token:0{_DIGITS}}.{os.urandom(4).hex()}.new")
    try:
        with open(fresh, "xb") as file:
            with suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(FileNotFoundError):
            fresh.unlink()
        raise
    return fresh


@contextmanager
def _locked(path: Path, wait_up_to: float) -> Iterator[int]:
    give_up = since_boot() + wait_up_to
    for pause in pauses():
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if _taken(lock, path):
                try:
                    yield lock
                finally:
                    fcntl.flock(
                        lock, fcntl.LOCK_UN
                    )  # explicitly: a child forked meanwhile has the file open too, and would keep the lock
                return
        finally:
            os.close(lock)
        if since_boot() + pause >= give_up:
            raise StoreUnavailableError(
                str(path),
                f"another process has held the lock for {wait_up_to:g} s: it is replacing the file, or was stopped "
                "while it did; nothing was written, and a retry is safe",
            )
        sleep(pause)


def _taken(lock: int, path: Path) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    try:
        return os.path.samestat(
            os.fstat(lock), os.stat(path)
        )  # somebody may have deleted the file while this process waited
    except FileNotFoundError:
        return False


def _read_mark(lock: int, home: Path) -> int:
    text = os.pread(lock, _DIGITS + 1, 0)
    if not text:
        return 0  # the file is new, or the process that created it died before it wrote
    if len(text) != _DIGITS or not text.isdigit():
        raise StoreError(
            str(home.with_name(f".{home.name}.fence")),
            f"contains {text!r}, not a token; nothing was written. Delete it once no earlier holder can be alive",
        )
    return int(text)


def _write_mark(lock: int, token: int, directory: Path) -> None:
    if not 0 < token < 10**_DIGITS:
        raise ConfigurationError(f"{token} is not a token; pass the fence that taskguard gave the body")
    os.pwrite(lock, b"%0*d" % (_DIGITS, token), 0)
    os.fsync(lock)
    _sync(directory)  # the lock file may be new


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sweep(target: Path, token: int) -> None:
    """Remove the temporary files of earlier holders: those are dead, or will be refused."""
    lead = f".{target.name}."
    for name in os.listdir(target.parent):
        holder, _, rest = name.removeprefix(lead).partition(".")
        ours = name.startswith(lead) and rest.endswith(".new") and len(holder) == _DIGITS and holder.isdigit()
        if ours and int(holder) < token:
            with suppress(FileNotFoundError):
                (target.parent / name).unlink()
