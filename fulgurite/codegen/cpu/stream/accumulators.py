"""Weighted sums of a tile (O of M x D): rescaled where bases moved, then added to by a GEMM.

In: a block whose weights are in tiles. Out: lines. When the bases under a row moved its sums are
rescaled first; nothing is before the second block. Values are read where they are if their rows are
near, packed once for all tiles where several need them, else packed a block at a time. Sums that
the reference adds up by pairs or along lanes (`compensated`) keep an error term each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ....core.dtype import bool_
from ....kernel.contract.summation import is_tiny
from ..gemm.gemv import GEMV, gemv_axpy
from ..gemm.pack import Span, side
from ..llvm.emitter import Val
from ..llvm.maths import two_sum
from ..spelling import combine
from .operands import Operands, PanelCall, PanelGemm, SharedOperand
from .states import StateSet, is_rescaled, with_error
from .tile import Launched, Tile
from .weights import WeightTiles


class WeightedSums:
    """The sums with columns; `exact`: compensated where the reference is exact, and shared values.

    Sums that are kept in the memory of parts (two passes) are neither.
    """

    def __init__(
        self, tile: Tile, operands: Operands, gemm: PanelGemm, states: StateSet,
        weights: WeightTiles, exact: bool = True,
    ) -> None:  # fmt: skip
        self.tile, self.operands, self.gemm = tile, operands, gemm
        self.states, self.weights = states, weights
        self.sums = tile.problem.weighted
        self.numbers = range(len(self.sums))
        self.packed_rows = tile.plan.block_n + tile.lanes  # of a block, with room for a vector
        self.values = [side(w.contraction, "right") for w in self.sums]
        self.compensated = [n for n in self.numbers if exact and self._is_compensated(n)]
        found = {n: self._shared_values(n) for n in self.numbers if exact}
        self.shared = {n: shared for n, shared in found.items() if shared is not None}
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, columns in enumerate(tile.problem.d_axes):
            groups.setdefault(columns, []).append(number)
        self.groups = list(groups.values())  # of sums with the same columns

    def _is_compensated(self, number: int) -> bool:
        """True if the reference sums this state by pairs, or along lanes."""
        w, problem = self.sums[number], self.tile.problem
        few = problem.m == 1 or is_tiny(problem.m, w.width, problem.n)
        return is_rescaled(w.state) and few

    def is_near(self, number: int) -> bool:
        """True if microkernels read values where they are."""
        return self.operands.is_near(self.values[number], self.sums[number].width)

    def _shared_values(self, number: int) -> SharedOperand | None:
        """Values that are packed once for all tiles: several of them need values packed."""
        panel = self.tile.registers.panel
        numbers = -(-self.sums[number].width // panel) * panel * self.packed_rows
        found = SharedOperand(self.operands, self.values[number], "values", number, numbers)
        several = not self.is_near(number) and self.tile.m_tiles > 1
        return found.allocate() if several and found.fits else None

    def functions(self) -> list[Launched]:
        """What packs values for all tiles."""
        return [
            shared.function(self.sums[number].width, self.sums[number].width,
                            partial(self._values_span, number))
            for number, shared in self.shared.items()
        ]  # fmt: skip

    def _values_span(
        self, number: int, k: str, _: str, count: Callable[[], str]
    ) -> tuple[Span, str]:
        own = self.tile.f.number(("columns", number), self.sums[number].width)
        return Span("0", own, k, count()), self.packed_depth()

    def packed_depth(self) -> str:
        """Elements of a packed block."""
        return self.tile.f.number(("deep", self.packed_rows), self.packed_rows)

    # --- memory ----------------------------------------------------------------------------------

    def reserve_values(self) -> None:
        """Values that each block packs."""
        for number in self.numbers:
            if not self.is_near(number) and number not in self.shared:
                count = self.tile.plan.tile_d[number] * self.packed_rows
                self.tile.reserve(f"values{number}", count)

    def reserve(self) -> None:
        """The sums themselves."""
        for number in self.numbers:
            self.tile.reserve(f"sums{number}", self.tile.sum_numbers(number))

    def reserve_coefficients(self) -> None:
        """Rescale factors of each row, which rows need them, and whether there was a block."""
        for number in range(len(self.states.coefficients)):
            self.tile.reserve(f"coefficient{number}", self.tile.row_numbers)
        self.tile.reserve("changed", self.tile.row_numbers)
        self.tile.f.scratch("begun", "i64", "1")

    def reserve_errors(self) -> None:
        """Error terms of compensated sums, and the sums of a part of a block."""
        tile = self.tile
        for number in self.compensated:
            rows = min(tile.problem.m, tile.plan.tile_m)
            count = rows * (tile.plan.tile_d[number] + tile.lanes) + tile.lanes
            tile.reserve(f"part{number}", count)
            tile.reserve(f"error of sums{number}", count)

    def begin(self) -> None:
        """Zeros where no block may come, and in lanes that are not in use."""
        tile, f = self.tile, self.tile.f
        for number, (_, count) in enumerate(tile.columns):
            if tile.problem.skips:
                self.clear(number, count)
                continue
            _, rest = f.divided(count, str(tile.lanes))
            unused = tile.e.let(f"icmp ne i64 {rest}, 0")
            tile.e.branch(unused, partial(self.clear, number, count))

    def clear(self, number: int, count: str) -> None:
        """A sum begins as zeros."""
        tile, f = self.tile, self.tile.f
        memory, width = f.read[f"sums{number}"], tile.sum_stride(number)

        def row(r: str) -> None:
            tile.fill_zeros(tile.element(memory, f.mul(r, width)), count)

        tile.loop("0", tile.count, 1, row)

    def begin_errors(self) -> None:
        """No error, where perhaps no block comes."""
        if self.tile.problem.skips:
            for number in self.compensated:
                zero = partial(self.put, number, text="zeroinitializer", name="error of sums")
                self.tile.each_sum(number, zero)

    def add_errors(self) -> None:
        """At the end of a tile: sums with their error terms."""

        def add(number: int, place: str) -> None:
            sums = self.load(number, place)
            both = with_error(self.tile.e, sums, self.load(number, place, "error of sums"))
            self.put(number, place, both.text)

        for number in self.compensated:
            self.tile.each_sum(number, partial(add, number))

    def put(self, number: int, place: str, text: str, name: str = "sums") -> None:
        """Write sums, or what is beside them."""
        self.tile.store(self.tile.f.read[f"{name}{number}"], place, text)

    def load(self, number: int, place: str, name: str = "sums") -> Val:
        """Read sums, or what is beside them."""
        return self.tile.load(self.tile.f.read[f"{name}{number}"], place)

    # --- rescaling -------------------------------------------------------------------------------

    def rescale(self) -> None:
        """Rows of sums whose bases moved, as if they had been built on those of now."""
        tile, f, e = self.tile, self.tile.f, self.tile.e

        def row(r: str) -> None:
            moved = tile.load_one(f.read["changed"], r).text
            yes = e.let(f"fcmp une {tile.inner} {moved}, {e.const(0, tile.dtype).text}")
            e.branch(yes, lambda: tile.scoped(self.rescale_row, r))

        tile.loop("0", tile.count, 1, row)

    def rescale_row(self, r: str) -> None:
        """All sums of one row."""
        tile, f, e = self.tile, self.tile.f, self.tile.e
        scope = f.scopes[-1]
        for node, number in self.states.coefficients.items():
            value = tile.load_one(f.read[f"coefficient{number}"], r)
            if node.dtype is bool_:
                zero = e.const(0, tile.dtype).text
                value = Val(e.let(f"fcmp une {tile.inner} {value.text}, {zero}"), bool_)
            scope[node] = value
            e.pin(value)
        for members in self.groups:
            self.rescale_columns(r, members)

    def rescale_columns(self, r: str, members: list[int]) -> None:
        """A row of sums that have the same columns."""
        tile, f = self.tile, self.tile.f
        found = [(n, self.sums[n].state) for n in members]

        def step(c: str) -> None:
            f.scopes.append({})
            places = {n: f.add(f.mul(r, tile.sum_stride(n)), c) for n in members}
            for n, state in found:
                if n in self.compensated:
                    error = self.load(n, places[n], "error of sums")
                    error = self.states.rescaled_error(state, error)
                    self.put(n, places[n], f.e.splat(error).text, "error of sums")
                f.scopes[-1][state.old] = self.load(n, places[n])
            made = [(n, f.value(s.repair)) for n, s in found if s.repair is not None]
            for n, value in made:
                self.put(n, places[n], f.e.splat(value).text)
            f.scopes.pop()

        tile.vectors(tile.columns[members[0]][1], step)

    # --- adding ----------------------------------------------------------------------------------

    def add(self, number: int) -> None:
        """Weights times values of a block."""
        tile, f, e, plan = self.tile, self.tile.f, self.tile.e, self.tile.plan
        s, (start, count) = self.values[number], tile.columns[number]
        self.operands.open_batch(s)
        if self.is_near(number):
            right, stride = self.operands.where(s, start, tile.k)
        elif number in self.shared:
            piece, _ = f.divided(tile.k, f.number("steps", plan.block_n))
            whole, stride = self.shared[number].at(piece), str(tile.registers.panel)
            right = tile.element(whole, f.mul(start, self.packed_depth()))
        else:
            right, stride = f.read[f"values{number}"], str(tile.registers.panel)
            span = Span(start, count, tile.k, tile.deep)
            self.operands.pack(s, span, right, self.packed_depth())
        left = self.weights.at(number)
        fresh = e.let(f"xor i1 {tile.begun}, true")
        addition = _Addition(self, number, left, (right, stride), count, fresh)
        if number in self.compensated:
            addition.in_parts()
        else:
            addition.steps("0", tile.deep)

    def take_part(self, number: int, k: str) -> None:
        """Add the sums of the part that begins at k to all, and keep what that loses."""
        tile, e, kind = self.tile, self.tile.e, self.tile.vector
        first = e.let(f"icmp eq i64 {k}, 0")
        first = e.let(f"and i1 {first}, {e.let(f'xor i1 {tile.begun}, true')}")

        def known(found: Val) -> Val:
            text = f"select i1 {first}, {kind} zeroinitializer, {kind} {found.text}"
            return Val(e.let(text), tile.dtype, True)

        def add(place: str) -> None:
            before = known(self.load(number, place))
            total, lost = two_sum(e, before, self.load(number, place, "part"))
            self.put(number, place, total.text)
            error = combine(e, "add", known(self.load(number, place, "error of sums")), lost)
            self.put(number, place, error.text, "error of sums")

        tile.each_sum(number, add)


class _Addition:
    """Weights times the values of a block, added to one sum.

    Weights have one sign, so sums that are rescaled only grow: few steps of N are summed by
    themselves before they are added. Those of plain products stay as they are.
    """

    def __init__(
        self, sums: WeightedSums, number: int, left: tuple[str, str, str], right: tuple[str, str],
        count: str, fresh: str,
    ) -> None:  # fmt: skip
        self.sums, self.tile, self.number = sums, sums.tile, number
        self.left, self.right, self.count, self.fresh = left, right, count, fresh
        tile, t, f = sums.tile, sums.tile.tiling, sums.tile.f
        self.near, self.compensated = sums.is_near(number), number in sums.compensated
        self.target = f.read[f"part{number}" if self.compensated else f"sums{number}"]
        self.sweeps = tile.problem.m == 1 and self.near and left[2] == "1"  # whole rows of values
        grows = sums.sums[number].state.repair is not None and tile.problem.n <= t.max_n_in_steps
        few = t.sum_steps_compensated if self.compensated else t.sum_steps
        self.few = few if not self.sweeps and (self.compensated or grows) else 0
        self.deep = sums.packed_depth()

    def in_parts(self) -> None:
        """Parts of a block, each summed by itself and added to a compensated sum."""
        tile, f = self.tile, self.tile.f
        size = tile.tiling.sum_group_compensated

        def part(start: str) -> None:
            self.steps(start, f.least(f.add(start, str(size)), tile.deep))
            self.sums.take_part(self.number, start)

        if self.few:
            tile.loop("0", tile.deep, size, part)
        else:
            self.steps("0", tile.deep)
            self.sums.take_part(self.number, "0")

    def steps(self, start: str, end: str) -> None:
        """Some steps of N, panel by panel."""
        gemm = self.sums.gemm
        if self.sweeps:
            self.panel("0", self.count, start, end)
        else:
            panels = gemm.even_panels if self.near else gemm.packed_panels
            panels(self.count, lambda column, many: self.panel(column, many, start, end))

    def panel(self, column: str, many: str, start: str, end: str) -> None:
        """One panel of columns."""
        tile, f, e = self.tile, self.tile.f, self.tile.e
        weights, stride = self.left, self.right[1]
        at = tile.element(self.right[0], column if self.near else f.mul(column, self.deep))
        to = tile.element(self.target, column)
        following = None
        if not self.near:
            following = tile.element(at, f.mul(self.deep, str(tile.registers.panel)))

        def turn(k: str) -> None:
            left = tile.element(weights[0], f.mul(k, weights[2]))
            begins = "true" if k == start else e.let(f"icmp eq i64 {k}, {start}")
            if not self.compensated:
                begins = self.fresh if k == start else e.let(f"and i1 {begins}, {self.fresh}")
            below = tile.element(at, f.mul(k, stride))
            ahead = tile.element(following, f.mul(k, stride)) if following else None
            left_over = f.sub(end, k)
            count = f.least(str(self.few), left_over) if self.few else left_over
            if self.sweeps:
                module = gemv_axpy(tile.registers, (tile.registers.dtype,) * 2)
                operands = f"ptr {left}, ptr {below}, i64 {stride}, ptr {to}, i64 {count}, "
                tile.invoke(module, GEMV, f"{operands}i64 {many}, i1 {begins}")
                return
            width = tile.sum_stride(self.number)
            self.sums.gemm.multiply(PanelCall(
                (left, *weights[1:]), (below, stride), (to, width), count, tile.count, many,
                begins, ahead,
            ))  # fmt: skip

        if self.few:
            tile.loop(start, end, self.few, turn)
        else:
            turn(start)
