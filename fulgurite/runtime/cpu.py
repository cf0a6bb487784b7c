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
        from ..native.compiler import compile_text
        from ..native.render import render
        from ..native.target import target

        try:
            if kernel.kind == "host":
                raise CannotLower("a host function")
            dtypes = [p.dtype for p in params_of(kernel)]
            rendered = render(lower(kernel.body, kernel.inputs), dtypes, target())
        except CannotLower as reason:
            self.interpreted.append(f"{kernel.name}: {reason}")
            return super().compile(kernel)
        code = compile_text(rendered)
        phases = [(_Function(code[p.symbol]), p.units) for p in rendered.phases]
        room = rendered.workspace
        self.native += 1
        names, numbers = rendered.variables, rendered.numbers

        def run(
            inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: dict[str, int]
        ) -> None:
            buffers = (*inputs, *outputs)
            arrays = [np.ascontiguousarray(b.array) for b in buffers]  # type: ignore[attr-defined]
            workspace = np.empty(room + 64, np.uint8)
            pad = -workspace.ctypes.data % 64
            addresses = [*[a.ctypes.data for a in arrays], workspace.ctypes.data + pad]
            pointers = (ctypes.c_void_p * len(addresses))(*addresses)
            table = (ctypes.c_int64 * (2 + len(names) + len(numbers)))(
                0, 0, *[values[n] for n in names], *numbers
            )
            for call, units in phases:
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
