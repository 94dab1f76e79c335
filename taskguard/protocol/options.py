"""Advice for a name that is not an option of a queue's decorator.

No message here recommends something that the decorator refuses.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

_ONE_KEY = "key=lambda *args, **kwargs: 'one'"
_EXPIRY = "leave it out: if a worker dies, its key is free after lease=30 seconds"


def problem_with_option(
    name: str, value: Any, ours: Iterable[str], others: Collection[str] = (), more: str = ""
) -> str:
    """Why *name* is refused, and what to write.

    *ours* are the options of the guard, *others* those of the queue, *more* is additional advice.
    """
    if name in _ELSEWHERE:
        package, advice = _ELSEWHERE[name]
        return f"{name} is an option of {package}; {advice(value)}"
    if name in _EXPIRIES:
        return f"there is no option {name}; {_EXPIRY}{more}"
    advised = list(ours)
    near = difflib.get_close_matches(name, [*advised, *others], 1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return f"there is no option {name}{meant}; write one of: {', '.join(advised)}{more}"


# -- options of other packages -----------------------------------------------------------------------------------


def _key_of(fields: Any, if_empty: str) -> str:
    names = [fields] if isinstance(fields, str) else fields
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        return "key=…"
    if not names:
        return if_empty
    return f"key={names[0]!r}" if len(names) == 1 else f"key={tuple(names)!r}"


def _unique_on(value: Any) -> str:
    key = _key_of(value or (), "")
    return f"write {key}" if key else "leave it out: without key= all arguments count"


def _raise_on_duplicate(value: Any) -> str:
    return f"write on_conflict={'raise' if value else 'skip'!r}"


def _once(value: Any) -> str:
    chosen = value if isinstance(value, Mapping) else {}
    options = [] if chosen.get("keys") is None else [_key_of(chosen["keys"], _ONE_KEY)]
    options.append(f"on_conflict={'skip' if chosen.get('graceful') else 'raise'!r}")
    if chosen.get("unlock_before_run"):
        options.append("hold='queued'")
    advice = f"write {', '.join(options)}"
    return f"{advice}; timeout: {_EXPIRY}" if "timeout" in chosen else advice


def _left_out(why: str) -> Callable[[Any], str]:
    return lambda _: f"leave it out: {why}"


_ELSEWHERE: dict[str, tuple[str, Callable[[Any], str]]] = {
    "once": ("celery-once", _once),
    "graceful": ("celery-once", lambda value: f"write on_conflict={'skip' if value else 'raise'!r}"),
    "keys": ("celery-once", lambda value: f"write {_key_of(value, _ONE_KEY)}"),
    "unlock_before_run": ("celery-once", lambda value: f"write hold={'queued' if value else 'until_done'!r}"),
    "unique_on": ("celery-singleton", _unique_on),
    "raise_on_duplicate": ("celery-singleton", _raise_on_duplicate),
    "lock_expiry": ("celery-singleton", lambda _: _EXPIRY),
    "challenge_lock_on_startup": (
        "celery-singleton",
        _left_out("a worker renews its lease, and a key that nobody renews is free"),
    ),
    "celery_app": ("celery-singleton", lambda _: "write @singleton_task(app, …)"),
}

_EXPIRIES = frozenset({"expiry", "lock_timeout", "lock_ttl", "timeout", "ttl"})
"""Names that other lock packages use for the time after which a lock expires."""
