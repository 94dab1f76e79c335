"""A scheduled run, in the worker: whatever task it is, its message is run once, and its slot knows how long it lasts.

Every task of a worker whose app has taskguard installed is ready for it. A plain task is held by the run of its slot
alone. A guarded one also has its own key, claimed inside: see `taskguard.engine.layers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from celery.app.task import Task
from celery.signals import worker_init
from celery.utils.imports import symbol_by_name

from taskguard.celery.delivery import deliver
from taskguard.celery.guarding import is_installed
from taskguard.celery.headers import SLOT, envelope_in
from taskguard.runtime.switch import is_off
from taskguard.schedule.note import Note


def _note_of(request: Any) -> Note | None:
    """The slot that a delivery is for."""
    if request.called_directly or request.id is None or request.is_eager or is_off():
        return None
    if not isinstance(request.headers, Mapping) or not request.headers.get(SLOT):
        return None  # as most are: what else the message says is not read for it
    return Note.of(envelope_in(request.headers, str(request.id)).slot)


class SlotAware(Task):  # type: ignore[misc]
    """In front of a plain task's class, in a worker."""

    abstract = True

    @cached_property
    def Request(self) -> type:  # noqa: N802 - Celery's name
        from taskguard.celery.request import in_front_of  # the worker's own code

        return in_front_of(symbol_by_name(super().Request))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        body = super().__call__
        return body(*args, **kwargs) if _note_of(self.request) is None else deliver(self, body, args, kwargs)


def watch_slots() -> None:
    """Let workers recognise the messages of slots, whatever task they are for."""
    worker_init.connect(_make_ready)  # one for all apps: a receiver for each would keep it for ever


def _make_ready(sender: Any = None, **_: Any) -> None:
    if sender is not None and is_installed(sender.app):
        for task in list(sender.app.tasks.values()):
            if not hasattr(task, "taskguard"):
                make_aware(task)


def make_aware(task: Any) -> None:
    base = type(task)
    if not issubclass(base, SlotAware):
        task.__class__ = type(base.__name__, (SlotAware, base), {"__module__": base.__module__})
