"""Folds whose streamed axis is split: parts stream by themselves, and their states are merged.

In: a fold with too few tiles to keep threads busy, cut into `splits` parts. Out: a phase more. A
part leaves its states in the workspace; the second phase takes those of a tile in order and merges
them by the very repairs that blocks are merged by: both sides as if they had been built on the
bases of both, then combined. How often an axis is split follows from sizes, so the order of all
sums does too.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.node import Node
from ..graph.search.online import State
from .code import Phase
from .emitter import Val
from .foldframe import FoldFrame
from .foldstates import FoldStates
from .operate import combine

_Scope = dict[Node, Val]


class FoldSplit(FoldStates):
    """States that end in the workspace, and their merger."""

    def end(self, unit: str) -> None:
        """Results, or states for those who merge them."""
        self.take_rests()
        if self.cut.splits == 1:
            self.finish()
            return
        memory = self.part_of(unit)
        for name, place, count in self.kept_states():
            self.copy(self.f.read[name], self.element(memory, place), count)

    def kept_states(self) -> list[tuple[str, str, str]]:
        """The states of a tile: the name of each, its place among them, and how many numbers."""
        f, place = self.f, 0
        found = []
        for number, state in enumerate(self.states):
            if state in self.fold.scalars:
                found.append((f"state{number}", self.place(place), self.count))
                place += self.state_numbers
        for number in range(len(self.fold.matrices)):
            count = f.mul(self.count, self.width(number))
            found.append((f"sums{number}", self.place(place), count))
            place += self.sum_numbers(number)
        return found

    def place(self, number: int) -> str:
        return self.f.number(("part", number), number)

    @property
    def unit_numbers(self) -> int:
        """Numbers of the states of one tile, in whole lines of memory."""
        found = len(self.fold.scalars) * self.state_numbers
        found += sum([self.sum_numbers(n) for n in range(len(self.fold.matrices))])
        return -(-found // 16) * 16

    def part_numbers(self) -> int:
        """Numbers of the states of all parts."""
        return self.units * self.cut.splits * self.unit_numbers if self.cut.splits > 1 else 0

    def part_of(self, unit: str) -> str:
        """Where the states of a unit's part are."""
        f = self.f
        each = f.number("unit numbers", self.unit_numbers)
        place = f.add(f.mul(unit, each), f.number("parts", self.parts_at()))
        return self.element(f.pointer(len(self.dtypes)), place)

    def copy(self, source: str, target: str, count: str) -> None:
        """Whole vectors, of which there is room for one more."""

        def step(i: str, _: list[str]) -> list[str]:
            value, where = self.load(source, i), self.element(target, i)
            self.f.e.line(f"store {self.vector} {value.text}, ptr {where}, align 4")
            return []

        self.f.e.loop("0", count, self.lanes, [], step)

    # --- merging ---------------------------------------------------------------------------------

    def after(self) -> list[tuple[FoldFrame, Phase]]:
        """The phase that merges parts and stores results."""
        if self.cut.splits == 1:
            return []
        f = self.f = self.new_frame("kernel_merge")
        self.prepare(self.reserve_states)

        def unit(index: str, _: list[str]) -> list[str]:
            self.open_unit(index)
            f.scopes.append({})
            memory = self.part_of(index)
            for name, place, count in self.kept_states():
                self.copy(self.element(memory, place), f.read[name], count)

            def turn(part: str, _: list[str]) -> list[str]:
                other = f.add(f.mul(part, f.number("units", self.units)), index)
                f.scope(lambda: self.merge(self.part_of(other)))
                return []

            f.e.loop("1", f.number("splits", self.cut.splits), 1, [], turn)
            self.finish()
            f.scopes.pop()
            return []

        f.e.loop("%first", "%last", 1, [], unit)
        work = 4 * self.cut.splits * self.units * self.unit_numbers
        return [(f, Phase(f.symbol, self.units, work))]

    def merge(self, memory: str) -> None:
        """One more part, row by row."""
        f = self.f
        part = f.part = self.walked_part()
        f.opened(part.batch, f.coordinates(part.batch, self.at))
        places = {name: self.element(memory, place) for name, place, _ in self.kept_states()}
        start = f.coordinates(part.rows, self.top)
        f.walk(part.rows, start, self.count, lambda r: self.merge_row(r, places))

    def merge_row(self, r: str, places: dict[str, str]) -> None:
        f, e = self.f, self.f.e
        sides: tuple[_Scope, _Scope] = ({}, {})
        names = {state: f"state{n}" for n, state in enumerate(self.states)}
        for state in self.fold.scalars:
            sides[0][state.old] = self.one(f.read[names[state]], r)
            sides[1][state.old] = self.one(places[names[state]], r)
        for state in self.fold.scalars:
            new = combine(e, state.op, *[self.repaired(state, side) for side in sides])
            for side in sides:
                side[state.fold] = new
            where = self.element(f.read[names[state]], r)
            e.line(f"store {self.inner} {new.text}, ptr {where}, align 4")
        for side in sides:  # once for all columns
            f.scopes.append(side)
            for node in self.coefficients:
                e.pin(f.value(node))
            f.scopes.pop()
        for members in self.alike():
            self.merge_columns(r, members, sides, places)

    def repaired(self, state: State, side: _Scope) -> Val:
        """What a state of one side is on the bases of both."""
        if state.repair is None:
            return side[state.old]
        self.f.scopes.append(side)
        found = self.f.value(state.repair)
        self.f.scopes.pop()
        return found

    def merge_columns(
        self, r: str, members: Sequence[int], sides: tuple[_Scope, _Scope], places: dict[str, str]
    ) -> None:
        """The rows of columns of some states that have the same columns."""
        f, e = self.f, self.f.e
        states = {n: self.fold.matrices[n].state for n in members}
        memory = [{n: m[f"sums{n}"] for n in members} for m in (dict(f.read), places)]

        def step(c: str, _: list[str]) -> list[str]:
            at = {n: f.add(f.mul(r, self.width(n)), c) for n in members}
            found: list[dict[int, Val]] = []
            for side, where in zip(sides, memory, strict=True):
                f.scopes.append(side)
                f.scopes.append({s.old: self.load(where[n], at[n]) for n, s in states.items()})
                found.append({n: e.splat(f.value(s.old if s.repair is None else s.repair))
                              for n, s in states.items()})  # fmt: skip
                del f.scopes[-2:]
            for n in members:
                total = combine(e, "add", found[0][n], found[1][n])
                to = self.element(f.read[f"sums{n}"], at[n])
                e.line(f"store {self.vector} {total.text}, ptr {to}, align 4")
            return []

        e.loop("0", self.left[members[0]][1], self.lanes, [], step)
