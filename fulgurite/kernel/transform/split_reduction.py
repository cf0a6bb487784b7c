"""Parallel reduction: a long fold of few results becomes many blocks that run apart.

In: an `IndexKernel` and how many params it has. Out: a list of parts to be run one after the other,
and the memory that they share, as further params. A fold that would leave most threads idle is two
parts: one writes the fold of each block of its longest axis, one folds the blocks in order. What
needs the fold then loads it, so that later parts, without the fold, have more axes to share out.
The size of a block depends on sizes alone, never on the number of threads. Where a table says
`hoist`, what follows from the folds alone is computed where blocks are combined, and stored
(loop-invariant code motion), and moments about such a value need no second pass. A costly epilogue
of many folds is a part of its own: there its lanes are results, beside the folds it was one at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from math import prod

from ...core.dtype import DType, float32, float64, void
from ...core.lazy_dataclass import dataclass
from ...core.lazy_named_tuple import NamedTuple
from ...core.node import Node, Size, constant, make, toposort
from ...core.ops.elementwise import ADD, CAST, MUL, SUB
from ...core.ops.index import FOLD, LOAD, ORDER, RUN, STORE
from ...core.ops.leaf import SINK
from ...core.passes import show
from ...core.symbolic.sym import varies
from ...graph.ir.affine import Affine
from ...graph.ir.bodies import each_fold, rename_axes, replaced
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes, nearest, walk
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
    seen = walk(kernel.body.src, lambda node: node.src, long)
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
        waiting = self.groups(long)
        vector = self.table.last
        if vector is None:
            vector = vector_axis(order, self.free, self.sizes, self.table.vector)
        last = waiting[-1][0]
        results = frozenset[int]().union(*[self.free[n] for n in self.kernel.body.src])
        while waiting:
            level, group = waiting.pop(0)
            kept = self.free[group[0]]
            moments = self.moments(group, waiting[0][1]) if len(waiting) == 1 else {}
            if moments:
                level, _ = waiting.pop(0)
            where = self.place(kept, vector)
            if level == last and results <= kept:
                values, count = self.split_group(group, moments, where)
                self.done |= values
                self.axes.append(count)
            elif self.table.hoist and not waiting and len(self.axes) == len(self.kernel.axes):
                values, count = self.split_group(group, moments, where)
                self.hoist(order, [f for f in long if self.free[f] == kept], values, count, where)
            else:
                self.store(*self.split_group(group, {}, where, is_flat=True), where)
        return [*self.parts, *self.rest()], self.shared

    def rest(self) -> list[Part]:
        """What no earlier part stores, over values of the folds that were split."""
        left = self.now(*[root for root in self.kernel.body.src if root not in self.stored])
        rest = IndexKernel(tuple(self.axes), SINK(*left), self.kernel.divisions)
        return [Part(rest)] if left else []

    def groups(self, long: Sequence[Node]) -> list[tuple[int, list[Node]]]:
        """Folds over the same axes with the same results that need none of each other, by level."""
        levels = _levels(long)
        found: dict[tuple[int, tuple[int, ...], frozenset[int]], list[Node]] = {}
        for fold in sorted(long, key=levels.__getitem__):
            found.setdefault((levels[fold], fold.arg[1], self.free[fold]), []).append(fold)
        return [(level, group) for (level, *_), group in found.items()]

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
        bodies = SINK(*stores), *self.now(self.kernel.body)
        return [Part(IndexKernel(axes, body, divisions)) for body in bodies], self.shared

    def now(self, *roots: Node) -> tuple[Node, ...]:
        """Nodes with folds that are split replaced by loads of their values."""
        return replaced(roots, self.done)

    def split_group(
        self, group: Sequence[Node], moments: dict[Node, _Moment], where: Affine,
        is_flat: bool = False,
    ) -> tuple[dict[Node, Node], int]:  # fmt: skip
        """A part with the folds of blocks; the folds of those along a further axis, and its size.

        Moments about a value that the group gives are taken about the mean of each block, and moved
        (the parallel axis theorem; Chan, Golub, LeVeque 1979): memory is read once. `is_flat` asks
        for values over all results as the first axis, and the further one as the second.
        """
        folded, kept = group[0].arg[1], self.free[group[0]]
        axis = max(folded, key=lambda a: self.sizes[a])
        results = prod([self.sizes[a] for a in kept])
        total = results * prod([self.sizes[a] for a in folded])
        steps = _steps(self.sizes[axis], total, self.table)
        if moments:
            steps = _even_steps(self.sizes[axis], steps)
        count = -(-self.sizes[axis] // steps)
        block, further = len(self.sizes), 1 if is_flat else len(self.axes)
        inner_terms = ((0, 1),) if is_flat else where[1]
        stores: list[Node] = []
        blocks: dict[Node, Node] = {}  # a fold -> its values in blocks, loaded

        def in_blocks(fold: Node) -> Node:
            if fold not in blocks:
                inner = float32 if fold.dtype.is_small_float else fold.dtype
                memory = self.memory(inner, count * results)
                at = (where[0], (*where[1], (block, results)))
                axes = (*sorted(kept), block)
                (value,) = self.now(fold)
                value = _with_whole_folds(value, axis, block + 1) if fold in group else value
                stores.append(make(STORE, void, (value,), (memory, at, "set", axes)))
                at = (where[0], (*inner_terms, (further, results)))
                blocks[fold] = make(LOAD, inner, (), (memory, at, ()))
            return blocks[fold]

        values = {fold: combined(fold.arg[0], in_blocks(fold), further) for fold in group}
        elements = steps * (total // results // self.sizes[axis])
        for fold, moment in moments.items():
            (about,) = replaced([moment.about], {**self.done, **values})
            moved = moment.moved(fold.arg[1], elements, about, in_blocks)
            values[fold] = combined("add", moved, further, fold.dtype)
        apart = any(n.op is FOLD and block + 1 in n.arg[1] for n in toposort(stores))
        axes = (*self.kernel.axes, count, *[self.sizes[axis]] * apart)
        self.parts.append(Part(
            IndexKernel(axes, SINK(*stores), self.kernel.divisions), {axis: (block, steps)},
        ))  # fmt: skip
        return values, count

    def moments(self, group: Sequence[Node], later: Sequence[Node]) -> dict[Node, _Moment]:
        """Folds of the next group that need no second pass: moments about values of this one."""
        folded, kept = group[0].arg[1], self.free[group[0]]
        size = max([self.sizes[a] for a in folded])
        total = prod([self.sizes[a] for a in (*folded, *kept)])
        if not self.table.hoist or not _even_steps(size, _steps(size, total, self.table)):
            return {}
        found = {}
        for fold in later:
            moment = _moment_of(fold)
            if moment is None or not self.is_about(moment, fold, group[0]):
                return {}
            found[fold] = moment
        return found

    def is_about(self, moment: _Moment, fold: Node, first: Node) -> bool:
        """True if a moment is of the rows of another fold, about a number for each of them."""
        free, kept = self.free, self.free[first]
        return (
            fold.arg[1] == first.arg[1] and free[fold] == kept and free[moment.about] <= kept
            and free[moment.value] >= {*first.arg[1]}
            and all(n.op is not FOLD or n in self.done for n in moment.value.slice)
        )  # fmt: skip

    def store(self, values: dict[Node, Node], count: int, where: Affine) -> None:
        """A part that stores flat values of folds, which are loads from then on."""
        results = prod([self.sizes[a] for a in self.free[next(iter(values))]])
        stores = []
        for fold, value in values.items():
            memory = self.memory(value.dtype, results)
            stores.append(make(STORE, void, (value,), (memory, (0, ((0, 1),)), "set", (0,))))
            self.done[fold] = make(LOAD, fold.dtype, (), (memory, where, ()))
        self.parts.append(Part(IndexKernel((results, count), SINK(*stores), 0)))

    def hoist(
        self, order: Sequence[Node], folds: Sequence[Node], values: dict[Node, Node], count: int,
        where: Affine,
    ) -> None:  # fmt: skip
        """A part for the last folds' values and for what follows from folds and has no other axes
        (loop-invariant code motion)."""
        kept = self.free[folds[0]]
        inside = self.invariant(order, folds, kept)
        moved = self.movable([n for n in order if n.op is STORE], inside, kept)
        self.stored |= set(moved)
        loads = {n: value for n, value in self.done.items() if self.is_split(n)}
        self.done |= values
        stores = [*self.now(*moved)]
        results, axes = prod([self.sizes[a] for a in kept]), tuple(sorted(kept))
        for node in self.used_outside(order, inside):
            if node not in loads:
                memory = self.memory(node.dtype, results)
                stores.append(make(STORE, void, self.now(node), (memory, where, "set", axes)))
                loads[node] = make(LOAD, node.dtype, (), (memory, where, ()))
        axes_now = (*self.kernel.axes, count)
        self.parts.append(Part(IndexKernel(axes_now, SINK(*stores), self.kernel.divisions)))
        self.done = loads  # what was made of others before is made of these now

    def used_outside(self, order: Sequence[Node], inside: set[Node]) -> list[Node]:
        """Of loop-invariant values those that other nodes read."""
        used = {s for n in order if n not in inside and n not in self.stored for s in n.src}
        return [n for n in order if n in inside and n in used]

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


def _with_whole_folds(fold: Node, axis: int, fresh: int) -> Node:
    """A fold of a window, above folds of the whole axis: those have another name for it.

    They are too short to be split (a row's maximum and sum in a softmax above many columns), so
    every block has its own.
    """

    def renamed(inner: Node) -> Node:
        name, axes, *more = inner.arg
        if axis not in axes:
            return inner
        arg = (name, tuple([fresh if a == axis else a for a in axes]), *more)
        body = rename_axes(inner.src[0], {axis: fresh})
        return make(FOLD, inner.dtype, (body, *inner.src[1:]), arg)

    return make(FOLD, fold.dtype, each_fold(fold.src, renamed), fold.arg)


def _steps(size: int, total: int, table: SplitTable) -> int:
    """How many steps of an axis make a block: whole vectors, if there are many."""
    wanted = max(1, min(table.most, -(-total // table.block), -(-size // 16)))
    steps = -(-size // wanted)
    return -(-steps // 64) * 64 if steps > 256 else steps


def _even_steps(size: int, steps: int) -> int:
    """The least number of steps from some on, at most twice as many, in which an axis is even
    blocks, whole vectors if it can; 0 if there is none."""
    found = [n for n in range(steps, 2 * steps + 1) if size % n == 0]
    return min(found, key=lambda n: (n % 32 > 0, n), default=0)


class _Moment(NamedTuple):
    """A sum of differences from a value, or of their squares."""

    value: Node
    about: Node
    is_square: bool

    def moved(
        self, folded: tuple[int, ...], elements: int, about: Node,
        in_blocks: Callable[[Node], Node],
    ) -> Node:  # fmt: skip
        """What a block of so many elements adds, from its moments about its own mean.

        In float64, since offsets may be large beside what is added up.
        """
        dtype = self.value.dtype

        def summed(node: Node) -> Node:
            return make(FOLD, dtype, (node,), ("add", folded))

        def mean(total: Node) -> Node:
            return MUL(total, constant(1 / elements, dtype))

        def wide(node: Node) -> Node:
            return node if dtype is float64 else make(CAST, float64, (node,), float64)

        total = summed(self.value)
        apart = SUB(self.value, mean(total))
        offset = SUB(wide(mean(in_blocks(total))), wide(about))
        first, count = wide(in_blocks(summed(apart))), constant(elements, float64)
        if not self.is_square:
            return ADD(first, MUL(offset, count))
        second = wide(in_blocks(summed(MUL(apart, apart))))
        twice = MUL(MUL(first, offset), constant(2.0, float64))
        return ADD(second, ADD(twice, MUL(MUL(offset, offset), count)))


def _moment_of(fold: Node) -> _Moment | None:
    """A fold as a first or second moment of floats, if it is one."""
    body = fold.src[0]
    is_square = body.op is MUL and body.src[0] is body.src[1]
    apart = body.src[0] if is_square else body
    if fold.arg[0] != "add" or apart.op is not SUB or fold.dtype not in (float32, float64):
        return None
    value, about = apart.src
    return _Moment(value, about, is_square) if apart.dtype is fold.dtype else None


def combined(name: str, value: Node, axis: int, dtype: DType | None = None) -> Node:
    """The values of blocks, folded in order, as a dtype; float32 sums in float64."""
    dtype = dtype or value.dtype
    if name == "add" and value.dtype is float32:
        value = make(CAST, float64, (value,), float64)
    value = make(FOLD, value.dtype, (value,), (name, (axis,)))
    return value if value.dtype is dtype else make(CAST, dtype, (value,), dtype)
