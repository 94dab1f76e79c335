"""`taskguard release`: free a key by hand, and only the holder that was looked at."""

from __future__ import annotations

import getpass
import os
import sys

import click

from taskguard.cli.explain import sentence
from taskguard.cli.keys import decisions_of, entries_of, key_argument, key_of
from taskguard.cli.output import json_option, write_json
from taskguard.cli.target import Target, with_target
from taskguard.cli.text import echo
from taskguard.cli.views import state_of
from taskguard.guard import Guard
from taskguard.store import Entry

HELD = ("queued", "running", "ran-out", "done")

_EFFECTS = {
    "running": "If that job still runs, it is told that it lost the key: its body is interrupted and its outcome "
    "refused. Until it notices, another run of the same work can be beside it.",
    "queued": "The job's message stays in its queue: the job claims the key anew when a worker starts it. Until then "
    "another call can have the key.",
    "ran-out": "Nobody is affected: the claim is over, and the next call would take over in any case. The count of "
    "that job's starts is forgotten.",
    "done": "The outcome is forgotten: the next call runs the work again. The job that is done is still not run again.",
}


@click.command("release")
@key_argument
@with_target
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def command(target: Target, words: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Free a key by hand. Says who will be affected, and asks.

    Only the holder that is shown is freed: if the key changes hands while you think about it, nothing happens, and the
    exit code is 1. It is 1 too if there is nothing to release.
    """
    key = key_of(target, words)
    held = [entry for entry in entries_of(target, key) if state_of(entry) in HELD]
    if not held:
        _answer(as_json, [], f"Nothing to release: nobody holds {key}.")
        raise click.exceptions.Exit(1)
    if not yes:
        _ask(target, held)
    guard = Guard(target.store, listeners=())
    freed = [entry for entry in held if guard.free(entry.key, token=entry.token, by=_who())]
    if guard.recorder is not None:
        guard.recorder.flush()
    kept = [entry for entry in held if entry not in freed]
    lines = [f"{entry.key} is free; it was {entry.owner}'s, token {entry.token}." for entry in freed]
    lines += [f"{entry.key} has changed hands meanwhile; nothing was released. Look again." for entry in kept]
    _answer(as_json, freed, "\n".join(lines))
    if kept:
        raise click.exceptions.Exit(1)


def _ask(target: Target, held: list[Entry]) -> None:
    for entry in held:
        echo(sentence(entry, decisions_of(target, entry.key, 50)), err=True)
        echo(_EFFECTS[state_of(entry)], err=True)
    if not sys.stdin.isatty():
        raise click.UsageError("nobody is there to be asked; look at the above, and say --yes")
    click.confirm("Release it?", abort=True, err=True)


def _answer(as_json: bool, freed: list[Entry], text: str) -> None:
    if as_json:
        write_json({"released": [{"key": e.key, "owner": e.owner, "token": e.token} for e in freed]})
    else:
        echo(text)


def _who() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        name = str(os.getuid())
    return f"{name}@{os.uname().nodename}"
