"""Attention from plain code: the chosen plan beside the greedy one, our own matmul and torch.

`python bench/attention.py [--size 1x8x4096x64] [--repeats 7] [--peers PYTHON]`. All are timed in
turns in one run, and the least time of each counts; torch has a process of its own (`--peers` is an
interpreter that has it), so that neither's threads wait beside the other's. Printed are
milliseconds, the flop rate against that of a matmul of 1024, how often each went in that time, and
causal against not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.harness import Worker, WorkerError, serve

Timed = Callable[[], float]  # seconds of one call


def inputs(size: str) -> list[Any]:
    """Queries, keys and values as arrays."""
    import numpy as np

    rng = np.random.default_rng(0)
    shape = tuple(map(int, size.split("x")))
    return [rng.normal(size=shape).astype(np.float32) for _ in range(3)]


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def ours(size: str) -> dict[str, Timed]:
    """Our plans, by name."""
    import numpy as np

    import fulgurite as fg

    q, k, v = (fg.Tensor(array) for array in inputs(size))
    square = fg.Tensor(np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32))
    found = {"matmul 1024": fg.schedule(square @ square).run}
    for name, search in (("greedy", False), ("chosen", True)):
        with fg.config(search=search):
            asked = {name: fg.softmax(q @ k.mT * q.shape[-1] ** -0.5, axis=-1) @ v}
            if search:
                causal = fg.scaled_dot_product_attention(q, k, v, is_causal=True)
                asked["chosen, causal"] = causal
            for work, result in asked.items():
                plan = fg.schedule(result)
                plan.run()  # compiled under these options
                found[work] = plan.run
    return {name: partial(timed, call) for name, call in found.items()}


def torch_worker(size: str) -> None:
    """The process that has torch: every command is one call."""
    import torch

    given = [torch.from_numpy(array) for array in inputs(size)]
    attention = torch.nn.functional.scaled_dot_product_attention
    serve(
        {
            "torch": lambda: timed(lambda: attention(*given)),
            "torch, causal": lambda: timed(lambda: attention(*given, is_causal=True)),
        }
    )


def main() -> None:
    """Time all of it and print one table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="1x8x4096x64")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--peers", default=sys.executable, help="an interpreter with torch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        torch_worker(given.size)
        return
    works = ours(given.size)
    command = [given.peers, __file__, "--worker", "--size", given.size]
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as caches,
        Worker(command, caches, given.threads, 300) as worker,
    ):
        for name in ("torch", "torch, causal"):
            try:
                worker.ask(name)
            except WorkerError as error:
                print(f"{name}: {error}")
                break
            works[name] = partial(worker.ask, name)
        best = dict.fromkeys(works, float("inf"))
        for _ in range(given.repeats):
            for name, run in works.items():
                best[name] = min(best[name], run())
    report(best, given.size)


def report(best: dict[str, float], size: str) -> None:
    """Print the table."""
    batch, heads, length, depth = map(int, size.split("x"))
    flops = 4 * batch * heads * length * length * depth
    rate = 2 * 1024**3 / best["matmul 1024"]
    for name, seconds in best.items():
        share = "" if name == "matmul 1024" else f"{flops / seconds / rate:6.2f} of matmul's rate"
        print(f"{name:16} {seconds * 1e3:9.2f} ms {share}")
    print(f"greedy / chosen {best['greedy'] / best['chosen']:.2f}, "
          f"chosen / causal {best['chosen'] / best['chosen, causal']:.2f}")  # fmt: skip
    if "torch, causal" in best:
        print(f"torch / chosen {best['torch'] / best['chosen']:.2f}, "
              f"causal {best['torch, causal'] / best['chosen, causal']:.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
