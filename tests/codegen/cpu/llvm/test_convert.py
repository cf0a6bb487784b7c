"""Tests of codegen/cpu/llvm/convert.py: memory and registers, and the bits of small floats."""

from functools import cache

import numpy as np
import pytest

from fulgurite.core import build
from fulgurite.core.dtype import DTYPES, DType, bfloat16, dtype_of, float16, float32, uint8, uint16
from fulgurite.core.ops.elementwise import BITCAST, CAST, NEG, WHERE
from fulgurite.core.ops.leaf import param

pytest.importorskip("llvmlite")

from tests.codegen.cpu.machine import VECTORS
from tests.codegen.cpu.parity import Array, agree, hostile, results

REAL = [d for d in DTYPES if d.kind != "c"]
SMALL = [d for d in DTYPES if d.is_small_float]
_rng = np.random.default_rng(0)


def every(dtype: DType) -> Array:
    """All values of a small float."""
    kind = np.uint8 if dtype.bits == 8 else np.uint16
    return np.arange(1 << dtype.bits, dtype=kind).view(dtype.numpy)


def between(dtype: DType) -> Array:
    """The middle of any two neighbours of a small float, in float64, and next to it."""
    with np.errstate(all="ignore"):
        grid = every(dtype).astype(np.float64)
    grid = np.unique(grid[np.isfinite(grid)])
    middle = (grid[1:] + grid[:-1]) / 2
    return np.concatenate([middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)])


@cache
def numbers(dtype: DType) -> Array:
    """Random bits, hostile values, and values where rounding is decided."""
    plain = hostile(dtype, (257,), 1)
    if dtype.kind == "b" or dtype.is_small_float:
        return plain if dtype.kind == "b" else every(dtype)
    raw = _rng.integers(0, 256, 40_000 * dtype.itemsize, np.uint8).view(dtype.numpy)
    with np.errstate(all="ignore"):
        near = np.concatenate([between(d) for d in SMALL])
        if dtype.kind == "f":
            return np.concatenate([plain, raw, near.astype(dtype.numpy)])
        low, high = dtype.limits
        inside = near[(near > float(low)) & (near < float(high) * 0.99)]
        whole = [int(v) + k for v in np.unique(np.trunc(inside)) for k in (-1, 0, 1)]
        fits = [v for v in whole if low <= v <= high]
    return np.concatenate([plain, raw, np.array(fits, dtype.numpy)])


@pytest.mark.parametrize("target", REAL, ids=str)
@pytest.mark.parametrize("source", REAL, ids=str)
def test_a_cast_rounds_once_and_saturates(source: DType, target: DType) -> None:
    if source is target:
        return
    x = numbers(source)
    agree(CAST(param(0, x.shape, source), arg=target), [x])


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_a_small_float_is_the_same_at_every_vector_width(dtype: DType, vectors: str) -> None:
    x = numbers(float32)
    agree(CAST(param(0, x.shape, float32), arg=dtype), [x], vectors)
    y = every(dtype)
    agree(CAST(param(0, y.shape, dtype), arg=float32), [y], vectors)
    agree(NEG(param(0, y.shape, dtype)), [y], vectors)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.kind in "iuf"], ids=str)
def test_bits_are_taken_for_those_of_another_dtype(dtype: DType) -> None:
    x = hostile(dtype, (77,), 2)
    for other in DTYPES:
        if other.kind in "iuf" and other.bits == dtype.bits and other is not dtype:
            root = BITCAST(param(0, x.shape, dtype), arg=other)
            got, meant, _ = results(root, [x])
            assert got.tobytes() == meant.tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 15, 17, 33])
def test_rows_of_any_length_are_stored_and_nothing_beyond(dtype: DType, count: int) -> None:
    """With one element left over LLVM 22 would narrow and store too many bytes."""
    x = hostile(dtype, (3, count), 3)
    wide = dtype_of("complex128") if dtype.kind == "c" else dtype_of("float64")
    y = x.astype(wide.numpy)
    agree(CAST(param(0, y.shape, wide), arg=dtype), [y])
    agree(build.permute(param(0, x.shape, dtype), (1, 0)), [x])


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_moving_keeps_the_payload_of_nan(dtype: DType) -> None:
    x = every(dtype)
    holds = np.asarray(_rng.random(x.shape) < 0.5)
    a, b = param(0, x.shape, dtype), param(1, x.shape, dtype)
    got, meant, _ = results(WHERE(param(2, x.shape, dtype_of("bool")), a, b), [x, x[::-1], holds])
    assert got.tobytes() == meant.tobytes()
    whole = uint8 if dtype.bits == 8 else uint16
    got, meant, _ = results(BITCAST(NEG(BITCAST(a, arg=whole)), arg=dtype), [x])
    assert got.tobytes() == meant.tobytes()


def test_small_floats_are_exact_in_float32() -> None:
    for dtype in (float16, bfloat16):
        x = every(dtype)
        got, _, _ = results(CAST(param(0, x.shape, dtype), arg=float32), [x])
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(got, x.astype(np.float32))
