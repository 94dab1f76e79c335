"""What a Redis server says, under its right name."""

from __future__ import annotations

import re
import socket
from typing import NoReturn

import redis

from taskguard.errors import StoreError, StoreUnavailableError

# What a server says that cannot serve us now and may later; nothing was carried out.
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
"""What the resolver says of a name that nobody has. Anything else, EAI_AGAIN above all, is trouble of its own."""
# Not compiled here: each work horse imports this, and few ever need it.
_WRAPPED = r"Error running script \(call to \w+\): (?:@user_script: ?\d+: )+-?"
"""What Redis before 7 writes in front of what a script's command was told, its code included."""
_WITHOUT_RIGHTS = "ACL failure in script|The user executing the script can't"
_STUMBLED = r"user_script:\d+: (NOT_OURS |attempt to |bad argument )"
"""The script met something else than what it writes itself."""


class ForeignValueError(StoreError):
    """Something else than an entry of ours is kept under an entry's key."""


def explain(error: redis.exceptions.RedisError, store: str, namespace: str, *, has_answered: bool) -> NoReturn:
    """Raise what *error* means for the store of that name; *has_answered*: to this process, or to its parent."""
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
            f"{text}; the user of the store's URL lacks a right: ACL SETUSER … ~{namespace}:* +@read +@write "
            "+@scripting +@connection +time +info",
        ) from error
    if text.startswith("WRONGTYPE") or re.match(_STUMBLED, text):
        raise ForeignValueError(
            store,
            "something else than an entry of ours is kept under its key; nothing was changed. "
            f"Give taskguard a namespace of its own, or remove the foreign keys below {namespace!r} ({text})",
        ) from error
    raise StoreError(store, text) from error


def _is_unknown_host(error: BaseException) -> bool:
    why = error.__cause__ or error.__context__  # which of the two depends on the driver's version
    return isinstance(why, socket.gaierror) and why.errno in _NO_SUCH_NAME


def is_passing(error: redis.exceptions.RedisError) -> bool:
    return isinstance(error, _PASSING) or _said(error).partition(" ")[0] in _PASSING_CODES


def _said(error: redis.exceptions.RedisError) -> str:
    """What the server said, its code first; redis-py leaves out the codes that it has a class of its own for."""
    # By its place and not by its name alone: a key can be called anything, and some errors quote it.
    return re.sub(_WRAPPED, "", str(error), count=1) if str(error).startswith("Error running script") else str(error)
