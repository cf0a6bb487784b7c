"""How much quicker cuBLASLt is than our own products, by class of problem, as measured.

In: a product. Out: a `Gain`; above 1 the library is quicker. The classes are those of the machine's
table (`GpuTable.library_gains`): the kind of sum, most rows, most elements of the right operand,
most tiles, most steps of the sum, then the factor and the least time that ours take; the first that
holds counts. They are about means over the products of bench/results/cublaslt.md, rounded down; of
what was not measured nothing is claimed. To be measured again whenever our own products change.
"""

from __future__ import annotations

from typing import NamedTuple

from .library import Gemm
from .tiling import GpuTable


class Gain(NamedTuple):
    """What is known of a class of products."""

    factor: float  # by which the library is quicker
    least_ns: float  # that ours take, however small

    def cost(self, own: float, more: float) -> float:
        """What the library costs, and what is done beside it, where ours costs `own`."""
        known = max(own, self.least_ns)
        return own * (known / self.factor + more) / known


NOTHING_KNOWN = Gain(1.0, 0.0)


def gain_of(gemm: Gemm, table: GpuTable) -> Gain:
    """How much quicker the library is for a product."""
    columns, rows, depth = gemm.sizes
    small = gemm.left.dtype in ("bfloat16", "float16")
    least_steps = table.library_steps[0 if small and gemm.batches == 1 else 1]
    is_short = gemm.batches * rows * columns * depth < least_steps
    if is_short or not (small or gemm.left.dtype in ("float32", "float64")):
        return NOTHING_KNOWN
    kind = "16 bits" if small else gemm.precision
    tile = table.gluon_tiles[0]
    tiles = gemm.batches * -(-rows // tile[0]) * -(-columns // tile[1])
    known = rows, columns * depth, tiles, depth
    for which, *most, gain, least in table.library_gains:
        limits = zip(known, most, strict=True)
        if which == kind and all([have <= limit for have, limit in limits]):
            return Gain(gain, least)
    return NOTHING_KNOWN
