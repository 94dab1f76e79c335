"""The options of a task, read and checked together: options that cannot work raise before anything runs.

Each option has a reader, which returns the normalized value or raises with what to write instead. Options that cannot
work *together* have a rule. One error reports all problems.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from taskguard.errors import ConfigurationError
from taskguard.keys.choice import By, parse_key
from taskguard.keys.maker import KeyMaker
from taskguard.protocol.store import Reuse

Hold: TypeAlias = Literal["until_done", "running", "queued", "one_queued_one_running"]
Conflict: TypeAlias = Literal["skip", "raise", "wait", "run_once_more"]
Done: TypeAlias = Literal["rerun", "reuse_success", "reuse"]
Lost: TypeAlias = Literal["abort", "abort_if_unsure", "continue"]

REUSE: dict[Done, Reuse] = {"rerun": "nothing", "reuse_success": "success", "reuse": "anything"}
"""Which finished work of another owner answers a claim."""
DEFAULT_KEEP = 7200.0
"""How long an outcome is kept if keep_for is not given."""
DEFAULT_WAIT = 3600.0
LONGEST = 10 * 365 * 86400.0
"""Every store can represent this in microseconds."""
SHORTEST_LEASE = 0.05
"""Three renewals, each with its round trip, must fit into a lease."""


@dataclass(frozen=True, slots=True)
class OnConflict:
    """What a duplicate does: when the call is made, and when its body would start."""

    enqueue: Conflict = "skip"
    run: Conflict = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The options of a task. A policy that exists has been checked.

    Durations may be given as timedeltas, and on_conflict as one word or as a mapping of "enqueue" and "run".
    """

    key: By = None
    hold: Hold = "until_done"
    on_conflict: OnConflict = field(default_factory=OnConflict)
    on_done: Done = "rerun"
    lease: float = 30.0
    key_space: str | None = None
    keep_for: float | None = None
    """None if it was not given; `keep` has the seconds."""
    keep: float = field(init=False, repr=False, compare=False, default=DEFAULT_KEEP)
    """How long an outcome, and the record that a job ran, is kept."""
    hold_at_most: float | None = None
    hold_at_least: float | None = None
    wait_up_to: float = DEFAULT_WAIT
    max_starts: int = 3
    on_lost: Lost = "abort"
    enforce: bool = True
    readable_keys: bool = True
    """Whether to store the readable form of the key beside it. False if the arguments are secret."""

    def __post_init__(self) -> None:
        values, problems = _read(_options_of(self))
        _report(problems)
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._set_keep()

    def _set_keep(self) -> None:
        object.__setattr__(self, "keep", DEFAULT_KEEP if self.keep_for is None else self.keep_for)

    @classmethod
    def of(cls, **options: Any) -> Policy:
        """The policy with these options; one error reports unknown names together with all other problems."""
        known = {name: value for name, value in options.items() if name in _READERS}
        _, problems = _read(_options_of(cls()) | known)
        _report([*_unknown(options), *problems])
        return cls(**known)

    @classmethod
    def trusted(cls, **options: Any) -> Policy:
        """The policy with options that another process has already checked: each is read, none is checked again.

        For a process that lives for one job, where the check costs more than the use.
        """
        policy = object.__new__(cls)
        for name, value in _defaults().items():
            object.__setattr__(policy, name, _READERS[name](name, options[name]) if name in options else value)
        policy._set_keep()
        return policy

    def keys_for(self, signature: inspect.Signature, name: str) -> KeyMaker:
        """The key maker of the task *name*; raises ConfigurationError if its calls lack a parameter that key= names."""
        try:
            return KeyMaker(self.key_space or name, signature, self.key)
        except ConfigurationError as error:
            raise ConfigurationError(f"{name}: {error}") from None


# -- reading and reporting ---------------------------------------------------------------------------------------

_Reader: TypeAlias = Callable[[str, Any], Any]


class _Rule(NamedTuple):
    """Options that cannot work together; *problem* is a format string for the options' values."""

    options: str
    broken: Callable[[Any], bool]
    problem: str


@cache
def _defaults() -> dict[str, Any]:
    return _options_of(Policy())


def _options_of(options: Any) -> dict[str, Any]:
    return {option.name: getattr(options, option.name) for option in fields(options) if option.init}


def _read(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The normalized options, and every problem with them."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in options.items():
        try:
            values[name] = _READERS[name](name, value)
        except ConfigurationError as error:
            problems.append(str(error))
    chosen = SimpleNamespace(**values)
    shown = {name: _shown(value) for name, value in values.items()}
    for rule in _RULES:
        # An option that cannot be read is already reported; rules that need it do not apply.
        if values.keys() >= set(rule.options.split()) and rule.broken(chosen):
            problems.append(rule.problem.format_map(shown))
    return values, problems


def _report(problems: list[str]) -> None:
    if len(problems) == 1:
        raise ConfigurationError(problems[0])
    if problems:
        raise ConfigurationError("\n- ".join([f"{len(problems)} problems with the options:", *problems]))


def _unknown(options: Mapping[str, Any]) -> list[str]:
    others = {name: value for name, value in options.items() if name not in _READERS}
    if not others:
        return []
    from taskguard.protocol.options import problem_with_option

    return [problem_with_option(name, value, _READERS) for name, value in others.items()]


def _nearest(word: Any, words: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, words, 1) if isinstance(word, str) else []
    return f" (did you mean {near[0]}?)" if near else ""


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:.15g}" if isinstance(value, float) else repr(value)


# -- each option by itself ---------------------------------------------------------------------------------------


def _one_of(words: tuple[str, ...]) -> _Reader:
    def read(name: str, value: Any) -> Any:
        if value in words:
            return value
        allowed = ", ".join(map(_shown, words))
        raise ConfigurationError(
            f"{name}={_shown(value)} is not known{_nearest(value, words)}; write one of: {allowed}"
        )

    return read


def _seconds(
    least: float = 0.0, why: str = "", or_none: bool = False, or_zero: bool = False, such_as: float = 1.0
) -> _Reader:
    def read(name: str, value: Any) -> float | None:
        if value is None and or_none:
            return None
        seconds = _number(name, value)
        if seconds < least or (seconds == 0 and not or_zero):
            problem = f"{name}={_shown(seconds)} is shorter than {least:g} seconds{why}"
            if seconds <= 0:
                problem = f"{name} must be a positive number of seconds{' or 0' * or_zero}, not {_shown(seconds)}"
            raise ConfigurationError(f"{problem}; write {name}={least or (0 if or_zero else such_as):g} or more")
        if seconds > LONGEST:
            raise ConfigurationError(
                f"{name}={_shown(seconds)} is longer than ten years; write {name}={LONGEST:g} or less"
            )
        return seconds

    return read


def _number(name: str, value: Any) -> float:
    # A bool is an int: lease=True would mean one second.
    if isinstance(value, (int, float, timedelta)) and not isinstance(value, bool):
        try:
            seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
        except OverflowError:
            seconds = math.inf
        if math.isfinite(seconds):
            return seconds
    raise ConfigurationError(
        f"{name} must be a number of seconds or a timedelta, not {_shown(value)}; write {name}=30 or "
        f"{name}=timedelta(seconds=30)"
    )


def _key(name: str, value: Any) -> Any:
    parse_key(value)
    return tuple(value) if isinstance(value, list) else value


def _on_conflict(name: str, value: Any) -> OnConflict:
    if isinstance(value, OnConflict):
        value = {"enqueue": value.enqueue, "run": value.run}
    if not isinstance(value, Mapping):
        value = _conflict(name, value)
        return OnConflict(enqueue=value, run=value)
    if set(value) != {"enqueue", "run"}:
        raise ConfigurationError(
            f'{name} must be one word, or a mapping with exactly the keys "enqueue" and "run", not {value!r}; '
            f'write {name}={{"enqueue": "skip", "run": "wait"}}, or one word for both'
        )
    return OnConflict(**{stage: _conflict(f'{name}["{stage}"]', word) for stage, word in value.items()})


def _key_space(name: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    raise ConfigurationError(
        f'{name} must be a non-empty string, not {_shown(value)}; write one such as {name}="billing", or leave it out'
    )


def _max_starts(name: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ConfigurationError(
        f"{name} must be a whole number from 1, not {_shown(value)}; write {name}=1 for at most one start"
    )


def _yes_or_no(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ConfigurationError(f"{name} must be a bool, not {_shown(value)}; write {name}=True or {name}=False")


_conflict = _one_of(get_args(Conflict))

_READERS: dict[str, _Reader] = {
    "key": _key,
    "hold": _one_of(get_args(Hold)),
    "on_conflict": _on_conflict,
    "on_done": _one_of(get_args(Done)),
    "lease": _seconds(SHORTEST_LEASE, ", too short to be renewed three times"),
    "key_space": _key_space,
    "keep_for": _seconds(or_none=True, such_as=60),  # both not shorter than a lease
    "hold_at_most": _seconds(or_none=True, such_as=60),
    "hold_at_least": _seconds(or_none=True),
    "wait_up_to": _seconds(or_zero=True),
    "max_starts": _max_starts,
    "on_lost": _one_of(get_args(Lost)),
    "enforce": _yes_or_no,
    "readable_keys": _yes_or_no,
}


# -- options together --------------------------------------------------------------------------------------------


def _longer(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and one > other


def _meets_with(chosen: Any, conflict: Conflict) -> bool:
    """Whether *conflict* applies at some stage. At a stage without conflicts the option is unused, not wrong."""
    at_enqueue = chosen.hold != "running" and chosen.on_conflict.enqueue == conflict
    at_run = chosen.hold != "queued" and chosen.on_conflict.run == conflict
    return bool(at_enqueue or at_run)


# There is no rule for hold_at_least longer than keep_for: an entry is kept at least until hold_at_least is over.
_RULES = (
    _Rule(
        "lease hold_at_most",
        lambda it: _longer(it.lease, it.hold_at_most),
        "lease={lease} is longer than hold_at_most={hold_at_most}, so the key would be held longer before the first "
        "renewal; write lease={hold_at_most} or less, or hold_at_most={lease} or more",
    ),
    _Rule(
        "hold_at_least hold_at_most",
        lambda it: _longer(it.hold_at_least, it.hold_at_most),
        "hold_at_least={hold_at_least} is longer than hold_at_most={hold_at_most}; write hold_at_most={hold_at_least} "
        "or more, or hold_at_least={hold_at_most} or less",
    ),
    _Rule(
        "on_done keep_for",
        lambda it: it.on_done != "rerun" and it.keep_for is None,
        "on_done={on_done} needs keep_for, the time for which a repeated call means the same work; write "
        "keep_for=86400 for a day",
    ),
    _Rule(
        "keep_for lease",
        lambda it: _longer(it.lease, it.keep_for),
        "keep_for={keep_for} is shorter than lease={lease}, so the record of a job would expire while a copy of it may "
        "still run; write keep_for={lease} or more",
    ),
    _Rule(
        "keep_for lease",
        lambda it: it.keep_for is None and it.lease > DEFAULT_KEEP,
        f"lease={{lease}} is longer than the default keep_for ({DEFAULT_KEEP:g} seconds); write keep_for={{lease}} or "
        "more, or a short lease: taskguard renews it while the job runs",
    ),
    _Rule(
        "on_done hold",
        # The job releases the key when its body starts. By its end another job may hold it: no outcome fits there.
        lambda it: it.on_done != "rerun" and it.hold == "queued",
        'on_done={on_done} has no effect with hold="queued": the job releases the key when its body starts, before '
        'there is an outcome; write hold="until_done", or leave on_done out',
    ),
    _Rule(
        "wait_up_to on_conflict",
        # An explicit default passes: nothing depends on it.
        lambda it: it.wait_up_to != DEFAULT_WAIT and "wait" not in (it.on_conflict.enqueue, it.on_conflict.run),
        'wait_up_to={wait_up_to} has no effect without on_conflict="wait"; write on_conflict="wait", or leave '
        "wait_up_to out",
    ),
    _Rule(
        "on_conflict hold",
        lambda it: it.hold == "queued" and _meets_with(it, "wait"),
        'on_conflict="wait" cannot keep runs apart with hold="queued": the key is free while the body runs; '
        'write hold="until_done" or hold="running"',
    ),
    _Rule(
        "on_conflict hold",
        lambda it: it.hold == "queued" and _meets_with(it, "run_once_more"),
        'on_conflict="run_once_more" never meets a running holder with hold="queued": the key is free while the body '
        'runs; write hold="until_done", or on_conflict="skip", which admits one more job as soon as the body starts',
    ),
)
