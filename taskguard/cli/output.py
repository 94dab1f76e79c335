"""How commands speak: tables for people, JSON for programs, ages instead of instants, nothing secret."""

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
"""Columns where nobody looks: what is read by a program is not wrapped, however long a key is."""
FOLDED = 12
"""Columns that the folded column keeps in the narrowest terminal."""


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Answer in JSON, for programs.")(command)


def console() -> Console:
    """Colours and the terminal's own width where there is a terminal; plain and unwrapped where there is none."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)


def write_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, sort_keys=True))


def write_json_line(value: Any) -> None:
    click.echo(json.dumps(value, sort_keys=True))


def say(text: str) -> None:
    """A sentence or two, broken between words where there is a terminal."""
    lines = "\n".join(clean(line) for line in text.split("\n"))
    console().print(lines, markup=False, soft_wrap=not sys.stdout.isatty())


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, folded: str, title: str = "") -> Table:
    """A narrow table. The *folded* column is broken where there is no room; the others are kept whole."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=title or None)
    made.title_justify = "left"
    made.show_header = any(name.strip() for name in columns)
    for name in columns:
        made.add_column(name, overflow="fold", no_wrap=name != folded, min_width=FOLDED if name == folded else None)
    for row in rows:
        made.add_row(*[Text(clean(cell)) for cell in row])  # as text: brackets are no markup
    return made


def short(name: str) -> str:
    """The id of a job, for people who see many: its beginning in a terminal, the whole of it elsewhere."""
    return f"{name[:8]}…" if len(name) > 16 and sys.stdout.isatty() else name


_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def age(seconds: float) -> str:
    """A duration as people say it: 12 s, 3 min, 5 h, 2 d."""
    for unit, name in _UNITS:
        if seconds >= (2 if name == "d" else 1) * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"


class Duration(click.ParamType):  # type: ignore[type-arg] # has none before click 8.3
    """Seconds, or a number with s, m, h or d behind it."""

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
            self.fail(f"{value!r} is no duration; write 90, 90s, 15m, 2h or 1d", param, context)
        return seconds
