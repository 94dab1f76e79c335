"""Which entries a job has: one for its place in the queue, one for its run. What `hold` means."""

from __future__ import annotations

from taskguard.protocol.policy import Policy
from taskguard.protocol.store import Entry


def queue_entry_of(policy: Policy, key: str) -> str:
    """The entry that holds the place in the queue; empty if nothing is held before the body starts."""
    if policy.hold == "running" or policy.on_conflict.enqueue == "wait":
        return ""  # all of them run, so none keeps another one out of the queue
    return f"{key}:queue" if policy.hold == "one_queued_one_running" else key


def queue_entries_of(key: str) -> tuple[str, ...]:
    """The entries that may hold a job's place in the queue, whatever its policy is."""
    return key, f"{key}:queue", next_of(key)


def run_of(policy: Policy, key: str, owner: str) -> str:
    """The entry that is running. A job whose key is free while it runs still answers for its own id."""
    return job_of(key, owner) if policy.hold == "queued" else key


def job_of(key: str, owner: str) -> str:
    """The entry of one job, which keeps no other out."""
    return f"{key}:job:{owner}"


def next_of(key: str) -> str:
    """The place of the one more run that `run_once_more` grants."""
    return f"{key}:next"


def is_queued(entry: Entry | None) -> bool:
    """Whether a job waits in that place."""
    return entry is not None and entry.state == "queued" and entry.remaining > 0
