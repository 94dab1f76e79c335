"""How commands write: tables for people, JSON for programs, ages instead of timestamps."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from taskguard.cli.text import clean

Command = TypeVar("Command", bound=Callable[..., Any])

WIDE = 1_000_000
"""Width without a terminal: output that a program reads does not wrap, however long a key is."""
FOLDED = 12
"""Width of the folded column in the narrowest terminal."""


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Answer in JSON, for programs.")(command)


def console() -> Console:
    """With colours and the terminal's width in a terminal; plain and unwrapped elsewhere."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)


def write_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, sort_keys=True))


def write_json_line(value: Any) -> None:
    click.echo(json.dumps(value, sort_keys=True))


def say(text: str) -> None:
    """Write a sentence or two, wrapped between words in a terminal."""
    lines = "\n".join(clean(line) for line in text.split("\n"))
    console().print(lines, markup=False, soft_wrap=not sys.stdout.isatty())


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, folded: str, title: str = "") -> Table:
    """A narrow table. The *folded* column wraps if there is no room; the others do not."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=title or None)
    made.title_justify = "left"
    made.show_header = any(name.strip() for name in columns)
    for name in columns:
        made.add_column(name, overflow="fold", no_wrap=name != folded, min_width=FOLDED if name == folded else None)
    for row in rows:
        made.add_row(*[Text(clean(cell)) for cell in row])  # as text: rich reads brackets as markup
    return made


def short(name: str) -> str:
    """The id of a job: its beginning in a terminal, all of it elsewhere."""
    return f"{name[:8]}…" if len(name) > 16 and sys.stdout.isatty() else name


_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def age(seconds: float) -> str:
    """A duration for people: 12 s, 3 min, 5 h, 2 d."""
    for unit, name in _UNITS:
        if seconds >= (2 if name == "d" else 1) * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"


class Duration(click.ParamType):  # type: ignore[type-arg] # not generic before click 8.3
    """Seconds, or a number followed by s, m, h or d."""

    name = "duration"
    _seconds: ClassVar = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        number, unit = (value[:-1], value[-1]) if value[-1:] in self._seconds else (value, "s")
        try:
            seconds = float(number) * self._seconds[unit]
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds < math.inf:
            self.fail(f"{value!r} is not a duration; write 90, 90s, 15m, 2h or 1d", param, context)
        return seconds
