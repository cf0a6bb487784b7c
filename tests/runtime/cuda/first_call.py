"""Where the time of a first call goes, on a GPU: `python -m tests.runtime.cuda.first_call gpt2`.

In: a model of `bench.steps`, `mlp` or `softmax`; with `threads` this process compiles; with `dry`
there is no GPU, nothing is compiled and kernels do nothing, so that what is left is this process's
own work. Out: seconds by the clock, and of all processors, of the first calls and of their stages:
rendering, compiling, loading machine code.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import fulgurite as fg
from bench import steps
from fulgurite import nn, optim
from fulgurite.codegen.cuda.compilation import pool
from fulgurite.runtime.cuda import driver
from fulgurite.runtime.cuda.device import CudaDevice
from fulgurite.runtime.cuda.kernels import KernelTable

spent: dict[str, list[float]] = {}


def busy() -> float:
    """Seconds of all processors, of this process and of those it waited for."""
    found = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum([one.ru_utime + one.ru_stime for one in found])


def timed(owner: Any, name: str, what: str) -> None:
    """Add up the time of a function."""
    real = getattr(owner, name)

    def wrapped(*given: Any, **more: Any) -> Any:
        begun, worked = time.perf_counter(), busy()
        try:
            return real(*given, **more)
        finally:
            total = spent.setdefault(what, [0.0, 0.0, 0.0])
            total[0] += time.perf_counter() - begun
            total[1] += busy() - worked
            total[2] += 1

    setattr(owner, name, wrapped)


def step_of(name: str) -> Callable[[int], Any]:
    """What is called."""
    rng = np.random.default_rng(0)
    if name in steps.SIZES:
        sizes = steps.TINY if "tiny" in sys.argv else steps.SIZES
        return steps.ours(name, sizes[name], "cuda")[0]
    x = fg.Tensor(rng.standard_normal((128, 784)).astype("float32"), device="cuda").realize()
    if name == "softmax":
        return lambda _: fg.softmax(x, axis=-1).sum()
    with fg.config(device="cuda"):
        model = nn.Sequential(
            nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )
        optimizer = optim.Adam(model.parameters(), lr=1e-3)
        y = fg.Tensor(rng.integers(0, 10, 128))

        @fg.jit
        def step() -> fg.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            found: fg.Tensor = loss
            return found

    return lambda _: step()


def without_gpu() -> None:
    """Put a libcuda without a GPU in place, and nothing in the place of machine code."""
    from fulgurite.codegen.cuda import generator
    from fulgurite.codegen.cuda.compilation.compiler import Cubin
    from fulgurite.runtime.device import register_device
    from tests.runtime.cuda import fake

    os.environ["FULGURITE_LIBCUDA"] = fake.library()
    os.environ["FULGURITE_DISK_CACHE"] = "0"
    register_device("cuda", CudaDevice, lambda: 1)
    generator.load_compiler_ahead = lambda: None
    generator.compile_ahead = lambda kernels, over: None
    KernelTable.cubin = lambda self, launch: Cubin(b"0", "kernel", 0, launch.warps, 1, 0)  # type: ignore[method-assign]


def main() -> None:
    """Three calls and where their time went."""
    if "dry" in sys.argv:
        without_gpu()
    if "threads" in sys.argv:
        pool.start = lambda: None
    begun = time.perf_counter()
    run = step_of(sys.argv[1])
    print(f"{sys.argv[1]}: made in {time.perf_counter() - begun:.2f} s", end="")
    timed(CudaDevice, "compile_guarded", "render and compile")
    timed(KernelTable, "add", "compile")
    timed(driver.Module, "__init__", "load")
    with fg.config(device="cuda"):
        for number in range(3):
            begun, worked = time.perf_counter(), busy()
            float(run(number))
            took = time.perf_counter() - begun
            print(f"; call {number} {took:.2f} s ({busy() - worked:.2f} busy)", end="")
    for what, (seconds, worked, count) in spent.items():
        print(f"; {what} {seconds:.2f} ({worked:.2f} busy, {count:.0f} times)", end="")
    print(f"; triton: {'triton' in sys.modules}")


if __name__ == "__main__":
    main()
