"""The CPU: host memory and kernels in machine code.

In: scheduled kernels. Out: callables over host buffers. A kernel that has no native form yet runs
by interpretation in the same memory; `native` counts say which.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from ..core.node import Node, toposort
from ..core.ops.leaf import PARAM
from ..errors import BoundsError
from ..graph.kernel import Kernel
from ..graph.lower import lower
from ..graph.regroup import CannotLower
from .device import Buffer, Executable
from .interpreter import ReferenceDevice

_Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class CpuDevice(ReferenceDevice):
    """Native code where there is some."""

    name = "cpu"

    def __init__(self) -> None:
        self.native = 0
        self.interpreted: list[str] = []

    def compile(self, kernel: Kernel) -> Executable:
        """Machine code for a kernel, or its interpretation."""
        from ..native.compiler import compile_text, host_lanes
        from ..native.llvm import render

        try:
            if kernel.kind == "host":
                raise CannotLower("a host function")
            dtypes = [p.dtype for p in params_of(kernel)]
            rendered = render(lower(kernel.body, kernel.inputs), dtypes, host_lanes())
        except CannotLower as reason:
            self.interpreted.append(f"{kernel.name}: {reason}")
            return super().compile(kernel)
        call = _Function(compile_text(rendered.text))
        self.native += 1
        units, names = rendered.units, rendered.variables

        def run(
            inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: dict[str, int]
        ) -> None:
            buffers = (*inputs, *outputs)
            arrays = [np.ascontiguousarray(b.array) for b in buffers]  # type: ignore[attr-defined]
            pointers = (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays])
            table = (ctypes.c_int64 * (2 + len(names)))(0, 0, *[values[n] for n in names])
            call(ctypes.addressof(pointers), ctypes.addressof(table), 0, units)
            if table[0]:
                raise BoundsError(
                    f"an index is outside an axis of size {table[1]}",
                    f"indices run from 0 to {table[1] - 1}",
                )

        return run


def params_of(kernel: Kernel) -> list[Node]:
    """The params of a kernel in order: inputs, then outputs."""
    known = {n.arg[0]: n for n in toposort([kernel.body]) if n.op is PARAM}
    return [known[i] for i in range(kernel.inputs)] + list(kernel.body.src)
