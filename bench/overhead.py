"""What laziness costs: one tensor op, a cache hit, a tiny realize, beside tinygrad.

Run `python bench/overhead.py [--peers PYTHON]`, where PYTHON is an interpreter that has tinygrad
(default: this one). CPU time, best of several rounds.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.harness import best, run_figures

GOALS = {
    "one tensor op (us)": 12.0,
    "cache hit a node (us)": 2.0,
    "tiny realize (us)": 80.0,
    "nodes held by a dropped graph": 0.0,
}


def ours() -> dict[str, float]:
    """Our figures."""
    import fulgurite as fg
    from fulgurite.core.node import live_count, toposort
    from fulgurite.graph.ir.cache_key import normalize
    from fulgurite.runtime.realize import lookup

    a, b = fg.Tensor([1.0, 2.0]), fg.Tensor([3.0, 4.0])
    many = range(20_000)

    def build_ops() -> None:
        for _ in many:
            a + b

    def tiny() -> None:
        for _ in range(1_000):
            (a + 1.0).realize()

    top = a
    for _ in range(500):
        top = (top * b + a) - b
    count = len(toposort([top.node]))
    lookup(normalize([top.node]), "reference")

    def hit() -> None:
        lookup(normalize([top.node]), "reference")

    figures = {
        "one tensor op (us)": best(build_ops, len(many)),
        "cache hit a node (us)": best(hit, count),
        "tiny realize (us)": best(tiny, 1_000),
    }
    gc.collect()
    before = live_count()
    dropped = (a * b + 1.0) * a
    del dropped
    figures["nodes held by a dropped graph"] = float(live_count() - before)
    return figures


def tinygrad() -> dict[str, float]:
    """The same of tinygrad."""
    from tinygrad import Tensor

    a, b = Tensor([1.0, 2.0]).realize(), Tensor([3.0, 4.0]).realize()
    many = range(2_000)

    def build_ops() -> None:
        for _ in many:
            a + b

    def tiny() -> None:
        for _ in range(20):
            (a + 1.0).realize()

    def graph() -> Tensor:
        top = a
        for _ in range(50):
            top = (top * b + a) - b
        return top

    def hit() -> None:
        graph().schedule_linear() if hasattr(Tensor, "schedule_linear") else graph().schedule()

    count = len(graph().uop.toposort())
    tiny()
    build = best(graph, count, rounds=3)
    return {
        "one tensor op (us)": best(build_ops, len(many)),
        "tiny realize (us)": best(tiny, 20),
        "cache hit a node (us)": best(hit, count, rounds=3) - build,
    }


if __name__ == "__main__":
    run_figures(__doc__, __file__, {"ours": [ours], "tinygrad": [tinygrad]}, GOALS)
