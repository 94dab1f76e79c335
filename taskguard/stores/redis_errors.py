"""Translates the errors of a Redis server."""

from __future__ import annotations

import re
import socket
from typing import NoReturn

import redis

from taskguard.errors import StoreError, StoreUnavailableError

# Errors of a server that cannot serve us now and may later; nothing was carried out.
_PASSING = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
    redis.exceptions.TryAgainError,
)
_PASSING_CODES = frozenset(["BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS"]) | frozenset(
    ["OOM", "READONLY", "TRYAGAIN", "UNKILLABLE"]
)
_NO_SUCH_NAME = frozenset(
    getattr(socket, code) for code in ("EAI_NONAME", "EAI_NODATA", "EAI_ADDRFAMILY") if hasattr(socket, code)
)
"""The resolver's codes for a name that does not exist. Others, EAI_AGAIN above all, are failures of the resolver."""
# Not compiled here: each work horse imports this module, and few ever need the pattern.
_WRAPPED = r"Error running script \(call to \w+\): (?:@user_script: ?\d+: )+-?"
"""The prefix that Redis before 7 puts before the error of a script's command, and so before its code."""
_WITHOUT_RIGHTS = "ACL failure in script|The user executing the script can't"
_STUMBLED = r"user_script:\d+: (NOT_OURS |attempt to |bad argument )"
"""The script found a value that it did not write."""


class ForeignValueError(StoreError):
    """The key of an entry holds a value that taskguard did not write."""


def explain(error: redis.exceptions.RedisError, store: str, namespace: str, *, has_answered: bool) -> NoReturn:
    """Raise the `StoreError` for *error*; *has_answered*: whether the server ever answered this process."""
    text = _said(error)
    if not has_answered and _is_unknown_host(error):
        # Without its cause: where a URL was misread, the host it names may be a piece of the password.
        raise StoreError(store, "its host is not known: check the URL") from None
    if isinstance(error, (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError)):
        raise StoreError(store, f"{text}: check the user and the password in the store's URL") from None
    if is_passing(error):
        raise StoreUnavailableError(store, text) from error
    if isinstance(error, redis.exceptions.NoPermissionError) or re.match(_WITHOUT_RIGHTS, text):
        raise StoreError(
            store,
            f"{text}; the user in the store's URL lacks a permission: ACL SETUSER … ~{namespace}:* +@read +@write "
            "+@scripting +@connection +time +info",
        ) from error
    if text.startswith("WRONGTYPE") or re.match(_STUMBLED, text):
        raise ForeignValueError(
            store,
            "the key of an entry holds a value that taskguard did not write; nothing was changed. "
            f"Give taskguard a namespace of its own, or remove the foreign keys below {namespace!r} ({text})",
        ) from error
    raise StoreError(store, text) from error


def _is_unknown_host(error: BaseException) -> bool:
    why = error.__cause__ or error.__context__  # which of the two depends on the driver's version
    return isinstance(why, socket.gaierror) and why.errno in _NO_SUCH_NAME


def is_passing(error: redis.exceptions.RedisError) -> bool:
    return isinstance(error, _PASSING) or _said(error).partition(" ")[0] in _PASSING_CODES


def _said(error: redis.exceptions.RedisError) -> str:
    """The server's message, its code first; redis-py drops the codes for which it has a class."""
    # Match the code at its position, not anywhere: some errors quote a key, which can have any name.
    return re.sub(_WRAPPED, "", str(error), count=1) if str(error).startswith("Error running script") else str(error)
