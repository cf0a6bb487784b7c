"""A device of sixty lines: memory is bytearrays, kernels are run in index notation.

All that a backend must write is here; loops, choices, host functions, replays, copies between
devices and the rest follow (`fulgurite/runtime/device_base.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from fulgurite.core.dtype import DType
from fulgurite.core.op import Array
from fulgurite.graph.ir.kernel import Kernel, params_of
from fulgurite.runtime.device import Buffer, MemoryLimitError, Values
from fulgurite.runtime.device_base import BaseDevice
from fulgurite.runtime.host.device import HostBuffer, interpret
from fulgurite.runtime.step_executor import StepCode, concrete


class ToyBuffer:
    """Some bytes of a bytearray; addresses are made up, as nobody else reads them."""

    exported = None
    last = 0

    def __init__(self, memory: bytearray, offset: int, nbytes: int, base: int | None) -> None:
        ToyBuffer.last += 1 << 40
        self.memory, self.offset, self.nbytes = memory, offset, nbytes
        self.address = (ToyBuffer.last if base is None else base) + offset
        self.is_view = base is not None

    def exclusive(self) -> bool:
        return not self.is_view

    def bytes(self) -> memoryview:
        return memoryview(self.memory)[self.offset : self.offset + self.nbytes]


class ToyDevice(BaseDevice):
    """Memory and kernels; the rest is inherited."""

    name = "toy"

    def allocate(self, shape: tuple[int, ...], dtype: DType, poison: bool = False) -> ToyBuffer:
        nbytes = prod(shape) * dtype.numpy.itemsize
        if nbytes > 1 << 30:
            raise MemoryLimitError(f"no memory for {dtype} of shape {shape}", "use less")
        return ToyBuffer(bytearray([0xA5 if poison else 0]) * nbytes, 0, nbytes, None)

    def view(self, buffer: Buffer, offset: int, shape: tuple[int, ...], dtype: DType) -> ToyBuffer:
        assert isinstance(buffer, ToyBuffer)
        start, nbytes = buffer.address - buffer.offset, prod(shape) * dtype.numpy.itemsize
        return ToyBuffer(buffer.memory, buffer.offset + offset, nbytes, start)

    def copy_in(self, host: Array, to: Buffer) -> None:
        assert isinstance(to, ToyBuffer)
        to.bytes()[:] = host.tobytes()

    def copy_out(self, source: Buffer, host: Array) -> None:
        assert isinstance(source, ToyBuffer)
        host.reshape(-1).view(np.uint8)[:] = np.frombuffer(source.bytes(), np.uint8)

    def kernel_code(self, kernel: Kernel) -> StepCode:
        run, params = interpret(kernel), params_of(kernel)

        def launch(inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: Values) -> None:
            about = [(concrete(p.shape, values), p.dtype) for p in params]
            arrays = [self.to_host(b, *a) for b, a in zip((*inputs, *outputs), about, strict=True)]
            given = [HostBuffer(array) for array in arrays]
            run(given[: kernel.inputs], given[kernel.inputs :], values)
            for array, to in zip(arrays[kernel.inputs :], outputs, strict=True):
                self.copy_in(array, to)

        return launch
