"""Folds in strips: crossed sums that need states at their end, with no product worked out twice.

In: a fold that is cut into strips of rows (kernel/stream/two_pass.py). Out: phases that take strips
one after the other; a unit is a part of the streamed axis. A block's turn does two things while its
keys and values are near: with the states of the strip before, which are final, it makes that
strip's weights and adds them to sums with columns and to crossed ones, which are in the memory of
their results; then it puts the products of the next strip in the place of those of the last and
takes them into that strip's states. Between turns the states and sums of parts are put together in
order. So the order of all sums follows from sizes alone, and the memory is that of one strip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial

from ....core.dtype import DType, bool_, int64
from ....core.node import Node
from ....kernel.contract.analysis import Part
from ....kernel.contract.analysis import part as part_of
from ....kernel.stream.online import State
from ....kernel.stream.roles import Fold, FoldCut
from ....kernel.stream.two_pass import is_turned, packed_keys
from ...common.api import Phase, Rendered
from ..gemm.microkernel import MASKS, Registers, transpose
from ..gemm.pack import Side, Span
from ..llvm.convert import load_value
from ..llvm.emitter import Val
from ..spelling import combine, identity
from .inner_reduce import FoldFrame
from .template import RowLanes

_HEAD = 16  # numbers of the workspace before all others: which strip it is


class StripLanes(RowLanes):
    """Tiles with the rows side by side, in strips."""

    strip: str  # the one whose products are made
    weighs: str  # is there one before it, whose products are there?
    scores: str  # is there one at all, or was the last one made?

    def __init__(
        self, fold: Fold, dtypes: Sequence[DType], registers: Registers, cut: FoldCut
    ) -> None:
        super().__init__(fold, dtypes, registers, cut)
        self.stops |= fold.constants
        self.strips, self.chunks = cut.strips, cut.splits
        self.apart = -(-cut.rows // self.lanes) * self.lanes  # numbers between streamed elements
        self.kept_scalars = [n for n, s in enumerate(self.states) if s in fold.scalars]
        self.packed: dict[Side, tuple[int, Side]] = {}  # packed keys, also where they are values
        for number, m in enumerate(fold.matrices):
            product = packed_keys(fold, m)
            if product is not None and self.target.vectors in MASKS:
                keys = self.packed.get(self.keys[product], (product, self.keys[product]))
                self.keys[product] = replace(keys[1], along="folded")
                self.packed |= {self.keys[product]: keys, self.values[number]: keys}

    # --- memory: which strip, final states, states and sums of parts, products of a strip --------

    def is_shared(self, number: int) -> bool:
        """Values are packed for a block, which is not there twice."""
        return False

    def is_plain(self, s: Side) -> bool:
        """Can microkernels read a left factor where it is, or where it was packed for all?"""
        return s in self.packed or super().is_plain(s)

    def lies_near(self, s: Side, columns: Sequence[int]) -> bool:
        """Can microkernels read a right factor where it is, or where it was packed for all?"""
        return s in self.packed or super().lies_near(s, columns)

    def where(self, s: Side, own: str, folded: str) -> tuple[str, str]:
        """Where a plain factor begins, and how far apart its rows are."""
        if s not in self.packed:
            return super().where(s, own, folded)
        number, _ = self.packed[s]
        deep = self.deepest(self.fold.products[number])
        return self.f.read[f"keys{number}"], self.f.number(("deep", deep), deep)

    def pack_keys(self) -> None:
        """Keys of a block that are values too, once for both."""
        for number, s in dict.fromkeys(self.packed.values()):
            product = self.fold.products[number]
            depth = self.f.number(("depth", number), self.fold.count(product.contraction.folded))
            self.open_batch(s)
            span = Span(self.k, self.deep, "0", depth)
            goal = self.goal(self.f.read[f"keys{number}"], product)
            self.f.scope(partial(self.packer(s).pack, span, goal))

    def is_fine(self, number: int) -> bool:
        """Sums are in the memory of their results, with nothing beside them."""
        return False

    def kept(self, level: int) -> Node | None:
        """Nothing takes the place of a product: the next turn needs it."""
        return None

    def at_level(self, level: int) -> tuple[list[State], list[tuple[int, Node]]]:
        """States alone: weights are made of final ones."""
        return [s for s in self.fold.scalars if s.level == level], []

    @property
    def units(self) -> int:
        """Parts of the streamed axis are counted beside."""
        return self.batch

    @property
    def row_states(self) -> int:
        """Numbers of the states of one number a row."""
        return len(self.kept_rows) * self.state_numbers

    @cached_property
    def kept_rows(self) -> list[str]:
        """The states of one number a row, then what rounding took from sums among them."""
        rests = [f"rest of {self.states.index(state)}" for state in self.with_rests]
        return [f"state{number}" for number in self.kept_scalars] + rests

    @property
    def column_sums(self) -> int:
        """Numbers of the sums with columns, in whole lines of memory."""
        found = sum([self.sum_numbers(n) for n in range(len(self.fold.matrices))])
        return -(-found // 16) * 16

    @property
    def product_numbers(self) -> int:
        """Numbers of one product of a strip, for one batch element."""
        return -(-(self.length * self.apart + self.lanes) // 16) * 16

    @property
    def places(self) -> tuple[int, int, int, int, int]:
        """Where final states, states and sums of parts, and products begin, and the end."""
        final = self.parts_at() + _HEAD
        parts = final + -(-self.batch * self.row_states // 16) * 16
        sums = parts + -(-self.batch * self.chunks * self.row_states // 16) * 16
        products = sums + self.batch * self.chunks * self.column_sums
        end = products + len(self.fold.products) * self.batch * self.product_numbers
        return final, parts, sums, products, end

    def part_numbers(self) -> int:
        """Numbers of all that strips leave for each other."""
        return self.places[-1] - self.parts_at()

    def reserved(self, what: int, number: str, each: int, before: int = 0) -> str:
        """Memory of the workspace: a place of `places`, and the number of some that are alike."""
        f = self.f
        first = f.number(("strip", what, before), self.places[what] + before)
        place = f.add(first, f.mul(number, f.number(("strip each", what), each)))
        return self.element(f.pointer(len(self.dtypes)), place)

    def final_state(self, number: int) -> str:
        """The final states of a strip."""
        before = self.kept_scalars.index(number) * self.state_numbers
        return self.reserved(0, self.at, self.row_states, before)

    def part_state(self, name: str, part: str) -> str:
        before = self.kept_rows.index(name) * self.state_numbers
        return self.reserved(1, part, self.row_states, before)

    def part_sums(self, number: int, part: str) -> str:
        before = sum([self.sum_numbers(n) for n in range(number)])
        return self.reserved(2, part, self.column_sums, before)

    def products_at(self, number: int) -> str:
        """Where the products of this block are."""
        before = number * self.batch * self.product_numbers
        strip = self.reserved(3, self.at, self.product_numbers, before)
        return self.element(strip, self.f.mul(self.k, self.stride))

    # --- phases ----------------------------------------------------------------------------------

    def render(self) -> Rendered:
        """The functions, and their phases for one strip after the other."""
        found = super().render()
        *before, walk, finish, start, following = found.phases
        each = 1 + self.strips
        walk = Phase(walk.symbol, walk.units, walk.work // each)
        turns = [p for _ in range(each) for p in (walk, finish, following)]
        return Rendered(
            found.text, (*before, start, *turns[:-1]), found.variables, found.numbers,
            found.workspace, found.library,
        )  # fmt: skip

    def which(self) -> None:
        """Read which strip it is."""
        f, e = self.f, self.f.e
        at = f.number("strip at", self.parts_at())
        self.counter = self.element(f.pointer(len(self.dtypes)), at)
        self.strip = e.let(f"load i64, ptr {self.counter}, align 8")
        count = f.number("strips", self.strips)
        self.weighs = e.let(f"icmp sgt i64 {self.strip}, 0")
        self.scores = e.let(f"icmp slt i64 {self.strip}, {count}")
        tall, rows = f.number("tile rows", self.cut.rows), f.number("rows", self.rows)
        self.now = f.mul(self.strip, tall)
        self.last = f.sub(self.now, tall)
        self.counts = [f.least(tall, f.sub(rows, top)) for top in (self.now, self.last)]

    def enter(self, earlier: bool) -> None:
        """Be about the rows of the strip before, or of this one."""
        self.top = self.last if earlier else self.now
        self.count = self.counts[earlier]
        self.left = []
        for number, columns in enumerate(self.fold.columns):
            self.left.append(("0", self.f.number(("columns", number), self.fold.count(columns))))

    def either(self, earlier: Callable[[], None], now: Callable[[], None]) -> None:
        """What is done for the strip before, then for this one."""
        for first, condition, body in ((True, self.weighs, earlier), (False, self.scores, now)):

            def entered(first: bool = first, body: Callable[[], None] = body) -> None:
                self.enter(first)
                self.f.scope(body)

            self.f.e.branch(condition, entered)

    def main(self) -> FoldFrame:
        """The function that takes a part of the streamed axis through a turn."""
        f = self.f = self.new_frame("kernel")
        e = f.e
        length, steps = f.number("length", self.length), f.number("steps", self.cut.steps)
        self.prepare(self.reserve)
        self.which()

        def unit(index: str, _: list[str]) -> list[str]:
            self.part = index
            self.at, part = f.divided(index, f.number("chunks", self.chunks))
            span = f.number("span", self.cut.span)
            start = self.start = f.mul(part, span)
            end = f.least(length, f.add(start, span))
            self.either(self.pack_crossed, self.begin_states)

            def turn(k: str, _: list[str]) -> list[str]:
                self.k, self.deep = k, f.least(steps, f.sub(length, k))
                self.pack_keys()
                self.either(self.weigh, self.score)
                return []

            e.loop(start, end, self.cut.steps, [], turn)
            self.either(lambda: None, self.keep_states)
            return []

        e.loop("%first", "%last", 1, [], unit)
        return f

    def after(self) -> list[tuple[FoldFrame, Phase]]:
        """What runs between turns, and what says which strip is next."""
        f = self.f = self.new_frame("kernel_finish")
        self.prepare(self.reserve_rows)
        self.which()

        def unit(index: str, _: list[str]) -> list[str]:
            self.at = index
            self.either(self.finish_strip, self.merge_states)
            return []

        f.e.loop("%first", "%last", 1, [], unit)
        work = 4 * self.batch * self.chunks * (self.column_sums + self.row_states)
        found = [(f, Phase(f.symbol, self.batch, work))]
        for symbol, value in (("kernel_start", "0"), ("kernel_next", "")):
            f = self.f = self.new_frame(symbol)
            self.which()
            number = value or f.add(self.strip, "1")
            f.e.line(f"store i64 {number}, ptr {self.counter}, align 8")
            found.append((f, Phase(symbol, 1, 0)))
        return found

    # --- what a turn needs beside memory of strips -----------------------------------------------

    def reserve(self) -> None:
        """Factors that are packed, weights, and states."""
        f, cut, lanes = self.f, self.cut, self.lanes
        self.stride = f.number("stride", self.apart)
        self.weights_by = ("1", self.stride)
        for number in range(len(self.turned)):
            self.room(f"turned{number}", self.tile_numbers)
        for number, product in enumerate(self.fold.products):
            blocks = self.blocks(product) if cut.resident[number] else 1
            self.room(f"queries{number}", blocks * self.query_numbers(product))
            if self.keys[number] in self.packed or not self.is_plain(self.keys[number]):
                self.room(f"keys{number}", (cut.steps + lanes) * self.deepest(product))
        names: dict[Node, str] = {}
        for number, m in enumerate(self.fold.weighing):
            names.setdefault(m.weights, f"weights{number}")
        self.tiles = [names[m.weights] for m in self.fold.weighing]
        for name in names.values():
            self.room(name, self.tile_numbers)
        for number in range(len(self.fold.matrices)):
            if not self.is_near(number):
                self.room(f"values{number}", cut.columns[number] * (cut.steps + lanes))
        panel = self.registers.panel
        for number in range(len(self.crossed)):
            if not self.is_close(number):
                columns = -(-self.cross_columns(number) // panel) * panel
                self.room(f"crossed{number}", columns * (cut.rows + lanes))
            if is_turned(self.fold, self.fold.streaming.across[number]):
                self.room(f"block{number}", (cut.steps + lanes) * self.block_width(number))
                self.room("square", lanes * lanes)
        self.reserve_group()
        self.reserve_rows()
        for state in self.with_rests:
            self.room(f"rest of {self.states.index(state)}", self.state_numbers)
        f.scratch("begun", "i64", "1")

    # --- this strip: products and states ---------------------------------------------------------

    def begin_states(self) -> None:
        """States before anything was seen; queries are packed once for a part."""
        f, e = self.f, self.f.e
        e.line(f"store i64 0, ptr {f.read['begun']}")
        for number in self.kept_scalars:
            start = identity(e, self.states[number].op, self.fold.dtype, True)
            self.fill(f.read[f"state{number}"], self.count, start)
        for state in self.with_rests:
            self.fill(self.rest_of(state), self.count, e.const(0, self.fold.dtype, True))
        for number in range(len(self.fold.products)):
            if self.cut.resident[number]:
                self.pack_queries(number)

    def score(self) -> None:
        """Products of a block, which stay, and what they are for the states."""
        f, e = self.f, self.f.e
        for number in range(len(self.fold.products)):
            f.read[f"tile{number}"] = self.products_at(number)
            self.product(number)
        self.turn_loads()
        self.seen = e.let(f"load i64, ptr {f.read['begun']}")
        self.begun = e.let(f"icmp ne i64 {self.seen}, 0")
        self.walk_rows()
        e.line(f"store i64 1, ptr {f.read['begun']}")

    def keep_states(self) -> None:
        """States of a part, for who puts them together."""
        for name in self.kept_rows:
            self.copy(self.f.read[name], self.part_state(name, self.part), self.count)

    # --- the strip before: weights and sums ------------------------------------------------------

    def weigh(self) -> None:
        """Weights of a block, and what they add to all sums."""
        f = self.f
        for number in range(len(self.fold.products)):
            f.read[f"tile{number}"] = self.products_at(number)
        self.turn_loads()
        self.walk_weights()
        self.begun = f.e.let(f"icmp sgt i64 {self.k}, {self.start}")
        for number in range(len(self.fold.matrices)):
            f.read[f"sums{number}"] = self.part_sums(number, self.part)
            self.add(number)
        for number in range(len(self.crossed)):
            self.add_crossed(number)

    def walk_weights(self) -> None:
        """All weights of a block, lanes along the rows."""
        f = self.f
        weights = [m.weights for m in self.fold.weighing]
        part = f.part = self.fold.part(weights, self.stops | self.olds, self.fold.streaming.axes)
        f.opened(part.batch, f.coordinates(part.batch, self.at))
        final = {self.states[n].fold: self.final_state(n) for n in self.kept_scalars}

        def run(offset: str, first: str, last: str) -> None:
            def vector(step: str) -> None:
                place = f.add(offset, step)
                for node, memory in final.items():
                    f.scopes[-1][node] = self.load(memory, place)
                self.weigh_rows(part, place)

            f.lanes(part.rows.axes[-1], first, last, [], vector)

        f.runs(part.rows, f.coordinates(part.rows, self.top), self.count, run)

    def weigh_rows(self, part: Part, place: str) -> None:
        """The weights of one vector of rows."""
        f, e = self.f, self.f.e
        for node in part.nodes:
            if not self.fold.free[node] & self.streamed and node not in self.stops:
                e.pin(f.value(node))
        names = {m.weights: name for m, name in zip(self.fold.weighing, self.tiles, strict=True)}

        def step(i: str, _: list[str]) -> list[str]:
            f.opened(part.columns, f.coordinates(part.columns, f.add(self.k, i)))
            f.scopes.append({})
            line = f.add(f.mul(i, self.stride), place)
            self.known_products(part.nodes, 0, line)
            for number, node in enumerate(self.turned):
                if node in part.nodes:
                    found = self.load(f.read[f"turned{number}"], line)
                    f.scopes[-1][node] = self.as_truth(found) if node.dtype is bool_ else found
            for node, name in names.items():
                self.put(f.read[name], line, f.value(node))
            f.scopes.pop()
            return []

        e.loop("0", self.deep, 1, [], step)

    def crossed_memory(self, number: int) -> tuple[str, str]:
        """Where the results of this block are, and numbers from one row to the next."""
        f, m, store = self.f, self.crossed[number], self.fold.streaming.across[number]
        part = f.part = part_of(m.contraction, [store], m.state.fold)
        f.opened(part.batch, f.coordinates(part.batch, self.at))
        (streamed,), (column,) = self.fold.streaming.axes, m.contraction.columns
        f.open[streamed], f.open[column] = self.k, "0"
        where, index, _, _ = store.arg
        name = ("at", self.numbers.position[store])
        place = f.index(index, (), name).text
        (at,) = [p for p, (atom, _) in enumerate(index[1]) if atom == streamed]
        width = f.number((name, at, "step"), dict(index[1])[streamed])
        return self.element(f.pointer(where), place), width

    def add_crossed(self, number: int) -> None:
        """Turned weights times values of rows, added to results; the last strip ends them."""
        f, e = self.f, self.f.e
        store, fold = self.fold.streaming.across[number], self.crossed[number].state.fold
        first = e.let(f"icmp eq i64 {self.strip}, 1")
        last = e.let(f"icmp eq i64 {self.strip}, {f.number('strips', self.strips)}")
        if is_turned(self.fold, store):
            width = f.number(("block width", number), self.block_width(number))
            sums = f.read[f"block{number}"]
            self.multiply_crossed(number, sums, width, "true")
            more = e.let(f"xor i1 {last}, true")
            for condition, ends in ((more, False), (last, True)):
                e.branch(condition, partial(f.scope, partial(self.turn, number, first, ends)))
            return
        sums, width = self.crossed_memory(number)
        self.multiply_crossed(number, sums, width, first)
        if store.src[0] is not fold:
            e.branch(last, partial(f.scope, partial(self.end_crossed, number, sums, width)))

    def end_crossed(self, number: int, sums: str, width: str) -> None:
        """What is computed from crossed sums, in their place."""
        f, m, store = self.f, self.crossed[number], self.fold.streaming.across[number]
        part = f.part = part_of(m.contraction, [store], m.state.fold)
        fixed = self.steady(part, [store], m.contraction.columns, [m.state.fold])
        columns = f.number(("crossed columns", number), self.cross_columns(number))

        def row(r: str) -> None:
            line = f.mul(r, width)

            def vector(step: str) -> None:
                place = Val(f.add(line, step), int64)
                found = load_value(f.e, sums, place, self.fold.dtype, None, f.mask, "row")
                f.scopes[-1][m.state.fold] = found
                f.store(store, f.value(store.src[0]))

            f.lanes(part.columns.axes[-1], "0", columns, fixed, vector)

        f.walk(part.rows, f.coordinates(part.rows, self.k), self.deep, row)

    def block_width(self, number: int) -> int:
        """Numbers from one row of the sums of a block to the next."""
        return self.cross_width(number) + self.lanes

    def turn(self, number: int, first: str, ends: bool) -> None:
        """Add a block's sums to results whose memory runs along the streamed axis."""
        f, e, m = self.f, self.f.e, self.crossed[number]
        store = self.fold.streaming.across[number]
        part = f.part = part_of(m.contraction, [store], m.state.fold)
        f.opened(part.batch, f.coordinates(part.batch, self.at))
        sums, square = f.read[f"block{number}"], f.read["square"]
        width = f.number(("block width", number), self.block_width(number))
        columns = f.number(("crossed columns", number), self.cross_columns(number))
        where, index, _, _ = store.arg
        name = ("at", self.numbers.position[store])

        def some(c: str, _: list[str]) -> list[str]:  # rows of memory that are far apart: few
            def vector(step: str) -> None:
                source = self.element(sums, f.add(f.mul(step, width), c))
                operands = f"ptr {source}, ptr {square}, i64 {self.lanes}, i64 {width}"
                self.invoke(transpose(self.registers), "ptr, ptr, i64, i64", operands)
                many = f.least(str(self.lanes), f.sub(columns, c))
                f.walk(part.columns, f.coordinates(part.columns, c), many, column)

            f.lanes(part.rows.axes[-1], self.k, f.add(self.k, self.deep), [], vector)
            return []

        def column(c: str) -> None:
            found = self.load(square, f.mul(c, str(self.lanes)))
            place = f.first(index, (), name)[0]
            old = load_value(e, f.pointer(where), place, self.fold.dtype, None, f.mask, "row")
            total = combine(e, "add", old, found).text
            kinds = f"{self.vector} {found.text}, {self.vector} {total}"
            sum_ = Val(e.let(f"select i1 {first}, {kinds}"), self.fold.dtype, True)
            f.scopes[-1][m.state.fold] = sum_
            f.store(store, f.value(store.src[0]) if ends else sum_)

        e.loop("0", columns, self.lanes, [], some)

    # --- between turns ---------------------------------------------------------------------------

    def alike(self) -> list[list[int]]:
        """No sums with columns are repaired or merged: their bases are final."""
        return []

    @property
    def part_count(self) -> str:
        """How many parts a strip has."""
        return self.f.number("chunks", self.chunks)

    def places_of(self, unit: str, part: str) -> dict[str, str]:
        """Where the states of a part of this strip are."""
        index = self.f.add(self.f.mul(self.at, self.part_count), part)
        return {name: self.part_state(name, index) for name in self.kept_rows}

    def merge_states(self) -> None:
        """The states of all parts of this strip become final ones."""
        f = self.f
        self.merge("")
        for number in self.kept_scalars:
            self.copy(f.read[f"state{number}"], self.final_state(number), self.count)

    def finish_strip(self) -> None:
        """Sums of all parts of the strip before in order, and its results."""
        f, e = self.f, self.f.e
        for number in self.kept_scalars:
            self.copy(self.final_state(number), f.read[f"state{number}"], self.count)
        first = f.mul(self.at, f.number("chunks", self.chunks))
        for number in range(len(self.fold.matrices)):
            sums = f.read[f"sums{number}"] = self.part_sums(number, first)
            count = f.mul(self.count, self.width(number))

            def part(other: str, _: list[str], number: int = number, sums: str = sums,
                     count: str = count) -> list[str]:  # fmt: skip
                more = self.part_sums(number, f.add(first, other))

                def step(i: str, _: list[str]) -> list[str]:
                    total = combine(e, "add", self.load(sums, i), self.load(more, i))
                    where = self.element(sums, i)
                    e.line(f"store {self.vector} {total.text}, ptr {where}, align 4")
                    return []

                e.loop("0", count, self.lanes, [], step)
                return []

            e.loop("1", f.number("chunks", self.chunks), 1, [], part)
        self.finish()
