"""What follows from a device's memory and kernels: all that a new backend need not write itself.

In: a subclass with `allocate`, `view`, `copy_in`, `copy_out` and `kernel_code`. Out: a whole
`Device`. Values cross by copies, kernels run one after the other (`StepExecutor`), loops and
choices are driven from Python over the device's memory, and host functions see copies of their
arguments. A backend overrides what it can do better: one launch for a plan, copies between its
members, code on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .._lazy import FORK_LOCK
from ..core.dtype import DType, dtype_of, uint8
from ..core.node import Node
from ..core.op import Array
from ..core.passes import Observe
from ..graph.ir.kernel import Kernel, Schedule, params_of
from ..graph.ir.kernel_kind import KernelKind
from ..graph.memory.arena import Layout
from .device import (
    Buffer,
    Device,
    DeviceError,
    Executable,
    Executor,
    Growing,
    Held,
    NumberBlock,
    Values,
)
from .recording import Recorder
from .step_executor import StepCode, StepExecutor, concrete

if TYPE_CHECKING:
    from ..codegen.common.api import CodeGenerator
    from ..config import Options
    from ..graph.fusion.machine import MachineModel
    from ..graph.fusion.proposals import Source

CONTROL = tuple([kind for kind in KernelKind if kind.is_control])
HOST = (KernelKind.HOST, KernelKind.USER)  # kernels of the user's functions


class CopiedNumbers:
    """A block of numbers that is copied to the device before a launch."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.host = np.zeros(nbytes, np.uint8)
        self.memory = device.allocate((nbytes,), uint8)
        self.address = self.memory.address
        self.flush: Callable[[], None] | None = lambda: device.copy_in(self.host, self.memory)


class _Untouched:
    """Inputs of which nothing is worked out beforehand."""

    is_stale = False

    def of(self, executor: Any) -> Any:
        """The executor itself."""
        return executor


class BaseDevice:
    """A device whose memory is reached by copies and whose kernels are callables."""

    name: str
    codegen: CodeGenerator | None = None
    host_visible = False
    has_tiny_tier = False
    sizes_vary = False
    operand_reuse = 0
    packs_operands = False
    joins_column_sums = False
    joins_small_maps = False
    joins_in_place = False
    compares_results = False
    keeps_addresses = False
    channels_last = False
    vnni_layout = False
    dlpack = (1, 0)  # what leaves it is a copy in the memory of the host
    align = 64  # a cache line, and the widest vector
    recorder: Recorder | None = None
    guards_writes = False
    asks_library = False

    # --- what a backend writes -------------------------------------------------------------------

    def allocate(self, shape: tuple[int, ...], dtype: DType, poison: bool = False) -> Buffer:
        """Memory for a value; its contents are undefined, or garbage on purpose."""
        raise NotImplementedError

    def view(self, buffer: Buffer, offset: int, shape: tuple[int, ...], dtype: DType) -> Buffer:
        """A value inside a buffer, so many bytes from its beginning; it keeps the buffer alive."""
        raise NotImplementedError

    def copy_in(self, host: Array, to: Buffer) -> None:
        """Values of a contiguous host array; the array may be written to when this returns."""
        raise NotImplementedError

    def copy_out(self, source: Buffer, host: Array) -> None:
        """Values into a contiguous host array, when all that was launched before has run."""
        raise NotImplementedError

    def kernel_code(self, kernel: Kernel) -> StepCode:
        """A callable that launches a kernel: (inputs, outputs, values of variables)."""
        raise NotImplementedError

    # --- what a backend may have -----------------------------------------------------------------

    @property
    def machine(self) -> MachineModel:
        """The target's model; where there is none, that of the CPU: plans are the same."""
        if self.codegen is not None:
            return self.codegen.machine
        with FORK_LOCK:
            from ..codegen.cpu import machine as machine_module
        return machine_module.SHIPPED

    @property
    def sources(self) -> Sequence[Source]:
        """The target's; where there is none, those of the CPU: plans are the same."""
        if self.codegen is not None:
            return self.codegen.sources
        with FORK_LOCK:
            from ..codegen.cpu import providers as providers_module
        return providers_module.SOURCES

    @property
    def providers(self) -> Sequence[Source]:
        """All kernels are our own."""
        return ()

    @property
    def has_collectives(self) -> bool:
        """False: values go between ranks through the host."""
        return False

    # --- memory ----------------------------------------------------------------------------------

    def arena(self, nbytes: int, poison: bool = False) -> Buffer:
        """Raw memory for the intermediates of a plan."""
        return self.allocate((nbytes,), uint8, poison)

    def snapshot(
        self, buffer: Buffer, offset: int, shape: tuple[int, ...], dtype: DType
    ) -> Buffer | None:
        """A value inside a buffer that never changes: the buffer is not written over meanwhile."""
        return self.view(buffer, offset, shape, dtype)

    def copy(self, source: Buffer, to: Buffer) -> None:
        """All of a buffer into another one, by way of the host."""
        passing = np.empty(source.nbytes, np.uint8)
        self.copy_out(source, passing)
        self.copy_in(passing, to)

    def fill(self, buffer: Buffer, byte: int) -> None:
        """One byte everywhere."""
        self.copy_in(np.full(buffer.nbytes, byte, np.uint8), buffer)

    def from_host(self, array: Array, share: bool = False) -> Buffer:
        """A copy of an array's values: memory of the host is never ours."""
        made = self.allocate(array.shape, dtype_of(array.dtype))
        self.copy_in(np.ascontiguousarray(array), made)
        return made

    def to_host(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> Array:
        """The values as an array of their own."""
        found: Array = np.empty(shape, dtype.numpy)
        self.copy_out(buffer, found)
        return found

    def copied(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> Array:
        """The values as an array that nobody else has."""
        found = self.to_host(buffer, shape, dtype)
        return np.array(found) if self.host_visible else found

    def copy_from(
        self, other: Device, source: Buffer, shape: tuple[int, ...], dtype: DType
    ) -> Buffer:
        """A value of another device, by way of the host."""
        return self.from_host(other.to_host(source, shape, dtype))

    def contiguous(self, buffer: Buffer) -> Buffer:
        """The buffer itself: only memory that others share can be strided."""
        return buffer

    def extended(
        self, buffer: Buffer, behind: Buffer, shape: tuple[int, ...], dtype: DType
    ) -> Buffer | None:
        """Nothing: memory has no room, what grows is copied."""
        return None

    def grown(
        self, buffer: Buffer, axis: int, shape: tuple[int, ...], dtype: DType
    ) -> Growing | None:
        """Nothing: memory has no room, what grows is copied."""
        return None

    def may_grow(self, buffer: Buffer, axis: int, shape: tuple[int, ...]) -> bool:
        """False: memory has no room."""
        return False

    def mark_joined(self, buffer: Buffer, axis: int, shape: tuple[int, ...]) -> None:
        """Nothing: memory has no room."""

    def number_block(self, nbytes: int) -> NumberBlock:
        """Numbers that are copied before each launch."""
        return CopiedNumbers(self, nbytes)

    def synchronize(self) -> None:
        """Nothing to wait for: launches return when they are done."""

    def record(self, recorder: Recorder | None) -> None:
        """Steps are timed where they are launched, by the clock of the host."""
        self.recorder = recorder

    def memory_stats(self, reset_peak: bool = False) -> dict[str, int]:
        """Nothing is counted."""
        return dict.fromkeys(("fresh", "idle", "peak", "reused", "used"), 0)

    def empty_cache(self) -> int:
        """Nothing is kept for later."""
        return 0

    # --- code ------------------------------------------------------------------------------------

    def code_key(self) -> Hashable:
        """Code depends on the kernel alone."""
        return ""

    def compile(self, kernels: Sequence[Kernel]) -> list[Executable]:
        """A callable for each kernel."""
        return [self.step_code(kernel) for kernel in kernels]

    def compile_guarded(self, kernels: Sequence[Kernel], over: Set[Kernel]) -> list[Executable]:
        """Checks are known to be good before anything is written over."""
        return self.compile(kernels)

    def plans_first(self, options: Options) -> bool:
        """False: whatever there is on disk, it can be asked at once."""
        return False

    def compile_ahead(self, kernels: Sequence[Kernel], over: Set[Kernel]) -> None:
        """Nothing: code is made when it is asked for."""

    def step_code(self, kernel: Kernel) -> StepCode:
        """Loops, choices and host functions run from here, all others on the device."""
        if kernel.kind.is_control:
            with FORK_LOCK:
                from . import control as control_module
            return control_module.control(kernel, self)
        return StagedStep(self, kernel) if kernel.kind in HOST else self.kernel_code(kernel)

    def trace(self, kernel: Kernel, observe: Observe) -> None:
        """The passes of the target; what is interpreted goes through none."""
        if self.codegen is not None:
            self.codegen.render(kernel, observe)

    def workspace_bytes(self, kernels: Sequence[Kernel]) -> int:
        """Kernels have only values."""
        return 0

    def library_name(self, kernel: Kernel) -> str:
        """No library."""
        return ""

    def keeps_float8(self, fold: Node) -> bool:
        """Nothing multiplies it as it is."""
        return False

    def library_key(self) -> str:
        """No library."""
        return ""

    def stopwatch(self) -> Callable[[Callable[[], object]], float] | None:
        """Launches are done when they return: the host's clock times them."""
        return None

    def link(self, schedule: Schedule, code: Sequence[Executable], layout: Layout) -> Executor:
        """A loop over the kernels."""
        return StepExecutor(self, schedule, code, layout)

    # --- code on disk ----------------------------------------------------------------------------

    def plan_key(self) -> str | None:
        """Plans are not kept."""
        return None

    def hold(self, inputs: Mapping[int, Buffer]) -> Held:
        """Nothing is done beforehand."""
        return _Untouched()

    def dump_code(self, code: Executable) -> list[Any] | None:
        """Nothing: code is made again from its kernel."""
        return None

    def load_code(self, kernel: Kernel, dumped: list[Any] | None) -> Executable | None:
        """The code of a kernel, made again."""
        if dumped is not None:
            raise DeviceError(f"the {self.name} device keeps no code", "compile the plan anew")
        return self.step_code(kernel)

    def export_code(self, code: Sequence[Executable], members: dict[str, bytes]) -> dict[str, Any]:
        """Nothing: code is made again from its kernel."""
        return {}

    def import_code(self, about: Mapping[str, Any], members: Mapping[str, bytes]) -> None:
        """Nothing is needed."""


class StagedStep:
    """A host function over copies: arguments come from the device, results go back to it."""

    def __init__(self, device: Device, kernel: Kernel) -> None:
        self.device, self.inputs = device, kernel.inputs
        self.params = [(p.shape, p.dtype) for p in params_of(kernel)]
        with FORK_LOCK:
            from .host import device as device_module
        self.run: StepCode = device_module.interpret(kernel)

    def __call__(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: Values) -> None:
        with FORK_LOCK:
            from .host import device as device_module
        host, device = device_module.HostBuffer, self.device
        sizes = [(concrete(shape, values), dtype) for shape, dtype in self.params]
        given = [
            host(device.to_host(b, *about))
            for b, about in zip(inputs, sizes[: self.inputs], strict=True)
        ]
        made = [np.empty(shape, dtype.numpy) for shape, dtype in sizes[self.inputs :]]
        self.run(given, [host(array) for array in made], values)
        for array, to in zip(made, outputs, strict=True):
            if prod(array.shape):
                device.copy_in(array, to)
