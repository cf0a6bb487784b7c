"""Models of torch on a GPU beside eager torch and inductor: cold, from a warm disk, and warm.

Run `python bench/torch_gpu.py [--train] [--only a,b] [--seconds 150] [--all 220] [--save FILE]`.
Every first call is of a process of its own, forked from one that has imported the libraries and not
begun CUDA, `--jobs` at a time on `--cores` processors each: `cold` with empty caches, at the end
`disk` with what that left. Between them the processes time their steps one after the other, so that
each is alone on the GPU and the host. A step is the time between two CUDA events around many of
them, the least of three; `host` is what it takes to launch one. Products of float32 may be TF32 for
everybody (`set_float32_matmul_precision("high")`).
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
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.torch_models import MODELS, geometric_mean

BACKENDS = ("fulgurite", "inductor")
STEP_SECONDS = 0.05  # of one measurement of steps
DEVICE = "cuda"
FORK = get_context("fork")
Task = tuple[str, str]  # a suite, and a model of it


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


def child(task: Task, backend: str, train: bool, home: str, cores: list[int], pipe: Any) -> None:
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


def _serve(task: Task, backend: str, train: bool, pipe: Any) -> None:
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
        if backend == BACKENDS[0]:
            found["eager"] = steps(eager)
        pipe.send(found)


class Started:
    """A process that was begun, and what it said of its first call."""

    def __init__(self, task: Task, backend: str, train: bool, home: str, cores: list[int]) -> None:
        self.task, self.backend, self.cores = task, backend, cores
        self.begun = time.monotonic()
        self.said: dict[str, Any] = {}
        self.pipe, there = FORK.Pipe()
        place = f"{home}/{task[1]}-{backend}"
        self.process = FORK.Process(target=child, args=(task, backend, train, place, cores, there))
        self.process.start()
        there.close()

    def heard(self) -> bool:
        """Take what it says; False if that is no first call's result."""
        try:
            self.said = self.pipe.recv()
        except (EOFError, OSError):
            self.said = {"failed": "its process ended"}
        return "failed" not in self.said

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def first_calls(wanted: list[tuple[Task, str]], given: Any, home: str, end: float) -> list[Started]:
    """Processes behind their first calls, some at a time, until time is over. All forks are of one
    thread, which only waits."""
    free = [list(range(i * given.cores, (i + 1) * given.cores)) for i in range(given.jobs)]
    left, running, found = wanted[::-1], list[Started](), list[Started]()
    while running or left:
        while left and free and time.monotonic() < end:
            running.append(Started(*left.pop(), given.train, home, free.pop()))
        ready = wait([each.pipe for each in running], 1.0)
        for each in list(running):
            late = time.monotonic() > min(end, each.begun + given.limit)
            if each.pipe not in ready and not late:
                continue
            running.remove(each)
            free.append(each.cores)
            if each.pipe in ready and each.heard():
                found.append(each)
                print(f"  {each.task[1]} {each.backend} {each.said['first_s']:.2f}", flush=True)
            else:
                why = each.said.get("failed", "no time")
                print(f"  {each.task[1]} {each.backend}: {why}", flush=True)
                each.end()
        if time.monotonic() > end and not running:
            break
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--beside", default="", help="inductor has these alone: a,b")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--limit", type=float, default=120, help="seconds of a first call")
    parser.add_argument("--seconds", type=float, default=600, help="for cold first calls")
    parser.add_argument("--all", type=float, default=900, help="seconds of everything")
    parser.add_argument("--save", default="")
    given = parser.parse_args()
    begun, names = time.monotonic(), given.only.split(",")
    chosen = [m for m in MODELS if any(part in m[1] for part in names)]
    beside = [m for m in chosen if any(part in m[1] for part in given.beside.split(","))]
    wanted = [(task, BACKENDS[1]) for task in beside]  # they take longest
    wanted += [(task, BACKENDS[0]) for task in chosen]
    rows: dict[str, dict[str, Any]] = {
        task[1]: {"eager": {}, **{b: {} for b in BACKENDS}} for task in chosen
    }
    loaded()
    with tempfile.TemporaryDirectory() as home:
        cold = first_calls(wanted, given, home, begun + given.seconds)
        for each in sorted(cold, key=lambda each: wanted.index((each.task, each.backend))):
            note(rows, each, "cold")
            if time.monotonic() - begun < given.all:
                warm(rows, each)
            each.end()
            save(given.save, rows)
            print(f"{each.task[1]:22} {shown(rows[each.task[1]])}", flush=True)
        again = [(each.task, each.backend) for each in cold]
        for each in first_calls(again, given, home, begun + given.all):
            note(rows, each, "disk")
            each.end()
        save(given.save, rows)
    for figure in ("cold", "disk", "step_ms"):
        for theirs in (*BACKENDS[1:], "eager"):
            pairs = [(r["fulgurite"].get(figure), r[theirs].get(figure)) for r in rows.values()]
            found = [a / b for a, b in pairs if a and b]
            if found:
                mean = geometric_mean(found)
                print(f"{figure}, ours / {theirs}: {mean:.3f} over {len(found)}", flush=True)


def note(rows: dict[str, dict[str, Any]], each: Started, kind: str) -> None:
    """Keep what a process said of its first call."""
    said = each.said
    rows[each.task[1]][each.backend] |= {kind: said["first_s"], "apart": said["apart"]}
    if said["left"]:
        rows[each.task[1]][each.backend]["left"] = said["left"]


def warm(rows: dict[str, dict[str, Any]], each: Started) -> None:
    """Let a process time its steps, alone."""
    each.pipe.send("steps")
    if each.pipe.poll(20) and each.heard():
        for name, figures in each.said.items():
            rows[each.task[1]][name] |= figures
    else:
        print(f"  {each.task[1]} {each.backend}: no steps", flush=True)


def save(path: str, rows: dict[str, dict[str, Any]]) -> None:
    """Keep all rows so far."""
    if path:
        Path(path).write_text(json.dumps(rows, indent=1), encoding="utf-8")


def loaded() -> None:
    """Import what every process needs, and nothing that begins CUDA or compiles."""
    import fulgurite.torch
    from fulgurite.torch.conformance.models import SUITES

    assert fulgurite.torch, "the backend is known by its name"
    for suite in dict.fromkeys([suite for suite, _ in MODELS]):
        list(SUITES[suite]())


def shown(found: dict[str, Any]) -> str:
    """A line for a model."""
    parts = []
    for name in (*BACKENDS, "eager"):
        figures = {k: v for k, v in found[name].items() if isinstance(v, float)}
        parts.append(f"{name} " + " ".join([f"{k} {v:.3g}" for k, v in figures.items()]))
    return f"{' | '.join(parts)} {found['fulgurite'].get('left') or ''}"


if __name__ == "__main__":
    main()
