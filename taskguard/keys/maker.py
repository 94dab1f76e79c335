"""Make the key of a call: every spelling of one call has the same key, and no other call has it.

`KeyMaker` binds a call to the function's signature, fills in the defaults, writes the chosen values in a form that
keeps types apart (`canonical`), and hashes that text. This form is the digest's version 1. A change to the form of any
value changes keys that are held right now, so such a change needs a new version.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any
from zlib import crc32

from taskguard.errors import IDEMPOTENCY_KEY, ConfigurationError, KeyArgumentError
from taskguard.keys.canonical import braced, canonical, name_of
from taskguard.keys.choice import AllArguments, By, Choice, label_of, parse_key, value_shown
from taskguard.protocol.names import KEY, PAYLOAD, problem_with

_EMPTY = inspect.Parameter.empty
LONGEST_SHOWN = 300
LONGEST_SPACE = KEY - 40
"""Bytes. In the key, the version and a digest follow."""
LONGEST_LIKENESS = (PAYLOAD - KEY) // 4
"""Characters of up to four bytes each. In a payload, the task's name precedes it."""
VERSION = "1"
"""The version of the digest, part of every key."""


@dataclass(frozen=True, eq=False)
class KeyMaker:
    """Makes the keys of one function, in one space; created once, when the decorator runs.

    *by* chooses what the key is made of: None (all arguments), a path (`"order.id"`), several paths, a template
    (`"{tenant}:{day}"`), or a function with the task's parameters. Paths and templates leave out the parameters'
    names, so functions which share a space can name their parameters differently.
    """

    space: str
    signature: inspect.Signature
    by: By = None
    _choice: Choice = field(init=False, repr=False)
    _plain: Mapping[str, object] | None = field(init=False, repr=False)
    """The parameters and their defaults, if all can be passed by position and by name, as in most signatures."""

    def __post_init__(self) -> None:
        if not self.space:
            raise ConfigurationError("a key needs a key space; give the task a name, or write key_space=")
        problem = problem_with("key_space (or the task's name)", self.space, LONGEST_SPACE)
        if problem:
            raise ConfigurationError(problem)
        choice = parse_key(self.by)
        choice.check(self.signature)
        object.__setattr__(self, "_choice", choice)
        parameters = self.signature.parameters.values()
        is_plain = all(parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
        plain = {parameter.name: parameter.default for parameter in parameters} if is_plain else None
        object.__setattr__(self, "_plain", plain)

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The key of the call. Raises TypeError, as the call itself would, if the arguments do not fit."""
        return self.labelled(args, kwargs)[0]

    def labelled(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, str]:
        """The key of the call, and its readable form: the chosen arguments; empty if all arguments are chosen."""
        form, label = self._choice.form(self._bind(args, kwargs))
        return f"{self.space}:{VERSION}:{_digest(form)}", label

    def by_hand(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The key of the call, for a lookup by hand: arguments that the key does not use may be left out."""
        needed = self._choice.needed
        if needed is not None:
            bound = self.signature.bind_partial(*args, **kwargs)
            bound.apply_defaults()
            if needed <= bound.arguments.keys():
                return self._key(self._choice.form(bound)[0])
        return self(args, kwargs)

    def explicit(self, idempotency_key: str) -> str:
        """The key for a caller's own idempotency key; never equal to the key of a call."""
        if not isinstance(idempotency_key, str) or not idempotency_key:
            raise KeyArgumentError(IDEMPOTENCY_KEY, "it must be a non-empty string")
        problem = problem_with(IDEMPOTENCY_KEY, idempotency_key, KEY)
        if problem:
            raise KeyArgumentError(IDEMPOTENCY_KEY, problem)
        return self._key(f"idempotency:{canonical(idempotency_key)}")

    def labelled_by(self, idempotency_key: str) -> tuple[str, str]:
        """The same, and its readable form."""
        return self.explicit(idempotency_key), label_of(f"{IDEMPOTENCY_KEY}={value_shown(idempotency_key)}")

    def payload(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """A digest of all arguments, chosen for the key or not: it differs if two calls differ.

        For an argument without a stable form it covers only the type: the caller's own key says that it is the same.
        """
        bound = self._bind(args, kwargs)
        try:
            form, _ = AllArguments().form(bound)
        except KeyArgumentError:
            form = braced([canonical(name) + _form_or_type(value) for name, value in bound.arguments.items()])
        return f"{VERSION}:{_digest(form)}"

    def likeness(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """A digest that two calls share only if all their arguments are equal; equal calls need not share it.

        Cheaper than `payload`, and defined for any arguments, since it uses their `repr`. The digest of all arguments
        is followed by a short one of each, by name: from two likenesses `differing` finds where two calls differ.
        """
        shown = {name: repr(value) for name, value in self._bind(args, kwargs).arguments.items()}
        whole = "".join([f"{len(text)}:{text}" for text in shown.values()])
        # 32 bits: enough to see that two values differ, too few to find a value that is not easily guessed.
        each = [f"{name}={crc32(text.encode('utf-8', 'surrogatepass')):08x}" for name, text in shown.items()]
        likeness = ";".join([_digest(whole), *each])
        # With a hundred parameters there is room for the digest of all, but not for one per parameter.
        return likeness if len(likeness) < LONGEST_LIKENESS else _digest(whole)

    def shown(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The arguments by name, shortened, for people. Empty if they do not fit the signature."""
        try:
            arguments = self._bind(args, kwargs).arguments
        except TypeError:
            return ""
        return ", ".join(f"{name}={value_shown(value)}" for name, value in arguments.items())[:LONGEST_SHOWN]

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        bound = self._bind_plainly(args, kwargs)
        if bound is None:
            bound = self.signature.bind(*args, **kwargs)
            bound.apply_defaults()
        return bound

    def _bind_plainly(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments | None:
        """What `bind` returns, at a fifth of its cost; None if the signature is not plain or `bind` may refuse."""
        if self._plain is None or len(args) > len(self._plain):
            return None
        arguments = dict(self._plain)
        arguments.update(zip(arguments, args, strict=False))
        by_name = len(arguments) - len(args)
        if kwargs:
            given = list(self._plain)[: len(args)]
            if not kwargs.keys() <= arguments.keys() or not kwargs.keys().isdisjoint(given):
                return None
            arguments.update(kwargs)
        if by_name and any(value is _EMPTY for value in arguments.values()):
            return None
        return inspect.BoundArguments(self.signature, arguments)

    def _key(self, form: str) -> str:
        return f"{self.space}:{VERSION}:{_digest(form)}"


def _form_or_type(value: object) -> str:
    try:
        return canonical(value)
    except KeyArgumentError:
        return f"type:{name_of(type(value))};"


def is_of_another_call(mine: str, theirs: str) -> bool:
    """Whether two payloads under one idempotency key belong to different calls.

    Earlier releases did not name the function in RQ payloads. If only one of two payloads names it, the arguments
    decide, as they did then.
    """
    if mine == theirs:
        return False
    short, long = sorted((mine, theirs), key=len)
    names_none = ":" not in short.removeprefix(f"{VERSION}:")
    return not (names_none and long.endswith(f":{short}"))


def differing(one: str, other: str) -> tuple[str, ...]:
    """The names of the arguments in which two calls differ, as far as the `likeness` in their payloads shows."""
    if one == other or ";" not in one or ";" not in other:
        return ()
    mine, theirs = (
        dict(trait.partition("=")[::2] for trait in text.rpartition(":")[2].split(";")[1:]) for text in (one, other)
    )
    return tuple(name for name, value in mine.items() if theirs.get(name, value) != value)


def space_of(key: str) -> str:
    """The space of a key that a `KeyMaker` made (the task's name, or its key_space); any other key unchanged."""
    found = _MADE_HERE.fullmatch(key)
    return found["space"] if found else key


_MADE_HERE = re.compile(r"(?P<space>.+?):\d+:[0-9a-f]{32}(:.*)?")


def _digest(form: str) -> str:
    # Any str can be an argument, lone surrogates too. FIPS builds require that a digest is declared not for security.
    return blake2b(form.encode("utf-8", "surrogatepass"), digest_size=16, usedforsecurity=False).hexdigest()
