"""What the host costs: one tensor op, a tiny value, a step of a small network, beside torch.

Run `python bench/overhead.py [--peers PYTHON]`, where PYTHON is an interpreter that has torch and
tinygrad (default: this one). CPU time, best of several rounds. `FULGURITE_EXTENSION=0` leaves the C
extension out, and other goals hold: 7 us an op, 50 us a tiny value, eight times torch's step.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from bench.harness import best, run_figures

GOALS: dict[str, float | None] = {
    "one tensor op (us)": 0.6,
    "cache hit a node (us)": 0.4,
    "tiny realize (us)": 30.0,
    "unjitted step of a small network (us)": None,  # three times torch's
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
        "unjitted step of a small network (us)": best(training(fg, fg.Tensor), 10),
    }
    gc.collect()
    before = live_count()
    dropped = (a * b + 1.0) * a
    del dropped
    figures["nodes held by a dropped graph"] = float(live_count() - before)
    return figures


def training(library: Any, tensor: Callable[[Any], Any]) -> Callable[[], None]:
    """Ten steps of a network of three layers with SGD."""
    nn, generator = library.nn, np.random.default_rng(0)
    x = tensor(generator.standard_normal((32, 16), np.float32))
    y = tensor(generator.standard_normal((32, 4), np.float32))
    layers = [nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)]
    model = nn.Sequential(*layers)
    optimizer = library.optim.SGD(model.parameters(), lr=1e-3)

    def steps() -> None:
        for _ in range(10):
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            loss.item()

    steps()
    return steps


def eager_torch() -> dict[str, float]:
    """The same of torch."""
    import torch

    torch.set_num_threads(1)
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    many = range(20_000)

    def build_ops() -> None:
        for _ in many:
            a + b

    def tiny() -> None:
        for _ in range(1_000):
            (a + 1.0).tolist()

    return {
        "one tensor op (us)": best(build_ops, len(many)),
        "tiny realize (us)": best(tiny, 1_000),
        "unjitted step of a small network (us)": best(training(torch, torch.tensor), 10),
    }


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
    run_figures(
        __doc__, __file__, {"ours": [ours], "torch": [eager_torch], "tinygrad": [tinygrad]}, GOALS
    )
