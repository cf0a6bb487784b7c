"""Percentiles, and quantiles of the elements that are numbers.

In: a tensor, the parts asked for, and the axes to reduce. Out: for each part, the element below
which that part of the elements lies, or a number between two of them. `quantile` and `median`
themselves are in `sorting.py`; here a row with NaN has as many elements as it has numbers, so
where its quantiles lie is data: they are gathered row by row from one sort.
"""

from __future__ import annotations

from math import inf

import numpy as np

from ...core import build
from ...core import shape as sizes
from ...core.dtype import float64, int32
from ...core.node import Node
from ...errors import ArgumentError, ShapeError
from ...tensor import Tensor, TensorLike, node_of, wrap
from ..array.indexing import take_along_axis
from ..array.movement import moveaxis, reshape
from ..array.sorting import _BETWEEN, _lines, quantile, sort
from ..common import Axis, as_tensor, astype, floating, wide
from .elementwise import equal, floor, isnan, logical_not, maximum, minimum, where
from .reduction import sum


def percentile(
    x: TensorLike,
    q: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    method: str = "linear",
) -> Tensor:
    """The number below which q percent of the elements lie: `quantile` with q / 100.

    >>> fg.percentile(fg.Tensor([1.0, 2.0, 3.0, 4.0]), 50).item()
    2.5
    >>> fg.percentile(fg.Tensor([1.0, 2.0, 3.0, 4.0]), [0, 50], method="lower").tolist()
    [1.0, 2.0]
    """
    tensor = as_tensor(x)
    return quantile(tensor, _parts(q, 100, "percent", tensor.node.device), axis, keepdims, method)


def nanpercentile(
    x: TensorLike,
    q: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    method: str = "linear",
) -> Tensor:
    """The percentile of the elements that are not NaN.

    >>> fg.nanpercentile(fg.Tensor([1.0, float("nan"), 3.0]), 50).item()
    2.0
    """
    tensor = as_tensor(x)
    return nanquantile(
        tensor, _parts(q, 100, "percent", tensor.node.device), axis, keepdims, method
    )


def nanmedian(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The middle element of those that are not NaN, or the mean of the middle two.

    >>> fg.nanmedian(fg.Tensor([1.0, float("nan"), 3.0])).item()
    2.0
    """
    return nanquantile(x, 0.5, axis, keepdims)


def nanquantile(
    x: TensorLike,
    q: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    method: str = "linear",
) -> Tensor:
    """The quantile of the elements that are not NaN; where all are, NaN.

    >>> x = fg.Tensor([[1.0, float("nan"), 3.0], [4.0, 5.0, 9.0]])
    >>> fg.nanquantile(x, 0.5, axis=1).tolist()
    [2.0, 5.0]
    """
    narrow, tensor = floating(x), wide(x)
    if method not in _BETWEEN:
        raise ArgumentError(f"method is {method!r}", f"one of {', '.join(_BETWEEN)}")
    gone = build.as_axes(axis, tensor.ndim or 1)[: tensor.ndim]
    line, shape = _lines(tensor, gone)
    size = line.node.shape[-1]
    if not isinstance(size, int) or size == 0:
        raise ShapeError(
            f"a quantile of {sizes.size_text(size)} elements", "reduce fixed sizes above 0"
        )
    part = _parts(q, 1, "a part", line.node.device)
    last = astype(sum(logical_not(isnan(line)), -1, keepdims=True), float64) - 1
    exact = maximum(last, 0.0) * reshape(part, (max(part.size, 0),))
    low = floor(exact)
    rising = sort(line)  # NaN last
    high = minimum(low + 1, maximum(last, 0.0))
    lower, upper = (take_along_axis(rising, astype(at, int32)) for at in (low, high))
    weight = astype(_BETWEEN[method](exact - low, low), line.dtype)
    mixed = lower * (1 - weight) + upper * weight
    found = where(equal(lower, upper) | equal(weight, 0), lower, mixed)
    found = moveaxis(where(equal(weight, 1), upper, found), -1, 0)
    rest = [1 if d in gone else n for d, n in enumerate(shape) if keepdims or d not in gone]
    return astype(wrap(build.reshape(node_of(found), (*part.shape, *rest))), narrow.dtype)


def _parts(q: TensorLike, whole: int, what: str, device: str | None) -> Tensor:
    """Parts of 1 as float64; those that are known are checked."""
    if isinstance(q, Tensor | Node):
        return astype(q, float64) / whole if whole != 1 else astype(q, float64)
    array = np.asarray(q, np.float64)
    if not ((array >= 0) & (array <= whole) & (array < inf)).all():
        raise ArgumentError(f"q is {q!r}", f"q is {what}: from 0 to {whole}")
    return Tensor(array / whole, float64, device)
