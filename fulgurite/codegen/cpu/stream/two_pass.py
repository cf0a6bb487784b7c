"""Two passes over strips of rows: transposed sums that need final states, no product done twice.

In: a problem planned in strips (codegen/cpu/stream/plan.py). Out: functions that take strips one
after the other; a unit is a part of N. A block's turn does two things while its keys and values are
near: with the states of the strip before, which are final, it makes that strip's weights and adds
them to weighted sums and to transposed ones, which are in the memory of their results; then it puts
the scores of the next strip in the place of those of the last and takes them into that strip's
states. Between turns the states and sums of parts are merged in order. So the order of all sums
follows from sizes alone, and the memory is that of one strip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ....core.dtype import DType, int64
from ....core.node import Node
from ....kernel.contract.analysis import Part
from ....kernel.contract.problem import Operand
from ....kernel.contract.problem import part as part_of
from ....kernel.stream.roles import StreamProblem, is_along_n
from ...common.api import KernelText, Launch
from ..gemm.microkernel import Registers, transpose
from ..gemm.pack import Span, side
from ..llvm.convert import load_value
from ..llvm.emitter import Val
from ..spelling import combine
from .accumulators import WeightedSums
from .operands import Operands, PanelGemm
from .outputs import OutputEmitter, column_invariant
from .plan import StreamPlan, packed_keys
from .row_lanes import RowLanesUpdate, RowMajorProducts
from .split import StateMerger
from .states import StateSet
from .template import rendered, stream_work
from .tile import Launched, Tile
from .transposed import TransposedProducts
from .weights import WeightTiles


class StripMemory:
    """What strips leave for each other in the workspace.

    Which strip it is, final states, states and weighted sums of parts of N, scores of a strip.
    """

    counter: str  # where the number of the strip is
    strip: str  # the one whose scores are made
    has_earlier: str  # is there one before it, whose scores are there?
    has_current: str  # is there one at all, or was the last one made?

    def __init__(self, tile: Tile, states: StateSet) -> None:
        self.tile, self.states = tile, states
        batch, chunks, lanes = tile.problem.batch, tile.plan.splits, tile.lanes
        errors = [f"error{states.numbers[state]}" for state in states.with_errors]
        self.finals = [f"state{states.numbers[s]}" for s in states.all if s in states.rows]
        self.rows = self.finals + errors
        self.row_numbers = len(self.rows) * tile.row_numbers
        self._sums = range(len(tile.problem.weighted))
        self.sum_numbers = _line(sum([tile.sum_numbers(n) for n in self._sums]))
        self.stride = -(-tile.plan.tile_m // lanes) * lanes  # between streamed elements
        self.score_numbers = _line(tile.problem.n * self.stride + lanes)
        scores = len(tile.problem.products) * batch * self.score_numbers
        for name, count in (
            ("strip", _line(1)),
            ("final", _line(batch * self.row_numbers)),
            ("states", _line(batch * chunks * self.row_numbers)),
            ("sums", batch * chunks * self.sum_numbers),
            ("scores", scores),
        ):
            tile.workspace.allocate(name, count)

    def at(self, name: str, number: str, each: int, before: int = 0) -> str:
        """A place: what it is of, and the number of some that are alike."""
        tile, f = self.tile, self.tile.f
        first = f.number(("strip", name, before), tile.workspace.at[name] + before)
        return tile.shared(f.add(first, f.mul(number, f.number(("strip each", name), each))))

    def final(self, name: str) -> str:
        """Final states of a strip."""
        before = self.rows.index(name) * self.tile.row_numbers
        return self.at("final", self.tile.at, self.row_numbers, before)

    def part_state(self, name: str, part: str) -> str:
        """States of a part."""
        before = self.rows.index(name) * self.tile.row_numbers
        return self.at("states", part, self.row_numbers, before)

    def part_sums(self, number: int, part: str) -> str:
        """Weighted sums of a part."""
        before = sum([self.tile.sum_numbers(n) for n in self._sums[:number]])
        return self.at("sums", part, self.sum_numbers, before)

    def scores(self, number: int) -> str:
        """Scores of this block."""
        tile = self.tile
        before = number * tile.problem.batch * self.score_numbers
        strip = self.at("scores", tile.at, self.score_numbers, before)
        return tile.element(strip, tile.f.mul(tile.k, tile.stride))

    def count(self) -> str:
        """How many parts a strip has."""
        return self.tile.f.number("chunks", self.tile.plan.splits)

    def places(self, unit: str, part: str) -> dict[str, str]:
        """Where the states of a part of this strip are."""
        index = self.tile.f.add(self.tile.f.mul(self.tile.at, self.count()), part)
        return {name: self.part_state(name, index) for name in self.rows}

    # --- which strip -----------------------------------------------------------------------------

    def read(self) -> None:
        """Read which strip it is."""
        tile, f, e, plan = self.tile, self.tile.f, self.tile.e, self.tile.plan
        self.counter = tile.shared(f.number("strip at", tile.workspace.at["strip"]))
        self.strip = e.let(f"load i64, ptr {self.counter}, align 8")
        count = f.number("strips", plan.strips)
        self.has_earlier = e.let(f"icmp sgt i64 {self.strip}, 0")
        self.has_current = e.let(f"icmp slt i64 {self.strip}, {count}")
        tall, rows = f.number("tile rows", plan.tile_m), f.number("rows", tile.problem.m)
        now = f.mul(self.strip, tall)
        tops = f.sub(now, tall), now
        counts = [f.least(tall, f.sub(rows, top)) for top in tops[::-1]]
        self.spans = tuple(zip(tops, counts[::-1], strict=True))  # of the strip before, and of this

    def each(self, earlier: Callable[[], None], now: Callable[[], None]) -> None:
        """What is done for the strip before, then for this one."""
        for span, condition, body in zip(
            self.spans, (self.has_earlier, self.has_current), (earlier, now), strict=True
        ):
            self.tile.e.branch(condition, partial(self._enter, span, body))

    def _enter(self, span: tuple[str, str], body: Callable[[], None]) -> None:
        tile, f = self.tile, self.tile.f
        tile.top, tile.count = span
        tile.columns = [
            ("0", f.number(("columns", number), w.width))
            for number, w in enumerate(tile.problem.weighted)
        ]
        f.scope(body)


class TwoPassFunction:
    """The components of two passes over strips, and the functions they make together."""

    part: str  # this unit, and the first element of N of its part
    start: str

    def __init__(
        self, problem: StreamProblem, plan: StreamPlan, dtypes: Sequence[DType],
        registers: Registers,
    ) -> None:  # fmt: skip
        self.problem, self.plan = problem, plan
        tile = self.tile = Tile(problem, plan, dtypes, registers)
        keys, packed = shared_keys(tile)
        operands, gemm = Operands(tile, packed), PanelGemm(tile)
        self.operands, self.gemm = operands, gemm
        names: dict[Node, str] = {}
        for number, w in enumerate(problem.all_weighted):
            names.setdefault(w.weights, f"weights{number}")
        weights = [names[w.weights] for w in problem.all_weighted]
        self.states, self.weights = StateSet(tile), WeightTiles(tile, operands, weights)
        self.sums = WeightedSums(tile, operands, gemm, self.states, self.weights, exact=False)
        self.products = RowMajorProducts(tile, operands, gemm, keys)
        self.update = RowLanesUpdate(
            tile, self.states, self.products.loads, stops=problem.constants
        )
        self.outputs = OutputEmitter(tile, self.states)
        self.strips = StripMemory(tile, self.states)
        self.merger = StateMerger(tile, self.states, self.strips, None)
        products = TransposedProducts(tile, operands, gemm, self.weights)
        self.transposed = TransposedInPlace(tile, products, self.strips)

    # --- functions -------------------------------------------------------------------------------

    def render(self) -> KernelText:
        """The functions, launched for one strip after the other."""
        functions = [self.main(), self.finishing(), *self.counting()]
        walk, finish, start, following = [launch for _, launch in functions]
        turns = [walk, finish, following] * (1 + self.plan.strips)
        return rendered(self.tile, functions, [start, *turns[:-1]])

    def main(self) -> Launched:
        """The function that takes a part of N through a turn."""
        tile, plan, strips = self.tile, self.plan, self.strips
        f = tile.new_function("kernel")
        length, steps = f.number("length", self.problem.n), f.number("steps", plan.block_n)
        tile.prepare(self.reserve)
        strips.read()

        def unit(index: str) -> None:
            self.part = index
            tile.at, part = f.divided(index, f.number("chunks", plan.splits))
            span = f.number("span", plan.split_n)
            start = self.start = f.mul(part, span)
            end = f.least(length, f.add(start, span))
            strips.each(self.transposed.products.begin, self.begin)

            def turn(k: str) -> None:
                tile.k, tile.deep = k, f.least(steps, f.sub(length, k))
                self.pack_keys()
                strips.each(self.weigh, self.score)

            tile.loop(start, end, steps, turn)
            strips.each(lambda: None, self.keep_states)

        tile.each_unit(unit)
        units = self.problem.batch * plan.splits
        return f, Launch(f.symbol, units, stream_work(tile) // (1 + plan.strips))

    def finishing(self) -> Launched:
        """What runs between turns: results of a strip, and merged states of the next."""
        tile = self.tile
        f = tile.new_function("kernel_finish")
        tile.prepare(self.outputs.reserve)
        self.strips.read()

        def unit(index: str) -> None:
            tile.at = index
            self.strips.each(self.finish_strip, self.merge_states)

        tile.each_unit(unit)
        numbers = self.strips.sum_numbers + self.strips.row_numbers
        work = 4 * self.problem.batch * self.plan.splits * numbers
        return f, Launch(f.symbol, self.problem.batch, work)

    def counting(self) -> list[Launched]:
        """What says which strip is the first, and the next."""
        found = []
        for symbol, value in (("kernel_start", "0"), ("kernel_next", "")):
            f = self.tile.new_function(symbol)
            self.strips.read()
            number = value or f.add(self.strips.strip, "1")
            f.e.line(f"store i64 {number}, ptr {self.strips.counter}, align 8")
            found.append((f, Launch(symbol, 1, 0)))
        return found

    def reserve(self) -> None:
        """Operands that are packed, weights, and states; scores are in the workspace."""
        self.products.set_stride(self.strips.stride)
        self.products.reserve_loads()
        for number in range(len(self.problem.products)):
            self.products.reserve_operands(number)
        self.weights.reserve(self.products.tile_numbers)
        self.sums.reserve_values()
        self.transposed.reserve()
        self.gemm.reserve()
        self.outputs.reserve()
        self.states.reserve_errors()
        self.tile.f.scratch("begun", "i64", "1")

    def pack_keys(self) -> None:
        """Keys of a block that are values too, once for both."""
        tile, operands = self.tile, self.operands
        for number, s in dict.fromkeys(operands.packed.values()):
            p = self.problem.products[number]
            depth = tile.f.number(("depth", number), p.depth)
            operands.open_batch(s)
            span = Span(tile.k, tile.deep, "0", depth)
            memory = tile.f.read[f"keys{number}"]
            operands.pack(s, span, memory, operands.packed_depth(p))

    # --- this strip: scores and states -----------------------------------------------------------

    def begin(self) -> None:
        """States before anything was seen; queries are packed once for a part."""
        self.states.begin()
        self.states.begin_errors()
        self.products.begin()

    def score(self) -> None:
        """Scores of a block, which stay, and what they are for the states."""
        for number in range(len(self.problem.products)):
            self.tile.f.read[f"tile{number}"] = self.strips.scores(number)
            self.products.emit(number)
        self.products.transpose_loads()
        self.states.enter_block()
        self.update.emit()
        self.states.leave_block()

    def keep_states(self) -> None:
        """States of a part, to be merged."""
        tile, strips = self.tile, self.strips
        for name in strips.rows:
            tile.copy(tile.f.read[name], strips.part_state(name, self.part), tile.count)

    # --- the strip before: weights and sums ------------------------------------------------------

    def weigh(self) -> None:
        """Weights of a block, and what they add to all sums."""
        tile, f = self.tile, self.tile.f
        for number in range(len(self.problem.products)):
            f.read[f"tile{number}"] = self.strips.scores(number)
        self.products.transpose_loads()
        self.write_weights()
        tile.begun = f.e.let(f"icmp sgt i64 {tile.k}, {self.start}")
        for number in self.sums.numbers:
            f.read[f"sums{number}"] = self.strips.part_sums(number, self.part)
            self.sums.add(number)
        self.transposed.emit()

    def write_weights(self) -> None:
        """All weights of a block, lanes along the rows."""
        tile, f, problem = self.tile, self.tile.f, self.problem
        weights = [w.weights for w in problem.all_weighted]
        part = f.part = problem.part(weights, self.update.bounds, problem.n_axes)
        f.opened(part.batch, f.coordinates(part.batch, tile.at))
        final = {s.fold: self.strips.final(f"state{n}") for s, n in self.states.numbers.items()
                 if s in self.states.rows}  # fmt: skip

        def run(offset: str, first: str, last: str) -> None:
            def vector(step: str) -> None:
                place = f.add(offset, step)
                for node, memory in final.items():
                    f.scopes[-1][node] = tile.load(memory, place)
                self.weigh_rows(part, place)

            f.lanes(part.rows.axes[-1], first, last, [], vector)

        f.runs(part.rows, f.coordinates(part.rows, tile.top), tile.count, run)

    def weigh_rows(self, part: Part, place: str) -> None:
        """The weights of one vector of rows."""
        tile, f, update = self.tile, self.tile.f, self.update
        for node in part.nodes:
            if not self.problem.varies_along_n(node) and node not in update.stops:
                f.e.pin(f.value(node))
        weights = [w.weights for w in self.problem.all_weighted]
        names = dict(zip(weights, self.weights.names, strict=True))

        def step(i: str) -> None:
            update.enter(part, i)
            f.scopes.append({})
            line = f.add(f.mul(i, tile.stride), place)
            update.load_tiles(part.nodes, 0, line)
            for node, name in names.items():
                tile.store_lanes(f.read[name], line, f.value(node))
            f.scopes.pop()

        tile.loop("0", tile.deep, 1, step)

    # --- between turns ---------------------------------------------------------------------------

    def merge_states(self) -> None:
        """The states of all parts of this strip become final ones."""
        tile = self.tile
        self.merger.merge("", self.update.part())
        for state in self.strips.finals:
            tile.copy(tile.f.read[state], self.strips.final(state), tile.count)

    def finish_strip(self) -> None:
        """Sums of all parts of the strip before in order, and its results."""
        tile, f = self.tile, self.tile.f
        for state in self.strips.finals:
            tile.copy(self.strips.final(state), tile.f.read[state], tile.count)
        first = f.mul(tile.at, self.strips.count())
        for number in self.sums.numbers:
            f.read[f"sums{number}"] = self.strips.part_sums(number, first)
            count = f.mul(tile.count, tile.sum_stride(number))
            tile.loop("1", self.strips.count(), 1, partial(self.add_part, number, first, count))
        self.outputs.emit()

    def add_part(self, number: int, first: str, count: str, other: str) -> None:
        """Weighted sums of another part, added to those of the first."""
        tile, f = self.tile, self.tile.f
        more = self.strips.part_sums(number, f.add(first, other))

        def step(i: str) -> None:
            total = combine(f.e, "add", self.sums.load(number, i), tile.load(more, i))
            self.sums.put(number, i, total.text)

        tile.vectors(count, step)


class TransposedInPlace:
    """Transposed sums in the memory of their results; the last strip ends them."""

    def __init__(self, tile: Tile, products: TransposedProducts, strips: StripMemory) -> None:
        self.tile, self.products, self.strips = tile, products, strips
        self.sums, self.stores = tile.problem.transposed, tile.problem.streaming.across
        self.along_n = [is_along_n(tile.problem, store) for store in self.stores]

    def reserve(self) -> None:
        """Packed values of rows, and sums of a block whose results are contiguous along N."""
        tile = self.tile
        for number in range(len(self.sums)):
            self.products.reserve(number)
            if self.along_n[number]:
                rows = tile.plan.block_n + tile.lanes
                tile.reserve(f"block{number}", rows * self.block_stride(number))
                tile.reserve("square", tile.lanes * tile.lanes)

    def block_stride(self, number: int) -> int:
        """Numbers from one row of the sums of a block to the next."""
        return self.products.width(number) + self.tile.lanes

    def emit(self) -> None:
        """What a block adds."""
        for number in range(len(self.sums)):
            self.add(number)

    def enter(self, number: int) -> Part:
        """Go to the results of a sum."""
        f, w = self.tile.f, self.sums[number]
        part = f.part = part_of(w.contraction, [self.stores[number]], w.state.fold)
        f.opened(part.batch, f.coordinates(part.batch, self.tile.at))
        return part

    def add(self, number: int) -> None:
        """Transposed weights times values of rows, added to results."""
        tile, f, e, strips = self.tile, self.tile.f, self.tile.e, self.strips
        first = e.let(f"icmp eq i64 {strips.strip}, 1")
        last = e.let(f"icmp eq i64 {strips.strip}, {f.number('strips', tile.plan.strips)}")
        if self.along_n[number]:
            width = f.number(("block width", number), self.block_stride(number))
            self.products.multiply(number, f.read[f"block{number}"], width, "true")
            more = e.let(f"xor i1 {last}, true")
            for condition, ends in ((more, False), (last, True)):
                e.branch(condition, partial(tile.scoped, self.add_lines, number, first, ends))
            return
        sums, width = self.memory(number)
        self.products.multiply(number, sums, width, first)
        if self.stores[number].src[0] is not self.sums[number].state.fold:
            e.branch(last, partial(tile.scoped, self.finish, number, sums, width))

    def memory(self, number: int) -> tuple[str, str]:
        """Where the results of this block are, and numbers from one row to the next."""
        tile, f, store = self.tile, self.tile.f, self.stores[number]
        self.enter(number)
        (streamed,), (column,) = tile.problem.n_axes, self.sums[number].contraction.columns
        f.open[streamed], f.open[column] = tile.k, "0"
        where, index, _, _ = store.arg
        name = ("at", tile.numbers.position[store])
        place = f.index(index, (), name).text
        (at,) = [p for p, (atom, _) in enumerate(index[1]) if atom == streamed]
        width = f.number((name, at, "step"), dict(index[1])[streamed])
        return tile.element(f.pointer(where), place), width

    def finish(self, number: int, sums: str, width: str) -> None:
        """What is computed from transposed sums, in their place."""
        tile, f, w, store = self.tile, self.tile.f, self.sums[number], self.stores[number]
        part = f.part = part_of(w.contraction, [store], w.state.fold)
        fixed = column_invariant(tile.problem, part, [store], w.contraction.columns, [w.state.fold])
        columns = self.products.columns(number)

        def row(r: str) -> None:
            line = f.mul(r, width)

            def vector(step: str) -> None:
                place = Val(f.add(line, step), int64)
                found = load_value(f.e, sums, place, tile.dtype, None, f.mask, "row")
                f.scopes[-1][w.state.fold] = found
                f.store(store, f.value(store.src[0]))

            f.lanes(part.columns.axes[-1], "0", columns, fixed, vector)

        f.walk(part.rows, f.coordinates(part.rows, tile.k), tile.deep, row)

    def add_lines(self, number: int, first: str, ends: bool) -> None:
        """Add a block's sums to results whose memory is contiguous along N."""
        tile, f, e, store = self.tile, self.tile.f, self.tile.e, self.stores[number]
        part = self.enter(number)
        sums, square = f.read[f"block{number}"], f.read["square"]
        width = f.number(("block width", number), self.block_stride(number))
        columns = self.products.columns(number)
        where, index, _, _ = store.arg
        name = ("at", tile.numbers.position[store])

        def some(c: str) -> None:  # rows of memory that are far apart: few
            def vector(step: str) -> None:
                source = tile.element(sums, f.add(f.mul(step, width), c))
                operands = f"ptr {source}, ptr {square}, i64 {tile.lanes}, i64 {width}"
                tile.invoke(transpose(tile.registers), "ptr, ptr, i64, i64", operands)
                many = f.least(str(tile.lanes), f.sub(columns, c))
                f.walk(part.columns, f.coordinates(part.columns, c), many, column)

            f.lanes(part.rows.axes[-1], tile.k, f.add(tile.k, tile.deep), [], vector)

        def column(c: str) -> None:
            found = tile.load(square, f.mul(c, str(tile.lanes)))
            place = f.first(index, (), name)[0]
            old = load_value(e, f.pointer(where), place, tile.dtype, None, f.mask, "row")
            total = combine(e, "add", old, found).text
            kinds = f"{tile.vector} {found.text}, {tile.vector} {total}"
            sum_ = Val(e.let(f"select i1 {first}, {kinds}"), tile.dtype, True)
            f.scopes[-1][self.sums[number].state.fold] = sum_
            f.store(store, f.value(store.src[0]) if ends else sum_)

        tile.vectors(columns, some)


def shared_keys(tile: Tile) -> tuple[list[Operand], dict[Operand, tuple[int, Operand]]]:
    """Keys of all products, and those that a block packs once for a product and a weighted sum."""
    problem = tile.problem
    keys = [side(p.contraction, "left") for p in problem.products]
    packed: dict[Operand, tuple[int, Operand]] = {}
    for w in problem.weighted if tile.has_masks else ():
        number = packed_keys(problem, w)
        if number is not None:
            own = packed.get(keys[number], (number, keys[number]))
            keys[number] = replace(own[1], along="folded")
            packed |= {keys[number]: own, side(w.contraction, "right"): own}
    return keys, packed


def _line(numbers: int) -> int:
    """Numbers in whole lines of memory."""
    return -(-numbers // 16) * 16
