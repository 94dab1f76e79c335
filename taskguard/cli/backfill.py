"""`taskguard backfill ENTRY --from … --to …`: runs past slots of a schedule that were not done, and only those."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any

import click

from taskguard.cli.target import Target, with_target
from taskguard.schedule.backfill import Backfill
from taskguard.schedule.boundaries import micros
from taskguard.schedule.entry import Slot


def moment(context: click.Context, parameter: click.Parameter, text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise click.BadParameter(f"{text!r} is no moment; write 2026-11-16 or 2026-11-16T06:00+00:00") from None
    return found if found.tzinfo else found.astimezone()


@click.command()
@click.argument("entry")
@click.option("--from", "since", required=True, callback=moment, help="First moment, in ISO format.")
@click.option("--to", "until", required=True, callback=moment, help="Last moment.")
@click.option("-S", "--scheduler", help="Scheduler class that has the entry.  [default: the app's]")
@click.option("--unknown", is_flag=True, help="Also slots of so long ago that nobody remembers whether they were done.")
@click.option("--dry-run", is_flag=True, help="Only say what would be run.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per slot.")
@with_target
def command(
    entry: str,
    since: datetime,
    until: datetime,
    scheduler: str | None,
    unknown: bool,
    dry_run: bool,
    as_json: bool,
    target: Target,
) -> None:
    """Run the slots of ENTRY between two moments that were not done (skipped, missed, failed), and only those."""
    if target.app is None:
        raise click.UsageError("whose entry? Name the Celery app with -A")
    from taskguard.celery.beat import find_entry

    beat, beat_entry, found = find_entry(target.app, entry, scheduler)
    backfill = Backfill(target.store, found, beat.taskguard.clock.now())
    slots = backfill.slots(micros(since), micros(until))
    make_up(backfill, slots, partial(beat.send, beat_entry), unknown=unknown, dry_run=dry_run, as_json=as_json)


def make_up(
    backfill: Backfill,
    slots: Iterable[Slot],
    publish: Callable[[Slot], None],
    *,
    unknown: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Publish a further run of each slot that was not done, and say of each what it is."""
    wanted = {"not done", "not remembered"} if unknown else {"not done"}
    tally: Counter[str] = Counter()
    for slot in slots:
        state: str = backfill.find(slot)
        if state in wanted and (dry_run or backfill.run(slot, publish)):
            state = "would run" if dry_run else "published"
        tally[state] += 1
        _say(as_json, slot.scheduled_for, state)
    if not as_json:
        click.echo(", ".join(f"{number} {state}" for state, number in tally.items()) or "no slots")


def _say(as_json: bool, at: datetime, state: Any) -> None:
    click.echo(json.dumps({"slot": at.isoformat(), "state": state}) if as_json else f"{at.isoformat()}  {state}")
