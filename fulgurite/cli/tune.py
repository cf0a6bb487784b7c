"""The `fulgurite tune` command: measure this machine's rates, once.

In: the words after `fulgurite tune`. Out: a table of rates in the cache folder, and an exit code, 1
if it could not be made. Kernels that are bound by one thing each (calls, caches, memory, products,
simple arithmetic) run in turns; the least time of each gives a rate, to two digits. Programs read
the table only under `FULGURITE_TUNE=ties` or `full` with search on; without it plans come from the
table that ships with the package.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..config import Options
    from ..graph.fusion.machine import CostTable

DESCRIPTION = """Measure what this machine can do (bandwidth of caches and memory, arithmetic,
what a kernel costs beside its work) and keep it in the cache folder. It takes half a minute; run it
while nothing else does."""
EPILOG = """The table is used by programs that run with FULGURITE_TUNE=ties (kernels that cost about
the same are timed) or full (all alternatives are); the default, FULGURITE_TUNE=off, reads and
writes nothing. FULGURITE_CACHE_DIR chooses the folder."""
SIZES = tuple(1 << bits for bits in range(14, 25))  # float32 numbers: 64 KiB to 64 MiB
LINK = 1 << 15  # numbers of each kernel in a chain: enough for several threads
Runs = dict[str, Callable[[], Any]]


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `tune` to the parser of `fulgurite`."""
    parser = commands.add_parser(
        "tune",
        help="measure this machine, for programs that search for kernels",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument(
        "--rounds", type=_count, default=20, metavar="N",
        help="turns that every kernel gets (default 20): more of them, less noise",
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="smaller kernels: a second, and less exact"
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--show", action="store_true", help="print the table there is, and stop")
    action.add_argument("--reset", action="store_true", help="remove the table and all times")
    parser.set_defaults(run=_run)


def _count(text: str) -> int:
    number = int(text) if text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return number


def _run(arguments: argparse.Namespace) -> int:
    """Do what was asked; errors become lines."""
    from ..config import from_environment
    from ..errors import FulguriteError
    from ..runtime.tuning import folder_of

    try:
        options = from_environment()
        folder = folder_of(options)
        if folder is None:
            print("fulgurite tune: the disk cache is switched off by FULGURITE_DISK_CACHE, so the "
                  "table cannot be kept: unset it", file=sys.stderr)  # fmt: skip
            return 1
        if arguments.show:
            return show(folder)
        if arguments.reset:
            return reset(folder)
        return tune(options, folder, arguments.rounds, arguments.quick)
    except BrokenPipeError:  # of standard output, for `main`
        raise
    except (FulguriteError, OSError) as error:
        print(f"fulgurite tune: {error}", file=sys.stderr)
        return 1


def show(folder: str) -> int:
    """Print the table in use."""
    import warnings

    from ..codegen.cpu.machine import SHIPPED
    from ..errors import CacheWarning
    from ..runtime.tuning import read_table

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CacheWarning)
        found = read_table(folder)
    for warning in caught:
        print(f"fulgurite tune: {warning.message}", file=sys.stderr)
    whose = f"measured, {folder}" if found is not None else "not measured: those that ship"
    print(f"rates ({whose})")
    _print(found or SHIPPED)
    return 1 if caught else 0


def reset(folder: str) -> int:
    """Remove what tuning wrote."""
    removed = 0
    for name in ("table.json", "times.sqlite3", "times.sqlite3-journal"):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            os.unlink(path)
            removed += 1
    print(f"removed {removed} file{'' if removed == 1 else 's'} from {folder}")
    return 0


def tune(options: Options, folder: str, rounds: int, quick: bool) -> int:
    """Measure, write, print."""
    from ..runtime.device import get_device
    from ..runtime.tuning import write_table

    if get_device("cpu").codegen is None:
        print("fulgurite tune: there is no native code here: install llvmlite", file=sys.stderr)
        return 1
    table = measured(rounds, quick)
    path = write_table(folder, table)
    print(f"wrote {path}")
    _print(table)
    return 0


def measured(rounds: int, quick: bool = False) -> CostTable:
    """The rates of this machine, to two digits."""
    from ..codegen.cpu.machine import SHIPPED
    from ..config import config
    from .progress import Progress

    with config(device="cpu", tier="native", search=False, deterministic=True, exact=False,
                tune="off", fuse=True, simplify=True, disk_cache=False):  # fmt: skip
        runs, table_from = _kernels(quick)
        least = dict.fromkeys(runs, float("inf"))
        for run in runs.values():
            for _ in range(5):  # compile, and let schedules settle on their shortest way to run
                run()
        for _ in Progress(range(rounds), "tune"):
            for name, run in runs.items():
                for _ in range(3):
                    start = time.perf_counter_ns()
                    run()
                    least[name] = min(least[name], float(time.perf_counter_ns() - start))
    return table_from(least, SHIPPED).quantised()


def _kernels(quick: bool) -> tuple[Runs, Callable[[dict[str, float], CostTable], CostTable]]:
    """What is run, and how rates follow from the times."""
    import numpy as np

    from .. import config, exp, schedule, softmax, tanh
    from ..graph.fusion.machine import work_of
    from ..runtime.cpu import blas
    from ..tensor import Tensor

    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> Tensor:
        return Tensor(rng.normal(size=shape).astype(np.float32))

    sizes = SIZES[:6] if quick else SIZES
    side, chain = (256, 32) if quick else (1024, 32)
    runs: Runs = {}
    for size in sizes:
        runs[f"copy {size}"] = schedule(numbers(size) + 1).run
    heavy = tanh(exp(numbers(1 << 16) * 0.1) + 1)
    simple = schedule(heavy)
    simple_work = sum([work_of(item.kernel).elementwise for item in simple.items])
    runs["simple"] = simple.run
    a, b = numbers(side, side), numbers(side, side)
    product = schedule(a @ b)
    runs["product"] = product.run
    packed = sum([work_of(item.kernel).packed for item in product.items])
    found = [blas.found_product(item.kernel) for item in product.items]
    if found[0] is not None:
        with config(deterministic=False):
            vendor = schedule(a @ b)
            vendor.compile()
        runs["library"] = vendor.run
    heads, length = (2, 256) if quick else (8, 1024)
    q, k, v = (numbers(heads, length, 64) for _ in range(3))
    with config(search=True):
        fold = schedule(softmax(q @ k.mT, axis=-1) @ v)
        fold.compile()
    runs["fold"] = fold.run
    runs["nothing"] = schedule(numbers(1) + 1).run
    with config(fuse=False):
        for count in (1, chain + 1):
            x = numbers(LINK)
            for _ in range(count):
                x = x + 1.5
            kernels = schedule(x)
            kernels.compile()
            runs[f"chain {count}"] = kernels.run

    def table_from(least: dict[str, float], shipped: CostTable) -> CostTable:
        alone = least["nothing"]  # calling anything at all

        def own(name: str) -> float:
            return max(1.0, least[name] - alone)

        near = max([8 * size / own(f"copy {size}") for size in sizes])
        far, cache = far_and_cache(
            near, [(8.0 * size, own(f"copy {size}")) for size in sizes[-2:]], shipped
        )
        each = (least[f"chain {chain + 1}"] - least["chain 1"]) / chain
        launch = max(50.0, each - 8 * LINK / near)
        plain = simple_work / own("simple")
        flops = 2.0 * side**3
        # arithmetic that was not measured by itself keeps its ratio to what was
        packing = shipped.pack_rate * plain / shipped.elementwise_rate
        products = flops / max(1.0, own("product") - packed / packing)
        whole = 4.0 * heads * length * length * 64
        walking = plain * shipped.stream_rate / shipped.elementwise_rate
        inside = max(1.0, own("fold") - 15.0 * heads * length * length / walking)
        vendors = flops / own("library") if "library" in least else shipped.blas_rate
        return replace(
            shipped, launch_ns=launch, cache_bw=near, dram_bw=far, cache_bytes=cache,
            elementwise_rate=plain, stream_rate=walking, gemm_rate=products,
            stream_gemm_rate=min(whole / inside, products), pack_rate=packing, blas_rate=vendors,
            strided_rate=shipped.strided_rate * plain / shipped.elementwise_rate,
        )  # fmt: skip

    return runs, table_from


def far_and_cache(
    near: float, two: list[tuple[float, float]], shipped: CostTable
) -> tuple[float, float]:
    """The rate of memory and the bytes that caches hold, from the bytes and times of large copies.

    What is more in the larger copy came from memory; what its time then lacks was in caches.
    """
    (less, sooner), (more, later) = two
    far = min((more - less) / max(1.0, later - sooner), near)
    if far > 0.9 * near:  # all of it was in caches: nothing is known of memory
        return min(shipped.dram_bw, near), max(shipped.cache_bytes, more)
    held = (more / far - later) / (1 / far - 1 / near)
    return far, min(max(held, 1e5), more)


_UNITS = {
    "ns": "ns a kernel", "bw": "bytes a ns", "bytes": "bytes", "rate": "operations a ns",
    "byte": "ns a byte",
}  # fmt: skip


def _print(table: CostTable) -> None:
    for f in fields(table):
        unit = _UNITS.get(f.name.rsplit("_", 1)[-1], "")
        print(f"  {f.name:<21} {getattr(table, f.name):>12,g}  {unit}".rstrip())
