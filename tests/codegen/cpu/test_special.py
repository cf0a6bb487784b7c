"""Tests of fulgurite/codegen/cpu/special.py: derivatives of log gamma in machine code."""

import numpy as np
import pytest

from fulgurite.core.dtype import DTYPES, DType, float64
from fulgurite.core.ops.elementwise import POLYGAMMA
from fulgurite.core.ops.leaf import param

pytest.importorskip("llvmlite")

from tests.codegen.cpu.machine import VECTORS
from tests.codegen.cpu.parity import results

HOSTILE = (0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -2.0, 1e-300, 1e300, -0.5, 1e-30, -1e-10, 10.0)
FLOATS = [d for d in DTYPES if d.kind == "f"]


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("order", range(5))
def test_polygamma_is_that_of_the_reference(order: int, dtype: DType, vectors: str) -> None:
    rng = np.random.default_rng(order)
    numbers = np.concatenate([rng.normal(size=200) * 5, rng.uniform(0, 50, 100), HOSTILE])
    with np.errstate(all="ignore"):
        x = numbers.astype(dtype.numpy)
    root = POLYGAMMA(param(0, x.shape, dtype), arg=order)
    got, meant, _ = results(root, [x], vectors)
    with np.errstate(all="ignore"):
        a, b = got.astype(np.float64), meant.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
    np.testing.assert_array_equal(np.isinf(a), np.isinf(b))
    known = np.isfinite(b)
    if dtype is float64:  # near a zero of the function what is left of two large terms differs
        near = np.abs(a[known] - b[known]) <= 1e-13 * np.abs(b[known]) + 1e-12
        assert np.all(near)
    else:  # worked out in float64: at most a last bit differs
        step = np.spacing(np.abs(meant[known])).astype(np.float64)
        assert np.all(np.abs(a[known] - b[known]) <= step + 1e-12)
