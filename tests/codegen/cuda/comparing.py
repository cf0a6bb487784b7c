"""When results of generated kernels agree with the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


# relative differences that another order of adding, or another library's functions, may make
EPS = {
    "float16": 2e-3, "bfloat16": 1.6e-2, "float32": 3e-5, "complex64": 3e-5,
    "float8_e4m3fn": 0.13, "float8_e5m2": 0.26,
}  # fmt: skip
ROUNDINGS = 0.03  # of EPS: what rounding the numbers that went in leaves of sums that cancel


def _scale(arrays: Sequence[Array]) -> float:
    """The largest finite magnitude."""
    found = 0.0
    for array in arrays:
        if array.dtype.kind not in "biu":
            sizes = np.abs(array.astype(np.complex128 if array.dtype.kind == "c" else np.float64))
            found = max(found, float(np.max(sizes, initial=0.0, where=np.isfinite(sizes))))
    return min(found, 1e30)


def same_value(got: Array, want: Array, given: Sequence[Array] = ()) -> bool:
    """True if floats agree as closely as can be asked of what was given, others exactly."""
    if want.size == 0:
        return True
    if want.dtype.kind in "biu":
        return bool((got == want).all())
    wide: Any = np.complex128 if want.dtype.kind == "c" else np.float64
    eps = EPS.get(want.dtype.name, 1e-11)
    near = eps * max(0.1 * _scale([want]), ROUNDINGS * _scale(given))
    with np.errstate(all="ignore"):
        return bool(
            np.allclose(got.astype(wide), want.astype(wide), rtol=eps, atol=near, equal_nan=True)
        )
