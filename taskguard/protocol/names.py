"""Which names and numbers a store is asked to keep: checked once, before any claim, so that every store takes them.

Lengths are bytes of UTF-8. They are what the narrowest store can index: PostgreSQL has 2,700 bytes for namespace, entry
and owner together, and other servers 1,024 or 2,048 for each. A store refuses nothing that is allowed here; were it to
refuse at the end of a body what it took at the beginning, the body would run twice.
"""

from __future__ import annotations

import hashlib
from reprlib import Repr
from typing import Any

from taskguard.errors import ConfigurationError
from taskguard.protocol.store import TOKEN_LIMIT, Claim

KEY = 1024
"""What a user may choose as a key."""
ENTRY = 1600
"""What a store takes as a key: an entry may be named by a key, and by the job that has it."""
OWNER = 512
JOB_ID = 400
"""What a user may choose as the id of a job: a queue adds to it what tells its runs apart."""
NAMESPACE = 128
ATTEMPT = 128
"""Also of the name of a message."""
PAYLOAD = 4096
LONGEST = 100 * 365 * 86400.0
"""Seconds: a lease and a retention as long as this, both together, still end before the highest token."""

_SHOWN = Repr()
_SHOWN.maxstring = _SHOWN.maxother = 60


def check_key(key: str) -> str:
    """The key, if a user may choose it; ConfigurationError if not."""
    _raise_for(_problem("key", key, KEY))
    return key


def check_entry(name: str) -> str:
    """The name of an entry, which may be longer than a key; ConfigurationError if no store takes it."""
    _raise_for(_problem("key", name, ENTRY))
    return name


def check_job_id(option: str, job_id: Any) -> None:
    """ConfigurationError if a caller cannot choose that id; *option* is what it is given as."""
    _raise_for(_problem(option, job_id, JOB_ID))


def check_namespace(namespace: Any, option: str = "namespace") -> None:
    """ConfigurationError if entries cannot be kept under that namespace; *option* is what it is given as."""
    problem = problem_with(option, namespace, NAMESPACE)
    if not problem and not namespace.isprintable():
        problem = f"{option}={namespace!r} contains what cannot be printed; write a short name such as 'billing'"
    _raise_for(problem)


def check_claim(claim: Claim) -> Claim:
    """The claim, if every store can answer it; ConfigurationError if not."""
    if _has_plain_names(claim) and not _problem_with_numbers(claim):
        return claim
    problem = (
        _problem("key", claim.key, ENTRY)
        or _problem("owner (the job's id)", claim.owner, OWNER)
        or _problem("attempt", claim.attempt, ATTEMPT)
        or (claim.payload and _problem("payload", claim.payload, PAYLOAD))
        or (claim.join and _problem("join", claim.join, OWNER))
        or (claim.copy and _problem("copy", claim.copy, ATTEMPT))
        or _problem_with_numbers(claim)
    )
    if problem:
        raise ConfigurationError(f"{_of(claim)}{problem}")
    return claim


def _has_plain_names(claim: Claim) -> bool:
    """Whether they are as most are: the same as below, at a fifth of its price."""
    key, owner, attempt = claim.key, claim.owner, claim.attempt
    try:
        names = "".join((key, owner, attempt, claim.payload, claim.join, claim.copy))
    except TypeError:
        return False
    return (
        names.isascii()
        and "\0" not in names
        and 0 < len(key) <= ENTRY
        and 0 < len(owner) <= OWNER
        and 0 < len(attempt) <= ATTEMPT
        and len(claim.payload) <= PAYLOAD
        and len(claim.join) <= OWNER
        and len(claim.copy) <= ATTEMPT
    )


def shortened(name: str) -> str:
    """What somebody sent, as it can be part of an entry's name: as it is, or its beginning and a digest of it."""
    if not name or not problem_with("key", name, KEY):
        return name
    data = name.encode("utf-8", "surrogatepass")
    start = data[:200].decode("utf-8", "ignore").replace("\0", "")
    return f"{start}#{hashlib.sha256(data).hexdigest()}"


def problem_with(what: str, name: Any, most: int) -> str:
    """Why *name* cannot be what it is given as, and what to write; empty if it can."""
    if not isinstance(name, str) or not name:
        return f"{what} must be a non-empty text, not {_SHOWN.repr(name)}"
    if "\0" in name:
        return f"{what}={_SHOWN.repr(name)} contains a NUL character, which PostgreSQL cannot store; remove it"
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return (
            f"{what}={_SHOWN.repr(name)} contains a lone surrogate, which UTF-8 cannot encode; replace it: "
            "name.encode(errors='replace').decode()"
        )
    if length > most:
        return (
            f"{what}={_SHOWN.repr(name)} has {length} bytes in UTF-8, and {most} is the most that every store takes; "
            "write a shorter one, or a digest of it: hashlib.sha256(name.encode()).hexdigest()"
        )
    return ""


def _raise_for(problem: str) -> None:
    if problem:
        raise ConfigurationError(problem)


def _problem(what: str, name: Any, most: int) -> str:
    """The same at a tenth of the price for a name as most are."""
    if type(name) is str and 0 < len(name) <= most and name.isascii() and "\0" not in name:
        return ""
    return problem_with(what, name, most)


def _problem_with_numbers(claim: Claim) -> str:
    if not 0 < claim.lease <= LONGEST:  # not so for a nan either
        return f"lease={claim.lease!r} must be a positive number of seconds, a hundred years at most"
    if not 0 <= claim.keep_for <= LONGEST:
        return f"keep_for={claim.keep_for!r} must be a number of seconds from 0 to a hundred years"
    if not 0 <= claim.copy_for <= LONGEST:
        return f"copy_for={claim.copy_for!r} must be a number of seconds from 0 to a hundred years"
    if not isinstance(claim.floor, int) or not 0 <= claim.floor < TOKEN_LIMIT - 1:
        return f"floor={claim.floor!r} is not a token: tokens are whole numbers from 0, below 2**53"
    return ""


def _of(claim: Claim) -> str:
    """Which job's claim it is, where its name can be shown."""
    named = isinstance(claim.key, str) and isinstance(claim.owner, str)
    return f"{_SHOWN.repr(claim.key)[1:-1]}, owner {_SHOWN.repr(claim.owner)[1:-1]}: " if named else ""
