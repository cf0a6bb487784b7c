"""The reference device: NumPy memory, and kernels run by interpretation.

In: scheduled kernels. Out: their outputs, written into memory the plan provides. This is the
second of the two independent ways to run a graph: `reference.evaluate` gives the graph itself its
meaning, this gives kernels theirs, so that a fault in scheduling shows as a difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any

import numpy as np

from ...core.dtype import DType
from ...core.node import Node, Shape, toposort
from ...core.op import Array
from ...core.ops.host import CALL, call_siblings, call_values
from ...core.ops.leaf import PARAM, SINK, VAR
from ...core.rewriting.substitute import substitute
from ...core.shape import upper
from ...graph.ir.kernel import Kernel, is_collective
from ...graph.ir.kernel_kind import KernelKind
from ...graph.ir.lower import lower_kernel
from ...graph.ir.reshape_groups import CannotLower
from ..device import Buffer, MemoryLimitError, Values
from ..device_base import HOST, BaseDevice
from ..step_executor import StepCode
from .evaluate import settle, size_value
from .index_interpreter import Runner
from .sums import sum_step

POISON = 0xA5  # the byte of memory that was not written yet


class HostBuffer:
    """Memory of the host, as a NumPy array."""

    __slots__ = ("__weakref__", "_address", "exported")
    owner: type | None = None  # of the memory under its arrays, if that is not an array itself

    def __init__(self, array: Array) -> None:
        self.exported: Array | None = array
        self._address: int | None = None

    @property
    def address(self) -> int:
        """Where native code finds it; 0 if its elements do not follow each other."""
        if self._address is None:
            whole = self.array.flags.c_contiguous
            self._address = self.array.__array_interface__["data"][0] if whole else 0
        return self._address

    @property
    def array(self) -> Array:
        """The memory itself."""
        assert self.exported is not None
        return self.exported

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.array.nbytes

    def copied(self, shape: tuple[int, ...]) -> Array:
        """Its values in an array of their own."""
        return np.array(self.array.reshape(shape))

    def bytes(self) -> Array:
        """All of it as raw bytes, if its elements follow each other."""
        return self.array.reshape(-1).view(np.uint8)

    def exclusive(self) -> bool:
        """True if nobody else holds an array over this memory, and it is memory that we made."""
        return self.exported is None or _most_holders(self) == _ALONE


def _most_holders(buffer: HostBuffer) -> int:
    """How many hold an array over some memory, or one that it is a view of: the most of any."""
    held: Any = buffer.exported
    most = 0
    while held is not None:
        count = getrefcount(held)
        if type(held) is np.ndarray:
            if not held.flags.writeable:
                return -1
            held = held.base
        elif type(held) is buffer.owner:
            held = None
        else:
            return -1  # it is shown through something else
        most = count if count > most else most
    return most


_ALONE = _most_holders(HostBuffer(np.zeros(1)))  # measured, as interpreters count in their own way


class SharedBuffer(HostBuffer):
    """Memory that is shared with others: it is read, never written over."""

    __slots__ = ()
    shared = True

    def exclusive(self) -> bool:
        """Never: others may look at it."""
        return False


class Piece(SharedBuffer):
    """A piece of memory that nobody writes over while this is there."""

    __slots__ = ()
    shared = False


class HostNumbers:
    """A block of numbers that kernels read where the host writes them."""

    flush: Callable[[], None] | None = None

    def __init__(self, nbytes: int) -> None:
        self.host = np.zeros(nbytes, np.uint8)
        self.address: int = self.host.__array_interface__["data"][0]


class HostDevice(BaseDevice):
    """NumPy memory, in which kernels can be run by interpretation."""

    host_visible = True
    packs_operands = True  # the CPU does; what interprets kernels has the same ones

    def allocate(self, shape: tuple[int, ...], dtype: DType, poison: bool = False) -> HostBuffer:
        """Fresh memory; poisoned memory holds a pattern that no test mistakes for a result."""
        try:
            array = np.empty(shape, dtype.numpy)
        except (MemoryError, ValueError) as problem:
            raise MemoryLimitError(
                f"no memory for {dtype} of shape {shape}", "free some tensors or use less"
            ) from problem
        if poison:
            array.reshape(-1).view(np.uint8)[:] = POISON
        return HostBuffer(array)

    def view(self, buffer: Any, offset: int, shape: tuple[int, ...], dtype: DType) -> HostBuffer:
        """A value's place in a buffer."""
        nbytes = math.prod(shape) * dtype.numpy.itemsize
        part = buffer.bytes()[offset : offset + nbytes]
        return HostBuffer(part.view(dtype.numpy).reshape(shape))

    def snapshot(
        self, buffer: Any, offset: int, shape: tuple[int, ...], dtype: DType
    ) -> HostBuffer | None:
        """A value's place, unless the user may write to it: a value that is known stays."""
        if not buffer.address or (type(buffer) is SharedBuffer and not _is_fixed(buffer.array)):
            return None
        whole = buffer.array.reshape(-1)
        start = offset // dtype.numpy.itemsize
        part = whole[start : start + math.prod(shape)]
        part.flags.writeable = False
        return Piece(part.reshape(shape))

    def copy_in(self, host: Array, to: Any) -> None:
        """The values of an array."""
        to.bytes()[:] = host.reshape(-1).view(np.uint8)

    def copy_out(self, source: Any, host: Array) -> None:
        """The values into an array."""
        host[...] = source.array.view(host.dtype).reshape(host.shape)

    def copy(self, source: Any, to: Any) -> None:
        """All of a buffer into another one."""
        np.copyto(to.bytes(), source.bytes())

    def fill(self, buffer: Any, byte: int) -> None:
        """One byte everywhere."""
        buffer.bytes()[:] = byte

    def from_host(self, array: Array, share: bool = False) -> HostBuffer:
        """The array itself, or a copy of it in row-major order."""
        return SharedBuffer(array) if share else HostBuffer(np.array(array, order="C", copy=True))

    def to_host(self, buffer: Any, shape: tuple[int, ...], dtype: DType) -> Array:
        """The buffer's own array."""
        found: Array = buffer.array.reshape(shape)
        return found

    def copied(self, buffer: Any, shape: tuple[int, ...], dtype: DType) -> Array:
        """The values in an array of their own."""
        found: Array = buffer.copied(shape)
        return found

    def contiguous(self, buffer: Any) -> HostBuffer:
        """A buffer whose elements follow each other: itself, or a copy."""
        found: HostBuffer = buffer
        return found if found.address else HostBuffer(np.ascontiguousarray(found.array))

    def number_block(self, nbytes: int) -> HostNumbers:
        """Numbers that are read where they are written."""
        return HostNumbers(nbytes)

    def kernel_code(self, kernel: Kernel) -> StepCode:
        """The kernel, interpreted in this memory."""
        return interpret(kernel)

    def step_code(self, kernel: Kernel) -> StepCode:
        """Host functions need no copies here."""
        if kernel.kind not in HOST:
            return super().step_code(kernel)
        return (sum_step(kernel) if is_collective(kernel) else None) or interpret(kernel)


class ReferenceDevice(HostDevice):
    """NumPy does everything: slow, exact and always there."""

    name = "reference"


def interpret(kernel: Kernel) -> StepCode:
    """A list of steps in order; sizes that variables decide are settled at each call."""
    indexed = _indexed(kernel)
    if indexed is not None:
        return indexed
    body = kernel.body
    symbolic = any(n.op is VAR for n in toposort([body]))
    steps = None if symbolic else _steps(body)

    def run(inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: Values) -> None:
        now = steps
        if now is None:
            order = toposort([body])
            now = _steps(substitute(body, settle(order, values), walk=True))
        _run(now, inputs, outputs)

    return run


def _indexed(kernel: Kernel) -> StepCode | None:
    """The kernel in index notation, if it has one."""
    if kernel.kind in HOST:
        return None
    try:
        runner = Runner(lower_kernel(kernel).indexed, kernel.kind is KernelKind.FOLD)
    except CannotLower:
        return None

    symbolic = _symbolic(kernel)

    def run(inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: Values) -> None:
        arrays: list[Array] = [b.array for b in (*inputs, *outputs)]  # type: ignore[attr-defined]
        wide = {i: _laid_out(arrays[i], shape, values) for i, shape in symbolic.items()}
        flat = [wide[i][0] if i in wide else a for i, a in enumerate(arrays)]
        runner.run([a.reshape(-1) for a in flat], dict(values))
        for i, (_, part) in wide.items():
            if i >= kernel.inputs:
                arrays[i][...] = part

    return run


def _is_fixed(array: Array) -> bool:
    """True if nobody can write to an array, nor through what it is a view of."""
    held: Any = array
    while isinstance(held, np.ndarray):
        if held.flags.writeable:
            return False
        held = held.base
    try:
        while held is not None:
            with memoryview(held) as shown:
                if not shown.readonly:
                    return False
                held = shown.obj if shown.obj is not held else None
    except TypeError:  # it does not say
        return False
    return True


def _symbolic(kernel: Kernel) -> dict[int, Shape]:
    """The inputs and outputs of a kernel whose sizes variables decide."""
    shapes = {n.arg[0]: n.shape for n in toposort([kernel.body]) if n.op is PARAM}
    shapes |= {kernel.inputs + i: root.shape for i, root in enumerate(kernel.body.src)}
    return {i: s for i, s in shapes.items() if not all(isinstance(n, int) for n in s)}


def _laid_out(array: Array, shape: Shape, values: Values) -> tuple[Array, Array]:
    """Memory at the upper bound of every size, as kernels see it, and the part in use there."""
    whole = np.zeros([upper(n) for n in shape], array.dtype)
    sizes = [n if isinstance(n, int) else size_value(n, values) for n in shape]
    part = whole[tuple([slice(n) for n in sizes])]
    part[...] = array.reshape(sizes)
    return whole, part


Listing = tuple[list[tuple[Node, tuple[int, ...]]], tuple[int, ...]]


def _steps(body: Node) -> Listing:
    """Each node with the places of its sources in one flat list of values."""
    order = [n for n in toposort([body]) if n.op is not SINK]
    place = {node: i for i, node in enumerate(order)}
    steps = [(node, tuple([place[s] for s in node.src])) for node in order]
    return steps, tuple([place[root] for root in body.src])


def _run(steps: Listing, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
    values: list[Array] = []
    calls: dict[Any, list[Array]] = {}  # each is made once, for all of its results
    with np.errstate(all="ignore"):
        for node, sources in steps[0]:
            if node.op is PARAM:
                buffer = inputs[node.arg[0]]
                assert isinstance(buffer, HostBuffer)
                values.append(buffer.array.reshape(node.shape))
            elif node.op is CALL:
                key = call_siblings(node)
                if key not in calls:
                    calls[key] = call_values(node, [values[i] for i in sources])
                values.append(calls[key][node.arg[0]])
            else:
                assert node.op.numpy is not None, f"{node!r} cannot be run"
                values.append(node.op.numpy(node, *[values[i] for i in sources]))
    for place, output in zip(steps[1], outputs, strict=True):
        assert isinstance(output, HostBuffer)
        np.copyto(output.array, values[place].reshape(output.array.shape))
