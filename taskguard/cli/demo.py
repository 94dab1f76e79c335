"""`taskguard demo`: see it at work, with real workers that are killed and stopped."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from taskguard.cli.missing import require


@click.command("demo")
@click.option("--fast", is_flag=True, help="Without pauses for the reader, and with short leases.")
@click.option("--json", "as_json", is_flag=True, help="The score as JSON; the story goes to standard error.")
def command(fast: bool, as_json: bool) -> None:
    """Four acts in a minute, on a server that the demo brings along.

    500 calls and one run; a worker killed in the middle; a worker stopped past its lease; two beats. Exits with 1 if an
    effect is lost or doubled.
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
