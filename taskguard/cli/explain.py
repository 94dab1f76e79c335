"""`taskguard explain`: why the last calls of a key were skipped, by whom, since when, and in what they differed."""

from __future__ import annotations

from collections.abc import Sequence

import click

from taskguard.cli.keys import decisions_of, entries_of, key_argument, key_of
from taskguard.cli.output import age, console, json_option, say, short, table, write_json
from taskguard.cli.target import Target, with_target
from taskguard.cli.views import age_of, clock_time, decision_as_json, entry_as_json, state_of, told
from taskguard.history import Decision
from taskguard.protocol.store import Entry

SKIPPED = ("duplicate", "reused")
STARTED = ("claimed", "took_over")


@click.command("explain")
@key_argument
@with_target
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="The newest decisions.")
@json_option
def command(target: Target, words: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Say why the last calls of a key were skipped: who holds it, since when, and which arguments differ.

    A task and the arguments of a call can be given with -A, as for show. What happened comes from the history, which
    keeps the newest decisions of all keys.

    Exit code 1 if nothing is known of it.
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
        say(f"Nothing is known of {key} now: the next call of it runs.")
    for entry in entries:
        say(sentence(entry, past))
    started = {d.event.owner for d in past if d.event.kind in STARTED and d.event.state == "running"}
    skipped = [d for d in past if d.event.kind in SKIPPED and d.event.owner not in started]
    if past:
        say(f"\n{len(skipped)} of the last {len(past)} decisions answered a call without a run of its own.")
        others = sorted({name for decision in skipped for name in decision.event.differs})
        if others:
            say(
                f"Some of those calls had other arguments than the holder's: {', '.join(others)}. Their key does not "
                "tell them apart; if they are other work, let key= name these arguments too."
            )
        rows = [[clock_time(d.at), short(d.event.owner), told(d, d.event.owner in started), d.where] for d in past]
        say("\nWhat happened (UTC, the newest last):")
        console().print(table(["TIME", "JOB", "WHAT", "WHERE"], rows, folded="WHAT"))
    else:
        say("The history has nothing of it: it is older than the log, or the history is switched off.")


def sentence(entry: Entry, past: Sequence[Decision]) -> str:
    """How things are with the key, and what a call of it would meet."""
    since, where = age(age_of(entry)), _where(entry, past)
    by = f"job {entry.owner}{where}"
    state = state_of(entry)
    if state == "running":
        left = age(entry.remaining)
        return (
            f"{entry.key} is running for {since}: {by}, token {entry.token}, start {entry.starts}. Its lease has "
            f"{left} left and is renewed as long as its process lives."
        )
    if state == "queued":
        how = (
            "Nobody is known to have published its message; the next duplicate call does."
            if entry.copies == 0
            else "Its message was published; if it stays so, look whether a worker reads that queue. If the queue was "
            "purged, `taskguard release --queued` frees the keys of the purged jobs."
        )
        return f"{entry.key} is queued for {since}: {by}. It waits for a worker for {age(entry.remaining)} more. {how}"
    if state == "ran-out":
        return (
            f"{entry.key} was {entry.state} under {by}, and that claim ran out {age(-entry.remaining)} ago: its "
            "process is dead, stopped, or cut off from the store. It counts as free; the next call takes over."
        )
    if state == "done":
        return (
            f"{entry.key} is done: {by} {entry.how or 'ended'} {since} ago. Calls that reuse an outcome are answered "
            f"with it for {age(entry.remaining)} more; others run."
        )
    ended = f" {by} {entry.how} {since} ago." if entry.how else ""
    return f"{entry.key} is free: the next call of it runs.{ended}"


def _where(entry: Entry, past: Sequence[Decision]) -> str:
    """The process that the holder's claim came from, if the history still knows it."""
    for decision in reversed(past):
        if decision.event.token == entry.token and decision.event.kind in STARTED:
            return f" at {decision.where}"
    return ""
