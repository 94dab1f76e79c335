"""Every error taskguard raises.

TaskguardError
├── ConfigurationError (also ValueError)   an option, a URL or a pair of options that cannot work
├── KeyArgumentError   (also TypeError)    an argument that has no stable form, so no key can be made of it
├── StoreError                             the store answered, and the answer cannot be used
│   └── StoreUnavailableError              the store could not be asked, or its reply was lost: nothing is known
├── DuplicateTaskError                     the key is held by another owner
│   └── WaitTimeoutError                   ... and still was when the waiting time was over
├── PayloadMismatchError                   one idempotency key, two different sets of arguments
├── LeaseLostError                         this holder was replaced, or can no longer be sure that it was not
├── StaleFenceError                        a resource has seen a higher token than this holder's: it refuses
├── VersionConflictError                   a row was changed by another since it was read
├── RowCountError                          an update was to change so many rows, and found others, or none
├── TooManyStartsError                     a job whose workers died max_starts times
├── EarlierFailureError                    the work was done before, and failed; the failure is what was kept
└── OutcomeNotKeptError                    the work was done before; that is known, its result is not

Each one carries its facts as attributes and survives pickling: an error made in a worker is read in a caller.
"""

from __future__ import annotations

from datetime import datetime, timezone

IDEMPOTENCY_KEY = "idempotency_key"
HIGHEST_TOKEN = 2**53 - 1  # one below `store.TOKEN_LIMIT`


class TaskguardError(Exception):
    """The root of the tree above: what `except taskguard.TaskguardError` catches."""


class ConfigurationError(TaskguardError, ValueError):
    """An option, or several together, cannot work. The message says which and what to write instead."""


class KeyArgumentError(TaskguardError, TypeError):
    """An argument has no stable form, so two equal calls could not be recognised as equal."""

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(argument, problem)
        self.argument = argument
        self.problem = problem

    def __str__(self) -> str:
        if self.argument == IDEMPOTENCY_KEY:
            return f"no key can be made from {self.argument}: {self.problem}"
        return (
            f"no key can be made from argument {self.argument!r}: {self.problem}; "
            "choose other arguments with key=, or give key= a function that returns a plain value"
        )


class StoreError(TaskguardError):
    """The store answered, and the answer cannot be used: nothing was changed."""

    def __init__(self, store: str, problem: str) -> None:
        super().__init__(store, problem)
        self.store = store
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.store}: {self.problem}"


class StoreUnavailableError(StoreError):
    """The store could not be asked, or its reply was lost.

    That is not "held" and not "refused": whether the request was carried out is unknown, and asking the same again
    is safe.
    """


class DuplicateTaskError(TaskguardError):
    """The key is held by another owner."""

    def __init__(self, key: str, owner: str, state: str = "running", since: float = 0.0, token: int = 0) -> None:
        super().__init__(key, owner, state, since, token)
        self.key = key
        self.owner = owner
        self.state = state
        self.since = since
        self.token = token

    def __str__(self) -> str:
        return f"{self.key} is {self.state} by {self.owner}{_since(self.since)}, token {self.token}"


class WaitTimeoutError(DuplicateTaskError):
    """The key was still held by another owner when the waiting time was over."""

    def __init__(
        self, key: str, owner: str, state: str = "running", since: float = 0.0, token: int = 0, waited: float = 0.0
    ) -> None:
        super().__init__(key, owner, state, since, token)
        self.args = (key, owner, state, since, token, waited)
        self.waited = waited

    def __str__(self) -> str:
        return f"{super().__str__()}, still after waiting {self.waited:g} s; raise wait_up_to= to wait longer"


class PayloadMismatchError(TaskguardError):
    """The same idempotency key came with other arguments, so it cannot mean the same work."""

    def __init__(self, key: str, owner: str) -> None:
        super().__init__(key, owner)
        self.key = key
        self.owner = owner

    def __str__(self) -> str:
        return f"{self.key} was used by {self.owner} with other arguments; use a new idempotency key for other work"


class LeaseLostError(TaskguardError):
    """This holder must stop: it was replaced, or it can no longer be sure that it was not."""

    def __init__(self, key: str, token: int, unsure: bool = False, process: int = 0) -> None:
        super().__init__(key, token, unsure, *([process] if process else []))
        self.key = key
        self.token = token
        self.unsure = unsure
        self.process = process
        """The process that has the lease, where this one was forked from it; else 0."""

    def __str__(self) -> str:
        if self.process:
            return (
                f"{self.key}: the lease with token {self.token} belongs to process {self.process}; a process forked "
                "inside the block does not hold it"
            )
        if self.unsure:
            return (
                f"{self.key}: the lease with token {self.token} ran out and the store cannot be asked whether "
                "somebody else holds it now"
            )
        return f"{self.key}: the lease with token {self.token} is over, somebody else may hold it now"


class StaleFenceError(TaskguardError):
    """A resource has seen a higher token than this holder's, and refuses it. Nothing was written.

    Either a newer holder was there, or the store that makes the tokens lost its data: then the next claim, with *mark*
    as its floor, gets a token that the resource takes.
    """

    def __init__(self, key: str, token: int, resource: str, mark: int) -> None:
        super().__init__(key, token, resource, mark)
        self.key = key
        self.token = token
        self.resource = resource
        self.mark = mark

    @property
    def is_hopeless(self) -> bool:
        """The mark is higher than any token can be, so it is none."""
        return self.mark >= HIGHEST_TOKEN

    def __str__(self) -> str:
        if self.is_hopeless:
            return (
                f"{self.key}: {self.resource} has {self.mark} for its mark, which no token can exceed, so everybody is "
                "refused; something else than a fence has written it: set it to 0"
            )
        return (
            f"{self.key}: the token {self.token} is stale, {self.resource} has seen {self.mark}; "
            "roll back, the work is a newer holder's"
        )


class VersionConflictError(TaskguardError):
    """A row was changed by another since its version was read. Nothing was written; read it again and decide anew."""

    def __init__(self, resource: str, expected: int, found: int) -> None:
        super().__init__(resource, expected, found)
        self.resource = resource
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return (
            f"{self.resource} has version {self.found}, not {self.expected}: another has changed it meanwhile; "
            "roll back, read it again and decide anew"
        )


class RowCountError(TaskguardError):
    """An update was to change so many rows, and its condition is true for another number of them, perhaps for none."""

    def __init__(self, resource: str, expected: int, found: int) -> None:
        super().__init__(resource, expected, found)
        self.resource = resource
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        if not self.found:
            return f"{self.resource}: there is no such row; roll back, and look at the condition of the update"
        return (
            f"{self.resource}: the condition is true for {self.found} rows, not for {self.expected}; roll back, and "
            "say rows= if that many are meant"
        )


class TooManyStartsError(TaskguardError):
    """The job was started as often as max_starts allows and its worker died every time."""

    def __init__(self, key: str, owner: str, starts: int, max_starts: int) -> None:
        super().__init__(key, owner, starts, max_starts)
        self.key = key
        self.owner = owner
        self.starts = starts
        self.max_starts = max_starts

    def __str__(self) -> str:
        return (
            f"{self.key}: job {self.owner} was started {self.max_starts} times and its worker died each time; "
            "it is not started again (max_starts)"
        )


class EarlierFailureError(TaskguardError):
    """The work was done before, and failed; with on_done="reuse" that failure is the answer."""

    def __init__(self, key: str, owner: str, error: str) -> None:
        super().__init__(key, owner, error)
        self.key = key
        self.owner = owner
        self.error = error

    def __str__(self) -> str:
        return f"{self.key} was done by {self.owner} and failed: {self.error}"


class OutcomeNotKeptError(TaskguardError):
    """The work was done before and is not done again; its result is not known any more."""

    def __init__(self, key: str, owner: str, reason: str) -> None:
        super().__init__(key, owner, reason)
        self.key = key
        self.owner = owner
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.key} was done by {self.owner}, but its result was not kept: {self.reason}"


def _since(moment: float) -> str:
    return f" since {datetime.fromtimestamp(moment, timezone.utc):%Y-%m-%d %H:%M:%S} UTC" if moment else ""
