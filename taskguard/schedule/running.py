"""A scheduled run, as its worker claims it: by the note that came with the message."""

from __future__ import annotations

from taskguard.guard import new_attempt
from taskguard.schedule.entry import Note
from taskguard.store import Claim


def claim_of(note: Note, owner: str, lease: float, attempt: str = "") -> Claim:
    """Adopts the run that the scheduler has queued for this job.

    `Completed`: this job has ended, or was skipped or cancelled: a doubled message of its slot. `Held` by this very
    owner: it is running elsewhere. `Held` by another: the runs of two slots meet, and `note.overlap` says what then;
    with "skip" this job's receipt that it was skipped is written in the same step.
    """
    return Claim(
        note.run,
        owner,
        attempt or new_attempt(),
        lease=lease,
        keep_for=note.keep_for,
        payload=note.payload,
        skip=note.overlap == "skip",
    )
