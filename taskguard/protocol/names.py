"""Limits on names and numbers, checked once before any claim, so that every store accepts them.

Lengths are bytes of UTF-8. They fit the narrowest store's index: PostgreSQL has 2,700 bytes for namespace, entry and
owner together, and other servers have 1,024 or 2,048 for each. A store accepts everything that is allowed here: if it
refused at the end of a body what it accepted at the start, the body would run twice.
"""

from __future__ import annotations

import hashlib
from reprlib import Repr
from typing import Any

from taskguard.errors import ConfigurationError
from taskguard.protocol.store import TOKEN_LIMIT, Claim

KEY = 1024
"""The longest key that a user may choose."""
ENTRY = 1600
"""The longest key that a store accepts: an entry's name may contain a key and a job id."""
OWNER = 512
JOB_ID = 400
"""The longest job id that a user may choose: a queue appends a suffix per run."""
NAMESPACE = 128
ATTEMPT = 128
"""Also the limit of a message's name."""
PAYLOAD = 4096
LONGEST = 100 * 365 * 86400.0
"""Seconds. A lease and a retention of this length together still end before the highest token."""

_SHOWN = Repr()
_SHOWN.maxstring = _SHOWN.maxother = 60


def check_key(key: str) -> str:
    """Return the key; raise ConfigurationError if a user may not choose it."""
    _raise_for(_problem("key", key, KEY))
    return key


def check_entry(name: str) -> str:
    """Return the name of an entry, which may be longer than a key; raise ConfigurationError if stores refuse it."""
    _raise_for(_problem("key", name, ENTRY))
    return name


def check_job_id(option: str, job_id: Any) -> None:
    """Raise ConfigurationError if a caller may not choose that id; *option* is the name it was passed as."""
    _raise_for(_problem(option, job_id, JOB_ID))


def check_namespace(namespace: Any, option: str = "namespace") -> None:
    """Raise ConfigurationError if that namespace is not valid; *option* is the name it was passed as."""
    problem = problem_with(option, namespace, NAMESPACE)
    if not problem and not namespace.isprintable():
        problem = f"{option}={namespace!r} contains unprintable characters; write a short name such as 'billing'"
    _raise_for(problem)


def check_claim(claim: Claim) -> Claim:
    """Return the claim; raise ConfigurationError unless every store accepts it."""
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
    """A fast path for ordinary names: the same checks as below, at a fifth of the cost."""
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
    """A received name that fits into an entry's name: unchanged if it is valid, else its start and its digest."""
    if not name or not problem_with("key", name, KEY):
        return name
    data = name.encode("utf-8", "surrogatepass")
    start = data[:200].decode("utf-8", "ignore").replace("\0", "")
    return f"{start}#{hashlib.sha256(data).hexdigest()}"


def problem_with(what: str, name: Any, most: int) -> str:
    """Why *name* is not valid, and what to write instead; empty if it is valid."""
    if not isinstance(name, str) or not name:
        return f"{what} must be a non-empty string, not {_SHOWN.repr(name)}"
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
            f"{what}={_SHOWN.repr(name)} has {length} bytes in UTF-8, more than the {most} that every store accepts; "
            "write a shorter one, or a digest of it: hashlib.sha256(name.encode()).hexdigest()"
        )
    return ""


def _raise_for(problem: str) -> None:
    if problem:
        raise ConfigurationError(problem)


def _problem(what: str, name: Any, most: int) -> str:
    """The same, at a tenth of the cost for ordinary names."""
    if type(name) is str and 0 < len(name) <= most and name.isascii() and "\0" not in name:
        return ""
    return problem_with(what, name, most)


def _problem_with_numbers(claim: Claim) -> str:
    if not 0 < claim.lease <= LONGEST:  # also refuses nan
        return f"lease must be a positive number of seconds, a hundred years at most, not {claim.lease!r}"
    if not 0 <= claim.keep_for <= LONGEST:
        return f"keep_for must be a number of seconds from 0 to a hundred years, not {claim.keep_for!r}"
    if not 0 <= claim.copy_for <= LONGEST:
        return f"copy_for must be a number of seconds from 0 to a hundred years, not {claim.copy_for!r}"
    if not isinstance(claim.floor, int) or not 0 <= claim.floor < TOKEN_LIMIT - 1:
        return f"floor must be a token (a whole number from 0, below 2**53), not {claim.floor!r}"
    return ""


def _of(claim: Claim) -> str:
    """The claim's key and owner as a prefix of the message; empty if they are not strings."""
    named = isinstance(claim.key, str) and isinstance(claim.owner, str)
    return f"{_SHOWN.repr(claim.key)[1:-1]}, owner {_SHOWN.repr(claim.owner)[1:-1]}: " if named else ""
