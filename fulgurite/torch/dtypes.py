"""torch's element types as ours.

In: a `torch.dtype`. Out: the `DType` of the same bits, both ways. Types that only one side has
(quantised ones) are refused by whoever meets them.
"""

from __future__ import annotations

from typing import Any

import torch

from ..core import dtype as ours
from ..core.dtype import DType

TO_OURS: dict[Any, DType] = {
    getattr(torch, dtype.name): dtype for dtype in ours.DTYPES if hasattr(torch, dtype.name)
}
TO_TORCH: dict[DType, Any] = {mine: theirs for theirs, mine in TO_OURS.items()}


def is_known(dtype: Any) -> bool:
    """True if a torch dtype is one of ours."""
    return dtype in TO_OURS


def compute_dtype(dtype: DType) -> DType:
    """The type in which torch's CPU kernels add up values of a type (its `opmath_t`)."""
    return ours.float32 if dtype.is_small_float else dtype
