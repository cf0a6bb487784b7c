"""Tensors from nothing: constants, ramps, and copies of host data.

In: shapes, numbers, arrays. Out: tensors. Constants and ramps are nodes (CONST, IOTA), not memory:
`zeros((10000, 10000))` costs nothing and fuses into what reads it.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from ...core import build
from ...core import shape as sizes
from ...core.dtype import (
    DType,
    bool_,
    complex64,
    default_float,
    default_int,
    dtype_of,
    float64,
    int32,
    int64,
)
from ...core.node import Node, Size, constant_bits
from ...core.ops.elementwise import ADD, EQ, LE
from ...errors import ArgumentError, VariableError
from ...runtime.device import get_device
from ...tensor import SCOPES, Tensor, TensorLike, from_numpy, node_of, realize_among, wrap
from ..common import ShapeLike, apply, as_tensor, as_whole, astype
from ..math.complex_numbers import imag, real
from ..math.elementwise import floor, where
from ..template import templated
from .movement import broadcast_arrays, reshape


class Var:
    """A whole number whose value may change without compiling again: a size or an offset.

    >>> n = fg.Var("n", 1, 8)
    >>> fg.ones((n.bind(3),)).tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(self, name: str, low: int, high: int) -> None:
        self.node = build.variable(name, low, high)
        self.name, self.low, self.high = name, low, high

    def bind(self, value: int) -> Node:
        """The variable with a value: use it in shapes, slices and arithmetic."""
        noted = SCOPES.binding
        return build.bind(self.node, value if noted is None else noted(self.node, value))

    def __repr__(self) -> str:
        return f"Var({self.name!r}, {self.low}, {self.high})"

    def _unbound(self, *_: object, **__: object) -> Any:
        raise VariableError(
            f"variable {self.name!r} has no value", f"bind it: {self.name}.bind({self.low})"
        )

    __index__ = __int__ = __float__ = __array__ = __neg__ = _unbound
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _unbound
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __truediv__ = __rtruediv__ = _unbound
    __lt__ = __le__ = __gt__ = __ge__ = _unbound


def placed(node: Node, device: str | None) -> Tensor:
    """A tensor on a device; without one a constant is anywhere."""
    return wrap(node if device is None else build.copy_to(node, get_device(device).name))


# --- host data -----------------------------------------------------------------------------------


def array(data: TensorLike, dtype: object = None, device: str | None = None) -> Tensor:
    """A tensor with a copy of the data.

    >>> fg.array([[1, 2], [3, 4]]).shape
    (2, 2)
    """
    return Tensor(data, dtype, device)


def asarray(
    data: TensorLike, dtype: object = None, device: str | None = None, copy: bool | None = None
) -> Tensor:
    """The data as a tensor: one that is a tensor already stays, `copy=False` shares an array.

    >>> x = fg.Tensor([1, 2])
    >>> fg.asarray(x) is x
    True
    """
    if isinstance(data, Tensor):
        fits = dtype is None or data.dtype is dtype_of(dtype)
        fits = fits and device in (None, data.device)
        if not fits and copy is False:
            raise ArgumentError("another dtype or device is a copy", "leave copy=False out")
        return data if fits and not copy else Tensor(data, dtype, device)
    if copy is not False:
        return Tensor(data, dtype, device)
    if not isinstance(data, np.ndarray) or dtype not in (None, dtype_of(data.dtype)):
        raise ArgumentError(
            "only a NumPy array of the same dtype is shared", "leave copy=False out"
        )
    return from_numpy(data, device)


# --- constants -----------------------------------------------------------------------------------


def full(
    shape: ShapeLike, fill_value: TensorLike, dtype: object = None, device: str | None = None
) -> Tensor:
    """One number everywhere.

    >>> fg.full((2, 2), 7).tolist()
    [[7, 7], [7, 7]]
    """
    number = node_of(Tensor(fill_value, dtype))
    return placed(build.expand(number, build.as_shape(shape)), device)


def _dtype(name: str, shape: object, dtype: object) -> object:
    """The dtype asked for; a size in its place is part of a shape that was not put together."""
    if isinstance(dtype, int) and not isinstance(dtype, bool):
        raise ArgumentError(
            f"{name}({shape}, {dtype}, ...): sizes as arguments of their own",
            f"give the shape as one tuple: {name}(({shape}, {dtype}))",
        )
    return dtype or default_float


def zeros(shape: ShapeLike, dtype: object = None, device: str | None = None) -> Tensor:
    """0 everywhere.

    >>> fg.zeros(3).tolist()
    [0.0, 0.0, 0.0]
    """
    return placed(build.const(0, _dtype("zeros", shape, dtype), shape), device)


def ones(shape: ShapeLike, dtype: object = None, device: str | None = None) -> Tensor:
    """1 everywhere.

    >>> fg.ones(3, dtype=fg.int8).tolist()
    [1, 1, 1]
    """
    return placed(build.const(1, _dtype("ones", shape, dtype), shape), device)


def empty(shape: ShapeLike, dtype: object = None, device: str | None = None) -> Tensor:
    """The same as zeros: a value that depends on nothing has no uninitialised memory.

    >>> fg.empty(2).tolist()
    [0.0, 0.0]
    """
    return zeros(shape, dtype, device)


def full_like(
    x: TensorLike, fill_value: TensorLike, dtype: object = None, device: str | None = None
) -> Tensor:
    """One number in the shape and dtype of x.

    >>> fg.full_like(fg.Tensor([1, 2]), 7).tolist()
    [7, 7]
    """
    like = as_tensor(x)
    return full(like.shape, fill_value, dtype or like.dtype, device or like.node.device)


def zeros_like(x: TensorLike, dtype: object = None, device: str | None = None) -> Tensor:
    """0 in the shape and dtype of x.

    >>> fg.zeros_like(fg.Tensor([1, 2])).tolist()
    [0, 0]
    """
    return full_like(x, 0, dtype, device)


def ones_like(x: TensorLike, dtype: object = None, device: str | None = None) -> Tensor:
    """1 in the shape and dtype of x.

    >>> fg.ones_like(fg.Tensor([1, 2])).tolist()
    [1, 1]
    """
    return full_like(x, 1, dtype, device)


def empty_like(x: TensorLike, dtype: object = None, device: str | None = None) -> Tensor:
    """The same as zeros_like.

    >>> fg.empty_like(fg.Tensor([1, 2])).tolist()
    [0, 0]
    """
    return zeros_like(x, dtype, device)


# --- ramps ---------------------------------------------------------------------------------------


def _number(value: Any, what: str) -> int | float:
    """A real Python number."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool | int | float):
        return int(value) if isinstance(value, bool) else value
    raise ArgumentError(f"{what} is {value!r}", f"{what} is a real number")


def _end(value: Any, what: str) -> Any:
    """A number of a ramp as a float; one in a tensor stays there, for it may have a gradient."""
    if isinstance(value, Tensor) and value.size == 1 and value.dtype.kind != "c":
        return reshape(value, ()).astype(float64)
    return float(_number(value, what))


def _real_and_imag(value: Any) -> tuple[Any, Any]:
    """The parts of a complex number; a real one has no second."""
    if isinstance(value, Tensor):
        return (real(value), imag(value)) if value.dtype.kind == "c" else (value, None)
    value = value.item() if hasattr(value, "item") else value
    return (value.real, value.imag) if isinstance(value, complex) else (value, None)


def arange(
    start: int | float | Node,
    stop: int | float | Node | None = None,
    step: int | float = 1,
    dtype: object = None,
    device: str | None = None,
) -> Tensor:
    """The numbers from start up to stop (which is left out) in steps.

    >>> fg.arange(5).tolist(), fg.arange(1, 2, 0.25).tolist()
    ([0, 1, 2, 3, 4], [1.0, 1.25, 1.5, 1.75])
    """
    first, last = (0, start) if stop is None else (start, stop)
    if isinstance(last, Node) and isinstance(first, int) and step == 1:
        ramp = build.iota(sizes.sub(build.as_size(last), first), 0, dtype or default_int)
        return placed(build.apply(ADD, ramp, first), device)
    ends = first, step
    realize_among((first, last, step))
    first, last, step = _number(first, "start"), _number(last, "stop"), _number(step, "step")
    if step == 0 or not all(-float("inf") < n < float("inf") for n in (first, last, step)):
        raise ArgumentError(f"arange({first}, {last}, {step}) has no end", "use finite steps")
    if isinstance(first, int) and isinstance(last, int) and isinstance(step, int):
        count = max(0, -(-(last - first) // step))
        return placed(_whole_ramp(first, step, count, _known(dtype)), device)
    count = max(0, ceil((last - first) / step))
    origin, stride = _end(ends[0], "start"), _end(ends[1], "step")
    ramp = wrap(build.iota((count,), 0, float64)) * stride + origin
    return placed(build.cast(node_of(ramp), dtype_of(dtype or default_float)), device)


def _known(dtype: object) -> DType | None:
    return None if dtype is None else dtype_of(dtype)


def _whole_ramp(first: int, step: int, count: int, dtype: DType | None) -> Node:
    """first + step * i, exact; the product may wrap around as long as the sum is in range."""
    final = first + step * (max(count, 1) - 1)
    low, high = default_int.limits
    own = int32 if low <= min(first, final) and max(first, final) <= high else int64
    kind = dtype if dtype is not None and dtype.kind in "iu" else own
    build.const(min(first, final), kind), build.const(max(first, final), kind)  # or do not fit
    ramp = build.iota((count,), 0, kind)
    mask = (1 << kind.bits) - 1
    ramp = ramp * constant_bits(step & mask, kind, ramp.shape) if step != 1 else ramp
    ramp = ramp + constant_bits(first & mask, kind, ramp.shape) if first else ramp
    return ramp if dtype is None else build.cast(ramp, dtype)


def linspace(
    start: int | float | complex,
    stop: int | float | complex,
    num: int = 50,
    endpoint: bool = True,
    dtype: object = None,
    device: str | None = None,
) -> Tensor:
    """So many numbers at equal distances from start to stop.

    >>> fg.linspace(0, 1, 5).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    parts = [_real_and_imag(x) for x in (start, stop)]
    if any(imag is not None for _, imag in parts):
        pair = dtype_of(dtype or complex64)
        if pair.kind != "c":
            raise ArgumentError(f"{start} to {stop} is complex, {pair} is not", "leave dtype out")
        (a, b), (c, d) = parts
        wide = linspace(a, c, num, endpoint, float64, device)
        return astype(
            wide
            + linspace(0 if b is None else b, 0 if d is None else d, num, endpoint, float64, device)
            * 1j,
            pair,
        )
    first, last = _end(start, "start"), _end(stop, "stop")
    count, kind = build.as_size(num), dtype_of(dtype or default_float)
    if not isinstance(count, int):
        raise ArgumentError("linspace needs a fixed number of points", "give an int")
    gaps = count - 1 if endpoint else count
    place = wrap(build.iota((count,), 0, float64))
    ramp = place * ((last - first) / max(gaps, 1)) + first
    if endpoint and count > 1:
        ramp = where(place == gaps, last, ramp)
    ramp = floor(ramp) if kind.kind in "iu" else ramp
    return placed(node_of(astype(ramp, kind)), device)


# --- grids ---------------------------------------------------------------------------------------


def _row_and_column(rows: Size, columns: Size) -> tuple[Tensor, Tensor]:
    shape = (rows, columns)
    return wrap(build.iota(shape, 0)), wrap(build.iota(shape, 1))


def _diagonal(k: object, rows: Size, columns: Size) -> Size:
    """The number of a diagonal; one beyond the matrix is as good as the first that is outside."""
    if isinstance(k, Node):
        return k
    return max(-sizes.upper(rows), min(as_whole(k, "k"), sizes.upper(columns)))


def eye(
    n_rows: Size,
    n_cols: Size | None = None,
    k: int = 0,
    dtype: object = None,
    device: str | None = None,
) -> Tensor:
    """1 on diagonal number k, 0 elsewhere.

    >>> fg.eye(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    shape = (build.as_size(n_rows), build.as_size(n_rows if n_cols is None else n_cols))
    row, column = _row_and_column(*shape)
    on = apply(EQ, row + _diagonal(k, *shape), column)
    return placed(node_of(astype(on, dtype_of(dtype or default_float))), device)


@templated
def tril(x: TensorLike, k: int = 0) -> Tensor:
    """x at and below diagonal number k of its last two dimensions, 0 above.

    >>> fg.tril(fg.Tensor([[1, 2], [3, 4]])).tolist()
    [[1, 0], [3, 4]]
    """
    tensor = _matrices(x)
    shape = tensor.node.shape[-2:]
    row, column = _row_and_column(*shape)
    return where(apply(LE, column, row + _diagonal(k, *shape)), tensor, _nothing(tensor))


@templated
def triu(x: TensorLike, k: int = 0) -> Tensor:
    """x at and above diagonal number k of its last two dimensions, 0 below.

    >>> fg.triu(fg.Tensor([[1, 2], [3, 4]])).tolist()
    [[1, 2], [0, 4]]
    """
    tensor = _matrices(x)
    shape = tensor.node.shape[-2:]
    row, column = _row_and_column(*shape)
    return where(apply(LE, row + _diagonal(k, *shape), column), tensor, _nothing(tensor))


def _nothing(x: Tensor) -> bool | int:
    """A zero that leaves the dtype as it is."""
    return False if x.dtype is bool_ else 0


def _matrices(x: TensorLike) -> Tensor:
    tensor = as_tensor(x)
    if tensor.ndim < 2:
        raise ArgumentError(f"{tensor.ndim} dimensions hold no matrix", "give two or more")
    return tensor


def meshgrid(*arrays: TensorLike, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Coordinates of a grid from the coordinates along each axis.

    >>> [g.tolist() for g in fg.meshgrid(fg.Tensor([1, 2]), fg.Tensor([3, 4]), indexing="ij")]
    [[[1, 1], [2, 2]], [[3, 4], [3, 4]]]
    """
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"indexing is {indexing!r}", 'use "xy" or "ij"')
    order = list(range(len(arrays)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    lines = []
    for place, line in zip(order, arrays, strict=True):
        shape = [1] * len(order)
        shape[place] = -1
        lines.append(reshape(line, shape))
    return broadcast_arrays(*lines)
