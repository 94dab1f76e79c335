"""The score from the ledger: which effects happened, were lost, or happened twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """The effects of one act."""

    act: str
    expected: int
    found: int
    lost: int
    doubled: int
    is_guarded: bool = True

    @classmethod
    def of(cls, act: str, effects: Counter[str], expected: Iterable[str], *, is_guarded: bool = True) -> Row:
        names = list(expected)
        counts = [effects[name] for name in names]
        lost, doubled = sum(1 for count in counts if not count), sum(count - 1 for count in counts if count > 1)
        return cls(act, len(names), sum(counts), lost, doubled, is_guarded)


@dataclass(frozen=True, slots=True)
class Score:
    rows: tuple[Row, ...]

    @property
    def total(self) -> Row:
        guarded = [row for row in self.rows if row.is_guarded]
        sums = (sum(getattr(row, name) for row in guarded) for name in ("expected", "found", "lost", "doubled"))
        return Row("all guarded effects", *sums)

    @property
    def is_right(self) -> bool:
        """No guarded effect is lost or doubled, and the unguarded one is doubled: otherwise the demo proves nothing."""
        is_contrasted = all(row.doubled for row in self.rows if not row.is_guarded)
        return (
            self.total.expected == self.total.found and not self.total.lost and not self.total.doubled and is_contrasted
        )
