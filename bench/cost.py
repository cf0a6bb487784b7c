"""How well costs rank kernels: predicted against measured time, as Kendall's rank correlation.

`python bench/cost.py [--repeats 5]`. Kernels of several kinds and sizes are timed in turns, each
alone in a plan, least times count. Printed are each kernel, the correlation over all, and that
within groups that do about the same work.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import combinations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

import fulgurite as fg
from fulgurite.graph.cost import SHIPPED, time_of
from fulgurite.graph.normalize import normalize, restore
from fulgurite.graph.schedule import schedule
from fulgurite.graph.simplify import simplify
from fulgurite.runtime.realize import searcher


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


def main() -> None:
    """Time, compare, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
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
