"""What a message advises is accepted: each `name=value` that it says to write, each option that it says to leave out.

The wrong options are those of `test_policy.py` and more; the advice is read from the message, and followed.
"""

from __future__ import annotations

import ast
import re
from datetime import timedelta
from typing import Any

import pytest

from taskguard import ConfigurationError
from taskguard.protocol.policy import Policy
from tests.unit.test_policy import PAIRS

WRONG: list[dict[str, Any]] = [
    {"on_conflict": "skp"},
    {"on_conflict": "cancel_runnin"},
    {"on_conflict": "replace_queue"},
    {"on_conflict": "replace_queued"},
    {"on_conflict": {"enqueue": "skip", "run": "cancel_running"}},
    {"on_conflict": {"enqueue": "skip"}},
    {"on_conflict": None},
    {"debounce": 3},
    {"debounc": 3},
    {"hold": "until"},
    {"on_done": "reuse_succes", "keep_for": 60},
    {"on_done": "reuse"},
    {"on_lost": "abrt"},
    {"lease": "thirty"},
    {"lease": 0.001},
    {"lease": -1},
    {"lease": 10**10, "keep_for": 10**6},
    {"keep_for": 0},
    {"hold_at_most": True},
    {"hold_at_most": timedelta(0)},
    {"wait_up_to": 3},
    {"max_starts": 0},
    {"enforce": "no"},
    {"key_space": ""},
    {"unique_on": ["a", "b"]},
    {"once": {"keys": ["a"], "graceful": True, "timeout": 99999, "unlock_before_run": True}},
    {"once": {"keys": []}},
    {"lock_expiry": 99999},
    {"raise_on_duplicate": True},
    {"ttl": 5},
    *[options for options, _ in PAIRS],
]
OPTION = re.compile(
    r"(?<!\()\b([a-z_]+)=(\"[^\"]*\"|'[^']*'|\([^)]*\)|\{\{?[^}]*\}\}?|lambda[^,;]*, [^,;]*"
    r"|[\d.]+|True|False|timedelta\([^)]*\))"
)


def advice_in(message: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    """The options as they would be, for each thing that the message says to write or to leave out."""
    _, _, advice = message.partition("; ")
    followed = []
    unknown = {name for name in options if f"there is no option {name}" in message or f"{name} is an option" in message}
    rest = {name: value for name, value in options.items() if name not in unknown}
    for name, value in OPTION.findall(advice):
        followed.append({**rest, name: _value(value)})
    for words in re.findall(r"write one of: ([^;]*)", advice):
        wrong = message.partition("=")[0].partition("[")[0]
        for word in re.findall(r'"(\w+)"', words):
            followed.append({**rest, wrong: word})
        for name in re.findall(r"(?:^|, )([a-z_]+)(?=,|$)", words) if unknown else []:
            followed.append({**rest, **({name: VALUES[name]} if name in VALUES else {"never": name})})
    for name in re.findall(r"leave ([a-z_]+) out", advice):
        name = re.split(r"\W", message)[0] if name == "it" else name
        followed.append({other: value for other, value in rest.items() if other != name})
    return followed


VALUES: dict[str, Any] = {
    "key": "a",
    "hold": "queued",
    "on_conflict": "skip",
    "on_done": "rerun",
    "lease": 60,
    "key_space": "space",
    "keep_for": 60,
    "hold_at_most": 60,
    "hold_at_least": 1,
    "wait_up_to": 3600,
    "max_starts": 1,
    "on_lost": "abort",
    "enforce": True,
    "readable_keys": True,
}
"""What can be written for each option."""


def _value(text: str) -> Any:
    if text.startswith("timedelta"):
        return timedelta(seconds=30)
    if text.startswith("lambda"):
        return lambda *args, **kwargs: "one"
    return ast.literal_eval(text.replace("{{", "{").replace("}}", "}"))


@pytest.mark.parametrize("options", WRONG, ids=str)
def test_what_is_advised_is_not_refused(options: dict[str, Any]):
    with pytest.raises(ConfigurationError) as caught:
        Policy.of(**options)
    message = str(caught.value)
    followed = advice_in(message, options)

    assert followed or "write" in message or "leave it out" in message, message
    for changed in followed:
        try:
            Policy.of(**changed)
        except ConfigurationError as error:
            pytest.fail(f"{message!r} advises {changed}, which is refused: {error}")
