"""`taskguard bench`: how long a claim and its completion take on your store, from this machine."""

from __future__ import annotations

import statistics
import time
from typing import Any
from uuid import uuid4

import click

from taskguard.cli.keys import INTERNAL
from taskguard.cli.output import console, json_option, table, write_json
from taskguard.cli.target import Target, with_target
from taskguard.errors import StoreError
from taskguard.guard import new_attempt
from taskguard.protocol.store import Claim, Ending, Lease, Store

KEEP = 1.0


@click.command("bench")
@with_target
@click.option(
    "--calls", type=click.IntRange(10, 10_000), default=300, show_default=True, help="Number of claims to measure."
)
@click.option(
    "--seconds", type=click.FloatRange(0.1, 60), default=5.0, show_default=True, help="Stop after this many seconds."
)
@json_option
def command(target: Target, calls: int, seconds: float, as_json: bool) -> None:
    """Measure how long a claim and its completion take on your store, from this machine.

    The claims run one after the other, each on a key of its own that expires after a second. Expect a few hundred
    small requests on top of the store's load, for at most --seconds.
    """
    claims, ends = _measure(target.store, calls, seconds)
    both = [claim + end for claim, end in zip(claims, ends, strict=True)]
    figures = {name: _figures(values) for name, values in (("claim", claims), ("complete", ends), ("both", both))}
    if as_json:
        write_json({"store": target.name, "pairs": len(both), "milliseconds": figures})
        return
    click.echo(f"{len(both)} claims and completions on {target.name}, in milliseconds:")
    rows = [[name, *[f"{value:.2f}" for value in values.values()]] for name, values in figures.items()]
    console().print(table(["", *figures["both"]], rows, folded=""))


def _measure(store: Store, calls: int, seconds: float) -> tuple[list[float], list[float]]:
    series, claims, ends = uuid4().hex[:8], [], []
    give_up = time.monotonic() + seconds
    for number in range(-5, calls):  # the first five open connections and load scripts
        key = f"{INTERNAL}bench:{series}:{number}"
        start = time.perf_counter()
        lease = store.claim(Claim(key, series, new_attempt(), lease=10, keep_for=KEEP))
        claimed = time.perf_counter()
        if not isinstance(lease, Lease) or not store.complete(lease, Ending(how="succeeded", keep_for=KEEP)):
            raise StoreError(repr(store), f"did not grant {key}, a key that nobody else uses")
        if number >= 0:
            claims.append((claimed - start) * 1000)
            ends.append((time.perf_counter() - claimed) * 1000)
        if len(claims) >= 10 and time.monotonic() > give_up:
            break
    return claims, ends


def _figures(values: list[float]) -> dict[str, Any]:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    figures = {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "max": max(values)}
    return {name: round(value, 3) for name, value in figures.items()}
