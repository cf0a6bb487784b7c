"""Rows and sums of their columns in one launch, with a second one that combines the sums.

In: a kernel some of whose results are rows that it reduces along (a normalisation's gradient) and
others sums over all rows of values that those have in registers (the gradients of scale, shift and
bias). Out: two parts. Programs walk a block of rows each: they store rows, and add columns to
accumulators, whose sums they leave to the second part. It folds those in the order of blocks and
does what follows; so memory is read once, results are stored that other programs read only when
all have run, and the order of sums follows from sizes alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations, product
from typing import NamedTuple

from ...core.dtype import DType, float32, void
from ...core.node import Node, make, toposort
from ...core.ops.index import FOLD, GUARD, LOAD, ORDER, RUN, STORE
from ...core.ops.leaf import SINK
from ...graph.ir.affine import Affine
from ...graph.ir.bodies import replaced
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes, is_scatter
from ...kernel.transform.share_axes import renamed
from ...kernel.transform.split_reduction import Part, combined
from .analysis import fixed_axes, live_roots
from .program import TileProgram, Tiling
from .scope import Scope
from .spelling import computing, rounded
from .tiling import GpuTable, power

Free = Mapping[Node, frozenset[int]]


class Joined(NamedTuple):
    """The launch of rows, the part of columns, and the partial sums between them."""

    rows: Part
    columns: Part
    shared: list[tuple[DType, int]]
    tiling: Tiling


class _Roles(NamedTuple):
    """Which axis is what, and which roots and folds are of columns."""

    row: int
    column: int
    inside: list[Node]  # roots of rows
    outside: list[Node]  # roots of columns
    sums: list[Node]


def with_one_column(kernel: IndexKernel) -> IndexKernel:
    """The kernel with one name for the axis along which rows are reduced and stored.

    A reduction of rows is lowered with the names that sums of columns gave its elements; where its
    result meets them again they have names of their own. Nothing may be captured: below a fold over
    one of the names, even of values that do not depend on it, there is no other.
    """
    order = [n for n in toposort([kernel.body]) if n.op is not SINK]
    free = free_axes(order)
    apart = [*free.values(), *_below_folds(order, free)]
    folded = frozenset([a for n in order if n.op is FOLD for a in n.arg[1]])
    stored = frozenset([a for n in order if n.op is STORE for a in n.arg[3]]) - folded
    for mine, other in product(sorted(stored), sorted(folded)):
        same = kernel.axes[mine] == kernel.axes[other]
        if same and not any({mine, other} <= axes for axes in apart):
            names = {mine: other}
            return kernel._replace(body=SINK(*[renamed(root, names) for root in kernel.body.src]))
    return kernel


def _below_folds(order: Sequence[Node], free: Free) -> list[frozenset[int]]:
    """The axes that are bound or used below each fold."""
    return [free[n.src[0]].union(n.arg[1]) for n in order if n.op is FOLD]


def join_rows(kernel: IndexKernel, params: int, table: GpuTable) -> Joined | None:
    """A kernel in this form, if it is one."""
    roles = _roles(kernel) if table.joined_sums else None
    if roles is None:
        return None
    sizes = fixed_axes(kernel)
    rows, columns = sizes[roles.row], sizes[roles.column]
    if power(columns) * table.joined_rows > table.row_block:
        return None
    steps = -(-rows // (table.processors * table.joined_programs))
    steps = -(-steps // table.joined_rows) * table.joined_rows
    block, count = len(sizes), -(-rows // steps)
    if count < 2:
        return None
    place: Affine = (0, ((roles.column, 1), (block, columns)))
    shared: list[tuple[DType, int]] = []
    stores: list[Node] = []
    done: dict[Node, Node] = {}
    for fold in roles.sums:
        held = float32 if fold.dtype.is_small_float else fold.dtype
        param = params + len(shared)
        shared.append((held, count * columns))
        stores.append(make(STORE, void, (fold,), (param, place, "set", (roles.column, block))))
        done[fold] = combined("add", make(LOAD, held, (), (param, place, ())), block, fold.dtype)
    axes, divisions = (*kernel.axes, count), kernel.divisions
    first = IndexKernel(axes, SINK(*roles.inside, *stores), divisions)
    last = IndexKernel(axes, SINK(*replaced(roles.outside, done)), divisions)
    tiling = Tiling(
        (roles.row, roles.column), (table.joined_rows, power(columns)), table.joined_warps,
        table.joined_stages, streaming=table.streaming, short=table.short_functions,
    )  # fmt: skip
    return Joined(Part(first, {roles.row: (block, steps)}), Part(last), shared, tiling)


def _roles(kernel: IndexKernel) -> _Roles | None:
    """Rows and columns of a kernel that has both, and nothing that programs would do twice."""
    order = [n for n in toposort([kernel.body]) if n.op is not SINK]
    free = free_axes(order)
    roots = live_roots(kernel, free)
    folds = [n for n in order if n.op is FOLD]
    plain = not any(n.op in (RUN, ORDER, GUARD) or is_scatter(n) for n in order)
    folded = {a for n in folds for a in n.arg[1]} if plain else ()
    pairs = [_given(roots, folds, free, *axes) for axes in permutations(folded, 2)]
    lawful = [r for r in pairs if _are_sums(r, folds, free) and _are_apart(r, free)]
    return lawful[0] if lawful else None


def _given(
    roots: Sequence[Node], folds: Sequence[Node], free: Free, row: int, column: int
) -> _Roles:
    """The roles, where rows and columns are these."""
    inside = [r for r in roots if row in free[r]]
    outside = [r for r in roots if row not in free[r]]
    return _Roles(row, column, inside, outside, [f for f in folds if f.arg[1] == (row,)])


def _are_sums(found: _Roles, folds: Sequence[Node], free: Free) -> bool:
    """True if folds are sums of columns over rows, and any reductions of rows."""
    whole, rows = {found.row, found.column}, [f for f in folds if f not in found.sums]
    kinds = [f.arg[0] == "add" and f.dtype.kind == "f" for f in found.sums]
    axes = [free[f] == {found.column} and free[f.src[0]] == whole for f in found.sums]
    return bool(rows) and all([*kinds, *axes, *[f.arg[1] == (found.column,) for f in rows]])


def _are_apart(found: _Roles, free: Free) -> bool:
    """True if rows need no sums of columns, and what follows from those nothing else."""
    whole = frozenset({found.row, found.column})
    sizes = [free[r] <= whole for r in found.inside]
    sizes += [free[r] == {found.column} for r in found.outside]
    needed = {n for r in [*found.inside, *[f.src[0] for f in found.sums]] for n in toposort([r])}
    left = {n for r in found.outside for n in toposort([_above(r, frozenset(found.sums))])}
    both = bool(found.outside) and any(free[r] == whole for r in found.inside)
    return both and all(sizes) and needed.isdisjoint(found.sums) and not _has_folds(left)


def _has_folds(nodes: Iterable[Node]) -> bool:
    return any(n.op is FOLD for n in nodes)


def _above(root: Node, sums: frozenset[Node]) -> Node:
    """A root with nothing below its sums."""
    return replaced([root], {s: make(LOAD, s.dtype, (), (0, (0, ()), ())) for s in sums})[0]


class RowsAndColumns(TileProgram):
    """One loop over a block of rows: they are stored, and columns added up, from one read."""

    def _begin(self, order: Sequence[Node], parallel: frozenset[int]) -> None:
        super()._begin(order, frozenset([block for block, _ in self.windows.values()]))

    def _emit_roots(self, top: Scope) -> None:
        inside = [r for r in self.roots if self.free[r] & self.looped]
        sums = [n for n in self.order if n.op is FOLD and frozenset(n.arg[1]) & self.looped]
        totals = [self._accumulator(n, top) for n in sums]
        axes = frozenset(sums[0].arg[1]) & self.looped
        inner = self._open(top, axes)
        if self.tiling.stages > 1:  # rows of the next steps are on their way
            begin, _, end = inner.header.partition(" in range(")
            inner.header = f"{begin} in tl.range({end[:-2]}, num_stages={self.tiling.stages}):"
        for node, total in zip(sums, totals, strict=True):
            self._accumulate(node, total, inner)
        for node in self._before_stores(inside, axes):
            self._value(node, inner)
        for root in inside:
            self._store(root, self._value(root.src[0], inner), inner)
        self._close(inner, top)
        for node, total in zip(sums, totals, strict=True):
            text = self._reduced(node.arg[0], total, node.arg[1], computing(node.dtype))
            name = self._name()
            top.say(f"{name} = {rounded(text, node.dtype)}")
            top.names[self._key(node)] = name
        for root in [r for r in self.roots if r not in inside]:
            self._store(root, self._value(root.src[0], top), top)
