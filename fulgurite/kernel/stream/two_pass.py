"""Strips: folds whose crossed sums need states at their end, cut into strips of rows.

In: a `Fold` that waits (kernel/stream/online.py). Out: how it is cut, or None, and what it costs.
What crossed sums add up is known when all blocks of a row were seen, so rows are walked twice. A
strip of rows keeps its products between both walks, in memory that is a small part of the whole
matrix of products and that the next strip uses again: none is worked out twice. Parts of the
streamed axis are what threads share; how many there are follows from sizes alone. Crossed sums are
added up in the memory of their results, so these must lie there in rows that are next to each
other.
"""

from __future__ import annotations

from ...core.node import Node
from ...core.ops.index import FOLD, LOAD
from ...graph.fusion.machine import CostTable, both, kept_time, memory_time, work_of
from ...graph.ir.kernel import Kernel
from ..contract.analysis import DEPTH, Block, reached
from .axis_names import renamed
from .price import ENTERED, deep_time
from .roles import STEPS, Fold, FoldCut, Matrix, lies_well

MEMORY = 32 << 20  # bytes of products that a strip keeps at most
SHARE = 5  # of all rows, one strip: its products are a small part of the matrix of all of them
STRIPS = 4  # at least, where the rows of so small a part would be few
MOST = 1024  # strips at most: each has phases of its own
FEW, MANY = (
    64,
    96,
)  # rows of a strip: with fewer, all else is read anew too often; more gain nothing
ROOM = 1200 << 10  # bytes of a thread's stack: packed rows and a block's values, nearly all near
UNITS = 16  # parts of the streamed axis that keep threads busy
PART = 512  # elements at least of such a part
LEAST = 32  # elements of a block
CLOSE = 2048  # bytes of a row of values that is read where it is


def cut_strips(fold: Fold, block: Block, deep: int) -> FoldCut | None:
    """Strips for a fold; `deep` is how much of a product's depth is summed at a time."""
    size, lanes, panel = block.bytes, block.lanes, block.panel
    rows, length, batch = _sizes(fold)
    if fold.skips or not fold.products or not _lies_in_rows(fold, lanes):
        return None
    tall = _strip(fold, size, lanes)
    if not tall or rows > MOST * tall:
        return None
    far = any([is_turned(fold, store) for store in fold.streaming.across])
    wanted = STEPS if all(map(lies_well, fold.products)) and not far else 2 * STEPS  # lines of rows
    blocks = max(1, round(length / wanted))
    steps = min(_up(-(-length // blocks), block.height), length)
    while (resident := _resident(fold, block, deep, tall, steps)) is None:
        if steps <= LEAST:
            return None
        steps //= 2
    parts = max(1, min(-(-UNITS // batch), length // PART))
    span = _up(-(-length // parts), steps)
    wide = [_up(fold.count(c), panel) for c in fold.columns]
    return FoldCut(
        tall, steps, tuple(wide), resident, "rows", -(-length // span), span,
        strips=-(-rows // tall),
    )  # fmt: skip


def _resident(
    fold: Fold, block: Block, deep: int, tall: int, steps: int
) -> tuple[bool, ...] | None:
    """Which packed queries are kept for all blocks; None where too much is near already."""
    size, lanes, panel = block.bytes, block.lanes, block.panel
    used = (len(fold.turned) + len(fold.weighing)) * (steps + lanes) * (tall + lanes)
    for m in fold.weighing:
        if not _is_near(fold, m) and packed_keys(fold, m) is None:
            columns = _up(fold.count(m.contraction.columns), panel)
            used += columns * (lanes + (steps if m in fold.matrices else tall))
    for m, store in zip(fold.crossed, fold.streaming.across, strict=True):
        if is_turned(fold, store):  # sums of a block
            used += (steps + lanes) * (fold.count(m.contraction.columns) + 2 * lanes)
    depths = [fold.count(p.contraction.folded) for p in fold.products]
    for p, depth in zip(fold.products, depths, strict=True):
        used += 0 if lies_well(p) else (steps + lanes) * (min(depth, deep) + lanes)
    found = []
    for depth in depths:
        whole = _up(tall, panel) * (_up(depth, lanes) + lanes)
        found.append((used + whole) * size <= ROOM)
        used += whole if found[-1] else _up(tall, panel) * (min(depth, deep) + lanes)
    return tuple(found) if used * size <= ROOM else None


def strip_bytes(fold: Fold, cut: FoldCut) -> int:
    """Bytes of the products of a strip."""
    _, length, batch = _sizes(fold)
    return len(fold.products) * batch * length * _up(cut.rows, 16) * fold.dtype.itemsize


def _strip(fold: Fold, size: int, lanes: int) -> int:
    """Rows of a strip: whole vectors, as many as memory allows."""
    rows, length, batch = _sizes(fold)
    part = max(rows // SHARE, FEW if rows >= STRIPS * FEW else 0)
    most = min(MEMORY // (len(fold.products) * batch * length * size), part, MANY)
    most = most // lanes * lanes
    return max(FEW, _up(-(-rows // -(-rows // most)), lanes)) if most >= FEW else 0


def _sizes(fold: Fold) -> tuple[int, int, int]:
    return fold.count(fold.rows), fold.count(fold.streaming.axes), fold.count(fold.batch)


def _is_near(fold: Fold, m: Matrix) -> bool:
    """Are values memory that is read where it is?"""
    columns = m.contraction.columns
    if m.values.op is not LOAD or (columns[-1], 1) not in m.values.arg[1][1]:
        return False
    return fold.count(columns) * fold.dtype.itemsize <= CLOSE


def packed_keys(fold: Fold, m: Matrix) -> int | None:
    """The product whose packed keys are the values of a sum with columns too, if there is one."""
    for number, p in enumerate(fold.products):
        one = len(m.contraction.columns) == len(p.contraction.folded) == 1
        if one and not lies_well(p) and fold.count(p.contraction.folded) <= DEPTH:
            names = dict(zip(m.contraction.columns, p.contraction.folded, strict=True))
            if renamed(m.values, names) is p.keys:
                return number
    return None


def is_turned(fold: Fold, store: Node) -> bool:
    """Does the memory of a crossed result run along the streamed axis?"""
    return (fold.streaming.axes[-1], 1) in store.arg[1][1]


def _lies_in_rows(fold: Fold, lanes: int) -> bool:
    """Are results of crossed sums memory that these can be added up in?"""
    for m, store in zip(fold.crossed, fold.streaming.across, strict=True):
        columns, steps = m.contraction.columns, dict(store.arg[1][1])
        whole = len(columns) == len(fold.streaming.axes) == 1
        if not whole or not all(isinstance(a, int) for a in steps):
            return False
        straight = steps[columns[0]] == 1 and fold.count(columns) % lanes == 0
        if not (straight or is_turned(fold, store)) or store.src[0].dtype is not fold.dtype:
            return False
        if any(n.op is FOLD and n is not m.state.fold for n in reached([store], (m.state.fold,))):
            return False
    return True


def strip_time(kernel: Kernel, fold: Fold, cut: FoldCut, table: CostTable) -> float:
    """Nanoseconds of a fold in strips: products at their rate, two walks, what strips read anew."""
    rows, length, batch = _sizes(fold)
    places = batch * _up(rows, 16) * length
    streamed = frozenset(fold.streaming.axes)
    deep = [fold.count(p.contraction.folded) for p in fold.products]
    deep += [fold.count(m.contraction.columns) for m in fold.weighing]
    stops = {s.fold for s in fold.streaming.states} | {p.node for p in fold.products}
    stops |= fold.constants
    turned = {c.left for c in fold.turned}
    walked = 8 * len(turned)
    for roots in ([s.body for s in fold.scalars], [m.weights for m in fold.weighing]):
        for node in reached(roots, stops):
            if node not in stops and fold.free[node] & streamed:
                walked += node.op.cost
    walked += 2 * len(fold.scalars)
    arithmetic = places * (sum([deep_time(d, table) for d in deep]) + walked / table.walked)
    packed = sum([0 if lies_well(p) else d for p, d in zip(fold.products, deep, strict=False)])
    packed += sum(
        [
            fold.count(m.contraction.columns)
            for m in fold.matrices
            if not _is_near(fold, m) and packed_keys(fold, m) is None
        ]
    )
    packed += sum([
        2 * fold.count(m.contraction.columns)
        for m, store in zip(fold.crossed, fold.streaming.across, strict=True)
        if is_turned(fold, store)
    ])  # fmt: skip
    arithmetic += cut.strips * batch * length * packed / table.packed
    entered = batch * cut.strips * -(-length // cut.steps)
    size = fold.dtype.itemsize
    again = sum([batch * length * fold.count(p.contraction.folded) for p in fold.products])
    again += sum([2 * batch * length * fold.count(m.contraction.columns) for m in fold.crossed])
    moved = work_of(kernel).bytes + (cut.strips - 1) * again * size
    moved += 2 * len(fold.products) * places * size
    time = both(memory_time(moved, table), arithmetic + ENTERED * entered, table)
    return time + kept_time([strip_bytes(fold, cut)], table)


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
