"""`taskguard rq-backfill ENTRY CONFIG_PATH --from … --to …`: `taskguard backfill` for RQ's cron."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any

import click
from rq.cli.helpers import pass_cli_config

from taskguard.cli.backfill import moment, run_undone
from taskguard.rq.cron import GuardedCronScheduler
from taskguard.schedule.backfill import Again, Backfill
from taskguard.schedule.boundaries import micros
from taskguard.schedule.entry import Slot


@click.command("rq-backfill")
@click.argument("entry")
@click.argument("config_path")
@click.option("--from", "since", required=True, callback=moment, help="Start of the range, in ISO format.")
@click.option("--to", "until", required=True, callback=moment, help="End of the range, in ISO format.")
@click.option("--unknown", is_flag=True, help="Also run slots older than the retained history.")
@click.option("--dry-run", is_flag=True, help="Show what would run; publish nothing.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object per slot.")
@click.option("--namespace", envvar="TASKGUARD_NAMESPACE", default="taskguard", show_default=True)
@pass_cli_config  # type: ignore[untyped-decorator]
def command(
    cli_config: Any, entry: str, config_path: str, since: datetime, until: datetime, namespace: str, **options: Any
) -> None:
    """Run the slots of ENTRY in a range that are not done: skipped, missed or failed.

    A slot that is done or in progress does not run again.
    ENTRY is the name of a cron job in CONFIG_PATH. A cron job without a name has its function's.
    """
    scheduler = GuardedCronScheduler(cli_config.connection, logging_level=logging.WARNING, namespace=namespace)
    scheduler.load_config_from_file(config_path)
    named = {label: found for label, found in scheduler.entries.items() if entry in (label, found[0].name)}
    if len(named) != 1:
        labels = sorted(named or scheduler.entries)
        raise click.UsageError(f"{len(named)} cron jobs are called {entry}; write one of {', '.join(labels)}")
    ((found, cron_job),) = named.values()
    backfill = Backfill(scheduler.store, found, scheduler.now())

    def slots() -> Iterator[Slot]:
        for slot in backfill.slots(micros(since), micros(until)):
            for run in {slot.run_key, Again(found, slot.at).run_key}:
                scheduler.publisher.end_if_over(scheduler.store.get(run), slot.keep_for)
            yield slot

    chosen = {name: options[name] for name in ("unknown", "dry_run", "as_json")}
    run_undone(backfill, slots(), partial(scheduler.publisher.publish, cron_job), **chosen)
