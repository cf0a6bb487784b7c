"""Split along keys (split-KV, FlashDecoding): parts of N stream by themselves, then are merged.

In: a problem with too few tiles to keep threads busy, planned with `splits`. Out: a function more.
A part leaves its states in the workspace; the second launch merges those of a tile in order by the
very repairs that blocks are merged by: bases first, then each part as if it had been built on those
of all, in compensated sums. How often N is split follows from sizes, so the order of all sums does
too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ....core.dtype import float64
from ....core.node import Node
from ....kernel.contract.analysis import Part
from ....kernel.stream.online import State
from ...common.api import Launch
from ..llvm.emitter import Val
from ..llvm.maths import two_sum
from ..spelling import combine, identity
from .accumulators import WeightedSums
from .states import StateSet, with_error
from .tile import Launched, Tile

_Scope = dict[Node, Val]


class Parts(Protocol):
    """Where the states of parts are that are merged."""

    def count(self) -> str:
        """How many parts a tile has."""
        ...

    def places(self, unit: str, part: str) -> dict[str, str]:
        """Where the states of a part of a tile are, by the names of their buffers."""
        ...


class Splitter:
    """States of parts in the workspace."""

    def __init__(self, tile: Tile, states: StateSet, sums: WeightedSums) -> None:
        self.tile, self.states, self.sums = tile, states, sums
        rows = (len(states.rows) + len(states.with_errors)) * tile.row_numbers
        columns = [(1 + (n in sums.compensated)) * tile.sum_numbers(n) for n in sums.numbers]
        self.unit_numbers = -(-(rows + sum(columns)) // 16) * 16  # whole lines of memory
        tile.workspace.allocate("parts", tile.units * tile.plan.splits * self.unit_numbers)

    def keep(self, unit: str) -> None:
        """Leave the states of a part."""
        tile, memory = self.tile, self.part_at(unit)
        for name, place, count in self.buffers():
            tile.copy(tile.f.read[name], tile.element(memory, place), count)

    def buffers(self) -> list[tuple[str, str, str]]:
        """The states of a tile: the name of each, its place among them, and how many numbers."""
        place, found = 0, []
        for name, count, room in self.sizes():
            found.append((name, self.tile.f.number(("part", place), place), count))
            place += room
        return found

    def sizes(self) -> list[tuple[str, str, int]]:
        """The name of each state of a tile, how many numbers it is, and at most is."""
        tile, states, found = self.tile, self.states, []
        for number, state in enumerate(states.all):
            if state in states.rows:
                found.append((f"state{number}", tile.count, tile.row_numbers))
            if state in states.with_errors:
                found.append((f"error{number}", tile.count, tile.row_numbers))
        for number in self.sums.numbers:
            count = tile.f.mul(tile.count, tile.sum_stride(number))
            names = [f"sums{number}", f"error of sums{number}"]
            names = names[: 1 + (number in self.sums.compensated)]
            found += [(name, count, tile.sum_numbers(number)) for name in names]
        return found

    def part_at(self, unit: str) -> str:
        """Where the states of a unit are."""
        tile, f = self.tile, self.tile.f
        place = f.mul(unit, f.number("unit numbers", self.unit_numbers))
        return tile.shared(f.add(place, f.number("parts", tile.workspace.at["parts"])))

    def count(self) -> str:
        """How many parts a tile has."""
        return self.tile.f.number("splits", self.tile.plan.splits)

    def places(self, unit: str, part: str) -> dict[str, str]:
        """Where the states of a part of a tile are."""
        tile, f = self.tile, self.tile.f
        other = f.add(f.mul(part, f.number("units", tile.units)), unit)
        memory = self.part_at(other)
        return {name: tile.element(memory, at) for name, at, _ in self.buffers()}

    def merging(
        self, merger: StateMerger, reserve: Callable[[], None], part: Part,
        finish: Callable[[], None],
    ) -> Launched:  # fmt: skip
        """The function that merges parts and stores results."""
        tile = self.tile
        f = tile.new_function("kernel_merge")
        tile.prepare(reserve)

        def unit(index: str) -> None:
            tile.open_unit(index)
            f.scopes.append({})
            tile.scoped(merger.merge, index, part)
            finish()
            f.scopes.pop()

        tile.each_unit(unit)
        work = 4 * tile.plan.splits * tile.units * self.unit_numbers
        return f, Launch(f.symbol, tile.units, work)


class StateMerger:
    """States of the parts of a tile become those of all; `sums` is None where rows alone merge."""

    def __init__(
        self, tile: Tile, states: StateSet, parts: Parts, sums: WeightedSums | None
    ) -> None:
        self.tile, self.states, self.parts, self.sums = tile, states, parts, sums
        self.groups = [] if sums is None else sums.groups

    def reserve(self) -> None:
        """What rounding takes from the sums of a row."""
        for number in range(len(self.tile.problem.weighted)):
            self.tile.reserve(f"lost{number}", self.tile.plan.tile_d[number] + self.tile.lanes)

    def merge(self, unit: str, part: Part) -> None:
        """All parts of a tile, row by row."""
        tile, f = self.tile, self.tile.f
        f.part = part
        f.opened(part.batch, f.coordinates(part.batch, tile.at))
        start = f.coordinates(part.rows, tile.top)
        f.walk(part.rows, start, tile.count, lambda r: self.merge_row(r, unit))

    def each_part(
        self, unit: str, carried: Sequence[tuple[str, str]],
        body: Callable[[str, dict[str, str], list[str]], list[str]],
    ) -> list[str]:  # fmt: skip
        """Run `body(part, where each state is, carried)` for the parts of a tile, in order."""
        f = self.tile.f

        def turn(part: str, now: list[str]) -> list[str]:
            f.scopes.append({})
            out = body(part, self.parts.places(unit, part), now)
            f.scopes.pop()
            return out

        return f.e.loop("0", self.parts.count(), 1, carried, turn)

    def states_of(self, r: str, places: dict[str, str]) -> _Scope:
        """The row states of a part."""
        names = {state: f"state{n}" for state, n in self.states.numbers.items()}
        return {s.old: self.tile.load_one(places[names[s]], r) for s in self.states.rows}

    def merge_row(self, r: str, unit: str) -> None:
        """Row states first: what is built on them is repaired once, to the last bases."""
        tile, f, e, states = self.tile, self.tile.f, self.tile.e, self.states
        final: _Scope = {}
        for state in states.all:
            if state in states.rows:
                final[state.fold] = self.merged(state, r, unit, final)
                e.pin(final[state.fold])
                tile.store_one(states.memory(state), r, final[state.fold])

        def columns(part: str, places: dict[str, str], _: list[str]) -> list[str]:
            f.scopes[-1] |= self.states_of(r, places) | final
            for node in states.coefficients:  # once for all columns
                e.pin(f.value(node))
            first = e.let(f"icmp eq i64 {part}, 0")
            for members in self.groups:
                self.merge_columns(r, members, first, places)
            return []

        if self.groups:
            self.each_part(unit, [], columns)
        for number in [n for members in self.groups for n in members]:
            self.add_lost(r, number)

    def merged(self, state: State, r: str, unit: str, final: _Scope) -> Val:
        """A row state of all parts; a sum with what rounding took from it."""
        e, dtype = self.tile.e, self.tile.dtype
        if state in self.states.widened:
            return self.merged_widened(state, r, unit, final)
        is_sum = state.op == "add"

        def more(_: str, places: dict[str, str], now: list[str]) -> list[str]:
            scope = self.tile.f.scopes[-1]
            scope |= self.states_of(r, places) | final
            error = e.const(0, dtype)
            if state in self.states.compensated:  # before the sum's own repair is known
                error = self.tile.load_one(places[f"error{self.states.numbers[state]}"], r)
                error = self.states.rescaled_error(state, error)
            value = scope[state.old]
            if state.repair is not None:
                value = self.tile.f.value(state.repair)
            known = [Val(text, dtype) for text in now]
            if not is_sum:
                return [combine(e, state.op, known[0], value).text]
            total, lost = two_sum(e, known[0], value)
            lost = combine(e, "add", lost, error)
            return [total.text, combine(e, "add", known[1], lost).text]

        start = identity(e, state.op, dtype, False).text
        inner = self.tile.inner
        carried = [(inner, start), (inner, e.const(0, dtype).text)][: 1 + is_sum]
        found = [Val(text, dtype) for text in self.each_part(unit, carried, more)]
        return with_error(e, *found) if is_sum else found[0]

    def merged_widened(self, state: State, r: str, unit: str, final: _Scope) -> Val:
        """The same of a sum in float64."""
        e, dtype, states = self.tile.e, self.tile.dtype, self.states

        def more(_: str, places: dict[str, str], now: list[str]) -> list[str]:
            f = self.tile.f
            f.scopes[-1] |= self.states_of(r, places) | final
            f.scopes[-1] |= states.load_widened_olds(
                lambda name: self.tile.load_one(places[name], r)
            )
            own = states.widened_olds[state.old]
            if state.repair is not None:
                own = states.repair_of(state)
            return [combine(e, "add", Val(now[0], float64), f.value(own)).text]

        zero = ("double", e.const(0, float64).text)
        (total,) = self.each_part(unit, [zero], more)
        return Val(e.let(f"fptrunc double {total} to {self.tile.inner}"), dtype)

    def merge_columns(
        self, r: str, members: Sequence[int], first: str, places: dict[str, str]
    ) -> None:
        """One more part of a row of some weighted sums that have the same columns."""
        assert self.sums is not None
        tile, sums, f, e, kind = self.tile, self.sums, self.tile.f, self.tile.e, self.tile.vector
        states = {n: sums.sums[n].state for n in members}

        def known(found: Val) -> Val:
            text = f"select i1 {first}, {kind} zeroinitializer, {kind} {found.text}"
            return Val(e.let(text), tile.dtype, True)

        def step(c: str) -> None:
            at = {n: f.add(f.mul(r, tile.sum_stride(n)), c) for n in members}
            f.scopes.append(
                {s.old: tile.load(places[f"sums{n}"], at[n]) for n, s in states.items()}
            )
            values = {n: f.value(s.old if s.repair is None else s.repair)
                      for n, s in states.items()}  # fmt: skip
            f.scopes.pop()
            for n, value in values.items():
                before = known(sums.load(n, at[n]))
                total, lost = two_sum(e, before, e.splat(value))
                if n in sums.compensated:
                    error = tile.load(places[f"error of sums{n}"], at[n])
                    error = self.states.rescaled_error(states[n], error)
                    lost = combine(e, "add", lost, e.splat(error))
                sums.put(n, at[n], total.text)
                rest = combine(e, "add", known(tile.load(f.read[f"lost{n}"], c)), lost)
                tile.store(f.read[f"lost{n}"], c, rest.text)

        tile.vectors(tile.columns[members[0]][1], step)

    def add_lost(self, r: str, number: int) -> None:
        """The sums of a row with what rounding took from them."""
        assert self.sums is not None
        tile, sums, f = self.tile, self.sums, self.tile.f

        def step(c: str) -> None:
            place = f.add(f.mul(r, tile.sum_stride(number)), c)
            found = sums.load(number, place)
            both = with_error(f.e, found, tile.load(f.read[f"lost{number}"], c))
            sums.put(number, place, both.text)

        tile.vectors(tile.columns[number][1], step)
