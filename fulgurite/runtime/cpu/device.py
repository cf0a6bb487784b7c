"""The CPU: host memory and kernels in machine code.

In: scheduled kernels. Out: native functions, joined to programs that the driver runs in one call.
A kernel that has no native form runs by interpretation in the same memory; `interpreted` says
which and why, `native` counts the others. What makes and runs native code is loaded when a graph
first needs it: a process that only adds two numbers does not pay for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from ..._lazy import lazy_import
from ...config import current
from ...core.dtype import DType, uint8
from ...core.op import Array
from ...graph.ir.kernel import Kernel, Schedule
from ...graph.ir.reshape_groups import CannotLower
from ...graph.memory.arena import Layout
from ..device import Executable, Linked, MemoryLimitError
from ..host.device import HostBuffer, ReferenceDevice, SharedBuffer
from ..host.tiny import Tiny, is_whole
from .pool import POOL, BlockBuffer

if TYPE_CHECKING:
    from ...codegen.common.api import Rendered

_CONTROL = ("loop", "cond")  # Python drives these


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
            raw = POOL.take(POOL.size_of(count))
        except MemoryLimitError as problem:
            raise MemoryLimitError(
                f"no memory for {dtype} of shape {shape}", "free some tensors or use less"
            ) from problem
        made = BlockBuffer(raw, count, shape, dtype.numpy)
        if poison:
            made.bytes()[:] = 0xA5
        return made

    def arena(self, nbytes: int, poison: bool = False) -> HostBuffer:
        """Raw memory for the intermediates of a plan."""
        return self.allocate((nbytes,), uint8, poison)

    def from_host(self, array: Array, share: bool = False) -> HostBuffer:
        """The array itself, or a copy of it in row-major order."""
        if share:
            return SharedBuffer(array)
        raw = POOL.take(POOL.size_of(array.nbytes))
        made = BlockBuffer(raw, array.nbytes, array.shape, array.dtype)
        np.copyto(made.array, array)
        return made

    # --- code ------------------------------------------------------------------------------------

    def compile(self, kernels: Sequence[Kernel]) -> list[Executable]:
        """Machine code for kernels, or their interpretation."""
        found: list[Executable] = [None] * len(kernels)
        rendered = {}
        for number, kernel in enumerate(kernels):
            product = None if kernel.kind in _CONTROL else self.library(kernel)
            if product is not None:
                found[number] = product
                continue
            try:
                rendered[number] = self.rendered(kernel)
            except CannotLower as reason:
                if kernel.kind not in _CONTROL:
                    self.interpreted.append(f"{kernel.name}: {reason}")
                found[number] = self.interpret(kernel)
        if rendered:
            natives = lazy_import("runtime.cpu.toolchain").natives(kernels, rendered)
            for number, native in zip(rendered, natives, strict=True):
                found[number] = native
            self.native += len(rendered)
        return found

    def rendered(self, kernel: Kernel) -> Rendered:
        """A kernel as text; `CannotLower` says why not."""
        if kernel.kind in ("host", *_CONTROL):
            raise CannotLower("a host function")
        found: Rendered = lazy_import("runtime.cpu.toolchain").rendering(kernel)
        return found

    def beside(self, kernels: Sequence[Kernel]) -> int:
        """What texts say that they need."""
        most = 0
        for kernel in dict.fromkeys(kernels):
            known = None if kernel.kind in _CONTROL else self.library(kernel)
            with suppress(CannotLower):
                most = max(most, 0 if known is not None else self.rendered(kernel).workspace)
        return most

    def library(self, kernel: Kernel) -> Executable | None:
        """A library's way to run a kernel, where bits may depend on its threads."""
        if current().deterministic or kernel.kind == "host":
            return None
        product: Executable | None = lazy_import("runtime.cpu.blas").product(kernel)
        return product

    def link(self, schedule: Schedule, code: Sequence[Executable], layout: Layout) -> Linked:
        """Records for the driver; host steps split them."""
        if is_whole(schedule):
            return Tiny(schedule)
        linked: Linked = lazy_import("runtime.cpu.toolchain").program(self, schedule, code, layout)
        return linked
