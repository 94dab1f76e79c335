"""How a body is told, wherever it runs, that it must stop: an exception raised in it from another thread.

main thread   by a signal, which also ends a blocking call (sleep, recv, select, a lock)
other thread  by an asynchronous exception, which arrives when the current call returns
greenlet      thrown in by its hub, when the greenlet next waits or runs

The exception reaches the body only. Once `leave` was called none is raised any more, so nothing is interrupted while
the guard itself settles with the store.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from types import FrameType
from typing import Any, Protocol

from taskguard import native
from taskguard.errors import LeaseLostError

# Ignored by default, so one that arrives late does no harm; Go chose it for its own preemption for the same reason.
_SIGNAL: int = getattr(signal, "SIGURG", 0)


class Body(Protocol):
    """A piece of code that is running, and can be stopped."""

    def interrupt(self, error: LeaseLostError) -> None:
        """Raise *error* in the body, if it still runs; called from any thread."""

    def leave(self) -> None:
        """The body is over; called where it ran. Calling it again does nothing."""


def enter() -> Body:
    """The body that starts here, in this thread or greenlet."""
    if native.patched():
        return _InGreenlet()
    if threading.current_thread() is threading.main_thread() and _SIGNAL:
        return _InMainThread()
    return _InThread()


# -- the main thread ---------------------------------------------------------------------------------------------------


class _InMainThread:
    def __init__(self) -> None:
        self._error: LeaseLostError | None = None
        self._active = True
        self._ident = native.get_ident()
        _install()

    def interrupt(self, error: LeaseLostError) -> None:
        self._error = error
        _pending.append(self)
        signal.pthread_kill(self._ident, _SIGNAL)

    def leave(self) -> None:
        self._active = False

    def raise_error(self) -> None:
        """Runs in the main thread, between two steps of whatever it does."""
        if self._active and self._error is not None:
            self._active = False
            raise self._error


_pending: list[_InMainThread] = []
_previous: Any = None


def _install() -> None:
    # Looked at each time: a worker that was forked, or the job itself, may have set its own handlers since.
    global _previous
    found = signal.getsignal(_SIGNAL)
    if found is not _on_signal:
        _previous = found
        signal.signal(_SIGNAL, _on_signal)


def _on_signal(number: int, frame: FrameType | None) -> None:
    while _pending:
        _pending.pop().raise_error()
    if callable(_previous):
        _previous(number, frame)


# -- another thread ----------------------------------------------------------------------------------------------------

_set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc
_errors: dict[int, LeaseLostError] = {}


class _LostInThreadError(LeaseLostError):
    """An asynchronous exception is given as a class; this one finds its facts by the thread that it is raised in."""

    def __init__(self) -> None:
        error = _errors[threading.get_ident()]
        super().__init__(error.key, error.token, error.unsure)

    def __reduce__(self) -> Any:
        return LeaseLostError, self.args


class _InThread:
    def __init__(self) -> None:
        self._ident = threading.get_ident()
        self._lock = native.allocate_lock()
        self._active = True
        self._sent = False

    def interrupt(self, error: LeaseLostError) -> None:
        with self._lock:
            if self._active and not self._sent:
                self._sent = True
                _errors[self._ident] = error
                _set_async_exc(ctypes.c_ulong(self._ident), ctypes.py_object(_LostInThreadError))

    def leave(self) -> None:
        while True:
            try:
                with self._lock:
                    self._active = False
                if self._sent:
                    _set_async_exc(ctypes.c_ulong(self._ident), None)  # take back what was not yet raised
                    _errors.pop(self._ident, None)
                return
            except _LostInThreadError:
                continue  # it was raised right here, on the way out: the body is over, so nobody needs it


# -- a greenlet --------------------------------------------------------------------------------------------------------


class _InGreenlet:
    def __init__(self) -> None:
        gevent = sys.modules["gevent"]
        self._greenlet = gevent.getcurrent()
        self._loop = gevent.get_hub().loop
        self._active = True

    def interrupt(self, error: LeaseLostError) -> None:
        self._loop.run_callback_threadsafe(self._throw, error)

    def _throw(self, error: LeaseLostError) -> None:
        """Runs in the hub, so the greenlet is waiting for something: it is woken with the error instead."""
        if self._active and not self._greenlet.dead:
            self._active = False
            self._greenlet.throw(error)

    def leave(self) -> None:
        self._active = False
