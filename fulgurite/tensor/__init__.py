"""The lazy tensor: what users hold. Each method is one to three lines over a checked constructor.

In: Python operators and data. Out: a `Tensor`, which is an entry of the registry: a node now, a
buffer once a value was asked for. Nothing is computed before `numpy()`, `item()`, `realize()` and
the like. Module functions (`fg.exp(x)`) do the work; methods call them, and the habits of other
libraries (`x.view`, `dim=`) are names in `aliases.py`, never a second implementation.
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from sys import getrefcount
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from .._hints import Count, names_in
from .._lazy import FORK_LOCK
from ..config import current
from ..core import build
from ..core.dtype import DType, Number, dtype_of, promote, weak_dtype
from ..core.extension import compiled, give
from ..core.node import Node, Size
from ..core.op import Array, Op
from ..core.operators import Operators
from ..core.ops.effect import TAPE, WATCH, unnamed
from ..core.ops.leaf import BUFFER
from ..core.shape import prod, show
from ..errors import ArgumentError, DataError, DTypeError, GradientError, ShapeError
from ..graph.ir.registry import REGISTRY, Entry
from ..runtime.device import device_names, device_or_dtype, get_device, has_device
from ..runtime.distributed.sharding import gathered
from ..runtime.host import device as _interpreter  # registers the reference device
from ..runtime.realize import OBSERVER, realize, realize_together, storage_of, value_node
from ..runtime.unmaterialized import Fresh
from .from_data import array_node, to_array
from .lost_writes import LOST, warn_of_lost_write
from .methods import Methods
from .torch_aliases import Habits

assert _interpreter

TensorLike: TypeAlias = "Methods | Node | Number | Array | Sequence[Any]"  # a Tensor, ...


class _Recording(threading.local):
    on = True


_recording = _Recording()


class _Scopes(threading.local):
    """For each gradient scope that is open in this thread: the entries assigned in it."""

    def __init__(self) -> None:
        self.stack: list[list[weakref.ref[Entry]]] = []
        self.open: list[int] = []  # the numbers of these scopes
        self.bodies: list[int] = []  # of loops being built: entries before this one are outside
        self.transforms = 0  # that are rewriting a function in this thread
        self.capturing = False  # is a function being captured in this thread?
        self.changed: set[Entry] = set()  # by assignment, while one is
        # and what notes the values that it binds variables to
        self.binding: Callable[[Node, Any], Any] | None = None
        self.backward = 0  # how often `backward()` was called


@contextmanager
def transforming() -> Iterator[None]:
    """While a transform calls a function: its tensors are stand-ins."""
    SCOPES.transforms += 1
    try:
        yield
    finally:
        SCOPES.transforms -= 1


SCOPES = _Scopes()


def is_recording() -> bool:
    """Are gradients recorded in this thread?"""
    return _recording.on


@contextmanager
def no_grad() -> Iterator[None]:
    """What is computed inside has no gradient.

    >>> x = fg.Tensor(2.0, requires_grad=True)
    >>> with fg.no_grad():
    ...     y = x * x
    >>> y.requires_grad
    False
    """
    before, _recording.on = _recording.on, False
    try:
        yield
    finally:
        _recording.on = before


_NUMBERS = (float, int)  # operands that need no lifting


def operand(x: Tensor) -> Node:
    """The node that a tensor brings into an expression."""
    node = x.entry.node
    return build.detach(node) if node.watched and not _recording.on else node


def node_of(x: TensorLike) -> Node:
    """Anything tensor-like as a node."""
    if isinstance(x, Tensor):
        return operand(x)
    return x if isinstance(x, Node) else _from_data(x, None, None)


def lift(x: object, device: str | None = None) -> Any:
    """A tensor or array as a node; a Python number as it is, so that it stays weak.

    An array has no device of its own: it is put on this one.
    """
    if isinstance(x, Tensor):
        return operand(x)
    if isinstance(x, np.ndarray | list | tuple):
        return nested.stacked(x, None, device) if nested.holds_tensor(x) else placed(x, device)
    return x


def placed(array: Any, device: str | None) -> Node:
    """What NumPy takes as an array as a node that holds a copy of it on a device."""
    return array_node(to_array(array, None), device, share=False)


def lifted(*operands: object) -> list[Any]:
    """Operands as nodes and Python numbers, all on one device: arrays go where tensors are."""
    found: list[Any] = [operand(x) if isinstance(x, Tensor) else x for x in operands]
    if len(found) > 1:
        here = build.same_device([x for x in found if isinstance(x, Node)])
        found = [x if isinstance(x, Node) else lift(x, here) for x in found]
        build.same_device([x for x in found if isinstance(x, Node)])
        return found
    return [lift(x) for x in operands]


def _entered(node: Node) -> Entry:
    """The entry of a new tensor. What moves nothing (`w[:]`) is as little a leaf as what does."""
    return REGISTRY.enter(unnamed(node) if node.op is WATCH and node.arg[0] == TAPE else node)


@compiled
def wrap(node: Node) -> Tensor:
    """A new tensor whose value is this node's."""
    tensor = Tensor.__new__(Tensor)
    tensor.entry = _entered(node)
    tensor.grad = None
    return tensor


@compiled
class TensorFields:
    """What a tensor is made of."""

    __slots__ = ("__weakref__", "entry", "grad")
    entry: Entry
    grad: Tensor | None


class Tensor(TensorFields, Methods, Habits, Operators):
    """A lazy array of numbers.

    Python numbers must be values of the dtype, alone and in lists; NumPy arrays are cast to it, as
    `astype` casts: whole numbers wrap around, floats saturate.

    >>> import fulgurite as fg
    >>> x = fg.Tensor([1.0, 2.0, 3.0])
    >>> (x * x).tolist()
    [1.0, 4.0, 9.0]
    """

    __slots__ = ()
    __array_priority__ = 1000  # NumPy arrays give way: array + tensor is a tensor

    def __init__(
        self,
        data: TensorLike,
        dtype: object = None,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> None:
        node = _from_data(data, None if dtype is None else dtype_of(dtype), device)
        self.entry = _entered(node)
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
        return self.entry.node.device or current().device

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.entry.node.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        count = prod(self.entry.node.shape)
        return Count(count) if type(count) is int else count  # type: ignore[return-value]

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
        entry = self.entry
        held: Any = entry.value if type(entry) is Fresh and OBSERVER.refuse is None else None
        if held is not None:  # the result of a replay: reading it needs no node
            shape, dtype, device = held[1]
            return get_device(device).to_host(held[0], shape, dtype)
        found: Node | None = None
        while found is None:  # another thread may assign the tensor meanwhile
            realize([self.entry])
            found = value_node(self.entry.node)
        if found.op is not BUFFER:  # in shards: all ranks ask for it together
            found = gathered(found)
        sizes: Any = found.shape
        return get_device(found.device or "").to_host(storage_of(found), sizes, found.dtype)

    def _outside(self) -> Array:
        """The same for NumPy to compute with, which no gradient sees: an error inside `grad`."""
        watching = SCOPES.open if _recording.on else None  # a replay's result makes no node
        if watching and not self.entry.node.watched.isdisjoint(watching):
            raise GradientError(
                "a NumPy array of a tensor that is being differentiated has no gradient",
                "use fulgurite's functions (fg.stack([x, y]), fg.sin(x)), or x.detach() for a"
                " constant",
            )
        return self._array()

    def numpy(self) -> Array:
        """The value as a NumPy array of its own."""
        entry = self.entry
        if type(entry) is Fresh and OBSERVER.refuse is None and not SCOPES.open:
            held: Any = entry.value
            if held is not None:  # the result of a replay, in memory that nobody has an array of
                shape, dtype, device = held[1]
                return get_device(device).copied(held[0], shape, dtype)
        return np.array(self._outside(), order="C")

    def item(self) -> Number:
        """The value of a tensor of one element, as a Python number."""
        size: Size = self.size  # of variable sizes only the value tells
        array = self._array() if size == 1 or isinstance(size, Node) else None
        if array is None or array.size != 1:
            count = size if array is None else array.size
            raise ShapeError(
                f"item() of {count} elements", "use tolist(), or index one element first"
            )
        found: Number = array.reshape(())[()].item()
        return found

    def tolist(self) -> Any:
        """The value as nested Python lists."""
        return self._array().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self._outside()
        if copy or (dtype is not None and np.dtype(dtype) != array.dtype):
            if copy is False:
                raise ArgumentError(f"{self.dtype} as {dtype} is a copy", "leave copy=False out")
            return np.array(array, dtype=dtype)
        raw = array if array.dtype.isbuiltin == 1 else array.view(f"u{array.itemsize}")
        # through a read-only memoryview: a plain view's base could be written to
        shown = memoryview(raw).toreadonly()  # type: ignore[arg-type]  # arrays are buffers
        return np.asarray(shown).view(array.dtype)

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        with FORK_LOCK:
            from ..interop import array_api
        return array_api.namespace(api_version)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        with FORK_LOCK:
            from ..interop import numpy_protocols
        return numpy_protocols.apply_ufunc(ufunc, method, inputs, keywords)

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        with FORK_LOCK:
            from ..interop import numpy_protocols
        return numpy_protocols.apply_function(function, args, keywords)

    def __dlpack__(
        self, *, stream: object = None, max_version: tuple[int, int] | None = None,
        dl_device: object = None, copy: bool | None = None,
    ) -> object:  # fmt: skip
        with FORK_LOCK:
            from ..interop import dlpack
        return dlpack.to_dlpack(self, max_version, dl_device, copy, stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return get_device(self.device).dlpack

    def __buffer__(self, flags: int) -> memoryview:
        with FORK_LOCK:
            from ..interop import numpy_protocols
        return numpy_protocols.buffer_of(self)

    def _repr_html_(self) -> str:
        with FORK_LOCK:
            from html import escape
        return f"<pre>{escape(repr(self))}</pre>"

    def to_device(self, device: str, /, *, stream: object = None) -> Tensor:
        """The tensor on another device: `to` by the standard's name."""
        if not has_device(device):
            raise ArgumentError(
                f"there is no device {device!r}", f"one of {', '.join(device_names())}"
            )
        return self.to(device)

    def __copy__(self) -> Tensor:
        """A tensor with the same value; the copy of a leaf is a leaf of its own."""
        node = self.entry.node
        if node.op is WATCH and TAPE in node.watched:
            return wrap(build.detach(node)).requires_grad_()
        return wrap(node)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles and deep copies hold the value, the device and `requires_grad`, not the graph."""
        return Tensor, (self.numpy(), None, self.device, self.requires_grad)

    def __format__(self, spec: str) -> str:
        """One number as the format says: `f"{loss:.3f}"`."""
        return format(self.item(), spec) if spec else str(self)

    def __contains__(self, value: Any) -> bool:
        """Is one of the elements equal to this?"""
        other = value._array() if isinstance(value, Tensor) else np.asarray(value)
        return bool(np.any(self._array() == other))

    def __bool__(self) -> bool:
        size: Size = self.size
        if isinstance(size, int) and size != 1:
            raise ShapeError(f"the truth of {size} elements", "use fg.any(x) or fg.all(x)")
        return bool(self.item())

    def __int__(self) -> int:
        return int(self._real_item())

    def __float__(self) -> float:
        return float(self._real_item())

    def _real_item(self) -> int | float:
        found = self.item()
        if isinstance(found, complex):
            raise DTypeError(f"a {self.dtype} tensor is not a real number", "use abs(x.item())")
        return found

    def __index__(self) -> int:
        if not self.dtype.is_integer:
            raise DataError(f"a {self.dtype} tensor is not an index", "cast it to int32")
        return int(self.item())  # type: ignore[arg-type]

    def __len__(self) -> int:
        if not self.ndim:
            raise ShapeError("a 0-d tensor has no length", "use size, or reshape it")
        size: Size = self.shape[0]
        if isinstance(size, Node):
            raise ShapeError(
                f"a tensor of shape {show(self.shape)} has no fixed length",
                "take its value first: x.tolist()",
            )
        return size

    def __repr__(self) -> str:
        about = f"shape={show(self.entry.node.shape)}, dtype={self.dtype}, device={self.device!r}"
        known = all(isinstance(n, int) for n in self.entry.node.shape)
        if not known or not (self.is_realized or self.size <= 1000):
            return f"Tensor({about}, pending {self.entry.node.op.name})"
        values = np.array2string(self._array(), separator=", ", prefix="Tensor(")
        return f"Tensor({values}, {about})"

    def __hash__(self) -> int:
        return id(self)

    def __dir__(self) -> list[str]:
        return names_in(self)

    # --- operators -------------------------------------------------------------------------------

    def _apply(self, op: Op, operands: tuple[Any, ...]) -> Tensor:
        if len(operands) == 2:  # the common cases, on the path of every operator
            a, b = operands
            if type(a) in PLAIN and type(b) in PLAIN:
                a, b = operand(a), operand(b)
                if a.device == b.device:
                    return wrap(build.apply(op, a, b))
            elif type(a) in PLAIN and type(b) in _NUMBERS:
                return wrap(build.apply(op, operand(a), b))
            elif type(b) in PLAIN and type(a) in _NUMBERS:
                return wrap(build.apply(op, a, operand(b)))
        return wrap(build.apply(op, *lifted(*operands)))

    def __eq__(self, other: object) -> Any:
        return NotImplemented if other is None else self.eq(other)

    def __ne__(self, other: object) -> Any:
        return NotImplemented if other is None else self.ne(other)

    def __pow__(self, other: Any) -> Tensor:
        return elementwise.pow(self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return elementwise.pow(other, self)

    def __pos__(self) -> Tensor:
        return elementwise.positive(self)

    def __abs__(self) -> Tensor:
        return elementwise.abs(self)

    def __complex__(self) -> complex:
        return complex(self.item())

    def __matmul__(self, other: TensorLike) -> Tensor:
        return products.matmul(self, other)

    def __rmatmul__(self, other: TensorLike) -> Tensor:
        return products.matmul(other, self)

    def __getitem__(self, key: Any) -> Tensor:
        return numpy_indexing.getitem(self, key)

    def __iter__(self) -> Iterator[Tensor]:
        return iter([self[i] for i in range(len(self))])

    # --- assignment ------------------------------------------------------------------------------

    def assign(self, value: TensorLike) -> Tensor:
        """Give this tensor another value, for all who hold it; the tensor itself is returned.

        >>> x = fg.Tensor([1.0, 2.0])
        >>> y = x + 1
        >>> x.assign(y * 10).tolist(), y.tolist()
        ([20.0, 30.0], [2.0, 3.0])
        """
        assignment.assign(self, value)
        return self

    def __setitem__(self, key: Any, value: TensorLike) -> None:
        if getrefcount(self) == LOST:
            warn_of_lost_write()
        assignment.put(self, key, value)

    def _change(self, apply: Callable[[Any, Any], Any], other: Any) -> Tensor:
        """`x += y`: the new value of this very tensor."""
        assignment.change(self, lambda x: apply(x, x if other is self else other))
        return self

    def __iadd__(self, other: Any) -> Tensor:
        return self._change(operator.add, other)

    def __isub__(self, other: Any) -> Tensor:
        return self._change(operator.sub, other)

    def __imul__(self, other: Any) -> Tensor:
        return self._change(operator.mul, other)

    def __itruediv__(self, other: Any) -> Tensor:
        return self._change(operator.truediv, other)

    def __ifloordiv__(self, other: Any) -> Tensor:
        return self._change(operator.floordiv, other)

    def __imod__(self, other: Any) -> Tensor:
        return self._change(operator.mod, other)

    def __ipow__(self, other: Any) -> Tensor:
        return self._change(operator.pow, other)

    def __imatmul__(self, other: TensorLike) -> Tensor:
        return self._change(operator.matmul, other)

    def __iand__(self, other: Any) -> Tensor:
        return self._change(operator.and_, other)

    def __ior__(self, other: Any) -> Tensor:
        return self._change(operator.or_, other)

    def __ixor__(self, other: Any) -> Tensor:
        return self._change(operator.xor, other)

    def __ilshift__(self, other: Any) -> Tensor:
        return self._change(operator.lshift, other)

    def __irshift__(self, other: Any) -> Tensor:
        return self._change(operator.rshift, other)

    # --- gradients -------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Does `backward()` reach it?"""
        return TAPE in self.entry.node.watched

    @requires_grad.setter
    def requires_grad(self, on: bool) -> None:
        self.requires_grad_(bool(on))

    def requires_grad_(self, on: bool = True) -> Tensor:
        """Make it a leaf whose `grad` is filled by `backward()`, or an ordinary value again."""
        from ..autodiff.grad import track

        track(self, on)
        return self

    def detach(self) -> Tensor:
        """The same value, without a gradient."""
        return wrap(build.detach(self.entry.node))

    def backward(self, gradient: TensorLike | None = None) -> None:
        """Add this result's gradient to the `grad` of every leaf that requires it."""
        from ..autodiff.grad import backward

        backward(self, gradient)

    # --- dtype and device ------------------------------------------------------------------------

    def astype(self, dtype: object) -> Tensor:
        """The same numbers in another dtype."""
        return elementwise.astype(self, dtype)

    def bitcast(self, dtype: object) -> Tensor:
        """The same bits read as another dtype of the same width."""
        return elementwise.bitcast(self, dtype)

    def to(self, target: object) -> Tensor:
        """In another dtype, or on another device (a name)."""
        found = device_or_dtype(target)
        if isinstance(found, DType):
            return elementwise.astype(self, found)
        return wrap(build.copy_to(operand(self), found))

    def contiguous(self) -> Tensor:
        """The value, stored in memory of its own."""
        return wrap(build.contiguous(operand(self)))


def _from_data(data: TensorLike, dtype: DType | None, device: str | None) -> Node:
    """A node that holds a copy of what the user gave."""
    if isinstance(data, Tensor | Node):
        node = node_of(data) if dtype is None else build.cast(node_of(data), dtype)
    elif isinstance(data, bool | int | float | complex):
        node = build.const(data, dtype or promote(weak_dtype(data)))
    elif nested.holds_tensor(data):
        node = nested.stacked(data, dtype, device)
    else:
        return array_node(to_array(data, dtype), device, share=False)
    return node if device is None else build.copy_to(node, get_device(device).name)


def from_numpy(array: Array, device: str | None = None) -> Tensor:
    """A tensor that shares the array's memory: it is read when a value is computed.

    On a device that cannot see the memory of the host it is a copy.

    >>> import numpy as np
    >>> a = np.ones(2)
    >>> y = fg.from_numpy(a, device="cpu") * 2
    >>> a[0] = 5
    >>> y.tolist()
    [10.0, 2.0]
    """
    if not isinstance(array, np.ndarray):
        raise DataError(f"{type(array).__name__} is not a NumPy array", "use fg.Tensor(data)")
    return wrap(array_node(to_array(array, None), device, share=True))


def stop_gradient(x: TensorLike) -> Tensor:
    """The same value, without a gradient.

    >>> fg.grad(lambda x: x * fg.stop_gradient(x))(fg.Tensor(3.0)).item()
    3.0
    """
    return wrap(build.detach(node_of(x)))


def realize_all(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Compute several tensors in one plan.

    >>> a, b = fg.realize(fg.Tensor([1, 2]) + 1, fg.Tensor([3]) * 2)
    >>> a.is_realized, b.tolist()
    (True, [6])
    """
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"{type(tensor).__name__} is not a tensor", "pass tensors")
    realize([entry for tensor in tensors if type(entry := tensor.entry) is not Fresh])
    return tensors


def realize_among(values: Iterable[object]) -> None:
    """Compute the tensors among some values in one plan, before each is asked for its own."""
    entries = [v.entry for v in values if isinstance(v, Tensor) and type(v.entry) is not Fresh]
    if len(entries) > 1:
        realize_together(entries)


PLAIN: set[type] = {Tensor}  # classes whose tensors mean in expressions what any tensor means
give(Tensor=Tensor, is_recording=is_recording)

# Last, because the functions need Tensor: whichever of the two is imported first, both load.
from ..functional.array import assignment, nested, numpy_indexing  # noqa: E402
from ..functional.math import elementwise, products  # noqa: E402

Tensor.__matmul__, Tensor.__getitem__ = products.matmul, numpy_indexing.getitem  # type: ignore[method-assign]
