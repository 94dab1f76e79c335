"""Which parameters a caller fills, and which one receives the fence."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import UnionType
from typing import Union, get_args, get_origin
from weakref import WeakKeyDictionary

from taskguard.errors import ConfigurationError

if sys.version_info >= (3, 14):
    from annotationlib import Format

    # Annotations are evaluated when read, which fails for a name that is imported only for type checkers.
    read_signature = partial(inspect.signature, annotation_format=Format.FORWARDREF)
else:
    read_signature = inspect.signature


def signature_of(
    function: Callable[..., object], *, skip: Sequence[str] = ("fence",), bound: bool = False
) -> inspect.Signature:
    """The parameters that a caller fills: without the fence, those named in *skip*, and a *bound* task's first one."""
    try:
        signature = read_signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"cannot read the parameters of {function!r} ({error}); wrap it in a plain function"
        ) from None
    parameters = list(signature.parameters.values())
    if bound:
        parameters = _without_first(function, parameters)
    return signature.replace(parameters=[p for p in parameters if p.name not in skip and not takes_fence(p)])


_found: WeakKeyDictionary[Callable[..., object], str | None] = WeakKeyDictionary()
"""A cache for functions that are still in use."""


def fence_parameter(function: Callable[..., object]) -> str | None:
    """The name of the parameter that receives the fence: the one annotated `Fence`, else the one named `fence`."""
    function = getattr(function, "__func__", function)  # a bound method is a new object at each access
    try:
        return _found[function]
    except (KeyError, TypeError):  # some callables have no weak references, or no hash
        name = _fence_parameter(function)
    with suppress(TypeError):
        _found[function] = name
    return name


def _fence_parameter(function: Callable[..., object]) -> str | None:
    try:
        parameters = read_signature(function).parameters
    except (TypeError, ValueError):
        return None  # some built-in functions; none of them takes a fence
    annotated = (name for name, parameter in parameters.items() if takes_fence(parameter))
    return next(annotated, "fence" if "fence" in parameters else None)


def takes_fence(parameter: inspect.Parameter) -> bool:
    """Whether the parameter is annotated `Fence`, as a class, as text or in a union with something else."""
    annotation = parameter.annotation
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return any(_names_fence(member) for member in members)


def _names_fence(annotation: object) -> bool:
    # By name, not by the class itself: this module must not import the one that defines it.
    text = getattr(annotation, "__forward_arg__", annotation)
    if isinstance(text, str):
        return any(part.strip("'\" ").rpartition(".")[2] == "Fence" for part in text.split("|"))
    return isinstance(annotation, type) and annotation.__name__ == "Fence"


def _without_first(function: Callable[..., object], parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    if not parameters:
        raise ConfigurationError(f"{function!r} is bound but has no parameters; write self as its first one")
    # *args receives the task itself along with the rest, as with any method.
    return parameters if parameters[0].kind is inspect.Parameter.VAR_POSITIONAL else parameters[1:]


def runs_later(function: Callable[..., object]) -> bool:
    """Whether a call of *function* returns before its body has run."""
    is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    return is_generator or inspect.iscoroutinefunction(function)
