"""What the history shows: calls that were skipped though they were not the same, leases that were lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from taskguard.doctor.finding import Finding, Patient
from taskguard.keys import space_of

FEW = 0
"""Lost leases that are nothing to speak of."""


def key_tells_all(patient: Patient) -> Iterator[Finding]:
    """Calls that were answered with another call's run, and had other arguments."""
    answered: Counter[str] = Counter()
    other: dict[str, Counter[str]] = defaultdict(Counter)
    for decision in patient.decisions:
        event = decision.event
        if event.kind in ("duplicate", "reused") and event.owner != event.holder:
            answered[space_of(event.key)] += 1
            other[space_of(event.key)].update(event.differs)
    for task, counts in sorted(other.items()):
        for argument, count in sorted(counts.items()):
            yield Finding(
                "TG301",
                "warning",
                task,
                f"{count} of {answered[task]} skipped calls had another {argument} than the job that they were skipped "
                "for: what they asked for was not done",
                f'let key= name {argument} too if it makes it other work; write on_conflict="run_once_more" if the '
                "newest arguments must win; leave it as it is if it does not matter",
            )


def keeps_its_leases(patient: Patient) -> Iterator[Finding]:
    """Holders that were replaced while they worked."""
    lost: dict[str, set[str]] = defaultdict(set)
    for decision in patient.decisions:
        if decision.event.kind in ("lost", "refused", "fence_refused") and "hold_at_most" not in decision.event.detail:
            lost[space_of(decision.event.key)].add(f"{decision.event.owner} {decision.event.token}")
    for task, times in sorted(lost.items()):
        if len(times) > FEW:
            yield Finding(
                "TG302",
                "warning",
                task,
                f"{len(times)} run(s) lost the lease while they worked: the process was stopped, starved or cut off "
                "from the store for longer than lease=, or somebody released the key by hand",
                "see `taskguard explain KEY`; give the worker more CPU, or the task a longer lease=",
            )


CHECKS = (key_tells_all, keeps_its_leases)
