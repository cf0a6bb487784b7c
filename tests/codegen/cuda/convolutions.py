"""Convolutions and both gradients as generated kernels: `-m tests.codegen.cuda.convolutions`.

Every kernel that the reference device interprets is run in Triton's interpreter too and compared,
at odd sizes, with the tiles of a GPU and with tiny ones, in three dtypes. Prints what was counted
and, for each convolution, how many of its kernels are products for the tensor cores.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

os.environ |= {"FULGURITE_DEVICE": "reference", "FULGURITE_DISK_CACHE": "0"}
os.environ["FULGURITE_SHADOW"] = "interpret"

import numpy as np

import fulgurite as fg
from fulgurite.codegen.cuda.tiling import HOPPER
from tests.codegen.cuda import shadow

SMALL = replace(HOPPER, processors=4, dot_rows=32, dot_depth=16, dot_least=2, dot_side=32)


class Case(NamedTuple):
    """A convolution by its shapes and arguments, and how many of three kernels are products."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    keywords: dict[str, Any] = {}  # noqa: RUF012 (a tuple's default is never changed)
    transposed: bool = False
    products: int = 3


CASES = (
    Case("plain", (2, 5, 9, 7), (6, 5, 3, 3), {"padding": 1}),
    Case("strided", (3, 4, 9, 8), (10, 4, 3, 3), {"padding": 1, "stride": 2}),
    Case("pointwise", (3, 10, 5, 3), (9, 10, 1, 1)),
    Case("stem", (2, 3, 13, 11), (8, 3, 7, 7), {"padding": 3, "stride": 2}),
    Case("dilated", (2, 3, 11, 9), (4, 3, 3, 2), {"dilation": 2}),
    Case("grouped", (2, 6, 7, 7), (8, 3, 3, 3), {"groups": 2, "padding": 1}),
    Case("depthwise", (2, 6, 7, 6), (6, 1, 3, 3), {"groups": 6, "padding": 1}, products=0),
    Case("line", (3, 4, 19), (5, 4, 5), {"padding": 2}),
    Case("solid", (1, 3, 5, 4, 6), (4, 3, 2, 3, 2)),
    Case("transposed", (2, 4, 5, 6), (4, 3, 3, 3), {"stride": 2, "padding": 1}, True),
)


def main() -> None:
    """All cases with all tables."""
    warnings.simplefilter("ignore")
    shadow.LARGEST = 1 << 20
    shadow.pytest_configure(None)
    rng, asked = np.random.default_rng(0), [name for name in sys.argv[1:] if name != "all"]
    products: dict[str, int] = {}
    for table, dtypes in ((SMALL, ("float32", "bfloat16", "float16")), (HOPPER, ("bfloat16",))):
        shadow.TABLE = table
        shadow.seen.clear()
        fg.clear_caches()
        for case in [c for c in CASES if not asked or c.name in asked]:
            for dtype in dtypes:
                found = run(case, dtype, rng)
                products[f"{case.name}:{dtype}:{'small' if table is SMALL else 'large'}"] = found
        if "pools" in sys.argv or not asked:
            pools(dtypes[-1], rng)
        if "shares" in sys.argv or not asked:
            shares(rng)
    print(json.dumps({"counts": shadow.counts, "bad": shadow.bad, "products": products}))


def pools(dtype: str, rng: np.random.Generator) -> None:
    """Folds of windows, with and without padding, over what is computed for each channel."""
    hostile = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40, 3e38], np.float32)
    shape = 1, 5, 4, 8
    values = rng.standard_normal(shape).astype(np.float32)
    mixed = np.where(rng.random(shape) < 0.1, rng.choice(hostile, shape), values)
    x = fg.Tensor(mixed.astype(np.float32)).astype(dtype).realize()
    v = fg.Tensor(rng.standard_normal(8).astype(np.float32)).realize()

    def pooled(x: fg.Tensor) -> fg.Tensor:
        image = fg.permute_dims(x, (0, 3, 1, 2))
        h = fg.relu((image * v[:, None, None] + v[:, None, None]).astype(x.dtype))
        return fg.permute_dims(fg.max_pool2d(h, 3, 2, 1), (0, 2, 3, 1))

    pooled(x).realize()
    fg.softmax(x[:, :3], axis=1).realize()


def shares(rng: np.random.Generator) -> None:
    """Split-K whose programs' shares are not whole blocks: 18 of 576 channels of windows."""
    x, w = (
        fg.Tensor(rng.standard_normal(shape).astype(np.float32)).realize()
        for shape in ((2, 8, 8, 64), (64, 64, 3, 3))
    )
    y = fg.conv2d(fg.permute_dims(x, (0, 3, 1, 2)), w, padding=1)
    fg.permute_dims(fg.relu(y), (0, 2, 3, 1)).realize()


def run(case: Case, dtype: str, rng: np.random.Generator) -> int:
    """The result and both gradients; how many launches have a product for the tensor cores."""
    x, w = (
        fg.Tensor(rng.standard_normal(shape).astype(np.float32)).astype(dtype).realize()
        for shape in (case.x, case.w)
    )
    rank = len(case.x) - 2
    function = getattr(fg, f"conv_transpose{rank}d" if case.transposed else f"conv{rank}d")
    before = shadow.counts["products"]

    def loss(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        y: fg.Tensor = function(x, w, **case.keywords)
        return (y * y.detach()).sum()

    function(x, w, **case.keywords).realize()
    for grad in fg.grad(loss, argnums=(0, 1))(x, w):
        grad.realize()
    return shadow.counts["products"] - before


if __name__ == "__main__":
    main()
