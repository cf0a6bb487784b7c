"""Order: sort, top-k, the k-th, the median, and where a value would go."""

from __future__ import annotations

from typing import Any

import fulgurite as fg

from ..table import Use, aten, cast


@aten("sort")
def sort(use: Use, x: Any, dim: int = -1, descending: bool = False) -> Any:
    """Elements in order, and the places they had."""
    if x.ndim == 0:
        return x, fg.full((), 0, dtype=fg.int64)
    if 0 in x.shape:
        return x, fg.full(x.shape, 0, dtype=fg.int64)
    axis = dim % x.ndim
    order = cast(fg.argsort(x, axis=axis, descending=descending, stable=True), fg.int64)
    return fg.take_along_axis(x, order, axis), order


@aten("sort.stable")
def sort_stable(
    use: Use, x: Any, *, stable: Any = None, dim: int = -1, descending: bool = False
) -> Any:
    """The same: ours is always stable."""
    return sort(use, x, dim, descending)


@aten("topk")
def topk(
    use: Use, x: Any, k: int, dim: int = -1, largest: bool = True, in_order: bool = True, **_: Any
) -> Any:
    """The largest or smallest few, in order, and their places."""
    if x.ndim == 0:
        return x, fg.full((), 0, dtype=fg.int64)
    if 0 in tuple(use.out[0].shape):
        shape = tuple(use.out[0].shape)
        return fg.full(shape, cast(0, x.dtype), dtype=x.dtype), fg.full(shape, 0, dtype=fg.int64)
    found = fg.topk(x, k, axis=dim % x.ndim, largest=largest)
    return found[0], cast(found[1], fg.int64)


@aten("kthvalue")
def kthvalue(use: Use, x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The k-th smallest, and its place."""
    if x.ndim == 0:
        return x, fg.full((), 0, dtype=fg.int64)
    axis = dim % x.ndim
    order = cast(fg.argsort(x, axis=axis, stable=True), fg.int64)
    where = (slice(None),) * axis
    place = order[(*where, slice(k - 1, k))]
    value = fg.take_along_axis(x, place, axis)
    return (value, place) if keepdim else (fg.squeeze(value, axis), fg.squeeze(place, axis))


@aten("searchsorted.Tensor")
def searchsorted(
    use: Use, line: Any, x: Any, *, out_int32: bool = False, right: bool = False,
    side: Any = None, sorter: Any = None,
) -> Any:  # fmt: skip
    """Where values would go into a sorted line."""
    from ..table import Refused

    if line.ndim != 1 or sorter is not None or 0 in line.shape or 0 in use.shape:
        raise Refused("searching in several lines at once, or in none")
    side = "right" if right or side == "right" else "left"
    return cast(fg.searchsorted(line, x, side=side), use.dtype)
