"""Text that is safe in a terminal: a key, a job's id or an error can contain anything, even escape sequences."""

from __future__ import annotations

import click


def clean(text: str) -> str:
    """The text in one line, with every unprintable character escaped."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def echo(text: str, *, err: bool = False) -> None:
    """Write lines that may contain a key or another text from outside."""
    click.echo("\n".join(clean(line) for line in text.split("\n")), err=err)


def _escaped(letter: str) -> str:
    return letter if letter.isprintable() else ascii(letter)[1:-1]
