"""Checks the history: skipped calls whose arguments differed, and lost leases."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from taskguard.doctor.finding import Finding, Patient
from taskguard.keys.maker import space_of


def key_is_complete(patient: Patient) -> Iterator[Finding]:
    """Calls that were skipped, or reused an outcome, although their arguments differed."""
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
                f"{count} of {len(skipped)} skipped calls differed in {argument}; their value was ignored",
                f"if calls that differ in {argument} are different work, name it in key= too; if the newest arguments "
                'must win, write on_conflict="run_once_more"; if the difference does not matter, use --ignore TG301',
            )


def _started(patient: Patient) -> set[tuple[str, str]]:
    """The jobs that ran, perhaps after they waited for another one."""
    events = [decision.event for decision in patient.decisions]
    # With enforce=False a duplicate runs beside the holder: it counts as skipped.
    return {
        (space_of(event.key), event.owner)
        for event in events
        if event.kind in ("claimed", "took_over") and event.state == "running" and ":beside:" not in event.key
    }


def _with_newest(patient: Patient) -> set[str]:
    """Tasks with `run_once_more`: one more run has the newest arguments."""
    keys = {decision.event.key for decision in patient.decisions}
    return {space_of(key) for key in keys if key.endswith(":next")}


def keeps_its_leases(patient: Patient) -> Iterator[Finding]:
    """Jobs that lost their lease while they ran."""
    lost: dict[str, set[str]] = defaultdict(set)
    for decision in patient.decisions:
        if decision.event.kind in ("lost", "refused", "fence_refused") and "hold_at_most" not in decision.event.detail:
            lost[space_of(decision.event.key)].add(f"{decision.event.owner} {decision.event.token}")
    for task, times in sorted(lost.items()):
        yield Finding(
            "TG302",
            "warning",
            task,
            f"{len(times)} run(s) lost the lease: the process was stopped, starved of CPU or cut off from "
            "the store for longer than lease=, or somebody released the key by hand",
            "run `taskguard explain KEY`; give the worker more CPU, or the task a longer lease=",
        )


CHECKS = (key_is_complete, keeps_its_leases)
