"""A call becomes a key: every spelling of one call shares it, and no other call does.

A call is bound to the function's signature, its defaults are filled in, the chosen values are written in a form that
keeps their types apart (`canonical`), and that text is hashed. The form is the digest's version 1: changing what it
says of any value changes keys that are held right now, so it gets a new version, and `KeyMaker.all` names both for
as long as old entries live.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import reprlib
import string
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from functools import partial
from hashlib import blake2b
from math import isfinite
from pathlib import PurePosixPath, PureWindowsPath
from types import UnionType
from typing import Any, Protocol, TypeAlias, Union, get_args, get_origin
from uuid import UUID

from taskguard.errors import ConfigurationError, KeyArgumentError

By: TypeAlias = str | Sequence[str] | Callable[..., object] | None

VERSION = "1"
"""The version of the digest, as it stands in every key."""
DEEPEST = 64
"""How deep a value may be nested. It also ends a value that contains itself."""


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

    def __post_init__(self) -> None:
        if not self.space:
            raise ConfigurationError("a key needs a space; give the task a name, or write key_space=")
        choice = parse_key(self.by)
        choice.check(self.signature)
        object.__setattr__(self, "_choice", choice)

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The key of the call. Raises TypeError, as the call itself would, if the arguments do not fit."""
        return self._key(self._choice.form(self._bind(args, kwargs)))

    def all(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
        """Every key the call may be held under, the newest digest first."""
        return (self(args, kwargs),)

    def explicit(self, idempotency_key: str) -> str:
        """The key for a caller's own idempotency key; never that of a call."""
        if not isinstance(idempotency_key, str) or not idempotency_key:
            raise KeyArgumentError("idempotency_key", "it must be a str that is not empty")
        return self._key(f"idempotency:{_str(idempotency_key)}")

    def payload(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """A digest of all arguments, chosen for the key or not: it differs where two calls differ."""
        return f"{VERSION}:{_digest(_All().form(self._bind(args, kwargs)))}"

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound

    def _key(self, form: str) -> str:
        return f"{self.space}:{VERSION}:{_digest(form)}"


def _digest(form: str) -> str:
    # Any str can be an argument, lone surrogates too. The digest keeps no secret, and FIPS builds want to hear that.
    return blake2b(form.encode("utf-8", "surrogatepass"), digest_size=16, usedforsecurity=False).hexdigest()


# -- the signature of a task -------------------------------------------------------------------------------------

if sys.version_info >= (3, 14):
    from annotationlib import Format

    # Annotations are evaluated when read, and one that is imported for type checkers alone cannot be.
    _read_signature = partial(inspect.signature, annotation_format=Format.FORWARDREF)
else:
    _read_signature = inspect.signature


def signature_of(
    function: Callable[..., object], *, skip: Sequence[str] = ("fence",), bound: bool = False
) -> inspect.Signature:
    """The parameters that a caller fills: without the fence, those named in *skip*, and a *bound* task's first one."""
    try:
        signature = _read_signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the parameters of {function!r} cannot be read ({error}); wrap it in a plain function"
        ) from None
    parameters = list(signature.parameters.values())
    if bound:
        parameters = _without_first(function, parameters)
    return signature.replace(parameters=[p for p in parameters if p.name not in skip and not takes_fence(p)])


def fence_parameter(function: Callable[..., object]) -> str | None:
    """The name of the parameter that is given the fence: the one annotated `Fence`, else the one named `fence`."""
    try:
        parameters = _read_signature(function).parameters
    except (TypeError, ValueError):
        return None  # some built-in functions; none of them wants a fence
    annotated = (name for name, parameter in parameters.items() if takes_fence(parameter))
    return next(annotated, "fence" if "fence" in parameters else None)


def takes_fence(parameter: inspect.Parameter) -> bool:
    """Whether the parameter is annotated `Fence`, as a class, as text or in a union with something else."""
    annotation = parameter.annotation
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return any(_names_fence(member) for member in members)


def _names_fence(annotation: object) -> bool:
    # Not compared with the class itself: this module is below the one that has it.
    text = getattr(annotation, "__forward_arg__", annotation)
    if isinstance(text, str):
        return any(part.strip("'\" ").rpartition(".")[2] == "Fence" for part in text.split("|"))
    return isinstance(annotation, type) and annotation.__name__ == "Fence"


def _without_first(function: Callable[..., object], parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    if not parameters:
        raise ConfigurationError(f"{function!r} is bound and takes no parameter; write self as its first one")
    # *args takes the task itself along with the rest, as with any method.
    return parameters if parameters[0].kind is inspect.Parameter.VAR_POSITIONAL else parameters[1:]


# -- what a key is made of ---------------------------------------------------------------------------------------


class Choice(Protocol):
    """What a key is made of, whatever way it was written."""

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


@dataclass(frozen=True)
class _Path:
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
                self.text, f"a value of type {_name(type(value))} has no {part!r}; pass one that has it with every call"
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
    def check(self, signature: inspect.Signature) -> None:
        """All arguments are there in any call."""

    def form(self, bound: inspect.BoundArguments) -> str:
        return _braced([_str(name) + canonical(value, name) for name, value in bound.arguments.items()])


@dataclass(frozen=True)
class _Fields:
    paths: tuple[_Path, ...]

    def check(self, signature: inspect.Signature) -> None:
        for path in self.paths:
            path.check(signature)

    def form(self, bound: inspect.BoundArguments) -> str:
        return f"[{''.join([path.form(bound) for path in self.paths])}]"


@dataclass(frozen=True)
class _Template:
    pieces: tuple[str | _Path, ...]

    def check(self, signature: inspect.Signature) -> None:
        for piece in self.pieces:
            if isinstance(piece, _Path):
                piece.check(signature)

    def form(self, bound: inspect.BoundArguments) -> str:
        # Piece by piece and not filled in: ("a:b", "c") and ("a", "b:c") would be one text.
        forms = [_str(piece) if isinstance(piece, str) else piece.form(bound) for piece in self.pieces]
        return f"template:[{''.join(forms)}]"


@dataclass(frozen=True)
class _Made:
    function: Callable[..., object]

    def check(self, signature: inspect.Signature) -> None:
        try:
            own = _read_signature(self.function)
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
        return canonical(self.function(*bound.args, **bound.kwargs), "key()")


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


# -- the canonical form of a value -------------------------------------------------------------------------------
#
# Every form starts with a word or a bracket of its own kind and says itself where it ends, so forms can be strung
# together: no two values that differ, in type or in content, have one text.


def canonical(value: object, argument: str = "value") -> str:
    """One text per value: equal for equal values of one type, different for all others.

    A tuple is as a list and a frozenset as a set, since queues turn one into the other; a bytearray is as bytes.
    Raises KeyArgumentError, with the place inside *argument*, for what has no stable form.
    """
    try:
        return _form(value, 0)
    except _RefusedError as refused:
        raise KeyArgumentError(argument + refused.place, refused.problem) from None


class _RefusedError(Exception):
    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.steps: list[str] = []

    @property
    def place(self) -> str:
        outermost_first = self.steps[::-1]
        return "".join(outermost_first[:8]) + ("..." if len(outermost_first) > 8 else "")


_Encoder: TypeAlias = Callable[[Any, int], str]


def _form(value: object, depth: int) -> str:
    cls = type(value)
    encoder = _ENCODERS.get(cls) or _encoder_of(cls)
    return encoder(value, depth)


def _encoder_of(cls: type) -> _Encoder:
    if issubclass(cls, Enum):
        return _flag if issubclass(cls, Flag) else _enum
    if hasattr(cls, "__dataclass_fields__"):
        return _dataclass
    if hasattr(cls, "__pydantic_fields_set__"):
        return _pydantic
    if hasattr(cls, "__fields_set__") and hasattr(cls, "__validators__"):
        return _pydantic_1
    for base in cls.__mro__:
        if base in _ENCODERS:
            return _ENCODERS[base]
    raise _RefusedError(f"a value of type {_name(cls)} has no stable form")


def _name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _none(value: None, depth: int) -> str:
    return "none;"


def _bool(value: bool, depth: int) -> str:
    return "true;" if value else "false;"


def _int(value: int, depth: int) -> str:
    # In hex: Python refuses to write very long ints in decimal. By the base class: a subclass may write itself else.
    return f"int:{int.__format__(value, 'x')};"


def _float(value: float, depth: int) -> str:
    if not isfinite(value):
        raise _RefusedError(f"the float {float.__repr__(value)} is no value to compare")
    return f"float:{float.__add__(value, 0.0)!r};"  # -0.0 + 0.0 is 0.0


def _str(value: str, depth: int = 0) -> str:
    plain = str.__str__(value)
    return f"str:{len(plain)}:{plain}"


def _bytes(value: bytes | bytearray, depth: int) -> str:
    return f"bytes:{value.hex()};"


def _decimal(value: Decimal, depth: int) -> str:
    # By hand: normalize() rounds to the precision of the thread's context.
    if not value.is_finite():
        raise _RefusedError(f"the Decimal {value} is no value to compare")
    sign, digits, exponent = value.as_tuple()
    written = "".join(map(str, digits))
    shortest = written.rstrip("0")
    if not shortest:
        return "decimal:0;"
    return f"decimal:{'-' if sign else ''}{shortest}e{int(exponent) + len(written) - len(shortest)};"


def _uuid(value: UUID, depth: int) -> str:
    return f"uuid:{value.hex};"


def _posix_path(value: PurePosixPath, depth: int) -> str:
    return f"path:[{''.join(map(_str, value.parts))}]"


def _windows_path(value: PureWindowsPath, depth: int) -> str:
    return f"winpath:[{''.join([_str(part.lower()) for part in value.parts])}]"


def _date(value: date, depth: int) -> str:
    return f"date:{value.toordinal()};"


def _datetime(value: datetime, depth: int) -> str:
    _refuse_rounding(value, "nanosecond")
    local = value.toordinal() * _DAY + _clock(value)
    offset = value.utcoffset()
    # Not astimezone(): that fails for aware times near the ends of the calendar.
    return f"naive:{local};" if offset is None else f"aware:{local - _micros(offset)};"


def _time(value: time, depth: int) -> str:
    offset = value.utcoffset()
    if offset is None and value.tzinfo is not None:
        # Python calls noon in Rome and noon in New York equal then.
        raise _RefusedError("a time whose zone needs a date to know its offset is no value to compare")
    return f"time:{_clock(value)};" if offset is None else f"awaretime:{_clock(value) - _micros(offset)};"


def _timedelta(value: timedelta, depth: int) -> str:
    _refuse_rounding(value, "nanoseconds")
    return f"timedelta:{_micros(value)};"


_DAY = 86_400_000_000


def _clock(value: datetime | time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _micros(value: timedelta) -> int:
    # By the base class: subclasses count their days and seconds in ways of their own.
    return timedelta.__floordiv__(value, timedelta(microseconds=1))


def _refuse_rounding(value: object, attribute: str) -> None:
    # Subclasses elsewhere (pandas) are finer than their base, and two of their values would become one.
    if getattr(value, attribute, 0):
        raise _RefusedError(f"a value of type {_name(type(value))} is finer than a microsecond")


def _enum(value: Enum, depth: int) -> str:
    return f"enum:{_str(_name(type(value)))}{_str(value._name_)}"


def _flag(value: Flag, depth: int) -> str:
    # By value: whether several flags together have a name depends on the version of Python.
    return f"flag:{_str(_name(type(value)))}{_form(value._value_, depth)}"


def _list(value: Sequence[object], depth: int) -> str:
    return f"[{''.join(_forms(enumerate(value), '[{}]'.format, depth))}]"


def _set(value: Iterable[object], depth: int) -> str:
    return f"<{''.join(sorted(_forms(enumerate(value), _in_a_set, depth)))}>"


def _dict(value: Mapping[object, object], depth: int) -> str:
    keys = _forms(enumerate(value), _among_keys, depth)
    values = _forms(value.items(), _at_key, depth)
    return _braced([key + item for key, item in zip(keys, values, strict=True)])


def _dataclass(value: Any, depth: int) -> str:
    # As == does: a field with compare=False says nothing about which value this is.
    names = [field.name for field in dataclasses.fields(value) if field.compare]
    return _object(value, {name: getattr(value, name) for name in names if hasattr(value, name)}, depth)


def _pydantic(value: Any, depth: int) -> str:
    known = {name: item for name, item in value.__dict__.items() if name in type(value).model_fields}
    return _object(value, known | (value.__pydantic_extra__ or {}), depth)


def _pydantic_1(value: Any, depth: int) -> str:
    return _object(value, {name: item for name, item in value.__dict__.items() if not name.startswith("_")}, depth)


def _object(value: object, fields: Mapping[str, object], depth: int) -> str:
    values = _forms(fields.items(), ".{}".format, depth)
    return f"object:{_str(_name(type(value)))}{_braced([_str(n) + v for n, v in zip(fields, values, strict=True)])}"


def _braced(pairs: list[str]) -> str:
    return f"{{{''.join(sorted(pairs))}}}"


def _forms(items: Iterable[tuple[Any, object]], step: Callable[[Any], str], depth: int) -> list[str]:
    """The form of each item, given with its place; if one is refused, *step* of the place tells where it was."""
    if depth >= DEEPEST:
        raise _RefusedError(f"it is nested more than {DEEPEST} levels deep, or contains itself")
    forms = []
    for place, item in items:
        try:
            forms.append(_form(item, depth + 1))
        except _RefusedError as refused:
            refused.steps.append(step(place))
            raise
    return forms


def _at_key(key: object) -> str:
    return f"[{reprlib.repr(key)}]"


def _among_keys(_: int) -> str:
    return ".keys()"


def _in_a_set(_: int) -> str:
    return "{...}"


# Looked up by the exact type first, then along the base classes: bool stands before int and datetime before date.
_ENCODERS: dict[type, _Encoder] = {
    type(None): _none,
    bool: _bool,
    int: _int,
    float: _float,
    str: _str,
    bytes: _bytes,
    bytearray: _bytes,
    Decimal: _decimal,
    UUID: _uuid,
    PurePosixPath: _posix_path,
    PureWindowsPath: _windows_path,
    date: _date,
    datetime: _datetime,
    time: _time,
    timedelta: _timedelta,
    list: _list,
    tuple: _list,
    set: _set,
    frozenset: _set,
    dict: _dict,
}
