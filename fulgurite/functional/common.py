"""What the families share: lifting operands, and the dtype in which a function computes.

In: what users pass. Out: tensors that fit. Errors come from `core/build.py`, at the user's line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ..core import build
from ..core.dtype import DType, default_float, float32, promote, weak_dtype
from ..core.node import Node
from ..core.op import Op
from ..core.symbolic.sym import as_index
from ..errors import ArgumentError
from ..tensor import Tensor, TensorLike, lift, lifted, node_of, wrap

Axis: TypeAlias = int | Sequence[int] | None
ShapeLike: TypeAlias = int | Node | Sequence[int | Node]


def apply(op: Op, *operands: TensorLike) -> Tensor:
    """An elementwise op after promotion and broadcasting."""
    return wrap(build.apply(op, *lifted(*operands)))


def as_tensor(x: TensorLike, beside: Tensor | None = None) -> Tensor:
    """A tensor as it is, anything else as a new one: an array on the device of one beside it."""
    if isinstance(x, Tensor):
        return x
    return Tensor(x if beside is None else lift(x, beside.node.device))


def rank_of(x: TensorLike) -> int:
    """How many dimensions something has, which is put nowhere for that."""
    return x.ndim if isinstance(x, Tensor | Node | np.ndarray) else node_of(x).ndim


def astype(x: TensorLike, dtype: DType) -> Tensor:
    """The same numbers in a dtype of ours."""
    tensor = as_tensor(x)
    return tensor if tensor.dtype is dtype else wrap(build.cast(lifted(tensor)[0], dtype))


def floating(x: TensorLike) -> Tensor:
    """x as inexact numbers: whole ones become the default float."""
    tensor = as_tensor(x)
    return tensor if tensor.dtype.is_inexact else astype(tensor, default_float)


def wide(x: TensorLike, beside: Tensor | None = None) -> Tensor:
    """x in the dtype that sums over it are kept in: at least float32."""
    tensor = floating(as_tensor(x, beside))
    return astype(tensor, float32) if tensor.dtype.is_small_float else tensor


def common_floats(*operands: TensorLike) -> list[Tensor]:
    """Several operands in their common float dtype; Python numbers give way."""
    nodes = lifted(*operands)
    dtype = common_dtype(*nodes)
    dtype = dtype if dtype.is_inexact else default_float
    return [
        wrap(build.cast(x, dtype) if isinstance(x, Node) else build.const(x, dtype)) for x in nodes
    ]


def common_dtype(*nodes: object) -> DType:
    """The dtype that nodes and Python numbers promote to."""
    return promote(*[x.dtype if isinstance(x, Node) else weak_dtype(x) for x in nodes])


def as_line(x: Node, axis: int) -> tuple[Node, int]:
    """x and an axis of it, counted from the front: 0 dimensions are a line of one element."""
    place = build.as_axis(axis, x.ndim, lone=True)
    return x if x.ndim else build.reshape(x, (1,)), place


def as_whole(value: object, what: str) -> int:
    """A whole number, or an error that says what it is for."""
    try:
        return as_index(value)
    except TypeError:
        raise ArgumentError(f"{what} is {value!r}", f"{what} is a whole number") from None
