"""The claims of an RQ job: for the process that runs it, and for its worker, which may settle it."""

from __future__ import annotations

from typing import Any

from taskguard.engine.envelope import Envelope
from taskguard.engine.layers import Layer, Terms, job_queue_entry, key_layer, slot_layer
from taskguard.guard import Guard
from taskguard.protocol.policy import Policy
from taskguard.rq.guarded_job import GuardedJob
from taskguard.rq.guarding import JobGuard, Settings, guard_on
from taskguard.rq.job_metadata import NAMESPACE
from taskguard.rq.owner import AFTER, owner_of
from taskguard.schedule.note import Note

_TAKEN = ("lease", "on_lost", "max_starts")


class JobClaims:
    """From the outside in: the run of its slot if it is scheduled, then its key if its function is guarded."""

    def __init__(self, job: GuardedJob, guarded: JobGuard | None) -> None:
        self.job = job
        self.guarded = guarded
        self.slot = Note.of(job.envelope.slot) if job.envelope.slot else None
        self.settings = guarded.settings if guarded is not None else Settings()
        self.owner = owner_of(job.id, job.repeats_left, job.envelope.run)
        """The owner of its key. The owner of its slot is the job id, which schedulers know."""

    def guards(self) -> list[Guard]:
        """One for each layer: slots are in the queue's own Redis, a function may have its own store."""
        job, guards = self.job, []
        if self.slot is not None:
            namespace = (job.envelope.slot or {}).get(NAMESPACE, "taskguard")
            guards = [guard_on(job.connection, job.serializer, Settings(namespace=namespace))]
        return guards if self.guarded is None else [*guards, self.guarded.guard(job.connection, job.serializer)]

    def layers(self, envelope: Envelope, slot_owner: str = "") -> tuple[Layer, ...]:
        layers: tuple[Layer, ...] = ()
        if self.slot is not None:
            # RQ does not redeliver a job whose worker died: schedulers must not wait for that.
            layers = (slot_layer(self.slot, self._slot_policy(self.slot), slot_owner or self.job.id, kept=False),)
        if self.guarded is None:
            return layers
        return (*layers, key_layer(self.guarded.policy, envelope, self.owner, self.slot))

    def queue_entry(self) -> str:
        """The entry that holds its place in the queue; empty for a scheduled job, which has the run of its slot."""
        is_slot = self.guarded is None or self.slot is not None
        return "" if is_slot or self.guarded is None else job_queue_entry(self.guarded.policy, self.job.envelope)

    def terms(self) -> Terms:
        # RQ itself knows the state of a queued job, so none counts as lost.
        return Terms(
            queued_for=self.settings.queued_for,
            republish_after=self.settings.queued_for,
            on_store_error=self.settings.on_store_error,
        )

    def _slot_policy(self, slot: Note) -> Policy:
        chosen: dict[str, Any] = {}
        if self.guarded is not None:
            chosen = {name: getattr(self.guarded.policy, name) for name in _TAKEN}
            if slot.overlap != "cancel_other":
                chosen["on_lost"] = "continue"  # the function's own key decides
        return Policy.trusted(keep_for=slot.keep_for, **chosen)

    def is_this_job(self, owner: str) -> bool:
        """Whether an owner, of a key or of a slot, is this very job."""
        from taskguard.rq.owner import PREFIX, is_other_run, job_id_of

        if not owner.startswith(PREFIX):
            return owner.partition(AFTER)[0] == self.job.id
        return job_id_of(owner) == self.job.id and not is_other_run(self.job.envelope.run, owner)


def arguments_of(job: Any) -> tuple[Any, ...]:
    args: tuple[Any, ...] = tuple(job.args)
    return args if job.instance is None else (job.instance, *args)
