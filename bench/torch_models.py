"""Models of torch: cold, from a warm disk and warm, beside eager torch and inductor.

Run `python bench/torch_models.py [--train] [--models N] [--device cuda] [--save FILE]` with a
Python that has torch and torchvision, timm or transformers. `--jobs N` measures N models at a time,
each on `--cores` processors of its own; `--seconds` begins no model after that. Every figure of a
model and backend is of processes of their own: the first with empty caches, the second with what
that left on the disk. Seconds are wall time and processor time from the call of the compiled model
to its first result; milliseconds are the least of several steps, of the clock and (`step_cpu`) of
the processor with one thread, which is what to read on a machine that is busy. The backend `dynamo`
is dynamo's tracing alone, the least that any backend of torch.compile takes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

MODELS = [
    ("torchvision", name)
    for name in (
        "resnet18", "resnet50", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x0_5",
        "efficientnet_b0", "convnext_tiny", "densenet121", "regnet_y_400mf", "mnasnet0_5", "vgg11",
        "vit_b_16",
    )
] + [
    ("timm", name)
    for name in (
        "vit_tiny_patch16_224", "mixer_s32_224", "regnetx_002", "mobilevit_xxs",
        "edgenext_xx_small", "ghostnet_050", "gmlp_ti16_224", "resmlp_12_224", "convnext_atto",
    )
] + [
    ("transformers", name)
    for name in ("bert", "gpt2", "t5", "llama", "mistral", "bart", "vit", "albert", "opt")
]  # fmt: skip

FIGURES = ("cold", "cold_cpu", "disk", "disk_cpu", "step_ms", "step_cpu")
LEAST_STEPS = 8


def measure(suite: str, name: str, backend: str, train: bool, device: str) -> dict[str, float]:
    """The figures of one model and backend, in this process."""
    import torch
    from torch.utils import _pytree as pytree

    import fulgurite.torch
    from fulgurite.torch.conformance.models import SUITES, calm
    from fulgurite.torch.conformance.runner import _step

    assert fulgurite.torch, "the backend is known by its name"
    torch.manual_seed(0)
    if threads := int(os.environ.get("FULGURITE_THREADS", "0")):
        torch.set_num_threads(threads)
    (make,) = [each.make for each in SUITES[suite]() if each.name == name]
    model, given = make()
    model = calm(model).train(train).to(device)
    given = pytree.tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, given)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    # torch names the backend that runs dynamo's graphs as they are "eager"
    compiler = "eager" if backend == "dynamo" else backend
    call = model if backend == "eager" else torch.compile(model, backend=compiler)
    wall, used = time.perf_counter(), _used()
    _step(model, call, given, train)
    wait()
    figures = {"first_s": time.perf_counter() - wall, "first_cpu_s": _used() - used}
    for _ in range(2):
        _step(model, call, given, train)
    best = best_cpu = math.inf
    begun, runs = time.perf_counter(), 0
    while runs < LEAST_STEPS or time.perf_counter() - begun < 2:
        start, used = time.perf_counter(), time.process_time()
        _step(model, call, given, train)
        wait()
        best = min(best, time.perf_counter() - start)
        best_cpu = min(best_cpu, time.process_time() - used)
        runs += 1
    return figures | {"step_ms": best * 1e3, "step_cpu_ms": best_cpu * 1e3}


def _used() -> float:
    """Processor seconds of this process and of those that it started."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def child(
    suite: str, name: str, backend: str, given: argparse.Namespace, home: str, cores: set[int]
) -> dict[str, float]:
    """The figures of a process of its own, with caches in a folder."""
    command = [sys.executable, __file__, "--child", suite, name, backend, "--device", given.device]
    command += ["--train"] * given.train
    if cores:
        command += ["--on", ",".join(map(str, sorted(cores)))]
    environment = os.environ | {
        "FULGURITE_CACHE_DIR": f"{home}/ours", "TORCHINDUCTOR_CACHE_DIR": f"{home}/theirs",
        "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    try:
        ran = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=given.limit,
            check=True,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as problem:
        said = (problem.stderr or "") if isinstance(problem.stderr, str | None) else ""
        last = " | ".join(said.strip().splitlines()[-3:])[-600:]
        print(f"  {name} {backend}: {type(problem).__name__}: {last}", file=sys.stderr)
        return {}
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def row(suite: str, name: str, given: argparse.Namespace, cores: set[int]) -> dict[str, Any]:
    """All figures of one model."""
    found: dict[str, Any] = {"suite": suite, "name": name, "train": given.train}
    for backend in given.backends.split(","):
        with tempfile.TemporaryDirectory() as home:
            cold = child(suite, name, backend, given, home, cores)
            warm = child(suite, name, backend, given, home, cores) if backend != "eager" else {}
        found[backend] = {
            "cold": cold.get("first_s"), "cold_cpu": cold.get("first_cpu_s"),
            "disk": warm.get("first_s"), "disk_cpu": warm.get("first_cpu_s"),
            "step_ms": cold.get("step_ms"), "step_cpu": cold.get("step_cpu_ms"),
        }  # fmt: skip
    return found


def geometric_mean(values: list[float]) -> float:
    """The mean of ratios."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def ratio(rows: list[dict[str, Any]], figure: str, ours: str, theirs: str) -> float:
    """How a figure of one backend compares with another's, over models that have both."""
    pairs = [(r.get(ours, {}).get(figure), r.get(theirs, {}).get(figure)) for r in rows]
    return geometric_mean([a / b for a, b in pairs if a and b])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", nargs=3)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--models", type=int, default=len(MODELS))
    parser.add_argument("--only", default="")
    parser.add_argument("--backends", default="eager,fulgurite,inductor")
    parser.add_argument("--save", default="")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    parser.add_argument("--cores", type=int, default=2, help="processors of each, with --jobs")
    parser.add_argument("--limit", type=float, default=900, help="seconds of a process")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin none after that")
    parser.add_argument("--on", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        if given.on:
            os.sched_setaffinity(0, map(int, given.on.split(",")))
        print(json.dumps(measure(*given.child, given.train, given.device)))
        return
    backends, wanted = given.backends.split(","), given.only.split(",")
    chosen = [m for m in MODELS if any(part in m[1] for part in wanted)][: given.models]
    rows = _rows(chosen, given)
    for theirs in backends:
        if theirs != "fulgurite" and "fulgurite" in backends:
            figures = [f"{f} {ratio(rows, f, 'fulgurite', theirs):.3f}"
                       for f in FIGURES]  # fmt: skip
            print(f"ours / {theirs}, geometric means: {', '.join(figures)}")


def _rows(chosen: list[tuple[str, str]], given: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of models, measured some at a time."""
    known = sorted(os.sched_getaffinity(0))
    parts = [set(known[i * given.cores : (i + 1) * given.cores]) for i in range(given.jobs)]
    free: queue.SimpleQueue[set[int]] = queue.SimpleQueue()
    for part in parts if given.jobs > 1 else [set()]:
        free.put(part)
    begun, rows = time.monotonic(), []

    def measured(model: tuple[str, str]) -> None:
        if time.monotonic() - begun > given.seconds:
            return
        cores = free.get()
        found = row(*model, given, cores)
        free.put(cores)
        rows.append(found)
        shown = [f"{b} {_shown(found[b])}" for b in given.backends.split(",")]
        print(f"{model[1]:24} {' | '.join(shown)}", flush=True)
        if given.save:
            Path(given.save).write_text(json.dumps(rows, indent=1), encoding="utf-8")

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(measured, chosen))
    return rows


def _shown(figures: dict[str, Any]) -> str:
    return " ".join([f"{key} {value:.3g}" for key, value in figures.items() if value is not None])


if __name__ == "__main__":
    main()
