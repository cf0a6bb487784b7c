"""Leaves: what a computation starts from.

CONST, VAR and IOTA carry a shape, so a number takes part in an elementwise op without EXPAND.
BUFFER is memory with an identity: two new buffers are two nodes, however equal.
PARAM is what a buffer becomes in a normalised graph: a number instead of an identity. Their
values come from outside, so they have no NumPy meaning of their own.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ..dtype import DType, Number, array_of_bits, bool_, decode, encode, int32, int64, void
from ..node import Bounds, Node, Shape, dims_of, make, shape_of
from ..op import NOBODY, Array, Op
from ..shape import lower, prod, upper
from .movement import pad, reshape, shrink

_buffer_ids = itertools.count(1)


def variable(name: str, low: int, high: int, shape: Shape = (), dtype: DType = int64) -> Node:
    """A whole number known only when the graph runs, within bounds that are known now."""
    dims, extra = dims_of(shape, 0)
    return make(VAR, dtype, extra, (name, low, high, dims))


def iota(shape: Shape, axis: int, dtype: DType = int32) -> Node:
    """0, 1, 2, ... along an axis."""
    dims, extra = dims_of(shape, 0)
    return make(IOTA, dtype, extra, (axis, dims))


def new_buffer(shape: tuple[int, ...], dtype: DType, device: str = "reference") -> Node:
    """Memory of its own: never equal to another buffer."""
    node = make(BUFFER, dtype, (), (next(_buffer_ids), shape, device))
    node._shape, node._device, node._watched = shape, device, NOBODY
    return node


def param(number: int, shape: Shape, dtype: DType, device: str | None = "reference") -> Node:
    """Input number so-and-so of a normalised graph."""
    dims, extra = dims_of(shape, 0)
    return make(PARAM, dtype, extra, (number, dims, device))


def view(buffer: Node, offset: int, shape: tuple[int, ...]) -> Node:
    """A zero-copy piece of a buffer: consecutive elements from an offset."""
    return VIEW(buffer, arg=(offset, shape))


def bind(var: Node, number: int) -> Node:
    """A variable with the value it has in this graph."""
    return BIND(var, arg=encode(number, var.dtype))


# --- rules ---------------------------------------------------------------------------------------


def _dims_shape(place: int) -> Any:
    return lambda node: shape_of(node.arg[place], node.src)


def _shape_check(node: Node) -> str | None:
    return None if all(lower(n) >= 0 for n in node.shape) else f"a size of {node.shape} is negative"


def _const_check(node: Node) -> str | None:
    if not 0 <= node.arg[0] < 1 << max(8, node.dtype.bits):
        return f"bits {node.arg[0]:#x} do not fit {node.dtype}"
    return _shape_check(node)


def _var_check(node: Node) -> str | None:
    low, high = node.dtype.limits
    if not low <= node.arg[1] <= node.arg[2] <= high:
        return f"there are no {node.dtype} values in {node.arg[1]}..{node.arg[2]}"
    return _shape_check(node)


def _const_numpy(node: Node, *_: Array) -> Array:
    return np.broadcast_to(array_of_bits(node.arg[0], node.dtype), node.shape)  # type: ignore[arg-type]


def _const_interval(node: Node, bounds: list[Bounds | None]) -> Bounds | None:
    value: Number = node.value
    assert isinstance(value, int)
    return value, value


def _iota_numpy(node: Node, *_: Array) -> Array:
    axis, shape = node.arg[0], node.shape
    line = np.arange(shape[axis]).astype(node.dtype.numpy)
    along = [1] * len(shape)
    along[axis] = len(line)
    return np.broadcast_to(line.reshape(along), shape)  # type: ignore[arg-type]


def _iota_check(node: Node) -> str | None:
    if not 0 <= node.arg[0] < node.ndim:
        return f"no axis {node.arg[0]} in {node.shape}"
    if node.dtype is bool_:
        return "a running count is not a bool"
    return _shape_check(node)


def _view_numpy(node: Node, a: Array) -> Array:
    offset = node.arg[0]
    return a.reshape(-1)[offset : offset + prod(node.shape)].reshape(node.shape)


def _view_grad(g: Node, y: Node, a: Node) -> tuple[Node, ...]:
    offset = y.arg[0]
    count, whole = prod(y.shape), prod(a.shape)
    assert isinstance(count, int) and isinstance(whole, int)
    flat = pad(reshape(g, (count,)), [(offset, whole - offset - count)])
    return (reshape(flat, a.shape),)


def _view_batch(y: Node, src: tuple[Node, ...]) -> Node:
    batch, offset = src[0].shape[0], y.arg[0]
    flat = reshape(src[0], (batch, prod(src[0].shape[1:])))
    return reshape(shrink(flat, [(0, batch), (offset, offset + prod(y.shape))]), (batch, *y.shape))


def _view_check(node: Node) -> str | None:
    if node.src[0].op is not BUFFER and node.src[0].op is not PARAM:
        return f"a view is of memory, not of {node.src[0].op}"
    offset, shape = node.arg
    fits = offset >= 0 and offset + upper(prod(shape)) <= upper(prod(node.src[0].shape))
    return None if fits else f"the view {node.arg} is not inside {node.src[0].shape}"


def _bind_check(node: Node) -> str | None:
    if node.src[0].op is not VAR:
        return "only a variable can be bound"
    name, low, high, _ = node.src[0].arg
    value = decode(node.arg, node.dtype)
    assert isinstance(value, int)
    return None if low <= value <= high else f"{name} = {value} is not in {low}..{high}"


CONST = Op(
    name="const", family="leaf", doc="a number, the same everywhere", arity=0, dtype=None,
    numpy=_const_numpy, shape=_dims_shape(1), interval=_const_interval, check=_const_check,
    levels=frozenset({"tensor", "index"}), cost=0,
)  # fmt: skip
VAR = Op(
    name="var", family="leaf", doc="a whole number given when the graph runs, within bounds",
    arity=0, dtype=None, numpy=None, shape=_dims_shape(3), kinds="iu",
    interval=lambda node, _: (node.arg[1], node.arg[2]), check=_var_check,
    levels=frozenset({"tensor", "index"}), cost=0,
)  # fmt: skip
IOTA = Op(
    name="iota", family="leaf", doc="0, 1, 2, ... along an axis", arity=0, dtype=None,
    numpy=_iota_numpy, shape=_dims_shape(1), check=_iota_check,
    interval=lambda node, _: (0, max(0, upper(node.shape[node.arg[0]]) - 1)), cost=0,
    sizes=slice(1, 2),
)  # fmt: skip
BUFFER = Op(
    name="buffer", family="leaf", doc="memory with an identity and a device", arity=0,
    dtype=None, numpy=None, shape=lambda node: node.arg[1], check=_shape_check, cost=0,
    device=lambda node: node.arg[2],
)  # fmt: skip
PARAM = Op(
    name="param", family="leaf", doc="input of a normalised graph, by number", arity=0,
    dtype=None, numpy=None, shape=_dims_shape(1), check=_shape_check,
    levels=frozenset({"tensor", "index"}), cost=0, device=lambda node: node.arg[2],
)  # fmt: skip
VIEW = Op(
    name="view", family="leaf", doc="consecutive elements of a buffer, without a copy", arity=1,
    numpy=_view_numpy, shape=lambda node: node.arg[1], grad=_view_grad, batch=_view_batch,
    check=_view_check, interval=lambda node, bounds: bounds[0], cost=0, sizes=slice(None),
)  # fmt: skip
BIND = Op(
    name="bind", family="leaf", doc="a variable with its value in this graph", arity=1, kinds="iu",
    numpy=lambda node, a: np.broadcast_to(array_of_bits(node.arg, node.dtype), node.shape),
    check=_bind_check, interval=lambda node, bounds: bounds[0], cost=0,
)  # fmt: skip
SINK = Op(
    name="sink", family="leaf", doc="several results in order", arity=None, numpy=None,
    dtype=lambda src, arg: void, shape=lambda node: (), cost=0,
    levels=frozenset({"tensor", "index"}),
)  # fmt: skip
