"""Folds whose lanes run along the streamed axis: few rows, or memory that lies that way.

In: a `Fold` and its cut. Out: the text of one function. A tile has a row for each row of the fold
and the streamed elements side by side: products are rows of queries times panels of keys, as in a
plain contraction, and loads along the streamed axis are vectors as they are. Each row is walked by
itself; what a fold gave in every lane is put together at the end of a block, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from ....core.dtype import DType, bool_, float32, float64
from ....core.node import toposort
from ....core.ops.elementwise import EXP, EXP2
from ....kernel.contract.analysis import DEPTH
from ....kernel.stream.online import State
from ....kernel.stream.roles import FEW, Fold, FoldCut
from ...common.api import Phase
from ..gemm.gemv import DOTS, dots
from ..gemm.microkernel import Registers, block
from ..gemm.pack import Side, Span, side
from ..gemm.skinny import NARROW, narrow
from ..llvm.emitter import Val
from ..llvm.maths import select
from ..spelling import identity
from .inner_reduce import FoldFrame
from .loop import SHARED
from .split import FoldSplit

_ACROSS = {"add": "fadd", "max": "fmaximum", "min": "fminimum"}
_QUICK = {"max": "fmax", "min": "fmin"}  # of what is never NaN
_MASKS = ("avx512", "avx2")


class StreamLanes(FoldSplit):
    """Tiles with the streamed elements side by side."""

    def __init__(
        self, fold: Fold, dtypes: Sequence[DType], registers: Registers, cut: FoldCut
    ) -> None:
        super().__init__(fold, dtypes, registers, cut)
        turned = [
            replace(
                p.contraction, left=p.queries, right=p.keys, rows=p.contraction.columns,
                columns=p.contraction.rows,
            )
            for p in fold.products
        ]  # fmt: skip
        self.queries = [side(c, "left") for c in turned]
        self.keys = [side(c, "right") for c in turned]

    def tiles_of_products(self) -> None:
        """Products, and factors that must be packed for them."""
        cut, panel = self.cut, self.registers.panel
        self.stride = self.f.number("stride", cut.steps + self.lanes)
        self.weights_by = (self.stride, "1")
        for number, product in enumerate(self.fold.products):
            self.room(f"tile{number}", self.tile_numbers)
            deep = self.deepest(product)
            if not self.is_plain(self.queries[number]):
                self.room(f"queries{number}", (cut.rows + self.lanes) * deep)
            if self.is_packed(number) and not self.is_packed_once(number):
                self.room(f"keys{number}", -(-cut.steps // panel) * panel * deep)

    @property
    def tile_numbers(self) -> int:
        """Numbers of a tile: no more rows than there are, with room for a vector after its end."""
        return self.tallest * (self.cut.steps + self.lanes) + self.lanes

    @property
    def tallest(self) -> int:
        """Rows of the tallest tile."""
        return min(self.cut.rows, self.rows)

    def is_dotted(self, number: int) -> bool:
        """Few rows, and keys that memory has along the depth: lanes run along that."""
        s, q = self.keys[number], self.queries[number]
        if self.saves:
            return False
        lined = (q.straight or not self.is_plain(q)) and self.is_memory(s) and not s.straight
        few = FEW if self.target.vectors in _MASKS else 1  # several need parts of vectors
        return self.rows <= few and lined and self.dtypes[s.root.arg[0]] is self.fold.dtype

    @cached_property
    def saves(self) -> bool:
        """Are there results of one number a row, or powers of products on bases from elsewhere?

        Then products are worked out in two kernels, with rows and columns exchanged. They must be
        the same to the last bit: gradients are differences of sums that nearly cancel.
        """
        own = frozenset((*self.fold.batch, *self.fold.rows))
        if any(self.fold.free[store] <= own for store in self.fold.streaming.stores):
            return True
        products = {p.node for p in self.fold.products}
        for node in self.fold.order:
            if node.op in (EXP, EXP2):
                inside = set(toposort([node]))
                if inside & products and not inside & self.group:
                    return True
        return False

    def is_read(self, s: Side) -> bool:
        """Can microkernels read keys where they are?"""
        if not (self.is_memory(s) and s.straight) or self.target.vectors not in _MASKS:
            return False
        return self.dtypes[s.root.arg[0]] is self.fold.dtype and self.tallest <= 4 * self.lanes

    # --- keys that all units share ---------------------------------------------------------------

    def is_packed(self, number: int) -> bool:
        """Are keys put in order?"""
        return not self.is_dotted(number) and not self.is_read(self.keys[number])

    def is_packed_once(self, number: int) -> bool:
        """Are keys put in order once for all units, where several need them?"""
        numbers = self.key_numbers(number) * self.fold.dtype.itemsize
        return self.is_packed(number) and self.tall * self.wide > 1 and numbers <= SHARED

    def key_block(self, number: int) -> int:
        """Numbers of the packed keys of one block, for one block of the depth."""
        panel = self.registers.panel
        return -(-self.cut.steps // panel) * panel * self.deepest(self.fold.products[number])

    def key_numbers(self, number: int) -> int:
        blocks = self.blocks(self.fold.products[number])
        return self.batch * self.pieces * blocks * self.key_block(number)

    def keys_at(self, number: int) -> int:
        """Where in the workspace the keys of a product begin."""
        before = [self.key_numbers(n) for n in range(number) if self.is_packed_once(n)]
        return super().keys_at(number) + sum(before)

    def packed_keys(self, number: int, piece: str, b: str) -> str:
        """Where the packed keys of a block are."""
        f = self.f
        blocks = self.blocks(self.fold.products[number])
        place = f.add(f.mul(self.at, f.number("pieces", self.pieces)), piece)
        place = f.add(f.mul(place, f.number(("blocks", number), blocks)), b)
        each = f.number(("key block", number), self.key_block(number))
        place = f.add(f.mul(place, each), f.number(("keys", number), self.keys_at(number)))
        return self.element(f.pointer(len(self.dtypes)), place)

    def key_phases(self) -> list[tuple[FoldFrame, Phase]]:
        """What packs keys for all units, a block at a time."""
        count = range(len(self.fold.products))
        return [self.key_phase(n) for n in count if self.is_packed_once(n)]

    def key_phase(self, number: int) -> tuple[FoldFrame, Phase]:
        f = self.f = self.new_frame(f"kernel_keys{number}")
        product, s = self.fold.products[number], self.keys[number]
        depth = self.fold.count(product.contraction.folded)
        f.read["row"] = f.number(("key row", number), self.cut.steps + self.lanes)
        length, steps = f.number("length", self.length), f.number("steps", self.cut.steps)
        f.part = s.part
        for node in s.part.nodes:
            if not self.fold.free[node]:
                f.value(node)

        def unit(index: str, _: list[str]) -> list[str]:
            outer, b = f.divided(index, f.number(("blocks", number), self.blocks(product)))
            self.at, piece = f.divided(outer, f.number("pieces", self.pieces))
            k, d = f.mul(piece, steps), f.mul(b, str(DEPTH))
            memory = self.packed_keys(number, piece, b)
            self.open_batch(s)
            many = f.least(str(DEPTH), f.sub(f.number(("depth", number), depth), d))
            span = Span(k, f.least(steps, f.sub(length, k)), d, many)
            f.scope(lambda: self.packer(s).pack(span, self.goal(memory, product)))
            return []

        f.e.loop("%first", "%last", 1, [], unit)
        units = self.batch * self.pieces * self.blocks(product)
        return f, Phase(f.symbol, units, 2 * self.batch * self.length * depth)

    # --- products --------------------------------------------------------------------------------

    def product(self, number: int) -> None:
        """A block of a product: a row for each row, a column for each streamed element."""
        f, e, product = self.f, self.f.e, self.fold.products[number]
        q, s = self.queries[number], self.keys[number]
        depth = f.number(("depth", number), self.fold.count(product.contraction.folded))
        deep = f.number(("deep", self.deepest(product)), self.deepest(product))
        tile = f.read[f"tile{number}"]

        def turn(b: str, _: list[str]) -> list[str]:
            f.scopes.append({})
            d = f.mul(b, str(DEPTH))
            many = f.least(str(DEPTH), f.sub(depth, d))
            first = "true" if b == "0" else e.let(f"icmp eq i64 {b}, 0")
            self.open_batch(q)
            if self.is_plain(q):
                left, stride = self.where(q, self.top, d)
                strides = (stride, "1") if q.straight else ("1", stride)
            else:
                left, strides = f.read[f"queries{number}"], (deep, "1")
                span, goal = Span(self.top, self.count, d, many), self.goal(left, product)
                f.scope(lambda: self.packer(q).pack(span, goal))
            self.open_batch(s)
            if self.is_dotted(number):
                self.dot((left, strides[0]), self.where(s, self.k, d), tile, many, first)
            else:
                self.panels(number, (left, *strides), (b, d, many), first)
            f.scopes.pop()
            return []

        if self.blocks(product) == 1:
            turn("0", [])
        else:
            e.loop("0", f.number(("blocks", number), self.blocks(product)), 1, [], turn)

    def dot(self, x: tuple[str, str], b: tuple[str, str], tile: str, many: str, first: str) -> None:
        """Rows times keys, both along the depth."""
        left, right = f"ptr {x[0]}", f"ptr {b[0]}, i64 {b[1]}"
        if self.rows == 1:
            module, kinds = dots(self.registers, (self.registers.dtype,) * 2), DOTS
            operands = f"{left}, {right}, ptr {tile}, i64 {many}, i64 {self.deep}, i1 {first}"
        else:
            module, kinds = narrow(self.registers, True), NARROW
            operands = (
                f"{left}, i64 {x[1]}, {right}, i64 1, ptr {tile}, i64 {self.stride}, i64 {many}, "
                f"i64 {self.count}, i64 {self.deep}, i1 {first}"
            )
        self.invoke(module, kinds, operands)

    def panels(
        self, number: int, left: tuple[str, str, str], deep_in: tuple[str, str, str], first: str
    ) -> None:
        """Rows times one panel of keys after the other, for one block of the depth."""
        b, d, many = deep_in
        f, s, product = self.f, self.keys[number], self.fold.products[number]
        tile, read = f.read[f"tile{number}"], self.is_read(s)
        module = block(self.registers)
        each = self.deepest(product)
        deep = f.number(("deep", each), each)
        if read:
            right, stride = self.where(s, self.k, d)
        elif self.is_packed_once(number):
            piece, _ = f.divided(self.k, f.number("steps", self.cut.steps))
            right, stride = self.packed_keys(number, piece, b), str(self.registers.panel)
        else:
            right, stride = f.read[f"keys{number}"], str(self.registers.panel)
            span, goal = Span(self.k, self.deep, d, many), self.goal(right, product)
            f.scope(lambda: self.packer(s).pack(span, goal))

        def panel(column: str, columns: str) -> None:
            at = self.element(right, column if read else f.mul(column, deep))
            ahead = ""
            if not read:  # the next panel, at the end that of the next block
                ahead = self.element(at, f.number(("panel", number), self.registers.panel * each))
            self.multiply_inside(
                product, module, left, (at, stride), (self.element(tile, column), self.stride),
                (many, self.count, columns), first, plain=read, ahead=ahead,
            )  # fmt: skip

        (self.evenly if read else self.packed_panels)(self.deep, panel)

    # --- walking ---------------------------------------------------------------------------------

    def walk_rows(self) -> None:
        """All states of one number a row, and the weights, row by row."""
        f, fold = self.f, self.fold
        part = f.part = self.walked_part()
        f.opened(part.batch, f.coordinates(part.batch, self.at))
        f.walk(part.rows, f.coordinates(part.rows, self.top), self.count, self.walk_row)
        assert len(part.columns.axes) == 1, f"{fold.streaming.axes} are not one line"

    def walk_row(self, r: str) -> None:
        f = self.f
        scope = f.scopes[-1]
        memory = {s: f.read[f"state{n}"] for n, s in enumerate(self.states)}
        for state in self.fold.scalars:
            scope[state.old] = self.one(memory[state], r)
        self.rests = {s: self.one(self.rest_of(s), r) for s in self.with_rests}
        scope |= self.whole_olds(lambda name: self.one(f.read[name], r))
        line = f.mul(r, self.stride)
        for level in range(self.fold.levels):
            self.walk_level(level, line)
        self.put_coefficients(r, self.put_one, self.inner)
        for state in self.fold.scalars:
            self.put_one(memory[state], r, scope[state.fold])
        for state, rest in self.rests.items():
            self.put_one(self.rest_of(state), r, rest)
        assert not any(v.vector for v in scope.values()), "a row's values are one number each"

    def put_one(self, memory: str, place: str, value: Val) -> None:
        where = self.element(memory, place)
        self.f.e.line(f"store {self.inner} {value.text}, ptr {where}, align 4")

    def walk_level(self, level: int, line: str) -> None:
        """One walk over a row of a block."""
        f, e, fold = self.f, self.f.e, self.fold
        scope = f.scopes[-1]
        scalars, weights = self.at_level(level)
        part = f.part
        assert part is not None
        if not scalars and not weights:
            return
        nodes = fold.part(self.bodies(level), self.stops | self.olds, ()).nodes
        for node in nodes:
            if not fold.free[node] & self.streamed and node not in self.stops:
                e.pin(f.value(node))
        for fixed in self.group & set(nodes):
            e.pin(scope[fixed])
        axis, kept = part.columns.axes[0], self.kept(level)

        def step(i: str, sums: list[str]) -> list[str]:
            f.open[axis], f.lane = f.add(self.k, i), axis
            f.mask = None if self.full else f.tail(f.sub(self.deep, i))
            f.scopes.append({})
            place = f.add(line, i)
            self.known_products(nodes, level, place)
            out = []
            for state, total in zip(scalars, sums, strict=True):
                value = self.in_use(e.splat(f.value(state.body)), state)
                out.append(self.taken_in(state, Val(total, fold.dtype, True), value))
            if kept is not None:
                self.put(f.read["tile0"], place, f.value(kept))
            for number, node in weights:
                self.put(f.read[self.tiles[number]], place, self.weight(number, node))
            f.scopes.pop()
            f.lane = f.mask = None
            del f.open[axis]
            return out

        sums = self.steps(scalars, step, nodes, self.lanes)
        before = self.before(level, vector=False)
        for state, total in zip(scalars, sums, strict=True):
            known = before.get(state, scope[state.old])
            scope[state.fold] = self.with_block(state, known, self.across(total, state))

    def with_odd(
        self, states: Sequence[State], totals: list[str], masks: Sequence[str]
    ) -> list[str]:
        """Extremes of numbers; lanes that met what is none are asked when they come together."""
        quick = [state for state in states if self.is_quick(state)]
        self.odd = dict(zip(quick, masks, strict=True))
        return totals

    def in_use(self, value: Val, state: State) -> Val:
        """A value in the lanes that are in use, elsewhere what changes nothing."""
        e, f = self.f.e, self.f
        if f.mask is None:
            return value
        nothing = identity(e, state.op, self.fold.dtype, True)
        return select(e, Val(f.mask, bool_, True), value, nothing)

    def across(self, total: str, state: State) -> Val:
        """What all lanes have together."""
        e, quick = self.f.e, self.is_quick(state)
        how = (_QUICK if quick else _ACROSS)[state.op]
        name = f"llvm.vector.reduce.{how}.{e.suffix(self.fold.dtype, True)}"
        vector = f"{self.vector} {total}"
        if quick:
            e.declare(f"{self.inner} @{name}({self.vector})", name)
            text = e.let(f"call nnan {self.inner} @{name}({vector})")
            odd = e.let(f"bitcast <{self.lanes} x i1> {self.odd[state]} to i{self.lanes}")
            met = Val(e.let(f"icmp ne i{self.lanes} {odd}, 0"), bool_)
            none = e.const(float("nan"), self.fold.dtype)
            return select(e, met, none, Val(text, self.fold.dtype))
        if state.op != "add":
            return Val(e.call(self.inner, name, vector), self.fold.dtype)
        exact = state in self.with_rests and self.fold.dtype is float32
        dtype = float64 if exact else self.fold.dtype
        kind, lanes = e.type_of(dtype, False), e.type_of(dtype, True)
        name = f"llvm.vector.reduce.fadd.{e.suffix(dtype, True)}"
        e.declare(f"{kind} @{name}({kind}, {lanes})", name)
        wide = e.let(f"fpext {vector} to {lanes}") if exact else total
        start = e.const(-0.0, dtype).text
        text = e.let(f"call reassoc {kind} @{name}({kind} {start}, {lanes} {wide})")
        if state in self.doubled:
            return Val(text, float64)
        if exact:
            return self.shortened(state, text)
        return Val(text, self.fold.dtype)
