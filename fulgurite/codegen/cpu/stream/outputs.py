"""Results of a fold: all that is computed from the states at the end of a tile.

In: states of a tile in small arrays. Out: lines that evaluate what is stored, lanes along the
columns or along the rows, as memory lies. Sums that rows need besides (`ended`) are worked out
before, row by row, so that lanes can run along what is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ....core.node import Node
from ....core.ops.index import FOLD, STORE
from ....kernel.contract.analysis import Part, reached
from ..gemm.microkernel import transpose
from ..llvm.emitter import Val
from .compensated import FoldSums


class FoldResults(FoldSums):
    """What is stored."""

    def finish(self) -> None:
        """Everything that is computed from the states at the end."""
        columns = {frozenset(c): n for n, c in enumerate(self.fold.columns)}
        own = frozenset((*self.fold.batch, *self.fold.rows))
        groups: dict[int, list[Node]] = {}
        for store in self.fold.streaming.stores:
            number = columns.get(self.fold.free[store] - own, -1)
            groups.setdefault(number, []).append(store)
        for number, stores in groups.items():
            if number < 0:
                self.f.scope(lambda stores=stores: self.finish_rows(stores))  # type: ignore[misc]
            else:
                self.f.scope(lambda n=number, s=stores: self.finish_columns(n, s))  # type: ignore[misc]

    def state_at(self, place: str, load: Callable[[str, str], Val]) -> None:
        for number, state in enumerate(self.states):
            if state in self.fold.scalars:
                value = load(self.f.read[f"state{number}"], place)
                self.f.scopes[-1][state.fold] = value

    def finish_rows(self, stores: Sequence[Node]) -> None:
        f, fold = self.f, self.fold
        part = f.part = fold.part(stores, self.group, ())
        f.opened(part.batch, f.coordinates(part.batch, self.at))
        start = f.coordinates(part.rows, self.top)
        ended = [n for n in part.nodes if n in self.ended]
        if ended:  # row by row, so that lanes can run along what is summed

            def row(r: str) -> None:
                for node in ended:
                    memory = f.read[f"ended{self.ended[node]}"]
                    where = self.element(memory, r)
                    f.e.line(f"store {self.inner} {f.value(node).text}, ptr {where}, align 4")

            f.walk(part.rows, start, self.count, row)

        def run(offset: str, first: str, last: str) -> None:
            def vector(step: str) -> None:
                self.state_at(f.add(offset, step), self.load)
                for node in ended:
                    memory = f.read[f"ended{self.ended[node]}"]
                    f.scopes[-1][node] = self.load(memory, f.add(offset, step))
                values = [f.value(s.src[0]) for s in stores]
                for store, value in zip(stores, values, strict=True):
                    f.store(store, value)

            f.lanes(part.rows.axes[-1], first, last, [], vector)

        f.runs(part.rows, start, self.count, run)

    def finish_columns(self, number: int, stores: Sequence[Node]) -> None:
        f, fold = self.f, self.fold
        columns = fold.columns[number]
        part = f.part = fold.part(stores, self.group, columns)
        f.opened(part.batch, f.coordinates(part.batch, self.at))
        start, count = self.left[number]
        mine = [n for n, c in enumerate(fold.columns) if c == columns]
        if self.along_rows(part, stores):
            self.finish_turned(part, stores, mine)
            return
        fixed = self.steady(part, stores, columns, {m.state.fold for m in fold.matrices})
        at = f.coordinates(part.columns, start)

        def row(r: str) -> None:
            self.state_at(r, self.one)

            def run(offset: str, first: str, last: str) -> None:
                def vector(step: str) -> None:
                    place = f.add(offset, step)
                    for n in mine:
                        where = f.add(f.mul(r, self.width(n)), place)
                        f.scopes[-1][fold.matrices[n].state.fold] = self.load(
                            f.read[f"sums{n}"], where
                        )
                    values = [f.value(s.src[0]) for s in stores]
                    for store, value in zip(stores, values, strict=True):
                        f.store(store, value)

                f.lanes(part.columns.axes[-1], first, last, fixed, vector)

            f.runs(part.columns, at, count, run)

        f.walk(part.rows, f.coordinates(part.rows, self.top), self.count, row)

    def steady(
        self, part: Part, stores: Sequence[Node], columns: Iterable[int], sums: Iterable[Node]
    ) -> list[Node]:
        """What is the same for all columns and no sum."""
        inner, moving = frozenset(columns), set(sums)
        for node in part.nodes:
            if any(s in moving for s in node.src):
                moving.add(node)
        folds = {n for n in part.nodes if n.op is FOLD}  # whose bodies have axes that are not open
        return [
            n for n in reached(stores, folds)
            if n not in moving and not self.fold.free[n] & inner and n.op is not STORE
        ]  # fmt: skip

    def along_rows(self, part: Part, stores: Sequence[Node]) -> bool:
        """Does the memory of results run along the rows, and not along the columns?"""
        if len(part.rows.axes) > 1:
            return False
        ways = [(part.rows.axes[-1], 1), (part.columns.axes[-1], 1)]
        return all(ways[0] in s.arg[1][1] and ways[1] not in s.arg[1][1] for s in stores)

    def finish_turned(self, part: Part, stores: Sequence[Node], mine: Sequence[int]) -> None:
        """Lanes along the rows: squares of sums are turned first."""
        f, e = self.f, self.f.e
        start, count = self.left[mine[0]]
        turn = transpose(self.registers)

        def vector(r: str) -> None:
            self.state_at(r, self.load)
            e.loop("0", count, self.lanes, [], lambda c, _: squares(r, c))

        def squares(r: str, c: str) -> list[str]:
            for n in mine:
                source = self.element(f.read[f"sums{n}"], f.add(f.mul(r, self.width(n)), c))
                operands = f"ptr {source}, ptr {f.read[f'square{n}']}, i64 {self.lanes}"
                self.invoke(turn, "ptr, ptr, i64, i64", f"{operands}, i64 {self.width(n)}")
            many = f.least(str(self.lanes), f.sub(count, c))
            f.walk(part.columns, f.coordinates(part.columns, f.add(start, c)), many, column)
            return []

        def column(c: str) -> None:
            for n in mine:
                value = self.load(f.read[f"square{n}"], f.mul(c, str(self.lanes)))
                f.scopes[-1][self.fold.matrices[n].state.fold] = value
            values = [f.value(s.src[0]) for s in stores]
            for store, value in zip(stores, values, strict=True):
                f.store(store, value)

        (first,) = f.coordinates(part.rows, self.top)
        f.lanes(part.rows.axes[-1], first, f.add(first, self.count), [], vector)
