"""Folds whose streamed axis is split: parts stream by themselves, and their states are merged.

In: a fold with too few tiles to keep threads busy, cut into `splits` parts. Out: a phase more. A
part leaves its states in the workspace; the second phase takes those of a tile in order and merges
them by the very repairs that blocks are merged by: bases first, then each part as if it had been
built on those of all, with what rounding takes from sums beside them. How often an axis is split
follows from sizes, so the order of all sums does too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....core.dtype import float64
from ....core.node import Node
from ....kernel.stream.online import State
from ...common.api import Phase
from ..llvm.emitter import Val
from ..spelling import combine, identity
from .compensated import two_sum, whole
from .inner_reduce import FoldFrame
from .states import FoldStates

_Scope = dict[Node, Val]


class FoldSplit(FoldStates):
    """States that end in the workspace, and their merger."""

    def end(self, unit: str) -> None:
        """Results, or states for those who merge them."""
        if self.cut.splits == 1:
            self.take_rests()
            self.finish()
            return
        memory = self.part_of(unit)
        for name, place, count in self.kept_states():
            self.copy(self.f.read[name], self.element(memory, place), count)

    def kept_states(self) -> list[tuple[str, str, str]]:
        """The states of a tile: the name of each, its place among them, and how many numbers."""
        place, found = 0, []
        for name, count, room in self.rooms():
            found.append((name, self.place(place), count))
            place += room
        return found

    def rooms(self) -> list[tuple[str, str, int]]:
        """The name of each state of a tile, how many numbers it is, and at most is."""
        found = []
        for number, state in enumerate(self.states):
            if state in self.fold.scalars:
                found.append((f"state{number}", self.count, self.state_numbers))
            if state in self.with_rests:
                found.append((f"rest of {number}", self.count, self.state_numbers))
        for number in range(len(self.fold.matrices)):
            count = self.f.mul(self.count, self.width(number))
            names = [f"sums{number}", f"rest{number}"][: 1 + self.is_fine(number)]
            found += [(name, count, self.sum_numbers(number)) for name in names]
        return found

    def place(self, number: int) -> str:
        return self.f.number(("part", number), number)

    @property
    def unit_numbers(self) -> int:
        """Numbers of the states of one tile, in whole lines of memory."""
        found = (len(self.fold.scalars) + len(self.with_rests)) * self.state_numbers
        for number in range(len(self.fold.matrices)):
            found += (1 + self.is_fine(number)) * self.sum_numbers(number)
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
        self.prepare(self.reserve_merged)

        def unit(index: str, _: list[str]) -> list[str]:
            self.open_unit(index)
            f.scopes.append({})
            f.scope(lambda: self.merge(index))
            self.finish()
            f.scopes.pop()
            return []

        f.e.loop("%first", "%last", 1, [], unit)
        work = 4 * self.cut.splits * self.units * self.unit_numbers
        return [(f, Phase(f.symbol, self.units, work))]

    def reserve_merged(self) -> None:
        """States of a tile, and what rounding takes from the sums of a row."""
        self.reserve_states()
        for number in range(len(self.fold.matrices)):
            self.room(f"lost{number}", self.cut.columns[number] + self.lanes)

    def merge(self, unit: str) -> None:
        """All parts of a tile, row by row."""
        f = self.f
        part = f.part = self.walked_part()
        f.opened(part.batch, f.coordinates(part.batch, self.at))
        start = f.coordinates(part.rows, self.top)
        f.walk(part.rows, start, self.count, lambda r: self.merge_row(r, unit))

    def each_part(
        self, unit: str, carried: Sequence[tuple[str, str]],
        body: Callable[[str, dict[str, str], list[str]], list[str]],
    ) -> list[str]:  # fmt: skip
        """Run `body(part, where each state is, carried)` for the parts of a tile, in order."""
        f = self.f

        def turn(part: str, now: list[str]) -> list[str]:
            f.scopes.append({})
            out = body(part, self.places_of(unit, part), now)
            f.scopes.pop()
            return out

        return f.e.loop("0", self.part_count, 1, carried, turn)

    @property
    def part_count(self) -> str:
        """How many parts a tile has."""
        return self.f.number("splits", self.cut.splits)

    def places_of(self, unit: str, part: str) -> dict[str, str]:
        """Where the states of a part of a tile are."""
        other = self.f.add(self.f.mul(part, self.f.number("units", self.units)), unit)
        memory = self.part_of(other)
        return {name: self.element(memory, at) for name, at, _ in self.kept_states()}

    def states_of(self, r: str, places: dict[str, str]) -> _Scope:
        """The states of one number a row of a part."""
        names = {state: f"state{n}" for n, state in enumerate(self.states)}
        return {s.old: self.one(places[names[s]], r) for s in self.fold.scalars}

    def merge_row(self, r: str, unit: str) -> None:
        """States of one number first: what is built on them is repaired once, to the last bases."""
        f, e, groups = self.f, self.f.e, self.alike()
        final: _Scope = {}
        for number, state in enumerate(self.states):
            if state in self.fold.scalars:
                final[state.fold] = self.merged(state, r, unit, final)
                e.pin(final[state.fold])
                where = self.element(f.read[f"state{number}"], r)
                e.line(f"store {self.inner} {final[state.fold].text}, ptr {where}, align 4")

        def columns(part: str, places: dict[str, str], _: list[str]) -> list[str]:
            f.scopes[-1] |= self.states_of(r, places) | final
            for node in self.coefficients:  # once for all columns
                e.pin(f.value(node))
            first = e.let(f"icmp eq i64 {part}, 0")
            for members in groups:
                self.merge_columns(r, members, first, places)
            return []

        if groups:
            self.each_part(unit, [], columns)
        for number in [n for members in groups for n in members]:
            self.lose_nothing(r, number)

    def merged(self, state: State, r: str, unit: str, final: _Scope) -> Val:
        """A state of one number of all parts; a sum with what rounding took from it."""
        e, dtype = self.f.e, self.fold.dtype
        is_sum = state.op == "add"

        def more(_: str, places: dict[str, str], now: list[str]) -> list[str]:
            scope = self.f.scopes[-1]
            scope |= self.states_of(r, places) | final
            if state in self.doubled:
                scope |= self.whole_olds(lambda name: self.one(places[name], r))
                own = self.wholes[state.old] if state.repair is None else self.repair_of(state)
                return [combine(e, "add", Val(now[0], float64), self.f.value(own)).text]
            rest = e.const(0, dtype)
            if state in self.leaves:  # before the sum's own repair is known
                rest = self.one(places[f"rest of {self.states.index(state)}"], r)
                rest = self.repaired_rest(state, rest)
            value = scope[state.old] if state.repair is None else self.f.value(state.repair)
            known = [Val(text, dtype) for text in now]
            if not is_sum:
                return [combine(e, state.op, known[0], value).text]
            total, lost = two_sum(e, known[0], value)
            lost = combine(e, "add", lost, rest)
            return [total.text, combine(e, "add", known[1], lost).text]

        if state in self.doubled:
            zero = ("double", e.const(0, float64).text)
            (total,) = self.each_part(unit, [zero], more)
            return Val(e.let(f"fptrunc double {total} to {self.inner}"), dtype)
        start = identity(e, state.op, dtype, False).text
        carried = [(self.inner, start), (self.inner, e.const(0, dtype).text)][: 1 + is_sum]
        found = [Val(text, dtype) for text in self.each_part(unit, carried, more)]
        return whole(e, *found) if is_sum else found[0]

    def merge_columns(
        self, r: str, members: Sequence[int], first: str, places: dict[str, str]
    ) -> None:
        """One more part of the rows of columns of some states that have the same columns."""
        f, e, kind = self.f, self.f.e, self.vector
        states = {n: self.fold.matrices[n].state for n in members}

        def known(memory: str, place: str) -> Val:
            found = self.load(memory, place).text
            text = f"select i1 {first}, {kind} zeroinitializer, {kind} {found}"
            return Val(e.let(text), self.fold.dtype, True)

        def step(c: str, _: list[str]) -> list[str]:
            at = {n: f.add(f.mul(r, self.width(n)), c) for n in members}
            sums = {s.old: self.load(places[f"sums{n}"], at[n]) for n, s in states.items()}
            f.scopes.append(sums)
            values = {n: f.value(s.old if s.repair is None else s.repair)
                      for n, s in states.items()}  # fmt: skip
            f.scopes.pop()
            for n, value in values.items():
                rests = f.read[f"lost{n}"]
                before = known(f.read[f"sums{n}"], at[n])
                total, lost = two_sum(e, before, e.splat(value))
                if self.is_fine(n):
                    rest = self.repaired_rest(states[n], self.load(places[f"rest{n}"], at[n]))
                    lost = combine(e, "add", lost, e.splat(rest))
                self.put_sums(n, at[n], total.text)
                rest = combine(e, "add", known(rests, c), lost)
                e.line(f"store {kind} {rest.text}, ptr {self.element(rests, c)}, align 4")
            return []

        e.loop("0", self.left[members[0]][1], self.lanes, [], step)

    def lose_nothing(self, r: str, number: int) -> None:
        """The sums of a row with what rounding took from them."""
        f = self.f

        def step(c: str, _: list[str]) -> list[str]:
            place = f.add(f.mul(r, self.width(number)), c)
            sums = self.load(f.read[f"sums{number}"], place)
            both = whole(f.e, sums, self.load(f.read[f"lost{number}"], c))
            self.put_sums(number, place, both.text)
            return []

        f.e.loop("0", self.left[number][1], self.lanes, [], step)
