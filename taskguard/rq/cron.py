"""`GuardedCronScheduler`: RQ's cron. Run any number of them; each slot runs once.

It reads the same configuration as `rq cron`. `taskguard.schedule` computes what is due, and all schedulers agree on it
through the store, which is the queues' own Redis.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

import rq.cron
from redis import Redis
from redis.exceptions import RedisError
from rq.cron import CronJob, CronScheduler
from rq.exceptions import StopRequested

from taskguard.errors import ConfigurationError, StoreError
from taskguard.protocol.store import Store
from taskguard.rq.guarding import Settings, guard_on
from taskguard.rq.internals import CRON, require_names
from taskguard.rq.publishing import SlotPublisher
from taskguard.rq.timetable import OPTIONS, entry_of
from taskguard.runtime.health_file import HealthFile
from taskguard.schedule.boundaries import moment_of
from taskguard.schedule.entry import ScheduledEntry, Slot, Timing
from taskguard.schedule.health import facts_of_schedule
from taskguard.schedule.keeper import Timekeeper

require_names(CRON)

__all__ = ["GuardedCronScheduler", "register"]

LONGEST_SLEEP = 60.0
"""As in RQ: its list of schedulers drops one that was silent for twice as long."""
TRY_AGAIN = 1.0
"""Seconds until the next try after Redis did not answer."""


class GuardedCronScheduler(CronScheduler):
    """Drop-in for `rq.cron.CronScheduler`. From a shell use `taskguard rq-cron`: RQ's command uses its own class."""

    def __init__(
        self,
        connection: Redis,
        *args: Any,
        timing: Timing | None = None,
        namespace: str = "taskguard",
        republish_after: float = 300.0,
        queued_for: float = 86400.0,
        health_file: str | None = None,
        **options: Any,
    ) -> None:
        """*timing* is for entries that say nothing themselves; the rest of ours is as for `singleton_task`.

        *health_file* is what `taskguard health cron` reads; TASKGUARD_HEALTH_FILE goes before delivery.
        """
        super().__init__(connection, *args, **options)
        self._timing = timing or Timing()
        self._guard = guard_on(connection, self.serializer, Settings(namespace=namespace))
        self._keeper = Timekeeper(
            self._guard.store, listeners=self._guard.listeners, republish_after=republish_after, queued_for=queued_for
        )
        self.publisher = SlotPublisher(connection, self._guard, namespace, republish_after)
        self.entries: dict[str, tuple[ScheduledEntry, CronJob]] = {}
        self._look_at: dict[str, float] = {}
        self._problems: list[Exception] = []
        self._health = HealthFile.of("cron", health_file)
        self._store_error: str | None = None
        self._is_looking = False
        self._is_to_stop = False

    @property
    def store(self) -> Store:
        return self._guard.store

    def now(self) -> int:
        """Microseconds since 1970, by the clock that all schedulers share."""
        return self._keeper.clock.now()

    # -- what there is ---------------------------------------------------------------------------------------------

    def register(self, *args: Any, **options: Any) -> CronJob:
        cron_job = super().register(*args, **options)
        try:
            entry = entry_of(cron_job, self._timing)
        except ConfigurationError as error:
            self._cron_jobs.remove(cron_job)
            self._problems.append(error)
            raise
        if entry.label in self.entries:
            self.log.warning("%s is registered twice with the same options; it runs once", entry.name)
            return cron_job
        self.entries[entry.label] = entry, cron_job
        return cron_job

    def load_config_from_file(self, config_path: str) -> None:
        """As RQ does, but raise an error for a wrong entry, where RQ only logs it."""
        self._problems.clear()
        super().load_config_from_file(config_path)
        if self._problems:
            raise self._problems[0]

    # -- one look --------------------------------------------------------------------------------------------------

    def enqueue_jobs(self) -> list[CronJob]:
        enqueued = []
        self._store_error = None
        with self._not_to_be_interrupted():
            for label, (entry, cron_job) in self.entries.items():
                if self._look_at.get(label, 0.0) <= time.monotonic() and self._look(label, entry, cron_job):
                    enqueued.append(cron_job)
            self._keeper.forget_all_but([entry for entry, _ in self.entries.values()])
            if self._health is not None:
                self._health.write(partial(facts_of_schedule, self._keeper, self._store_error))
        return enqueued

    def _look(self, label: str, entry: ScheduledEntry, cron_job: CronJob) -> bool:
        """Settle the due slots of one entry; return whether any was published."""
        published = []

        def publish(slot: Slot) -> None:
            self.publisher.publish(cron_job, slot)
            published.append(slot)

        try:
            if entry.is_exclusive:
                keep_for = entry.keep_slots_for(time.time_ns() // 1000)
                self.publisher.end_if_over(self.store.get(entry.slot(0).run_key), keep_for)
            pause = self._keeper.look(entry, publish)
        except (StoreError, RedisError) as error:
            self.log.error("%s: %s; again in %s s", entry.name, error, TRY_AGAIN)
            self._store_error = str(error)
            pause = TRY_AGAIN
        except Exception:  # for example a job that cannot be serialized: the other entries continue
            self.log.exception("%s: could not enqueue its job; retrying in %s s", entry.name, TRY_AGAIN)
            pause = TRY_AGAIN
        self._look_at[label] = time.monotonic() + pause
        if published:
            cron_job.latest_enqueue_time = published[-1].scheduled_for
        cron_job.next_enqueue_time = self._following(entry)
        return bool(published)

    def _following(self, entry: ScheduledEntry) -> datetime | None:
        """The next slot, shown in RQ's list of schedulers."""
        found = entry.schedule.after(time.time_ns() // 1000)
        return None if found is None else moment_of(found)

    def calculate_sleep_interval(self) -> float:
        soonest = min(self._look_at.values(), default=float("inf"))
        return max(0.0, min(LONGEST_SLEEP, soonest - time.monotonic()))

    # -- being there -----------------------------------------------------------------------------------------------

    def heartbeat(self) -> None:
        try:
            super().heartbeat()
        except RedisError as error:
            self.log.error("Redis does not answer: %s", error)

    def save(self, pipeline: Any = None) -> None:
        try:
            super().save(pipeline)
        except RedisError as error:
            self.log.error("Redis does not answer: %s", error)

    save_jobs_data = save
    """What RQ called it before 2.12."""

    @contextmanager
    def _not_to_be_interrupted(self) -> Iterator[None]:
        """Delay a stop signal: it could leave half a reply unread, and a slot blocked until its lease expires."""
        self._is_looking = True
        try:
            yield
        finally:
            self._is_looking = False
        if self._is_to_stop:
            raise StopRequested()

    def _request_stop(self, signum: Any, frame: Any) -> None:
        self._is_to_stop = True
        if not self._is_looking:
            super()._request_stop(signum, frame)  # type: ignore[no-untyped-call]


def register(
    func: Any,
    queue_name: str,
    *args: Any,
    overlap: str | None = None,
    catch_up: str | None = None,
    catch_up_window: float | None = None,
    anchor: datetime | None = None,
    **options: Any,
) -> dict[str, Any]:
    """As `rq.cron.register`, with taskguard's options for a schedule. A plain `rq cron` ignores them."""
    ours = {"overlap": overlap, "catch_up": catch_up, "catch_up_window": catch_up_window, "anchor": anchor}
    given = {name: value for name, value in ours.items() if value is not None}
    if given:
        options["meta"] = {**(options.get("meta") or {}), OPTIONS: given}
    data: dict[str, Any] = rq.cron.register(func, queue_name, *args, **options)
    return data
