"""Sums, products, extremes, means, variances and running ones."""

from __future__ import annotations

import functools
from typing import Any

import fulgurite as fg

from ..table import Refused, Use, aten, axes_of, cast


@aten("sum", "sum.dim_IntList")
def sum_(use: Use, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The sum over axes."""
    x = cast(x, use.wide)
    return cast(fg.sum(x, axis=axes_of(dim, x.ndim), keepdims=keepdim), use.dtype)


@aten("mean", "mean.dim")
def mean(use: Use, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The mean over axes."""
    x = cast(x, use.wide)
    return cast(fg.mean(x, axis=axes_of(dim, x.ndim), keepdims=keepdim), use.dtype)


@aten("prod", "prod.dim_int")
def prod(use: Use, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The product over axes."""
    x = cast(x, use.wide)
    return cast(fg.prod(x, axis=axes_of(dim, x.ndim), keepdims=keepdim), use.dtype)


@aten("any", "any.dim", "any.dims", "all", "all.dim", "all.dims")
def truth(use: Use, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Is any, are all other than zero?"""
    function = fg.any if use.name.startswith("any") else fg.all
    empty_is_all = not use.name.endswith("dims") or dim is None
    return cast(
        function(x != 0, axis=axes_of(dim, x.ndim, empty_is_all), keepdims=keepdim), use.dtype
    )


@aten("amax", "amin")
def extreme(use: Use, x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    """The largest or smallest over axes."""
    function = fg.max if use.name.startswith("amax") else fg.min
    return function(x, axis=axes_of(dim, x.ndim), keepdims=keepdim)


@aten("max", "min")
def extreme_of_all(use: Use, x: Any) -> Any:
    """The largest or smallest of all."""
    return fg.max(x) if use.name.startswith("max") else fg.min(x)


@aten("argmax", "argmin")
def arg_extreme(use: Use, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The place of the first largest or smallest."""
    function = fg.argmax if use.name.startswith("argmax") else fg.argmin
    flat = fg.reshape(x, (-1,)) if dim is None or x.ndim == 0 else x
    found = function(flat, axis=0 if flat is not x else dim % x.ndim, keepdims=False)
    return fg.reshape(cast(found, use.dtype), use.shape)


@aten("max.dim", "min.dim")
def extreme_and_place(use: Use, x: Any, dim: int, keepdim: bool = False) -> Any:
    """The largest or smallest along an axis, and its place."""
    largest = use.name.startswith("max")
    if x.ndim == 0:
        return x, fg.full((), 0, dtype=fg.int64)
    axis = dim % x.ndim
    value = (fg.max if largest else fg.min)(x, axis=axis, keepdims=keepdim)
    if 1 not in use.used:
        return value, None
    place = (fg.argmax if largest else fg.argmin)(x, axis=axis, keepdims=keepdim)
    return value, cast(place, fg.int64)


def _spread(use: Use, x: Any, dim: Any, correction: Any, keepdim: bool) -> tuple[Any, Any]:
    """Variance and mean; the mean is subtracted first."""
    axes = axes_of(dim, x.ndim)
    correction = 1 if correction is None else float(correction)
    dtype = use.out[0].dtype if isinstance(use.out, tuple | list) else use.out.dtype
    from ..dtypes import TO_OURS, compute_dtype

    narrow = TO_OURS[dtype]
    x = cast(x, compute_dtype(narrow))
    if x.dtype.kind == "c":
        raise Refused("the variance of complex numbers")
    middle = fg.mean(x, axis=axes, keepdims=True)
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    squares = fg.sum(fg.square(x - middle), axis=axes, keepdims=keepdim)
    left = max(0.0, count - correction)
    value = squares / fg.full((), left, dtype=x.dtype)
    if not keepdim:
        middle = fg.squeeze(middle, axes) if axes else middle
    return cast(value, narrow), cast(middle, narrow)


@aten("var.correction")
def var(use: Use, x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """The variance over axes."""
    return _spread(use, x, dim, correction, keepdim)[0]


@aten("var.dim")
def var_dim(use: Use, x: Any, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
    """The variance over axes, by torch's older name for the correction."""
    return _spread(use, x, dim, int(unbiased), keepdim)[0]


@aten("var_mean.correction")
def var_mean(
    use: Use, x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    """Variance and mean over axes."""
    return _spread(use, x, dim, correction, keepdim)


@aten("linalg_vector_norm")
def vector_norm(
    use: Use, x: Any, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """The norm of vectors along axes."""
    axes = axes_of(dim, x.ndim)
    if x.dtype.kind == "c" or any(x.shape[axis] == 0 for axis in axes):
        raise Refused("norms of complex numbers, or of nothing")
    sizes = fg.abs(cast(x, use.wide))
    order = float(order)
    if order in (float("inf"), float("-inf")):
        found = (fg.max if order > 0 else fg.min)(sizes, axis=axes, keepdims=keepdim)
    elif order == 0:
        found = fg.sum(cast(sizes != 0, use.wide), axis=axes, keepdims=keepdim)
    elif order == 1:
        found = fg.sum(sizes, axis=axes, keepdims=keepdim)
    elif order == 2:
        found = fg.sqrt(fg.sum(sizes * sizes, axis=axes, keepdims=keepdim))
    else:
        found = fg.pow(fg.sum(fg.pow(sizes, order), axis=axes, keepdims=keepdim), 1 / order)
    return cast(found, use.dtype)


# --- running --------------------------------------------------------------------------------------


def _running(use: Use, x: Any, dim: int, *, function: Any, dtype: Any = None) -> Any:
    x = cast(x, use.wide)
    if x.ndim == 0 or 0 in x.shape:
        return cast(x, use.dtype)
    return cast(function(x, axis=dim % x.ndim), use.dtype)


aten("cumsum")(functools.partial(_running, function=fg.cumulative_sum))
aten("cumprod")(functools.partial(_running, function=fg.cumulative_prod))
aten("logcumsumexp")(functools.partial(_running, function=fg.logcumsumexp))


@aten("cummax", "cummin")
def running_extreme(use: Use, x: Any, dim: int) -> Any:
    """The running extreme, and its place; of equal ones torch tells the last."""
    if x.ndim == 0 or 0 in x.shape:
        return x, fg.full(x.shape, 0, dtype=fg.int64)
    axis = dim % x.ndim
    largest = use.name.startswith("cummax")
    best = (fg.cumulative_max if largest else fg.cumulative_min)(x, axis=axis)
    if 1 not in use.used:
        return best, None
    same = (x == best) | (fg.isnan(x) if x.dtype.is_inexact else False)
    line = fg.arange(x.shape[axis], dtype=fg.int64)
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    places = fg.where(same, fg.reshape(line, shape), 0)
    return best, fg.cumulative_max(places, axis=axis)
