"""The claim of a scheduled run, as its worker makes it from the note in the message."""

from __future__ import annotations

from taskguard.guard import new_attempt
from taskguard.protocol.store import Claim
from taskguard.schedule import payload
from taskguard.schedule.boundaries import MICROS
from taskguard.schedule.note import Note


def claim_of(note: Note, owner: str, lease: float, attempt: str = "", *, kept: bool = False) -> Claim:
    """Adopts the run that the scheduler queued for this job. The store answers:

    - `Completed`: this job has ended, or was skipped or cancelled. The message is a duplicate of its slot's.
    - `Held` by this owner: the job is running elsewhere.
    - `Held` by another owner: the runs of two slots overlap, and `note.overlap` decides. With "skip" the store writes
      this job's receipt in the same step.

    *kept*: the queue keeps the message until the job has ended. If its worker dies, the job must come again.
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
