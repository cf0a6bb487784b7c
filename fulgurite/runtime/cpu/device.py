"""The CPU: host memory and kernels in machine code.

In: scheduled kernels. Out: native functions, joined to programs that the driver runs in one call.
A kernel that has no native form runs by interpretation in the same memory; `interpreted` says
which and why, `native` counts the others. What makes and runs native code is loaded when a graph
first needs it: a process that only adds two numbers does not pay for it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..._lazy import FORK_LOCK, fork_safe_property
from ...config import current
from ...core.dtype import DType
from ...core.op import Array
from ...graph.ir.kernel import Kernel, Schedule
from ...graph.ir.reshape_groups import CannotLower
from ...graph.memory.arena import Layout
from ..device import Buffer, Executable, Executor, Held, MemoryLimitError
from ..host.device import POISON, HostBuffer, HostDevice, SharedBuffer
from ..host.tiny import TinyExecutor, is_whole
from .pool import (
    GROWN_BYTES,
    POOL,
    BlockBuffer,
    Grown,
    extended,
    forget_idle,
    grown,
    inner_axis,
    may_grow,
    spared_bytes,
)

if TYPE_CHECKING:
    from ...codegen.common.api import KernelText
    from ...codegen.cpu.generator import CpuCodeGenerator
    from ...graph.fusion.proposals import Source
    from ..recording import Recorder
    from .timed_calls import TimedCalls


class CpuDevice(HostDevice):
    """Native code where there is some."""

    name = "cpu"
    has_tiny_tier = True
    sizes_vary = True

    def __init__(self) -> None:
        self.native = 0
        self.interpreted: list[str] = []
        self._timed: TimedCalls | None = None

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
            made.bytes()[:] = POISON
        return made

    def from_host(self, array: Array, share: bool = False) -> HostBuffer:
        """The array itself, or a copy of it in row-major order."""
        if share:
            return SharedBuffer(array)
        raw = POOL.take(POOL.size_of(array.nbytes))
        made = BlockBuffer(raw, array.nbytes, array.shape, array.dtype)
        np.copyto(made.array, array)
        return made

    def extended(
        self, buffer: Any, behind: Any, shape: tuple[int, ...], dtype: DType
    ) -> HostBuffer | None:
        """A value with another behind it, in memory with room."""
        try:
            return extended(buffer, behind, shape, dtype.numpy)
        except MemoryLimitError:  # twice as much is a wish
            return None

    def grown(self, buffer: Any, axis: int, shape: tuple[int, ...], dtype: DType) -> Grown | None:
        """Memory with room, where the shorter value is or twice as much."""
        try:
            return grown(buffer, inner_axis(shape, axis), shape, dtype.numpy)
        except MemoryLimitError:  # twice as much is a wish
            return None

    def may_grow(self, buffer: Any, axis: int, shape: tuple[int, ...]) -> bool:
        """True if it has room, or was concatenated and is large enough to get some."""
        return buffer.nbytes >= GROWN_BYTES and may_grow(buffer, inner_axis(shape, axis))

    def mark_joined(self, buffer: Any, axis: int, shape: tuple[int, ...]) -> None:
        """Note that a value was concatenated, once it is worth it."""
        if type(buffer) is BlockBuffer and buffer.nbytes >= GROWN_BYTES:
            buffer.joined = inner_axis(shape, axis)

    def memory_stats(self, reset_peak: bool = False) -> dict[str, int]:
        """Figures of the pool; what programs keep for results counts as idle."""
        found, spared = asdict(POOL.stats), spared_bytes()
        found["used"], found["idle"] = found["used"] - spared, found["idle"] + spared
        if reset_peak:
            POOL.reset_peak()
        return found

    def empty_cache(self) -> int:
        """Give the pool's free blocks back to the system."""
        forget_idle()
        return POOL.empty()

    def record(self, recorder: Recorder | None) -> None:
        """Native calls go through the driver with a clock while a recorder is set."""
        super().record(recorder)
        if self._timed is not None:
            self._timed.stop()
            self._timed = None
        if recorder is None:
            return
        with FORK_LOCK:
            from ...codegen.cpu.llvm import versions
        if versions.unusable():  # then nothing is native
            return
        with FORK_LOCK:
            from . import timed_calls, toolchain
        self._timed = timed_calls.TimedCalls(
            toolchain.workers(), toolchain.timed_workers(), recorder, self.name
        )

    # --- code ------------------------------------------------------------------------------------

    @fork_safe_property
    def codegen(self) -> CpuCodeGenerator:
        """LLVM for the processor of this machine."""
        from ...codegen.cpu import generator

        return generator.CpuCodeGenerator()

    @property
    def vnni_layout(self) -> bool:  # type: ignore[override]
        """True if an instruction multiplies bytes by fours as memory has them: VNNI, not AMX."""
        from ...codegen.cpu.target import target

        return target(current().vectors).multiplies_words

    @property
    def providers(self) -> Sequence[Source]:
        """The BLAS that NumPy carries; its bits depend on the number of its threads."""
        with FORK_LOCK:
            from . import blas
        return blas.PROVIDERS

    def code_key(self) -> Hashable:
        """Which vectors, and whether a library may stand in without the search saying so."""
        options = current()
        chosen = options.search and options.fuse  # then a kernel's kind says whose it is
        return options.vectors, not options.deterministic and not options.exact and not chosen

    def compile(self, kernels: Sequence[Kernel]) -> list[Executable]:
        """Machine code for kernels, or their interpretation."""
        found: list[Executable] = [None] * len(kernels)
        rendered = {}
        for number, kernel in enumerate(kernels):
            product = self.library(kernel)
            if product is not None:
                found[number] = product
                continue
            try:
                rendered[number] = self.rendered(kernel)
            except CannotLower as reason:
                if not kernel.kind.is_control:
                    self.interpreted.append(f"{kernel.name}: {reason}")
                found[number] = self.step_code(kernel)
        if rendered:
            with FORK_LOCK:
                from . import toolchain
            natives = toolchain.natives(kernels, rendered)
            for number, native in zip(rendered, natives, strict=True):
                found[number] = native
            self.native += len(rendered)
        return found

    def rendered(self, kernel: Kernel) -> KernelText:
        """A kernel as text; `CannotLower` says why not."""
        if not kernel.kind.has_code:
            raise CannotLower("a host function")
        with FORK_LOCK:
            from . import toolchain
        return toolchain.rendering(kernel)

    def workspace_bytes(self, kernels: Sequence[Kernel]) -> int:
        """What texts say that they need."""
        most = 0
        for kernel in dict.fromkeys(kernels):
            known = self.library(kernel)
            with suppress(CannotLower):
                most = max(most, 0 if known is not None else self.rendered(kernel).workspace)
        return most

    def library(self, kernel: Kernel) -> Executable | None:
        """A library's way to run a kernel, where bits may depend on its threads."""
        if current().deterministic or not kernel.kind.has_code:
            return None
        with FORK_LOCK:
            from . import blas
        return blas.product(kernel)

    def library_name(self, kernel: Kernel) -> str:
        """NumPy's, where it is used without the search saying so."""
        return "" if self.library(kernel) is None else "the BLAS that NumPy carries"

    def link(self, schedule: Schedule, code: Sequence[Executable], layout: Layout) -> Executor:
        """Records for the driver; host steps split them."""
        if is_whole(schedule):
            return TinyExecutor(schedule, self)
        with FORK_LOCK:
            from . import toolchain
        return cast("Executor", toolchain.program(self, schedule, code, layout))

    def hold(self, inputs: Mapping[int, Buffer]) -> Held:
        """Operands of products that stay are packed once."""
        with FORK_LOCK:
            from . import prepack
        return prepack.HeldInputs(inputs)

    # --- code on disk ----------------------------------------------------------------------------

    def plan_key(self) -> str | None:
        """The compiler and the target that it compiles for."""
        with FORK_LOCK:
            from ...codegen.cpu.llvm import versions
        return versions.code_key(current().vectors)

    def dump_code(self, code: Executable) -> list[Any] | None:
        """A launch: the name of its text and what it is launched with."""
        with FORK_LOCK:
            from . import objects
        return objects.dump(code)

    def load_code(self, kernel: Kernel, dumped: list[Any] | None) -> Executable | None:
        """The functions of a text from the store; other kernels are made again."""
        if dumped is None:
            return self.library(kernel) or self.step_code(kernel)
        with FORK_LOCK:
            from . import objects
        native = objects.restored(dumped)
        with FORK_LOCK:
            from . import toolchain
        known: bool = toolchain.code().fetch(native.digest)
        return native if known else None

    def export_code(self, code: Sequence[Executable], members: dict[str, bytes]) -> dict[str, Any]:
        """The objects of native kernels and of the driver, and the target they are for."""
        with FORK_LOCK:
            from . import shipping
        return shipping.export_code(code, members)

    def import_code(self, about: Mapping[str, Any], members: Mapping[str, bytes]) -> None:
        """Load exported objects, if they are for this machine."""
        with FORK_LOCK:
            from . import shipping
        shipping.import_code(about, members)
