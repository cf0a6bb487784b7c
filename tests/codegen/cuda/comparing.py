"""When results of generated kernels agree with the reference's."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def same_value(got: Array, want: Array) -> bool:
    """True if floats agree as closely as other orders of adding allow, others exactly."""
    if want.size == 0:
        return True
    if want.dtype.kind in "biu":
        return bool((got == want).all())
    wide: Any = np.complex128 if want.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), want.astype(wide)
    eps = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 3e-5, "complex64": 3e-5,
           "float8_e4m3fn": 0.13, "float8_e5m2": 0.26}.get(want.dtype.name, 1e-11)  # fmt: skip
    sizes = np.abs(b[np.isfinite(b)])
    scale = min(float(sizes.max()) if sizes.size else 1.0, 1e300)
    return bool(np.allclose(a, b, rtol=eps, atol=eps * scale * 0.1, equal_nan=True))
