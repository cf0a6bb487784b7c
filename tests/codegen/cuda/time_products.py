"""Forms of Hopper's GEMM beside cuBLAS, as kernels in CUDA graphs: `-m ...cuda.time_products`.

In: names of forms (tables with one tile each), and a limit of seconds. Out: for each product of
`bench.hopper` the time of each form and of cuBLAS, in microseconds. Launches are repeated in a
graph over three sets of memory in turn, so that the host has no part in what is measured. Every
form is checked first, against float64 at random shapes (`gluon_on_gpu.py` has the products).
`--compile` only compiles all texts, which needs no GPU.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, log, prod
from multiprocessing import get_context
from typing import Any, NamedTuple

os.environ.setdefault("FULGURITE_DEVICE", "reference")
os.environ.setdefault("FULGURITE_DISK_CACHE", "0")

import numpy as np

from bench import hopper
from fulgurite.codegen.cuda import source
from fulgurite.codegen.cuda.source import KernelSource
from fulgurite.codegen.cuda.tiling import HOPPER, GpuTable
from fulgurite.graph.ir.kernel import params_of
from tests.codegen.cuda import gluon_on_gpu, products
from tests.codegen.cuda.launching import Gpu, compiled
from tests.codegen.cuda.workloads import rendered, scheduled

SETS = 3
LEAST_US = 1500.0  # of a graph
WIDE = ((8192, 3072, 768, "gelu"), (8192, 768, 3072, "residual"), (4096, 4096, 4096, "gelu"),
        (4096, 4096, 4096, "residual"), (50176, 256, 64, "nt"), (50176, 64, 256, "nt"),
        (200704, 256, 64, "nt"), (200704, 64, 256, "nt"), (12544, 1024, 256, "nt"),
        (3136, 2048, 512, "nt"))  # fmt: skip


class Form(NamedTuple):
    """A table by name, and whether it is only for products of few tiles."""

    name: str
    table: GpuTable


def form(name: str, *tile: float, **fields: Any) -> Form:
    """A table with one tile and no split-K."""
    given = {"gluon_least": 0, "gluon_splits": 0, "gluon_streamk": False, **fields}
    return Form(name, replace(HOPPER, gluon_tiles=(tile,), **given))


FORMS = (
    Form("chosen", HOPPER),
    form("old128x256x3", 128, 256, 64, 3, 1.0, gluon_store=False),
    form("128x256x3", 128, 256, 64, 3, 1.0),
    form("128x256x4", 128, 256, 64, 4, 1.0),
    form("256x128x4", 256, 128, 64, 4, 1.0),
    form("128x128x6", 128, 128, 64, 6, 1.0),
    form("64x256x5", 64, 256, 64, 5, 1.0),
    form("64x128x8", 64, 128, 64, 8, 1.0),
    form("turns128x128x5", 128, 128, 64, 5, 1.0, 2),
    form("turns64x256x4", 64, 256, 64, 4, 1.0, 2),
    form("turns128x64x8", 128, 64, 64, 8, 1.0, 2),
    form("two128x64x4", 128, 64, 64, 4, 1.0, 1, 2),
    form("two128x128x3", 128, 128, 64, 3, 1.0, 1, 2),
    form("two64x128x4", 64, 128, 64, 4, 1.0, 1, 2),
    form("group4", 128, 256, 64, 4, 1.0, gluon_group=4),
    form("group16", 128, 256, 64, 4, 1.0, gluon_group=16),
    form("turns_group16", 128, 128, 64, 5, 1.0, 2, gluon_group=16),
    form("stream128x256x4", 128, 256, 64, 4, 1.0, gluon_streamk=True, flag_ns=-1e9),
    form("stream256x128x4", 256, 128, 64, 4, 1.0, gluon_streamk=True, flag_ns=-1e9),
    form("stream128x128x6", 128, 128, 64, 6, 1.0, gluon_streamk=True, flag_ns=-1e9),
    form("stream64x256x5", 64, 256, 64, 5, 1.0, gluon_streamk=True, flag_ns=-1e9),
    form("stream64x128x8", 64, 128, 64, 8, 1.0, gluon_streamk=True, flag_ns=-1e9),
)


class Work(NamedTuple):
    """A product by its sizes."""

    m: int
    n: int
    k: int
    product: products.Product

    @property
    def name(self) -> str:
        """As tables have it."""
        return f"{self.m}x{self.n}x{self.k} {self.product.name}"


def works() -> list[Work]:
    """The products of `bench.hopper`, with their layouts, and some with epilogues."""
    found = [
        Work(*sizes, products.product("nt" if number % 2 else "nn"))
        for number, sizes in enumerate([*hopper.SQUARES, *hopper.RECTANGLES])
    ]
    return found + [Work(m, n, k, products.product(name)) for m, n, k, name in WIDE]


def made(work: Work, forms: Sequence[Form]) -> dict[str, tuple[Any, KernelSource]]:
    """A product's kernel as launches of each form, where it is one kernel in Gluon."""
    build: Any = work.product
    (item,) = scheduled(build, work.product.inputs(work.m, work.n, work.k)).items
    found = {one.name: rendered(item.kernel, one.table) for one in forms}
    return {
        name: (item.kernel, code)
        for name, code in found.items()
        if code.launches[0].language == "gluon"
    }


PLAIN = 4  # products, the first, whose results are only rounded


def checked(forms: Sequence[Form], rng: np.random.Generator, each: int) -> list[Any]:
    """Every form at random shapes, over its products in turn, with few programs and with many."""
    found: list[Any] = []
    for number in range(each):
        for one in forms:
            count = PLAIN if one.name.startswith("turns") else len(products.PRODUCTS)
            product = products.PRODUCTS[number % count]
            table = replace(one.table, processors=(1, 3, 132)[number % 3], gluon_least=0)
            m, n, k = (int(rng.integers(1, most)) for most in (700, 45, 65))
            step = 8 if number % 5 == 4 else 16
            m = step * -(-m // step) if product.transposed[0] else m
            shape = m, step * n, step * k

            def exact(*given: Any, product: Any = product) -> tuple[Any, ...]:
                import fulgurite as fg

                return (product(*[fg.Tensor(a.astype(np.float64)) for a in given]).numpy(),)

            case = gluon_on_gpu.case(
                one.name, (*shape, number % 3), product, product.inputs(*shape), table, exact, rng
            )
            found += [] if case is None else [case]
    return found


class Clock:
    """Launches in graphs, over memory of random numbers."""

    def __init__(self, gpu: Gpu, nbytes: int = 5 << 30) -> None:
        self.gpu, self.nbytes = gpu, nbytes
        self.arena = gpu.arena(nbytes)

    def microseconds(self, kernel: Any, code: KernelSource) -> float:
        """Of a kernel's launches, the median of graphs of many."""
        end = self.arena + (1 << 20)
        sets = []
        for _ in range(SETS):
            params = []
            for param in params_of(kernel):
                params.append(end)
                count = prod([n for n in param.shape if isinstance(n, int)]) * param.dtype.itemsize
                end += -(-count // 256) * 256 + 256
            bases = {source.ROOM: end, source.ERROR: self.arena, source.LOCK: self.arena + 4096}
            bases |= {source.FLAGS: self.arena + 8192}
            end += -(-code.workspace // 256) * 256
            assert end < self.arena + self.nbytes, "more memory than there is"
            sets.append([
                (self.gpu.function(n), n.grid, self.gpu.arguments(n, params, bases, {}))
                for n in code.launches
            ])  # fmt: skip
        once = self._graph([launch for one in sets for launch in one]) / SETS
        count = SETS * max(1, int(LEAST_US / max(once, 1.0) / SETS))
        every = [launch for i in range(count) for launch in sets[i % SETS]]
        return self._graph(every) / count

    def _graph(self, launches: Sequence[Any]) -> float:
        return sorted(self.gpu.times(launches, 6)[1:])[2]


def peer(work: Work) -> float:
    """Microseconds of torch's, captured in a graph."""
    import torch

    names = {"nn": lambda a, b: a @ b, "nt": lambda a, b: a @ b.T}
    if work.product.name not in names:
        return float("nan")
    call: Callable[..., Any] = names[work.product.name]
    sets = [
        [torch.randn(shape, device="cuda", dtype=torch.float32).to(torch.bfloat16)
         for shape, _ in work.product.inputs(work.m, work.n, work.k)]
        for _ in range(SETS)
    ]  # fmt: skip

    def timed(count: int) -> float:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = [call(*sets[i % SETS]) for i in range(count)]
            del kept
        found = []
        for _ in range(6):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            graph.replay()
            last.record()
            torch.cuda.synchronize()
            found.append(float(first.elapsed_time(last)) * 1e3)
        return sorted(found[1:])[2] / count

    call(*sets[0])
    once = timed(SETS)
    return timed(SETS * max(1, int(LEAST_US / max(once, 1.0) / SETS)))


def run_checks(gpu: Any, cases: Sequence[Any], until: float) -> set[str]:
    """Forms of which something is wrong."""
    wrong: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    for case in cases:
        if time.monotonic() > until:
            break
        counts[case.family] = counts.get(case.family, 0) + 1
        try:
            problem = gluon_on_gpu.check(gpu, case)
        except Exception as reason:
            problem = f"{type(reason).__name__} {str(reason)[-200:]}"
        if problem:
            wrong.setdefault(case.family, []).append(f"{case.shape}: {problem}")
        if "Lost" in problem or "Timeout" in problem:
            print(f"STOPPED by {case.family} {case.shape}: {problem}", flush=True)
            os._exit(1)
    print("right:", ", ".join([
        f"{name} {count - len(wrong.get(name, ()))}/{count}" for name, count in counts.items()
    ]), flush=True)  # fmt: skip
    for name, lines in wrong.items():
        print(*[f"  WRONG {name} {line}" for line in lines[:4]], sep="\n", flush=True)
    return {*wrong}


def main() -> None:
    """Check and time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("forms", nargs="*", help="all")
    parser.add_argument("--seconds", type=float, default=140.0)
    parser.add_argument("--each", type=int, default=30, help="random shapes of a form")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rows", type=int, default=1000, help="products that are timed")
    asked = parser.parse_args()
    begun, seed = time.monotonic(), int(time.time())
    forms = [f for f in FORMS if not asked.forms or f.name in asked.forms]
    cases = checked(
        [f for f in forms if "group" not in f.name], np.random.default_rng(seed), asked.each
    )
    timed = {work.name: made(work, forms) for work in works()[: asked.rows]}
    launches = {n.key: n for case in cases for n in case.made.launches}
    launches |= {
        n.key: n for found in timed.values() for _, code in found.values() for n in code.launches
    }
    print(f"{len(launches)} texts, {time.monotonic() - begun:.0f} s", flush=True)
    with get_context("spawn").Pool(os.cpu_count()) as pool:
        cubins = dict(zip(launches, pool.map(compiled, launches.values(), 1), strict=True))
    for key, cubin in list(cubins.items()):
        if isinstance(cubin, str):
            print("NOT COMPILED", cubin[:300], launches[key].text[-1500:])
            del cubins[key]
    spilt = [launches[key].text.count("\n") for key, cubin in cubins.items() if cubin.stack]
    print(f"seed {seed}: {len(cubins)} texts, {len(spilt)} with a stack, "
          f"{time.monotonic() - begun:.0f} s", flush=True)  # fmt: skip
    for key, cubin in cubins.items():
        if cubin.shared > HOPPER.shared_bytes:
            print(f"TOO MUCH shared memory: {cubin.shared} {launches[key].warps}")
    if asked.compile:
        return
    from tests.codegen.cuda.launching import Gpu

    gpu = Gpu()
    gpu.cubins = cubins
    bad = run_checks(gpu, cases, begun + 0.7 * asked.seconds)
    print(f"{time.monotonic() - begun:.0f} s", flush=True)
    clock = Clock(gpu)
    best: list[float] = []
    for work in works()[: asked.rows]:
        if time.monotonic() - begun > asked.seconds:
            print("out of time")
            break
        theirs = peer(work)
        found: dict[str, float] = {}
        for one in forms:
            if one.name in timed[work.name] and one.name not in bad:
                found[one.name] = clock.microseconds(*timed[work.name][one.name])
        order = sorted(found, key=lambda name: found[name])
        ratio = theirs / found[order[0]] if order else float("nan")
        best += [ratio] if ratio == ratio else []
        cells = " ".join([f"{name} {found[name]:.1f}" for name in order])
        print(f"{work.name}: cuBLAS {theirs:.1f} best {ratio:.2f} | {cells}", flush=True)
    if best:
        mean = exp(sum([log(r) for r in best]) / len(best))
        print(f"best of forms: geometric mean {mean:.3f}, least {min(best):.2f}, of {len(best)}")


if __name__ == "__main__":
    main()
