"""Order: sorted values, their places, the first few of them, and where others would stand.

In: tensors of real numbers; -0.0 equals 0.0 and NaN counts as larger than any number. Out: values
are gathers of the places that one stable SORT gives, which also carries their gradient; places
are int32. Along axis 0, 0 dimensions are one element.
"""

from __future__ import annotations

from ...core import build
from ...core import shape as sizes
from ...core.dtype import DType, float64, int32, int64
from ...core.node import Node, Size
from ...core.ops.elementwise import EQ, NE
from ...core.ops.leaf import CONST
from ...errors import ArgumentError, DTypeError, ShapeError
from ...tensor import Tensor, TensorLike, lifted, node_of, wrap
from ..common import Axis, apply, as_line, astype, common_dtype, floating, wide
from ..math.elementwise import (
    ceil,
    floor,
    less,
    less_equal,
    logical_and,
    logical_or,
    minimum,
    where,
)
from ..math.reduction import any, sum
from ..results import Chosen
from ..template import templated
from .indexing import take
from .movement import moveaxis


@templated
def argsort(x: TensorLike, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The places of the elements in order along an axis; equal ones keep their order.

    >>> fg.argsort(fg.Tensor([3, 1, 2, 1])).tolist()
    [1, 3, 2, 0]
    >>> fg.argsort(fg.Tensor([3, 1, 2, 1]), descending=True).tolist()
    [0, 2, 1, 3]
    """
    node = node_of(x)
    order = build.sort_order(*as_line(node, axis), descending)
    return wrap(build.reshape(order, node.shape))


@templated
def sort(x: TensorLike, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements in order along an axis; NaN is last, or first when descending.

    >>> fg.sort(fg.Tensor([[3, 1], [2, 5]])).tolist()
    [[1, 3], [2, 5]]
    >>> fg.sort(fg.Tensor([3, 1, 2]), descending=True).tolist()
    [3, 2, 1]
    """
    return _ordered(node_of(x), axis, descending).values


def _ordered(x: Node, axis: int, descending: bool) -> Chosen:
    line, place = as_line(x, axis)
    order = build.sort_order(line, place, descending)
    found = (build.gather(line, order, place), order)
    return Chosen(*[wrap(build.reshape(part, x.shape)) for part in found])


def topk(
    x: TensorLike, k: int, axis: int = -1, largest: bool = True, sorted: bool = True
) -> Chosen:
    """The k largest (or smallest) elements along an axis, in order, and their places.

    >>> values, places = fg.topk(fg.Tensor([1.0, 5.0, 3.0]), 2)
    >>> values.tolist(), places.tolist()
    ([5.0, 3.0], [1, 2])
    """
    whole = node_of(x)
    node, place = as_line(whole, axis)
    size = node.shape[place]
    if not (0 if whole.ndim else 1) <= k <= sizes.lower(size):
        raise ArgumentError(
            f"there are no {k} elements in a dimension of {sizes.size_text(size)}",
            "choose k from 0 up to the size",
        )
    line = wrap(node)
    few = _first_places(line, k, place, build.as_flag(largest, "largest"))
    found = Chosen(_values_at(line, few, place), few)
    return found if whole.ndim else Chosen(*[wrap(build.drop(p.node, (0,))) for p in found])


@templated
def _first_places(x: Tensor, k: int, axis: int, largest: bool) -> Tensor:
    """The places of the first k elements in order along an axis: of those behind nobody asks."""
    node = node_of(x)
    few = k < sizes.lower(node.shape[axis])
    order = build.sort_order(node, axis, largest, k if few else 0)
    return wrap(build.shrink(order, [(0, k if d == axis else n) for d, n in enumerate(x.shape)]))


@templated
def _values_at(x: Tensor, places: Tensor, axis: int) -> Tensor:
    """The elements at places along an axis."""
    return wrap(build.gather(node_of(x), node_of(places), axis))


def kthvalue(x: TensorLike, k: int, axis: int = -1, keepdims: bool = False) -> Chosen:
    """The element number k, counted from 1, in rising order along an axis, and its place.

    >>> value, place = fg.kthvalue(fg.Tensor([4.0, 1.0, 3.0]), 2)
    >>> value.item(), place.item()
    (3.0, 2)
    """
    build.as_positive(k, "k")
    keepdims = build.as_flag(keepdims, "keepdims")
    found = topk(x, k, axis, largest=False)
    if not found.values.ndim:
        return found
    place = build.as_axis(axis, found.values.ndim)
    out = []
    for part in found:
        cuts = [(k - 1, k) if d == place else (0, n) for d, n in enumerate(part.node.shape)]
        last = build.shrink(node_of(part), cuts)
        out.append(wrap(last if keepdims else build.drop(last, (place,))))
    return Chosen(*out)


# --- between elements ----------------------------------------------------------------------------


@templated
def quantile(
    x: TensorLike,
    q: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    method: str = "linear",
) -> Tensor:
    """The number below which a part q of the elements lies; between two elements by `method`.

    The result has the dimensions of q first. With NaN among the elements it is NaN.

    >>> fg.quantile(fg.Tensor([1.0, 2.0, 3.0, 4.0]), 0.5).item()
    2.5
    >>> fg.quantile(fg.Tensor([1.0, 2.0, 3.0, 4.0]), [0.0, 1.0]).tolist()
    [1.0, 4.0]
    """
    narrow, tensor = floating(x), wide(x)
    keepdims = build.as_flag(keepdims, "keepdims")
    if method not in _BETWEEN:
        raise ArgumentError(f"method is {method!r}", f"one of {', '.join(_BETWEEN)}")
    gone = build.as_axes(axis, tensor.ndim, lone=True)
    line, shape = _lines(tensor, gone)
    size = line.node.shape[-1]
    if not isinstance(size, int) or size == 0:
        raise ShapeError(
            f"a quantile of {sizes.size_text(size)} elements", "reduce fixed sizes above 0"
        )
    here = None if isinstance(q, int | float) else line.node.device  # numbers need no device
    part = astype(q if isinstance(q, Tensor | Node) else Tensor(q, float64, here), float64)
    known = part.node.value if part.node.op is CONST else 0.0
    if isinstance(known, int | float) and not 0 <= known <= 1:
        raise ArgumentError(f"q is {q!r}", "q is a part: from 0 to 1")
    ordered = _ordered(node_of(line), -1, False).values
    exact = part * (size - 1)
    low = floor(exact)
    lower, upper = (
        _at(ordered, astype(place, int32)) for place in (low, minimum(low + 1, size - 1))
    )
    weight = astype(_BETWEEN[method](exact - low, low), line.dtype)
    weight = wrap(build.reshape(node_of(weight), (*part.shape, *[1] * (line.ndim - 1))))
    mixed = lower * (1 - weight) + upper * weight
    found = where(apply(EQ, lower, upper), lower, where(apply(EQ, weight, 1), upper, mixed))
    found = where(apply(EQ, weight, 0), lower, found)
    unknown = any(apply(NE, line, line), axis=-1)
    found = where(unknown, float("nan"), found)
    if keepdims:
        kept = [1 if d in gone else n for d, n in enumerate(shape)]
        found = wrap(build.reshape(node_of(found), (*part.shape, *kept)))
    return astype(found, narrow.dtype)


def _nearest(weight: Tensor, low: Tensor) -> Tensor:
    """Halves go to the even element."""
    odd = apply(EQ, low % 2, 1)
    up = logical_or(weight > 0.5, logical_and(apply(EQ, weight, 0.5), odd))
    return astype(up, weight.dtype)


_BETWEEN = {
    "linear": lambda weight, low: weight,
    "lower": lambda weight, low: weight * 0,
    "higher": lambda weight, low: ceil(weight),
    "midpoint": lambda weight, low: ceil(weight) * 0.5,
    "nearest": _nearest,
}


def _lines(x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, tuple[Size, ...]]:
    """x with some axes as one, last; and its shape."""
    shape: tuple[Size, ...] = x.node.shape
    rest = [d for d in range(x.ndim) if d not in axes]
    moved = build.permute(node_of(x), [*rest, *axes])
    count = sizes.prod([shape[d] for d in axes])
    return wrap(build.reshape(moved, (*[shape[d] for d in rest], count))), shape


def _at(x: Tensor, places: Tensor) -> Tensor:
    """The elements at places along the last axis, with the dimensions of the places first."""
    found = take(x, places, axis=-1)
    return moveaxis(found, range(x.ndim - 1, found.ndim), range(places.ndim))


def median(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The middle element in order, or the mean of the middle two; NaN if one is NaN.

    >>> fg.median(fg.Tensor([3.0, 1.0, 2.0])).item(), fg.median(fg.Tensor([4, 1, 2, 3])).item()
    (2.0, 2.5)
    """
    return quantile(x, 0.5, axis, keepdims)


# --- places among others -------------------------------------------------------------------------


@templated
def searchsorted(
    x1: TensorLike, x2: TensorLike, side: str = "left", sorter: TensorLike | None = None
) -> Tensor:
    """Where the elements of x2 would stand in the sorted x1: before equal ones, or after.

    Stacks of sorted rows (several dimensions in x1) need the same stack in x2.

    >>> rising = fg.Tensor([1, 3, 3, 7])
    >>> fg.searchsorted(rising, fg.Tensor([0, 3, 9])).tolist()
    [0, 1, 4]
    >>> fg.searchsorted(rising, 3, side="right").item()
    3
    """
    if side not in ("left", "right"):
        raise ArgumentError(f"side is {side!r}", 'use "left" or "right"')
    rising, wanted = _same_kind(x1 if sorter is None else _sorted_by(x1, sorter), x2)
    shape = wanted.node.shape
    if rising.ndim == 1:
        wanted = wrap(build.reshape(node_of(wanted), (sizes.prod(shape),)))
    elif rising.ndim == 0 or rising.node.shape[:-1] != shape[:-1]:
        raise ShapeError(
            f"{sizes.show(shape)} cannot be looked up in {sizes.show(rising.node.shape)}",
            "give one sorted row, or equal stacks",
        )
    size = rising.node.shape[-1]
    if not isinstance(size, int):
        raise ShapeError("a sorted row of variable size", "use a fixed size")
    if size <= _FEW:
        found = _count_before(rising, wanted, side)
    else:
        kind = int32 if size <= int32.limits[1] else int64
        found = wrap(build.const(0, kind, wanted.node.shape))
        for bit in reversed(range(size.bit_length())):
            found = _step(rising, wanted, found, 1 << bit, size, side)
    return wrap(build.reshape(node_of(found), shape))


_FEW = 32  # elements that are compared one by one, in one kernel


def _count_before(rising: Tensor, wanted: Tensor, side: str) -> Tensor:
    """How many elements come first: all are compared."""
    rows, columns = rising.node, wanted.node
    stack, size, count = rows.shape[:-1], rows.shape[-1], columns.shape[-1]
    there = wrap(build.reshape(node_of(rising), (*stack, 1, size)))
    here = wrap(build.reshape(node_of(wanted), (*stack, count, 1)))
    return sum(_comes_before(there, here, side), -1)


def _step(rising: Tensor, wanted: Tensor, found: Tensor, step: int, size: int, side: str) -> Tensor:
    """Move on by a power of two where the element before that place still comes first."""
    further = found + step
    last = minimum(further, size) - 1
    there = wrap(build.gather(node_of(rising), node_of(last), rising.ndim - 1))
    first = _comes_before(there, wanted, side)
    return where(logical_and(less_equal(further, size), first), further, found)


def _comes_before(there: Tensor, wanted: Tensor, side: str) -> Tensor:
    """there < wanted, or there <= wanted; NaN is the largest."""
    before = less(there, wanted) if side == "left" else less_equal(there, wanted)
    if not there.dtype.is_float:
        return before
    unknown = apply(NE, wanted, wanted)
    known = apply(EQ, there, there)
    return logical_or(before, logical_and(unknown, known) if side == "left" else unknown)


def _same_kind(x1: TensorLike, x2: TensorLike) -> tuple[Tensor, Tensor]:
    nodes = lifted(x1, x2)
    dtype: DType = common_dtype(*nodes)
    if dtype.kind == "c":
        raise DTypeError("complex numbers have no order", "use their real part or magnitude")
    first, second = (
        build.cast(x, dtype) if isinstance(x, Node) else build.const(x, dtype) for x in nodes
    )
    return wrap(first), wrap(second)


def _sorted_by(x: TensorLike, sorter: TensorLike) -> Tensor:
    node = node_of(x)
    if node.ndim != 1:
        raise ShapeError("a sorter orders one row", "give x1 of one dimension")
    return take(x, sorter, axis=0)
