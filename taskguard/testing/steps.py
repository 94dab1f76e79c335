"""The steps of a job: each line of certain files, and before and after each call of the store."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from taskguard.protocol.store import Store

_VERBS = ("claim", "requeue", "mark", "complete", "release")
"""Without `renew`: when it is called depends on the speed of the machine."""


class Steps:
    """Counts the steps of the thread that created it, and calls *act* at step *chosen*; never if that is 0."""

    def __init__(self, chosen: int, act: Callable[[str], None]) -> None:
        self._chosen = chosen
        self._act = act
        self._thread = threading.get_ident()
        self.count = 0

    def step(self, where: str) -> None:
        if threading.get_ident() == self._thread:
            self.count += 1
            if self.count == self._chosen:
                self._act(where)

    @contextmanager
    def tracing(self, files: set[str]) -> Iterator[None]:
        """Within the block, each executed line of *files* is a step."""

        def enter(frame: FrameType, event: str, arg: object) -> Any:
            return self._line if frame.f_code.co_filename in files else None

        sys.settrace(enter if files else None)
        try:
            yield
        finally:
            sys.settrace(None)

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        if event == "line":
            text = linecache.getline(code.co_filename, frame.f_lineno).strip()
            self.step(f"before line {frame.f_lineno} of {Path(code.co_filename).name}: {text}")
        elif event == "return":
            self.step(f"at the end of {code.co_name}")
        return self._line


class SteppingStore:
    """A store whose every verb is two steps: before the call and after it."""

    def __init__(self, store: Store, steps: Steps) -> None:
        self._store = store
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if name not in _VERBS:
            return verb

        def stepping(*args: Any, **kwargs: Any) -> Any:
            self._steps.step(f"before {name}")
            answer = verb(*args, **kwargs)
            self._steps.step(f"after {name}")
            return answer

        return stepping
