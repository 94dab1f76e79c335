"""`taskguard explain`: why the last calls of a key did not run, who holds it, and which arguments differ."""

from __future__ import annotations

from collections.abc import Sequence

import click

from taskguard.cli.keys import decisions_of, entries_of, key_argument, key_of
from taskguard.cli.output import age, console, json_option, say, short, table, write_json
from taskguard.cli.target import Target, with_target
from taskguard.cli.views import age_of, clock_time, decision_as_json, entry_as_json, state_of, summary
from taskguard.history import Decision
from taskguard.protocol.store import Entry

SKIPPED = ("duplicate", "reused")
STARTED = ("claimed", "took_over")


@click.command("explain")
@key_argument
@with_target
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Show this many of the newest decisions."
)
@json_option
def command(target: Target, words: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Explain why the last calls of a key did not run: who holds it, since when, and which arguments differ.

    With -A you can name a task and the arguments of a call instead of a key, as for show. The decisions come from the
    history, which keeps the newest of all keys.

    The exit code is 1 if neither the store nor the history knows the key.
    """
    key = key_of(target, words)
    entries = entries_of(target, key)
    past = decisions_of(target, key, limit)
    if as_json:
        write_json(
            {
                "key": key,
                "entries": [entry_as_json(entry) for entry in entries],
                "decisions": [decision_as_json(decision) for decision in past],
                "because": [sentence(entry, past) for entry in entries],
            }
        )
    else:
        _write(key, entries, past)
    if not entries and not past:
        raise click.exceptions.Exit(1)


def _write(key: str, entries: Sequence[Entry], past: Sequence[Decision]) -> None:
    if not entries:
        say(f"The store has no entry for {key}: the next call runs.")
    for entry in entries:
        say(sentence(entry, past))
    started = {d.event.owner for d in past if d.event.kind in STARTED and d.event.state == "running"}
    skipped = [d for d in past if d.event.kind in SKIPPED and d.event.owner not in started]
    if past:
        say(f"\n{len(skipped)} of the last {len(past)} decisions skipped a call or reused an outcome.")
        others = sorted({name for decision in skipped for name in decision.event.differs})
        if others:
            say(
                f"Some of those calls differed from the holder's in: {', '.join(others)}. The key ignores these "
                "arguments. If such calls are different work, name these arguments in key= too."
            )
        rows = [[clock_time(d.at), short(d.event.owner), summary(d, d.event.owner in started), d.where] for d in past]
        say("\nDecisions (UTC, newest last):")
        console().print(table(["TIME", "JOB", "WHAT", "WHERE"], rows, folded="WHAT"))
    else:
        say("The history has no decision about it: they are older than the history, or the history is off.")


def sentence(entry: Entry, past: Sequence[Decision]) -> str:
    """The state of the key, and what the next call of it does."""
    since, where = age(age_of(entry)), _where(entry, past)
    by = f"job {entry.owner}{where}"
    state = state_of(entry)
    if state == "running":
        left = age(entry.remaining)
        return (
            f"{entry.key} has been running for {since}: {by}, token {entry.token}, start {entry.starts}. Its lease "
            f"expires in {left}; its process renews it while it lives."
        )
    if state == "queued":
        how = (
            "No publisher has confirmed its message; the next duplicate call publishes it."
            if entry.copies == 0
            else "Its message was published. If it stays queued, check that a worker reads its queue. If the queue was "
            "purged, `taskguard release --queued` frees the keys of the purged jobs."
        )
        waits = f"It waits for a worker for {age(entry.remaining)} more."
        return f"{entry.key} has been queued for {since}: {by}. {waits} {how}"
    if state == "ran-out":
        return (
            f"{entry.key} was {entry.state}: {by}. That claim expired {age(-entry.remaining)} ago: its process is "
            "dead, stopped, or cut off from the store. The key counts as free; the next call takes over."
        )
    if state == "done":
        return (
            f"{entry.key} is done: {by} {entry.how or 'ended'} {since} ago. Calls that reuse outcomes get this one for "
            f"{age(entry.remaining)} more; others run."
        )
    ended = f" {by} {entry.how} {since} ago." if entry.how else ""
    return f"{entry.key} is free: the next call runs.{ended}"


def _where(entry: Entry, past: Sequence[Decision]) -> str:
    """The process that made the holder's claim, if the history still has it."""
    for decision in reversed(past):
        if decision.event.token == entry.token and decision.event.kind in STARTED:
            return f" at {decision.where}"
    return ""
