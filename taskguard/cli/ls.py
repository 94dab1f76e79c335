"""`taskguard ls`: which keys are held."""

from __future__ import annotations

from heapq import nsmallest

import click

from taskguard.cli.keys import INTERNAL, did_you_mean, fits
from taskguard.cli.output import Duration, age, console, json_option, short, table, write_json
from taskguard.cli.target import Target, with_target
from taskguard.cli.text import echo
from taskguard.cli.views import STATES, Readable, age_of, entry_as_json, state_of
from taskguard.keys.maker import space_of
from taskguard.protocol.store import Entry

HELD = ("queued", "running", "ran-out")


@click.command("ls")
@with_target
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="Only keys in this state; may be repeated."
)
@click.option("--task", default="*", help="Only keys of tasks whose name matches, such as 'billing.*'.")
@click.option("--older-than", type=Duration(), default=0.0, help="Only keys in their state for longer: 90, 15m, 2h.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Number of keys to show, oldest first."
)
@click.option("--keys", "whole_keys", is_flag=True, help="Show whole keys, as `show KEY` and `release KEY` take them.")
@json_option
def command(
    target: Target,
    states: tuple[str, ...],
    task: str,
    older_than: float,
    limit: int,
    whole_keys: bool,
    as_json: bool,
) -> None:
    """Show the keys that are held, oldest first.

    Without --state these are queued, running and ran-out keys. A ran-out key is one whose lease expired and that nobody
    has taken over yet. The store also remembers done and free keys for a while; --state done shows the done ones.
    """

    seen: set[str] = set()

    def is_wanted(entry: Entry) -> bool:
        if entry.key.startswith(INTERNAL) or state_of(entry) not in (states or HELD):
            return False
        seen.add(space_of(entry.key))
        return age_of(entry) >= older_than and fits(entry.key, task)

    every = nsmallest(limit + 1, filter(is_wanted, target.store.scan()), key=lambda entry: entry.since)
    found = every[:limit]
    if len(every) > limit:
        echo(f"There are more keys than the oldest {limit}; --limit shows more.", err=True)
    if as_json:
        write_json([entry_as_json(entry) for entry in found])
    elif not found:
        meant = "" if any(fits(space, task) for space in seen) else did_you_mean(task, seen)
        is_filtered = states or task != "*" or older_than
        echo(f"{'No matching keys' if is_filtered else 'No keys are held'} in {target.name}{meant or '.'}")
    else:
        key = (lambda entry: entry.key) if whole_keys else Readable(target.store).entry
        rows = [[state_of(e), age(age_of(e)), key(e), short(e.owner), e.where] for e in found]
        console().print(table(["STATE", "SINCE", "KEY", "JOB", "WHERE"], rows, folded="KEY"))
