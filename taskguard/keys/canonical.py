"""The canonical form of a value: one text per value, including its type.

Every form starts with a word or bracket of its own kind and marks its own end, so forms can be concatenated: two values
that differ, in type or in content, never have the same text.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from math import isfinite
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, TypeAlias
from uuid import UUID

from taskguard.errors import KeyArgumentError

DEEPEST = 64
"""How deep a value may be nested. The limit also stops at a value that contains itself."""


def canonical(value: object, argument: str = "value") -> str:
    """One text per value: equal for equal values of one type, different for all others.

    A tuple has the form of a list and a frozenset that of a set, since queues turn one into the other; a bytearray has
    the form of bytes. Raises KeyArgumentError, with the path inside *argument*, for a value without a stable form.
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
    raise _RefusedError(f"a value of type {name_of(cls)} has no stable form")


def name_of(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _none(value: None, depth: int) -> str:
    return "none;"


def _bool(value: bool, depth: int) -> str:
    return "true;" if value else "false;"


def _int(value: int, depth: int) -> str:
    # In hex: Python refuses to format very long ints in decimal. By the base class: a subclass may format differently.
    return f"int:{int.__format__(value, 'x')};"


def _float(value: float, depth: int) -> str:
    if not isfinite(value):
        raise _RefusedError(f"the float {float.__repr__(value)} cannot be compared")
    return f"float:{float.__add__(value, 0.0)!r};"  # -0.0 + 0.0 is 0.0


def _str(value: str, depth: int = 0) -> str:
    plain = str.__str__(value)
    return f"str:{len(plain)}:{plain}"


def _bytes(value: bytes | bytearray, depth: int) -> str:
    return f"bytes:{value.hex()};"


def _decimal(value: Decimal, depth: int) -> str:
    # By hand: normalize() rounds to the precision of the thread's context.
    if not value.is_finite():
        raise _RefusedError(f"the Decimal {value} cannot be compared")
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
        # Python would call noon in Rome and noon in New York equal.
        raise _RefusedError("a time whose zone needs a date to know its offset cannot be compared")
    return f"time:{_clock(value)};" if offset is None else f"awaretime:{_clock(value) - _micros(offset)};"


def _timedelta(value: timedelta, depth: int) -> str:
    _refuse_rounding(value, "nanoseconds")
    return f"timedelta:{_micros(value)};"


_DAY = 86_400_000_000


def _clock(value: datetime | time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _micros(value: timedelta) -> int:
    # By the base class: subclasses may count days and seconds differently.
    return timedelta.__floordiv__(value, timedelta(microseconds=1))


def _refuse_rounding(value: object, attribute: str) -> None:
    # Some subclasses (pandas) are finer than their base, and two of their values would get the same form.
    if getattr(value, attribute, 0):
        raise _RefusedError(f"a value of type {name_of(type(value))} is finer than a microsecond")


def _enum(value: Enum, depth: int) -> str:
    return f"enum:{_str(name_of(type(value)))}{_str(value._name_)}"


def _flag(value: Flag, depth: int) -> str:
    # By value: whether several flags together have a name depends on the version of Python.
    return f"flag:{_str(name_of(type(value)))}{_form(value._value_, depth)}"


def _list(value: Sequence[object], depth: int) -> str:
    return f"[{''.join(_forms(enumerate(value), '[{}]'.format, depth))}]"


def _set(value: Iterable[object], depth: int) -> str:
    return f"<{''.join(sorted(_forms(enumerate(value), _in_a_set, depth)))}>"


def _dict(value: Mapping[object, object], depth: int) -> str:
    keys = _forms(enumerate(value), _among_keys, depth)
    values = _forms(value.items(), _at_key, depth)
    return braced([key + item for key, item in zip(keys, values, strict=True)])


def _dataclass(value: Any, depth: int) -> str:
    # As == does: a field with compare=False is not part of the value.
    names = [field.name for field in dataclasses.fields(value) if field.compare]
    return _object(value, {name: getattr(value, name) for name in names if hasattr(value, name)}, depth)


def _pydantic(value: Any, depth: int) -> str:
    known = {name: item for name, item in value.__dict__.items() if name in type(value).model_fields}
    return _object(value, known | (value.__pydantic_extra__ or {}), depth)


def _pydantic_1(value: Any, depth: int) -> str:
    return _object(value, {name: item for name, item in value.__dict__.items() if not name.startswith("_")}, depth)


def _object(value: object, fields: Mapping[str, object], depth: int) -> str:
    values = _forms(fields.items(), ".{}".format, depth)
    return f"object:{_str(name_of(type(value)))}{braced([_str(n) + v for n, v in zip(fields, values, strict=True)])}"


def braced(pairs: list[str]) -> str:
    return f"{{{''.join(sorted(pairs))}}}"


def _forms(items: Iterable[tuple[Any, object]], step: Callable[[Any], str], depth: int) -> list[str]:
    """The form of each item, given with its place; if one is refused, *step* turns the place into a path segment."""
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


# Looked up by the exact type first, then along the base classes: bool comes before int and datetime before date.
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
