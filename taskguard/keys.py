"""A call becomes a key: every spelling of one call shares it, and no other call does.

A call is bound to the function's signature, its defaults are filled in, the chosen values are written in a form that
keeps their types apart (`canonical`), and that text is hashed. The form is the digest's version 1: changing what it
says of any value changes keys that are held right now, so it gets a new version, and `KeyMaker.all` names both for
as long as old entries live.
"""

from __future__ import annotations

import difflib
import inspect
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from reprlib import Repr
from typing import Any, NamedTuple, Protocol, TypeAlias
from zlib import crc32

from taskguard.canonical import braced, canonical, name_of
from taskguard.errors import IDEMPOTENCY_KEY, ConfigurationError, KeyArgumentError
from taskguard.names import KEY, PAYLOAD, problem_with
from taskguard.signatures import read_signature

By: TypeAlias = str | Sequence[str] | Callable[..., object] | None

_EMPTY = inspect.Parameter.empty
LONGEST_SHOWN = 300
_SHORT = Repr()
"""Never fails, whatever a value's own `repr` does."""
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
LONGEST_SPACE = KEY - 40
"""Bytes; the version and a digest follow in the key."""
LONGEST_LIKENESS = (PAYLOAD - KEY) // 4
"""Characters of up to four bytes each; the task's name stands before it in a payload."""
VERSION = "1"
"""The version of the digest, as it stands in every key."""


# -- a call and its key ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class KeyMaker:
    """Makes the keys of one function, in one space; made once, when the decorator runs.

    *by* chooses what the key is made of: nothing (all arguments), a path (`"order.id"`), several, a template
    (`"{tenant}:{day}"`), or a function that is called like the task. Paths and templates leave out the parameters'
    names, so that functions which share a space can name theirs differently.
    """

    space: str
    signature: inspect.Signature
    by: By = None
    _choice: Choice = field(init=False, repr=False)
    _plain: Mapping[str, object] | None = field(init=False, repr=False)
    """The parameters and their defaults, where all can be given by place and by name, as in most signatures."""

    def __post_init__(self) -> None:
        if not self.space:
            raise ConfigurationError("a key needs a space; give the task a name, or write key_space=")
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
        form = self._choice.form(self._bind(args, kwargs))
        return f"{self.space}:{VERSION}:{_digest(form)}"

    def by_hand(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The key of the call, for somebody who looks for it: arguments that the key does not name may be left out."""
        needed = self._choice.needed
        if needed is not None:
            bound = self.signature.bind_partial(*args, **kwargs)
            bound.apply_defaults()
            if needed <= bound.arguments.keys():
                return self._key(self._choice.form(bound))
        return self(args, kwargs)

    def explicit(self, idempotency_key: str) -> str:
        """The key for a caller's own idempotency key; never that of a call."""
        if not isinstance(idempotency_key, str) or not idempotency_key:
            raise KeyArgumentError(IDEMPOTENCY_KEY, "it must be a str that is not empty")
        problem = problem_with(IDEMPOTENCY_KEY, idempotency_key, KEY)
        if problem:
            raise KeyArgumentError(IDEMPOTENCY_KEY, problem)
        return self._key(f"idempotency:{canonical(idempotency_key)}")

    def payload(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """A digest of all arguments, chosen for the key or not: it differs where two calls differ.

        Of an argument that has no stable form it holds the type alone: the caller's own key says that it is the same.
        """
        bound = self._bind(args, kwargs)
        try:
            form = _All().form(bound)
        except KeyArgumentError:
            form = braced([canonical(name) + _form_or_type(value) for name, value in bound.arguments.items()])
        return f"{VERSION}:{_digest(form)}"

    def likeness(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """A digest that two calls share only if all their arguments are the same; the same ones need not share it.

        Cheaper than `payload`, and there for any arguments: they are taken as they show themselves. Behind the digest
        of all stands a short one of each, by name: `differing` tells from two of them in what two calls differ.
        """
        shown = {name: repr(value) for name, value in self._bind(args, kwargs).arguments.items()}
        whole = "".join([f"{len(text)}:{text}" for text in shown.values()])
        # 32 bits: enough to see that two values differ, too few to find a value that is not easily guessed.
        each = [f"{name}={crc32(text.encode('utf-8', 'surrogatepass')):08x}" for name, text in shown.items()]
        told = ";".join([_digest(whole), *each])
        # A hundred parameters are told apart all together, and not one by one.
        return told if len(told) < LONGEST_LIKENESS else _digest(whole)

    def shown(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The arguments by name, as far as they are short: for people. Empty if they do not fit."""
        try:
            arguments = self._bind(args, kwargs).arguments
        except TypeError:
            return ""
        return ", ".join(f"{name}={_SHORT.repr(value)}" for name, value in arguments.items())[:LONGEST_SHOWN]

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        bound = self._bind_plainly(args, kwargs)
        if bound is None:
            bound = self.signature.bind(*args, **kwargs)
            bound.apply_defaults()
        return bound

    def _bind_plainly(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments | None:
        """What `bind` answers, at a fifth of its price; None where it is not that plain, or has something to refuse."""
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


def differing(one: str, other: str) -> tuple[str, ...]:
    """The arguments, by name, in which two calls differ; as far as what ends with their `likeness` tells."""
    if one == other or ";" not in one or ";" not in other:
        return ()
    mine, theirs = (
        dict(trait.partition("=")[::2] for trait in text.rpartition(":")[2].split(";")[1:]) for text in (one, other)
    )
    return tuple(name for name, value in mine.items() if theirs.get(name, value) != value)


def space_of(key: str) -> str:
    """The space of a key that was made here: the task's name, or its key_space; any other key as it is."""
    found = _MADE_HERE.fullmatch(key)
    return found["space"] if found else key


_MADE_HERE = re.compile(r"(?P<space>.+?):\d+:[0-9a-f]{32}(:.*)?")


def _digest(form: str) -> str:
    # Any str can be an argument, lone surrogates too. The digest keeps no secret, and FIPS builds want to hear that.
    return blake2b(form.encode("utf-8", "surrogatepass"), digest_size=16, usedforsecurity=False).hexdigest()


# -- what a key is made of ---------------------------------------------------------------------------------------


class Choice(Protocol):
    """What a key is made of, whatever way it was written."""

    @property
    def needed(self) -> frozenset[str] | None:
        """The parameters that it looks at; None for all of them."""

    def check(self, signature: inspect.Signature, /) -> None:
        """Raise ConfigurationError if calls of that signature cannot have it."""

    def form(self, bound: inspect.BoundArguments, /) -> str:
        """The chosen part of the call, in canonical form."""


def parse_key(by: By) -> Choice:
    """Read what was written as `key=`; ConfigurationError if it can be read in no way."""
    if by is None:
        return _All()
    if isinstance(by, str):
        return _parse_template(by) if "{" in by or "}" in by else _Fields((_parse_path(by, by),))
    if callable(by):
        return _Made(by)
    if isinstance(by, (tuple, list)) and by and all(isinstance(path, str) for path in by):
        return _Fields(tuple(_parse_path(path, by) for path in by))
    raise ConfigurationError(
        f"key={by!r} chooses no argument; write a parameter's name, a tuple of names, a template such as "
        '"{tenant}:{day}", or a function (lambda *args, **kwargs: "one" if all calls are the same work)'
    )


def _parse_path(text: str, by: By) -> _Path:
    if not all(text.split(".")) or not set("[]{} ").isdisjoint(text):
        raise ConfigurationError(
            f'key={by!r}: {text!r} is not a path; write a parameter\'s name, and dots for what is inside: "order.id"'
        )
    first, *rest = text.split(".")
    return _Path(text, by, first, tuple(rest))


def _parse_template(template: str) -> _Template:
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigurationError(
            f'key={template!r} is not a template ({error}); write names in braces, such as "{{tenant}}:{{day}}"'
        ) from None
    pieces: list[str | _Path] = []
    literal = ""
    for text, name, spec, conversion in parsed:
        literal += text  # what stands between two names may come in several parts
        if name is not None:
            pieces += [literal, _parse_field(template, name, spec, conversion)]
            literal = ""
    if not pieces:
        raise ConfigurationError(f'key={template!r} names no argument; write one in braces, such as "{{tenant}}"')
    return _Template((*pieces, literal))


def _parse_field(template: str, name: str, spec: str | None, conversion: str | None) -> _Path:
    if not name or name.isdigit():
        raise ConfigurationError(
            f"key={template!r}: {{{name}}} names no parameter; write its name in the braces, such as {{tenant}}"
        )
    if spec or conversion:
        raise ConfigurationError(
            f"key={template!r}: the key is made of the value itself, not of its text; write {{{name}}} alone, "
            "or give key= a function that returns what is to be compared"
        )
    return _parse_path(name, template)


_MISSING = object()


class _Path(NamedTuple):
    text: str
    by: By
    first: str
    rest: tuple[str, ...]

    def check(self, signature: inspect.Signature) -> None:
        if self.first not in signature.parameters:
            raise ConfigurationError(f"key={self.by!r} names {self.first!r}, {_way_out(self, signature)}")

    def form(self, bound: inspect.BoundArguments) -> str:
        value: object = bound.arguments[self.first]
        for part in self.rest:
            value = self._inside(value, part)
        return canonical(value, self.text)

    def _inside(self, value: Any, part: str) -> object:
        # By get(): a defaultdict would make one up, and change the caller's argument.
        found = value.get(part, _MISSING) if isinstance(value, Mapping) else getattr(value, part, _MISSING)
        if found is _MISSING:
            raise KeyArgumentError(
                self.text,
                f"a value of type {name_of(type(value))} has no {part!r}; pass one that has it with every call",
            )
        return found


def _way_out(path: _Path, signature: inspect.Signature) -> str:
    names = list(signature.parameters)
    if not names:
        return "which is not a parameter: the function has none; leave key= out"
    return f"which is not a parameter; the parameters to choose from are: {', '.join(names)}{_hint(path, signature)}"


def _hint(path: _Path, signature: inspect.Signature) -> str:
    near = difflib.get_close_matches(path.first, signature.parameters, 1)
    if near:
        return f"; did you mean {near[0]!r}?"
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            return f"; write '{parameter.name}.{path.text}' for what arrives in **{parameter.name}"
    return ""


class _All:
    needed = None

    def check(self, signature: inspect.Signature) -> None:
        """All arguments are there in any call."""

    def form(self, bound: inspect.BoundArguments) -> str:
        return braced([canonical(name) + canonical(value, name) for name, value in bound.arguments.items()])


class _Fields(NamedTuple):
    paths: tuple[_Path, ...]

    @property
    def needed(self) -> frozenset[str]:
        return frozenset(path.first for path in self.paths)

    def check(self, signature: inspect.Signature) -> None:
        for path in self.paths:
            path.check(signature)

    def form(self, bound: inspect.BoundArguments) -> str:
        return f"[{''.join([path.form(bound) for path in self.paths])}]"


class _Template(NamedTuple):
    pieces: tuple[str | _Path, ...]

    @property
    def needed(self) -> frozenset[str]:
        return frozenset(piece.first for piece in self.pieces if isinstance(piece, _Path))

    def check(self, signature: inspect.Signature) -> None:
        for piece in self.pieces:
            if isinstance(piece, _Path):
                piece.check(signature)

    def form(self, bound: inspect.BoundArguments) -> str:
        # Piece by piece and not filled in: ("a:b", "c") and ("a", "b:c") would be one text.
        forms = [canonical(piece) if isinstance(piece, str) else piece.form(bound) for piece in self.pieces]
        return f"template:[{''.join(forms)}]"


class _Made:
    needed = None

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function

    def check(self, signature: inspect.Signature) -> None:
        try:
            own = read_signature(self.function)
        except (TypeError, ValueError):
            return
        kinds = {parameter.kind for parameter in signature.parameters.values()}
        variable = inspect.Parameter.VAR_POSITIONAL in kinds or inspect.Parameter.VAR_KEYWORD in kinds
        args, kwargs = _sample(signature)
        try:
            # What a task with *args or **kwargs is called with is not known yet; it may fill the rest.
            own.bind_partial(*args, **kwargs) if variable else own.bind(*args, **kwargs)
        except TypeError as error:
            raise ConfigurationError(
                f"the function given as key= is called like the task and cannot be ({error}): it takes {own} and the "
                f"task takes {_bare(signature)}; write it with the task's parameters"
            ) from None

    def form(self, bound: inspect.BoundArguments) -> str:
        try:
            value = self.function(*bound.args, **bound.kwargs)
        except TypeError as error:  # which would look like arguments that do not fit the task
            raise KeyArgumentError("key()", f"the function given as key= raised {error!r}") from error
        return canonical(value, "key()")


def _sample(signature: inspect.Signature) -> tuple[list[str], dict[str, str]]:
    """Arguments for every fixed parameter, spelled as a bound call spells them."""
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    args = [name for name, parameter in signature.parameters.items() if parameter.kind in places]
    named = {n: n for n, parameter in signature.parameters.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY}
    return args, named


def _bare(signature: inspect.Signature) -> inspect.Signature:
    empty = inspect.Signature.empty
    parameters = [parameter.replace(annotation=empty) for parameter in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=empty)
