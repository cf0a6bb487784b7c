"""How much quicker cuBLASLt is than our own products, by class of problem, as measured.

In: a product. Out: a factor; above 1 the library is quicker. The classes are those of the machine's
table (`GpuTable.library_gains`): most rows, most elements of the right operand, most tiles, most
steps of the sum, and the factor, of which the first that holds counts. They are means over the
products of bench/results/cublaslt.md, of 16 bits and not batched; of others nothing is claimed.
"""

from __future__ import annotations

from .library import Gemm
from .tiling import GpuTable

SMALL = ("bfloat16", "float16")


def gain_of(gemm: Gemm, table: GpuTable) -> float:
    """By what factor the library is quicker for a product; 1.0 where nothing is recorded."""
    columns, rows, depth = gemm.sizes
    if gemm.left.dtype not in SMALL or gemm.batches > 1 or columns < table.library_columns:
        return 1.0
    tiles = -(-rows // table.gluon_tiles[0][0]) * -(-columns // table.gluon_tiles[0][1])
    known = rows, columns * depth, tiles, depth
    for *most, gain in table.library_gains:
        if all(have <= limit for have, limit in zip(known, most, strict=True)):
            return gain
    return 1.0
