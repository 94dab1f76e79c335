"""`celery beat -S taskguard`: run as many beats as you like; each slot is published once.

`guarded(SchedulerClass)` does the same for any other scheduler. It replaces `tick`. The list of entries, and how a
message is sent, stay the scheduler's own.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache, partial
from typing import Any

from celery import Celery
from celery.beat import PersistentScheduler, Scheduler
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger

from taskguard.celery.app import install
from taskguard.celery.guarding import app_guard_of, is_installed
from taskguard.celery.headers import with_envelope
from taskguard.celery.internals import BEATS, DJANGO, REDBEAT, require_names
from taskguard.celery.timetable import PREFIX, Facts, entry_of, facts_of, without_ours
from taskguard.engine.envelope import Envelope
from taskguard.errors import ConfigurationError, StoreError, StoreUnavailableError
from taskguard.runtime.health_file import HealthFile
from taskguard.schedule.entry import ScheduledEntry, Slot
from taskguard.schedule.health import facts_of_schedule
from taskguard.schedule.keeper import Timekeeper

require_names(BEATS)

__all__ = ["GuardedDatabaseScheduler", "GuardedRedBeatScheduler", "GuardedScheduler", "guarded"]  # noqa: F822  two are made when asked for

TRY_AGAIN = 1.0
"""Seconds until the next try after the store or the broker did not answer."""
LONGEST_TICK = 5.0
"""Seconds after which beat reads the scheduler's entries again."""
SAY_AGAIN = 60.0
MOST_REMEMBERED = 10_000
"""Slots of which a beat remembers with which headers it sent them."""
_STORE = ""

_logger = logging.getLogger("taskguard")
_beat_logger = get_logger("celery.beat")
"""That of Celery's schedulers and of RedBeat's."""


class SlotScheduler(Scheduler):  # type: ignore[misc]
    """In front of a scheduler class; see `guarded`."""

    lock_key = None
    """RedBeat's leader lock: there is no leader here."""

    def __init__(self, app: Celery, *args: Any, lazy: bool = False, **options: Any) -> None:
        workers_know = is_installed(app)
        install(app)
        super().__init__(app, *args, lazy=lazy, **options)
        self.lock_key = None
        self._lines: dict[str, tuple[Facts, ScheduledEntry]] = {}
        self._complaints: dict[str, tuple[str, float]] = {}
        self._once: dict[str, tuple[Any, ScheduledEntry]] = {}
        self._sent: OrderedDict[str, dict[str, Any]] = OrderedDict()
        """The options that the message of a slot had, by its job id."""
        self._failures: list[Exception] = []
        self._store_error: str | None = None
        self._health = HealthFile.of("beat", app_guard_of(app).settings.health_file) if not lazy else None
        if not lazy:
            self.taskguard = self._new_keeper(workers_know)

    def _new_keeper(self, workers_know: bool) -> Timekeeper:
        app_guard = app_guard_of(self.app)
        settings = app_guard.settings
        if not workers_know:
            _logger.warning(
                "the workers of this app do not load taskguard, so runs may overlap, and a message that the broker "
                "loses is not published again; call taskguard.celery.install(app) where the app is made"
            )
        return Timekeeper(
            app_guard.calls.store,
            listeners=app_guard.calls.listeners,
            tracked=workers_know,
            republish_after=settings.republish_after,
            queued_for=settings.queued_for,
        )

    def tick(self, *_: Any, **__: Any) -> float:
        """Look at every entry; answers in how many seconds to do so again."""
        pause = self._look_at_all()
        if self._health is not None:
            self._health.write(partial(facts_of_schedule, self.taskguard, self._store_error))
        return pause

    def _look_at_all(self) -> float:
        pauses = [min(float(self.max_interval), LONGEST_TICK)]
        entries = {}
        try:
            for beat_entry in self.taskguard_entries():
                entry = self._entry_of(beat_entry)
                if entry is not None:
                    entries[beat_entry.name] = entry
                    pauses.append(self._look(beat_entry, entry))
            for beat_entry, entry in self._once_and_gone(entries):
                entries[beat_entry.name] = entry
                pauses.append(self._look(beat_entry, entry))
        except StoreError as error:  # do not ask an unavailable store about each of a hundred entries
            self._complain(_STORE, f"slots wait for the store: {error}", logging.WARNING)
            self._store_error = str(error)
            return TRY_AGAIN
        self._complaints.pop(_STORE, None)
        self._store_error = None
        recently = time.monotonic() - SAY_AGAIN
        self._complaints = {about: said for about, said in self._complaints.items() if said[1] >= recently}
        self._lines = {name: line for name, line in self._lines.items() if name in entries}
        self.taskguard.forget_all_but(list(entries.values()))
        return max(0.0, min(pauses))

    def _once_and_gone(self, entries: Mapping[str, ScheduledEntry]) -> list[tuple[Any, ScheduledEntry]]:
        """One-off entries that have run and left the schedule: their message may still be lost."""
        self._once = {
            name: (beat_entry, entry)
            for name, (beat_entry, entry) in self._once.items()
            if name in entries or self.taskguard.watches(entry)
        }
        return [found for name, found in self._once.items() if name not in entries]

    def taskguard_entries(self) -> Iterable[Any]:
        """Every entry, due or not."""
        return list(self.schedule.values())

    def _entry_of(self, beat_entry: Any) -> ScheduledEntry | None:
        """The same object while the entry does not change, so that nothing is computed again."""
        try:
            facts = facts_of(beat_entry)
            known = self._lines.get(facts.name)
            if known is None or known[0] != facts or isinstance(facts.expires, datetime):
                known = self._lines[facts.name] = facts, entry_of(facts, app_guard_of(self.app).settings.timing)
            return known[1]
        except ConfigurationError as error:
            self._complain(beat_entry.name, f"the entry {beat_entry.name} is not scheduled: {error}")
        except Exception as error:  # an unreadable entry must not stop the others
            self._complain(beat_entry.name, f"the entry {beat_entry.name} cannot be read: {error!r}", error=error)
        return None

    def _look(self, beat_entry: Any, entry: ScheduledEntry) -> float:
        try:
            if entry.is_once and entry.enabled:
                self._once[entry.name] = beat_entry, entry
            pause = self.taskguard.look(
                entry, partial(self._publish, beat_entry), again=partial(self._publish_again, beat_entry)
            )
            self._complaints.pop(entry.name, None)
            return pause
        except StoreError:
            raise
        except Exception as error:  # a message that cannot be serialized or sent: one entry must not stop the others
            self._complain(entry.name, f"could not publish a slot of {entry.name}; will try again", error=error)
        return TRY_AGAIN

    def _complain(self, about: str, text: str, level: int = logging.ERROR, error: Exception | None = None) -> None:
        """Log the same text at most once a minute."""
        said, when = self._complaints.get(about, ("", 0.0))
        if said != text or time.monotonic() - when > SAY_AGAIN:
            self._complaints[about] = text, time.monotonic()
            _logger.log(level, text, exc_info=error)

    # -- one message -----------------------------------------------------------------------------------------------

    def _publish(self, beat_entry: Any, slot: Slot) -> None:
        """Send the slot's message as beat sends any: through `apply_entry`, which logs it, and which monitors wrap.

        Once for each slot: Sentry, say, opens a check-in there, and puts its id into the headers of the message.
        """
        if slot.job_id in self._sent:
            self._publish_again(beat_entry, slot)
            return
        message = self._message(beat_entry, slot)
        self._failures.clear()
        try:
            self.apply_entry(message, producer=self.producer)
        finally:
            self._remember(slot, message.options.get("headers") or {})
        if self._failures:
            raise self._failures.pop()  # `apply_entry` only logs it
        self._advance(beat_entry)

    def _publish_again(self, beat_entry: Any, slot: Slot) -> None:
        self.send(beat_entry, slot)
        self._advance(beat_entry)

    def send(self, beat_entry: Any, slot: Slot) -> None:
        """Send the slot's message, and no word of it to monitors: it is a further copy, or the slot is long over.

        A copy has the headers of the first one, if this beat sent that, and so belongs to the same check-in.
        """
        self._apply_again(self._message(beat_entry, slot))

    def _apply_again(self, message: Any) -> None:
        self.apply_async(message, producer=self.producer, advance=False)

    def _message(self, beat_entry: Any, slot: Slot) -> Any:
        """The entry as it is sent for that slot."""
        # A copy, as Celery writes into the headers of the entry itself, and the slot would stay in them; and not by
        # copy(), which goes through what entries do to be pickled.
        message = object.__new__(type(beat_entry))
        vars(message).update(vars(beat_entry))
        app_guard = app_guard_of(self.app)
        envelope = Envelope(
            id=slot.job_id,
            slot=slot.note().as_dict(),
            store=app_guard.identity.name(app_guard.calls, TRY_AGAIN),
            at=time.time(),
        )
        message.kwargs = without_ours(beat_entry.kwargs, PREFIX)
        message.options = without_ours(beat_entry.options)
        message.options["task_id"] = slot.job_id
        # Only the headers are those of the first try: somebody may have corrected the queue since.
        sent = self._sent.get(slot.job_id) or message.options.get("headers")
        message.options["headers"] = with_envelope(sent, envelope)
        return message

    def apply_async(self, entry: Any, *args: Any, **options: Any) -> Any:
        try:
            return super().apply_async(entry, *args, **options)
        except Exception as error:
            self._failures.append(error)
            raise

    def _remember(self, slot: Slot, headers: dict[str, Any]) -> None:
        self._sent[slot.job_id] = headers
        if len(self._sent) > MOST_REMEMBERED:
            self._sent.popitem(last=False)

    def _advance(self, beat_entry: Any) -> None:
        """Let the scheduler record the run (when, how often), for people to read."""
        try:
            following = self.reserve(beat_entry)
            if getattr(getattr(beat_entry, "model", None), "one_off", False):
                following.is_due()  # this disables an entry that has run
        except Exception:  # the scheduler's own storage may raise anything: the slot is published
            _logger.exception("could not record the last run of %s", beat_entry.name)


@cache
def guarded(scheduler: type) -> type:
    """*scheduler* with slots: the default one, django-celery-beat's `DatabaseScheduler`, RedBeat's, or your own."""
    if issubclass(scheduler, SlotScheduler):
        return scheduler
    front: tuple[type, ...] = (SlotScheduler,)
    if hasattr(scheduler, "enabled_models_qs"):
        front = (_ForDjango, SlotScheduler)
    elif scheduler.__module__.startswith("redbeat"):
        front = (_ForRedBeat, SlotScheduler)
    return type(f"Guarded{scheduler.__name__}", (*front, scheduler), {"__module__": __name__})


def find_entry(app: Celery, name: str, scheduler: str | None = None) -> tuple[SlotScheduler, Any, ScheduledEntry]:
    """The entry of that name: the app's scheduler, its entry, and the `ScheduledEntry` made of it."""
    found = symbol_by_name(scheduler or app.conf.beat_scheduler, aliases=_ALIASES)
    # The default scheduler's entries come from the app; its file belongs to the running beat.
    beat: SlotScheduler = guarded(Scheduler if issubclass(found, PersistentScheduler) else found)(app)
    for beat_entry in beat.taskguard_entries():
        if beat_entry.name == name:
            return beat, beat_entry, entry_of(facts_of(beat_entry), app_guard_of(app).settings.timing)
    raise ConfigurationError(f"the schedule of {app.main} has no entry {name!r}")


_ALIASES = {
    "taskguard": "taskguard.celery.beat:GuardedScheduler",
    "taskguard_django": "taskguard.celery.beat:GuardedDatabaseScheduler",
    "taskguard_redbeat": "taskguard.celery.beat:GuardedRedBeatScheduler",
}


class _ForDjango:
    def enabled_models_qs(self) -> Any:
        # django-celery-beat omits entries that are not due within hours; those could not be caught up.
        return self.Model.objects.enabled()  # type: ignore[attr-defined]


class _ForRedBeat:
    app: Any
    producer: Any
    Entry: Any
    _complain: Any
    apply_async: Any

    # RedBeat never calls `apply_entry`, so monitors wrap its `apply_async`; Sentry wraps both, and would count twice.

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        _beat_logger.info("Scheduler: Sending due task %s (%s)", entry.name, entry.task)
        self.apply_async(entry, producer=producer, advance=False)

    def _apply_again(self, message: Any) -> None:
        Scheduler.apply_async(self, message, producer=self.producer, advance=False)

    def taskguard_entries(self) -> Iterable[Any]:
        # RedBeat's `schedule` has only due entries that no other beat has advanced.
        from redbeat.schedulers import get_redis
        from redis import exceptions

        found = []
        try:
            for key in get_redis(self.app).zrange(self.app.redbeat_conf.schedule_key, 0, -1):
                try:
                    found.append(self.Entry.from_key(key, app=self.app))
                except KeyError:
                    pass  # deleted meanwhile
                except (TypeError, ValueError) as error:  # written by another version, or by hand
                    self._complain(key, f"the entry {key} cannot be read: {error!r}")
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            raise StoreUnavailableError("RedBeat's", str(error)) from error
        return found


def __getattr__(name: str) -> Any:
    """Make the shipped schedulers on first use: two of them need further packages."""
    if name == "GuardedDatabaseScheduler":
        from django_celery_beat.schedulers import DatabaseScheduler

        require_names(DJANGO)
        return guarded(DatabaseScheduler)
    if name == "GuardedRedBeatScheduler":
        from redbeat.schedulers import RedBeatScheduler

        require_names(REDBEAT)
        return guarded(RedBeatScheduler)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


GuardedScheduler = guarded(PersistentScheduler)
