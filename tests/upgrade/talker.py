"""Carries out the verbs of a store, in whichever release it is started: `python -m tests.upgrade.talker URL NAMESPACE`.

A line of JSON in, a line out. Values travel as [name of their class, their fields].
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields, is_dataclass
from typing import Any

from taskguard import open_store


def main() -> None:
    url, namespace = sys.argv[1:]
    store: Any = open_store(url, namespace=namespace)
    # Taken from the store's own module: releases keep them at different places.
    classes = vars(sys.modules[type(store).__module__])
    for line in sys.stdin:
        verb, args, options = json.loads(line)
        answer = getattr(store, verb)(*[heard(classes, arg) for arg in args], **options)
        print(json.dumps(said(list(answer) if verb == "scan" else answer)), flush=True)
    store.close()


def said(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: said(getattr(value, field.name)) for field in fields(value)}
        return [type(value).__name__, {name: of for name, of in named.items() if name != "meanwhile"}]
    if isinstance(value, bytes):
        return value.decode()
    return [said(one) for one in value] if isinstance(value, (list, tuple)) else value


def heard(classes: dict[str, Any], value: Any) -> Any:
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str):
        known = {field.name for field in fields(classes[value[0]])}
        facts = {name: of for name, of in value[1].items() if name in known}
        if isinstance(facts.get("outcome"), str):
            facts["outcome"] = facts["outcome"].encode()
        return classes[value[0]](**facts)
    return [heard(classes, one) for one in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
