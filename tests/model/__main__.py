"""`python -m tests.model` explores every configuration; with names of mutants, it shows what goes wrong in them.

The name of a configuration explores that one. `--long` explores those that take minutes too.
"""

from __future__ import annotations

import sys

from tests.model.configurations import CONFIGURATIONS, LONG
from tests.model.explore import Model, Result, explore
from tests.model.mutants import MUTANTS

ALL = {**CONFIGURATIONS, **LONG}


def main(arguments: list[str]) -> int:
    names = [argument for argument in arguments if argument != "--long"]
    unknown = [name for name in names if name not in MUTANTS and name not in ALL]
    if unknown:
        print(f"neither a mutant nor a configuration: {', '.join(unknown)}; there are:", *MUTANTS, *ALL, sep="\n  ")
        return 2
    names = names or [*CONFIGURATIONS, *(LONG if "--long" in arguments else ())]
    return max(_show_mutant(name) if name in MUTANTS else _show_configuration(name) for name in names)


def _show_configuration(name: str) -> int:
    result = explore(Model(ALL[name]))
    print(f"{name:28} {result.states:>9} worlds {result.seconds:7.1f} s  {_verdict(result)}", flush=True)
    return 1 if result.violations else 0


def _show_mutant(name: str) -> int:
    mutant = MUTANTS[name]
    result = explore(Model(mutant.config, mutant.rules, mutant.behaviour, told_apart=True))
    print(f"Dropped: {mutant.rule}.\n{_verdict(result)}\n")
    return 0 if result.violations else 1


def _verdict(result: Result) -> str:
    return "\n".join(str(violation) for violation in result.violations) or "clean"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
