"""How to stop a body from another thread, wherever it runs: by an exception raised in it.

main thread   by a signal, which also ends a blocking call (sleep, recv, select, a lock)
other thread  by an asynchronous exception, which arrives when the current call returns
greenlet      thrown in by its hub, when the greenlet next waits or runs
asyncio task  cancelled, when it next awaits; the cancellation becomes the error where the body ends

The exception reaches only the body. After `leave` none is raised any more, so nothing interrupts the guard while it
settles with the store. If several nested bodies must stop, the exception is raised for the outermost one, which ends
those inside it, too.
"""

from __future__ import annotations

import signal
import sys
import threading
from _signal import getsignal  # type: ignore[import-not-found]
from itertools import count
from types import FrameType
from typing import Any, Protocol

from taskguard.errors import LeaseLostError
from taskguard.runtime import native
from taskguard.runtime.forks import Forked, watch_forks

# Ignored by default, so a late one does no harm; Go chose it for its own preemption for the same reason.
_SIGNAL: int = getattr(signal, "SIGURG", 0)


class Body(Protocol):
    """A running piece of code that can be stopped."""

    def interrupt(self, error: LeaseLostError) -> None:
        """Raise *error* in the body, if it still runs; called from any thread."""

    def leave(self) -> None:
        """The body is over; called where it ran. A second call does nothing."""

    def meaning_of(self, error: BaseException | None) -> LeaseLostError | None:
        """The error that was sent, if it arrived in the form of *error*."""


def enter() -> Body:
    """The body that starts here, in this thread, greenlet or task."""
    if "gevent.monkey" in sys.modules and native.patched():
        return _InGreenlet()
    if "asyncio" in sys.modules and sys.modules["asyncio"]._get_running_loop() is not None:
        return _InTask()
    if threading.current_thread() is threading.main_thread() and _SIGNAL:
        return _InMainThread()
    return _InThread()


def came_by_signal(error: BaseException) -> bool:
    """Whether a signal handler raised *error*: then the code it interrupted did not fail."""
    if isinstance(error, SystemError) and error.__cause__ is not None:
        # Some C code continues after a handler has raised, as `os.stat` of Python 3.10 does. If it calls Python again,
        # say for a second signal, the result is a SystemError with the handler's exception as its cause.
        return came_by_signal(error.__cause__)
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def leave_signals_to_others() -> None:
    """Block all signals in this thread: a signal meant for the main thread must reach it."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)


_ALL = set(signal.valid_signals()) - {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


# -- the main thread ---------------------------------------------------------------------------------------------------


class _InMainThread:
    _numbers = count()

    def __init__(self) -> None:
        self._error: LeaseLostError | None = None
        self._active = True
        self._ident = threading.get_ident()
        self.number = next(self._numbers)
        _install()

    def interrupt(self, error: LeaseLostError) -> None:
        self._error = error
        _pending.append(self)
        signal.pthread_kill(self._ident, _SIGNAL)

    def leave(self) -> None:
        self._active = False

    def meaning_of(self, error: BaseException | None) -> LeaseLostError | None:
        return None

    def take(self) -> LeaseLostError | None:
        """The error that must still be raised; only once."""
        active, self._active = self._active, False
        return self._error if active else None


_pending: list[_InMainThread] = []
_previous: Any = None


def _install() -> None:
    # Checked each time: a forked worker, or the job itself, may have set its own handlers since.
    global _previous
    found = getsignal(_SIGNAL)  # not `signal.getsignal`, which converts a handler to an enum, or fails to
    if found is not _on_signal:
        _previous = found
        signal.signal(_SIGNAL, _on_signal)


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Runs in the main thread, between two steps of whatever runs there."""
    bodies = []
    while _pending:  # one by one: another thread may add to them at the same time
        bodies.append(_pending.pop())
    bodies.sort(key=lambda body: body.number)
    errors = [error for body in bodies if (error := body.take()) is not None]
    if callable(_previous):
        _previous(number, frame)
    if errors:
        raise errors[0]


# -- another thread ----------------------------------------------------------------------------------------------------


class _LostInThreadError(LeaseLostError):
    """An asynchronous exception is passed as a class; this one finds its facts by the thread in which it is raised."""

    def __init__(self) -> None:
        error = _InThread.raised_here()
        super().__init__(error.key, error.token, error.unsure)

    def __reduce__(self) -> Any:
        return LeaseLostError, self.args


class _InThread:
    _lock = native.allocate_rlock()  # a finalizer may use the guard in the middle of `leave`
    _sent: dict[int, dict[_InThread, LeaseLostError]] = {}  # noqa: RUF012 - by thread
    _numbers = count()

    def __init__(self) -> None:
        self.number = next(self._numbers)
        self._ident = threading.get_ident()
        self._active = True

    def interrupt(self, error: LeaseLostError) -> None:
        with self._lock:
            if self._active:
                self._sent.setdefault(self._ident, {})[self] = error
                _raise_in(self._ident, _LostInThreadError)

    @classmethod
    def raised_here(cls) -> LeaseLostError:
        """The error of the outermost body that must stop; the bodies inside it end with it.

        Takes no lock: it may be raised in `leave`, which holds the lock.
        """
        sent = cls._sent.get(threading.get_ident(), {})
        found = list(sent.items())
        for body, _ in found:
            sent.pop(body, None)
        return min(found, key=lambda item: item[0].number)[1] if found else LeaseLostError("", 0)

    def leave(self) -> None:
        while True:
            try:
                with self._lock:
                    self._active = False
                    sent = self._sent.get(self._ident, {})
                    if sent.pop(self, None) is not None and not sent:
                        _raise_in(self._ident, None)  # revoke what was not yet raised
                    if not sent:
                        self._sent.pop(self._ident, None)
                return
            except _LostInThreadError:
                continue  # it was raised here, on the way out: the body is over, so nobody needs it

    def meaning_of(self, error: BaseException | None) -> LeaseLostError | None:
        return None


def _raise_in(ident: int, error: type[BaseException] | None) -> None:
    import ctypes  # imported here: most processes never lose a lease

    exception = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), exception)


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
        """Runs in the hub, so the greenlet is waiting for something: it wakes up with the error instead."""
        if self._active and not self._greenlet.dead:
            self._active = False
            self._greenlet.throw(error)

    def leave(self) -> None:
        self._active = False

    def meaning_of(self, error: BaseException | None) -> LeaseLostError | None:
        return None


# -- a task of an event loop -------------------------------------------------------------------------------------------


class _InTask:
    def __init__(self) -> None:
        asyncio = sys.modules["asyncio"]
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._cancelled = asyncio.CancelledError
        self._active = self._task is not None
        self._error: LeaseLostError | None = None

    def interrupt(self, error: LeaseLostError) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel, error)

    def _cancel(self, error: LeaseLostError) -> None:
        if self._active:
            self._error = error
            self._task.cancel()

    def leave(self) -> None:
        self._active = False

    def meaning_of(self, error: BaseException | None) -> LeaseLostError | None:
        if self._error is None or not isinstance(error, self._cancelled):
            return None
        if hasattr(self._task, "uncancel"):  # since Python 3.11 a handled cancellation must be undone
            self._task.uncancel()
        return self._error


# -- a fork ------------------------------------------------------------------------------------------------------------


class _Sent(Forked):
    """Interrupts sent before a fork are for the parent: in the child they must interrupt nobody."""

    def after_fork(self) -> None:
        _pending.clear()
        _InThread._lock = native.allocate_rlock()
        if _InThread._sent.pop(threading.get_ident(), None):
            _raise_in(threading.get_ident(), None)
        _InThread._sent.clear()


_sent = _Sent()
watch_forks(_sent)
