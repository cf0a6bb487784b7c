"""What the graph itself costs: nodes, keys, simplification, memory, beside tinygrad.

Run `python bench/core.py [--peers PYTHON]`, where PYTHON is an interpreter that has tinygrad
(default: this one). Times are the best of several rounds of CPU time.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.harness import best, run_figures

GOALS = {
    "node hit (us)": 0.5,
    "node hit with origin (us)": 1.5,
    "new node, collector on (us)": 5.0,
    "flat key a node (us)": 1.5,
    "simplify a node (us)": 10.0,
    "bytes a node": 600.0,
}


def ours() -> dict[str, float]:
    """Our figures."""
    from fulgurite.core import build
    from fulgurite.core.dtype import float32
    from fulgurite.core.node import Node, make, toposort
    from fulgurite.core.ops.elementwise import ADD, EXP, MUL
    from fulgurite.graph.ir.cache_key import normalize
    from fulgurite.graph.passes.simplify import simplify

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
        "node hit (us)": best(hits, len(many)),
        "node hit with origin (us)": best(origin_hits, len(many)),
        "new node, collector on (us)": best(lambda: chain(100_000), 100_000),
    }
    graph = mixed(10_000)
    count = len(toposort([graph]))
    figures["flat key a node (us)"] = best(lambda: normalize([graph]), count)
    figures["simplify a node (us)"] = best(lambda: simplify(graph), count, rounds=3)
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
        "node hit (us)": best(hits, len(many)),
        "new node, collector on (us)": best(lambda: chain(5_000), 5_000),
        "bytes a node": size,
    }
    count = len(graph.toposort())
    figures["flat key a node (us)"] = best(lambda: [n.key for n in mixed(1_000).toposort()], count)
    figures["simplify a node (us)"] = best(lambda: graph_rewrite(graph, symbolic), count, rounds=2)
    del kept
    return figures


if __name__ == "__main__":
    run_figures(__doc__, __file__, {"ours": [ours], "tinygrad": [tinygrad]}, GOALS)
