"""Plain matrix products by the BLAS that NumPy carries, where that is allowed.

In: a kernel. Out: a host step that calls `cblas_sgemm` or `cblas_dgemm` on the memory of its params
as it is, or None: the kernel is more than a product, the product is small, or no library is found.
A library's bits depend on its thread count, so it is asked only under `deterministic=False`; with
the default option nothing here runs. The library is the one inside the installed NumPy, reached by
the function's address: nothing is searched on the system.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import lru_cache
from itertools import product as every
from typing import Any

import numpy as np

from ...codegen.cpu.gemm.strategies import cpu_problem
from ...config import current
from ...core.dtype import DType, float32, float64
from ...core.lazy_dataclass import dataclass
from ...core.node import Node
from ...graph.fusion.machine import CostTable, both, memory_time, work_of
from ...graph.fusion.proposals import Proposal, Source
from ...graph.ir.kernel import Kernel
from ...graph.ir.kernel_kind import KernelKind
from ...graph.ir.lower import lower_kernel
from ...graph.ir.reshape_groups import CannotLower
from ...kernel.contract.analysis import Line
from ...kernel.contract.problem import GemmProblem, is_dense, part
from ...kernel.transform.merge_axes import merge_axes
from ..device import Buffer

LIBRARY_CALL_MULTIPLIES = 1 << 21  # products of two numbers from which a call into a library pays
_ROWS, _NOT_TRANSPOSED, _TRANSPOSED = 101, 111, 112  # CBLAS's numbers
_NAMES = {float32: "cblas_sgemm", float64: "cblas_dgemm"}


@lru_cache(maxsize=1)
def carried() -> ctypes.CDLL | None:
    """NumPy's own BLAS, if it brings one."""
    package = os.path.dirname(np.__file__)
    for folder in (f"{package}.libs", os.path.join(package, ".dylibs")):
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        for name in names:
            if "openblas" in name:
                try:
                    return ctypes.CDLL(os.path.join(folder, name))
                except OSError:
                    continue
    return None


@lru_cache(maxsize=4)
def function(dtype: DType) -> Any:
    """The library's product of matrices of a dtype with 64-bit sizes, or None."""
    library, name = carried(), _NAMES.get(dtype)
    found = getattr(library, f"scipy_{name}64_", None) if library is not None and name else None
    if found is not None:
        number = ctypes.c_float if dtype is float32 else ctypes.c_double
        word, place = ctypes.c_int64, ctypes.c_void_p
        found.argtypes = [*[ctypes.c_int] * 3, word, word, word, number, place, word, place, word,
                          number, place, word]  # fmt: skip
        found.restype = None
    return found


@dataclass(frozen=True, slots=True)
class Matrix:
    """Where a matrix lies: param, turning, step between rows, and a place for each product."""

    param: int
    transposed: int
    step: int
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlasGemm:
    """A host step: products of matrices that lie in memory as the library wants them."""

    dtype: DType
    sizes: tuple[int, int, int]  # rows, columns, depth
    left: Matrix
    right: Matrix
    result: Matrix

    def __call__(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: dict[str, int]
    ) -> None:
        """Compute all products of a batch."""
        buffers: list[Any] = [*inputs, *outputs]
        call, size = function(self.dtype), self.dtype.itemsize
        a, b, c = [buffers[m.param].array for m in (self.left, self.right, self.result)]
        places = zip(self.left.places, self.right.places, self.result.places, strict=True)
        for first, second, third in places:
            call(
                _ROWS, self.left.transposed, self.right.transposed, *self.sizes, 1.0,
                a.ctypes.data + first * size, self.left.step,
                b.ctypes.data + second * size, self.right.step, 0.0,
                c.ctypes.data + third * size, self.result.step,
            )  # fmt: skip


def product(kernel: Kernel) -> BlasGemm | None:
    """The library's way to run a kernel, if it may and can; with search on, if that chose it."""
    options = current()
    if options.deterministic or options.exact:
        return None
    if isinstance(kernel.plan, BlasGemm):
        return kernel.plan
    chosen = options.search and options.fuse
    return found_product(kernel) if not chosen or kernel.kind is KernelKind.LIBRARY else None


def propose(kernel: Kernel, table: CostTable) -> Proposal | None:
    """The library as an alternative to our own kernel for a product."""
    if current().deterministic or kernel.kind is not KernelKind.CONTRACT:
        return None
    found = found_product(lower_kernel(kernel))
    if found is None:
        return None
    w = work_of(kernel)
    memory = memory_time(w.bytes, table)
    cost = both(memory, w.products / table.blas_rate + w.packed / table.pack_rate, table)
    return Proposal("library", cost, "the BLAS that NumPy carries", plan=found)


PROVIDERS = (Source("library", propose, deterministic=False),)


def found_product(kernel: Kernel) -> BlasGemm | None:
    """The library's way to run a kernel, if there is one."""
    try:
        found = cpu_problem(merge_axes(kernel.indexed))
    except CannotLower:
        return None
    if found is None or function(found.fold.dtype) is None:
        return None
    sizes = found.count(found.rows), found.count(found.columns), found.count(found.folded)
    store = found.stores[0]
    if sizes[0] * sizes[1] * sizes[2] < LIBRARY_CALL_MULTIPLIES or len(found.stores) > 1:
        return None
    if store.src[0] is not found.fold:
        return None
    above = part(found, found.stores, found.fold)
    if len(above.rows.axes) != 1 or len(above.columns.axes) != 1:
        return None
    left, right = part(found, [found.left]), part(found, [found.right])
    matrices = [
        _factor(found, found.left, left.rows, left.folded),
        _factor(found, found.right, right.folded, right.columns),
        _matrix(found, store, above.rows, above.columns, _NOT_TRANSPOSED),
    ]
    if any(m is None for m in matrices):
        return None
    a, b, c = [m for m in matrices if m is not None]
    return BlasGemm(found.fold.dtype, sizes, a, b, c)


def _factor(c: GemmProblem, root: Node, down: Line, along: Line) -> Matrix | None:
    """A factor as a matrix of so many rows down, transposed or not."""
    own = part(c, [root])
    for first, second, transposed in ((down, along, _NOT_TRANSPOSED), (along, down, _TRANSPOSED)):
        folded = second.axes == own.folded.axes
        plain = is_dense(own, root, first if folded else second, "folded" if folded else "own")
        if root.dtype is c.fold.dtype and plain:
            return _matrix(c, root, first, second, transposed)
    return None


def _matrix(c: GemmProblem, node: Node, down: Line, along: Line, transposed: int) -> Matrix | None:
    """The matrix at the index of a load or store, with numbers next to each other `along` it."""
    number, (start, terms) = node.arg[:2]
    if not all(isinstance(atom, int) for atom, _ in terms):
        return None
    steps = dict(terms)
    step = steps.get(down.axes[0], 0)
    if steps.get(along.axes[0]) != 1 or step < along.sizes[0]:
        return None
    moves = [[steps.get(axis, 0) * i for i in range(c.sizes[axis])] for axis in c.batch]
    return Matrix(number, transposed, step, tuple(start + sum(at) for at in every(*moves)))
