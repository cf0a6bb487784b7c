"""Values put at places that are data: the mirror image of gathering.

In: a tensor, places along one axis, and values for them. Out: a copy of the tensor in which the
values are set, added, ...; of several values set at one place the last in row-major order stays.
Negative places count from the back; one outside is an error that names the user's line.
"""

from __future__ import annotations

from ...core import build
from ...core import shape as sizes
from ...core.dtype import bool_, int32
from ...core.node import Node, Size
from ...core.ops.reduce import identity_of
from ...core.origin import indexing
from ...errors import ArgumentError, ShapeError
from ...tensor import Tensor, TensorLike, lifted, node_of, wrap
from ..common import astype, rank_of, wide
from ..math.elementwise import maximum, where
from ..template import templated
from .indexing import places

_NAMES = {
    "sum": "add",
    "add": "add",
    "prod": "mul",
    "multiply": "mul",
    "amax": "max",
    "amin": "min",
}


def scatter(
    x: TensorLike, axis: int, index: TensorLike, src: TensorLike, reduce: str | None = None
) -> Tensor:
    """A copy of x with the values of `src` at the indexed places along an axis.

    >>> fg.scatter(fg.zeros(4), 0, fg.Tensor([3, 1]), fg.Tensor([5.0, 6.0])).tolist()
    [0.0, 6.0, 0.0, 5.0]
    """
    return _scattered("set" if reduce is None else _name(reduce), x, axis, index, src)


def scatter_add(x: TensorLike, axis: int, index: TensorLike, src: TensorLike) -> Tensor:
    """A copy of x with the values of `src` added at the indexed places along an axis.

    >>> fg.scatter_add(fg.ones(3), 0, fg.Tensor([2, 2]), fg.Tensor([5.0, 6.0])).tolist()
    [1.0, 1.0, 12.0]
    """
    return _scattered("add", x, axis, index, src)


def scatter_reduce(
    x: TensorLike,
    axis: int,
    index: TensorLike,
    src: TensorLike,
    reduce: str,
    include_self: bool = True,
) -> Tensor:
    """Sums, products, extremes or means of what comes to each place: "sum", "amax", "mean", ...

    Without `include_self` what x holds at a place that is met does not count.

    >>> x, places, values = fg.ones(3), fg.Tensor([0, 0, 2]), fg.Tensor([4.0, 2.0, 9.0])
    >>> fg.scatter_reduce(x, 0, places, values, "amax").tolist()
    [4.0, 1.0, 9.0]
    >>> fg.scatter_reduce(x, 0, places, values, "mean", include_self=False).tolist()
    [3.0, 1.0, 9.0]
    """
    base = wrap(node_of(x))
    name = "add" if reduce == "mean" else _name(reduce)
    start = base
    if not include_self:
        met = _scattered("set", wrap(build.const(False, bool_, base.node.shape)), axis, index, True)
        start = where(met, identity_of(name, base.dtype) if name != "add" else 0, base)
    if reduce != "mean":
        return _scattered(name, start, axis, index, src)
    own = wrap(build.const(int(include_self), int32, base.node.shape))
    count = maximum(_scattered("add", own, axis, index, 1), 1)
    if not base.dtype.is_inexact:
        total = _scattered("add", start, axis, index, src)
        return total // astype(count, base.dtype)
    total = _scattered("add", wide(start), axis, index, src)
    return astype(total / astype(count, total.dtype), base.dtype)


def _name(reduce: str) -> str:
    if reduce not in _NAMES:
        raise ArgumentError(f"there is no reduction {reduce!r}", f"one of {', '.join(_NAMES)}")
    return _NAMES[reduce]


def _scattered(name: str, x: TensorLike, axis: int, index: TensorLike, src: TensorLike) -> Tensor:
    """The scatter of torch: index and src may be smaller than x off the axis."""
    place = build.as_axis(axis, rank_of(x))
    with indexing(place):
        return _scattered_at(name, x, place, index, src)


@templated
def _scattered_at(
    name: str, x: TensorLike, place: int, index: TensorLike, src: TensorLike
) -> Tensor:
    node, found, values = lifted(x, index, src)
    node, found = node_of(node), node_of(found)
    if found.ndim != node.ndim:
        raise ShapeError(
            f"{sizes.show(found.shape)} does not index {sizes.show(node.shape)}",
            "give as many dimensions as x has",
        )
    if isinstance(values, Node) and values.ndim:
        values = _corner(values, found.shape)
    cuts = [n if d == place else m for d, (n, m) in enumerate(_both(node, found))]
    part = _corner(node, cuts)
    out = build.scatter(name, part, places(found, node.shape[place]), values, place)
    if part is node:
        return wrap(out)
    pads = [(0, sizes.sub(n, m)) for n, m in _both(node, out)]
    inside = build.pad(build.const(True, bool_, out.shape), pads)
    return wrap(build.where(inside, build.pad(out, pads), node))


def _both(a: Node, b: Node) -> list[tuple[Size, Size]]:
    return list(zip(a.shape, b.shape, strict=True))


def _corner(x: Node, shape: object) -> Node:
    """The first elements along each dimension."""
    return build.shrink(x, [(0, n) for n in build.as_shape(shape)])


def put_along_axis(
    x: TensorLike, indices: TensorLike, values: TensorLike, axis: int = -1
) -> Tensor:
    """A copy of x with values at indexed places along an axis: take_along_axis, the other way.

    >>> x = fg.Tensor([[1, 2], [3, 4]])
    >>> fg.put_along_axis(x, fg.Tensor([[1], [0]]), 9, axis=1).tolist()
    [[1, 9], [9, 4]]
    """
    place = build.as_axis(axis, rank_of(x))
    with indexing(place):
        return _put_along(x, indices, values, place)


@templated
def _put_along(x: TensorLike, indices: TensorLike, values: TensorLike, place: int) -> Tensor:
    node, found, put = lifted(x, indices, values)
    node, found = node_of(node), node_of(found)
    if found.ndim != node.ndim:
        raise ShapeError(
            f"{sizes.show(found.shape)} does not index {sizes.show(node.shape)}",
            "give as many dimensions as x has",
        )
    shape = tuple(m if d == place else n for d, (n, m) in enumerate(_both(node, found)))
    spread = build.expand(places(found, node.shape[place]), shape)
    return wrap(build.scatter("set", node, spread, put, place))


# --- whole slices --------------------------------------------------------------------------------


def index_add(
    x: TensorLike, axis: int, index: TensorLike, source: TensorLike, alpha: float = 1
) -> Tensor:
    """A copy of x with slices added at the places of a 1-d index along an axis.

    >>> fg.index_add(fg.zeros((3, 2)), 0, fg.Tensor([2, 2]), fg.ones((2, 2))).tolist()
    [[0.0, 0.0], [0.0, 0.0], [2.0, 2.0]]
    """
    return _slices("add", x, axis, index, source if alpha == 1 else wrap(node_of(source)) * alpha)


def index_copy(x: TensorLike, axis: int, index: TensorLike, source: TensorLike) -> Tensor:
    """A copy of x with slices set at the places of a 1-d index along an axis.

    >>> fg.index_copy(fg.zeros((3, 2)), 0, fg.Tensor([2, 0]), fg.Tensor([[1, 2], [3, 4]])).tolist()
    [[3.0, 4.0], [0.0, 0.0], [1.0, 2.0]]
    """
    return _slices("set", x, axis, index, source)


def index_fill(x: TensorLike, axis: int, index: TensorLike, value: TensorLike) -> Tensor:
    """A copy of x with one number in the slices at the places of a 1-d index along an axis.

    >>> fg.index_fill(fg.zeros((2, 3)), 1, fg.Tensor([0, 2]), 7).tolist()
    [[7.0, 0.0, 7.0], [7.0, 0.0, 7.0]]
    """
    return _slices("set", x, axis, index, value)


def _slices(name: str, x: TensorLike, axis: int, index: TensorLike, values: TensorLike) -> Tensor:
    place = build.as_axis(axis, rank_of(x))
    with indexing(place):
        return _slices_put(name, x, place, index, values)


@templated
def _slices_put(
    name: str, x: TensorLike, place: int, index: TensorLike, values: TensorLike
) -> Tensor:
    node, found, put = lifted(x, index, values)
    node, found = node_of(node), node_of(found)
    if found.ndim > 1:
        raise ShapeError(f"an index of shape {sizes.show(found.shape)}", "give one dimension")
    count = sizes.prod(found.shape)
    line = [count if d == place else 1 for d in range(node.ndim)]
    shape = [count if d == place else n for d, n in enumerate(node.shape)]
    spread = build.expand(build.reshape(places(found, node.shape[place]), line), shape)
    return wrap(build.scatter(name, node, spread, put, place))
