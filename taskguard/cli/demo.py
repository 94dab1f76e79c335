"""`taskguard demo`: watch taskguard with real workers, which the demo kills and stops."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from taskguard.cli.missing import require


@click.command("demo")
@click.option("--fast", is_flag=True, help="No pauses for the reader, and short leases.")
@click.option("--json", "as_json", is_flag=True, help="Write the score as JSON and the story to standard error.")
def command(fast: bool, as_json: bool) -> None:
    """Watch taskguard for a minute, on a Redis server that the demo starts and stops.

    Four acts: 500 calls and one run; a worker killed mid-job; a worker stopped past its lease; two beats. The exit code
    is 1 if an effect is lost or happens twice.
    """
    require("the demo", ("celery", "redis", "rq"), "demo")
    from taskguard.demo import pace
    from taskguard.demo.play import play

    try:
        score = play(pace.FAST if fast else pace.FULL, to_stderr=as_json)
    except (TimeoutError, ChildProcessError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps({"right": score.is_right, "acts": [asdict(row) for row in score.rows]}))
    sys.exit(0 if score.is_right else 1)
