"""The CPU: host memory and kernels in machine code.

In: scheduled kernels. Out: native functions, joined to programs that the driver runs in one call.
A kernel that has no native form runs by interpretation in the same memory; `interpreted` says
which and why, `native` counts the others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import numpy as np

from ..config import current
from ..core.dtype import DType, uint8
from ..core.node import Node, toposort
from ..core.op import Array
from ..core.ops.leaf import PARAM
from ..graph.kernel import Kernel, Schedule
from ..graph.lower import lower
from ..graph.memory import Layout
from ..graph.regroup import CannotLower
from ..native.code import Rendered
from ..native.driver import driver_text
from ..native.target import target
from .code import Code, Native
from .device import Buffer, Executable, Linked, MemoryLimitError
from .interpreter import HostBuffer, ReferenceDevice
from .memory import POOL
from .program import BlockBuffer, Program
from .tiny import Tiny, is_whole
from .workers import Workers


class CpuDevice(ReferenceDevice):
    """Native code where there is some."""

    name = "cpu"

    def __init__(self) -> None:
        self.native = 0
        self.interpreted: list[str] = []

    # --- memory ----------------------------------------------------------------------------------

    def allocate(self, shape: tuple[int, ...], dtype: DType, poison: bool = False) -> HostBuffer:
        """Pooled memory; its contents are whatever was there, or garbage on purpose."""
        count = dtype.numpy.itemsize
        for n in shape:
            count *= n
        try:
            block = POOL.block(count)
        except MemoryLimitError as problem:
            raise MemoryLimitError(
                f"no memory for {dtype} of shape {shape}", "free some tensors or use less"
            ) from problem
        if poison:
            block.bytes()[:] = 0xA5
        return BlockBuffer(block, shape, dtype.numpy)

    def arena(self, nbytes: int, poison: bool = False) -> HostBuffer:
        """Raw memory for the intermediates of a plan."""
        return self.allocate((nbytes,), uint8, poison)

    def from_host(self, array: Array, share: bool = False) -> HostBuffer:
        """The array itself, or a copy of it in row-major order."""
        if share:
            return HostBuffer(array)
        block = POOL.block(array.nbytes)
        made = BlockBuffer(block, array.shape, array.dtype)
        np.copyto(made.array, array)
        return made

    # --- code ------------------------------------------------------------------------------------

    def compile(self, kernels: Sequence[Kernel]) -> list[Executable]:
        """Machine code for kernels, or their interpretation."""
        rendered: dict[int, Rendered] = {}
        found: list[Executable] = []
        for number, kernel in enumerate(kernels):
            try:
                rendered[number] = rendering(kernel)
                found.append(None)
            except CannotLower as reason:
                self.interpreted.append(f"{kernel.name}: {reason}")
                found.append(self.interpret(kernel))
        self.native += len(rendered)
        if rendered:
            natives = code().add(list(rendered.values()))
            for number, native in zip(rendered, natives, strict=True):
                found[number] = native
        return found

    def link(self, schedule: Schedule, code: Sequence[Executable], layout: Layout) -> Linked:
        """Records for the driver; host steps split them."""
        if is_whole(schedule):
            return Tiny(schedule)
        return Program(self, schedule, code, layout, address, workers())


def rendering(kernel: Kernel) -> Rendered:
    """A kernel as text, or the reason why not."""
    from ..native.render import render

    if kernel.kind == "host":
        raise CannotLower("a host function")
    dtypes = [p.dtype for p in params_of(kernel)]
    return render(lower(kernel.body, kernel.inputs), dtypes, target(current().vectors))


def params_of(kernel: Kernel) -> list[Node]:
    """The params of a kernel in order: inputs, then outputs."""
    known = {n.arg[0]: n for n in toposort([kernel.body]) if n.op is PARAM}
    return [known[i] for i in range(kernel.inputs)] + list(kernel.body.src)


@lru_cache(maxsize=8)
def _code(wish: str) -> Code:
    made = Code(target(wish))
    os.register_at_fork(after_in_child=made.after_fork)
    return made


def code() -> Code:
    """The native functions for the vectors that are asked for."""
    return _code(current().vectors)


def address(symbol: str) -> int:
    """Where a function is."""
    return code().functions[symbol]


@lru_cache(maxsize=1)
def workers() -> Workers:
    """The driver and its threads."""
    made = _code("auto")
    made.drive(driver_text(made.target.arch))
    return Workers(made.functions)


def is_native(made: Executable) -> bool:
    """Is a kernel's code run by the driver?"""
    return isinstance(cast(object, made), Native)


__all__ = ["Buffer", "CpuDevice", "code", "params_of", "rendering", "workers"]
