"""The connection to PostgreSQL: its options, its deadline, and what its errors mean."""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections.abc import Generator
from math import ceil
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import namedtuple_row

from taskguard.errors import ConfigurationError, StoreError, StoreUnavailableError
from taskguard.stores import safe_url

Value = TypeVar("Value")

_PASSING = ("08", "40", "53", "57", "58", "25006", "55P03")
"""SQLSTATE prefixes of a server that cannot serve us now and may later: connection lost, rolled back, out of
resources, shut down or cancelled, disk trouble, read-only (a standby), lock not available in time."""
_REFUSED = re.compile(
    "authentication|password|pg_hba|does not exist|no such (user|database)|permitted to log in|support|certif"
)
"""Messages of a server that will refuse us later too. (A failed connection has no SQLSTATE.)"""
_UNKNOWN_HOST = re.compile(
    rf"\[Errno ({socket.EAI_NONAME}|{getattr(socket, 'EAI_NODATA', socket.EAI_NONAME)})\]"
    "|Name or service not known|nodename nor servname|No address associated"
)
"""Messages of Python's resolver and of libpq for a host name that does not exist."""


class Connection(psycopg.Connection[Any]):
    """A connection that never waits for a reply beyond `deadline`, whatever happens to server and network."""

    deadline: float

    def wait(self, gen: Generator[Any, Any, Value], *args: Any, **kwargs: Any) -> Value:
        # psycopg waits here for every reply, by default without a limit. It uses the event numbers of selectors.
        try:
            wanted = next(gen)
            with selectors.DefaultSelector() as selector:
                selector.register(self.fileno(), wanted)
                while True:
                    ready = selector.select(max(0.0, self.deadline - time.monotonic()))
                    if not ready and time.monotonic() >= self.deadline:
                        raise psycopg.OperationalError("no answer in time")
                    wanted = gen.send(ready[0][1] if ready else 0)
                    selector.modify(self.fileno(), wanted)
        except StopIteration as end:
            value: Value = end.value
            return value

    def is_over(self) -> bool:
        """Whether the server closed the connection since the last verb. Sends nothing."""
        try:
            self.pgconn.consume_input()  # the server's last message
            self.pgconn.consume_input()  # the end of the stream
        except psycopg.OperationalError:
            return True
        return False


def options_of(url: str) -> dict[str, Any]:
    """The options for libpq: those of the URL override our defaults."""
    try:
        said = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        # libpq quotes what it cannot parse, even a password. Only the name of an option is safe to show.
        option = re.search(r'invalid URI query parameter: "(\w+)"', str(error))
        problem = f"has an option that libpq does not know, {option[1]}" if option else "is not valid for libpq"
        raise ConfigurationError(
            f"{safe_url(url)} {problem}; write postgresql://user:password@host:port/database, "
            "and inside each part %40 for @, %2F for /, %3A for :"
        ) from None
    # Keepalives, so that firewalls on the way do not drop an idle connection.
    return {"client_encoding": "utf8", "fallback_application_name": "taskguard", "keepalives_idle": 30} | said


def connect(options: dict[str, Any], deadline: float, store: str, *, has_answered: bool) -> Connection:
    """A new connection for the store named *store*; *has_answered*: whether its server ever answered this process."""
    # libpq accepts whole seconds, and at least two.
    options = {"connect_timeout": max(2, ceil(deadline - time.monotonic()))} | options
    try:
        return Connection.connect(
            autocommit=True,
            prepare_threshold=None,
            cursor_factory=psycopg.ClientCursor,
            row_factory=namedtuple_row,
            **options,
        )
    except psycopg.Error as error:
        # Without its cause: if a URL was misread, the host in the message may be a part of the password.
        raise _refusal(error, store, has_answered) from None


def _refusal(error: psycopg.Error, store: str, has_answered: bool) -> StoreError:
    if isinstance(error, errors.ConnectionTimeout):
        return StoreUnavailableError(store, "could not connect: no answer in time")
    text = str(error)
    if _UNKNOWN_HOST.search(text):
        if has_answered:
            return StoreUnavailableError(store, "could not connect: its host is not known any more")
        return StoreError(store, "its host is not known: check the URL")
    # From "connection to server at … failed: FATAL:  password authentication failed …" take only the reason.
    _, found, reason = text.rpartition("failed: ")
    if not found:
        is_resolver = "resolve host" in text or text.startswith("[Errno")
        reason = "the name of its host cannot be resolved now" if is_resolver else "libpq gave no reason"
    reason = reason.partition("\n")[0].removeprefix("FATAL:").strip()
    if _REFUSED.search(reason):
        return StoreError(store, f"{reason}; check the URL and the server's pg_hba.conf")
    return StoreUnavailableError(store, f"could not connect: {reason}")


def explained(error: psycopg.Error | UnicodeError, store: str, schema: str) -> StoreError:
    """The error of the store named *store*, with what to do about it."""
    state, text = "", str(error).partition("\n")[0]
    if isinstance(error, psycopg.Error):
        state, text = error.sqlstate or "", error.diag.message_primary or text
    lost = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) and not state
    if lost or state.startswith(_PASSING) or _is_of_a_standby(error):
        return StoreUnavailableError(store, text)
    if state == "42501":
        text += (
            "; an administrator must run taskguard/stores/postgresql.sql, and to the role of this URL"
            f" GRANT USAGE ON SCHEMA {schema}, GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} and"
            f" GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema}"
        )
    elif state.startswith("42"):
        text += (
            f"; schema {schema} differs from taskguard/stores/postgresql.sql: name another with ?schema=,"
            " or rename it (ALTER SCHEMA … RENAME TO …), and taskguard creates a new one"
        )
    return StoreError(store, text)


def _is_of_a_standby(error: psycopg.Error | UnicodeError) -> bool:
    """Whether a standby refused READ WRITE: it may be promoted later."""
    # The SQLSTATE covers any "not supported", and the text is in the server's language. The source function is not
    # translated: it checks boolean settings, and READ WRITE is the only one that we set.
    return isinstance(error, errors.FeatureNotSupported) and error.diag.source_function == "call_bool_check_hook"
