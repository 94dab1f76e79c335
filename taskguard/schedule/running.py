"""A scheduled run, as its worker claims it: by the note that came with the message."""

from __future__ import annotations

from taskguard.guard import new_attempt
from taskguard.protocol.store import Claim
from taskguard.schedule import payload
from taskguard.schedule.boundaries import MICROS
from taskguard.schedule.note import Note


def claim_of(note: Note, owner: str, lease: float, attempt: str = "", *, kept: bool = False) -> Claim:
    """Adopts the run that the scheduler has queued for this job.

    `Completed`: this job has ended, or was skipped or cancelled: a doubled message of its slot. `Held` by this very
    owner: it is running elsewhere. `Held` by another: the runs of two slots meet, and `note.overlap` says what then;
    with "skip" this job's receipt that it was skipped is written in the same step.

    *kept*: the queue keeps the message until the job has ended. If its worker dies, it is to come again.
    """
    return Claim(
        note.run,
        owner,
        attempt or new_attempt(),
        lease=lease,
        keep_for=note.keep_for,
        payload=payload.write(round(note.at * MICROS), kept=kept),
        skip=note.overlap == "skip",
    )
