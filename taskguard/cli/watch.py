"""`taskguard watch`: who holds what, and every decision as it happens."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from itertools import islice

import click
from rich.console import Console, Group
from rich.live import Live

from taskguard.cli.holders import Holders
from taskguard.cli.keys import fits
from taskguard.cli.output import Duration, age, console, json_option, short, table, write_json_line
from taskguard.cli.target import Target, with_target
from taskguard.cli.text import clean
from taskguard.cli.views import Readable, age_of, clock_time, decision_as_json, state_of, summary
from taskguard.history import Decision, decisions
from taskguard.protocol.store import Entry

ROWS = 12
SOONEST = 0.05
"""Minimum seconds between two looks."""
AT_ONCE = 500
"""Decisions read per look; if there are more between two looks, the oldest are not shown."""


@click.command("watch")
@with_target
@click.option("--task", default="*", help="Only tasks whose name matches, such as 'billing.*'.")
@click.option("--interval", type=Duration(), default=1.0, show_default=True, help="Seconds between two looks.")
@click.option("--for", "duration", type=Duration(), default=None, help="Stop after this long.  [default: at Ctrl-C]")
@json_option
def command(target: Target, task: str, interval: float, duration: float | None, as_json: bool) -> None:
    """Show who holds what, and every decision as it happens, until you press Ctrl-C.

    If the output is not a terminal, the command writes one line per decision, or with --json one JSON object per line.
    """
    give_up = None if duration is None else time.monotonic() + duration
    watched = Watched(target, task)
    try:
        if sys.stdout.isatty() and not as_json:
            _live(watched, interval, give_up)
        else:
            _lines(watched, interval, give_up, as_json)
    except KeyboardInterrupt:
        pass


class Watched:
    def __init__(self, target: Target, task: str) -> None:
        self._target = target
        self._task = task
        self._holders = Holders(target.store, task)
        self.readable = Readable(target.store)
        self._seen: deque[Decision] = deque(maxlen=2 * AT_ONCE)
        self._is_first = True

    def new(self) -> list[Decision]:
        """The decisions since the last look; on the first look, the last few.

        A process records a decision a moment after it, so each look reads the newest decisions again.
        """
        known = set(self._seen)
        found = [
            decision
            for decision in decisions(self._target.store, limit=AT_ONCE)
            if decision not in known and fits(decision.event.key, self._task)
        ]
        self._seen.extend(found)
        is_first, self._is_first = self._is_first, False
        return found[-ROWS:] if is_first else found

    def held(self) -> list[Entry]:
        claimed = [decision.event.key for decision in islice(reversed(self._seen), ROWS)]
        return self._holders.oldest(ROWS, claimed)

    @property
    def title(self) -> str:
        return "Held" if self._holders.is_whole else "Held (the scan of all entries is not finished)"


def _looks(interval: float, give_up: float | None) -> Iterator[None]:
    while True:
        yield
        left = math.inf if give_up is None else give_up - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(max(interval, SOONEST), left))


def _lines(watched: Watched, interval: float, give_up: float | None, as_json: bool) -> None:
    for _ in _looks(interval, give_up):
        for decision in watched.new():
            if as_json:
                write_json_line(decision_as_json(decision))
            else:
                event = decision.event
                line = (
                    f"{clock_time(decision.at)} {event.key} job {event.owner} {summary(decision)} at {decision.where}"
                )
                click.echo(clean(line))
        sys.stdout.flush()


def _live(watched: Watched, interval: float, give_up: float | None) -> None:
    past: deque[Decision] = deque(maxlen=ROWS)
    screen = console()
    # The view hides the cursor: restore it also when a signal ends the command.
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        with Live(console=screen, screen=False, auto_refresh=False) as live:
            for _ in _looks(interval, give_up):
                past.extend(watched.new())
                live.update(_fitting(screen, watched.readable, watched.title, watched.held(), list(past)), refresh=True)
    finally:
        signal.signal(signal.SIGTERM, before)


def _fitting(screen: Console, readable: Readable, title: str, held: list[Entry], past: list[Decision]) -> Group:
    """As many rows as fit on the screen: rich would cut the rest at the end, where the newest are."""
    for rows in range(ROWS, 0, -1):
        view = _view(readable, title, held[:rows], past[-rows:])
        if len(screen.render_lines(view, pad=False)) <= screen.height:
            break
    return view


def _view(readable: Readable, title: str, held: list[Entry], past: list[Decision]) -> Group:
    known = {entry.key: entry.label for entry in held}
    holders = [[state_of(e), age(age_of(e)), readable.entry(e), short(e.owner), e.where, str(e.token)] for e in held]
    decided = [
        [clock_time(d.at), readable.key(d.event.key, known.get(d.event.key, "")), short(d.event.owner), summary(d)]
        for d in past
    ]
    return Group(
        table(["STATE", "SINCE", "KEY", "JOB", "WHERE", "TOKEN"], holders, folded="KEY", title=title),
        "",
        table(["TIME", "KEY", "JOB", "WHAT"], decided, folded="WHAT", title="Decided (UTC)"),
    )


def _terminate(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)
