"""Attention from plain code: the chosen plan beside the greedy one, our own matmul and torch.

`python bench/attention.py [--size 1x8x4096x64] [--repeats 7]`. All are timed in turns in one run,
and the least time of each counts. Printed are milliseconds, the flop rate against that of a matmul
of 1024, how many bytes a plan keeps beside its inputs and results, and causal against not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

import fulgurite as fg


def plans(batch: int, heads: int, length: int, size: int) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    rng = np.random.default_rng(0)
    shape = (batch, heads, length, size)
    arrays = [rng.normal(size=shape).astype(np.float32) for _ in range(3)]
    q, k, v = (fg.Tensor(array) for array in arrays)
    square = fg.Tensor(rng.normal(size=(1024, 1024)).astype(np.float32))
    found: dict[str, Callable[[], object]] = {"matmul 1024": fg.schedule(square @ square).run}
    for name, search in (("greedy", False), ("chosen", True)):
        with fg.config(search=search):
            asked = {name: fg.softmax(q @ k.mT * size**-0.5, axis=-1) @ v}
            if search:
                causal = fg.scaled_dot_product_attention(q, k, v, is_causal=True)
                asked["chosen, causal"] = causal
            for work, result in asked.items():
                plan = fg.schedule(result)
                plan.run()  # compiled under these options
                found[work] = plan.run
    try:
        import torch
    except ImportError:
        return found
    given = [torch.from_numpy(array) for array in arrays]
    attention = torch.nn.functional.scaled_dot_product_attention
    found["torch"] = lambda: attention(*given)
    return found


def main() -> None:
    """Time all of it and print one table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="1x8x4096x64")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    batch, heads, length, size = map(int, given.size.split("x"))
    timed = plans(batch, heads, length, size)
    best = dict.fromkeys(timed, float("inf"))
    for _ in range(given.repeats):
        for name, run in timed.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    flops = 4 * batch * heads * length * length * size
    rate = 2 * 1024**3 / best["matmul 1024"]
    for name, seconds in best.items():
        share = "" if name == "matmul 1024" else f"{flops / seconds / rate:6.2f} of matmul's rate"
        print(f"{name:16} {seconds * 1e3:9.2f} ms {share}")
    print(f"greedy / chosen {best['greedy'] / best['chosen']:.2f}, "
          f"chosen / causal {best['chosen'] / best['chosen, causal']:.2f}")  # fmt: skip
    if "torch" in best:
        print(f"torch / chosen {best['torch'] / best['chosen']:.2f}")


if __name__ == "__main__":
    main()
