"""What the first calls of a process cost: imports, `1 + 1`, kernels, steps, and a second process.

Run `python bench/cold.py [--peers PYTHON]`. CPU time after the import, helpers' included, each
figure from a fresh process. Caches start empty; a second process finds those of the first, and
`llvmlite loaded` says whether it needed the compiler. The peers' caches on disk are on as well.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.harness import Measure, run_figures
from bench.usage import CpuClock, forget_peak, memory

GOALS: dict[str, float | None] = {
    "import, over NumPy's own (ms)": 60,
    "1 + 1 (ms)": 5,
    "first compiled kernel (ms)": 100,
    "each further kernel (ms)": 15,
    "softmax 4096x1024 (ms)": None,
    "softmax 4096x1024, second process (ms)": 50,
    "softmax 4096x1024, second process: llvmlite loaded": 0,
    "GPT forward (ms)": None,
    "GPT forward, second process (ms)": 80,
    "GPT forward, second process: llvmlite loaded": 0,
    "MLP step (ms)": 400,
    "MLP step: peak memory (MB)": None,
    "MLP step, second process (ms)": None,
    "MLP step, second process: peak memory (MB)": None,
    "GPT step (ms)": 1000,
    "GPT step: peak memory (MB)": None,
    "GPT step, second process (ms)": 120,
    "GPT step, second process: peak memory (MB)": None,
}
MODULES = {"ours": "fulgurite", "torch.compile": "torch", "jax": "jax", "tinygrad": "tinygrad"}
WORKS = {"softmax": "softmax 4096x1024", "gpt": "GPT forward"}
STEPS = {"step": "MLP step", "gpt step": "GPT step"}
KERNELS: tuple[Callable[[Any, Any], Any], ...] = (
    lambda o, p: o.gelu(p["x"] + p["bias"]),
    lambda o, p: o.softmax(p["x"]),
    lambda o, p: o.layer_norm(p["x"], p["gain"], p["bias"]),
    lambda o, p: p["x"].sum(),
    lambda o, p: p["x"] / (1.0 + p["x"] * p["x"]),
    lambda o, p: (p["x"] * p["gain"]).sum(0),
)


def empty_caches() -> None:
    """Forget what earlier processes of this system left on disk."""
    for name in ("FULGURITE_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR"):
        shutil.rmtree(os.environ[name], ignore_errors=True)
    for file in Path(os.environ["CACHEDB"]).parent.glob("tinygrad.db*"):
        file.unlink()


def started(name: str, second: bool = False) -> Any:
    """The system, imported, with empty caches or those of the process before."""
    os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{os.environ['HOME']}/jax"
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    if not second:
        empty_caches()
    from bench.systems import SYSTEMS

    return SYSTEMS[name]()


def spent(system: Any, compute: Any, arrays: Any) -> float:
    """CPU milliseconds of a first call; the inputs are there already."""
    call = system.prepared(compute, arrays)
    clock = CpuClock()
    call()
    return clock.seconds() * 1e3


def imports(name: str) -> dict[str, float]:
    """What importing adds to NumPy's own import."""
    __import__("numpy")
    before = time.process_time()
    __import__(MODULES[name])
    return {"import, over NumPy's own (ms)": (time.process_time() - before) * 1e3}


def one_and_one(name: str) -> dict[str, float]:
    """The least there is to compute."""
    import numpy as np

    system = started("ours eager" if name == "ours" else name)
    return {"1 + 1 (ms)": spent(system, lambda o, p: p["x"] + 1.0, {"x": np.ones(1, np.float32)})}


def kernels(name: str) -> dict[str, float]:
    """Six small kernels, one after the other."""
    system = started(name)
    from bench.models import normal

    arrays = normal(x=(256, 256), gain=(256,), bias=(256,))()
    times = [spent(system, compute, arrays) for compute in KERNELS]
    further = sum(times[1:]) / len(times[1:])
    return {"first compiled kernel (ms)": times[0], "each further kernel (ms)": further}


def work(name: str, which: str, second: bool) -> dict[str, float]:
    """A workload in the first process, or in a second one."""
    system = started(name, second)
    from bench.models import WORKLOADS

    load = WORKLOADS[which]
    call = system.prepared(load.compute, load.inputs())
    clock = CpuClock()
    result = call()
    cpu = clock.seconds()
    figure = f"{WORKS[which]}{', second process' if second else ''}"
    found = {f"{figure} (ms)": cpu * 1e3}
    if name == "ours":
        found[f"{figure}: llvmlite loaded"] = float("llvmlite" in sys.modules)
    load.check(system.to_numpy(result))
    return found


def step(name: str, which: str, second: bool) -> dict[str, float]:
    """A first training step, in the first process or in a second one; memory above the import's."""
    started(name, second)
    from bench import networks, training

    before = memory("VmRSS")
    call = training.CALLS[name]() if which == "step" else networks.CALLS[name](which)
    forget_peak()
    clock = CpuClock()
    call()
    cpu = clock.seconds()
    figure = f"{STEPS[which]}{', second process' if second else ''}"
    peak = memory("VmHWM") - before
    return {f"{figure} (ms)": cpu * 1e3, f"{figure}: peak memory (MB)": peak}


def measures(name: str) -> list[Measure]:
    """All of a system's, each for a process of its own."""
    pairs = [partial(work, name, which, second) for which in WORKS for second in (False, True)]
    steps = [partial(step, name, which, second) for which in STEPS for second in (False, True)]
    first = [partial(imports, name), partial(one_and_one, name), partial(kernels, name)]
    return [*first, *pairs, *steps]


if __name__ == "__main__":
    systems = {name: measures(name) for name in MODULES}
    run_figures(__doc__, __file__, systems, GOALS, rounds=3)
