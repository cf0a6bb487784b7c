"""Results of a tile (the epilogue): all that is computed from the states at its end.

In: states and weighted sums of a tile in buffers. Out: lines that evaluate what is stored, lanes
along D or along M, as memory lies. Reductions that rows need besides (`inner`) are computed before,
row by row, so that lanes can run along what is summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ....core.node import Node, forward_slice, toposort
from ....core.ops.index import FOLD, STORE
from ....kernel.contract.analysis import Part, reached
from ....kernel.stream.roles import StreamProblem
from ..gemm.microkernel import transpose
from .states import StateSet
from .tile import Tile


class OutputEmitter:
    """What is stored of a tile."""

    def __init__(self, tile: Tile, states: StateSet) -> None:
        self.tile, self.problem, self.states = tile, tile.problem, states
        self.inner = {node: number for number, node in enumerate(self._inner())}

    def _inner(self) -> list[Node]:
        """Sums over other axes that rows need at their end, not one inside another."""
        problem = self.problem
        own = frozenset((*problem.batch_axes, *problem.m_axes))
        return [
            n for n in toposort(list(problem.streaming.stores))
            if n.op is FOLD and n.arg[0] == "add" and n.dtype is problem.dtype
            and n not in problem.computed and n not in problem.depends_on_states
            and problem.free[n] <= own
        ]  # fmt: skip

    def reserve(self) -> None:
        """Squares of results that are transposed, states, and sums of rows."""
        tile = self.tile
        for number in range(len(self.problem.weighted)):
            tile.reserve(f"square{number}", tile.lanes * tile.lanes)
        self.states.reserve()
        for number in self.inner.values():
            tile.reserve(f"inner{number}", tile.row_numbers)

    def emit(self) -> None:
        """Everything that is computed from the states at the end."""
        problem = self.problem
        columns = {frozenset(c): n for n, c in enumerate(problem.d_axes)}
        own = frozenset((*problem.batch_axes, *problem.m_axes))
        groups: dict[int, list[Node]] = {}
        for store in problem.streaming.stores:
            number = columns.get(problem.free[store] - own, -1)
            groups.setdefault(number, []).append(store)
        for number, stores in groups.items():
            if number < 0:
                self.tile.scoped(self.store_rows, stores)
            else:
                self.tile.scoped(self.store_columns, number, stores)

    def store_values(self, stores: Sequence[Node]) -> None:
        """Compute all values before the first is stored."""
        f = self.tile.f
        values = [f.value(s.src[0]) for s in stores]
        for store, value in zip(stores, values, strict=True):
            f.store(store, value)

    def store_rows(self, stores: Sequence[Node]) -> None:
        """Results of one number a row, lanes along M."""
        tile, f = self.tile, self.tile.f
        part = f.part = self.problem.part(stores, self.problem.folds, ())
        f.opened(part.batch, f.coordinates(part.batch, tile.at))
        start = f.coordinates(part.rows, tile.top)
        inner = {n: f.read[f"inner{self.inner[n]}"] for n in part.nodes if n in self.inner}
        if inner:  # row by row, so that lanes can run along what is summed

            def row(r: str) -> None:
                for node, memory in inner.items():
                    where = tile.element(memory, r)
                    f.e.line(f"store {tile.inner} {f.value(node).text}, ptr {where}, align 4")

            f.walk(part.rows, start, tile.count, row)

        def run(offset: str, first: str, last: str) -> None:
            def vector(step: str) -> None:
                self.states.load_final(f.add(offset, step), tile.load)
                for node, memory in inner.items():
                    f.scopes[-1][node] = tile.load(memory, f.add(offset, step))
                self.store_values(stores)

            f.lanes(part.rows.axes[-1], first, last, [], vector)

        f.runs(part.rows, start, tile.count, run)

    def store_columns(self, number: int, stores: Sequence[Node]) -> None:
        """Results with columns, lanes along D."""
        tile, f, problem = self.tile, self.tile.f, self.problem
        columns = problem.d_axes[number]
        part = f.part = problem.part(stores, problem.folds, columns)
        f.opened(part.batch, f.coordinates(part.batch, tile.at))
        start, count = tile.columns[number]
        mine = [n for n, c in enumerate(problem.d_axes) if c == columns]
        if runs_along_rows(part, stores):
            self.store_transposed(part, stores, mine)
            return
        sums = {w.state.fold for w in problem.weighted}
        fixed = column_invariant(problem, part, stores, columns, sums)
        at = f.coordinates(part.columns, start)

        def row(r: str) -> None:
            self.states.load_final(r, tile.load_one)

            def run(offset: str, first: str, last: str) -> None:
                def vector(step: str) -> None:
                    place = f.add(offset, step)
                    for n in mine:
                        where = f.add(f.mul(r, tile.sum_stride(n)), place)
                        found = tile.load(f.read[f"sums{n}"], where)
                        f.scopes[-1][problem.weighted[n].state.fold] = found
                    self.store_values(stores)

                f.lanes(part.columns.axes[-1], first, last, fixed, vector)

            f.runs(part.columns, at, count, run)

        f.walk(part.rows, f.coordinates(part.rows, tile.top), tile.count, row)

    def store_transposed(self, part: Part, stores: Sequence[Node], mine: Sequence[int]) -> None:
        """Results with columns, lanes along M: squares of sums are transposed first."""
        tile, f = self.tile, self.tile.f
        start, count = tile.columns[mine[0]]
        module = transpose(tile.registers)

        def vector(r: str) -> None:
            self.states.load_final(r, tile.load)
            tile.vectors(count, lambda c: squares(r, c))

        def squares(r: str, c: str) -> None:
            for n in mine:
                width = tile.sum_stride(n)
                source = tile.element(f.read[f"sums{n}"], f.add(f.mul(r, width), c))
                operands = f"ptr {source}, ptr {f.read[f'square{n}']}, i64 {tile.lanes}"
                tile.invoke(module, "ptr, ptr, i64, i64", f"{operands}, i64 {width}")
            many = f.least(str(tile.lanes), f.sub(count, c))
            f.walk(part.columns, f.coordinates(part.columns, f.add(start, c)), many, column)

        def column(c: str) -> None:
            for n in mine:
                value = tile.load(f.read[f"square{n}"], f.mul(c, str(tile.lanes)))
                f.scopes[-1][self.problem.weighted[n].state.fold] = value
            self.store_values(stores)

        (first,) = f.coordinates(part.rows, tile.top)
        f.lanes(part.rows.axes[-1], first, f.add(first, tile.count), [], vector)


def column_invariant(
    problem: StreamProblem, part: Part, stores: Sequence[Node], columns: Iterable[int],
    sums: Iterable[Node],
) -> list[Node]:  # fmt: skip
    """What is the same for all columns and no sum."""
    inner, moving = frozenset(columns), forward_slice(part.nodes, sums)
    folds = {n for n in part.nodes if n.op is FOLD}  # whose bodies have axes that are not open
    return [
        n for n in reached(stores, folds)
        if n not in moving and not problem.free[n] & inner and n.op is not STORE
    ]  # fmt: skip


def runs_along_rows(part: Part, stores: Sequence[Node]) -> bool:
    """True if the memory of results is contiguous along the rows, and not along the columns."""
    if len(part.rows.axes) > 1:
        return False
    rows, columns = (part.rows.axes[-1], 1), (part.columns.axes[-1], 1)
    return all(rows in s.arg[1][1] and columns not in s.arg[1][1] for s in stores)
