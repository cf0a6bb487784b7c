"""States of a fold: a block is walked for those of one number a row, others are added to.

In: a block whose products are in tiles. Out: lines that take its steps into the states of rows,
leave coefficients of every row in small arrays, repair rows of columns whose bases moved, and add
weights times values by a microkernel. Nothing is repaired before the second block, and nothing
worked out for it. What is stored at the end is in codegen/cpu/stream/outputs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ....core.dtype import bool_, float32
from ....core.node import Node, toposort
from ....kernel.contract.analysis import Part
from ....kernel.stream.online import State
from ..gemm.gemv import DOTS, sweep
from ..gemm.microkernel import block
from ..gemm.pack import Span
from ..gemm.pack import Target as Goal
from ..llvm.emitter import Val
from ..llvm.maths import select
from ..spelling import combine, identity
from .outputs import FoldResults

_BEYOND = {"max": "ogt", "min": "olt"}
_LIGHT = 24  # cost of a step that is over before its sum is there
_TURNS = 4  # sums that such a walk keeps at a time
_SHORT = 32  # steps that are summed before they are added: more in a row would lose digits
_FINE = 12  # the same of few sums
_PART = 12 * _FINE  # steps whose sums are added to those that keep what rounding takes
_MANY = 2048  # steps of which so few at a time would be too many sums in a row
_DEAR = 4  # cost of a step from which its result is kept for the next walk


class FoldStates(FoldResults):
    """States with columns, and results."""

    weights_by: tuple[str, str]  # strides of a tile of weights: between rows, between elements

    seen: str  # 1 if there were blocks before this one
    begun: str  # the same as a truth
    full = False  # do all lanes of a step lie within the block?
    met: dict[State, list[str]]  # values that extremes took in in this step

    def product(self, number: int) -> None:
        """A block of a product."""
        raise NotImplementedError

    def walk_rows(self) -> None:
        """All states of one number a row, and the weights."""
        raise NotImplementedError

    def turn_loads(self) -> None:
        """Put loads into tiles where they lie the other way."""

    def block(self) -> None:
        """Products, then states of one number a row, then those with columns."""
        f, e = self.f, self.f.e
        for number in range(len(self.fold.products)):
            self.product(number)
        self.turn_loads()
        self.seen = e.let(f"load i64, ptr {f.read['begun']}")
        self.begun = e.let(f"icmp ne i64 {self.seen}, 0")
        if any(self.bodies(level) for level in range(self.fold.levels)):
            self.walk_rows()
        if self.coefficients:
            e.branch(self.begun, lambda: f.scope(self.repair))
        for number in range(len(self.fold.matrices)):
            self.add(number)
        e.line(f"store i64 1, ptr {f.read['begun']}")

    def walked_part(self) -> Part:
        """What walks over a block compute, with lines of their own."""
        every = [b for level in range(self.fold.levels) for b in self.bodies(level)]
        repairs = [s.repair for s in self.fold.scalars if s.repair is not None]
        roots = [*every, *repairs, *self.coefficients]
        return self.fold.part(roots, self.stops | self.olds, self.fold.streaming.axes)

    def at_level(self, level: int) -> tuple[list[State], list[tuple[int, Node]]]:
        """The states of one number a row, and the weights, that one walk works out."""
        scalars = [s for s in self.fold.scalars if s.level == level]
        found: dict[Node, int] = {}
        for number, m in enumerate(self.fold.weighing):
            lent = self.tiles[number] == ""
            if m.state.level == level and m.weights not in self.stops and not lent:
                found.setdefault(m.weights, number)
        if level == self.fold.levels - 1:
            for number, node in enumerate(self.whole, start=len(self.fold.weighing)):
                if self.tiles[number].startswith("whole"):
                    found.setdefault(node, number)
        return scalars, [(number, node) for node, number in found.items()]

    def kept(self, level: int) -> Node | None:
        """What one walk works out and later ones would again: it takes its product's place."""
        if len(self.fold.products) != 1 or level >= self.fold.levels - 1:
            return None
        product = self.fold.products[0].node
        later = [b for n in range(level + 1, self.fold.levels) for b in self.bodies(n)]
        for state in self.at_level(level)[0]:
            inside = self.fold.part([state.body], self.stops | self.olds, ()).nodes
            dear = sum([n.op.cost for n in inside if self.fold.free[n] & self.streamed]) > _DEAR
            after = self.fold.part(later, self.stops | self.olds | {state.body}, ()).nodes
            if dear and state.body in after and product not in after and product in inside:
                return state.body
        return None

    def known_products(self, nodes: Sequence[Node], level: int, place: str) -> None:
        """Products at a place of the tile, or what was kept of one."""
        kept = [node for n in range(level) if (node := self.kept(n)) is not None]
        for number, product in enumerate(self.fold.products):
            value = product.node
            if kept and number == 0:
                value = kept[-1]
            if product.node in nodes or value in nodes:
                self.f.scopes[-1][value] = self.load(self.f.read[f"tile{number}"], place)

    def weight(self, number: int, node: Node) -> Val:
        """A weight; powers too small to be whole numbers of their kind count as 0.

        Products with them would take a hundred times as long, and they are nothing beside the 1
        that the largest weight is.
        """
        e, value = self.f.e, self.f.value(node)
        if number >= len(self.fold.weighing):  # an element that is stored
            return value
        if self.fold.weighing[number].state.repair is None or node in self.powers:
            return value
        value = e.splat(value)
        size = e.call(self.vector, f"llvm.fabs.{e.suffix(value.dtype, True)}", e.typed(value))
        least = 2.0**-126 if self.fold.dtype is float32 else 2.0**-1022
        tiny = e.let(f"fcmp olt {self.vector} {size}, {e.const(least, value.dtype, True).text}")
        zero = e.const(0, value.dtype, True)
        return select(e, Val(tiny, bool_, True), zero, value)

    def before(self, level: int, vector: bool) -> dict[State, Val]:
        """What the states of a level were, on the bases of now; 0 if there was nothing before.

        For the first block nothing is worked out. The last level leaves what repairs of states
        with columns need where they will find it.
        """
        f, e = self.f, self.f.e
        states = [s for s in self.at_level(level)[0] if s.repair is not None]
        nodes = dict.fromkeys([self.repair_of(s) for s in states])
        if states and level == self.fold.levels - 1:
            nodes |= dict.fromkeys(self.coefficients)

        def repair(_: str, __: list[str]) -> list[str]:
            f.scopes.append({})
            found = [self.repaired_rest(s, self.rests[s]) for s in exact]
            found += [f.value(node) for node in nodes]
            f.scopes.pop()
            return [(e.splat(v) if vector else v).text for v in found]

        exact = [s for s in states if s in self.leaves]
        every = [*[s.fold for s in exact], *nodes]
        start = [(e.type_of(node.dtype, vector), "zeroinitializer") for node in every]
        texts = e.loop("0", self.seen, 1, start, repair) if nodes else []
        for state, text in zip(exact, texts, strict=False):
            self.rests[state] = Val(text, self.fold.dtype, vector)
        for node, text in zip(nodes, texts[len(exact) :], strict=True):
            f.scopes[-1][node] = Val(text, node.dtype, vector)
        return {s: f.scopes[-1][self.repair_of(s)] for s in states}

    def put_coefficients(self, place: str, put: Callable[[str, str, Val], None], kind: str) -> None:
        """What repairs of states with columns need, and which rows do, after the first block."""
        f = self.f
        truth = "i1" if kind == self.inner else f"<{self.lanes} x i1>"

        def every() -> None:
            for node, number in self.coefficients.items():
                put(f.read[f"coefficient{number}"], place, self.as_number(f.value(node)))
            put(f.read["changed"], place, self.as_number(self.bases_moved(kind, truth)))

        if self.coefficients:
            f.e.branch(self.begun, lambda: f.scope(every))

    def bases_moved(self, kind: str, truth: str) -> Val:
        """Which rows have a base that is not what it was."""
        f, e = self.f, self.f.e
        vector = kind != self.inner
        found: str | None = None
        used = set(toposort(list(self.coefficients)))
        for state in self.fold.scalars:
            if state.old in used:
                pair = [f.value(n) for n in (state.fold, state.old)]
                texts = [e.splat(v).text if vector else v.text for v in pair]
                now = e.let(f"fcmp une {kind} {texts[0]}, {texts[1]}")
                found = now if found is None else e.let(f"or {truth} {found}, {now}")
        if found is None:
            found = "splat (i1 true)" if vector else "true"
        return Val(found, bool_, vector)

    def bodies(self, level: int) -> list[Node]:
        """What one walk over a block computes."""
        scalars, weights = self.at_level(level)
        return [s.body for s in scalars] + [node for _, node in weights]

    def as_number(self, value: Val) -> Val:
        """A truth as 0 or 1."""
        e = self.f.e
        if value.dtype is not bool_:
            return value
        if not value.vector:
            return Val(e.let(f"uitofp i1 {value.text} to {self.inner}"), self.fold.dtype)
        one, zero = (e.const(n, self.fold.dtype, True).text for n in (1, 0))
        kinds = f"<{self.lanes} x i1> {value.text}, {self.vector} {one}, {self.vector} {zero}"
        return Val(e.let(f"select {kinds}"), self.fold.dtype, True)

    def as_truth(self, value: Val) -> Val:
        """0 or 1 as a truth."""
        zero = self.f.e.const(0, self.fold.dtype, True).text
        return Val(self.f.e.let(f"fcmp une {self.vector} {value.text}, {zero}"), bool_, True)

    def steps(
        self, states: Sequence[State], step: Callable[[str, list[str]], list[str]],
        nodes: Iterable[Node], by: int = 1,
    ) -> list[str]:  # fmt: skip
        """All steps of a block; several sums each where one would wait for itself."""
        f, e = self.f, self.f.e
        turns = _TURNS if sum([n.op.cost for n in nodes]) <= _LIGHT else 1
        starts = [identity(e, s.op, self.fold.dtype, True).text for s in states]
        count = len(states)
        odd = [s for s in states if self.is_quick(s)]
        clean = [(f"<{self.lanes} x i1>", "zeroinitializer") for _ in odd]
        if turns == 1:
            carried = [(self.vector, s) for s in starts] + clean
            found = e.loop("0", self.deep, _SHORT * by, carried, self.short(states, by, step, odd))
            return self.with_odd(states, found[:count], found[count:])
        rest = e.let(f"urem i64 {self.deep}, {turns * by}")
        whole = f.sub(self.deep, rest)

        def several(i: str, sums: list[str]) -> list[str]:
            out: list[str] = []
            for turn in range(turns):
                out += step(f.add(i, str(turn * by)), sums[turn * count : (turn + 1) * count])
            return out

        carried = [(self.vector, s) for _ in range(turns) for s in starts] + clean
        self.full = True
        sums = e.loop("0", whole, turns * by, carried, self.watched(odd, several))
        self.full = False
        carried = [(self.vector, s) for s in sums[:count]]
        carried += [(kind, s) for (kind, _), s in zip(clean, sums[turns * count :], strict=True)]
        last = e.loop(whole, self.deep, by, carried, self.watched(odd, step))
        masks = last[count:]
        for turn in range(1, turns):
            for place, state in enumerate(states):
                last[place] = self.joined(state, sums[turn * count + place], last[place])
        return self.with_odd(states, last[:count], masks)

    def short(
        self, states: Sequence[State], by: int, step: Callable[[str, list[str]], list[str]],
        odd: Sequence[State],
    ) -> Callable[[str, list[str]], list[str]]:  # fmt: skip
        """Steps of which few are summed by themselves, before they are added to the others."""
        f, e = self.f, self.f.e
        sums = [place for place, state in enumerate(states) if state.op == "add"]

        def some(i: str, known: list[str]) -> list[str]:
            first = list(known)
            for place in sums:
                first[place] = identity(e, "add", self.fold.dtype, True).text
            kinds = [self.vector if n < len(states) else f"<{self.lanes} x i1>"
                     for n in range(len(known))]  # fmt: skip
            last = f.least(f.add(i, f.number(("short", by), _SHORT * by)), self.deep)
            found = e.loop(
                i, last, by, list(zip(kinds, first, strict=True)), self.watched(odd, step)
            )
            for place in sums:
                pair = [Val(t[place], self.fold.dtype, True) for t in (known, found)]
                found[place] = combine(e, "add", *pair).text
            return found

        return some

    # --- extremes: one instruction each, and what is not a number kept beside them ---------------

    def is_quick(self, state: State) -> bool:
        """Is it an extreme on a host with registers for masks?"""
        return state.op in _BEYOND and self.target.vectors == "avx512"

    def taken_in(self, state: State, known: Val, value: Val) -> str:
        """A state with one more value."""
        if self.is_quick(state):
            self.met.setdefault(state, []).append(value.text)
        return self.joined(state, value.text, known.text)

    def joined(self, state: State, value: str, known: str) -> str:
        """A state of both; of a quick one the second side is never NaN, nor is the result."""
        e = self.f.e
        if not self.is_quick(state):
            pair = [Val(text, self.fold.dtype, True) for text in (known, value)]
            return combine(e, state.op, *pair).text
        beyond = e.let(f"fcmp {_BEYOND[state.op]} {self.vector} {value}, {known}")
        kinds = f"{self.vector} {value}, {self.vector} {known}"
        return e.let(f"select <{self.lanes} x i1> {beyond}, {kinds}")

    def watched(
        self, states: Sequence[State], step: Callable[[str, list[str]], list[str]]
    ) -> Callable[[str, list[str]], list[str]]:
        """A step that also carries where extremes met what is not a number."""
        e = self.f.e

        def watch(i: str, carried: list[str]) -> list[str]:
            count = len(carried) - len(states)
            self.met = {}
            out = step(i, carried[:count])
            for state, mask in zip(states, carried[count:], strict=True):
                met = self.met[state]
                for first, second in zip(met[::2], [*met[1::2], met[-1]], strict=False):
                    now = e.let(f"fcmp uno {self.vector} {first}, {second}")
                    mask = e.let(f"or <{self.lanes} x i1> {mask}, {now}")
                out.append(mask)
            return out

        return watch

    def with_odd(
        self, states: Sequence[State], totals: list[str], masks: Sequence[str]
    ) -> list[str]:
        """Extremes, not numbers where one that was met is none."""
        e, left = self.f.e, list(masks)
        out = []
        for state, total in zip(states, totals, strict=True):
            value = Val(total, self.fold.dtype, True)
            if self.is_quick(state):
                none = e.const(float("nan"), self.fold.dtype, True)
                value = select(e, Val(left.pop(0), bool_, True), none, value)
            out.append(value.text)
        return out

    def repair(self) -> None:
        """Rows of sums whose bases moved, as if they had been built on those of now."""
        f, e = self.f, self.f.e

        def row(r: str, _: list[str]) -> list[str]:
            moved = self.one(f.read["changed"], r).text
            yes = e.let(f"fcmp une {self.inner} {moved}, {e.const(0, self.fold.dtype).text}")
            e.branch(yes, lambda: f.scope(lambda: self.repair_row(r)))
            return []

        e.loop("0", self.count, 1, [], row)

    def repair_row(self, r: str) -> None:
        f, e = self.f, self.f.e
        scope = f.scopes[-1]
        for node, number in self.coefficients.items():
            value = self.one(f.read[f"coefficient{number}"], r)
            if node.dtype is bool_:
                zero = e.const(0, self.fold.dtype).text
                value = Val(e.let(f"fcmp une {self.inner} {value.text}, {zero}"), bool_)
            scope[node] = value
            e.pin(value)
        for members in self.alike():
            self.repair_columns(r, members)

    def alike(self) -> list[list[int]]:
        """The states with columns, those with the same ones together."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, columns in enumerate(self.fold.columns):
            groups.setdefault(columns, []).append(number)
        return list(groups.values())

    def repair_columns(self, r: str, members: list[int]) -> None:
        f = self.f
        found = [(n, self.fold.matrices[n].state) for n in members]

        def step(c: str, _: list[str]) -> list[str]:
            f.scopes.append({})
            places = {n: f.add(f.mul(r, self.width(n)), c) for n in members}
            for n, state in found:
                f.scopes[-1][state.old] = self.old_sums(n, places[n])
            made = [(n, f.value(s.repair)) for n, s in found if s.repair is not None]
            for n, value in made:
                self.put_sums(n, places[n], f.e.splat(value).text)
            f.scopes.pop()
            return []

        f.e.loop("0", self.left[members[0]][1], self.lanes, [], step)

    def add(self, number: int) -> None:
        """Weights times values, added to the sums."""
        f, e, s = self.f, self.f.e, self.values[number]
        start, count = self.left[number]
        near = self.is_near(number)
        module = block(self.registers)
        self.open_batch(s)
        panel, deep = self.registers.panel, self.cut.steps + self.lanes
        if near:
            right, stride = self.where(s, start, self.k)
        elif self.is_shared(number):
            piece, _ = f.divided(self.k, f.number("steps", self.cut.steps))
            whole, stride = self.shared_block(number, self.at, piece), str(panel)
            right = self.element(whole, f.mul(start, f.number(("deep", deep), deep)))
        else:
            right, stride = f.read[f"values{number}"], str(panel)
            span = Span(start, count, self.k, self.deep)
            text = f.number(("deep", deep), deep)
            f.scope(lambda: self.packer(s).pack(span, Goal(right, text, text)))
        weights, *weights_by = self.weights_at(number)
        fine, fresh = self.is_fine(number), e.let(f"xor i1 {self.begun}, true")
        sums = f.read[f"part{number}" if fine else f"sums{number}"]
        swept = self.rows == 1 and near and weights_by[1] == "1"  # whole rows of values go by
        # weights have one sign, so sums only grow; those of plain products stay as they are
        signed = self.fold.matrices[number].state.repair is not None
        short = not swept and (fine or (signed and self.length <= _MANY))
        each, few = f.number(("deep", deep), deep), _FINE if fine else _SHORT

        def panel_of(column: str, many: str, start: str, end: str) -> None:
            at = self.element(right, column if near else f.mul(column, each))
            to = self.element(sums, column)
            ahead = "" if near else self.element(at, f.mul(each, str(panel)))

            def turn(k: str, _: list[str]) -> list[str]:
                left = self.element(weights, f.mul(k, weights_by[1]))
                begins = "true" if k == start else e.let(f"icmp eq i64 {k}, {start}")
                if not fine:
                    begins = fresh if k == start else e.let(f"and i1 {begins}, {fresh}")
                below = self.element(at, f.mul(k, stride))
                after = self.element(ahead, f.mul(k, stride)) if ahead else ""
                count = f.least(str(few), f.sub(end, k)) if short else f.sub(end, k)
                if swept:
                    operands = f"ptr {left}, ptr {below}, i64 {stride}, ptr {to}, i64 {count}, "
                    self.invoke(
                        sweep(self.registers, (self.registers.dtype,) * 2),
                        DOTS,
                        f"{operands}i64 {many}, i1 {begins}",
                    )
                    return []
                self.multiply(
                    module, (left, weights_by[0], weights_by[1]), (below, stride),
                    (to, self.width(number)), (count, self.count, many), begins, plain=near,
                    ahead=after,
                )  # fmt: skip
                return []

            if short:
                e.loop(start, end, few, [], turn)
            else:
                turn(start, [])

        def steps(start: str, end: str) -> None:
            if swept:
                panel_of("0", count, start, end)
                return
            panels = self.evenly if near else self.packed_panels
            panels(count, lambda column, many: panel_of(column, many, start, end))

        def part(start: str, _: list[str]) -> list[str]:
            end = f.least(f.add(start, str(_PART)), self.deep)
            steps(start, end)
            self.take_part(number, start)
            return []

        if short and fine:
            e.loop("0", self.deep, _PART, [], part)
            return
        steps("0", self.deep)
        self.take_part(number, "0") if fine else None

    def weights_at(self, number: int) -> tuple[str, str, str]:
        """Where the weights of a block are, how far apart those of rows and of elements."""
        name = self.tiles[number]
        if name:
            return self.f.read[name], *self.weights_by
        s = self.lent[number]
        self.open_batch(s)
        place, stride = self.where(s, self.top, self.k)
        return (place, stride, "1") if s.straight else (place, "1", stride)
