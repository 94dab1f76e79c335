"""What a scheduler says of its slots in the file that a probe reads."""

from __future__ import annotations

from typing import Any

from taskguard.schedule.keeper import Timekeeper


def facts_of_schedule(keeper: Timekeeper, store_error: str | None) -> dict[str, Any]:
    """*store_error*: why the last look at the entries failed, if it did."""
    oldest = keeper.oldest_open()
    due = None
    if oldest is not None:
        slot, age = oldest
        due = {"entry": slot.entry.name, "slot": slot.scheduled_for.isoformat(), "age": round(age, 3)}
    return {"store_error": store_error, "oldest_due": due}
