"""`taskguard rq-cron`: `rq cron` with `GuardedCronScheduler`; RQ's own command cannot take another class."""

from __future__ import annotations

import logging.config
from typing import Any, get_args

import click
from rq.cli.helpers import pass_cli_config, read_config_file
from rq.defaults import DEFAULT_LOGGING_DATE_FORMAT, DEFAULT_LOGGING_FORMAT
from rq.logutils import setup_loghandlers

from taskguard.rq.cron import GuardedCronScheduler
from taskguard.schedule.entry import CatchUp, Timing
from taskguard.schedule.note import Overlap

_LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


@click.command("rq-cron")
@click.option(
    "--logging-level",
    "-l",
    type=click.Choice(_LEVELS, case_sensitive=False),
    default="INFO",
    show_default=True,
    help="Set logging level.",
)
@click.option(
    "--overlap", type=click.Choice(get_args(Overlap)), help="Overlap policy of entries that set none.  [default: skip]"
)
@click.option(
    "--catch-up",
    type=click.Choice(get_args(CatchUp)),
    help="Catch-up policy of entries that set none.  [default: latest]",
)
@click.option("--catch-up-window", type=float, help="Do not catch up slots missed longer ago than this many seconds.")
@click.option(
    "--republish-after", type=float, default=300.0, show_default=True, help="Seconds until a queued job counts as lost."
)
@click.option("--namespace", envvar="TASKGUARD_NAMESPACE", default="taskguard", show_default=True)
@click.option("--health-file", help="File that `taskguard health cron` reads.  [or TASKGUARD_HEALTH_FILE]")
@click.argument("config_path")
@pass_cli_config  # type: ignore[untyped-decorator]
def command(cli_config: Any, config_path: str, logging_level: str, **options: Any) -> None:
    """Run the cron jobs of CONFIG_PATH, as `rq cron` does. Run as many as you like: each slot runs once."""
    settings: Any = read_config_file(cli_config.config) if cli_config.config else {}  # type: ignore[no-untyped-call]
    if settings.get("DICT_CONFIG"):
        logging.config.dictConfig(settings["DICT_CONFIG"])
    else:
        setup_loghandlers(
            level=logging_level.upper(),
            name="taskguard",
            log_format=DEFAULT_LOGGING_FORMAT,
            date_format=DEFAULT_LOGGING_DATE_FORMAT,
        )
    scheduler = GuardedCronScheduler(
        cli_config.connection,
        logging_level=logging_level.upper(),
        timing=Timing.of(options),
        namespace=options["namespace"],
        republish_after=options["republish_after"],
        health_file=options["health_file"],
    )
    scheduler.load_config_from_file(config_path)
    scheduler.start()  # type: ignore[no-untyped-call]
