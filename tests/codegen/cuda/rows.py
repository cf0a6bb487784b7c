"""Long rows in Triton's interpreter: maxima and sums of exponentials about them, read once.

Prints, as JSON, how many rows were compared and those that were wrong.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

import fulgurite as fg
from fulgurite.codegen.cuda.render import render
from fulgurite.codegen.cuda.tiling import HOPPER, GpuTable
from fulgurite.core.dtype import bfloat16
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


def main() -> None:
    """All tables, sizes that blocks divide and do not, two dtypes."""
    ran, once, bad = 0, 0, list[str]()
    for table in TABLES:
        for count in (129, 200, 256, 513, 1031):
            for dtype in ("float32", "bfloat16"):
                found, is_online = compared(rows(count, dtype), table)
                ran, once, bad = ran + 1, once + is_online, bad + found
    print(json.dumps({"ran": ran, "once": once, "bad": bad}))


if __name__ == "__main__":
    main()
