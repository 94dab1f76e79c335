"""A publisher in a process of its own: `python -m tests.celery.publisher NUMBER CALLS KEYS` prints the ids it got."""

from __future__ import annotations

import sys

from tests.celery.tasks import jobs


def main() -> None:
    number, calls, keys = map(int, sys.argv[1:])
    for n in range(calls):
        key = f"storm-{(number * calls + n * 7) % keys}"
        print(jobs["job"].apply_async((key, "take a moment"), {"value": key}).id)


if __name__ == "__main__":
    main()
