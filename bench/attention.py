"""Folds from plain code beside the greedy plan, our own matmul and torch.

`python bench/attention.py [--size 1x8x4096x64] [--classes 512x256x32000] [--repeats 7]
[--threads 2] [--clock wall|cpu] [--only NAME] [--peers PYTHON]`. Attention, causal or not, its
gradients, and a linear layer into cross-entropy with and without gradients. All are timed in turns
in one run, and the least time of each counts; torch has a process of its own (`--peers` is an
interpreter that has it), so that neither's threads wait beside the other's. On a busy machine
`--clock cpu --threads 1` is steadier. Printed are milliseconds, flop rates against that of a matmul
of 1024, ratios, and what is kept in memory beside inputs and results.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.harness import Worker, WorkerError, serve, spent
from bench.report import machine

Timed = Callable[[], float]  # seconds of one call
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def sizes(text: str) -> tuple[int, ...]:
    """A size as it is written: 1x8x4096x64."""
    return tuple(map(int, text.split("x")))


def inputs(size: str) -> list[Any]:
    """Queries, keys, values and what results are weighed by, as arrays."""
    import numpy as np

    rng = np.random.default_rng(0)
    return [rng.normal(size=sizes(size)).astype(np.float32) for _ in range(4)]


def ours(
    size: str, classes: str, threads: int
) -> tuple[dict[str, Callable[[], object]], list[str]]:
    """Our plans by name, and lines on what they keep."""
    import numpy as np

    import fulgurite as fg

    q, k, v, g = (fg.Tensor(array) for array in inputs(size))
    rows, depth, count = sizes(classes)
    rng = np.random.default_rng(1)
    x = fg.Tensor(rng.normal(size=(rows, depth)).astype(np.float32))
    w = fg.Tensor((rng.normal(size=(count, depth)) * 0.1).astype(np.float32))
    places = fg.Tensor(rng.integers(0, count, rows))
    square = fg.Tensor(rng.normal(size=(1024, 1024)).astype(np.float32))

    def weighed(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
        return (fg.softmax(q @ k.mT * q.shape[-1] ** -0.5, axis=-1) @ v * g).sum()

    def loss(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        return fg.cross_entropy(x @ w.mT, places)

    def with_gradients(call: Callable[..., fg.Tensor], *given: fg.Tensor) -> list[fg.Tensor]:
        value, slopes = fg.value_and_grad(call, argnums=tuple(range(len(given))))(*given)
        return [value, *slopes]

    works: dict[str, Callable[[], list[fg.Tensor]]] = {
        "": lambda: [fg.softmax(q @ k.mT * q.shape[-1] ** -0.5, axis=-1) @ v],
        "causal": lambda: [fg.scaled_dot_product_attention(q, k, v, is_causal=True)],
        "gradients": lambda: with_gradients(weighed, q, k, v),
        "classes": lambda: [loss(x, w)],
        "classes, gradients": lambda: with_gradients(loss, x, w),
    }
    found: dict[str, Callable[[], object]] = {}
    lines = []
    with fg.config(threads=threads):
        plan = fg.schedule(square @ square)
        plan.run()
        found["matmul 1024"] = plan.run
        for work, make in works.items():
            for name, search in (("greedy", False), ("chosen", True)):
                with fg.config(search=search):
                    results = make()
                    report = fg.explain(*results)
                    what = ", ".join([kernel.kind for kernel in report.kernels])
                    most = f"{report.peak_bytes / 1e6:9.1f} MB at most"
                    lines.append(f"{title(name, work):28} {most}, {what}")
                    plan = fg.schedule(*results)
                    plan.run()  # compiled under these options
                    found[title(name, work)] = plan.run
    return found, lines


def title(name: str, work: str) -> str:
    """What a line is called."""
    return f"{name}, {work}" if work else name


def torch_worker(size: str, threads: int, clock: Callable[[], float]) -> None:
    """The process that has torch: every command is one call."""
    import torch

    torch.set_num_threads(threads)
    given = [torch.from_numpy(array) for array in inputs(size)[:3]]
    attention = torch.nn.functional.scaled_dot_product_attention
    serve(
        {
            "torch": lambda: spent(lambda: attention(*given), clock),
            "torch, causal": lambda: spent(lambda: attention(*given, is_causal=True), clock),
        }
    )


def main() -> None:
    """Time all of it and print one table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="1x8x4096x64")
    parser.add_argument("--classes", default="512x256x32000", help="rows, depth, classes")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--peers", default=sys.executable, help="an interpreter with torch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--only", default="", help="lines whose name has this in it")
    parser.add_argument("--json", type=Path, help="write ours and torch's times to this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    clock = CLOCKS[given.clock]
    if given.worker:
        torch_worker(given.size, given.threads, clock)
        return
    plans, lines = ours(given.size, given.classes, given.threads)
    works = {n: partial(spent, call, clock) for n, call in plans.items()}
    command = [given.peers, __file__, "--worker", "--size", given.size,
               "--threads", str(given.threads), "--clock", given.clock]  # fmt: skip
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
        works = {n: w for n, w in works.items() if given.only in n or n == "matmul 1024"}
        best = dict.fromkeys(works, float("inf"))
        for _ in range(given.repeats):
            for name, run in works.items():
                best[name] = min(best[name], run())
    report(best, given.size)
    if given.json:
        pairs = {
            title("attention", w): (title("chosen", w), title("torch", w)) for w in ("", "causal")
        }
        rows = {
            work: {"ours": {"best": best[own] * 1e3}, "torch": {"best": best[peer] * 1e3}}
            for work, (own, peer) in pairs.items()
        }
        facts = machine(given.peers, given.threads)
        given.json.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")
    print(*lines, sep="\n")


def report(best: dict[str, float], size: str) -> None:
    """Print the table."""
    batch, heads, length, depth = sizes(size)
    flops = 4 * batch * heads * length * length * depth
    rate = 2 * 1024**3 / best["matmul 1024"]
    for name, seconds in best.items():
        plain = name in ("greedy", "chosen", "torch") or "causal" in name
        share = f"{flops / seconds / rate:6.2f} of matmul's rate" if plain else ""
        print(f"{name:28} {seconds * 1e3:9.2f} ms {share}")
    for name, seconds in best.items():
        work = name.removeprefix("chosen")
        for other in ("greedy", "torch"):
            if name.startswith("chosen") and other + work in best:
                print(f"{other}{work} / {name}: {best[other + work] / seconds:.2f}")
    if {"chosen", "chosen, causal"} <= set(best):
        print(f"chosen / causal: {best['chosen'] / best['chosen, causal']:.2f}")


if __name__ == "__main__":
    main()
