"""Products of matrices, and distances between rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import fulgurite as fg

from ...core.dtype import DType
from ..home import place_of
from ..table import Use, aten, cast


@aten("mm", "bmm", "matmul", "mv", "dot", "vdot")
def product(use: Use, x: Any, y: Any) -> Any:
    """The product of two matrices, or of stacks of them."""
    if use.name.startswith("vdot"):
        x = fg.conj(x)
    return _product(use, x, y)


def _product(use: Use, x: Any, y: Any) -> Any:
    if x.dtype.kind == "b":
        return cast(cast(x, fg.int32) @ cast(y, fg.int32), use.dtype)
    if 0 in x.shape or 0 in y.shape:
        return fg.full(use.shape, cast(0, use.dtype), dtype=use.dtype)
    return cast(x @ y, use.dtype)


def _scaled(x: Any, number: Any) -> Any:
    return x if number == 1 else x * cast(number, x.dtype)


def _sum_dtype(use: Use) -> DType:
    """The type of a product that something is added to. On the host the sum is rounded once, as by
    torch's own kernels; on a GPU the product too, which a library's kernel may have made."""
    return use.wide if place_of(use.out).type == "cpu" else use.dtype


@aten("addmm", "baddbmm", "addmv")
def addmm(use: Use, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """A product, and what is added to it."""
    if a.dtype.kind == "b" or 0 in a.shape or 0 in b.shape:
        out = _scaled(_product(use, a, b), alpha)
    else:
        wide = _sum_dtype(use)
        out, x = _scaled(cast(a, wide) @ cast(b, wide), alpha), cast(x, wide)
    if beta == 0:
        return cast(fg.broadcast_to(out, use.shape), use.dtype)
    return cast(out + _scaled(x, beta), use.dtype)


@aten("addbmm")
def addbmm(use: Use, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Products of a stack added up."""
    x, a, b = [cast(each, _sum_dtype(use)) for each in (x, a, b)]
    out = _scaled(fg.einsum("bij,bjk->ik", a, b), alpha)
    return cast(out if beta == 0 else out + _scaled(x, beta), use.dtype)


@aten("_trilinear")
def trilinear(
    use: Use, x: Any, y: Any, z: Any, of_x: Sequence[int], of_y: Sequence[int],
    of_z: Sequence[int], summed: Sequence[int], *_: Any,
) -> Any:  # fmt: skip
    """The sum over axes of a product of three, each with new axes of size 1."""
    for axes in (of_x, of_y, of_z):
        x, y, z = y, z, fg.reshape(x, _with_ones(x.shape, axes))
    found = cast(x, use.wide) * cast(y, use.wide) * cast(z, use.wide)
    return cast(fg.sum(found, axis=tuple(summed)) if summed else found, use.dtype)


def _with_ones(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    found = list(shape)
    for axis in axes:
        found.insert(axis, 1)
    return found


def _distance(x: Any, y: Any, p: float) -> Any:
    """Norms of differences along the last axis; gradients at 0 are torch's own, not taken here."""
    apart = fg.abs(x - y)
    if p == 0:
        return fg.sum(cast(apart != 0, apart.dtype), axis=-1)
    if p == 1:
        return fg.sum(apart, axis=-1)
    if p == 2:
        return fg.sqrt(fg.sum(apart * apart, axis=-1))
    if p == float("inf"):
        return fg.max(apart, axis=-1)
    return fg.pow(fg.sum(fg.pow(apart, p), axis=-1), 1 / p)


@aten("_cdist_forward")
def cdist(use: Use, x: Any, y: Any, p: float, mode: Any = None) -> Any:
    """Distances between all rows of two matrices."""
    if 0 in use.shape or x.shape[-1] == 0:
        return fg.full(use.shape, cast(0, use.dtype), dtype=use.dtype)
    return _distance(fg.expand_dims(x, -2), fg.expand_dims(y, -3), float(p))


@aten("_pdist_forward")
def pdist(use: Use, x: Any, p: float = 2.0) -> Any:
    """Distances between the rows of a matrix, each pair once."""
    import numpy as np

    rows, columns = np.triu_indices(x.shape[0], 1)
    if not len(rows) or not x.shape[1]:
        return fg.full(use.shape, cast(0, use.dtype), dtype=use.dtype)
    places = [fg.Tensor(i.astype(np.int64)) for i in (rows, columns)]
    return _distance(fg.take(x, places[0], axis=0), fg.take(x, places[1], axis=0), float(p))
