"""Hopper's own forms against float64 on a GPU: `python tests/codegen/cuda/gluon_on_gpu.py [what]`.

From the repository's root. Products of every layout, epilogue and tile, and folds with every mask,
at 150 and more random shapes on fresh random numbers, over poisoned results. What: `products` or
`folds` alone, `few` shapes, names of folds, fields of the table (`sums_buffers=2`), a number as a
seed (else the time of day), `compile` to compile all texts and run none, which needs no GPU. One
line for all families, and one for each shape that is wrong. It ends at the first kernel that hangs.
"""

from __future__ import annotations

import ast
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("FULGURITE_DEVICE", "reference")
os.environ.setdefault("FULGURITE_DISK_CACHE", "0")

import numpy as np  # noqa: E402 (the path comes first: this is a script)

import fulgurite as fg  # noqa: E402
from fulgurite.codegen.cuda.source import KernelSource  # noqa: E402
from fulgurite.core.dtype import array_of_bits, dtype_of  # noqa: E402
from fulgurite.graph.ir.reshape_groups import CannotLower  # noqa: E402
from tests.codegen.cuda import folds, products  # noqa: E402
from tests.codegen.cuda.workloads import ordered, rendered  # noqa: E402

Array = np.ndarray[Any, Any]
SHAPES = 15  # of each product and each fold
COMPILERS = max(1, min(16, (os.cpu_count() or 2) - 1))
WORST = 1e-2  # of a norm: products of 16 bits are between 1e-3 and that


class Case(NamedTuple):
    """One kernel with its inputs, and what it must give."""

    family: str
    shape: tuple[int, ...]
    made: KernelSource
    arrays: list[Array]
    results: list[int]  # places of results among the arrays
    want: Callable[[], tuple[Array, ...]]


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Normal numbers."""
    return rng.standard_normal(shape, np.float32).astype(dtype_of(dtype).numpy)


def case(
    family: str, shape: tuple[int, ...], build: Any, inputs: Any, table: Any,
    exact: Callable[..., tuple[Array, ...]], rng: np.random.Generator, language: str = "gluon",
) -> Case | None:  # fmt: skip
    """A kernel in the form of a table; None if it has none in a language."""
    schedule, order = ordered(build, inputs)
    if len(schedule.items) != 1:
        return None
    (item,) = schedule.items
    try:
        made = rendered(item.kernel, table)
    except CannotLower:  # too wide for any template
        return None
    if all(launch.language != language for launch in made.launches):
        return None
    given = [random_array(rng, *one) for one in inputs]
    arrays = []
    for slot in (*item.reads, *item.writes):
        known: Any = schedule.slots[slot]
        if slot < len(order):
            arrays.append(given[order[slot]])
        elif known.bits is not None:
            arrays.append(np.array(array_of_bits(known.bits, known.dtype)))
        else:
            arrays.append(np.full(known.shape, np.nan, known.dtype.numpy))
    places = [*item.reads, *item.writes]
    results = [places.index(slot) for slot in schedule.outputs]
    return Case(family, shape, made, arrays, results, lambda: exact(*given))


def product_cases(rng: np.random.Generator, arguments: Sequence[str] = ()) -> list[Case]:
    """All products with all tiles in turn."""
    found: list[Case] = []
    for one in products.PRODUCTS:
        for number in range(SHAPES):
            tile = products.GLUON.gluon_tiles[number % len(products.GLUON.gluon_tiles)]
            m, n, k = (int(rng.integers(1, most)) for most in (700, 45, 65))
            step = 8 if number % 5 == 4 else 16  # strides are multiples of 16 bytes
            m = step * -(-m // step) if one.transposed[0] else m
            n, k = step * n, step * k

            def exact(*given: Array, one: Any = one) -> tuple[Array, ...]:
                return (one(*[fg.Tensor(a.astype(np.float64)) for a in given]).numpy(),)

            inputs = one.inputs(m, n, k)
            made = case(
                one.name,
                (m, n, k, *map(int, tile[:2])),
                one,
                inputs,
                replace(products.only(tile), **given_table(arguments)),
                exact,
                rng,
            )
            found += [] if made is None else [made]
    return found


def fold_cases(rng: np.random.Generator, arguments: Sequence[str] = ()) -> list[Case]:
    """All folds, or those that are named, with heads of all sizes in turn."""
    found: list[Case] = []
    every: Sequence[Any] = (*folds.FOLDS, *folds.GRADIENTS)
    asked = [one for one in every if one.name in arguments]
    for one in asked or every:
        for number in range(5 if "few" in arguments else SHAPES):
            d = (64, 128, 32, 80, 256)[number % 5]
            b, m, n = (int(rng.integers(low, high)) for low, high in ((1, 3), (1, 500), (64, 600)))
            table = replace(folds.GLUON, processors=1, gluon_edges=number % 4 > 1)
            table = replace(table, gluon_persistent=number % 3 > 0, gluon_uneven=64.0)
            table = replace(table, stream_fast_exp=bool(number % 2), **given_table(arguments))
            inputs = one.inputs(b, 4, m, n, d)
            made = case(one.name, (b, m, n, d), one, inputs, table, one.exact, rng)
            found += [] if made is None else [made]
    return found


def given_table(arguments: Sequence[str]) -> dict[str, Any]:
    """Fields of the table, to be tried."""
    given = [one.split("=", 1) for one in arguments if "=" in one]
    return {name: ast.literal_eval(value) for name, value in given}


def compiled(cases: Sequence[Case]) -> dict[object, Any]:
    """The machine code of all texts, made in parallel."""
    from fulgurite.codegen.cuda.compilation.compiler import compile_launch, load

    load()
    launches = {launch.key: launch for one in cases for launch in one.made.launches}
    begun = time.monotonic()
    with ThreadPoolExecutor(COMPILERS) as pool:
        made: dict[object, Any] = dict(
            zip(launches, pool.map(compile_launch, launches.values()), strict=True)
        )
    spilt = sum(cubin.stack > 0 for cubin in made.values())
    print(f"{len(made)} texts in {time.monotonic() - begun:.0f} s, {spilt} of them with a stack")
    return made


def check(gpu: Any, one: Case) -> str:
    """What is wrong with a kernel; empty if nothing is."""
    found, _ = gpu.run(one.made, one.arrays, {})
    given = zip(one.results, one.want(), strict=True)
    return "; ".join(filter(None, [compared(found[place], want) for place, want in given]))


def compared(result: Array, want: Array) -> str:
    """What is wrong with a result; empty if nothing is."""
    got = result.astype(np.float64).reshape(want.shape)
    nan = np.isnan(want)  # rows that a mask leaves nothing of
    if (np.isnan(got) & ~nan).any():
        where = np.argwhere(np.isnan(got) & ~nan)
        span = ", ".join([f"{a} to {b}" for a, b in zip(where.min(0), where.max(0), strict=True)])
        return f"{len(where)} of {got.size} elements are NaN, at {span}"
    got, want = np.where(nan, 0, got), np.where(nan, 0, want)
    error = float(np.linalg.norm(got - want) / max(float(np.linalg.norm(want)), 1e-300))
    far = float(np.abs(got - want).max() / max(float(np.abs(want).max()), 1e-300))
    return "" if error < WORST and far < 2 * WORST else f"error {error:.1e}, at most {far:.1e}"


def main(arguments: Sequence[str]) -> None:
    """All families."""
    seed = next((int(a) for a in arguments if a.isdigit()), int(time.time()))
    rng = np.random.default_rng(seed)
    cases = [] if "folds" in arguments else product_cases(rng, arguments)
    cases += [] if "products" in arguments else fold_cases(rng, arguments)
    cubins = compiled(cases)
    if "compile" in arguments:
        return
    from tests.codegen.cuda.launching import Gpu

    gpu = Gpu()
    gpu.cubins = cubins
    wrong: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    for one in cases:
        counts[one.family] = counts.get(one.family, 0) + 1
        try:
            problem = check(gpu, one)
        except Exception as reason:
            problem = f"{type(reason).__name__} {str(reason)[-200:]}"
        if problem:
            wrong.setdefault(one.family, []).append(f"{one.shape}: {problem}")
        if "Lost" in problem or "Timeout" in problem:
            break  # nothing runs after that
    print(f"seed {seed}: " + ", ".join([
        f"{name} {count - len(wrong.get(name, ()))}/{count}" for name, count in counts.items()
    ]))  # fmt: skip
    for name, lines in wrong.items():
        print(*[f"  WRONG {name} {line}" for line in lines[:4]], sep="\n", flush=True)
    if any("Timeout" in line for lines in wrong.values() for line in lines):
        os._exit(1)  # the driver would wait for it


if __name__ == "__main__":
    main(sys.argv[1:])
