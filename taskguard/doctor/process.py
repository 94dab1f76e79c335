"""What the environment of this process says."""

from __future__ import annotations

from collections.abc import Iterator

from taskguard.doctor.finding import Finding, Patient
from taskguard.runtime.switch import VARIABLE, is_off


def guards(patient: Patient) -> Iterator[Finding]:
    """The off switch is for tests, and an environment is easily copied from them."""
    if is_off():
        yield Finding(
            "TG107",
            "error",
            VARIABLE,
            "it is set to 1 here: whatever runs with this environment guards nothing, and every duplicate runs",
            f"unset {VARIABLE}, in what your workers and callers are started with too",
        )


CHECKS = (guards,)
