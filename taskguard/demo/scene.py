"""The environment of the demo's processes: the folder, the server, and how fast the demo runs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from taskguard.demo.ledger import Ledger
from taskguard.demo.pace import Pace

_FOLDER, _URL, _PACE, _WORKER = (f"TASKGUARD_DEMO_{name}" for name in ("FOLDER", "URL", "PACE", "WORKER"))

_OF_THE_USER = ("CELERY_", "RQ_", "DJANGO_SETTINGS_MODULE", "TASKGUARD_STORE", "TASKGUARD_NAMESPACE")
"""Prefixes of variables for the user's own apps. CELERY_BROKER_URL would override the broker of the demo's app."""


def leave_the_user_alone() -> None:
    """Remove these variables, so that no process of the demo reaches the user's broker, store or project."""
    for name in [name for name in os.environ if name.startswith(_OF_THE_USER)]:
        del os.environ[name]


def environment(folder: Path, url: str, pace: Pace) -> dict[str, str]:
    return {_FOLDER: str(folder), _URL: url, _PACE: json.dumps(asdict(pace))}


def named(worker: str) -> dict[str, str]:
    return {_WORKER: worker}


def url() -> str:
    return os.environ[_URL]


def pace() -> Pace:
    return Pace(**json.loads(os.environ[_PACE]))


def ledger() -> Ledger:
    return ledger_in(Path(os.environ[_FOLDER]), os.environ.get(_WORKER, ""))


def ledger_in(folder: Path, worker: str = "") -> Ledger:
    return Ledger(folder / "ledger.db", worker)
