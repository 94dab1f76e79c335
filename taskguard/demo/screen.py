"""What the demo shows: plain lines, and in a terminal colours and a table of who holds what."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from taskguard.demo.score import Score

WIDTH = 80
TEXT = 68
WHO, COLUMN = 11, 29


@dataclass(frozen=True, slots=True)
class Holder:
    """One row of the table in the terminal."""

    what: str
    state: str
    worker: str
    token: int
    remaining: float
    lease: float


class Screen(Protocol):
    def act(self, number: int, title: str, subtitle: str) -> None: ...

    def say(self, text: str, *, good: bool | None = None) -> None: ...

    def beside(self, who: str, left: str, right: str, *, outcome: bool = False) -> None: ...

    def progress(self, done: int, total: int) -> None: ...


class Lines:
    """Plain lines, each with the time since the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    def title(self, text: str, right: str) -> None:
        self._console.print(Text(f"{text}{right:>{WIDTH - 1 - len(text)}}", "bold"))

    def act(self, number: int, title: str, subtitle: str) -> None:
        self._console.print()
        self._console.print(Text.assemble((f" {number}  {title}", "bold cyan")))
        self._console.print(Text(f"    {subtitle}", "dim"))

    def say(self, text: str, *, good: bool | None = None) -> None:
        style = {None: "", True: "green", False: "red"}[good]
        for number, line in enumerate(textwrap.wrap(text, TEXT)):
            self._line(Text(line, style), first=not number)

    def beside(self, who: str, left: str, right: str, *, outcome: bool = False) -> None:
        styles = ("bold green", "bold red") if outcome else ("", "") if who else ("dim", "dim")
        self._line(Text.assemble((f"{who:<{WHO}}", "dim"), (f"{left:<{COLUMN}}", styles[0]), (right, styles[1])))

    def progress(self, done: int, total: int) -> None:
        """Plain lines show no progress."""

    def score(self, score: Score) -> None:
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
        table.add_column("effects")
        for name in ("expected", "found", "lost", "doubled"):
            table.add_column(name, justify="right")
        for row in (*score.rows, score.total):
            is_total = row.act == score.total.act
            wrong = row.lost or row.doubled
            style = "bold" if is_total else "red" if wrong else "" if row.is_guarded else "dim"
            numbers = (row.expected, row.found, row.lost, row.doubled)
            if is_total:
                table.add_row(*["─" * width for width in (29, 8, 5, 4, 7)], style="dim")
            table.add_row(row.act, *map(str, numbers), style=style)
        self._console.print()
        self._console.print(table)
        self._console.print()
        right = "every guarded effect happened once; the unguarded account was charged twice"
        verdict = right if score.is_right else "wrong: guarded effects are lost or doubled, or the unguarded one is not"
        self._console.print(Text(verdict, "bold green" if score.is_right else "bold red"))

    def _line(self, text: Text, *, first: bool = True) -> None:
        moment = f"{time.monotonic() - self._began:6.1f} s  " if first else " " * 10
        self._console.print(Text.assemble((moment, "dim"), text), soft_wrap=True)


class Terminal(Lines):
    """The same lines, and below them a live view: the progress, and who holds what."""

    def __init__(self, console: Console, holders: Callable[[], list[Holder]], awaited: Callable[[], str]) -> None:
        super().__init__(console)
        self._holders = holders
        self._awaited = awaited
        self._done, self._total = 0, 0
        self.live = Live(
            get_renderable=self._view, console=console, refresh_per_second=5, transient=True, redirect_stderr=False
        )

    def act(self, number: int, title: str, subtitle: str) -> None:
        self._total = 0
        super().act(number, title, subtitle)

    def progress(self, done: int, total: int) -> None:
        self._done, self._total = done, total

    def _view(self) -> RenderableType:
        holders = self._holders()
        return Group(Text(), Rule(style="dim"), self._activity(), self._table(holders) if holders else Text())

    def _activity(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        if self._done < self._total:
            grid.add_row("  calls", ProgressBar(self._total, self._done, width=44), f"{self._done} of {self._total}")
            return grid
        awaited = self._awaited()
        return Text(f"  waiting for {awaited}" if awaited else " ", "dim")

    def _table(self, holders: list[Holder]) -> Table:
        table = Table(box=None, padding=(0, 2), header_style="dim", width=WIDTH)
        for name, width in (("key", 8), ("state", 8), ("by", 9), ("token", 17), ("lease", 18)):
            table.add_column(name, width=width, no_wrap=True)
        for holder in holders:
            style = {"running": "yellow", "done": "green"}.get(holder.state, "dim")
            table.add_row(
                holder.what, Text(holder.state, style), holder.worker, str(holder.token or ""), _lease(holder)
            )
        return table


def _lease(holder: Holder) -> RenderableType:
    if holder.state != "running":
        return ""
    if holder.remaining <= 0:
        return Text("expired", "red")
    grid = Table.grid(padding=(0, 1))
    bar = ProgressBar(holder.lease, min(holder.remaining, holder.lease), width=12, complete_style="yellow")
    grid.add_row(bar, f"{holder.remaining:.1f} s")
    return grid
