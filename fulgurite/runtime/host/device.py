"""The reference device: NumPy memory, and kernels run by interpretation.

In: scheduled kernels. Out: their outputs, written into memory the plan provides. This is the
second of the two independent ways to run a graph: `reference.evaluate` gives the graph itself its
meaning, this gives kernels theirs, so that a fault in scheduling shows as a difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..._lazy import lazy_import
from ...core.dtype import DType, uint8
from ...core.node import Node, Shape, toposort
from ...core.op import Array
from ...core.ops.host import CALL, call_siblings, call_values
from ...core.ops.leaf import PARAM, SINK, VAR
from ...core.shape import upper
from ...core.substitute import substitute
from ...graph.ir.kernel import Kernel, Schedule
from ...graph.ir.lower import lower
from ...graph.ir.reshape_groups import CannotLower
from ...graph.memory.arena import Layout
from ..device import Buffer, Executable, Linked, MemoryLimitError, register_device
from .evaluate import settle, size_value
from .executor import Steps
from .index_interpreter import Runner

Interpreted = Callable[[Sequence[Buffer], Sequence[Buffer], dict[str, int]], None]
"""A kernel that Python runs: (inputs, outputs to fill, values of variables)."""


class HostBuffer:
    """Memory of the host, as a NumPy array."""

    __slots__ = ("__weakref__", "_address", "_array")
    device = "reference"

    def __init__(self, array: Array) -> None:
        self._array: Array | None = array
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
        assert self._array is not None
        return self._array

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.array.nbytes


class SharedBuffer(HostBuffer):
    """Memory that somebody else has as well: it is read, never written over."""

    __slots__ = ()


class ReferenceDevice:
    """NumPy does everything: slow, exact and always there."""

    name = "reference"

    def allocate(self, shape: tuple[int, ...], dtype: DType, poison: bool = False) -> HostBuffer:
        """Fresh memory; poisoned memory holds a pattern that no test mistakes for a result."""
        try:
            array = np.empty(shape, dtype.numpy)
        except (MemoryError, ValueError) as problem:
            raise MemoryLimitError(
                f"no memory for {dtype} of shape {shape}", "free some tensors or use less"
            ) from problem
        if poison:
            array.reshape(-1).view(np.uint8)[:] = 0xA5
        return HostBuffer(array)

    def arena(self, nbytes: int, poison: bool = False) -> HostBuffer:
        """Raw memory for the intermediates of a plan."""
        return self.allocate((nbytes,), uint8, poison)

    def part(self, arena: Buffer, offset: int, shape: tuple[int, ...], dtype: DType) -> HostBuffer:
        """A value's place in an arena."""
        assert isinstance(arena, HostBuffer)
        nbytes = math.prod(shape) * dtype.numpy.itemsize
        return HostBuffer(arena.array[offset : offset + nbytes].view(dtype.numpy).reshape(shape))

    def from_host(self, array: Array, share: bool = False) -> HostBuffer:
        """The array itself, or a copy of it in row-major order."""
        return SharedBuffer(array) if share else HostBuffer(np.array(array, order="C", copy=True))

    def to_host(self, buffer: Buffer) -> Array:
        """The buffer's own array."""
        assert isinstance(buffer, HostBuffer)
        return buffer.array

    def compile(self, kernels: Sequence[Kernel]) -> list[Executable]:
        """Callables that interpret the kernels."""
        return [self.interpret(kernel) for kernel in kernels]

    def beside(self, kernels: Sequence[Kernel]) -> int:
        """Nothing: what is interpreted has only values."""
        return 0

    def link(self, schedule: Schedule, code: Sequence[Executable], layout: Layout) -> Linked:
        """A loop over the kernels."""
        return Steps(self, schedule, code, layout)

    def interpret(self, kernel: Kernel) -> Interpreted:
        """A list of steps in order; sizes that variables decide are settled at each call."""
        if kernel.kind in ("loop", "cond"):
            control: Interpreted = lazy_import("runtime.control").control(kernel, self)
            return control
        indexed = self._indexed(kernel)
        if indexed is not None:
            return indexed
        body = kernel.body
        symbolic = any(n.op is VAR for n in toposort([body]))
        steps = None if symbolic else _steps(body)

        def run(
            inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: dict[str, int]
        ) -> None:
            now = steps
            if now is None:
                order = toposort([body])
                now = _steps(substitute(body, settle(order, values), walk=True))
            _run(now, inputs, outputs)

        return run

    def _indexed(self, kernel: Kernel) -> Interpreted | None:
        """The kernel in index notation, if it has one."""
        if kernel.kind in ("host", "user"):
            return None
        try:
            runner = Runner(lower(kernel.body, kernel.inputs))
        except CannotLower:
            return None

        symbolic = _symbolic(kernel)

        def run(
            inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: dict[str, int]
        ) -> None:
            arrays: list[Array] = [b.array for b in (*inputs, *outputs)]  # type: ignore[attr-defined]
            wide = {i: _laid_out(arrays[i], shape, values) for i, shape in symbolic.items()}
            flat = [wide[i][0] if i in wide else a for i, a in enumerate(arrays)]
            runner.run([a.reshape(-1) for a in flat], values)
            for i, (_, part) in wide.items():
                if i >= kernel.inputs:
                    arrays[i][...] = part

        return run


def _symbolic(kernel: Kernel) -> dict[int, Shape]:
    """The inputs and outputs of a kernel whose sizes variables decide."""
    shapes = {n.arg[0]: n.shape for n in toposort([kernel.body]) if n.op is PARAM}
    shapes |= {kernel.inputs + i: root.shape for i, root in enumerate(kernel.body.src)}
    return {i: s for i, s in shapes.items() if not all(isinstance(n, int) for n in s)}


def _laid_out(array: Array, shape: Shape, values: dict[str, int]) -> tuple[Array, Array]:
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
        np.copyto(output.array, values[place])


register_device("reference", ReferenceDevice)
