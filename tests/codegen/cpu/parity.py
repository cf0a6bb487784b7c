"""Comparing machine code with the kernel interpreter, for kernels of any kind and dtype.

In: a node that is one kernel, arrays for its inputs, values of its variables. Out: nothing, or a
failure: the whole renderer (not one template) makes the code, `machine.run` runs it unit by unit,
and results must have the same bits, any NaN being any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fulgurite.codegen.common.api import KernelText
from fulgurite.core.dtype import DType, dtype_of
from fulgurite.core.node import Node
from fulgurite.core.ops.leaf import SINK
from fulgurite.core.shape import upper
from fulgurite.graph.ir.lower import IndexKernel, lower
from fulgurite.runtime.host.index_interpreter import Runner
from tests.codegen.cpu.launch import rendered as rendered_alone
from tests.codegen.cpu.machine import run, wanted

Array = np.ndarray[Any, Any]
FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-45, -1e-40, 1e-3, 100.0, -300.0, 6e4, 1e30, -3e38,
    np.inf, -np.inf, np.nan,
)  # fmt: skip


def hostile(dtype: DType, shape: Sequence[int], seed: int = 0, finite: bool = False) -> Array:
    """Numbers that break careless code, many of them equal."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.random(tuple(shape)) < 0.5
    if dtype.kind in "iu":
        low, high = dtype.limits
        small = rng.integers(0 if dtype.kind == "u" else -4, 5, tuple(shape))
        ends = rng.choice(np.array([low, high, low + 1, high - 1], dtype.numpy), tuple(shape))
        return np.where(rng.random(tuple(shape)) < 0.2, ends, small.astype(dtype.numpy))
    numbers = rng.normal(size=tuple(shape)) * 3
    if dtype.kind == "c":
        return np.asarray(numbers + 1j * rng.normal(size=tuple(shape))).astype(dtype.numpy)
    rare = rng.choice([f for f in FLOATS if np.isfinite(f) or not finite], tuple(shape))
    with np.errstate(all="ignore"):
        return np.where(rng.random(tuple(shape)) < 0.5, rare, numbers).astype(dtype.numpy)


def kernel_of(root: Node, inputs: int) -> IndexKernel:
    """A node as one kernel over its params."""
    return lower(SINK(root), inputs)


def results(
    root: Node,
    inputs: Sequence[Array],
    vectors: str = "auto",
    values: Mapping[str, int] | None = None,
) -> tuple[Array, Array, KernelText]:
    """What the code gives and what the kernel means, both flat, and the code."""
    kernel = kernel_of(root, len(inputs))
    size = int(np.prod([upper(n) for n in root.shape]))
    out = np.zeros(size * root.dtype.numpy.itemsize, np.uint8)
    out[:] = 0xA5
    params = [np.ascontiguousarray(a).reshape(-1) for a in inputs] + [out.view(root.dtype.numpy)]
    dtypes = [*[dtype_of(a.dtype) for a in inputs], root.dtype]
    rendered = rendered_alone(kernel, dtypes, wanted(vectors))
    meant = [a.copy() for a in params]
    Runner(kernel).run(meant, dict(values or {}))
    got = run(rendered, params, vectors, values)
    for before, after in zip(params[:-1], got[:-1], strict=True):
        assert before.tobytes() == after.tobytes(), "an input was written to"
    return got[-1], meant[-1], rendered


def agree(
    root: Node,
    inputs: Sequence[Array],
    vectors: str = "auto",
    values: Mapping[str, int] | None = None,
) -> None:
    """The same bits from both; any NaN is any other."""
    got, meant, _ = results(root, inputs, vectors, values)
    same_bits(got, meant, root.dtype)


def same_bits(got: Array, meant: Array, dtype: DType) -> None:
    """Equal numbers with equal signs."""
    if dtype.kind == "c":
        part = dtype_of("float32" if dtype.bits == 64 else "float64")
        same_bits(got.view(part.numpy), meant.view(part.numpy), part)
        return
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            a, b = got.astype(np.float64), meant.astype(np.float64)
        np.testing.assert_array_equal(a, b)
        known = ~np.isnan(b)
        np.testing.assert_array_equal(np.signbit(a[known]), np.signbit(b[known]))
    else:
        np.testing.assert_array_equal(got, meant)
