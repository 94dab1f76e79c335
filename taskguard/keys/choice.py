"""What a key is made of: all arguments, some of them, a template, or the result of a function."""

from __future__ import annotations

import difflib
import inspect
import string
from collections.abc import Callable, Mapping, Sequence
from reprlib import Repr
from typing import Any, NamedTuple, Protocol, TypeAlias

from taskguard.errors import ConfigurationError, KeyArgumentError
from taskguard.keys.canonical import braced, canonical, name_of
from taskguard.keys.signatures import read_signature

By: TypeAlias = str | Sequence[str] | Callable[..., object] | None


LONGEST_LABEL = 120
"""The most characters in the readable form of a key."""
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


def value_shown(value: object) -> str:
    """The readable form of one value."""
    try:
        return _SHORT.repr(value)
    except Exception:  # reprlib goes by the name of a class, and an int may be too long: a label must not fail a call
        return f"<{type(value).__name__}>"


def label_of(text: str) -> str:
    """The text on one line, cut to the length of a label."""
    if not (text.isascii() and text.isprintable()):
        text = "".join([letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text])
    return text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 1]}…"


class Choice(Protocol):
    """What a key is made of, however key= was written."""

    @property
    def needed(self) -> frozenset[str] | None:
        """The parameters that it reads; None for all of them."""

    def check(self, signature: inspect.Signature, /) -> None:
        """Raise ConfigurationError if the signature lacks a parameter that it reads."""

    def form(self, bound: inspect.BoundArguments, /) -> tuple[str, str]:
        """The chosen part of the call in canonical form, and its readable form (empty if that is the whole call)."""


def parse_key(by: By) -> Choice:
    """Parse the value of `key=`; raise ConfigurationError if it is not valid."""
    if by is None:
        return AllArguments()
    if isinstance(by, str):
        return _parse_template(by) if "{" in by or "}" in by else _Fields((_parse_path(by, by),))
    if callable(by):
        return _Made(by)
    if isinstance(by, (tuple, list)) and by and all(isinstance(path, str) for path in by):
        return _Fields(tuple(_parse_path(path, by) for path in by))
    raise ConfigurationError(
        f"key={by!r} does not choose an argument; write a parameter's name, a tuple of names, a template such as "
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
        literal += text  # the text between two names may come in several parts
        if name is not None:
            pieces += [literal, _parse_field(template, name, spec, conversion)]
            literal = ""
    if not pieces:
        raise ConfigurationError(
            f'key={template!r} does not name an argument; write one in braces, such as "{{tenant}}"'
        )
    return _Template((*pieces, literal))


def _parse_field(template: str, name: str, spec: str | None, conversion: str | None) -> _Path:
    if not name or name.isdigit():
        raise ConfigurationError(
            f"key={template!r}: {{{name}}} does not name a parameter; write its name in the braces, such as {{tenant}}"
        )
    if spec or conversion:
        raise ConfigurationError(
            f"key={template!r}: the key uses the value itself, not its formatted text; write {{{name}}} alone, "
            "or give key= a function that returns the value to compare"
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

    def form(self, bound: inspect.BoundArguments) -> tuple[str, object]:
        """The value in canonical form, and the value."""
        value: object = bound.arguments[self.first]
        for part in self.rest:
            value = self._inside(value, part)
        return canonical(value, self.text), value

    def _inside(self, value: Any, part: str) -> object:
        # By get(): a defaultdict would insert a value and change the caller's argument.
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


class AllArguments:
    needed = None

    def check(self, signature: inspect.Signature) -> None:
        """All arguments are there in any call."""

    def form(self, bound: inspect.BoundArguments) -> tuple[str, str]:
        return braced([canonical(name) + canonical(value, name) for name, value in bound.arguments.items()]), ""


class _Fields(NamedTuple):
    paths: tuple[_Path, ...]

    @property
    def needed(self) -> frozenset[str]:
        return frozenset(path.first for path in self.paths)

    def check(self, signature: inspect.Signature) -> None:
        for path in self.paths:
            path.check(signature)

    def form(self, bound: inspect.BoundArguments) -> tuple[str, str]:
        forms, shown = "", []
        for path in self.paths:
            form, value = path.form(bound)
            forms += form
            shown.append(f"{path.text}={value_shown(value)}")
        return f"[{forms}]", label_of(" ".join(shown))


class _Template(NamedTuple):
    pieces: tuple[str | _Path, ...]

    @property
    def needed(self) -> frozenset[str]:
        return frozenset(piece.first for piece in self.pieces if isinstance(piece, _Path))

    def check(self, signature: inspect.Signature) -> None:
        for piece in self.pieces:
            if isinstance(piece, _Path):
                piece.check(signature)

    def form(self, bound: inspect.BoundArguments) -> tuple[str, str]:
        # Piece by piece, not as one formatted text: ("a:b", "c") and ("a", "b:c") would be equal.
        forms, shown = "", ""
        for piece in self.pieces:
            form, value = (canonical(piece), piece) if isinstance(piece, str) else piece.form(bound)
            forms += form
            shown += value if isinstance(value, str) else value_shown(value)
        return f"template:[{forms}]", label_of(shown)


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
            # A task with *args or **kwargs may receive more arguments, which may fill the rest.
            own.bind_partial(*args, **kwargs) if variable else own.bind(*args, **kwargs)
        except TypeError as error:
            raise ConfigurationError(
                f"the function given as key= must accept the task's arguments, and does not ({error}): it takes {own} "
                f"and the task takes {_bare(signature)}; write it with the task's parameters"
            ) from None

    def form(self, bound: inspect.BoundArguments) -> tuple[str, str]:
        try:
            value = self.function(*bound.args, **bound.kwargs)
        except TypeError as error:  # unchanged it would look like arguments that do not fit the task
            raise KeyArgumentError("key()", f"the function given as key= raised {error!r}") from error
        return canonical(value, "key()"), label_of(value if isinstance(value, str) else value_shown(value))


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
