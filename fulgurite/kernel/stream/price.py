"""What a fold costs, and whether a kernel is one: an alternative among others.

In: a kernel and a table of rates. Out: a proposal, or None for what no fold computes. Time is that
of products at their rate, of blocks walked in whole vectors, and of what must be packed, over
memory as in every kernel (graph/fusion/machine.py). Nothing is written for that: a fold that is not
chosen costs its description alone.
"""

from __future__ import annotations

from ..._lazy import lazy_import
from ...core.ops.index import LOAD
from ...graph.fusion.machine import CostTable, both, memory_time, work_of
from ...graph.fusion.proposals import Proposal
from ...graph.ir.kernel import Kernel
from ...graph.ir.lower import lower
from ...graph.ir.reshape_groups import CannotLower
from ..contract.analysis import DEPTH, Block, reached
from ..transform.merge_axes import merge_axes
from .online import stream
from .roles import FEW, READ, Fold, FoldCut, cut_fold, find_fold, lies_well, up

ENTERED = 40.0  # nanoseconds that a block takes beyond its work


def propose(kernel: Kernel, table: CostTable) -> Proposal | None:
    """A kernel as a fold, and what that costs."""
    try:
        indexed = lower(kernel.body, kernel.inputs)
    except CannotLower:
        return None
    streaming = stream(merge_axes(indexed))
    fold = None if streaming is None else find_fold(streaming)
    if streaming is None or fold is None:
        return None
    cut = cut_fold(fold, Block(9, 3 * 16 * 4 // fold.dtype.itemsize, 16, fold.dtype.itemsize), 256)
    if cut is None:
        return None
    states = ", ".join(f"{s.op} {'row' if s in fold.scalars else 'rows of columns'}"
                       for s in streaming.states)  # fmt: skip
    length = fold.count(streaming.axes)
    what = f"fold over {length} elements, {len(fold.products)} products inside; state: {states}"
    if cut.strips:
        what += f"; {cut.strips} strips of rows"
        cost = lazy_import("kernel.stream.two_pass").strip_time(kernel, fold, cut, table)
    else:
        cost = _time(kernel, fold, cut, table)
    return Proposal("fold", cost, what, streaming.fired, streaming.nodes)


def _time(kernel: Kernel, fold: Fold, cut: FoldCut, table: CostTable) -> float:
    """Nanoseconds of a fold: products at their rate, blocks walked, rows in whole vectors."""
    streaming = fold.streaming
    streamed = frozenset(streaming.axes)
    rows, length = fold.count(fold.rows), fold.count(streaming.axes)
    if cut.along == "rows":
        places = fold.count(fold.batch) * up(rows, 16) * length
    else:
        places = fold.count(fold.batch) * rows * up(length, 16)
    tiles = 1
    if len(fold.matrices) == 1 and not fold.crossed and not streaming.whole:
        tiles = -(-fold.count(fold.columns[0]) // cut.columns[0])
    inside = sum([deep_time(fold.count(p.contraction.folded), table) for p in fold.products])
    beside = sum([deep_time(fold.count(m.contraction.columns), table) for m in fold.weighing])
    stops = {s.fold for s in streaming.states} | {p.node for p in fold.products}
    bodies = [s.body for s in fold.scalars] + [m.weights for m in fold.weighing]
    bodies += [store.src[0] for store in streaming.whole]
    turned = {c.left for c in fold.turned}
    walked = 4 * len(turned) + 4 * len(streaming.whole)
    strided = 0
    for node in reached(bodies, frozenset(stops)):
        if node in stops or not fold.free[node] & streamed:
            continue
        walked += node.op.cost
        if node.op is LOAD and fold.free[node] & frozenset(fold.rows):
            strided += (fold.rows[-1], 1) not in node.arg[1][1] and node not in turned
    walked += 2 * len(fold.scalars)
    alone = not fold.products and not fold.matrices  # rows that a plain kernel walks in registers
    rate = table.simple / 2 if alone else table.walked
    arithmetic = places * (inside * tiles + beside
                           + tiles * (walked / rate + strided / table.strided))  # fmt: skip
    if fold.skips:
        blocks = min(-(-length // cut.steps), -(-rows // cut.rows))
        arithmetic *= (1 + 1 / blocks) / 2  # about half of the blocks are left out
    moved: float = work_of(kernel).bytes
    for m in fold.crossed:  # sums of parts are written, read, and put together
        numbers = fold.count(fold.batch) * length * fold.count(m.contraction.columns)
        moved += 3 * cut.parts * numbers * fold.dtype.itemsize
    memory = memory_time(moved, table)
    arithmetic += _packed(fold, cut, tiles) / table.packed
    entered = fold.count(fold.batch) * -(-rows // cut.rows) * -(-length // cut.steps)
    return both(memory, arithmetic + ENTERED * entered, table)


def deep_time(depth: int, table: CostTable) -> float:
    """Nanoseconds of so many products: many in a row go as fast as in a contraction."""
    share = min(1.0, depth / DEPTH)
    return 2 * depth / (share * table.products + (1 - share) * table.folded)


def _packed(fold: Fold, cut: FoldCut, tiles: int) -> int:
    """Numbers that are put in order for microkernels."""
    batch, length = fold.count(fold.batch), fold.count(fold.streaming.axes)
    tall = -(-fold.count(fold.rows) // cut.rows)
    found = 0
    for p in fold.products:
        depth = fold.count(p.contraction.folded)
        found += batch * fold.count(fold.rows) * depth
        dotted = fold.count(fold.rows) <= FEW and lies_well(p)
        if not dotted and (cut.along == "streamed" or not lies_well(p)):
            straight = p.keys.op is LOAD and (fold.streaming.axes[-1], 1) in p.keys.arg[1][1]
            if not straight or min(cut.rows, fold.count(fold.rows)) > READ:
                found += batch * tall * tiles * length * depth // (3 if straight else 1)
    for m, columns in zip(fold.matrices, fold.columns, strict=True):
        if fold.count(columns) > 512 or m.values.op is not LOAD:
            found += batch * length * fold.count(columns)
    return found
