"""Random graphs through the whole pipeline, against the meaning of the graph itself.

In: a seed. Out: nothing, or an AssertionError that shows the smallest graph that still fails, as
text and as a call of `replay` to paste into a test. The pipeline is the real one (normalise,
restore, simplify, schedule, plan, run with poisoned memory), the oracle `reference.evaluate` of the
graph as it was built. Even seeds are exact: integer-valued data, ops that round nothing, sums that
stay on the grid in any order; every bit must agree (any NaN is as good as another). Odd seeds
are rounded: every result must lie within a running error bound of the float64 value (`truth`).
Run many with `python -m tests.fuzz --seeds 0:100000`, one with `--minimise SEED`.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module

from fulgurite.core.node import Node
from fulgurite.core.text import show
from fulgurite.runtime.device import device_names

from .bounds import truth
from .graph import Graph
from .running import problem
from .smallest import minimise, replay, reproduction
from .steps import generate

__all__ = [
    "COVERAGE", "GRAPHS", "Graph", "check", "coverage", "explained", "generate", "label", "main",
    "minimise", "problem", "replay", "reproduction", "truth",
]  # fmt: skip

COVERAGE: Counter[str] = Counter()  # nodes of each op that went through the pipeline
GRAPHS: Counter[str] = Counter()  # graphs that were checked, of each kind


def check(
    seed: int,
    steps: int | None = None,
    smallest: bool = True,
    device: str = "reference",
    **options: bool,
) -> None:
    """One graph through the pipeline; `options` are simplify and fuse, both on by default."""
    graph = replace(generate(seed, steps), device=device)
    found = problem(graph, **options)
    GRAPHS["exact" if graph.exact else "rounded"] += 1
    COVERAGE.update(label(node) for node in graph.nodes)
    if found is not None:
        raise AssertionError(explained(seed, graph, found, smallest, **options))


def explained(seed: int, graph: Graph, found: str, smallest: bool, **options: bool) -> str:
    """What failed, made as small as it gets, with a way to run it again."""
    if smallest:
        graph = minimise(graph, **options)
        found = problem(graph, **options) or found
    return (
        f"seed {seed}: {found}\n{show(*graph.roots)}\n\nto repeat it: "
        f"python -m tests.fuzz --minimise {seed}\nor, in a test:\n"
        f"{reproduction(graph, **options)}"
    )


def label(node: Node) -> str:
    """What a node is counted as: its op, and the kind of a reduction, scan or scatter."""
    if node.op.name in ("reduce", "scan", "scatter"):
        return f"{node.op.name}.{node.arg[0]}"
    return node.op.name


def coverage() -> str:
    """How often each op went through the pipeline."""
    total = f"{GRAPHS['exact']} exact and {GRAPHS['rounded']} rounded graphs; nodes of each op: "
    return total + ", ".join(f"{name} {count}" for name, count in sorted(COVERAGE.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a range of seeds, or show one failing seed at its smallest."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seeds", default="0:2000", help="first:last, the last one left out")
    parser.add_argument("--minimise", type=int, help="one seed; print the smallest failing graph")
    parser.add_argument("--device", default="reference", help="where the kernels run")
    parser.add_argument("--no-simplify", action="store_true")
    parser.add_argument("--no-fuse", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.device not in device_names():
        import_module(f"fulgurite.runtime.{chosen.device}")
    options = {"simplify": not chosen.no_simplify, "fuse": not chosen.no_fuse}
    first, last = map(int, chosen.seeds.split(":"))
    seeds = range(first, last) if chosen.minimise is None else [chosen.minimise]
    failed = 0
    for seed in seeds:
        try:
            check(seed, device=chosen.device, **options)
        except AssertionError as error:
            failed += 1
            print(error, "\n")
            if failed == 10:
                print("ten failures are enough")
                break
    print(coverage())
    print(f"{failed} failed")
    return 1 if failed else 0
