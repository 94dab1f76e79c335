"""`taskguard doctor`: what breaks locks in production, and what to change."""

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
@click.option("--strict", is_flag=True, help="Warnings count as errors.")
@click.option("--ignore", multiple=True, metavar="ID", help="Leave this finding out; may be repeated.")
@json_option
def command(target: Target, strict: bool, ignore: tuple[str, ...], as_json: bool) -> None:
    """Find what breaks locks in production, and say what to change.

    With -A the app and its tasks are examined too; with --store alone, the store. Nothing is changed but a key of the
    doctor's own, for a moment.

    Exit code 0 if all is well (or there are warnings only), 1 if there is an error, with --strict also a warning.
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
        say(f"To do: {finding.advice}.\n")
    levels = Counter(finding.level for finding in found)
    if not found:
        click.echo("All is well.")
    else:
        click.echo(f"{levels['error']} error(s), {levels['warning']} warning(s); docs/doctor.md says more of each.")


def _as_json(finding: Finding) -> dict[str, str]:
    names = ("id", "level", "title", "about", "problem", "advice")
    return {name: str(getattr(finding, name)) for name in names}
