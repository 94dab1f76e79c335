"""Checks the environment of this process."""

from __future__ import annotations

from collections.abc import Iterator

from taskguard.doctor.finding import Finding, Patient
from taskguard.runtime.switch import VARIABLE, is_off


def guards(patient: Patient) -> Iterator[Finding]:
    """The off switch is for tests, and it is easy to copy a test environment."""
    if is_off():
        yield Finding(
            "TG107",
            "error",
            VARIABLE,
            "it is set to 1 here: processes with this environment guard nothing, and every duplicate runs",
            f"unset {VARIABLE} here and in the environment of your workers and callers",
        )


CHECKS = (guards,)
