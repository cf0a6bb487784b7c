"""How well costs rank kernels: predicted against measured time, as Kendall's rank correlation.

`python bench/cost.py [--repeats 5] [--plans]`. Kernels of several kinds and sizes are timed in
turns, each alone in a plan, least times count. Printed are each kernel, the correlation over all,
and that within groups that do about the same work. `--plans` instead takes 30 programs, makes all
distinct plans that the search can be brought to (by tables that favour one thing or another, and
the greedy one), times them in turns and says how far the chosen plan is from the best.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

import fulgurite as fg
from fulgurite.graph.cost import SHIPPED, time_of
from fulgurite.graph.normalize import normalize, restore
from fulgurite.graph.schedule import schedule
from fulgurite.graph.search.choose import Searcher
from fulgurite.graph.simplify import simplify
from fulgurite.kernel.sources import SOURCES
from fulgurite.runtime.plan import Plan, compile_plan
from fulgurite.runtime.realize import searcher, storage_of


def numbers(*shape: int) -> fg.Tensor:
    """Normal numbers."""
    return fg.Tensor(np.random.default_rng(0).normal(size=shape).astype(np.float32))


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


def predicted(result: fg.Tensor) -> float:
    """Nanoseconds of the plan of one tensor, by the table."""
    normal = normalize([result.node])
    sink = simplify(restore(normal.structure, normal.constants, {}, normal.nodes))
    with fg.config(search=True) as options:
        choose = searcher(options)
    assert choose is not None
    found = schedule(sink, len(normal.buffers), True, choose)
    chosen = [a.cost - SHIPPED.made for r in choose.reports for a in r.alternatives if a.chosen]
    plain = [time_of(i.kernel) for i in found.items if i.kernel.kind != "fold"]
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


TABLES = (  # what else the search could have been told
    replace(SHIPPED, made=1.0, kept=1e-6),
    replace(SHIPPED, folded=SHIPPED.folded * 8, walked=SHIPPED.walked * 8, kept=2.0),
    replace(SHIPPED, folded=SHIPPED.folded / 8, walked=SHIPPED.walked / 8),
    replace(SHIPPED, near=SHIPPED.near / 8, far=SHIPPED.far / 8),
    replace(SHIPPED, products=SHIPPED.products / 4, simple=SHIPPED.simple / 4),
)


def plans(result: fg.Tensor) -> list[Plan]:
    """The distinct plans of one tensor; the first is the one that is chosen."""
    normal = normalize([result.node])
    sink = simplify(restore(normal.structure, normal.constants, {}, normal.nodes))
    found: dict[object, Plan] = {}
    for table in (SHIPPED, None, *TABLES):
        choose = None if table is None else Searcher(SOURCES, table)
        made = schedule(sink, len(normal.buffers), True, choose)
        key = tuple([(i.kernel.kind, i.kernel.body) for i in made.items])
        if key not in found:
            found[key] = compile_plan(made, "cpu")
    return list(found.values())


def check_plans(repeats: int) -> None:
    """Time all plans of each program in turns; how far is the chosen one from the best?"""
    near = 0
    cases = programs()
    for name, result in cases.items():
        normal = normalize([result.node])
        memory = [storage_of(buffer) for buffer in normal.buffers]
        every = plans(result)
        best = [float("inf")] * len(every)
        for _ in range(repeats):
            for number, plan in enumerate(every):
                for _ in range(4):
                    start = time.perf_counter()
                    plan.run(memory)
                    best[number] = min(best[number], time.perf_counter() - start)
        ratio = best[0] / min(best)
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
    given = parser.parse_args()
    if given.plans:
        with fg.config(device="cpu", tier="native"):
            check_plans(given.repeats)
        return
    results = works()
    guess = {name: predicted(result) for name, result in results.items()}
    with fg.config(search=True, tier="native"):
        runs = {name: fg.schedule(result).run for name, result in results.items()}
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(given.repeats):
            for name, run in runs.items():
                for _ in range(3):
                    start = time.perf_counter()
                    run()
                    best[name] = min(best[name], time.perf_counter() - start)
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
