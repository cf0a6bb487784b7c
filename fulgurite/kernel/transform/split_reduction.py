"""Parallel reduction: a long fold of few results becomes many blocks that run apart.

In: an `IndexKernel` and how many params it has. Out: a list of parts to be run one after the other,
and the memory that they share, as further params. A fold that would leave most threads idle is two
parts: one writes the fold of each block of its longest axis, one folds the blocks in order. What
needs the fold then loads it, so that later parts, without the fold, have more axes to share out.
The size of a block depends on sizes alone, never on the number of threads. Where a table says
`hoist`, what follows from the folds alone is a part of its own, and stored (loop-invariant code
motion). A costly epilogue of many folds is a part of its own too: there its lanes are results,
beside the folds it was one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from math import prod
from typing import NamedTuple

from ...core.dtype import DType, float32, float64, void
from ...core.lazy_dataclass import dataclass
from ...core.node import Node, Size, make, toposort
from ...core.ops.elementwise import CAST
from ...core.ops.index import FOLD, LOAD, ORDER, RUN, STORE
from ...core.ops.leaf import SINK
from ...core.passes import show
from ...core.symbolic.sym import varies
from ...graph.ir.affine import Affine
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes, nearest
from .tables import SplitTable
from .vector_axis import Free, grid_axes, vector_axis


@dataclass(frozen=True, slots=True)
class Part:
    """A kernel that is a part of another; a window is (block axis, steps of a block)."""

    kernel: IndexKernel
    windows: dict[int, tuple[int, int]] = field(default_factory=dict)


Shared = list[tuple[DType, int]]  # dtype and number of elements


class Split(NamedTuple):
    """A kernel with the dtypes of its params, in parts that run one after the other."""

    kernel: IndexKernel
    dtypes: tuple[DType, ...]
    parts: list[Part]
    shared: Shared  # memory between the parts

    def __str__(self) -> str:
        return "\n".join([show(part.kernel.body) for part in self.parts])


def split_typed(kernel: IndexKernel, dtypes: tuple[DType, ...], table: SplitTable) -> Split:
    """A kernel with few results of many elements in parts that share the work out."""
    return Split(kernel, dtypes, *split(kernel, len(dtypes), table))


def split(kernel: IndexKernel, params: int, table: SplitTable) -> tuple[list[Part], Shared]:
    """The parts of a kernel, itself alone if there is nothing to split."""
    order = [n for n in toposort([kernel.body]) if n.op is not SINK]
    sizes = [n for n in kernel.axes if isinstance(n, int)]
    folds = [n for n in order if n.op is FOLD]
    if not folds or len(sizes) < len(kernel.axes) or _has_order(order):
        return [Part(kernel)], []
    free = free_axes(order)
    long = [f for f in folds if _is_long(f, free, sizes, table)]
    splitter = _Splitter(kernel, sizes, free, params, table)
    if not long or units(order, free, sizes, table) >= _enough(kernel, long, free, table):
        ends = _before_epilogue(kernel, order, free, sizes, table)
        return splitter.split_epilogue(ends) if ends else ([Part(kernel)], [])
    return splitter.split(order, long)


def _has_order(order: Sequence[Node]) -> bool:
    """True of scans and sorts, whose steps follow each other."""
    return any(n.op in (RUN, ORDER) for n in order)


def units(order: Sequence[Node], free: Free, sizes: Sequence[int], table: SplitTable) -> int:
    """How many units of work a kernel has as it is."""
    if table.units is not None:
        return table.units
    grid, vector = grid_axes(order, free), vector_axis(order, free, sizes, table.vector)
    others = prod([sizes[a] for a in grid if a != vector])
    if vector not in grid:
        return others
    most = unit_elements(order, free, sizes, table, sizes[vector], others)
    return others * -(-sizes[vector] // most)


def unit_elements(
    order: Sequence[Node], free: Free, sizes: Sequence[int], table: SplitTable, size: int,
    units: int,
) -> int:  # fmt: skip
    """Elements of a unit along a vector axis of some size: of folds that are costly fewer, where
    `units` along other axes are too few. Short pieces of rows cost little beside the work."""
    folds = any(n.op is FOLD for n in order)
    if table.costly is None or not folds or any(map(varies, sizes)):
        return table.unit_elements
    work = [(n.op.cost, prod([sizes[a] for a in free[n]])) for n in order]
    total, most = sum([cost * count for cost, count in work]), max([n for _, n in work], default=0)
    if total <= table.costly * most:
        return table.unit_elements
    parts = min(table.enough, total // table.block)  # each worth a task
    least = 2 * table.vector.lanes
    pieces = max(1, parts // max(1, units))
    return min(table.unit_elements, -(-size // (pieces * least)) * least)


def _enough(kernel: IndexKernel, long: Sequence[Node], free: Free, table: SplitTable) -> int:
    """Units from which folds stay whole: few where costly values that they take in are results too.

    Parts share no such values, and would compute them twice.
    """
    if table.costly is None:
        return table.enough
    inside = {
        n for fold in long for n in fold.slice if n is not fold and free[n] >= set(fold.arg[1])
    }  # fmt: skip
    seen: dict[Node, None] = {}
    stack = list(kernel.body.src)
    while stack:
        node = stack.pop()
        if node not in seen and node not in long:
            seen[node] = None
            stack += node.src
    twice = sum([n.op.cost for n in seen if n in inside]) > table.costly
    return table.enough // 4 if twice else table.enough


def _before_epilogue(
    kernel: IndexKernel, order: Sequence[Node], free: Free, sizes: Sequence[int], table: SplitTable
) -> list[Node]:
    """The folds that a costly epilogue is computed from, one number at a time; or none.

    Each store has one element for each of the folds, whose lanes are not along the results.
    """
    stores, grid = kernel.body.src, frozenset(grid_axes(order, free))
    if table.epilogue is None or any(n.op is not STORE or free[n] != grid for n in stores):
        return []
    ends = nearest(kernel.body, lambda node: node.op is FOLD)
    if any(free[f] != grid or f.dtype.is_small_float for f in ends):
        return []
    if vector_axis(order, free, sizes, table.vector) in grid:
        return []
    cost = _cost_outside(ends, order, free) * prod([sizes[a] for a in grid])
    return ends if cost >= table.epilogue else []


def _cost_outside(folds: Sequence[Node], order: Sequence[Node], free: Free) -> int:
    """What one result costs beyond some folds: its epilogue."""
    inside = {node for fold in folds for node in (fold, *fold.slice)}
    return sum([n.op.cost for n in order if n not in inside and free[n]])


def _is_long(fold: Node, free: Free, sizes: Sequence[int], table: SplitTable) -> bool:
    count: int = prod([sizes[a] for a in fold.arg[1]])
    return count >= table.short and count * prod([sizes[a] for a in free[fold]]) >= table.long


def _levels(folds: Sequence[Node]) -> dict[Node, int]:
    """How many of some folds, given sources first, are above each other below each, with it."""
    found: dict[Node, int] = {}
    for fold in folds:
        below = set(fold.slice) - {fold}
        found[fold] = 1 + max([found[f] for f in found if f in below], default=0)
    return found


class _Splitter:
    def __init__(
        self, kernel: IndexKernel, sizes: list[int], free: Free, params: int, table: SplitTable
    ) -> None:
        self.kernel, self.sizes, self.free, self.params = kernel, sizes, free, params
        self.table = table
        self.axes: list[Size] = list(kernel.axes)  # of the last part
        self.shared: Shared = []
        self.parts: list[Part] = []
        self.done: dict[Node, Node] = {}  # a node of the kernel -> what stands for it now
        self.stored: set[Node] = set()  # stores of the kernel that an earlier part does

    def split(self, order: Sequence[Node], long: Sequence[Node]) -> tuple[list[Part], Shared]:
        levels = _levels(long)
        groups: dict[tuple[int, tuple[int, ...], frozenset[int]], list[Node]] = {}
        for fold in sorted(long, key=levels.__getitem__):
            groups.setdefault((levels[fold], fold.arg[1], self.free[fold]), []).append(fold)
        vector = self.table.last
        if vector is None:
            vector = vector_axis(order, self.free, self.sizes, self.table.vector)
        last = max(levels.values())
        results = frozenset[int]().union(*[self.free[n] for n in self.kernel.body.src])
        for (level, _, kept), group in groups.items():
            self.split_group(group, vector, level == last and results <= kept)
        if self.table.hoist and len(self.axes) == len(self.kernel.axes):
            self.hoist(order, [f for f in long if self.free[f] == kept], self.place(kept, vector))
        left = [self.now(root) for root in self.kernel.body.src if root not in self.stored]
        rest = IndexKernel(tuple(self.axes), SINK(*left), self.kernel.divisions)
        return [*self.parts, Part(rest)] if left else self.parts, self.shared

    def split_epilogue(self, folds: Sequence[Node]) -> tuple[list[Part], Shared]:
        """The folds, then all that is computed from them."""
        kept = self.free[folds[0]]
        where, count = self.place(kept, None), prod([self.sizes[a] for a in kept])
        stores = []
        for fold in folds:
            memory = self.memory(fold.dtype, count)
            stores.append(make(STORE, void, (fold,), (memory, where, "set", tuple(sorted(kept)))))
            self.done[fold] = make(LOAD, fold.dtype, (), (memory, where, ()))
        axes, divisions = self.kernel.axes, self.kernel.divisions
        bodies = SINK(*stores), self.now(self.kernel.body)
        return [Part(IndexKernel(axes, body, divisions)) for body in bodies], self.shared

    def now(self, root: Node, done: dict[Node, Node] | None = None) -> Node:
        """A node with folds that are split replaced by loads of their values."""
        done = self.done if done is None else done
        for node in toposort([root]):
            if node not in done:
                sources = tuple([done[s] for s in node.src])
                same = all(a is b for a, b in zip(sources, node.src, strict=True))
                done[node] = node if same else make(node.op, node.dtype, sources, node.arg)
        return done[root]

    def split_group(self, group: Sequence[Node], vector: int | None, at_end: bool) -> None:
        """The folds of blocks, then the folds of those: `at_end` says in the last part."""
        folded, kept = group[0].arg[1], self.free[group[0]]
        axis = max(folded, key=lambda a: self.sizes[a])
        results = prod([self.sizes[a] for a in kept])
        total = results * prod([self.sizes[a] for a in folded])
        steps = _steps(self.sizes[axis], total, self.table)
        count = -(-self.sizes[axis] // steps)
        block = len(self.sizes)
        where = self.place(kept, vector)
        blocks, combined = [], []
        for fold in group:
            inner = float32 if fold.dtype.is_small_float else fold.dtype
            partial = self.memory(inner, count * results)
            at = (where[0], (*where[1], (block, results)))
            axes = (*sorted(kept), block)
            blocks.append(make(STORE, void, (self.now(fold),), (partial, at, "set", axes)))
            if at_end:
                at = (where[0], (*where[1], (len(self.axes), results)))
                self.done[fold] = _combined(fold.arg[0], inner, partial, at, len(self.axes))
                continue
            final = self.memory(inner, results)
            value = _combined(fold.arg[0], inner, partial, (0, ((0, 1), (1, results))), 1)
            combined.append(make(STORE, void, (value,), (final, (0, ((0, 1),)), "set", (0,))))
            self.done[fold] = make(LOAD, fold.dtype, (), (final, where, ()))
        self.parts.append(Part(
            IndexKernel((*self.kernel.axes, count), SINK(*blocks), self.kernel.divisions),
            {axis: (block, steps)},
        ))  # fmt: skip
        if at_end:
            self.axes.append(count)
        else:
            self.parts.append(Part(IndexKernel((results, count), SINK(*combined), 0)))

    def hoist(self, order: Sequence[Node], folds: Sequence[Node], where: Affine) -> None:
        """A part for what is computed from folds and has no other axes (loop-invariant code)."""
        kept = self.free[folds[0]]
        inside = self.invariant(order, folds, kept)
        moved = self.movable([n for n in order if n.op is STORE], inside, kept)
        self.stored |= set(moved)
        stores = [self.now(n) for n in moved]
        results, axes = prod([self.sizes[a] for a in kept]), tuple(sorted(kept))
        loads = {n: value for n, value in self.done.items() if self.is_split(n)}
        for node in self.used_outside(order, inside):
            memory = self.memory(node.dtype, results)
            stores.append(make(STORE, void, (self.now(node),), (memory, where, "set", axes)))
            loads[node] = make(LOAD, node.dtype, (), (memory, where, ()))
        if stores:
            body = IndexKernel(self.kernel.axes, SINK(*stores), self.kernel.divisions)
            self.parts.append(Part(body))
            self.done = loads  # what was made of others before is made of these now

    def used_outside(self, order: Sequence[Node], inside: set[Node]) -> list[Node]:
        """Of loop-invariant values, but folds, those that other nodes read."""
        used = {s for n in order if n not in inside and n not in self.stored for s in n.src}
        return [n for n in order if n in inside and n in used and n.op is not FOLD]

    def movable(
        self, stores: Sequence[Node], inside: set[Node], kept: frozenset[int]
    ) -> list[Node]:
        """The kernel's own stores that may be done there.

        None where all have the same axes: those may write over what others read.
        """
        if len({n.arg[3] for n in stores}) == 1:
            return []
        params = [n.arg[0] for n in stores]
        return [
            n for n in stores
            if frozenset(n.arg[3]) == kept and n.arg[2] == "set"
            and params.count(n.arg[0]) == 1 and inside.issuperset(n.src)
        ]  # fmt: skip

    def invariant(
        self, order: Sequence[Node], folds: Sequence[Node], kept: frozenset[int]
    ) -> set[Node]:
        """What is computed from these folds, inputs and earlier folds, with no other axes."""
        inside = set(folds)
        alone = {n for n in order if self.is_split(n)} - inside
        for node in order:
            if node.op in (FOLD, STORE) or not self.free[node] <= kept:
                continue
            needs = set(node.src)
            if needs <= alone:
                alone.add(node)
            elif needs <= alone | inside:
                inside.add(node)
        return inside

    def is_split(self, node: Node) -> bool:
        """True if a fold is a load by now."""
        return node.op is FOLD and node in self.done and self.done[node].op is LOAD

    def place(self, kept: frozenset[int], vector: int | None) -> Affine:
        """Where the results are: row-major over the axes they have, the vector axis last."""
        order = sorted(kept, key=lambda a: (a == vector, a))
        terms: list[tuple[int, int]] = []
        step = 1
        for axis in reversed(order):
            terms.append((axis, step))
            step *= self.sizes[axis]
        return 0, tuple(sorted(terms))

    def memory(self, dtype: DType, count: int) -> int:
        self.shared.append((dtype, count))
        return self.params + len(self.shared) - 1


def _steps(size: int, total: int, table: SplitTable) -> int:
    """How many steps of an axis make a block: whole vectors, if there are many."""
    wanted = max(1, min(table.most, -(-total // table.block), -(-size // 16)))
    steps = -(-size // wanted)
    return -(-steps // 64) * 64 if steps > 256 else steps


def _combined(name: str, dtype: DType, partial: int, at: Affine, axis: int) -> Node:
    """The blocks of each result, folded in order; float32 sums in float64."""
    value = make(LOAD, dtype, (), (partial, at, ()))
    wide = name == "add" and dtype is float32
    if wide:
        value = make(CAST, float64, (value,), float64)
    value = make(FOLD, value.dtype, (value,), (name, (axis,)))
    return make(CAST, float32, (value,), float32) if wide else value
