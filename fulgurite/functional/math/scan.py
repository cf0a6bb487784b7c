"""Running totals along an axis: sums, products, extremes, logarithms of sums; and differences.

In: a tensor and an axis (None flattens). Out: at each place the fold of all elements up to and
with it. Small whole numbers add up in int32 or uint32, half floats in float32, as in `sum`.
Along axis 0, 0 dimensions are one element.
"""

from __future__ import annotations

from math import inf

from ...core import build
from ...core import shape as sizes
from ...core.dtype import bool_, int32
from ...core.node import Node, Size
from ...core.ops.elementwise import EQ, EXP, LOG, NE, OR
from ...errors import ArgumentError
from ...tensor import Tensor, TensorLike, node_of, wrap
from ..array.movement import concat, pad, reshape
from ..common import apply, as_line, as_tensor, as_whole, astype, floating, wide
from ..results import Chosen
from ..template import templated
from .elementwise import isfinite, positive, where
from .reduction import for_sums


@templated
def cumulative_sum(
    x: TensorLike, axis: int | None = None, dtype: object = None, include_initial: bool = False
) -> Tensor:
    """The sum of all elements so far along an axis.

    >>> fg.cumulative_sum(fg.Tensor([1, 2, 3])).tolist()
    [1, 3, 6]
    >>> fg.cumulative_sum(fg.Tensor([[1, 2], [3, 4]]), axis=0, include_initial=True).tolist()
    [[0, 0], [1, 2], [4, 6]]
    """
    return _running("add", for_sums(x, dtype), axis, include_initial, 0)


@templated
def cumulative_prod(
    x: TensorLike, axis: int | None = None, dtype: object = None, include_initial: bool = False
) -> Tensor:
    """The product of all elements so far along an axis.

    >>> fg.cumulative_prod(fg.Tensor([1, 2, 3, 4])).tolist()
    [1, 2, 6, 24]
    """
    return _running("mul", for_sums(x, dtype), axis, include_initial, 1)


@templated
def cumulative_max(x: TensorLike, axis: int | None = None) -> Tensor:
    """The largest element so far along an axis; NaN wins.

    >>> fg.cumulative_max(fg.Tensor([1, 3, 2, 5])).tolist()
    [1, 3, 3, 5]
    """
    return _running("max", node_of(x), axis)


@templated
def cumulative_min(x: TensorLike, axis: int | None = None) -> Tensor:
    """The smallest element so far along an axis; NaN wins.

    >>> fg.cumulative_min(fg.Tensor([4, 3, 5, 1])).tolist()
    [4, 3, 3, 1]
    """
    return _running("min", node_of(x), axis)


def _lined(x: Node, axis: int | None) -> tuple[Node, int]:
    """The tensor and axis to run along: None runs through all elements."""
    if axis is None:
        return (x if x.ndim == 1 else build.reshape(x, (-1,) if 0 not in x.shape else (0,))), 0
    return as_line(x, axis)


def _running(
    name: str, x: Node, axis: int | None, include_initial: bool = False, initial: int = 0
) -> Tensor:
    node, place = _lined(x, axis)
    out = wrap(build.scan(name, node, place))
    if not build.as_flag(include_initial, "include_initial"):
        return out if x.ndim or axis is None else reshape(out, ())
    return pad(out, [(int(d == place), 0) for d in range(node.ndim)], constant_values=initial)


# --- extremes and where they are -----------------------------------------------------------------


def cummax(x: TensorLike, axis: int) -> Chosen:
    """The largest element so far along an axis and the last place that holds it.

    >>> values, places = fg.cummax(fg.Tensor([1, 3, 3, 2]), axis=0)
    >>> values.tolist(), places.tolist()
    ([1, 3, 3, 3], [0, 1, 2, 2])
    """
    return _running_place("max", as_tensor(x), axis)


def cummin(x: TensorLike, axis: int) -> Chosen:
    """The smallest element so far along an axis and the last place that holds it.

    >>> values, places = fg.cummin(fg.Tensor([3, 1, 2, 1]), axis=0)
    >>> values.tolist(), places.tolist()
    ([3, 1, 1, 1], [0, 1, 1, 3])
    """
    return _running_place("min", as_tensor(x), axis)


def _running_place(name: str, x: Tensor, axis: int) -> Chosen:
    """Where an element equals the running extreme, it is the latest place of it."""
    if not x.ndim:
        line, along = as_line(node_of(x), axis)
        return Chosen(*[reshape(part, ()) for part in _running_place(name, wrap(line), along)])
    extreme = _running(name, node_of(x), axis)
    hit = apply(EQ, x, extreme)
    if x.dtype.is_float:
        hit = apply(OR, hit, apply(NE, x, x))
    place = wrap(build.iota(x.node.shape, axis, int32))
    return Chosen(extreme, _running("max", node_of(where(hit, place, 0)), axis))


@templated
def logcumsumexp(x: TensorLike, axis: int) -> Tensor:
    """log of the running sum of exp(x), also where the powers over- or underflow.

    >>> fg.logcumsumexp(fg.Tensor([-1000.0, 0.0, 1000.0]), axis=0).tolist()
    [-1000.0, 0.0, 1000.0]
    """
    narrow, tensor = floating(x), wide(x)
    place = build.as_axis(axis, tensor.ndim, lone=True)
    if not tensor.ndim:
        return positive(narrow)
    if 0 in tensor.shape:
        return narrow
    # with the largest element so far as the unit, s = s * exp(old unit - new unit) + exp(x - unit)
    top = _running("max", node_of(tensor), place).detach()
    unit = where(isfinite(top), top, 0)  # inf - inf would be NaN
    before, now = neighbours(unit, place)
    started = apply(NE, neighbours(top, place)[0], -inf)
    factor = where(started, apply(EXP, before - now), 0)
    factors = build.pad(node_of(factor), [(int(d == place), 0) for d in range(tensor.ndim)])
    powers = apply(EXP, tensor - unit)
    total = wrap(build.affine_scan(factors, node_of(powers), place))
    nothing = apply(EQ, total, 0)  # only -inf so far
    logs = unit + apply(LOG, where(nothing, 1, total))
    return astype(where(nothing, -inf, logs), narrow.dtype)


# --- differences ---------------------------------------------------------------------------------


@templated
def diff(
    x: TensorLike,
    n: int = 1,
    axis: int = -1,
    prepend: TensorLike | None = None,
    append: TensorLike | None = None,
) -> Tensor:
    """Each element less the one before, n times over; of truths whether they differ.

    >>> fg.diff(fg.Tensor([1, 4, 9, 16])).tolist(), fg.diff(fg.Tensor([1, 4, 9, 16]), n=2).tolist()
    ([3, 5, 7], [2, 2])
    """
    if as_whole(n, "n") < 0:
        raise ArgumentError(f"n is {n}", "n is at least 0")
    tensor = positive(x)
    place = build.as_axis(axis, tensor.ndim)
    if prepend is not None or append is not None:
        ends = [prepend, tensor, append]
        tensor = concat([_edge(e, tensor, place) for e in ends if e is not None], place)
    for _ in range(n):
        if tensor.node.shape[place] == 0:
            break
        first, second = neighbours(tensor, place)
        tensor = apply(NE, second, first) if tensor.dtype is bool_ else second - first
    return tensor


def neighbours(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """All elements but the last along an axis, and all but the first."""
    cuts: list[tuple[Size, Size]] = [(0, n) for n in x.node.shape]
    size = x.node.shape[axis]
    out = []
    for cut in ((0, sizes.sub(size, 1)), (1, size)):
        cuts[axis] = cut
        out.append(wrap(build.shrink(node_of(x), cuts)))
    return out[0], out[1]


def _edge(x: TensorLike, like: Tensor, axis: int) -> Tensor:
    """What is put before or after: a 0-d one is one more slice of that number."""
    edge = as_tensor(x, like)
    shape = [1 if d == axis else n for d, n in enumerate(like.node.shape)]
    return edge if edge.ndim else wrap(build.expand(node_of(edge), shape))
