"""Tensors made of numbers: constants, ranges, and memory nobody has written to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import fulgurite as fg

from ..table import Use, aten, cast


@aten("full", "new_full")
def full(use: Use, *args: Any, **_: Any) -> Any:
    """One number everywhere."""
    return fg.full(use.shape, cast(args[-1], use.dtype), dtype=use.dtype)


@aten("full_like", "fill.Scalar")
def full_like(use: Use, x: Any, value: Any, **_: Any) -> Any:
    """One number in another tensor's shape."""
    return fg.full(use.shape, cast(value, use.dtype), dtype=use.dtype)


@aten("fill.Tensor")
def fill(use: Use, x: Any, value: Any) -> Any:
    """One element everywhere."""
    return fg.broadcast_to(cast(value, use.dtype), use.shape)


@aten("scalar_tensor")
def scalar_tensor(use: Use, number: Any, **_: Any) -> Any:
    """A number as a tensor."""
    return fg.full((), cast(number, use.dtype), dtype=use.dtype)


@aten("zeros", "zeros_like", "new_zeros", "empty.memory_format", "empty_strided", "empty_like")
@aten("_efficientzerotensor")
@aten("new_empty", "new_empty_strided", "empty_permuted")
def zeros(use: Use, *_: Any, **__: Any) -> Any:
    """Zeros; memory that nobody writes to is nothing that two runs should differ in."""
    return fg.full(use.shape, cast(0, use.dtype), dtype=use.dtype)


@aten("ones", "ones_like", "new_ones")
def ones(use: Use, *_: Any, **__: Any) -> Any:
    """Ones."""
    return fg.full(use.shape, cast(1, use.dtype), dtype=use.dtype)


@aten("arange.start_step")
def arange(use: Use, start: Any, end: Any, step: Any = 1, **_: Any) -> Any:
    """Numbers in steps."""
    wide = fg.float64 if use.dtype.is_inexact else fg.int64
    line = fg.arange(use.shape[0], dtype=fg.int64)
    return cast(cast(line, wide) * cast(step, wide) + cast(start, wide), use.dtype)


@aten("eye", "eye.m")
def eye(use: Use, *_: Any, **__: Any) -> Any:
    """Ones on the diagonal."""
    rows, columns = use.shape
    return fg.eye(rows, columns, dtype=use.dtype)


def _triangle(use: Use, diagonal: int) -> Any:
    rows, columns = use.shape[-2:]
    down = fg.reshape(fg.arange(rows, dtype=fg.int64), (rows, 1))
    return fg.arange(columns, dtype=fg.int64) - down - diagonal


@aten("tril")
def tril(use: Use, x: Any, diagonal: int = 0) -> Any:
    """What is on and below a diagonal."""
    return fg.where(_triangle(use, diagonal) <= 0, x, cast(0, x.dtype))


@aten("triu")
def triu(use: Use, x: Any, diagonal: int = 0) -> Any:
    """What is on and above a diagonal."""
    return fg.where(_triangle(use, diagonal) >= 0, x, cast(0, x.dtype))


__all__: Sequence[str] = ()
