"""What transforms of kernels are told of the machine: each target's table fills these in.

Nothing here has a value of its own. A transform takes the table it needs as an argument.
"""

from __future__ import annotations

from ...core.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class VectorTable:
    """Costs of vectors, in rows of memory: one vector that is loaded or stored whole."""

    lanes: int  # of a vector; what is longer fills most of several
    near_steps: int  # between lanes that are read as whole rows
    gather_rows: int  # that cost as much as lanes at places of their own
    reduce_rows: int  # that cost as much as reducing the lanes of a vector


@dataclass(frozen=True, slots=True)
class UnrollTable:
    """How much text unrolling may make."""

    axis_steps: int  # of a short axis that are worth a copy each
    copies: int  # of a kernel
    nodes: int  # in all copies together
    outputs: int  # reductions that run together: their accumulators stay in registers
    output_nodes: int  # of all of them
    shared_nodes: int  # the same where much of the work is shared


@dataclass(frozen=True, slots=True)
class SplitTable:
    """Which reductions are split, and in how many blocks."""

    vector: VectorTable
    enough: int  # units of work that keep the machine busy
    short: int  # elements of one reduction that are not worth it
    long: int  # elements that are worth sharing out
    block: int  # elements of a block, at least
    most: int  # blocks
    unit_elements: int = 1  # of the vector axis that make one unit of work
    units: int | None = None  # that the kernel has as it is, where the target knows better
    last: int | None = None  # the axis along which parts are contiguous, where the target knows
    hoist: bool = False  # what follows from folds alone is computed once, where blocks are combined
    costly: int | None = None  # additions an element that make short units worth it; None: never
    epilogue: int | None = None  # additions after folds, of all results, worth a part; None: never
