"""What the history shows: calls that were skipped though they were not the same, leases that were lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from taskguard.doctor.finding import Finding, Patient
from taskguard.keys.maker import space_of


def key_tells_all(patient: Patient) -> Iterator[Finding]:
    """Calls that were answered with another call's run, and had other arguments."""
    answered: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for decision in patient.decisions:
        event = decision.event
        if event.kind in ("duplicate", "reused") and event.owner != event.holder:
            answered[space_of(event.key)][event.owner].update(event.differs)
    started, with_newest = _started(patient), _with_newest(patient)
    for task, calls in sorted(answered.items()):
        skipped = {owner: differs for owner, differs in calls.items() if (task, owner) not in started}
        counts = Counter(argument for differs in skipped.values() for argument in differs)
        for argument, count in sorted(counts.items()) if task not in with_newest else ():
            yield Finding(
                "TG301",
                "warning",
                task,
                f"{count} of {len(skipped)} skipped calls had another {argument} than the job that they were skipped "
                "for: what they asked for was not done",
                f'let key= name {argument} too if it makes it other work; write on_conflict="run_once_more" if the '
                "newest arguments must win; leave it as it is if it does not matter",
            )


def _started(patient: Patient) -> set[tuple[str, str]]:
    """The jobs that had their turn, perhaps after they had waited for another one."""
    events = [decision.event for decision in patient.decisions]
    # One that runs beside its holder, because nothing is enforced, is what would have been skipped.
    return {
        (space_of(event.key), event.owner)
        for event in events
        if event.kind in ("claimed", "took_over") and event.state == "running" and ":beside:" not in event.key
    }


def _with_newest(patient: Patient) -> set[str]:
    """Tasks of which one more run has the newest arguments: `run_once_more`."""
    keys = {decision.event.key for decision in patient.decisions}
    return {space_of(key) for key in keys if key.endswith(":next")}


def keeps_its_leases(patient: Patient) -> Iterator[Finding]:
    """Holders that were replaced while they worked."""
    lost: dict[str, set[str]] = defaultdict(set)
    for decision in patient.decisions:
        if decision.event.kind in ("lost", "refused", "fence_refused") and "hold_at_most" not in decision.event.detail:
            lost[space_of(decision.event.key)].add(f"{decision.event.owner} {decision.event.token}")
    for task, times in sorted(lost.items()):
        yield Finding(
            "TG302",
            "warning",
            task,
            f"{len(times)} run(s) lost the lease while they worked: the process was stopped, starved or cut off from "
            "the store for longer than lease=, or somebody released the key by hand",
            "see `taskguard explain KEY`; give the worker more CPU, or the task a longer lease=",
        )


CHECKS = (key_tells_all, keeps_its_leases)
