"""How a SQLite file is opened and used: by threads, by signal handlers, around forks, and when it is replaced or away.

A verb has a connection of its own, which goes back to a list once the verb has succeeded. One that anything was raised
through is closed: so nothing that an exception cuts short, at whatever instruction, is left behind.
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
"""The most seconds that a fork waits for threads that are within a verb, and verbs for a fork to be over."""
LOOK_AGAIN = 0.001
"""Seconds between two looks whether they are."""

_NEVER = {errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}
"""What the system says of a path that will not be better another time."""


class File(Forked):
    """Every connection of this process to the file at *path*. Errors call the store *name*."""

    def __init__(
        self, path: str, *, name: str, timeout: float, schema: str, added: Mapping[str, Mapping[str, str]]
    ) -> None:
        if "\0" in path:
            raise ConfigurationError(f"the path of a SQLite file must have no NUL character, as {path!r} has")
        self._path = path
        self._name = name
        self._timeout = timeout
        self._schema = schema
        self._made = _names(schema)
        self._added = added
        """By table: columns, with their kind, that it did not have in an older version."""
        self._start()
        watch_forks(self)

    def _start(self) -> None:
        self._idle: dict[str, list[_Use]] = {"FULL": [], "NORMAL": []}
        # SQLite's own waiting is not fair. A signal handler may come in the middle of a turn of its own thread.
        self._turn = native.allocate_rlock()
        self._forking_until, self._forking_thread = 0.0, 0

    def use(
        self, work: Callable[[sqlite3.Connection], Answer], *, writes: bool = False, synchronous: str = "FULL"
    ) -> Answer:
        """What *work* answers. It may be called again from its start: nothing of the first time was committed then."""
        try:
            return self._answer(work, writes, synchronous)
        except sqlite3.Error as error:
            kind = StoreUnavailableError if _passes(error, self._path) else StoreError
            raise kind(self._name, _explained(error, self._path)) from error
        except OSError as error:
            if error.errno in _NEVER:
                text = f"{error.strerror}: no file can be at {self._path}; name another"
                raise StoreError(self._name, text) from error
            text = f"{error.strerror}: {_WHAT_IT_MUST_BE.format(self._path)}"
            raise StoreUnavailableError(self._name, text) from error

    def _answer(self, work: Callable[[sqlite3.Connection], Answer], writes: bool, synchronous: str) -> Answer:
        while True:
            self._wait_for_fork()
            give_up = time.monotonic() + self._timeout
            # Locks are taken by `with` alone, whose two ends are C code: no exception comes between.
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
                        use.close()  # a signal handler asked in the middle of a fork: the child must not inherit it
            self._idle[synchronous].append(use)  # not before `lasts` is over: a handler may take it at once
            return answer

    def transaction(
        self,
        step: Callable[[sqlite3.Connection], Answer],
        *,
        begin: str = "BEGIN IMMEDIATE",
        synchronous: str = "FULL",
    ) -> Answer:
        """What *step* answers, once all that it did is committed."""

        def whole(db: sqlite3.Connection) -> Answer:
            # The block is left by C code: whatever is raised, at any instruction, is followed by a ROLLBACK.
            with db:
                # IMMEDIATE: the write lock is taken before anything is read, so nobody can slip in between.
                db.execute(begin)
                answer = step(db)
                # Not left to the block, which would not notice that the transaction was taken back.
                db.execute("COMMIT")
            return answer

        writes = begin != "BEGIN"
        if writes:
            self._take_back()
        return self.use(whole, writes=writes, synchronous=synchronous)

    def close(self) -> None:
        for idle in self._idle.values():
            while idle:
                with suppress(IndexError):  # somebody else was faster
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
        """The connection to the file that has our name now.

        A file that was deleted under an open connection would be written on by nobody but us while others start a new
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
            text = "the directory of the file does not exist: create it, or name another"
            raise StoreError(self._name, text) from None
        connect = partial(sqlite3.connect, timeout=self._timeout, isolation_level=None, check_same_thread=False)
        use.opened.extend(map(connect, [self._path]))  # one call into C: it is open, and known
        self._prepare(use.opened[0], use.synchronous)

    def _prepare(self, connection: sqlite3.Connection, synchronous: str) -> None:
        give_up = time.monotonic() + self._timeout
        while True:
            try:
                # To become a WAL file it must be nobody else's for a moment, and for that SQLite does not wait.
                connection.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError as error:
                if not _passes(error, self._path) or time.monotonic() > give_up:
                    raise
                _sleep(0.005)
        connection.execute(f"PRAGMA synchronous={synchronous}")
        # Looked for first: what is there already needs no turn among those who write.
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
        """Roll back the transaction that this thread is in the middle of, if we are called by a signal handler there.

        We cannot wait for it, nor can it go on before us. It notices at its next statement, and begins again.
        """
        thread = native.get_ident()
        for use in _alive():
            if use.thread == thread and use.path == self._path and use.is_in_transaction():
                use.take_back()

    # -- forks ---------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        # A child that inherits an open file inherits SQLite's belief in locks that only its parent has. So all are
        # closed, and no other thread opens one before the fork is over. (Not by a lock: a signal could lose it.)
        give_up = time.monotonic() + min(2 * self._timeout, LONGEST_FORK)
        thread = native.get_ident()
        self._forking_until, self._forking_thread = give_up + LONGEST_FORK, thread
        ours = [use for use in _alive() if use.path == self._path]
        # First what this very thread is in the middle of: if it is a signal handler that forks, that cannot go on.
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
        """Taken by the verb as long as it lasts. Nobody waits for it: others look whether it is taken."""
        self.thread = 0
        self.opened: list[sqlite3.Connection] = []
        """The connection, once it is open."""
        self.file: tuple[int, int] | None = None
        """Which file that is, once it can be used."""
        self.taken_back = False

    def is_in_transaction(self) -> bool:
        try:
            return any(connection.in_transaction for connection in self.opened)
        except sqlite3.ProgrammingError:  # it is closed
            return False

    def take_back(self) -> None:
        self.taken_back = True
        for connection in self.opened:
            connection.execute("PRAGMA query_only=ON")  # it must not write on without its transaction
            connection.rollback()

    def close(self) -> None:
        self.file = None
        _close(self.opened)


_uses: list[tuple[weakref.ref[_Use], list[sqlite3.Connection]]] = []
"""Of all files: two stores of one file are in each other's way too. A connection is part of a cycle until it is closed,
so one that was lost to an exception would stay open until the garbage collector comes by."""


def _alive() -> list[_Use]:
    return [use for known, _ in _uses.copy() if (use := known()) is not None]


def _close_lost() -> None:
    for lost in [known for known in _uses.copy() if known[0]() is None]:
        _close(lost[1])
        with suppress(ValueError):  # another thread was faster
            _uses.remove(lost)


def _close(opened: list[sqlite3.Connection]) -> None:
    # Taken out and closed by one call into C. Of two threads only one may close it: Python 3.10 frees it twice.
    with suppress(IndexError):
        while opened:
            list(map(sqlite3.Connection.close, map(list.pop, [opened])))


# Not gevent's: a thread that renews leases has no hub, and a transaction is never left to another greenlet.
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


_WHAT_IT_MUST_BE = "{} must be a file that this user may read and write, in a directory where it may create"


def _passes(error: sqlite3.Error, path: str) -> bool:
    """Whether it may go better another time: the file is busy, the disk is full or out of order."""
    text = str(error)
    if "unable to open" in text:
        return not os.path.isdir(path)
    return any(word in text for word in ("locked", "busy", "full", "disk I/O"))


def _explained(error: sqlite3.Error, path: str) -> str:
    text = str(error)
    if "locked" in text:
        return f"{text}: other processes kept the file busy; ask again, or give ?timeout= more seconds"
    if "not a database" in text or "malformed" in text:
        return f"{text}: {path} is damaged or not ours; nothing was changed. Move it away and a new one is made"
    if "unable to open" in text or "readonly" in text:
        return f"{text}: {_WHAT_IT_MUST_BE.format(path)}"
    if "no such column" in text or "no such table" in text:
        return f"{text}: the tables in {path} are not as this version makes them. Move it away and a new one is made"
    return text
