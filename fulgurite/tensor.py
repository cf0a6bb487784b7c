"""The lazy tensor: what users hold. Each method is one to three lines over a checked constructor.

In: Python operators and data. Out: a `Tensor`, which is an entry of the registry: a node now, a
buffer once a value was asked for. Nothing is computed before `numpy()`, `item()`, `realize()` and
the like. Module functions (`fg.exp(x)`) do the work; methods call them, and the habits of other
libraries (`x.view`, `dim=`) are names in `aliases.py`, never a second implementation.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from . import config
from .core import build
from .core.dtype import DType, Number, default_float, default_int, dtype_of, promote, weak_dtype
from .core.node import Node
from .core.op import Array, Op
from .core.operators import Operators
from .core.shape import show
from .errors import ArgumentError, DataError, ShapeError
from .graph.registry import REGISTRY, Entry
from .runtime import interpreter as _interpreter  # registers the reference device
from .runtime.device import get_device
from .runtime.realize import realize, storage_of, value_node

assert _interpreter

TensorLike: TypeAlias = "Tensor | Number | Array | Sequence[Any]"
TAPE = 0  # the gradient scope of `requires_grad` and `backward()`


class _Recording(threading.local):
    on = True


_recording = _Recording()


@contextmanager
def no_grad() -> Iterator[None]:
    """What is computed inside has no gradient."""
    before, _recording.on = _recording.on, False
    try:
        yield
    finally:
        _recording.on = before


def operand(x: Tensor) -> Node:
    """The node that a tensor brings into an expression."""
    node = x.entry.node
    return build.detach(node) if node.watched and not _recording.on else node


def node_of(x: TensorLike) -> Node:
    """Anything tensor-like as a node."""
    return operand(x) if isinstance(x, Tensor) else operand(Tensor(x))


def lift(x: object) -> Any:
    """A tensor or array as a node; a Python number as it is, so that it stays weak."""
    if isinstance(x, Tensor):
        return operand(x)
    if isinstance(x, np.ndarray):
        return node_of(x)
    return x


def wrap(node: Node) -> Tensor:
    """A new tensor whose value is this node's."""
    tensor = Tensor.__new__(Tensor)
    tensor.entry = REGISTRY.enter(node)
    tensor.grad = None
    return tensor


class Tensor(Operators):
    """A lazy array of numbers.

    >>> import fulgurite as fg
    >>> x = fg.Tensor([1.0, 2.0, 3.0])
    >>> (x * x).tolist()
    [1.0, 4.0, 9.0]
    """

    __slots__ = ("__weakref__", "entry", "grad")
    __array_priority__ = 1000  # NumPy arrays give way: array + tensor is a tensor
    entry: Entry
    grad: Tensor | None

    def __init__(
        self,
        data: TensorLike,
        dtype: object = None,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> None:
        node = _from_data(data, None if dtype is None else dtype_of(dtype), device)
        self.entry = REGISTRY.enter(node)
        self.grad = None
        if requires_grad:
            self.requires_grad_()

    # --- what it is ------------------------------------------------------------------------------

    @property
    def node(self) -> Node:
        """The expression behind it, for looking inside."""
        return self.entry.node

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its dimensions."""
        return self.entry.node.shape  # type: ignore[return-value]

    @property
    def dtype(self) -> DType:
        """The type of its elements."""
        return self.entry.node.dtype

    @property
    def device(self) -> str:
        """Where it lives, or will."""
        return self.entry.node.device or config.current().device

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.entry.node.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        from .core.shape import prod

        return prod(self.entry.node.shape)  # type: ignore[return-value]

    @property
    def is_realized(self) -> bool:
        """Has its value been computed?"""
        return value_node(self.entry.node) is not None

    # --- values ----------------------------------------------------------------------------------

    def realize(self) -> Tensor:
        """Compute the value now; the tensor itself is returned."""
        realize([self.entry])
        return self

    def _array(self) -> Array:
        """The value as a host array that may share memory: never hand it out writable."""
        realize([self.entry])
        found = value_node(self.entry.node)
        assert found is not None
        return get_device(self.device).to_host(storage_of(found))

    def numpy(self) -> Array:
        """The value as a NumPy array of its own."""
        return np.array(self._array())

    def item(self) -> Number:
        """The value of a tensor of one element, as a Python number."""
        if self.size != 1:
            raise ShapeError(
                f"item() of {self.size} elements", "use tolist(), or index one element first"
            )
        found: Number = self._array().reshape(())[()].item()
        return found

    def tolist(self) -> Any:
        """The value as nested Python lists."""
        return self._array().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self._array()
        if copy or (dtype is not None and np.dtype(dtype) != array.dtype):
            return np.array(array, dtype=dtype)
        view = array.view()
        view.flags.writeable = False
        return view

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())  # type: ignore[arg-type]

    def __float__(self) -> float:
        return float(self.item())  # type: ignore[arg-type]

    def __index__(self) -> int:
        if not self.dtype.is_integer:
            raise DataError(f"a {self.dtype} tensor is not an index", "cast it to int32")
        return int(self.item())  # type: ignore[arg-type]

    def __len__(self) -> int:
        if not self.ndim:
            raise ShapeError("a 0-d tensor has no length", "use size, or reshape it")
        return self.shape[0]

    def __repr__(self) -> str:
        about = f"shape={show(self.entry.node.shape)}, dtype={self.dtype}, device={self.device!r}"
        known = all(isinstance(n, int) for n in self.entry.node.shape)
        if not known or not (self.is_realized or self.size <= 1000):
            return f"Tensor({about}, pending {self.entry.node.op.name})"
        values = np.array2string(self._array(), separator=", ", prefix="Tensor(")
        return f"Tensor({values}, {about})"

    def __hash__(self) -> int:
        return id(self)

    # --- operators -------------------------------------------------------------------------------

    def _apply(self, op: Op, operands: tuple[Any, ...]) -> Tensor:
        return wrap(build.apply(op, *[lift(x) for x in operands]))

    def __eq__(self, other: object) -> Any:
        return self.eq(other)

    def __ne__(self, other: object) -> Any:
        return self.ne(other)

    # --- gradients -------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Does `backward()` reach it?"""
        return TAPE in self.entry.node.watched

    def requires_grad_(self, on: bool = True) -> Tensor:
        """Make it a leaf whose `grad` is filled by `backward()`, or an ordinary value again."""
        from .grad import track

        track(self, on)
        return self

    def detach(self) -> Tensor:
        """The same value, without a gradient."""
        return wrap(build.detach(self.entry.node))

    def backward(self, gradient: TensorLike | None = None) -> None:
        """Add this result's gradient to the `grad` of every leaf that requires it."""
        from .grad import backward

        backward(self, gradient)


def _from_data(data: TensorLike, dtype: DType | None, device: str | None) -> Node:
    """A node that holds a copy of what the user gave."""
    if isinstance(data, Tensor):
        return operand(data) if dtype is None else build.cast(operand(data), dtype)
    if isinstance(data, bool | int | float | complex):
        return build.const(data, dtype or promote(weak_dtype(data)))
    return array_node(to_array(data, dtype), device, share=False)


def to_array(data: object, dtype: DType | None) -> Array:
    """Host data as a NumPy array of one of our dtypes, or a clear error."""
    try:
        array = np.asarray(data)
    except (ValueError, TypeError) as problem:
        raise DataError(
            f"{type(data).__name__} is not numeric data: {problem}", "give rows of equal length"
        ) from None
    if array.dtype.kind in "OSUVMm" and array.dtype not in _KNOWN:
        raise DataError(
            f"{type(data).__name__} of {array.dtype} is not numeric data",
            "pass numbers, NumPy arrays or tensors",
        )
    if not isinstance(data, np.ndarray | np.generic) and dtype is None:
        dtype = _default_for(array)
    return array if dtype is None else _converted(array, dtype)


_KNOWN = {dtype_of(name).numpy for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")}


def _default_for(array: Array) -> DType | None:
    """Python numbers take the default dtypes unless they do not fit."""
    if array.dtype.kind == "f":
        return default_float
    if array.dtype.kind in "iu" and array.size:
        low, high = default_int.limits
        return default_int if low <= array.min() and array.max() <= high else None
    return default_int if array.dtype.kind in "iu" else None


def _converted(array: Array, dtype: DType) -> Array:
    from .core.ops.special import cast

    source = dtype_of(array.dtype)
    with np.errstate(all="ignore"):
        return array if source is dtype else cast(array, source, dtype)


def array_node(array: Array, device: str | None, share: bool) -> Node:
    """A BUFFER node with an array's values, or with `share` its very memory."""
    dtype = dtype_of(array.dtype)
    if not array.dtype.isnative:
        array = array.astype(dtype.numpy)
    where = device or config.current().device
    storage = get_device(where).from_host(array, share)
    node = build.buffer(array.shape, dtype, where)
    REGISTRY.attach(node, storage)
    return node


def from_numpy(array: Array, device: str | None = None) -> Tensor:
    """A tensor that shares the array's memory: it is read when a value is computed."""
    if not isinstance(array, np.ndarray):
        raise DataError(f"{type(array).__name__} is not a NumPy array", "use fg.Tensor(data)")
    return wrap(array_node(to_array(array, None), device, share=True))


def realize_all(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Compute several tensors in one plan."""
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"{type(tensor).__name__} is not a tensor", "pass tensors")
    realize([tensor.entry for tensor in tensors])
    return tensors


