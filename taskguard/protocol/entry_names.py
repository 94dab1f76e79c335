"""Names of a job's entries: one while it is queued, one while it runs. This is what `hold` selects."""

from __future__ import annotations

from taskguard.protocol.policy import Policy
from taskguard.protocol.store import Entry


def queue_entry_of(policy: Policy, key: str) -> str:
    """The entry that a queued job holds; empty if a job holds nothing before its body starts."""
    if policy.hold == "running" or policy.on_conflict.enqueue == "wait":
        return ""  # every job runs, so none keeps another one out of the queue
    return f"{key}:queue" if policy.hold == "one_queued_one_running" else key


def queue_entries_of(key: str) -> tuple[str, ...]:
    """Every entry that a queued job may hold, whatever its policy is."""
    return key, f"{key}:queue", next_of(key)


def run_of(policy: Policy, key: str, owner: str) -> str:
    """The entry that a running job holds. If its key is free while it runs, the job still holds an entry of its own."""
    return job_of(key, owner) if policy.hold == "queued" else key


def job_of(key: str, owner: str) -> str:
    """The entry of one job, which keeps no other job out."""
    return f"{key}:job:{owner}"


def next_of(key: str) -> str:
    """The queued entry of the additional run that `run_once_more` grants."""
    return f"{key}:next"


def is_queued(entry: Entry | None) -> bool:
    """Whether a job is queued in that entry."""
    return entry is not None and entry.state == "queued" and entry.remaining > 0
