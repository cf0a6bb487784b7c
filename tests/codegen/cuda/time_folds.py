"""Folds of attention on a GPU under several tables: `python -m tests.codegen.cuda.time_folds`.

Arguments are tables, `name:field=value;field=value`, and folds with sizes (of folds.py), as in
`keys_of_causal/4x16x4096x128`; `compile` compiles all and runs none, which needs no GPU. One line
for each fold and table: microseconds, TFLOP/s of its products, and how far results are from those
of the first table, by norms.
"""

from __future__ import annotations

import ast
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

os.environ.setdefault("FULGURITE_DEVICE", "reference")
os.environ.setdefault("FULGURITE_DISK_CACHE", "0")

import numpy as np

from fulgurite.codegen.cuda import source
from fulgurite.codegen.cuda.compilation.compiler import Cubin, compile_launch
from fulgurite.codegen.cuda.source import Launch
from fulgurite.codegen.cuda.tiling import HOPPER, GpuTable
from fulgurite.core.dtype import array_of_bits, dtype_of
from tests.codegen.cuda.folds import FOLDS, GRADIENTS
from tests.codegen.cuda.workloads import ordered, rendered

Array = np.ndarray[Any, Any]
ROUNDS, REPEATS = 3, 10
COMPILERS = max(1, min(16, (os.cpu_count() or 2) - 1))


def table_of(text: str) -> tuple[str, GpuTable]:
    """A table by what is changed in the machine's own."""
    name, _, fields = text.partition(":")
    given = [one.split("=", 1) for one in fields.split(";") if one]
    return name, replace(HOPPER, **{key: ast.literal_eval(value) for key, value in given})


class Work:
    """A fold with its memory, under several tables."""

    def __init__(self, text: str, tables: dict[str, GpuTable]) -> None:
        self.name, _, sizes = text.partition("/")
        b, h, n, d = (int(one) for one in sizes.split("x"))
        every: Sequence[Any] = (*FOLDS, *GRADIENTS)
        one = next(fold for fold in every if fold.name == self.name)
        self.text, inputs = text, one.inputs(b, h, n, n, d)
        schedule, order = ordered(one, inputs)
        (item,) = schedule.items
        self.made = {name: rendered(item.kernel, table) for name, table in tables.items()}
        products = 2 if one in FOLDS else 2 + one.rows + 2 * one.columns
        self.flops = 2.0 * products * b * h * n * n * d * (1 if "plain" in self.name else 0.5)
        self.slots: list[tuple[Any, str]] = []  # shape and dtype, or the constant
        places = [*item.reads, *item.writes]
        for slot in places:
            known: Any = schedule.slots[slot]
            if slot < len(order):
                self.slots.append(inputs[order[slot]])
            elif known.bits is not None:
                self.slots.append((np.array(array_of_bits(known.bits, known.dtype)), ""))
            else:
                self.slots.append((known.shape, known.dtype.name))
        self.results = [places.index(slot) for slot in schedule.outputs]

    def arrays(self) -> list[Array]:
        """Random numbers; results are NaN."""
        rng = np.random.default_rng()
        drawn = rng.standard_normal(1 << 20, np.float32)
        found = []
        for place, (shape, dtype) in enumerate(self.slots):
            if not dtype:
                found.append(shape)
                continue
            kind: Any = dtype_of(dtype).numpy
            if place in self.results:
                found.append(np.full(shape, np.nan, kind))
                continue
            rng.shuffle(drawn)
            found.append(np.resize(drawn.astype(kind), shape))
        return found


def run(gpu: Any, work: Work) -> None:
    """Check and time a fold under all tables."""
    from fulgurite.runtime.cuda import driver as cuda

    arrays = work.arrays()
    params = [gpu.put(a) for a in arrays]
    first: list[Array] = []
    for name, made in work.made.items():
        for place in work.results:
            poison = np.ascontiguousarray(arrays[place])
            size = poison.nbytes
            cuda.copy_in(gpu.driver, params[place], poison.ctypes.data, size, gpu.stream)
        room = gpu.pool.allocate(max(made.workspace, 1), gpu.stream)
        ready = [
            (gpu.function(one), one.grid, gpu.arguments(one, params, {source.ROOM: room}, {}))
            for one in made.launches
        ]

        def go(count: int, launches: Any = ready) -> float:
            begun = time.perf_counter()
            for _ in range(count):
                for what, grid, packed in launches:
                    cuda.launch(gpu.driver, what, grid, packed, gpu.stream)
            gpu.wait()
            return (time.perf_counter() - begun) / count

        go(2)
        found = [gpu.get(params[p], arrays[p]).astype(np.float32) for p in work.results]
        first = first or found
        pairs = zip(found, first, strict=True)
        far = [float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs]
        best = min([go(REPEATS) for _ in range(ROUNDS)])
        stack = max([gpu.cubins[one.key].stack for one in made.launches])
        kinds = "".join([one.language[0] for one in made.launches])
        print(f"{work.text:34s} {name:12s} {kinds} {best * 1e6:8.1f} us "
              f"{work.flops / best / 1e12:6.0f} TFLOP/s, apart {max(far):.1e}, stack {stack}",
              flush=True)  # fmt: skip
        gpu.pool.free(room, gpu.stream)
    for address in params:
        gpu.pool.free(address, gpu.stream)


def compiled(launch: Launch) -> Cubin | None:
    """The machine code of a launch; None if Triton does not take it."""
    try:
        return compile_launch(launch)
    except Exception as problem:
        print(f"does not compile: {str(problem)[-300:]}")
        return None


def main(arguments: Sequence[str]) -> None:
    """All that was asked for."""
    tables = dict([table_of(one) for one in arguments if ":" in one])
    works = [Work(one, tables) for one in arguments if "/" in one]
    begun = time.monotonic()
    made = [m for work in works for m in work.made.values()]
    launches = {launch.key: launch for one in made for launch in one.launches}
    with ThreadPoolExecutor(COMPILERS) as pool:
        found = pool.map(compiled, launches.values())
        cubins: dict[object, Any] = dict(zip(launches, found, strict=True))
    print(f"{len(cubins)} texts in {time.monotonic() - begun:.0f} s", flush=True)
    if "compile" in arguments:
        for work in works:
            for name, one in work.made.items():
                cubin = cubins[one.launches[0].key]
                print(work.text, name, cubin and (cubin.stack, cubin.shared))
        return
    from tests.codegen.cuda.launching import Gpu

    gpu = Gpu()
    gpu.cubins = cubins
    for work in works:
        try:
            run(gpu, work)
        except Exception as problem:
            print(f"{work.text} FAILED {type(problem).__name__} {str(problem)[-200:]}", flush=True)
            if isinstance(problem, TimeoutError):
                os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
