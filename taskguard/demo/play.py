"""The whole demo: the stage, the acts, the score."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress

from rich.console import Console

from taskguard.demo.acts import Play
from taskguard.demo.pace import Pace
from taskguard.demo.score import Score
from taskguard.demo.screen import WIDTH, Holder, Lines, Terminal
from taskguard.demo.stage import Stage
from taskguard.errors import StoreError


def play(pace: Pace, *, to_stderr: bool = False) -> Score:
    """Run the demo, and leave no process behind, however it ends."""
    console = Console(highlight=False, stderr=to_stderr)
    console.width = min(WIDTH, console.width) if console.is_terminal else WIDTH
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        with Stage(pace) as stage:
            return _play(stage, console)
    finally:
        signal.signal(signal.SIGTERM, before)


def _play(stage: Stage, console: Console) -> Score:
    server = stage.set_up()
    with ExitStack() as stack:
        if console.is_terminal:
            screen: Lines = Terminal(console, _holders(stage), lambda: stage.waits_for)
            stack.enter_context(screen.live)  # type: ignore[attr-defined]
        else:
            screen = Lines(console)
        screen.title("taskguard: background work that happens once", f"{server}, in memory")
        acts = Play(stage, screen)
        acts.start_workers()
        acts.many_calls()
        acts.killed()
        acts.stopped()
        acts.two_beats()
    score = Score(tuple(acts.rows()))
    screen.score(score)
    return score


def _holders(stage: Stage) -> Callable[[], list[Holder]]:
    """Who holds what now, from the store."""
    known: dict[str, Holder] = {}

    def look() -> list[Holder]:
        from taskguard.demo.app import charge, charge_fenced
        from taskguard.demo.jobs import ship

        store = charge.taskguard.app_guard.guard.store  # RQ's store is the same server
        keys = {
            "order-1": charge.taskguard.key("order-1"),
            "parcel-1": ship.taskguard.key("parcel-1"),
            "order-2": charge.taskguard.key("order-2"),
            "order-3": charge_fenced.taskguard.key("order-3"),
        }
        with suppress(StoreError):  # an unavailable store must not end the demo: the view keeps its last state
            workers = stage.ledger.workers()
            for what, key in keys.items():
                entry = store.get(key)
                if entry is not None:
                    worker, lease = workers.get(entry.token, ""), stage.pace.lease
                    known[what] = Holder(what, entry.state, worker, entry.token, entry.remaining, lease)
        return list(known.values())

    return look


def _terminate(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)
