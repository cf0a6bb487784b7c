"""Long rows and columns in Triton's interpreter: sums about a maximum or a mean, read once; tanh.

Prints, as JSON, how many were compared, how many read memory once, and those that were wrong.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

import fulgurite as fg
from fulgurite.codegen.cuda.render import render
from fulgurite.codegen.cuda.tiling import HOPPER, GpuTable
from fulgurite.core.dtype import bfloat16, float32
from fulgurite.graph.ir.kernel import params_of
from fulgurite.graph.ir.lower import lower
from tests.codegen.cuda import interpret

Array = np.ndarray[Any, Any]
TABLES = (
    replace(HOPPER, row_block=64, chunk_elements=64, processors=1),
    replace(HOPPER, row_block=64, chunk_elements=128, processors=1, row_peel=1),
    replace(HOPPER, row_block=16, chunk_elements=16, processors=1, online_lanes=16),
)


def rows(count: int, dtype: str) -> Array:
    """Rows of hostile numbers."""
    rng = np.random.default_rng(count)
    x = rng.standard_normal((9, count)).astype(np.float32) * 20
    x[1] = -np.inf
    x[2, :-1], x[3, 1:] = -np.inf, -np.inf  # one number, in the last place and in the first
    x[4, count // 2], x[5, count // 3], x[6, 0] = np.inf, np.nan, -np.inf
    x[7] = np.arange(count) * 3.0  # each is larger than all before
    x[8] = np.finfo(np.float32).max / 2
    return x.astype(bfloat16.numpy if dtype == "bfloat16" else np.float32)


def compared(x: Array, table: GpuTable) -> tuple[list[str], bool]:
    """The rows that differ from NumPy's, and if they were read once."""
    with fg.config(device="reference", tier="native"):
        wide = fg.Tensor(x).astype("float32")
        largest = wide.max(axis=1, keepdims=True)
        total = fg.exp(wide - largest).sum(axis=1)
        (item,) = fg.schedule(largest, total).items
    kernel = item.kernel
    dtypes = [p.dtype for p in params_of(kernel)]
    made = render(lower(kernel.body, kernel.inputs), dtypes, table)
    outputs = [np.zeros(len(x), np.float32) for r in kernel.body.src]
    found, _ = interpret.run(made, [x, *outputs], {})
    with np.errstate(all="ignore"):
        y = x.astype(np.float64)
        most = y.max(axis=1, keepdims=True)
        wanted = most[:, 0], np.exp(y - most).sum(axis=1)
    bad = []
    for name, got, want in zip(("max", "sum"), found[1:], wanted, strict=True):
        with np.errstate(all="ignore"):
            close = np.isclose(got.reshape(-1), want, rtol=3e-6, equal_nan=True)
        got = got.reshape(-1)
        bad += [f"{name} of row {n}: {got[n]}, {want[n]}" for n in np.flatnonzero(~close)]
    return bad, all("tl.reshape" in n.text for n in made.launches)


def columns(rows: int, count: int, dtype: str) -> Array:
    """Columns with means that are small and large beside their spread, constant and infinite."""
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, count)).astype(np.float32)
    x[:, 1] += 1000
    x[:, 2] = 7.25
    x[0, 3] = 1e4  # beside which the others are nothing
    x[:, 4] *= 1e-15
    x[-1, 5], x[0, 6], x[rows // 2, 7] = np.inf, -np.inf, np.nan
    return x.astype(bfloat16.numpy if dtype == "bfloat16" else np.float32)


def moments(x: Array, table: GpuTable) -> tuple[list[str], bool]:
    """The columns whose mean or variance differs from NumPy's, and if they were read once."""
    with fg.config(device="reference", tier="native"):
        wide = fg.Tensor(x).astype("float32")
        mean = wide.mean(axis=0, keepdims=True)
        spread = ((wide - mean) ** 2).mean(axis=0)
        plan = fg.schedule(mean, spread)
    (item,) = plan.items
    kernel = item.kernel
    dtypes = [p.dtype for p in params_of(kernel)]
    made = render(lower(kernel.body, kernel.inputs), dtypes, table)
    bits = [slot.bits for place in item.reads if (slot := plan.slots[place]) is not None]
    given = [x if n is None else np.array([n], np.uint32).view(np.float32) for n in bits]
    outputs = [np.zeros(x.shape[1], np.float32) for _ in kernel.body.src]
    found, _ = interpret.run(made, [*given, *outputs], {})
    y = x.astype(np.float64)
    with np.errstate(all="ignore"):
        wanted = y.mean(axis=0), y.var(axis=0)
        scale = np.abs(y).mean(axis=0), y.var(axis=0)
    bad = []
    for name, got, want, size in zip(
        ("mean", "variance"), found[kernel.inputs :], wanted, scale, strict=True
    ):
        with np.errstate(all="ignore"):
            close = (
                (np.abs(got - want) <= 1e-5 * size)
                | (got == want)
                | (np.isnan(got) & np.isnan(want))
            )
        bad += [f"{name} of column {n}: {got[n]}, {want[n]}" for n in np.flatnonzero(~close)]
    return bad, "* 2.0 + " in made.launches[0].text


def tanh() -> list[str]:
    """What is wrong with the short tanh: it is within 2^-19 of it and within 2^-22."""
    x = np.arange(0, 1 << 31, 4093, dtype=np.uint32).view(np.float32)
    x = np.concatenate([x, -x, np.linspace(-10, 10, 100_001, dtype=np.float32)])
    with fg.config(device="reference", tier="native"):
        (item,) = fg.schedule(fg.tanh(fg.Tensor(x).astype("float32"))).items
    made = render(lower(item.kernel.body, 1), [float32, float32], HOPPER)
    launches = [replace(n, text=n.text.replace("fg_tanh", "fg_narrow_tanh")) for n in made.launches]
    found, _ = interpret.run(replace(made, launches=tuple(launches)), [x, np.zeros_like(x)], {})
    got = found[1].astype(np.float64)
    with np.errstate(all="ignore"):
        want = np.tanh(x.astype(np.float64))
        near = np.abs(got - want) <= np.minimum(2.0**-19 * np.abs(want), 2.0**-22)
    wrong = ~(near | (np.isnan(got) & np.isnan(want)))
    return [f"tanh of {x[n]}: {got[n]}, {want[n]}" for n in np.flatnonzero(wrong)[:5]]


def main() -> None:
    """All tables, sizes that blocks divide and do not, two dtypes."""
    ran, once, bad = 0, 0, tanh()
    for table in TABLES:
        for count in (129, 200, 256, 513, 1031):
            for dtype in ("float32", "bfloat16"):
                found, is_online = compared(rows(count, dtype), table)
                ran, once, bad = ran + 1, once + is_online, bad + found
    few = replace(HOPPER, processors=2, column_elements=2048, column_least=2048, split_least=512)
    short = replace(few, processors=64, column_elements=1 << 14)  # windows shorter than blocks
    for table, heights in ((few, (2048, 2720, 2050)), (short, (2050, 840)), (HOPPER, (784,))):
        for height in heights:
            for dtype in ("float32", "bfloat16"):
                width = 512 if table is HOPPER else 64
                found, is_online = moments(columns(height, width, dtype), table)
                ran, once, bad = ran + 1, once + is_online, bad + found
    print(json.dumps({"ran": ran, "once": once, "bad": bad}))


if __name__ == "__main__":
    main()
