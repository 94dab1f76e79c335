"""Children of a test: a call in a forked process."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any


def in_fork(function: Callable[[], Any]) -> Any:
    """What *function* returns in a forked child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            answer: Any = (True, function())
        except BaseException:
            answer = (False, traceback.format_exc())
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(pickle.dumps(answer))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    succeeded, value = pickle.loads(data)
    assert succeeded, value
    return value
