"""Checks that the jobs that the store calls queued still have a message, at the broker or at a worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from kombu.exceptions import OperationalError

from taskguard.doctor.finding import Finding, Patient
from taskguard.keys.maker import space_of
from taskguard.protocol.store import Entry

SETTLES_WITHIN = 5.0
"""Seconds after its claim within which a call publishes its message."""
ASK_FOR = 1.0
"""Seconds that workers have to answer which messages they hold."""


def messages(patient: Patient) -> Iterator[Finding]:
    """A purged queue leaves the entries of jobs that never run."""
    waiting = [entry for entry in patient.store.scan() if _waits(entry, patient)]
    if not waiting:
        return
    try:
        # In this order: a message that a worker takes in between counts at least once.
        in_queues = _messages_in_queues(patient.app)
        at_workers = _ids_at_workers(patient.app)
    except (OperationalError, OSError) as error:
        yield Finding(
            "TG212",
            "warning",
            "the broker",
            f"the doctor cannot reach it to check that {len(waiting)} queued job(s) still have a message ({error})",
            "start the broker, or run the doctor where it can reach it",
        )
        return
    waiting = [entry for entry in waiting if entry.owner not in at_workers and _is_still(entry, patient)]
    if len(waiting) > in_queues:
        tasks = sorted({space_of(entry.key) for entry in waiting})
        yield Finding(
            "TG211",
            "warning",
            ", ".join(tasks[:5]) + (", …" if len(tasks) > 5 else ""),
            f"{len(waiting)} job(s) are queued, the queues of the app hold {in_queues} message(s), and no worker holds "
            "theirs: after `celery purge`, or if the broker lost its data, a call of the same work gets the handle of "
            "a job that never runs, until taskguard_republish_after "
            f"({patient.guarding.settings.republish_after:g} s) has passed and the next call republishes it",
            "free the keys of the lost jobs with `taskguard release --queued`; add --task if other queues were not "
            "purged. If the jobs wait in queues that this app does not name, use --ignore TG211",
        )


def _waits(entry: Entry, patient: Patient) -> bool:
    """Whether the job's message should be in a queue by now: its countdown or eta has passed."""
    queued_for = patient.guarding.settings.queued_for
    is_due = 0 < entry.remaining <= queued_for and time.time() - entry.since >= SETTLES_WITHIN
    return entry.state == "queued" and is_due and space_of(entry.key) in _spaces(patient)


def _spaces(patient: Patient) -> set[str]:
    return {task.taskguard.keys.space for task in patient.tasks}


def _is_still(entry: Entry, patient: Patient) -> bool:
    now = patient.store.get(entry.key)
    return now is not None and (now.state, now.token) == (entry.state, entry.token)


def _messages_in_queues(app: Any) -> int:
    names = set(app.amqp.queues)
    with app.connection_for_read() as connection:
        connection.ensure_connection(max_retries=1, timeout=5)
        return sum(_length(connection, name) for name in names)


def _length(connection: Any, queue: str) -> int:
    channel = connection.channel()
    try:
        return int(channel.queue_declare(queue=queue, passive=True).message_count)
    except connection.channel_errors:  # the queue does not exist yet; the broker closed the channel
        return 0
    finally:
        if getattr(channel, "is_open", True):
            channel.close()


def _ids_at_workers(app: Any) -> set[str]:
    look = app.control.inspect(timeout=ASK_FOR)
    found: set[str] = set()
    for answers in (look.reserved(), look.scheduled(), look.active()):
        for requests in (answers or {}).values():
            found |= {str((request.get("request") or request).get("id")) for request in requests}
    return found


CHECKS = (messages,)
