"""Reductions and scans: one associative op folded over axes, or running along one.

REDUCE keeps the reduced dimensions at size 1, so axis numbers stay valid; the user's side drops
them. Its argument is (name of the op, axes). SCAN's argument is (name of the op, axis, reverse);
"affine" takes two sources and runs s = a*s + b, which is what the gradient of a running product
needs. Small floats accumulate in float32 and round once. An empty reduction gives the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import shape as sizes
from ..dtype import DType, int32
from ..node import Bounds, Node, Shape, Size, constant, constant_like
from ..op import Array, Op, derived
from .elementwise import ADD, MAX, MIN, MUL, WHERE
from .indexing import scatter
from .leaf import iota
from .movement import expand, pad, shrink

REDUCERS: dict[str, Op] = {op.name: op for op in (ADD, MUL, MAX, MIN)}
_UFUNCS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def reduce_node(name: str, x: Node, axes: tuple[int, ...]) -> Node:
    """Fold an op over axes, which stay with size 1."""
    if not axes:
        return x
    shape = tuple([1 if i in axes else n for i, n in enumerate(x.shape)])
    return derived(REDUCE(x, arg=(name, tuple(sorted(axes)))), shape)


def scan_node(name: str, x: Node, axis: int, reverse: bool = False) -> Node:
    """The running fold of an op along an axis, this element included."""
    return SCAN(x, arg=(name, axis, reverse))


def affine_scan(a: Node, b: Node, axis: int, reverse: bool = False) -> Node:
    """The running s = a*s + b along an axis, from s = 0."""
    return SCAN(a, b, arg=("affine", axis, reverse))


def identity_of(name: str, dtype: DType) -> float | int | bool:
    """What an empty reduction gives."""
    identity = REDUCERS[name].identity
    assert identity is not None
    return identity(dtype)


def _reduce_shape(node: Node) -> Shape:
    axes = node.arg[1]
    return tuple([1 if i in axes else n for i, n in enumerate(node.src[0].shape)])


def _reduce_check(node: Node) -> str | None:
    name, axes = node.arg
    inside = all(0 <= a < node.src[0].ndim for a in axes)
    if name not in REDUCERS or not inside or len(set(axes)) != len(axes):
        return f"bad reduction {node.arg}"
    return None if node.dtype.kind in REDUCERS[name].kinds else f"{name} does not take {node.dtype}"


def _reduce_prepared(node: Node) -> Callable[[Array], Array]:
    name, axes = node.arg
    dtype: Any = node.dtype.numpy
    wide: Any = np.dtype(np.float32) if node.dtype.is_small_float else dtype
    fold = _UFUNCS[name].reduce
    identity = identity_of(name, node.dtype)  # of a float sum -0.0: a sum of -0.0 alone is -0.0
    signed = name in ("max", "min") and wide.kind == "f"

    def reduce(a: Array) -> Array:
        # row-major: NumPy adds in memory order, and a sum must not depend on how a view came about
        if a.dtype is not wide or not a.flags.c_contiguous:
            a = np.ascontiguousarray(a, wide).reshape(a.shape)
        start = identity if a.size or name != "add" else 0  # but the sum of nothing is 0.0
        out: Array = np.asarray(fold(a, axes, wide, None, True, start))
        if signed and not out.all():  # NaN is no zero
            out = _signed_zero(name, a, out, axes)
        return out if out.dtype is dtype else out.astype(dtype, copy=False)

    return reduce


def _signed_zero(name: str, a: Array, out: Array, axes: tuple[int, ...]) -> Array:
    """Of zeros of both signs the maximum is 0.0 and the minimum -0.0, whatever NumPy met first."""
    negative = np.signbit(a) & (a == 0)
    positive = ~np.signbit(a) & (a == 0)
    if name == "max":
        sign = np.where(np.any(positive, axis=axes, keepdims=True), 0.0, -0.0)
    else:
        sign = np.where(np.any(negative, axis=axes, keepdims=True), -0.0, 0.0)
    return np.where(out == 0, sign.astype(out.dtype), out)


def _reduce_grad(g: Node, y: Node, a: Node) -> tuple[Node, ...]:
    name, axes = y.arg
    if name == "add":
        return (expand(g, a.shape),)
    if name == "mul":
        return (expand(g, a.shape) * others_product(a, axes),)
    zero, one = constant_like(0, a), constant_like(1, a)
    hit = WHERE(a.eq(expand(y, a.shape)), one, zero)
    ties = reduce_node("add", hit, axes)
    share = g / MAX(ties, constant_like(1, ties))
    return (hit * expand(share, a.shape),)


def others_product(a: Node, axes: tuple[int, ...]) -> Node:
    """For each element the product of all others along the axes; right with zeros too."""
    result = constant_like(1, a)
    for position, axis in enumerate(axes):
        whole = reduce_node("mul", a, axes[position + 1 :])  # the later axes as one number
        before = _shifted(scan_node("mul", whole, axis), axis, toward_end=True, fill=1)
        after = _shifted(scan_node("mul", whole, axis, True), axis, toward_end=False, fill=1)
        result = result * expand(before * after, a.shape)
    return result


def _reduce_batch(y: Node, src: tuple[Node, ...]) -> Node:
    name, axes = y.arg
    return reduce_node(name, src[0], tuple(a + 1 for a in axes))


def _reduce_interval(node: Node, bounds: list[Bounds | None]) -> Bounds | None:
    name, axes = node.arg
    found = bounds[0]
    shape = node.src[0].shape
    count = 1
    for axis in axes:
        size = shape[axis]
        if not isinstance(size, int) or size == 0:
            return None
        count *= size
    if found is None or name == "mul":
        return None
    return (found[0] * count, found[1] * count) if name == "add" else found


REDUCE = Op(
    name="reduce", family="reduce", doc="an op folded over axes, which stay with size 1", arity=1,
    numpy=lambda node, a: _reduce_prepared(node)(a), prepared=_reduce_prepared,
    shape=_reduce_shape, check=_reduce_check, grad=_reduce_grad,
    batch=_reduce_batch, interval=_reduce_interval,
)  # fmt: skip


# --- scans ---------------------------------------------------------------------------------------


def _scan_check(node: Node) -> str | None:
    name, axis, reverse = node.arg
    if not isinstance(reverse, bool) or not 0 <= axis < node.src[0].ndim:
        return f"bad scan {node.arg}"
    if len(node.src) != (2 if name == "affine" else 1):
        return f"a scan of {name!r} has {len(node.src)} sources"
    if name == "affine":
        same = node.src[0].shape == node.src[1].shape and node.src[0].dtype is node.src[1].dtype
        return None if same else "the factors and terms of an affine scan differ in kind"
    if name not in REDUCERS:
        return f"there is no scan of {name!r}"
    return None if node.dtype.kind in REDUCERS[name].kinds else f"{name} does not take {node.dtype}"


def _scan_numpy(node: Node, *arrays: Array) -> Array:
    name, axis, reverse = node.arg
    return scanned(name, axis, reverse, node.dtype, arrays)


def scanned(name: str, axis: int, reverse: bool, dtype: DType, arrays: Sequence[Array]) -> Array:
    """The running fold of arrays along an axis."""
    if dtype.is_small_float:
        arrays = [a.astype(np.float32) for a in arrays]
    if reverse:
        arrays = [np.flip(a, axis) for a in arrays]
    if name == "affine":
        out = _affine(arrays[0], arrays[1], axis)
    else:
        out = _UFUNCS[name].accumulate(arrays[0], axis=axis, dtype=arrays[0].dtype)
        if name in ("max", "min") and out.dtype.kind == "f":
            out = _running_zero(name, arrays[0], out, axis)
    return (np.flip(out, axis) if reverse else out).astype(dtype.numpy, copy=False)


def _running_zero(name: str, a: Array, out: Array, axis: int) -> Array:
    seen = (~np.signbit(a) if name == "max" else np.signbit(a)) & (a == 0)
    zero = 0.0 if name == "max" else -0.0
    met = np.logical_or.accumulate(seen, axis=axis)
    return np.where(out == 0, np.where(met, zero, -zero).astype(out.dtype), out)


def _affine(a: Array, b: Array, axis: int) -> Array:
    a, b = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)
    out = np.empty_like(b)
    state = np.zeros(b.shape[1:], b.dtype)
    for t in range(len(b)):
        state = a[t] * state + b[t]
        out[t] = state
    return np.moveaxis(out, 0, axis)


def _shifted(x: Node, axis: int, *, toward_end: bool, fill: int = 0) -> Node:
    """x moved by one place along the axis, `fill` at the place that is free."""
    n = x.shape[axis]
    if n == 0:
        return x
    cut: list[tuple[Size, Size]] = [(0, m) for m in x.shape]
    room: list[tuple[Size, Size]] = [(0, 0)] * x.ndim
    edge: list[tuple[Size, Size]] = [(0, 0)] * x.ndim
    rest = sizes.sub(n, 1)
    cut[axis] = (0, rest) if toward_end else (1, n)
    room[axis], edge[axis] = ((1, 0), (0, rest)) if toward_end else ((0, 1), (rest, 0))
    moved = pad(shrink(x, cut), room)
    if fill == 0:
        return moved
    shape = tuple([1 if i == axis else m for i, m in enumerate(x.shape)])
    return moved + pad(constant(fill, x.dtype, shape), edge)


def _scan_grad(g: Node, y: Node, *src: Node) -> tuple[Node | None, ...]:
    name, axis, reverse = y.arg
    if name == "add":
        return (scan_node("add", g, axis, not reverse),)
    a = src[0]
    if name in ("affine", "mul"):
        later = _shifted(a, axis, toward_end=reverse)
        total = affine_scan(later, g, axis, not reverse)
        before = _shifted(y, axis, toward_end=not reverse, fill=int(name == "mul"))
        return (total * before,) if name == "mul" else (total * before, total)
    return (_scan_extreme_grad(g, y, a, axis, reverse),)


def _scan_extreme_grad(g: Node, y: Node, a: Node, axis: int, reverse: bool) -> Node:
    """Each result's gradient goes to the place where its running extreme was first met."""
    place = iota(a.shape, axis, int32)
    hit = a.eq(y) & ~_seen_before(a, y, axis, reverse)
    none = constant_like(int32.limits[1] if reverse else -1, place)
    owner = scan_node("min" if reverse else "max", WHERE(hit, place, none), axis, reverse)
    size = a.shape[axis]
    assert isinstance(size, int), "the gradient of a running extreme needs a fixed size"
    inside = MIN(MAX(owner, constant_like(0, owner)), constant_like(size - 1, owner))
    return scatter("add", constant_like(0, a), inside, g, axis)


def _seen_before(a: Node, y: Node, axis: int, reverse: bool) -> Node:
    """True where the running extreme is the same as one place earlier."""
    place = iota(a.shape, axis, int32)
    size = a.shape[axis]
    assert isinstance(size, int)
    first = place.eq(constant_like(size - 1 if reverse else 0, place))
    return y.eq(_shifted(y, axis, toward_end=not reverse)) & ~first


def _scan_batch(y: Node, src: tuple[Node, ...]) -> Node:
    name, axis, reverse = y.arg
    return SCAN(*src, arg=(name, axis + 1, reverse))


SCAN = Op(
    name="scan", family="reduce", doc="the running fold of an op along an axis", arity=None,
    numpy=_scan_numpy, check=_scan_check, grad=_scan_grad, batch=_scan_batch,
)  # fmt: skip
