"""GPU time of each launch of a training step's plan: `python -m tests.codegen.cuda.time_plan`.

In: a model of `bench.steps`. Out: for each kernel the time of each of its launches, and their sums.
A launch is repeated in a CUDA graph, so that the host has no part in what is measured: the profiler
launches one at a time, which for short launches is the time of the host. Memory is random numbers
of bfloat16, or places from 0 to 999. `--tables default,plain` renders the same plan by several
tables, and says which kernels become quicker; `--fields joined_sums=True` makes another plan.
`--list` prints the launches of the plan with what their memory takes at the GPU's rate, and needs
no GPU.
"""

from __future__ import annotations

import argparse
import ast
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import numpy as np

import fulgurite as fg
from bench import steps
from fulgurite.codegen.cuda import source, tiling
from fulgurite.codegen.cuda.compilation.compiler import Cubin
from fulgurite.codegen.cuda.source import KernelSource, Launch
from fulgurite.codegen.cuda.tiling import HOPPER, GpuTable
from fulgurite.config import current
from fulgurite.core.dtype import dtype_of
from fulgurite.core.node import Node
from fulgurite.core.ops.leaf import new_buffer
from fulgurite.graph.fusion.machine import work_of
from fulgurite.graph.ir.cache_key import normalize, restore
from fulgurite.graph.ir.kernel import Kernel, Schedule, params_of
from fulgurite.runtime.cuda import driver as cuda
from fulgurite.runtime.pipeline import Context, Scratch, schedule_of
from fulgurite.runtime.plan import without_joints
from fulgurite.tensor import wrap
from tests.runtime.cuda import fake

from .launching import Gpu, compiled
from .workloads import rendered

ARENA = 3 << 30
PLACES = 1 << 26  # bytes of whole numbers of each width
REPEATS = 20
BYTES_PER_US = 4.3e6  # of an H200, as copies reach
PRODUCTS_PER_US = 7e8  # operations of 16 bits, as large products reach
JOINED = {  # rows whose columns are added up: rows, warps, programs a processor, stages
    "x".join(map(str, sizes)): replace(
        HOPPER, joined_sums=True, joined_rows=sizes[0], joined_warps=sizes[1],
        joined_programs=sizes[2], joined_stages=sizes[3],
    )
    for sizes in ((1, 8, 4, 1), (1, 8, 4, 2), (1, 8, 4, 3), (2, 16, 2, 1), (1, 4, 5, 1),
                  (1, 4, 8, 1), (1, 4, 8, 2), (2, 8, 4, 1), (1, 2, 8, 1), (1, 8, 8, 1))
}  # fmt: skip
TABLES = {
    "default": HOPPER, "many": replace(HOPPER, many_rows=4096, many=4),
    "plain": replace(HOPPER, gluon_store=False, gluon_streamk=False), **JOINED,
    **{f"lanes{n}": replace(HOPPER, online_lanes=n) for n in (0, 4, 16)},
    **{f"chunk{n}": replace(HOPPER, chunk_elements=n) for n in (2048, 8192)},
    **{f"tile{n}": replace(HOPPER, gluon_tiles=(t,)) for n, t in enumerate(HOPPER.gluon_tiles)},
}  # fmt: skip


def plan(name: str, size: steps.Size) -> Schedule:
    """The schedule of a training step, over memory that does not exist."""

    def empty(shape: tuple[int, ...], dtype: str) -> fg.Tensor:
        return wrap(new_buffer(shape, dtype_of(dtype)))

    with fg.config(device="reference"):
        model = steps.our_model(name, size)
        state = model.state_dict()
        model.load_state_dict({k: empty(tuple(v.shape), str(v.dtype)) for k, v in state.items()})
        images = name == "resnet50"
        shape = (size.batch, 3, size.length, size.length) if images else (size.batch, size.length)
        x = empty(shape, "float32" if images else "int64")
        y = empty((size.batch,) if images else shape, "int64")
        optimizer = steps.our_optimizer(name, model)
        with fg.autocast("bfloat16"):
            loss = steps.our_loss(name, model, x, y)
        loss.backward()
        with patch("fulgurite.optim.optimizer.realize_step"):  # as a jitted step: nothing runs yet
            optimizer.step()
        found = fg.tree.leaves([model.state_dict(), optimizer.state_dict()])
        return scheduled([loss, *[t for t in found if isinstance(t, fg.Tensor)]])


def scheduled(roots: Sequence[fg.Tensor], over: Sequence[tuple[Node, int]] = ()) -> Schedule:
    """The kernels that compute some values on a GPU; roots may write `over` buffers."""
    normal = normalize([root.entry.node for root in roots])
    sink = restore(normal.structure, normal.constants, {}, normal.nodes)
    donated = tuple([(normal.buffers.index(node), root) for node, root in over])
    context = Context(current(), "cuda", len(normal.buffers), donated, scratch=Scratch(donated))
    return without_joints(schedule_of(sink, context))


def _nbytes(param: Node) -> int:
    return prod([n for n in param.shape if isinstance(n, int)]) * param.dtype.itemsize


class Clock:
    """Launches in graphs of their own, over one piece of memory."""

    def __init__(self, gpu: Gpu, values: Mapping[str, int]) -> None:
        self.gpu, self.values = gpu, values  # of variables
        self.arena = gpu.arena(ARENA)
        self.places: dict[int, int] = {}  # bytes of a whole number -> memory full of such ones
        for width in (4, 8):
            whole = np.random.default_rng(1).integers(0, 1000, PLACES // width, f"i{width}")
            place = self.places[width] = gpu.pool.allocate(PLACES, gpu.stream)
            cuda.copy_in(gpu.driver, place, whole.ctypes.data, PLACES, gpu.stream)
        gpu.stream.synchronize()

    def packed(self, kernel: Kernel, made: KernelSource, at: int) -> tuple[list[Any], int]:
        """Functions, grids and arguments of a kernel's launches over memory from an offset on."""
        gpu, end, params = self.gpu, self.arena + (1 << 20) + at, []
        for param in params_of(kernel):
            if _is_place(param):
                assert _nbytes(param) <= PLACES, "more whole numbers than there are"
                params.append(self.places[param.dtype.itemsize])
                continue
            params.append(end)
            end += -(-_nbytes(param) // 256) * 256 + 256
        assert end + made.workspace < self.arena + ARENA, "more memory than there is"
        bases = {source.ROOM: end, source.ERROR: self.arena, source.LOCK: self.arena + 4096}
        bases |= {source.FLAGS: self.arena + 8192}
        found = [
            (gpu.function(launch), launch.grid, gpu.arguments(launch, params, bases, self.values))
            for launch in made.launches
        ]
        return found, end + made.workspace - self.arena

    def times(self, kernel: Kernel, made: KernelSource) -> list[float]:
        """Microseconds of each launch, the least of five graphs of many."""
        return [self.time([one] * REPEATS) / REPEATS for one in self.packed(kernel, made, 0)[0]]

    def in_order(self, schedule: Schedule, made: dict[Kernel, KernelSource]) -> float:
        """Microseconds of all launches in one graph, over memory that others were at before."""
        launches: list[Any] = []
        at = 0
        for item in schedule.items:
            if item.kernel in made:
                code = made[item.kernel]
                needed = sum([_nbytes(p) + 512 for p in params_of(item.kernel)]) + code.workspace
                at = 0 if at + needed + (2 << 20) > ARENA else at
                found, at = self.packed(item.kernel, code, at)
                launches += found
        return self.time(launches)

    def time(self, launches: list[Any]) -> float:
        """Microseconds of launches one behind the other in a graph, the least of five."""
        return min(self.gpu.times(launches, 5))


def _is_place(param: Node) -> bool:
    """True of whole numbers by which others may be looked up."""
    return not param.dtype.is_float and param.dtype.bits > 8


def show_launches(schedule: Schedule, table: GpuTable = HOPPER) -> None:
    """Print the launches of a plan, and how many texts they have."""
    sources = {item.kernel: rendered(item.kernel, table) for item in schedule.items}
    for number, item in enumerate(schedule.items):
        params = params_of(item.kernel)
        nbytes, shape = sum(map(_nbytes, params)), max(params, key=_nbytes).shape
        each = [f"{n.language[0]}{n.grid}x{n.warps}" for n in sources[item.kernel].launches]
        print(f"{number:4} {item.kernel.kind.name:8} {nbytes / 4.2e6:6.1f} us {shape}", *each)
    launches = [n for item in schedule.items for n in sources[item.kernel].launches]
    texts = {n.key for n in launches}
    print(f"{len(schedule.items)} kernels, {len(launches)} launches, {len(texts)} texts")


def cubins_of(launches: dict[Any, Launch]) -> dict[Any, Cubin | str]:
    """Machine code of launches, or why there is none, which is printed."""
    started = time.monotonic()
    with get_context("spawn").Pool(os.cpu_count()) as pool:
        cubins = dict(zip(launches, pool.map(compiled, launches.values(), 1), strict=True))
    for key, cubin in cubins.items():
        if isinstance(cubin, str):
            print("NOT COMPILED", cubin[:300], launches[key].text[-1500:])
    print(f"{len(launches)} texts compiled in {time.monotonic() - started:.1f} s", flush=True)
    return cubins


def time_all(
    schedule: Schedule, tables: dict[str, GpuTable], kinds: list[str], rows: int,
    values: Mapping[str, int], only: Sequence[int] = (),
) -> None:  # fmt: skip
    """Print the slowest kernels of a plan by each table, sums by kinds, and the whole."""
    kernels = Counter(i.kernel for i in schedule.items if i.kernel.kind.name in kinds)
    wanted = {schedule.items[n].kernel for n in only}
    kernels = Counter({k: n for k, n in kernels.items() if not only or k in wanted})
    first = {i.kernel: f"#{n}" for n, i in reversed(list(enumerate(schedule.items)))}
    made = {name: {k: rendered(k, table) for k in kernels} for name, table in tables.items()}
    every = [n for some in made.values() for m in some.values() for n in m.launches]
    cubins = cubins_of({n.key: n for n in every})
    bad = {key for key, cubin in cubins.items() if isinstance(cubin, str)}
    clock = Clock(Gpu(), values)
    clock.gpu.cubins |= {key: c for key, c in cubins.items() if not isinstance(c, str)}
    known: dict[tuple[Any, ...], list[float]] = {}  # of launches with arguments
    before: dict[Kernel, float] = {}
    for name, some in made.items():
        whole = {k: m for k, m in some.items() if not any(n.key in bad for n in m.launches)}
        found: list[tuple[float, str]] = []
        sums: dict[str, float] = {}
        for kernel, code in whole.items():
            count, key = kernels[kernel], (kernel, *[n.key for n in code.launches])
            known[key] = times = known.get(key) or clock.times(kernel, code)
            kind = kernel.kind.name
            sums[kind] = sums.get(kind, 0.0) + count * sum(times)
            gain = count * (before.setdefault(kernel, sum(times)) - sum(times))
            gap = count * max(0.0, sum(times) - floor_us(kernel))
            text = f"{count * sum(times):8.0f} {gain:+7.0f} {_row(kernel, code, count, times)}"
            found.append((gap, f"{text} {first[kernel]}"))
        print(f"--- {name}: us above the floor, us of all, us won, kernel")
        for total, text in sorted(found, reverse=True)[:rows]:
            print(f"{total:8.0f} {text}")
        print({kind: f"{us / 1e3:.2f} ms" for kind, us in sums.items()})
        print(f"all of these in order, once: {clock.in_order(schedule, whole) / 1e3:.2f} ms")
        left = Counter(i.kernel.kind.name for i in schedule.items if i.kernel not in whole)
        print("left out:", dict(left), flush=True)


def floor_us(kernel: Kernel) -> float:
    """Microseconds that a kernel takes at least: its bytes or its products at the GPU's rates."""
    nbytes = sum([_nbytes(p) for p in params_of(kernel)])
    return max(nbytes / BYTES_PER_US, work_of(kernel).products / PRODUCTS_PER_US)


def _row(kernel: Kernel, code: KernelSource, count: int, times: list[float]) -> str:
    shape = max(params_of(kernel), key=_nbytes).shape
    each = " ".join(
        [
            f"{us:.1f}({launch.language[0]}{launch.grid}x{launch.warps})"
            for us, launch in zip(times, code.launches, strict=True)
        ]
    )
    text = f"{kernel.kind.name:8} {count:3} x {sum(times):7.1f} us, floor {floor_us(kernel):6.1f}"
    return f"{text}  {shape} {each}"


def main() -> None:
    """Time a plan."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="resnet50", choices=sorted(steps.SIZES))
    parser.add_argument("--kinds", default="REDUCE,MAP,CONTRACT,FOLD,SCATTER,SORT,SCAN")
    parser.add_argument("--tables", default="default", help=f"of {', '.join(TABLES)}")
    parser.add_argument("--fields", nargs="*", default=[], help="of the table: joined_sums=True")
    parser.add_argument("--rows", type=int, default=1000, help="kernels that are shown")
    parser.add_argument("--only", default="", help="numbers of items, as --list has them")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    if given.list:
        fake.install()
    fields = {key: ast.literal_eval(value) for key, value in [f.split("=") for f in given.fields]}
    tiling.HOPPER = replace(tiling.HOPPER, **fields)  # the plan is by these
    schedule = plan(given.model, (steps.TINY if given.tiny else steps.SIZES)[given.model])
    if given.list:
        show_launches(schedule, tiling.HOPPER)
        return
    tables = {name: replace(TABLES[name], **fields) for name in given.tables.split(",")}
    only = [int(n) for n in given.only.split(",") if n]
    time_all(schedule, tables, given.kinds.split(","), given.rows, {}, only)


if __name__ == "__main__":
    main()
