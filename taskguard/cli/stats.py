"""`taskguard stats`: how often tasks started, were skipped, lost their lease or were refused."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import click

from taskguard.cli.keys import ALL, INTERNAL
from taskguard.cli.output import age, console, json_option, say, table, write_json
from taskguard.cli.target import Target, with_target
from taskguard.cli.views import STATES, entry_as_json, state_of
from taskguard.events import Event
from taskguard.history import ORDINARY, Decision, decisions
from taskguard.keys.maker import space_of
from taskguard.protocol.store import Entry

COUNTS = {
    # name in JSON: heading in a table
    "starts": "STARTS",
    "queued": "QUEUED",
    "completed": "DONE",
    "failed": "FAILED",
    "duplicates": "SKIPPED",
    "reused": "REUSED",
    "taken_over": "TAKEN",
    "lost": "LOST",
    "refused": "REFUSED",
}
_KINDS = {
    "completed": "completed",
    "failed": "failed",
    "duplicate": "duplicates",
    "reused": "reused",
    "lost": "lost",
    "refused": "refused",
    "fence_refused": "refused",
}


@click.command("stats")
@with_target
@json_option
def command(target: Target, as_json: bool) -> None:
    """Count recent decisions by task, and show how many keys are held and which is held longest.

    The counts come from the history, which keeps the newest decisions; the line above the table shows how far back.
    """
    past = decisions(target.store, limit=ALL)
    facts = _facts(past, (entry for entry in target.store.scan() if not entry.key.startswith(INTERNAL)))
    if as_json:
        write_json(facts)
        return
    say("Now: " + ", ".join(f"{facts['states'][state]} {state}" for state in STATES))
    if facts["longest_held"]:
        longest = facts["longest_held"]
        say(f"Longest held: {longest['key']}, {longest['state']} for {age(time.time() - longest['since'])}")
    if not past:
        say("The history is empty, or it is off.")
        return
    ordinary, notable = _span(facts["ordinary_since"]), _span(facts["notable_since"])
    say(f"\nClaims and completions of the last {ordinary}, other decisions of the last {notable}:")
    names = _worth_a_column(facts["tasks"])
    rows = [[task, *[str(counts[name]) for name in names]] for task, counts in facts["tasks"].items()]
    console().print(table(["TASK", *[COUNTS[name] for name in names]], rows, folded="TASK"))


def _worth_a_column(tasks: dict[str, Any]) -> list[str]:
    """In a terminal, which is narrow, only the counts that are not 0 for every task."""
    return [name for name in COUNTS if not sys.stdout.isatty() or any(counts[name] for counts in tasks.values())]


def _facts(past: list[Decision], entries: Iterable[Entry]) -> dict[str, Any]:
    tasks: dict[str, Counter[str]] = defaultdict(Counter)
    seen: set[tuple[str, str]] = set()
    for event in (decision.event for decision in past):
        if event.kind == "duplicate":
            if (event.key, event.owner) in seen:
                continue  # the same job waits, and has tried again
            seen.add((event.key, event.owner))
        for name in _counted(event):
            tasks[space_of(event.key)][name] += 1
    states: Counter[str] = Counter()
    longest = None
    for entry in entries:
        states[state_of(entry)] += 1
        if state_of(entry) in ("running", "queued") and (longest is None or entry.since < longest.since):
            longest = entry
    ordinary = [decision.at for decision in past if decision.event.kind in ORDINARY]
    notable = [decision.at for decision in past if decision.event.kind not in ORDINARY]
    return {
        "tasks": {task: {name: counts[name] for name in COUNTS} for task, counts in sorted(tasks.items())},
        "states": {state: states[state] for state in STATES},
        "longest_held": None if longest is None else entry_as_json(longest),
        "ordinary_since": min(ordinary, default=None),
        "notable_since": min(notable, default=None),
    }


def _counted(event: Event) -> list[str]:
    if event.kind in ("claimed", "took_over"):
        claimed = "queued" if event.state == "queued" else "starts"
        return [claimed, "taken_over"] if event.kind == "took_over" else [claimed]
    return [_KINDS[event.kind]] if event.kind in _KINDS else []


def _span(since: float | None) -> str:
    return "moment" if since is None else age(time.time() - since)
