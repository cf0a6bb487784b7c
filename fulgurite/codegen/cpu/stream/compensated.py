"""Sums of a fold, kept with what rounding took from them.

In: sums of one number a row on which nothing else is built, and sums with columns that are so few
that the reference adds them up by pairs or along lanes, which loses fewer digits than one long
chain. Out: lines that add the sums of a block to all exactly, the rest of each addition beside it;
so errors do not grow with the length. Sums whose bases move, and results, take the rest in first.
An infinite sum has no rest: it stays what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial

from ....core.dtype import bool_, decode, float32, float64
from ....core.node import Node, constant, constant_bits, make, toposort
from ....core.ops.elementwise import ADD, CAST, DIV, MUL, NEG, SUB, WHERE
from ....core.ops.index import LOAD
from ....core.ops.leaf import CONST
from ....core.substitute import substitute
from ....kernel.contract.analysis import is_tiny
from ....kernel.stream.online import State
from ....kernel.stream.roles import Product
from ..gemm.microkernel import Module
from ..llvm.emitter import Emitter, Val
from ..llvm.maths import select
from ..spelling import combine
from .skip import FoldSkip

_SMALL = 1_000_000  # steps of a product inside up to which it loses no digits for speed
_PIECE = 16  # steps of such a one that are summed before they are added
_GROUP = 64  # steps whose pieces are added up by themselves


class FoldSums(FoldSkip):
    """Sums that are exact."""

    begun: str  # were there blocks before this one?
    rests: dict[State, Val]  # of a row's sums, in this block

    # --- one number a row ------------------------------------------------------------------------

    @cached_property
    def leaves(self) -> list[State]:
        """The sums of one number a row on which nothing is built, and which scale if anything."""
        scalars = [s for s in self.fold.scalars if s.op == "add" and scales(s)]
        found = []
        for state in scalars:
            others = [s for s in self.states if s is not state]
            roots = [s.body for s in others] + [s.repair for s in others if s.repair is not None]
            inside = set(toposort(roots))
            if state.fold not in inside and state.old not in inside:
                found.append(state)
        return found

    @cached_property
    def doubled(self) -> list[State]:
        """The sums of one number a row that others are built on, or that do more than scale."""
        if self.fold.dtype is not float32:
            return []
        return [s for s in self.fold.scalars if s.op == "add" and s not in self.leaves]

    @property
    def with_rests(self) -> list[State]:
        """All sums of one number a row that have a rest."""
        return [*self.leaves, *self.doubled]

    @cached_property
    def wholes(self) -> dict[Node, Node]:
        """What stands for a wide sum before a block with its rest, in float64."""
        found = {s.old: make(LOAD, float64, (), s.old.arg) for s in self.doubled}
        self.name_nodes(list(found.values()))
        return found

    def name_nodes(self, nodes: Sequence[Node]) -> None:
        """Nodes that the kernel itself does not have."""
        for node in nodes:
            self.numbers.position.setdefault(node, len(self.numbers.position))

    def repair_of(self, state: State) -> Node:
        """A state's repair, of a wide sum in float64."""
        assert state.repair is not None
        if state not in self.doubled:
            return state.repair
        found = widened(state.repair, self.wholes, self.rounded)
        self.name_nodes(toposort([found]))
        return found

    @cached_property
    def rounded(self) -> set[Node]:
        """What bodies compute from bases, of now and of before: repairs take it as it is there."""
        bodies = [s.body for s in self.states]
        before = {s.fold: s.old for s in self.states}
        return set(toposort([*bodies, *[substitute(body, before) for body in bodies]]))

    def whole_olds(self, load: Callable[[str], Val]) -> dict[Node, Val]:
        """Wide sums before a block, from memory of sums and of rests."""
        e, found = self.f.e, {}
        for state in self.doubled:
            number = self.states.index(state)
            parts = [load(name) for name in (f"state{number}", f"rest of {number}")]
            pair = [self.lengthened(part) for part in parts]
            found[self.wholes[state.old]] = combine(e, "add", *pair)
        return found

    def lengthened(self, value: Val) -> Val:
        """A number in float64."""
        e, kind = self.f.e, self.f.e.type_of(float64, value.vector)
        if value.dtype is float64:
            return value
        return Val(e.let(f"fpext {e.typed(value)} to {kind}"), float64, value.vector)

    def in_two(self, state: State, total: Val) -> Val:
        """A float64 sum as one of float32, and what is left of it if that is finite."""
        e, dtype, vector = self.f.e, self.fold.dtype, total.vector
        kind, short = e.type_of(float64, vector), e.type_of(dtype, vector)
        found = Val(e.let(f"fptrunc {e.typed(total)} to {short}"), dtype, vector)
        back = self.lengthened(found).text
        left = e.let(f"fptrunc {kind} {e.let(f'fsub {kind} {total.text}, {back}')} to {short}")
        nothing = e.let(f"fsub {short} {found.text}, {found.text}")  # not a number if infinite
        known = Val(e.let(f"fcmp ord {short} {nothing}, {nothing}"), bool_, vector)
        zero = e.const(0, dtype, vector)
        self.rests[state] = select(e, known, Val(left, dtype, vector), zero)
        return found

    def rest_of(self, state: State) -> str:
        """Where the rests of a sum are."""
        return self.f.read[f"rest of {self.states.index(state)}"]

    def with_block(self, state: State, known: Val, total: Val) -> Val:
        """A state with what a block adds to it."""
        if state in self.doubled:
            before = self.f.value(self.wholes[state.old]) if known.dtype is float32 else known
            both = combine(self.f.e, "add", before, self.lengthened(total))
            return self.in_two(state, both)
        if state not in self.leaves:
            return combine(self.f.e, state.op, known, total)
        found, lost = two_sum(self.f.e, known, total)
        self.rests[state] = combine(self.f.e, "add", self.rests[state], lost)
        return found

    def shortened(self, state: State, total: str) -> Val:
        """The float64 sum of a block as one of float32; what is left goes to the rest."""
        e = self.f.e
        found = Val(e.let(f"fptrunc double {total} to float"), self.fold.dtype)
        back = e.let(f"fpext float {found.text} to double")
        left = e.let(f"fptrunc double {e.let(f'fsub double {total}, {back}')} to float")
        self.rests[state] = combine(e, "add", self.rests[state], Val(left, self.fold.dtype))
        return found

    # --- products inside -------------------------------------------------------------------------

    def is_small(self, product: Product) -> bool:
        """Does a product lose no digits for speed?"""
        depth = self.fold.count(product.contraction.folded)
        return depth > _PIECE and self.rows * self.length * depth <= _SMALL

    def is_deep(self, product: Product) -> bool:
        """Would pieces be too many to be added in a row?"""
        return self.is_small(product) and self.fold.count(product.contraction.folded) > _GROUP + 32

    def multiply_inside(
        self, product: Product, module: Module, a: tuple[str, str, str], b: tuple[str, str],
        c: tuple[str, str], sizes: tuple[str, str, str], first: str, plain: bool = False,
        ahead: str = "",
    ) -> None:  # fmt: skip
        """Rows times a panel; few steps of a small product are summed at a time, and those of a
        deep one in groups."""
        f, e = self.f, self.f.e
        if not self.is_deep(product):
            pieces = self.is_small(product)
            self.multiply_by_pieces(pieces, module, a, b, c, sizes, first, plain, ahead)
            return
        group, apart = f.read["group"], str(self.group_width)

        def turn(k: str, _: list[str]) -> list[str]:
            left = self.element(a[0], f.mul(k, a[2])), a[1], a[2]
            right = self.element(b[0], f.mul(k, b[1])), b[1]
            count = f.least(str(_GROUP), f.sub(sizes[0], k)), *sizes[1:]
            after = self.element(ahead, f.mul(k, b[1])) if ahead else ""
            self.multiply_by_pieces(
                True, module, left, right, (group, apart), count, "true", plain, after
            )
            begins = e.let(f"icmp eq i64 {k}, 0")
            begins = e.let(f"and i1 {begins}, {first}")
            e.loop("0", sizes[1], 1, [], lambda r, _: row(r, begins))
            return []

        def row(r: str, begins: str) -> list[str]:
            def step(i: str, _: list[str]) -> list[str]:
                where = self.element(c[0], f.add(f.mul(r, c[1]), i))
                known = e.let(f"load {self.vector}, ptr {where}, align 4")
                found = self.load(group, f.add(f.mul(r, apart), i)).text
                both = e.let(f"fadd {self.vector} {known}, {found}")
                kinds = f"{self.vector} {found}, {self.vector} {both}"
                total = e.let(f"select i1 {begins}, {kinds}")
                e.line(f"store {self.vector} {total}, ptr {where}, align 4")
                return []

            e.loop("0", sizes[2], self.lanes, [], step)
            return []

        e.loop("0", sizes[0], _GROUP, [], turn)

    def multiply_by_pieces(
        self, pieces: bool, module: Module, a: tuple[str, str, str], b: tuple[str, str],
        c: tuple[str, str], sizes: tuple[str, str, str], first: str, plain: bool = False,
        ahead: str = "",
    ) -> None:  # fmt: skip
        """The same a few steps at a time, if they are to be summed by themselves."""
        f, e = self.f, self.f.e
        if not pieces:
            self.multiply(module, a, b, c, sizes, first, plain, ahead)
            return

        def turn(k: str, _: list[str]) -> list[str]:
            left = self.element(a[0], f.mul(k, a[2])), a[1], a[2]
            right = self.element(b[0], f.mul(k, b[1])), b[1]
            count = f.least(str(_PIECE), f.sub(sizes[0], k))
            begins = e.let(f"icmp eq i64 {k}, 0")
            begins = e.let(f"and i1 {begins}, {first}")
            after = self.element(ahead, f.mul(k, b[1])) if ahead else ""
            self.multiply(module, left, right, c, (count, *sizes[1:]), begins, plain, after)
            return []

        e.loop("0", sizes[0], _PIECE, [], turn)

    def evenly(self, columns: str, panel: Callable[[str, str], None]) -> None:
        """Panels of nearly the same number of vectors: one vector alone keeps nobody busy."""
        f, r = self.f, self.registers
        vectors, _ = f.divided(f.add(columns, str(r.width - 1)), str(r.width))
        panels = f.panels(vectors, str(r.vectors), str(r.most))
        each, more = f.divided(vectors, panels)

        def turn(number: str, _: list[str]) -> list[str]:
            start = f.add(f.mul(number, each), f.least(number, more))
            large = f.e.let(f"icmp slt i64 {number}, {more}")
            count = f.add(each, f.e.let(f"zext i1 {large} to i64"))
            column = f.mul(start, str(r.width))
            panel(column, f.least(f.mul(count, str(r.width)), f.sub(columns, column)))
            return []

        f.e.loop("0", panels, 1, [], turn)

    @property
    def group_width(self) -> int:
        """Numbers from one row of a group's sums to the next."""
        return self.registers.most * self.registers.width + self.lanes

    def reserve_group(self) -> None:
        """The sums of a group, for as many rows as a microkernel may have; nothing odd there."""
        if not any(map(self.is_deep, self.fold.products)):
            return
        rows = min(max(self.cut.rows, self.cut.steps), max(self.rows, self.length)) + self.lanes
        self.room("group", rows * self.group_width)
        zero = self.f.e.const(0, self.fold.dtype, True)
        self.fill(self.f.read["group"], self.f.read["room", "group"], zero)

    # --- sums with columns -----------------------------------------------------------------------

    def is_fine(self, number: int) -> bool:
        """Does the reference sum this state by pairs, or along lanes?"""
        if not scales(self.fold.matrices[number].state):
            return False
        columns = self.fold.count(self.fold.columns[number])
        return self.rows == 1 or is_tiny(self.rows, columns, self.length)

    @property
    def fine(self) -> list[int]:
        """The states with columns that are summed so."""
        return [n for n in range(len(self.fold.matrices)) if self.is_fine(n)]

    def reserve(self) -> None:
        """Everything a tile needs, and room for parts and rests."""
        super().reserve()
        self.reserve_group()
        for number in self.fine:
            rows = min(self.rows, self.cut.rows)
            count = rows * (self.cut.columns[number] + self.lanes) + self.lanes
            self.room(f"part{number}", count)
            self.room(f"rest{number}", count)
        for state in self.with_rests:
            self.room(f"rest of {self.states.index(state)}", self.state_numbers)

    def begin(self) -> None:
        """States before anything was seen; perhaps no block comes, and there is no rest."""
        super().begin()
        for state in self.with_rests:
            self.fill(self.rest_of(state), self.count, self.f.e.const(0, self.fold.dtype, True))
        if self.tests:
            for number in self.fine:
                self.each_vector(number, partial(self.put_rest, number, text="0"))

    def each_vector(self, number: int, body: Callable[[str], None]) -> None:
        """Run `body(place)` for the vectors of all rows of a state."""
        f, count, width = self.f, self.left[number][1], self.width(number)

        def row(r: str, _: list[str]) -> list[str]:
            def step(c: str, _: list[str]) -> list[str]:
                body(f.add(f.mul(r, width), c))
                return []

            f.e.loop("0", count, self.lanes, [], step)
            return []

        f.e.loop("0", self.count, 1, [], row)

    def put_rest(self, number: int, place: str, text: str) -> None:
        """Write what rounding took."""
        where = self.element(self.f.read[f"rest{number}"], place)
        value = "zeroinitializer" if text == "0" else text
        self.f.e.line(f"store {self.vector} {value}, ptr {where}, align 4")

    def put_sums(self, number: int, place: str, text: str) -> None:
        """Write sums."""
        where = self.element(self.f.read[f"sums{number}"], place)
        self.f.e.line(f"store {self.vector} {text}, ptr {where}, align 4")

    def take_part(self, number: int, k: str) -> None:
        """Add the sums of the piece that begins at k to all, and keep what that loses."""
        f, e, kind = self.f, self.f.e, self.vector
        first = e.let(f"icmp eq i64 {k}, 0")
        first = e.let(f"and i1 {first}, {e.let(f'xor i1 {self.begun}, true')}")

        def known(name: str, place: str) -> str:
            found = self.load(f.read[f"{name}{number}"], place).text
            return e.let(f"select i1 {first}, {kind} zeroinitializer, {kind} {found}")

        def add(place: str) -> None:
            before = Val(known("sums", place), self.fold.dtype, True)
            total, lost = two_sum(e, before, self.load(f.read[f"part{number}"], place))
            self.put_sums(number, place, total.text)
            rest = Val(known("rest", place), self.fold.dtype, True)
            self.put_rest(number, place, combine(e, "add", rest, lost).text)

        self.each_vector(number, add)

    def whole_sums(self, number: int, place: str) -> Val:
        """Sums with what rounding took from them."""
        sums = self.load(self.f.read[f"sums{number}"], place)
        return whole(self.f.e, sums, self.load(self.f.read[f"rest{number}"], place))

    def old_sums(self, number: int, place: str) -> Val:
        """Sums that are about to be repaired; their rest is repaired now."""
        f, state = self.f, self.fold.matrices[number].state
        if not self.is_fine(number):
            return self.load(f.read[f"sums{number}"], place)
        rest = self.repaired_rest(state, self.load(f.read[f"rest{number}"], place))
        self.put_rest(number, place, f.e.splat(rest).text)
        return self.load(f.read[f"sums{number}"], place)

    def repaired_rest(self, state: State, rest: Val) -> Val:
        """A rest on the bases of now, which is scaled like the sum."""
        f = self.f
        if state.repair is None:
            return rest
        for node in factors(state):  # they are the sum's as well
            f.value(node)
        assert not any(state.repair in scope for scope in f.scopes), "a sum was repaired before"
        f.scopes.append({state.old: rest})
        found = f.value(state.repair)
        f.scopes.pop()
        return found

    def take_rests(self) -> None:
        """At the end of a unit: sums as they are."""
        f = self.f

        def columns(number: int, place: str) -> None:
            self.put_sums(number, place, self.whole_sums(number, place).text)

        def rows(state: State, place: str, _: list[str]) -> list[str]:
            memory = f.read[f"state{self.states.index(state)}"]
            value = whole(f.e, self.load(memory, place), self.load(self.rest_of(state), place))
            where = self.element(memory, place)
            f.e.line(f"store {self.vector} {value.text}, ptr {where}, align 4")
            return []

        for number in self.fine:
            self.each_vector(number, partial(columns, number))
        for state in self.leaves:
            f.e.loop("0", self.count, self.lanes, [], partial(rows, state))


def scales(state: State) -> bool:
    """Is a repair nothing but a factor, or 0?"""

    def linear(node: Node) -> bool:
        if state.old not in toposort([node]):
            return node.op is CONST and constant_bits(node.arg[0], node.dtype).value == 0
        if node is state.old:
            return True
        moving = [s for s in node.src if state.old in toposort([s])]
        if node.op is MUL:
            return len(moving) == 1 and linear(moving[0])
        if node.op is WHERE:
            return node.src[0] not in moving and all(linear(s) for s in node.src[1:])
        return False

    return state.repair is None or linear(state.repair)


def widened(node: Node, wholes: Mapping[Node, Node], rounded: Collection[Node]) -> Node:
    """A repair in float64: sums before a block with their rests, bases as bodies have them."""

    def found(node: Node, is_sum: bool) -> Node:
        if is_sum and node in wholes:
            return wholes[node]
        if node.op is CONST:
            return constant(decode(node.arg[0], node.dtype), float64)
        if node.dtype is float32 and node not in rounded:
            if node.op in (ADD, MUL, SUB, DIV, NEG):
                sums = is_sum and node.op in (ADD, MUL)
                return make(node.op, float64, tuple([found(s, sums) for s in node.src]), node.arg)
            if node.op is WHERE:
                sides = [found(s, is_sum) for s in node.src[1:]]
                return make(WHERE, float64, (node.src[0], *sides), node.arg)
        return make(CAST, float64, (node,), float64)

    return found(node, True)


def factors(state: State) -> list[Node]:
    """What a repair needs besides the sum."""
    assert state.repair is not None
    order = toposort([state.repair])
    moving = {n for n in order if state.old in toposort([n])}
    return [n for n in order if n not in moving and any(n in m.src for m in moving)]


def two_sum(e: Emitter, a: Val, b: Val) -> tuple[Val, Val]:
    """A sum and, exactly, what rounding took from it."""
    kind = e.type_of(a.dtype, a.vector)
    total = e.let(f"fadd {kind} {a.text}, {b.text}")
    back = e.let(f"fsub {kind} {total}, {a.text}")
    left = e.let(f"fsub {kind} {a.text}, {e.let(f'fsub {kind} {total}, {back}')}")
    lost = e.let(f"fadd {kind} {left}, {e.let(f'fsub {kind} {b.text}, {back}')}")
    return Val(total, a.dtype, a.vector), Val(lost, a.dtype, a.vector)


def whole(e: Emitter, total: Val, rest: Val) -> Val:
    """A sum with its rest, if it has one."""
    both = combine(e, "add", total, rest)
    kind = e.type_of(both.dtype, both.vector)
    known = Val(e.let(f"fcmp ord {kind} {both.text}, {both.text}"), bool_, both.vector)
    return select(e, known, both, total)
