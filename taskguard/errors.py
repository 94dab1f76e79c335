"""Every error taskguard raises.

TaskguardError
├── ConfigurationError (also ValueError)   an option, a URL or a pair of options that cannot work
├── KeyArgumentError   (also TypeError)    an argument without a stable form, so it cannot be part of a key
├── StoreError                             the store answered, and the answer cannot be used
│   └── StoreUnavailableError              the store is unreachable, or its reply was lost: the outcome is unknown
├── DuplicateTaskError                     another owner holds the key
│   └── WaitTimeoutError                   ... and still holds it after wait_up_to
├── PayloadMismatchError                   one idempotency key, two different sets of arguments
├── LeaseLostError                         a newer holder replaced this one, or may have
├── StaleFenceError                        a resource has seen a higher token than this holder's and refuses it
├── VersionConflictError                   somebody else changed a row since it was read
├── RowCountError                          an update matched more rows than expected, or fewer, or none
├── TooManyStartsError                     the workers of a job died max_starts times
├── EarlierFailureError                    the work ran before and failed; the stored failure is replayed
└── OutcomeNotKeptError                    the work is done, but its result was not stored

Each error carries its facts as attributes and survives pickling: a worker raises it, a caller reads it.
"""

from __future__ import annotations

from datetime import datetime, timezone

IDEMPOTENCY_KEY = "idempotency_key"
HIGHEST_TOKEN = 2**53 - 1  # one below `store.TOKEN_LIMIT`


class TaskguardError(Exception):
    """The root of the tree above: what `except taskguard.TaskguardError` catches."""


class ConfigurationError(TaskguardError, ValueError):
    """An option, or a combination of options, cannot work. The message says which, and what to write instead."""


class KeyArgumentError(TaskguardError, TypeError):
    """An argument has no stable form, so taskguard cannot recognise two equal calls as equal."""

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(argument, problem)
        self.argument = argument
        self.problem = problem

    def __str__(self) -> str:
        if self.argument == IDEMPOTENCY_KEY:
            return f"cannot make a key from {self.argument}: {self.problem}"
        return (
            f"cannot make a key from argument {self.argument!r}: {self.problem}; "
            "choose other arguments with key=, or give key= a function that returns a plain value"
        )


class StoreError(TaskguardError):
    """The store answered, and the answer cannot be used. Nothing was changed."""

    def __init__(self, store: str, problem: str) -> None:
        super().__init__(store, problem)
        self.store = store
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.store}: {self.problem}"


class StoreUnavailableError(StoreError):
    """The store is unreachable, or its reply was lost.

    That is neither "held" nor "refused": whether the store carried out the request is unknown. Repeating the same
    request is safe.
    """


class DuplicateTaskError(TaskguardError):
    """Another owner holds the key."""

    def __init__(self, key: str, owner: str, state: str = "running", since: float = 0.0, token: int = 0) -> None:
        super().__init__(key, owner, state, since, token)
        self.key = key
        self.owner = owner
        self.state = state
        self.since = since
        self.token = token

    def __str__(self) -> str:
        return f"{self.key} is already {self.state} (owner {self.owner}{_since(self.since)}, token {self.token})"


class WaitTimeoutError(DuplicateTaskError):
    """Another owner still held the key after `wait_up_to` seconds."""

    def __init__(
        self, key: str, owner: str, state: str = "running", since: float = 0.0, token: int = 0, waited: float = 0.0
    ) -> None:
        super().__init__(key, owner, state, since, token)
        self.args = (key, owner, state, since, token, waited)
        self.waited = waited

    def __str__(self) -> str:
        return f"{super().__str__()}; gave up after waiting {self.waited:g} s; raise wait_up_to= to wait longer"


class PayloadMismatchError(TaskguardError):
    """The same idempotency key was used with different arguments, so it cannot mean the same work."""

    def __init__(self, key: str, owner: str) -> None:
        super().__init__(key, owner)
        self.key = key
        self.owner = owner

    def __str__(self) -> str:
        return (
            f"{self.key} was already used with different arguments (owner {self.owner}); "
            "use a new idempotency key for different work"
        )


class LeaseLostError(TaskguardError):
    """This holder must stop: a newer holder replaced it, or may have."""

    def __init__(self, key: str, token: int, unsure: bool = False, process: int = 0) -> None:
        super().__init__(key, token, unsure, *([process] if process else []))
        self.key = key
        self.token = token
        self.unsure = unsure
        self.process = process
        """The process that holds the lease, if this process was forked from it; else 0."""

    def __str__(self) -> str:
        if self.process:
            return (
                f"{self.key}: the lease with token {self.token} belongs to process {self.process}; a process forked "
                "inside the block does not hold it"
            )
        if self.unsure:
            return (
                f"{self.key}: the lease with token {self.token} expired and the store is unreachable; "
                "another owner may hold the key now"
            )
        return f"{self.key}: the lease with token {self.token} is lost; another owner may hold the key now"


class StaleFenceError(TaskguardError):
    """A resource has seen a higher token than this holder's, and refuses it. Nothing was written.

    Either a newer holder wrote to the resource, or the store that issues tokens lost its data. In the second case the
    next claim passes *mark*, the resource's high-water mark, as its floor and gets a token that the resource accepts.
    """

    def __init__(self, key: str, token: int, resource: str, mark: int) -> None:
        super().__init__(key, token, resource, mark)
        self.key = key
        self.token = token
        self.resource = resource
        self.mark = mark

    @property
    def is_hopeless(self) -> bool:
        """The high-water mark is above every possible token, so no fence wrote it."""
        return self.mark >= HIGHEST_TOKEN

    def __str__(self) -> str:
        if self.is_hopeless:
            return (
                f"{self.key}: the high-water mark of {self.resource} is {self.mark}, which no token can exceed, so it "
                "refuses every holder; a fence never writes such a value: set it to 0"
            )
        return (
            f"{self.key}: token {self.token} is stale, {self.resource} has seen {self.mark}; "
            "roll back, a newer holder owns this work"
        )


class VersionConflictError(TaskguardError):
    """Somebody else changed a row since its version was read. Nothing was written; read the row again and retry."""

    def __init__(self, resource: str, expected: int, found: int) -> None:
        super().__init__(resource, expected, found)
        self.resource = resource
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return (
            f"{self.resource} has version {self.found}, not {self.expected}: somebody else changed it in the meantime; "
            "roll back, read it again and retry"
        )


class RowCountError(TaskguardError):
    """The condition of an update matches another number of rows than expected, perhaps none."""

    def __init__(self, resource: str, expected: int, found: int) -> None:
        super().__init__(resource, expected, found)
        self.resource = resource
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        if not self.found:
            return f"{self.resource}: no row matches; roll back, and check the condition of the update"
        return (
            f"{self.resource}: the condition matches {self.found} rows, not {self.expected}; roll back, and "
            f"write rows={self.found} if you mean that many"
        )


class TooManyStartsError(TaskguardError):
    """The job started as often as max_starts allows, and its worker died every time."""

    def __init__(self, key: str, owner: str, starts: int, max_starts: int) -> None:
        super().__init__(key, owner, starts, max_starts)
        self.key = key
        self.owner = owner
        self.starts = starts
        self.max_starts = max_starts

    def __str__(self) -> str:
        return (
            f"{self.key}: job {self.owner} started {self.max_starts} times and its worker died each time; "
            f"it does not start again (max_starts={self.max_starts})"
        )


class EarlierFailureError(TaskguardError):
    """The work ran before and failed; on_done="reuse" replays that failure."""

    def __init__(self, key: str, owner: str, error: str) -> None:
        super().__init__(key, owner, error)
        self.key = key
        self.owner = owner
        self.error = error

    def __str__(self) -> str:
        return f"{self.key} already ran and failed (owner {self.owner}): {self.error}"


class OutcomeNotKeptError(TaskguardError):
    """The work is done and does not run again, but its result is not available."""

    def __init__(self, key: str, owner: str, reason: str) -> None:
        super().__init__(key, owner, reason)
        self.key = key
        self.owner = owner
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.key} is already done (owner {self.owner}), but its result was not kept: {self.reason}"


def _since(moment: float) -> str:
    return f", since {datetime.fromtimestamp(moment, timezone.utc):%Y-%m-%d %H:%M:%S} UTC" if moment else ""
