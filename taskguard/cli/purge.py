"""`taskguard purge`: delete old high-water marks and expired `fence.once` rows."""

from __future__ import annotations

import json

import click

from taskguard.fencing.tables import purge
from taskguard.fencing.urls import connection_to
from taskguard.stores import safe_url

DAY = 86400


@click.command("purge")
@click.argument("databases", nargs=-1, required=True, metavar="DATABASE_URL...")
@click.option("--older-than", default=30.0, show_default=True, type=click.FloatRange(min=1), help="Age in days.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON, for programs.")
def command(databases: tuple[str, ...], older_than: float, as_json: bool) -> None:
    """Delete old rows of `fence.protect` and `fence.once`, a thousand per transaction.

    `fence.protect` no longer refuses a process that was paused for longer than --older-than. Rows of `fence.once`
    stay for at least `keep_for`.
    """
    gone = {safe_url(url): _purged(url, older_than * DAY) for url in databases}
    if as_json:
        click.echo(json.dumps({"purged": gone}))
        return
    for url, rows in gone.items():
        click.echo(f"{url}: {rows} rows purged")


def _purged(url: str, seconds: float) -> int:
    gone = 0
    with connection_to(url) as connection:
        while True:
            some = purge(connection, older_than=seconds)
            connection.commit()
            gone += some
            if not some:
                return gone
