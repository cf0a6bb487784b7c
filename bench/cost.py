"""How well costs rank kernels: predicted against measured time, as Kendall's rank correlation.

`python bench/cost.py [--repeats 5] [--plans [--other]]`. Kernels of several kinds and sizes are
timed in turns, each alone in a plan, least times count. Printed are each kernel, the correlation
over all, and that within groups that do about the same work. `--plans` instead takes 30 programs,
makes all distinct plans that the search can be brought to (by tables that favour one thing or
another, and the greedy one), times them in turns and says how far the chosen plan is from the best.
`--other` takes 30 programs that no rate was fitted to.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

import fulgurite as fg
from bench.harness import least
from fulgurite.codegen.cpu.machine import SHIPPED
from fulgurite.codegen.cpu.providers import SOURCES
from fulgurite.config import current
from fulgurite.core.node import Node
from fulgurite.graph.fusion.machine import time_of
from fulgurite.graph.fusion.search import Searcher
from fulgurite.graph.ir.cache_key import normalize, restore
from fulgurite.graph.ir.kernel import Schedule
from fulgurite.graph.passes.simplify import simplify
from fulgurite.runtime.pipeline import Context, compiled, schedule_of, searcher
from fulgurite.runtime.plan import Plan
from fulgurite.runtime.realize import storage_of

RANDOM = np.random.default_rng(0)


def numbers(*shape: int) -> fg.Tensor:
    """Normal numbers; matrices are scaled so that no product of two is far from 1.

    Powers of far ones are below the smallest normal number, and processors are slow on those.
    """
    scale = shape[-1] ** -0.25 if len(shape) > 1 else 1.0
    return fg.Tensor((RANDOM.normal(size=shape) * scale).astype(np.float32))


def works() -> dict[str, fg.Tensor]:
    """Kernels, each a plan of its own; the word before the colon is the group."""
    found: dict[str, fg.Tensor] = {}
    for n in (1 << 14, 1 << 17, 1 << 20, 1 << 22):
        x = numbers(n)
        found[f"map {n}: add"] = x + 1
        found[f"map {n}: exp"] = fg.exp(x)
        found[f"map {n}: tanh chain"] = fg.tanh(fg.exp(x * 0.1) + x)
        found[f"map {n}: two sigmoids"] = fg.sigmoid(fg.sigmoid(x) + x)
        found[f"map {n}: waves"] = fg.sin(fg.cos(x) + fg.sin(x * 2)) + fg.tanh(fg.exp(x * 0.1))
    for rows, size in ((4096, 64), (1024, 256), (256, 1024), (64, 4096)):
        x = numbers(rows, size)
        found[f"rows: softmax {rows}x{size}"] = fg.softmax(x, axis=-1)
        found[f"rows: sum {rows}x{size}"] = x.sum(axis=-1)
        found[f"rows: norm {rows}x{size}"] = fg.layer_norm(x, (size,))
    for n in (64, 128, 256, 512, 1024):
        found[f"product: {n}"] = numbers(n, n) @ numbers(n, n)
        found[f"product: wide {n}"] = numbers(64, n) @ numbers(n, 512)
    for heads, length, size in ((8, 128, 64), (4, 256, 64), (2, 512, 64), (1, 1024, 64)):
        q, k, v = (numbers(heads, length, size) for _ in range(3))
        found[f"fold: {heads}x{length}x{size}"] = fg.softmax(q @ k.mT, axis=-1) @ v
        found[f"fold: one query {heads}x{length}"] = fg.softmax(q[:, :1] @ k.mT, axis=-1) @ v
    return found


def scheduled(sink: Node, inputs: int, choose: Searcher | None) -> Schedule:
    """The kernels that a searcher gives a graph; without one the greedy ones."""
    options = replace(current(), simplify=False, search=False, tier="native")
    return schedule_of(sink, Context(options, "cpu", inputs, choose=choose))


def predicted(result: fg.Tensor) -> float:
    """Nanoseconds of the plan of one tensor, by the table."""
    normal = normalize([result.node])
    sink = simplify(restore(normal.structure, normal.constants, {}, normal.nodes))
    with fg.config(search=True) as options:
        choose = searcher(options)
    assert choose is not None
    found = scheduled(sink, len(normal.buffers), choose)
    chosen = [
        a.cost - SHIPPED.compile_time("fold")
        for r in choose.reports
        for a in r.alternatives
        if a.chosen
    ]
    plain = [time_of(i.kernel, SHIPPED) for i in found.items if i.kernel.kind != "fold"]
    return sum(chosen) + sum(plain)


def kendall(pairs: list[tuple[float, float]]) -> float:
    """Pairs in the same order less those that are not, over all."""
    signs = [np.sign((a[0] - b[0]) * (a[1] - b[1])) for a, b in combinations(pairs, 2)]
    return float(np.mean(signs)) if signs else 1.0


def programs() -> dict[str, fg.Tensor]:
    """Thirty programs in which there is something to choose."""
    found: dict[str, fg.Tensor] = {}
    for heads, length, size in (
        (1, 64, 32), (8, 64, 64), (8, 128, 64), (2, 256, 64), (4, 512, 64), (1, 1024, 64),
        (2, 1024, 32), (1, 512, 128), (4, 200, 80), (8, 333, 40),
    ):  # fmt: skip
        q, k, v = (numbers(heads, length, size) for _ in range(3))
        found[f"attention {heads}x{length}x{size}"] = fg.softmax(q @ k.mT, axis=-1) @ v
    for heads, length in ((8, 256), (4, 1024), (1, 4096)):
        q, k, v = numbers(heads, 1, 64), numbers(heads, length, 64), numbers(heads, length, 64)
        found[f"one query {heads}x{length}"] = fg.softmax(q @ k.mT, axis=-1) @ v
    for length in (128, 512, 1000):
        q, k, v = (numbers(2, length, 64) for _ in range(3))
        earlier = fg.arange(length)[None, :] <= fg.arange(length)[:, None]
        scores = fg.where(earlier, q @ k.mT, -np.inf)
        found[f"causal {length}"] = fg.softmax(scores, axis=-1) @ v
    for rows, inner, columns in (
        (64, 128, 64), (256, 256, 256), (512, 64, 1024), (128, 768, 768), (1024, 256, 128),
    ):  # fmt: skip
        x, w = numbers(rows, inner), numbers(inner, columns)
        scale = fg.rsqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)
        found[f"norm into product {rows}x{inner}x{columns}"] = (x * scale) @ w
    for rows, inner, classes in ((64, 64, 1000), (128, 128, 4000), (256, 64, 10000), (32, 32, 100)):
        x, w = numbers(rows, inner), numbers(inner, classes)
        found[f"classes {rows}x{inner}x{classes}"] = fg.logsumexp(x @ w, axis=-1)
    x, w = numbers(300, 100), numbers(100, 200)
    found["mean into product"] = (x / fg.abs(x).mean(axis=-1, keepdims=True)) @ w
    q, k, v = (numbers(4, 256, 64) for _ in range(3))
    found["capped"] = fg.softmax(20 * fg.tanh(q @ k.mT / 20), axis=-1) @ v
    found["bias and gate"] = fg.softmax(q @ k.mT + numbers(256, 256), axis=-1) @ v * fg.sigmoid(q)
    groups = q.reshape((2, 2, 256, 64)) @ k[:2, None].mT
    found["grouped queries"] = fg.softmax(groups, axis=-1) @ v[:2, None]
    found["few queries"] = fg.softmax(q[:, :32] @ k.mT, axis=-1) @ v
    return found


def attended(
    heads: int, queries: int, keys: int, size: int,
    change: Callable[[fg.Tensor], fg.Tensor] = lambda scores: scores,
    weigh: Callable[[fg.Tensor], fg.Tensor] = lambda weights: weights,
) -> fg.Tensor:  # fmt: skip
    """Values weighed by a softmax of scores."""
    q, k, v = (numbers(heads, n, size) for n in (queries, keys, keys))
    return weigh(fg.softmax(change(q @ k.mT), axis=-1)) @ v


def other_programs() -> dict[str, fg.Tensor]:
    """Thirty programs that are not among those above."""
    found: dict[str, fg.Tensor] = {}
    for heads, queries, keys, size in (
        (2, 48, 48, 16), (16, 96, 96, 64), (3, 160, 160, 96), (6, 384, 384, 64), (12, 77, 77, 64),
        (2, 700, 700, 128), (1, 2000, 300, 48), (4, 100, 1000, 64), (8, 500, 77, 40),
        (32, 1, 128, 64), (2, 1, 2000, 128), (8, 4, 600, 64),
    ):  # fmt: skip
        name = f"attention {heads}x{queries}x{keys}x{size}"
        found[name] = attended(heads, queries, keys, size)
    apart = fg.arange(600)[:, None] - fg.arange(600)[None, :]
    near = (apart >= 0) & (apart < 100)
    found["window"] = attended(2, 600, 600, 64, lambda s: fg.where(near, s, -np.inf))
    table = numbers(1200)[apart + 600]
    found["distances in a table"] = attended(2, 600, 600, 64, lambda s: s + table)
    kept = numbers(300, 300) > -1
    found["weights dropped"] = attended(4, 300, 300, 64, weigh=lambda p: fg.where(kept, p / 0.8, 0))
    for rows, inner, columns in (
        (100, 300, 500),
        (2000, 64, 64),
        (32, 1024, 1024),
        (700, 512, 200),
    ):
        x, w = numbers(rows, inner), numbers(inner, columns)
        length = fg.sqrt((x * x).sum(axis=-1, keepdims=True))
        found[f"length into product {rows}x{inner}x{columns}"] = (x / (length + 1e-6)) @ w
    for rows, inner, classes in ((64, 128, 2000), (300, 64, 500), (16, 256, 8000), (512, 32, 256)):
        x, w = numbers(rows, inner), numbers(classes, inner)
        found[f"turned classes {rows}x{inner}x{classes}"] = fg.logsumexp(x @ w.mT, axis=-1)
    for rows, inner, classes in ((100, 64, 1500), (48, 200, 6000)):
        scores, wanted = numbers(rows, inner) @ numbers(inner, classes), numbers(rows, classes)
        logs = fg.log_softmax(scores, axis=-1)
        found[f"entropy {rows}x{inner}x{classes}"] = (fg.exp(logs) * logs).sum(axis=-1)
        found[f"soft labels {rows}x{inner}x{classes}"] = (fg.abs(wanted) * logs).sum(axis=-1)
    for rows, inner, middle in ((256, 64, 1024), (128, 256, 512), (1000, 32, 300)):
        x, first, second = numbers(rows, inner), numbers(inner, middle), numbers(middle, inner)
        found[f"two products {rows}x{inner}x{middle}"] = fg.gelu(x @ first) @ second
    return found


TABLES = (  # what else the search could have been told
    replace(SHIPPED, compile_ns=1.0, stream_compile_ns=1.0, spill_ns_per_byte=1e-6),
    replace(
        SHIPPED,
        stream_gemm_rate=SHIPPED.stream_gemm_rate * 8,
        stream_rate=SHIPPED.stream_rate * 8,
        spill_ns_per_byte=2.0,
    ),
    replace(
        SHIPPED, stream_gemm_rate=SHIPPED.stream_gemm_rate / 8, stream_rate=SHIPPED.stream_rate / 8
    ),
    replace(SHIPPED, cache_bw=SHIPPED.cache_bw / 8, dram_bw=SHIPPED.dram_bw / 8),
    replace(
        SHIPPED, gemm_rate=SHIPPED.gemm_rate / 4, elementwise_rate=SHIPPED.elementwise_rate / 4
    ),
)


def plans(result: fg.Tensor) -> list[Plan]:
    """The distinct plans of one tensor; the first is the one that is chosen."""
    normal = normalize([result.node])
    sink = simplify(restore(normal.structure, normal.constants, {}, normal.nodes))
    found: dict[object, Plan] = {}
    for table in (SHIPPED, None, *TABLES):
        choose = None if table is None else Searcher(SOURCES, table)
        made = scheduled(sink, len(normal.buffers), choose)
        key = tuple([(i.kernel.kind, i.kernel.body) for i in made.items])
        if key not in found:
            found[key] = compiled(made, current(), "cpu")
    return list(found.values())


def check_plans(cases: dict[str, fg.Tensor], repeats: int) -> None:
    """Time all plans of each program in turns; how far is the chosen one from the best?"""
    near = 0
    for name, result in cases.items():
        normal = normalize([result.node])
        memory = [storage_of(buffer) for buffer in normal.buffers]
        every = plans(result)
        calls = {number: partial(plan.run, memory) for number, plan in enumerate(every)}
        best = least(calls, repeats, each=4)
        ratio = best[0] / min(best.values())
        near += ratio <= 1.1
        kinds = "+".join(k.kernel.kind for k in every[0].kernels)
        print(
            f"{name:34} {kinds:26} {best[0] * 1e6:9.1f} us, {ratio:5.2f} x the best of {len(every)}"
        )
    print(f"within 10 %: {near} of {len(cases)}")


def main() -> None:
    """Time, compare, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--plans", action="store_true", help="check choices, not ranks")
    parser.add_argument("--other", action="store_true", help="with programs nothing was fitted to")
    given = parser.parse_args()
    if given.plans:
        with fg.config(device="cpu", tier="native"):
            check_plans(other_programs() if given.other else programs(), given.repeats)
        return
    results = works()
    guess = {name: predicted(result) for name, result in results.items()}
    with fg.config(search=True, tier="native"):
        runs = {name: fg.schedule(result).run for name, result in results.items()}
        best = least(runs, given.repeats, each=3)
    for name, seconds in best.items():
        print(
            f"{name:34} predicted {guess[name] / 1e3:10.1f} us, measured {seconds * 1e6:10.1f} us"
        )
    groups: dict[str, list[tuple[float, float]]] = {}
    for name in runs:
        groups.setdefault(name.split(":")[0], []).append((guess[name], best[name]))
    for group, pairs in groups.items():
        print(f"within {group}: {kendall(pairs):.2f} of {len(pairs)} kernels")
    everything = [(guess[name], best[name]) for name in runs]
    print(f"overall: {kendall(everything):.2f} of {len(everything)} kernels")


if __name__ == "__main__":
    main()
