"""Which key a command is about, and which task a key belongs to."""

from __future__ import annotations

import ast
import difflib
import json
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

import click
from click.shell_completion import CompletionItem

from taskguard.cli.target import Target, find_target
from taskguard.errors import TaskguardError
from taskguard.history import MOST, Decision, decisions
from taskguard.keys.maker import space_of
from taskguard.protocol.names import ENTRY, problem_with
from taskguard.protocol.store import Entry

INTERNAL = "taskguard:"
"""Prefix of the keys that taskguard uses itself."""
ALL = 4 * MOST
"""More lines than a history keeps: each of its two logs may hold twice `MOST`."""
_BESIDE = ("", ":queue", ":next")
"""Suffixes of the entries that one key can have: the run, and its queued entries."""


def key_argument(command: Callable[..., Any], *, required: bool = True) -> Callable[..., Any]:
    """`KEY`, or with `-A` the name of a task and the arguments of a call."""
    usage = "KEY | TASK [ARG…]" if required else "[KEY | TASK [ARG…]]"
    return click.argument("words", metavar=usage, nargs=-1, required=required, shell_complete=_keys)(command)


def key_of(target: Target, words: Sequence[str]) -> str:
    """The key of *words*. `name=value` is an argument by name; values are JSON, Python literals, or plain text."""
    if target.app is not None and words[0] in target.app.tasks:
        return _key_of_call(target.app.tasks[words[0]], words[1:])
    if len(words) > 1 and target.app is None:
        raise click.UsageError("a task with arguments needs -A APP; a key takes no arguments")
    meant = "" if target.app is None else did_you_mean(words[0], _guarded_tasks(target.app))
    if len(words) > 1:
        raise click.UsageError(f"{words[0]} is not a task of this app{meant}")
    problem = problem_with("KEY", words[0], ENTRY)
    if problem:
        raise click.UsageError(problem)
    # A key written by hand may look like a task's short name: a key that the store knows wins.
    if meant and not entries_of(target, words[0]) and not decisions_of(target, words[0], 1):
        raise click.UsageError(f"{words[0]} is neither a known key nor a task of this app{meant}")
    return words[0]


def did_you_mean(name: str, tasks: Iterable[str]) -> str:
    """`; did you mean shop.charge?` if *name* is the short name of one task, or close to the name of one; else ''."""
    tasks = set(tasks)
    if name in tasks:
        return ""
    fitting = [task for task in tasks if task.endswith(f".{name}")]
    if not fitting:
        fitting = difflib.get_close_matches(name, tasks, 1, cutoff=0.8)
    return f"; did you mean {fitting[0]}?" if len(fitting) == 1 else ""


def _guarded_tasks(app: Any) -> list[str]:
    return [name for name, task in app.tasks.items() if getattr(task, "taskguard", None) is not None]


def entries_of(target: Target, key: str) -> list[Entry]:
    """The entries of the key: its run, then its queued entries."""
    found = [target.store.get(key + suffix) for suffix in _BESIDE]
    return [entry for entry in found if entry is not None]


def decisions_of(target: Target, key: str, limit: int) -> list[Decision]:
    """The newest decisions about the key, its queued entries, and its runs that have an entry of their own."""

    def is_of_key(decision: Decision) -> bool:
        rest = decision.event.key.removeprefix(key)
        return rest in _BESIDE or rest.startswith((":job:", ":beside:"))

    # A key written by hand may be a prefix of others (invoice:4 of invoice:42), whose decisions would crowd it out.
    return [decision for decision in decisions(target.store, key, limit=ALL) if is_of_key(decision)][-limit:]


def fits(key: str, pattern: str) -> bool:
    """Whether the name of the key's task matches the pattern; for an RQ function the prefix rq: is optional."""
    task = space_of(key)
    return fnmatchcase(task, pattern) or fnmatchcase(task.removeprefix("rq:"), pattern)


def _key_of_call(task: Any, words: Sequence[str]) -> str:
    guarded = getattr(task, "taskguard", None)
    if guarded is None:
        raise click.UsageError(f"{task.name} is not guarded")
    args, kwargs = [], {}
    for word in words:
        name, is_named, value = word.partition("=")
        if is_named and name.isidentifier():
            kwargs[name] = _value(value)
        else:
            args.append(_value(word))
    try:
        return str(guarded.key(*args, **kwargs))
    except TypeError as error:
        raise click.UsageError(f"{task.name} does not take these arguments: {error}") from error


def _value(word: str) -> Any:
    for read in (json.loads, ast.literal_eval):
        try:
            return read(word)
        except (ValueError, SyntaxError):
            continue
    return word


def _keys(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Keys that begin with *incomplete*, for the shell. An error gives no keys: the line is not finished."""
    try:
        if incomplete and problem_with("KEY", incomplete, ENTRY):
            return []
        target = find_target(context)
        found = (entry.key for entry in target.store.scan(incomplete) if not entry.key.startswith(INTERNAL))
        # The shell reads one key per line: a key with a line break or a control character cannot be completed.
        return [CompletionItem(key) for key in islice(filter(str.isprintable, found), 50)]
    except (TaskguardError, click.ClickException):
        return []
