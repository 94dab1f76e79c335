"""`taskguard doctor`: find what breaks locks in production, and what to change."""

from __future__ import annotations

from collections import Counter

import click
from rich.text import Text

from taskguard.cli.output import console, json_option, say, write_json
from taskguard.cli.target import Target, with_target
from taskguard.cli.text import clean
from taskguard.doctor import Finding, examine


@click.command("doctor")
@with_target
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.option("--ignore", multiple=True, metavar="ID", help="Ignore this finding; may be repeated.")
@json_option
def command(target: Target, strict: bool, ignore: tuple[str, ...], as_json: bool) -> None:
    """Find what breaks locks in production, and say what to change.

    With -A the doctor examines the app and its tasks; with --store alone, only the store. It writes one key of its own
    for a moment and changes nothing else.

    The exit code is 1 if there is an error, or with --strict a warning. Otherwise it is 0.
    """
    found = [finding for finding in examine(target.store, target.app) if finding.id not in ignore]
    if as_json:
        write_json([_as_json(finding) for finding in found])
    else:
        _write(found)
    if any(finding.level == "error" or strict for finding in found):
        raise click.exceptions.Exit(1)


def _write(found: list[Finding]) -> None:
    for finding in found:
        colour = "red" if finding.level == "error" else "yellow"
        title = Text.assemble((f"{finding.id} {finding.level}", colour), f"  {clean(finding.about)}: {finding.title}")
        console().print(title, soft_wrap=True)
        say(f"{finding.problem}.")
        say(f"Fix: {finding.advice}.\n")
    levels = Counter(finding.level for finding in found)
    if not found:
        click.echo("No problems found.")
    else:
        click.echo(f"{levels['error']} error(s), {levels['warning']} warning(s); docs/doctor.md explains each.")


def _as_json(finding: Finding) -> dict[str, str]:
    names = ("id", "level", "title", "about", "problem", "advice")
    return {name: str(getattr(finding, name)) for name in names}
