"""Models of torch on a GPU beside eager torch and inductor: cold, from a warm disk, and warm.

Run `python bench/torch_gpu.py [--train] [--only a,b] [--seconds 200] [--save FILE]`. Every first
call is of a process of its own, forked from one that has imported the libraries and not begun
CUDA: with empty caches (`cold`), then with what that left (`disk`), `--jobs` at a time on `--cores`
processors each. Processes of the second kind stay; when all are ready, or `--seconds` are over,
they time their steps one after the other, so that each is alone on the GPU and the host. A step is
the time between two CUDA events around many of them, the least of three; `host` is what it takes to
launch one. Products of float32 may be TF32 for everybody (`set_float32_matmul_precision("high")`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.torch_models import MODELS, geometric_mean

BACKENDS = ("fulgurite", "inductor")
STEP_SECONDS = 0.08  # of one measurement of steps
DEVICE = "cuda"
FORK = get_context("fork")


def prepared(suite: str, name: str, train: bool) -> tuple[Any, dict[str, Any]]:
    """A model and its input on the GPU."""
    import torch
    from torch.utils import _pytree as pytree

    from fulgurite.torch.conformance.models import SUITES, calm

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    (make,) = [each.make for each in SUITES[suite]() if each.name == name]
    model, given = make()
    given = pytree.tree_map(lambda x: x.to(DEVICE) if isinstance(x, torch.Tensor) else x, given)
    return calm(model).train(train).to(DEVICE), given


def stepper(model: Any, call: Any, given: dict[str, Any], train: bool) -> Callable[[], list[Any]]:
    """A step: results, with `train` of a forward and a backward."""
    import torch

    from fulgurite.torch.conformance.judge import tensors_in
    from fulgurite.torch.conformance.runner import _plain

    args = [given[""]] if "" in given else []
    named = {k: v for k, v in given.items() if k}

    def step() -> list[Any]:
        with torch.set_grad_enabled(train):
            results = tensors_in(_plain(call(*args, **named)))
            if train:
                for p in model.parameters():
                    p.grad = None
                sum([t.square().mean() for t in results if t.requires_grad]).backward()
        return results

    return step


def steps(step: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of a step by CUDA events, and of launching one."""
    import torch

    def run(count: int) -> tuple[float, float]:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        start = time.perf_counter()
        for _ in range(count):
            step()
        host = time.perf_counter() - start
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / count, host / count * 1e3

    run(3)
    count = max(5, min(500, int(STEP_SECONDS * 1e3 / max(run(5)[0], 1e-3))))
    found = [run(count) for _ in range(3)]
    return {"step_ms": min(x for x, _ in found), "host_ms": min(x for _, x in found)}


def child(
    task: tuple[str, str], backend: str, train: bool, home: str, cores: list[int], pipe: Any
) -> None:
    """One process: a first call, then steps whenever it is told to."""
    warnings.simplefilter("ignore")
    os.sched_setaffinity(0, cores)
    os.environ |= {
        "TORCHINDUCTOR_CACHE_DIR": f"{home}/theirs", "TRITON_CACHE_DIR": f"{home}/triton",
    }  # fmt: skip
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # until the process ends
    import torch

    import fulgurite as fg

    torch.set_num_threads(len(cores))
    try:
        with fg.config(cache_dir=f"{home}/ours"):
            _serve(task, backend, train, pipe)
    except Exception as problem:
        pipe.send({"failed": f"{type(problem).__name__}: {str(problem)[:300]}"})


def _serve(task: tuple[str, str], backend: str, train: bool, pipe: Any) -> None:
    import torch

    from fulgurite.torch.conformance.judge import distance
    from fulgurite.torch.reporting import REPORT

    model, inputs = prepared(*task, train)
    eager = stepper(model, model, inputs, train)
    step = stepper(model, torch.compile(model, backend=backend), inputs, train)
    torch.cuda.synchronize()
    start = time.perf_counter()
    ours = step()
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    pairs = [(a, b) for a, b in zip(ours, eager(), strict=True) if b.is_floating_point()]
    apart = max([distance(a, b) for a, b in pairs])
    pipe.send({"first_s": first, "apart": apart, "left": dict(REPORT.eager)})
    while pipe.recv() == "steps":
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        found = {backend: steps(step)}
        if backend == BACKENDS[-1]:
            found["eager"] = steps(eager)
        pipe.send(found)


class Started(NamedTuple):
    """A process that was begun, and what it said of its first call."""

    process: Any
    pipe: Any
    said: dict[str, Any]

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def begun(
    task: tuple[str, str], backend: str, given: Any, home: str, cores: list[int], end: float
) -> Started | None:
    """A process behind its first call; none if time is over."""
    here, there = FORK.Pipe()
    process = FORK.Process(target=child, args=(task, backend, given.train, home, cores, there))
    process.start()
    there.close()
    said: dict[str, Any] = {"failed": "no time"}
    try:
        if here.poll(max(0.0, end - time.monotonic())):
            said = here.recv()
    except EOFError:
        said = {"failed": "its process ended"}
    found = Started(process, here, said)
    if "failed" in said:
        print(f"  {task[1]} {backend}: {said['failed']}", flush=True)
        found.end()
        return None
    return found


def first_calls(
    chosen: list[tuple[str, str]], given: Any, home: str, end: float
) -> dict[tuple[str, str], dict[tuple[str, str], Started]]:
    """Of each model the seconds of first calls, and processes that are ready for steps."""
    free: SimpleQueue[list[int]] = SimpleQueue()
    for i in range(given.jobs):
        free.put(list(range(i * given.cores, (i + 1) * given.cores)))
    rows: dict[tuple[str, str], dict[tuple[str, str], Started]] = {}

    def one(number: int) -> None:
        task, backend = chosen[number // len(BACKENDS)], BACKENDS[number % len(BACKENDS)]
        if time.monotonic() > end:
            return
        cores, place = free.get(), f"{home}/{task[1]}-{backend}"
        for kind in ("cold", "disk"):
            started = begun(task, backend, given, place, cores, end)
            if started is None:
                break
            rows.setdefault(task, {})[backend, kind] = started
            if kind == "cold":
                started.end()
        free.put(cores)

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(one, range(len(chosen) * len(BACKENDS))))
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600, help="for first calls")
    parser.add_argument("--save", default="")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    wanted = given.only.split(",")
    chosen = [m for m in MODELS if any(part in m[1] for part in wanted)]
    loaded()
    with tempfile.TemporaryDirectory() as home:
        started = first_calls(chosen, given, home, end)
        rows = [row(task, started[task]) for task in chosen if task in started]
    for each in rows:
        print(shown(each), flush=True)
    if given.save:
        Path(given.save).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    for figure in ("cold", "disk", "step_ms"):
        for theirs in ("inductor", "eager"):
            pairs = [(r["fulgurite"].get(figure), r[theirs].get(figure)) for r in rows]
            found = [a / b for a, b in pairs if a and b]
            if found:
                mean = geometric_mean(found)
                print(f"{figure}, ours / {theirs}: {mean:.3f} over {len(found)}", flush=True)


def loaded() -> None:
    """Import what every process needs, and nothing that begins CUDA or compiles."""
    import fulgurite.torch
    from fulgurite.torch.conformance.models import SUITES

    assert fulgurite.torch, "the backend is known by its name"
    for suite in dict.fromkeys([suite for suite, _ in MODELS]):
        list(SUITES[suite]())


def row(task: tuple[str, str], started: dict[tuple[str, str], Started]) -> dict[str, Any]:
    """All figures of a model; its processes time their steps now, and end."""
    found: dict[str, Any] = {"name": task[1], "eager": {}, **{b: {} for b in BACKENDS}}
    for (backend, kind), each in started.items():
        found[backend] |= {kind: each.said["first_s"], "apart": each.said["apart"]}
        found[backend]["left"] = each.said["left"]
        if kind == "cold":
            continue
        each.pipe.send("steps")
        try:
            for name, figures in (each.pipe.recv() if each.pipe.poll(60) else {}).items():
                found[name] = found.get(name, {}) | figures
        except (EOFError, AttributeError):
            print(f"  {task[1]} {backend}: no steps", flush=True)
        each.end()
    return found


def shown(found: dict[str, Any]) -> str:
    """A line for a model."""
    parts = []
    for name in (*BACKENDS, "eager"):
        figures = {k: v for k, v in found[name].items() if isinstance(v, float)}
        parts.append(f"{name} " + " ".join([f"{k} {v:.3g}" for k, v in figures.items()]))
    left = found["fulgurite"].get("left") or ""
    return f"{found['name']:22} {' | '.join(parts)} {left}"


if __name__ == "__main__":
    main()
