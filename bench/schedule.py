"""What compiling costs before any native code: building, keying, scheduling, lowering.

Run `python bench/schedule.py [--peers PYTHON]`: a GPT training step of 4 and of 12 layers, beside
tinygrad's scheduling of the same model. CPU time, best of several rounds.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.harness import run_figures
from bench.models import GPT, adamw
from bench.systems import our_ops, tinygrad_ops

GOALS: dict[str, float | None] = {
    "4 layers: nodes": None,
    "4 layers: kernels": 140,
    "4 layers: distinct kernels": 40,
    "4 layers: divisions left": 0,
    "4 layers: kernel work / graph work": 1.02,
    "4 layers: build (ms)": None,
    "4 layers: simplify (ms)": None,
    "4 layers: schedule and lower (ms)": 28,
    "4 layers: schedule and lower, us a node": 10,
    "4 layers: schedule and lower, ms a kernel": 0.2,
    "4 layers: cache hit, us a node": 2,
    "4 layers: arena / largest live set": 1.3,
    "4 layers: peak (MB)": None,
    "12 layers: kernels": None,
    "12 layers: distinct kernels": 40,
    "12 layers: schedule and lower (ms)": None,
}


def our_step(model: GPT) -> Callable[[], list[Any]]:
    """A function that builds (and does not run) one whole training step."""
    import fulgurite as fg

    ops = our_ops()
    p = {k: fg.Tensor(v) for k, v in model.initial().items()}
    m = {k: fg.Tensor(np.zeros_like(v)) for k, v in model.initial().items()}
    v = {k: fg.Tensor(np.zeros_like(w)) for k, w in model.initial().items()}
    x, y = (fg.Tensor(a) for a in model.tokens())

    def build() -> list[Any]:
        value, g = fg.value_and_grad(lambda p: model.loss(ops, p, x, y))(p)
        new, m1, v1 = adamw(p, g, m, v, 1)
        return [value, *new.values(), *m1.values(), *v1.values()]

    return build


def tinygrad_step(model: GPT) -> Callable[[], list[Any]]:
    """The same for tinygrad."""
    from tinygrad import Tensor

    ops = tinygrad_ops()
    p = {k: Tensor(v).realize() for k, v in model.initial().items()}
    m = {k: Tensor.zeros(*v.shape).contiguous().realize() for k, v in p.items()}
    v = {k: Tensor.zeros(*w.shape).contiguous().realize() for k, w in p.items()}
    x, y = (Tensor(a).realize() for a in model.tokens())

    def build() -> list[Any]:
        value = model.loss(ops, p, x, y)
        g = dict(zip(p, value.gradient(*p.values()), strict=True))
        new, m1, v1 = adamw(p, g, m, v, 1)
        return [value, *new.values(), *m1.values(), *v1.values()]

    return build


def best(work: Callable[[], Any], rounds: int = 5) -> tuple[float, Any]:
    """CPU milliseconds, the best of several rounds, and the last result."""
    times = []
    gc.disable()  # as compiling does; for every system alike
    try:
        for _ in range(rounds):
            gc.collect()
            start = time.process_time()
            result = work()
            times.append((time.process_time() - start) * 1e3)
    finally:
        gc.enable()
    return min(times), result


def work_ratio(schedule: Any, sink: Any) -> float:
    """Scalar operations in the kernels over those of the graph node by node: 1 is no recompute."""
    from fulgurite.aot.explain import flops_of
    from fulgurite.core.node import toposort
    from fulgurite.graph.ir.queries import elements

    done = sum(flops_of(item.kernel.body) for item in schedule.items)
    graph = 0
    for node in toposort([sink]):
        if node.op.name in ("reduce", "scan"):
            graph += elements(node.src[0].shape)
        elif node.op.family == "elementwise":
            graph += elements(node.shape)
    return done / graph


def ours() -> dict[str, float]:
    """Our figures."""
    from fulgurite.config import current
    from fulgurite.core.context import Table, WeakMemo
    from fulgurite.core.node import toposort
    from fulgurite.graph.ir import lower as lowering
    from fulgurite.graph.ir.cache_key import normalize, restore
    from fulgurite.graph.memory.arena import plan_memory
    from fulgurite.graph.passes.simplify import simplify
    from fulgurite.runtime.pipeline import Context, schedule_of

    figures: dict[str, float] = {}
    for layers in (4, 12):
        name = f"{layers} layers"
        build = our_step(GPT(layers=layers))
        figures[f"{name}: build (ms)"], tensors = best(build, 3)
        roots = [t.node for t in tensors]
        count = len(toposort(roots))
        key, normal = best(partial(normalize, roots))
        sink = restore(normal.structure, normal.constants)
        figures[f"{name}: simplify (ms)"], simple = best(partial(simplify, sink), 3)

        def compile_(simple: Any = simple, inputs: int = len(normal.buffers)) -> Any:
            lowering._lowered_sinks = Table(WeakMemo)
            options = replace(current(), simplify=False, search=False, tier="native")
            return schedule_of(simple, Context(options, "cpu", inputs))

        spent, found = best(compile_)
        distinct = {item.kernel for item in found.items}
        layout = plan_memory(found, 64)
        figures |= {
            f"{name}: nodes": count,
            f"{name}: kernels": len(found.items),
            f"{name}: distinct kernels": len(distinct),
            f"{name}: divisions left": sum(
                lowering.lower(k.body, k.inputs).divisions for k in distinct
            ),
            f"{name}: kernel work / graph work": work_ratio(found, simple),
            f"{name}: schedule and lower (ms)": spent,
            f"{name}: schedule and lower, us a node": spent * 1e3 / count,
            f"{name}: schedule and lower, ms a kernel": spent / len(found.items),
            f"{name}: cache hit, us a node": key * 1e3 / count,
            f"{name}: arena / largest live set": layout.arena_bytes / layout.live_bytes,
            f"{name}: peak (MB)": layout.peak_bytes / 1e6,
        }
        del tensors, roots, normal, sink, simple, found
    return figures


def tinygrad() -> dict[str, float]:
    """tinygrad's building and scheduling of the same step."""
    build = tinygrad_step(GPT(layers=4))
    spent, tensors = best(build, 2)
    start = time.process_time()
    items = tensors[0].schedule_linear(*tensors[1:]).src
    scheduled = (time.process_time() - start) * 1e3
    return {
        "4 layers: build (ms)": spent,
        "4 layers: kernels": len(items),
        "4 layers: schedule and lower (ms)": scheduled,
        "4 layers: schedule and lower, ms a kernel": scheduled / len(items),
    }


if __name__ == "__main__":
    run_figures(__doc__, __file__, {"ours": [ours], "tinygrad": [tinygrad]}, GOALS)
