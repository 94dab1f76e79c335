"""How a SQLite file is opened and used: by threads, by signal handlers, around forks, and when it is replaced or gone.

A verb has a connection of its own, which returns to a list once the verb has succeeded. If anything is raised, the
connection is closed: so an exception, at whatever instruction, leaves nothing half done.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import TypeVar

from taskguard.errors import ConfigurationError, StoreError, StoreUnavailableError
from taskguard.runtime import native
from taskguard.runtime.forks import Forked, watch_forks

Answer = TypeVar("Answer")

LONGEST_FORK = 10.0
"""The most seconds that a fork waits for threads inside a verb, and that verbs wait for a fork."""
LOOK_AGAIN = 0.001
"""Seconds between two checks."""

_NEVER = {errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}
"""Errors of a path that a retry cannot fix."""


class File(Forked):
    """Every connection of this process to the file at *path*. *name* is the store's name in errors."""

    def __init__(
        self, path: str, *, name: str, timeout: float, schema: str, added: Mapping[str, Mapping[str, str]]
    ) -> None:
        if "\0" in path:
            raise ConfigurationError(f"the path of a SQLite file must not contain a NUL character, as {path!r} does")
        self._path = path
        self._name = name
        self._timeout = timeout
        self._schema = schema
        self._made = _names(schema)
        self._added = added
        """By table: columns, with their types, that an older version did not have."""
        self._start()
        watch_forks(self)

    def _start(self) -> None:
        self._idle: dict[str, list[_Use]] = {"FULL": [], "NORMAL": []}
        # SQLite's own waiting is not fair. Reentrant: a signal handler may run in the middle of its own thread's turn.
        self._turn = native.allocate_rlock()
        self._forking_until, self._forking_thread = 0.0, 0

    def use(
        self, work: Callable[[sqlite3.Connection], Answer], *, writes: bool = False, synchronous: str = "FULL"
    ) -> Answer:
        """Return what *work* returns. *work* may be called again; then nothing of the first call was committed."""
        try:
            return self._answer(work, writes, synchronous)
        except sqlite3.Error as error:
            kind = StoreUnavailableError if _passes(error, self._path) else StoreError
            raise kind(self._name, _explained(error, self._path)) from error
        except OSError as error:
            if error.errno in _NEVER:
                text = f"{error.strerror}: {self._path} cannot be a file; name another path"
                raise StoreError(self._name, text) from error
            text = f"{error.strerror}: {_WHAT_IT_MUST_BE.format(self._path)}"
            raise StoreUnavailableError(self._name, text) from error

    def _answer(self, work: Callable[[sqlite3.Connection], Answer], writes: bool, synchronous: str) -> Answer:
        while True:
            self._wait_for_fork()
            give_up = time.monotonic() + self._timeout
            # Locks are taken only by `with`, whose two ends are C code: no exception can come in between.
            with self._turn if writes else native.allocate_lock():
                if time.monotonic() > give_up:
                    raise StoreUnavailableError(self._name, "other threads of this process kept the file busy")
                use = self._next_use(synchronous)
                with use.lasts:
                    if self._must_wait():
                        use.close()
                        continue
                    try:
                        answer = work(self._connected(use))
                    except sqlite3.Error:
                        use.close()
                        if use.taken_back:
                            continue
                        raise
                    except BaseException:
                        use.close()
                        raise
                    if self._forking_until:
                        use.close()  # a signal handler used it in the middle of a fork: the child must not inherit it
            self._idle[synchronous].append(use)  # not before `lasts` ends: a handler may take it at once
            return answer

    def transaction(
        self,
        step: Callable[[sqlite3.Connection], Answer],
        *,
        begin: str = "BEGIN IMMEDIATE",
        synchronous: str = "FULL",
    ) -> Answer:
        """Return what *step* returns, after committing all that it did."""

        def whole(db: sqlite3.Connection) -> Answer:
            # C code leaves the block: whatever is raised, at any instruction, a ROLLBACK follows.
            with db:
                # IMMEDIATE takes the write lock before anything is read, so nobody can write in between.
                db.execute(begin)
                answer = step(db)
                # Not left to the block, which would not notice that the transaction was rolled back.
                db.execute("COMMIT")
            return answer

        writes = begin != "BEGIN"
        if writes:
            self._take_back()
        return self.use(whole, writes=writes, synchronous=synchronous)

    def close(self) -> None:
        for idle in self._idle.values():
            while idle:
                with suppress(IndexError):  # another thread was faster
                    idle.pop().close()
        _close_lost()

    # -- connections ---------------------------------------------------------------------------------------------

    def _next_use(self, synchronous: str) -> _Use:
        try:
            use = self._idle[synchronous].pop()
        except IndexError:
            _close_lost()
            use = _Use(self._path, synchronous)
            _uses.append((weakref.ref(use), use.opened))
        use.thread, use.taken_back = native.get_ident(), False
        return use

    def _connected(self, use: _Use) -> sqlite3.Connection:
        """The connection to the file that is at our path now.

        If the file is deleted under an open connection, we would continue to write to it while others create a new
        one: two stores, two holders.
        """
        if use.file is not None and use.file == _identity(self._path):
            return use.opened[0]
        while True:
            use.close()
            before = _identity(self._path)
            self._open(use)
            after = _identity(self._path)
            if after is not None and before in (None, after):  # else it was replaced while we opened it
                use.file = after
                return use.opened[0]

    def _open(self, use: _Use) -> None:
        try:
            os.stat(os.path.dirname(self._path))
        except FileNotFoundError:
            text = "the directory of the file does not exist: create it, or name another path"
            raise StoreError(self._name, text) from None
        connect = partial(sqlite3.connect, timeout=self._timeout, isolation_level=None, check_same_thread=False)
        use.opened.extend(map(connect, [self._path]))  # one call into C: it opens and records the connection
        self._prepare(use.opened[0], use.synchronous)

    def _prepare(self, connection: sqlite3.Connection, synchronous: str) -> None:
        give_up = time.monotonic() + self._timeout
        while True:
            try:
                # The switch to WAL needs the file exclusively for a moment, and SQLite does not wait for that.
                connection.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError as error:
                if not _passes(error, self._path) or time.monotonic() > give_up:
                    raise
                _sleep(0.005)
        connection.execute(f"PRAGMA synchronous={synchronous}")
        # Check first: if everything exists, no write lock is needed.
        there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master").fetchall()}
        if not there.issuperset(self._made):
            connection.executescript(f"BEGIN IMMEDIATE;{self._schema}COMMIT;")
        for table, columns in self._added.items():
            self._add(connection, table, columns)

    def _add(self, connection: sqlite3.Connection, table: str, columns: Mapping[str, str]) -> None:
        question = f"SELECT name FROM pragma_table_info('{table}')"
        if {name for (name,) in connection.execute(question).fetchall()}.issuperset(columns):
            return
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            there = {
                name for (name,) in connection.execute(question).fetchall()
            }  # another process may have been faster
            for name, kind in columns.items():
                if name not in there:
                    connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")

    def _take_back(self) -> None:
        """If a signal handler calls us in the middle of this thread's own transaction, roll that transaction back.

        We cannot wait for it, and it cannot continue before we return. It notices at its next statement, and restarts.
        """
        thread = native.get_ident()
        for use in _alive():
            if use.thread == thread and use.path == self._path and use.is_in_transaction():
                use.take_back()

    # -- forks ---------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        # A child that inherits an open file would trust locks that only its parent holds. So we close all connections,
        # and no other thread opens one before the fork is over. (Not by a lock: a signal could lose it.)
        give_up = time.monotonic() + min(2 * self._timeout, LONGEST_FORK)
        thread = native.get_ident()
        self._forking_until, self._forking_thread = give_up + LONGEST_FORK, thread
        ours = [use for use in _alive() if use.path == self._path]
        # First this thread's own: if a signal handler forks, the interrupted verb cannot continue before the fork.
        for use in sorted(ours, key=lambda use: use.thread != thread):
            while use.thread != thread and use.lasts.locked() and time.monotonic() < give_up:
                _sleep(LOOK_AGAIN)
            use.taken_back = True
            use.close()
        self.close()

    def after_fork_in_parent(self) -> None:
        self._forking_until = 0.0

    def after_fork(self) -> None:
        self._start()

    def _wait_for_fork(self) -> None:
        while self._must_wait():
            _sleep(LOOK_AGAIN)

    def _must_wait(self) -> bool:
        """Whether another thread is about to fork."""
        return (
            self._forking_until > 0
            and self._forking_thread != native.get_ident()
            and time.monotonic() < self._forking_until
        )


class _Use:
    """A connection, and the verb that uses it."""

    def __init__(self, path: str, synchronous: str) -> None:
        self.path = path
        self.synchronous = synchronous
        self.lasts = native.allocate_lock()
        """Held by the verb while it runs. Nobody waits for it: others only check whether it is held."""
        self.thread = 0
        self.opened: list[sqlite3.Connection] = []
        """The connection, once it is open."""
        self.file: tuple[int, int] | None = None
        """The identity of the open file, once it can be used."""
        self.taken_back = False

    def is_in_transaction(self) -> bool:
        try:
            return any(connection.in_transaction for connection in self.opened)
        except sqlite3.ProgrammingError:  # it is closed
            return False

    def take_back(self) -> None:
        self.taken_back = True
        for connection in self.opened:
            connection.execute("PRAGMA query_only=ON")  # it must not continue to write without its transaction
            connection.rollback()

    def close(self) -> None:
        self.file = None
        _close(self.opened)


_uses: list[tuple[weakref.ref[_Use], list[sqlite3.Connection]]] = []
"""For all files: two stores may share one file. A connection is part of a reference cycle until it is closed, so one
that was lost to an exception would stay open until the garbage collector runs."""


def _alive() -> list[_Use]:
    return [use for known, _ in _uses.copy() if (use := known()) is not None]


def _close_lost() -> None:
    for lost in [known for known in _uses.copy() if known[0]() is None]:
        _close(lost[1])
        with suppress(ValueError):  # another thread was faster
            _uses.remove(lost)


def _close(opened: list[sqlite3.Connection]) -> None:
    # One call into C removes and closes it. Only one of two threads may close it: Python 3.10 would free it twice.
    with suppress(IndexError):
        while opened:
            list(map(sqlite3.Connection.close, map(list.pop, [opened])))


# Not gevent's: the renewing thread has no hub, and a transaction must not yield to another greenlet.
_sleep = native.original("time", "sleep")


def _names(schema: str) -> frozenset[str]:
    """Every table and index: a file of an older version may lack some."""
    words = schema.split()
    return frozenset(name for word, name in pairwise(words) if word == "EXISTS")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


_WHAT_IT_MUST_BE = "{} must be a file that this user may read and write, in a directory where it may create files"


def _passes(error: sqlite3.Error, path: str) -> bool:
    """Whether a retry may succeed: the file is busy, the disk is full or has failed."""
    text = str(error)
    if "unable to open" in text:
        return not os.path.isdir(path)
    return any(word in text for word in ("locked", "busy", "full", "disk I/O"))


def _explained(error: sqlite3.Error, path: str) -> str:
    text = str(error)
    if "locked" in text:
        return f"{text}: other processes kept the file busy; retry, or give ?timeout= more seconds"
    if "not a database" in text or "malformed" in text:
        return (
            f"{text}: {path} is damaged, or taskguard did not write it; nothing was changed. "
            "Move it away, and taskguard creates a new one"
        )
    if "unable to open" in text or "readonly" in text:
        return f"{text}: {_WHAT_IT_MUST_BE.format(path)}"
    if "no such column" in text or "no such table" in text:
        return (
            f"{text}: the tables in {path} do not fit this version. Move the file away, and taskguard creates a new one"
        )
    return text
