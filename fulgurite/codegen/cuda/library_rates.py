"""How much quicker cuBLASLt is than our own products, by class of problem, as measured.

In: a product. Out: a `Gain`; above 1 the library is quicker. The classes are those of the machine's
table (`GpuTable.library_gains`): the kind of sum, most rows, most elements of the right operand,
most tiles, most steps of the sum, then the factor and the least time that ours take; the first that
holds counts. They are about means over the products of bench/results/cublaslt.md, rounded down; of
what was not measured nothing is claimed. To be measured again whenever our own products change.
"""

from __future__ import annotations

from typing import NamedTuple

from .library import Gemm, Matrix
from .tiling import GpuTable

WIDTHS = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}


class Gain(NamedTuple):
    """What is known of a class of products."""

    factor: float  # by which the library is quicker
    least_ns: float  # that ours take, however small

    def cost(self, own: float, more: float) -> float:
        """What the library costs, and what is done beside it, where ours costs `own`."""
        known = max(own, self.least_ns)
        return own * (known / self.factor + more) / known


NOTHING_KNOWN = Gain(1.0, 0.0)


def gain_of(gemm: Gemm, table: GpuTable, has_epilogue: bool = False) -> Gain:
    """How much quicker the library is for a product, alone or with an epilogue behind it."""
    columns, rows, depth = gemm.sizes
    if not all([_is_aligned(one, table) for one in (gemm.left, gemm.right, gemm.result)]):
        return NOTHING_KNOWN
    small = gemm.left.dtype in ("bfloat16", "float16")
    least_steps = table.library_steps[0 if small and gemm.batches == 1 else 1]
    is_short = gemm.batches * rows * columns * depth < least_steps
    if is_short:
        return NOTHING_KNOWN
    if small and has_epilogue and rows > table.library_epilogue_rows:
        return NOTHING_KNOWN  # of those that were timed, half gained nothing
    kind = "16 bits" if small else gemm.precision
    if gemm.is_float8:
        kind = "8 bits"
    tile = table.gluon_tiles[0]
    tiles = gemm.batches * -(-rows // tile[0]) * -(-columns // tile[1])
    known = rows, columns * depth, tiles, depth
    for which, *most, gain, least in table.library_gains:
        limits = zip(known, most, strict=True)
        if which == kind and all([have <= limit for have, limit in limits]):
            return Gain(gain, least)
    return NOTHING_KNOWN


def _is_aligned(matrix: Matrix, table: GpuTable) -> bool:
    """True if all columns of a matrix begin at multiples of 16 bytes, as all that were timed."""
    width = WIDTHS.get(matrix.dtype, 1)
    steps = matrix.offset, matrix.step * width, matrix.stride * width
    return not any([step % table.tma_bytes for step in steps])
