"""`taskguard release`: free keys by hand, and only from the holders that the command has shown."""

from __future__ import annotations

import getpass
import os
import sys
from functools import partial

import click

from taskguard.cli.explain import sentence
from taskguard.cli.keys import INTERNAL, decisions_of, entries_of, fits, key_argument, key_of
from taskguard.cli.output import Duration, age, json_option, write_json
from taskguard.cli.target import Target, with_target
from taskguard.cli.text import echo
from taskguard.cli.views import age_of, state_of
from taskguard.guard import Guard
from taskguard.keys.maker import space_of
from taskguard.protocol.store import Entry

HELD = ("queued", "running", "ran-out", "done")

_EFFECTS = {
    "running": "If that job still runs, it loses its lease: LeaseLostError interrupts its body (unless on_lost is "
    "'continue'), and the store refuses its outcome. Until it notices, another run of the same work can overlap it.",
    "queued": "The job's message stays in its queue: the job claims the key again when a worker starts it. Until then "
    "another call can claim the key.",
    "ran-out": "Nobody is affected: the lease has expired, and the next call would take over anyway. The store forgets "
    "how often that job started.",
    "done": "The store forgets the outcome: the next call runs the work again. The job itself does not run again.",
}


@click.command("release")
@partial(key_argument, required=False)
@with_target
@click.option("--queued", is_flag=True, help="Free every queued key, for example after `celery purge`.")
@click.option("--task", default=None, help="With --queued: only keys of tasks whose name matches, such as 'billing.*'.")
@click.option(
    "--older-than", type=Duration(), default=None, help="With --queued: only keys queued for longer: 90, 15m."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def command(
    target: Target,
    words: tuple[str, ...],
    queued: bool,
    task: str | None,
    older_than: float | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Free a key by hand, or with --queued the keys of all queued jobs. Shows who is affected, and asks.

    `celery purge` deletes messages but not their entries: until `republish_after` (5 minutes) has passed, the same
    calls get the handles of the purged jobs. `taskguard release --queued` frees those keys at once. Use it only if the
    messages are gone: a job whose message still exists and a new call of the same work can both run, one after the
    other.

    The command frees only the holder that it has shown: if a key changes hands before you answer, the new holder keeps
    it, and the exit code is 1. The exit code is also 1 if there is nothing to release.
    """
    if queued == bool(words) or (not queued and (task is not None or older_than is not None)):
        raise click.UsageError("name a key, or write --queued (with --task or --older-than to choose among them)")
    if queued:
        held, nothing = _queued(target, task or "*", older_than or 0.0), "no matching key is queued"
    else:
        key = key_of(target, words)
        held = [entry for entry in entries_of(target, key) if state_of(entry) in HELD]
        nothing = f"nobody holds {key}"
    if not held:
        _answer(as_json, [], f"Nothing to release: {nothing}.")
        raise click.exceptions.Exit(1)
    if not yes:
        _show_queued(held) if queued else _show(target, held)
        _ask(f"Release these {len(held)} keys?" if queued else "Release it?")
    guard = Guard(target.store, listeners=())
    freed = [entry for entry in held if guard.free(entry.key, token=entry.token, by=_who())]
    if guard.recorder is not None:
        guard.recorder.flush()
    kept = [entry for entry in held if entry not in freed]
    lines = [f"{entry.key} is free; its holder was {entry.owner}, token {entry.token}." for entry in freed]
    lines += [f"{entry.key} changed hands meanwhile and was not released; run the command again." for entry in kept]
    _answer(as_json, freed, "\n".join(lines))
    if kept:
        raise click.exceptions.Exit(1)


def _queued(target: Target, task: str, older_than: float) -> list[Entry]:
    found = (entry for entry in target.store.scan() if state_of(entry) == "queued" and fits(entry.key, task))
    return [entry for entry in found if not entry.key.startswith(INTERNAL) and age_of(entry) >= older_than]


def _show_queued(held: list[Entry]) -> None:
    oldest: dict[str, list[float]] = {}
    for entry in held:
        oldest.setdefault(space_of(entry.key), []).append(age_of(entry))
    for task, ages in sorted(oldest.items()):
        echo(f"{task}: {len(ages)} queued, for up to {age(max(ages))}", err=True)
    echo(_EFFECTS["queued"], err=True)


def _show(target: Target, held: list[Entry]) -> None:
    for entry in held:
        echo(sentence(entry, decisions_of(target, entry.key, 50)), err=True)
        echo(_EFFECTS[state_of(entry)], err=True)


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("cannot ask: standard input is not a terminal; check the lines above and add --yes")
    click.confirm(question, abort=True, err=True)


def _answer(as_json: bool, freed: list[Entry], text: str) -> None:
    if as_json:
        write_json({"released": [{"key": e.key, "owner": e.owner, "token": e.token} for e in freed]})
    else:
        echo(text)


def _who() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a user id that has no name
        name = str(os.getuid())
    return f"{name}@{os.uname().nodename}"
