"""What may be shown in a terminal: a key, a job's id or an error can hold anything, also what would move the cursor."""

from __future__ import annotations

import click


def clean(text: str) -> str:
    """The text as one line that says what is there and does nothing."""
    return text if text.isprintable() else "".join(map(_shown, text))


def echo(text: str, *, err: bool = False) -> None:
    """Lines of ours, in which a stranger's text may stand."""
    click.echo("\n".join(clean(line) for line in text.split("\n")), err=err)


def _shown(letter: str) -> str:
    return letter if letter.isprintable() else ascii(letter)[1:-1]
