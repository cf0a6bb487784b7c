"""What the graph itself costs: nodes, keys, simplification, memory, beside tinygrad.

Run `make bench` or `python bench/core.py [--peers PYTHON]`, where PYTHON is an interpreter that
has tinygrad (default: this one). Times are the best of several rounds of CPU time; the two
systems take turns in processes of their own, so both see the same noise.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from datetime import date
from pathlib import Path

GOALS = {
    "node hit": 0.5,
    "node hit with origin": 1.5,
    "new node, collector on": 5.0,
    "flat key a node": 1.5,
    "simplify a node": 10.0,
    "bytes a node": 600.0,
}


def best(work: Callable[[], object], count: int, rounds: int = 5) -> float:
    """Microseconds of CPU time per unit, the best of several rounds."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times) / count * 1e6


def ours() -> dict[str, float]:
    """Our figures."""
    from fulgurite.core import build
    from fulgurite.core.dtype import float32
    from fulgurite.core.node import Node, make, toposort
    from fulgurite.core.ops.elementwise import ADD, EXP, MUL
    from fulgurite.graph.normalize import normalize
    from fulgurite.graph.simplify import simplify

    a, b = (build.buffer((4,), float32) for _ in range(2))
    src, kept = (a, b), build.apply(ADD, a, b)
    many = range(100_000)

    def hits() -> None:
        for _ in many:
            make(ADD, float32, src)

    def origin_hits() -> None:
        for _ in many:
            build.note(make(ADD, float32, src))

    def chain(count: int) -> Node:
        top = build.buffer((4,), float32)  # new each time: no round finds the last one's nodes
        for _ in range(count):
            top = ADD(top, b)
        return top

    def mixed(count: int) -> Node:
        """A graph with something to simplify in every third node."""
        top = a
        for i in range(count // 5):
            top = EXP(MUL(top, b) * 1.0 + (b + 0.5 * i))
        return top

    def bytes_a_node() -> float:
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        top = chain(50_000)
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        del top
        return (after - before) / 50_000

    figures = {
        "node hit": best(hits, len(many)),
        "node hit with origin": best(origin_hits, len(many)),
        "new node, collector on": best(lambda: chain(100_000), 100_000),
    }
    graph = mixed(10_000)
    count = len(toposort([graph]))
    figures["flat key a node"] = best(lambda: normalize([graph]), count)
    figures["simplify a node"] = best(lambda: simplify(graph), count, rounds=3)
    figures["bytes a node"] = bytes_a_node()
    del kept
    return figures


def tinygrad() -> dict[str, float]:
    """The same of tinygrad's UOp."""
    from tinygrad import dtypes
    from tinygrad.uop.ops import Ops, UOp, graph_rewrite

    try:
        from tinygrad.uop.symbolic import symbolic
    except ImportError:
        from tinygrad.codegen.symbolic import symbolic

    a = UOp.variable("a", 0, 100)
    b = UOp.variable("b", 0, 100)
    kept = UOp(Ops.ADD, dtypes.int, (a, b))
    many = range(100_000)

    def hits() -> None:
        for _ in many:
            UOp(Ops.ADD, dtypes.int, (a, b))

    fresh = iter(range(1_000_000))

    def chain(count: int) -> UOp:
        top = UOp.variable(f"start{next(fresh)}", 0, 100)
        for _ in range(count):
            top = UOp(Ops.ADD, dtypes.int, (top, b))
        return top

    def mixed(count: int) -> UOp:
        top = a
        for i in range(count // 5):
            top = (top * b) * 1 + (b + i)
        return top

    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    top = chain(5_000)
    size = (tracemalloc.get_traced_memory()[0] - before) / 5_000
    tracemalloc.stop()
    del top
    graph = mixed(1_000)
    sys.setrecursionlimit(100_000)
    figures = {
        "node hit": best(hits, len(many)),
        "new node, collector on": best(lambda: chain(5_000), 5_000),
        "bytes a node": size,
    }
    count = len(graph.toposort())
    figures["flat key a node"] = best(lambda: [n.key for n in mixed(1_000).toposort()], count)
    figures["simplify a node"] = best(lambda: graph_rewrite(graph, symbolic), count, rounds=2)
    del kept
    return figures


Measure = Callable[[], dict[str, float]]


def measured(python: str, script: str, who: str) -> dict[str, float]:
    """One system's figures, from a process of its own; nothing where it is not installed."""
    root = Path(__file__).parents[1]
    run = subprocess.run(
        [python, script, "--one", who],
        cwd=root, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    if run.returncode:
        last = run.stderr.strip().splitlines()[-1] if run.stderr.strip() else "no output"
        print(f"{who}: not measured ({last})", file=sys.stderr)
        return {}
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def report(
    doc: str | None, script: str, systems: dict[str, Measure], goals: dict[str, float]
) -> None:
    """Measure the systems in turns and print one table; `ours` comes first."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--peers", default=sys.executable, help="an interpreter with the peers")
    parser.add_argument("--rounds", type=int, default=3, help="turns that each system takes")
    parser.add_argument("--one", choices=tuple(systems), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(systems[options.one]()))
        return
    table: dict[str, dict[str, float]] = {who: {} for who in systems}
    for _ in range(options.rounds):
        for who in systems:
            python = sys.executable if who == "ours" else options.peers
            for name, value in measured(python, script, who).items():
                table[who][name] = min(value, table[who].get(name, value))
    peers = [who for who in systems if who != "ours"]
    print(f"\n{date.today()}, Python {platform.python_version()}, {platform.machine()}\n")
    print(f"| figure (us, unless named) | Fulgurite | goal | {' | '.join(peers)} |")
    print("| --- " * (3 + len(peers)) + "|")
    for name, goal in goals.items():
        shown = [table[who].get(name) for who in ("ours", *peers)]
        cells = [f"{v:.2f}" if v is not None else "-" for v in shown]
        print(f"| {name} | {cells[0]} | {goal:g} | {' | '.join(cells[1:])} |")


if __name__ == "__main__":
    report(__doc__, __file__, {"ours": ours, "tinygrad": tinygrad}, GOALS)
