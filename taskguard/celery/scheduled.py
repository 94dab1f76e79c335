"""A scheduled run in the worker: the message of any task runs once, and the slot's run lasts as long as its body.

If an app has taskguard installed, every task in its workers supports this. A plain task claims only the run of its
slot. A guarded task also claims its own key, inside the slot: see `taskguard.engine.layers`.
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
        return None  # like most messages: the rest of the envelope is not read
    return Note.of(envelope_in(request.headers, str(request.id)).slot)


class SlotAware(Task):  # type: ignore[misc]
    """In front of a plain task's class, in a worker."""

    abstract = True

    @cached_property
    def Request(self) -> type:  # noqa: N802 - Celery's name
        from taskguard.celery.request import in_front_of  # only workers need this code

        return in_front_of(symbol_by_name(super().Request))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        body = super().__call__
        return body(*args, **kwargs) if _note_of(self.request) is None else deliver(self, body, args, kwargs)


def watch_slots() -> None:
    """Let workers recognise the messages of slots, for any task."""
    worker_init.connect(_make_ready)  # one receiver for all apps: one per app would keep the app for ever


def _make_ready(sender: Any = None, **_: Any) -> None:
    if sender is not None and is_installed(sender.app):
        for task in list(sender.app.tasks.values()):
            if not hasattr(task, "taskguard"):
                make_aware(task)


def make_aware(task: Any) -> None:
    base = type(task)
    if not issubclass(base, SlotAware):
        task.__class__ = type(base.__name__, (SlotAware, base), {"__module__": base.__module__})
