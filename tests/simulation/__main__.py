"""`python -m tests.simulation` runs histories of both styles, and shows the end of each in which something goes wrong.

With a style and a seed it runs that one history and shows all of its steps. `--histories N` runs so many of each style,
from that seed on. `--mutant NAME` runs the protocol with that rule dropped.
"""

from __future__ import annotations

import argparse
import sys
from typing import get_args

from tests.simulation.judge import Style, Violation
from tests.simulation.mutants import MUTANTS
from tests.simulation.world import Code, World

STYLES: tuple[Style, ...] = get_args(Style)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("style", nargs="?", choices=STYLES)
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--histories", type=int, metavar="N")
    parser.add_argument("--mutant", choices=MUTANTS, metavar="NAME")
    asked = parser.parse_args(arguments)
    code = MUTANTS[asked.mutant] if asked.mutant else Code()
    styles = [asked.style] if asked.style else STYLES
    if asked.seed is not None and asked.histories is None:
        return max(_show(style, asked.seed, code) for style in styles)
    first, many = asked.seed or 0, 800 if asked.histories is None else asked.histories
    bad = sum(_show(style, seed, code, last=40) for seed in range(first, first + many) for style in styles)
    print(f"{many * len(styles)} histories, {bad} with a violation")
    return 1 if bad else 0


def _show(style: Style, seed: int, code: Code, last: int = 0) -> int:
    """1 if something goes wrong. *last*: show so many steps, and only then; 0: show all."""
    world, problem = World(seed, style, code), ""
    try:
        world.run()
    except Violation as violation:
        problem = str(violation)
    if problem or not last:
        print(*world.story[-last:], f"{style} {seed}: {problem or 'clean'}", sep="\n", flush=True)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
