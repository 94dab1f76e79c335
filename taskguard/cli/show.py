"""`taskguard show`: everything that the store has about one key."""

from __future__ import annotations

import click

from taskguard.cli.keys import entries_of, key_argument, key_of
from taskguard.cli.output import age, console, json_option, table, write_json
from taskguard.cli.target import Target, with_target
from taskguard.cli.text import echo
from taskguard.cli.views import Readable, age_of, entry_as_json, moment, state_of
from taskguard.protocol.store import Entry


@click.command("show")
@key_argument
@with_target
@json_option
def command(target: Target, words: tuple[str, ...], as_json: bool) -> None:
    """Show everything that the store has about a key.

    With -A you can name a task and the arguments of a call instead: show -A shop shop.charge 42 currency=EUR.
    Arguments are JSON or Python literals; anything else is text.

    The exit code is 1 if the store has no entry for the key.
    """
    key = key_of(target, words)
    found = entries_of(target, key)
    if as_json:
        write_json([entry_as_json(entry) for entry in found])
    elif not found:
        echo(f"The store has no entry for {key}: the next call runs.")
    for entry in found if not as_json else []:
        console().print(table(["", " "], _facts(entry, Readable(target.store).entry(entry)), folded=" "))
    if not found:
        raise click.exceptions.Exit(1)


def _facts(entry: Entry, readable: str) -> list[tuple[str, str]]:
    facts = [
        ("key", entry.key),
        *([("work", readable)] if readable != entry.key else []),
        ("state", state_of(entry)),
        ("job", entry.owner or "none"),
        *([("where", entry.where)] if entry.where else []),
        ("since", f"{moment(entry.since)} ({age(age_of(entry))})"),
        ("token", str(entry.token)),
        (_meaning_of_remaining(entry), age(abs(entry.remaining))),
    ]
    if entry.state in ("queued", "running"):
        facts += [("starts", str(entry.starts)), ("times published", str(entry.copies))]
    if entry.how is not None:
        facts.append(("ended", entry.how))
    if entry.outcome is not None:
        facts.append(("outcome", f"{len(entry.outcome)} bytes"))
    return facts


def _meaning_of_remaining(entry: Entry) -> str:
    if entry.state not in ("queued", "running"):
        return "remembered for"
    if entry.remaining <= 0:
        return "expired for"
    return "waits at most" if entry.state == "queued" else "lease left"
