"""Many numbers as one: sums, extremes, means, and where the extreme is.

In: a tensor, the axes to reduce (all by default) and whether they stay with size 1. Out: a tensor
of the rest. Sums of bools and small whole numbers are int32 or uint32; means of whole numbers
float32; half floats add up in float32. An extreme of no elements does not exist; a sum does.
Along axis 0, 0 dimensions are one element.
"""

from __future__ import annotations

from math import inf

from ...core import build
from ...core import shape as sizes
from ...core.dtype import DType, bool_, dtype_of, float64, int32, int64, uint32
from ...core.node import Node, Shape, Size
from ...core.ops.elementwise import DIV, EQ, NE, OR, POW, SQRT
from ...errors import DataError, DTypeError, ShapeError
from ...tensor import Tensor, TensorLike, node_of, wrap
from ..common import Axis, apply, as_tensor, astype, floating, wide
from ..template import templated
from .elementwise import abs, isfinite, maximum, where
from .special import exp, log


@templated
def sum(x: TensorLike, axis: Axis = None, dtype: object = None, keepdims: bool = False) -> Tensor:
    """The sum over axes.

    >>> fg.sum(fg.Tensor([[1, 2], [3, 4]]), axis=0).tolist()
    [4, 6]
    """
    return wrap(build.fold("add", for_sums(x, dtype), axis, keepdims))


@templated
def prod(x: TensorLike, axis: Axis = None, dtype: object = None, keepdims: bool = False) -> Tensor:
    """The product over axes.

    >>> fg.prod(fg.Tensor([[1, 2], [3, 4]]), axis=1).tolist()
    [2, 12]
    """
    return wrap(build.fold("mul", for_sums(x, dtype), axis, keepdims))


def for_sums(x: TensorLike, dtype: object) -> Node:
    """x in the dtype that its sums have."""
    node = node_of(x)
    if isinstance(dtype, bool):
        raise DataError(f"dtype is {dtype}", f"name other arguments: keepdims={dtype}")
    return build.cast(node, _sum_dtype(node.dtype) if dtype is None else dtype_of(dtype))


def _sum_dtype(dtype: DType) -> DType:
    if dtype.is_inexact or dtype.bits > 32:
        return dtype
    return uint32 if dtype.kind == "u" else int32


@templated
def max(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The largest element over axes; NaN wins.

    >>> fg.max(fg.Tensor([[1, 2], [3, 4]]), axis=1).tolist()
    [2, 4]
    """
    return wrap(build.fold("max", node_of(x), axis, keepdims))


@templated
def min(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The smallest element over axes; NaN wins.

    >>> fg.min(fg.Tensor([[1, 2], [3, 4]]), axis=1).tolist()
    [1, 3]
    """
    return wrap(build.fold("min", node_of(x), axis, keepdims))


def _count(x: Tensor, axis: Axis) -> Size:
    shape: Shape = x.node.shape
    return sizes.prod([shape[a] for a in build.as_axes(axis, len(shape), lone=True)])


def _over(total: Tensor, count: Tensor | Size | float) -> Tensor:
    """A sum divided by a number of elements."""
    if isinstance(count, Tensor | Node):
        return apply(DIV, total, astype(count, total.dtype))
    return apply(DIV, total, count * 1.0)


@templated
def mean(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean over axes; that of no elements is NaN.

    >>> fg.mean(fg.Tensor([[1, 2], [3, 4]]), axis=0).tolist()
    [2.0, 3.0]
    """
    narrow, x = floating(x), wide(x)
    return astype(_over(sum(x, axis, None, keepdims), _count(x, axis)), narrow.dtype)


@templated
def var(x: TensorLike, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    """The variance over axes: squared distances from the mean over (count - correction).

    >>> fg.var(fg.Tensor([1.0, 3.0])).item(), fg.var(fg.Tensor([1.0, 3.0]), correction=1).item()
    (1.0, 2.0)
    """
    narrow, x = floating(x), wide(x)
    if not narrow.dtype.is_float:
        raise DTypeError(
            f"there is no variance of {narrow.dtype}", "cast it, or use NumPy: x.numpy().var()"
        )
    apart = x - mean(x, axis, keepdims=True)
    rest = _freedom(_count(x, axis), correction)
    return astype(_over(sum(apart * apart, axis, None, keepdims), rest), narrow.dtype)


def _freedom(count: Size, correction: float) -> Tensor | float:
    """count - correction, but not below 0: what squared distances are divided by."""
    if not isinstance(correction, int | float):
        raise DataError(f"correction is {correction!r}", "a number; name other arguments")
    if isinstance(count, int):
        return count - correction if count > correction else 0.0
    return maximum(astype(count, float64) - float(correction), 0.0)


@templated
def std(x: TensorLike, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    """The standard deviation over axes: the root of the variance.

    >>> fg.std(fg.Tensor([1.0, 3.0])).item()
    1.0
    """
    return astype(_root(var(wide(x), axis, correction, keepdims)), floating(x).dtype)


def _root(total: Tensor, p: float = 2.0) -> Tensor:
    """The root number p of a sum of powers; its slope is 0, not infinite, where all are 0."""
    some = where(total == 0, 1, total)
    return where(total == 0, 0, apply(SQRT, some) if p == 2 else apply(POW, some, 1 / p))


def p_norm(x: Tensor, p: float, axis: Axis, keepdims: bool) -> Tensor:
    """(Σ |x| ** p) ** (1 / p), whose slope at 0 is 0; p = 0 counts what is not 0."""
    size = abs(x)
    if p == 0:
        return astype(count_nonzero(size, axis, keepdims), size.dtype)
    if p == 1:
        return sum(size, axis, None, keepdims)
    if p in (inf, -inf):
        return (max if p > 0 else min)(size, axis, keepdims)
    if p == 2:
        base = x if x.dtype.is_float else size
        return _root(sum(base * base, axis, None, keepdims))
    powers = apply(POW, size, p)
    if p < 1:  # the slope of each power is infinite at 0
        powers = where(size == 0, 0.0 if p > 0 else inf, apply(POW, where(size == 0, 1, size), p))
    return _root(sum(powers, axis, None, keepdims), p)


def any(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Is an element other than zero?

    >>> fg.any(fg.Tensor([[0, 0], [0, 2]]), axis=1).tolist()
    [False, True]
    """
    return _truth("max", x, axis, keepdims)


def all(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Are all elements other than zero?

    >>> fg.all(fg.Tensor([[1, 1], [0, 2]]), axis=1).tolist()
    [True, False]
    """
    return _truth("min", x, axis, keepdims)


@templated
def _truth(name: str, x: TensorLike, axis: Axis, keepdims: bool) -> Tensor:
    truth = astype(x, bool_)
    if _count(truth, axis) == 0:  # build refuses an extreme of nothing; of truths there is one
        shape = build.fold("add", build.cast(node_of(truth), int32), axis, keepdims).shape
        return wrap(build.const(name == "min", bool_, shape))
    return wrap(build.fold(name, node_of(truth), axis, keepdims))


@templated
def count_nonzero(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """How many elements are other than zero.

    >>> fg.count_nonzero(fg.Tensor([[0, 3], [4, 5]]), axis=1).tolist()
    [1, 2]
    """
    return sum(astype(x, bool_), axis, None, keepdims)


def argmax(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The place of the first largest element; NaN counts as the largest.

    >>> fg.argmax(fg.Tensor([[1, 5, 5], [3, 2, 1]]), axis=1).tolist()
    [1, 0]
    """
    return _place_of("max", x, axis, keepdims)


def argmin(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The place of the first smallest element; NaN counts as the smallest.

    >>> fg.argmin(fg.Tensor([[1, 0, 0], [3, 2, 1]]), axis=1).tolist()
    [1, 2]
    """
    return _place_of("min", x, axis, keepdims)


@templated
def _place_of(name: str, x: TensorLike, axis: int | None, keepdims: bool) -> Tensor:
    """The smallest place among those that hold the extreme."""
    tensor = as_tensor(x)
    if axis is None or not tensor.ndim:
        build.as_axes(axis, tensor.ndim, lone=True)
        flat = _place_of(
            name, wrap(build.reshape(node_of(tensor), sizes.prod(tensor.shape))), 0, False
        )
        kept = build.as_flag(keepdims, "keepdims")
        return wrap(build.reshape(node_of(flat), (1,) * tensor.ndim)) if kept else flat
    size = tensor.node.shape[build.as_axis(axis, tensor.ndim)]
    if size == 0:
        raise ShapeError(
            f"arg{name} of no elements does not exist", "reduce a dimension that is not empty"
        )
    hit = apply(EQ, tensor, wrap(build.fold(name, node_of(tensor), axis, True)))
    if tensor.dtype.is_float:
        hit = apply(OR, hit, apply(NE, tensor, tensor))
    index = int32 if sizes.upper(size) <= int32.limits[1] else int64
    place = wrap(build.iota(tensor.node.shape, axis, index))
    return min(where(hit, place, index.limits[1]), axis, keepdims)


@templated
def logsumexp(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over axes, also where the powers would overflow.

    >>> round(fg.logsumexp(fg.Tensor([1000.0, 1000.0])).item(), 3)
    1000.693
    """
    narrow, tensor = floating(x), wide(x)
    if _count(tensor, axis) == 0:
        return astype(log(sum(exp(tensor), axis, None, keepdims)), narrow.dtype)
    top = max(tensor, axis, keepdims=True).detach()
    top = where(isfinite(top), top, 0)  # inf - inf would be NaN
    total = log(sum(exp(tensor - top), axis, None, keepdims))
    kept = build.reshape(node_of(top), total.node.shape)
    return astype(total + wrap(kept), narrow.dtype)
