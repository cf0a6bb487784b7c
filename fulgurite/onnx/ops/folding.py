"""Operators on small host arrays: how exporters compute shapes.

In: arrays of whole numbers, of strings, or of objects among which are variable sizes. Out: arrays.
Only `Build` calls these, and only when somebody asks for the numbers of a value that follows from
constants, shapes and small inputs; the tensor of the same value is built by the operator's own
entry. Arithmetic on variable sizes keeps them variable.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from ...core import shape as sizes
from ...core.node import Node
from ...core.op import Array
from .. import types as t
from ..errors import NeedsValueError
from ..table import Call, fold
from ..values import is_symbolic
from .movement import axes_input, axis_of, cut_of, reshaped


def _sized(symbolic: Callable[[Any, Any], Any], plain: Callable[[Any, Any], Array]) -> Any:
    """Arithmetic that also takes variable sizes."""
    wide = np.frompyfunc(symbolic, 2, 1)

    def work(op: Call, a: Array, b: Array) -> Array:
        if is_symbolic(a) or is_symbolic(b):
            return np.asarray(wide(_objects(a), _objects(b)), object)
        with np.errstate(all="ignore"):
            return np.asarray(plain(a, b))

    return work


_object = np.frompyfunc(lambda x: x if isinstance(x, Node) else int(x), 1, 1)


def _objects(a: Array) -> Array:
    return np.asarray(_object(a), object)  # of a 0-d array it gives the bare element


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b
    return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)))


fold("Add")(_sized(sizes.add, np.add))
fold("Sub")(_sized(sizes.sub, np.subtract))
fold("Mul")(_sized(sizes.mul, np.multiply))
fold("Div")(_sized(sizes.floordiv, _divide))


def _plain(function: Callable[..., Any]) -> Any:
    """An operator that needs plain numbers."""

    def work(op: Call, *arrays: Array) -> Array:
        if any(a is not None and is_symbolic(a) for a in arrays):
            raise NeedsValueError("a variable size is needed as a number", "fix the dimension")
        with np.errstate(all="ignore"):
            return np.asarray(function(*arrays))

    return work


fold("Min")(_plain(lambda *a: reduce(np.minimum, a)))
fold("Max")(_plain(lambda *a: reduce(np.maximum, a)))
fold("Less")(_plain(np.less))
fold("Greater")(_plain(np.greater))
fold("LessOrEqual")(_plain(np.less_equal))
fold("GreaterOrEqual")(_plain(np.greater_equal))
fold("And")(_plain(np.logical_and))
fold("Or")(_plain(np.logical_or))
fold("Not")(_plain(np.logical_not))
fold("Neg")(_plain(np.negative))
fold("Abs")(_plain(np.abs))
fold("Floor")(_plain(lambda a: np.floor(a).astype(a.dtype)))
fold("Ceil")(_plain(lambda a: np.ceil(a).astype(a.dtype)))
fold("Round")(_plain(lambda a: np.round(a).astype(a.dtype)))
fold("Sqrt")(_plain(np.sqrt))
fold("Reciprocal")(_plain(np.reciprocal))
fold("Exp")(_plain(np.exp))
fold("Log")(_plain(np.log))
fold("Pow")(_plain(lambda a, b: np.power(a, b).astype(a.dtype)))
fold("Range")(_plain(lambda a, b, c: np.arange(a.item(), b.item(), c.item()).astype(a.dtype)))


@fold("Mod")
def mod(op: Call, a: Array, b: Array) -> Array:
    """Remainders."""
    return np.fmod(a, b) if op.int("fmod") else np.remainder(a, b)


@fold("Equal")
def equal(op: Call, a: Array, b: Array) -> Array:
    """Equal also if both are the same variable size."""
    if is_symbolic(a) or is_symbolic(b):
        return np.asarray(np.frompyfunc(_same, 2, 1)(_objects(a), _objects(b))).astype(bool)
    return np.asarray(a == b)


def _same(a: Any, b: Any) -> bool:
    """Two sizes; whether a variable is another number depends on its value."""
    if sizes.same(a, b):
        return True
    if sizes.upper(a) < sizes.lower(b) or sizes.upper(b) < sizes.lower(a):
        return False
    raise NeedsValueError("a variable size is compared", "fix the dimension")


@fold("Where")
def where(op: Call, c: Array, a: Array, b: Array) -> Array:
    """One or the other."""
    return np.where(c, a, b)


@fold("Cast")
def cast(op: Call, a: Array) -> Array | None:
    """Another element type; sizes stay whole."""
    kind = op.kind_attr("to", t.FLOAT)
    if is_symbolic(a):
        return a if kind.carrier is not None and kind.carrier.is_integer else None
    if kind.carrier is None or not kind.plain or op.value(0).is_text:
        return None
    with np.errstate(all="ignore"):
        return a.astype(kind.carrier.numpy)


@fold("Identity")
def identity(op: Call, a: Array) -> Array:
    """The same."""
    return a


@fold("Gather")
def gather(op: Call, a: Array, index: Array) -> Array:
    """Slices by number."""
    return np.asarray(np.take(a, index, axis=op.int("axis", 0)))


@fold("Concat")
def concat(op: Call, *arrays: Array) -> Array:
    """One after the other."""
    if any(map(is_symbolic, arrays)):
        arrays = tuple(_objects(a) for a in arrays)
    return np.concatenate(arrays, axis=op.int("axis", 1))


@fold("Slice")
def slice_(op: Call, a: Array, *bounds: Array) -> Array | None:
    """Cuts."""
    if bounds and any(b is not None and is_symbolic(b) for b in bounds):
        return None
    if op.version < 10:
        starts, ends, axes, steps = (
            op.ints_of("starts"),
            op.ints_of("ends"),
            op.ints_of("axes"),
            None,
        )
    else:
        lists = [None if b is None else b.reshape(-1).tolist() for b in bounds]
        starts, ends, axes, steps = [*lists, None, None][:4]
    cuts = [slice(None)] * a.ndim
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = axis_of(axes[i] if axes else i, a.ndim)
        step = steps[i] if steps else 1
        cuts[axis] = cut_of(a.shape[axis], int(start), int(end), int(step))
    return a[tuple(cuts)]


@fold("Squeeze")
def squeeze(op: Call, a: Array, *_: Array) -> Array:
    """Without axes of size 1."""
    axes = axes_input(op, 13)
    return np.squeeze(a, None if axes is None else tuple(axes))


@fold("Unsqueeze")
def unsqueeze(op: Call, a: Array, *_: Array) -> Array:
    """With more axes."""
    axes = axes_input(op, 13)
    return np.expand_dims(a, tuple(axes or ())) if axes else a


@fold("Reshape")
def reshape(op: Call, a: Array, *shape: Array) -> Array:
    """Another shape."""
    wanted = op.ints(1) if op.version >= 5 else op.ints_of("shape", [])
    return a.reshape(reshaped(a.shape, wanted, bool(op.int("allowzero"))))


@fold("Transpose")
def transpose(op: Call, a: Array) -> Array:
    """Axes in another order."""
    return np.transpose(a, op.ints_of("perm"))


@fold("Expand")
def expand(op: Call, a: Array, *_: Array) -> Array:
    """Broadcast."""
    return np.broadcast_to(a, np.broadcast_shapes(a.shape, tuple(op.ints(1))))


@fold("Tile")
def tile(op: Call, a: Array, *_: Array) -> Array:
    """Side by side."""
    return np.tile(a, op.ints(1))


@fold("Split")
def split(op: Call, a: Array, *parts: Array) -> list[Array] | None:
    """Parts along an axis."""
    axis = op.int("axis", 0)
    given = op.ints_of("split") if op.version < 13 else op.ints(1) if parts else None
    if given is None:
        count = len(op.node.output)
        each = -(-a.shape[axis] // count)
        given = [each] * (count - 1)
    return np.split(a, np.cumsum(given)[: len(op.node.output) - 1], axis)


def _reduced(symbolic: Callable[[Any, Any], Any], plain: Callable[..., Any]) -> Any:
    def work(op: Call, a: Array, *axes: Array) -> Array | None:
        named = op.ints(1) if axes and axes[0] is not None else op.ints_of("axes")
        if is_symbolic(a):
            if a.ndim != 1:
                return None
            total = reduce(symbolic, a.tolist())
            found = np.empty((1,) if op.int("keepdims", 1) else (), object)
            found[...] = total
            return found
        if not named and op.int("noop_with_empty_axes"):
            return a
        over = tuple(named) if named else None
        return np.asarray(plain(a, axis=over, keepdims=bool(op.int("keepdims", 1)))).astype(a.dtype)

    return work


fold("ReduceProd")(_reduced(sizes.mul, np.prod))
fold("ReduceSum")(_reduced(sizes.add, np.sum))


@fold("ReduceMax")
def reduce_max(op: Call, a: Array, *axes: Array) -> Array:
    """The largest."""
    named = op.ints(1) if axes and axes[0] is not None else op.ints_of("axes")
    return np.asarray(
        a.max(axis=tuple(named) if named else None, keepdims=bool(op.int("keepdims", 1)))
    )


@fold("NonZero")
def non_zero(op: Call, a: Array) -> Array:
    """Where it is not zero."""
    return np.array(np.nonzero(a), np.int64).reshape(a.ndim, -1)


@fold("ScatterND")
def scatter_nd(op: Call, a: Array, index: Array, values: Array) -> Array | None:
    """Values at places."""
    if op.text("reduction", "none") != "none":
        return None
    found = np.array(a)
    found[tuple(np.moveaxis(index, -1, 0))] = values
    return found
