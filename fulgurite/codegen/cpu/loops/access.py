"""Address computation, masks, loads and stores of a loop nest, while loops are open.

In: nodes of a kernel's body and the loops that are open (an axis is an SSA index; one axis may be
live as lanes). Out: values and memory accesses: one element, a row of consecutive lanes, or lanes
at places of their own, whichever the index says. Numbers of indices (steps, offsets, sizes) are
literal here; a `FunctionBuilder` is the same with numbers that are loaded at the function's entry,
each under a `name` made of where it stands. What is known of an index before a loop opens is taken
into a pointer there (`settle`), so that inner loops add one index to one address.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from ....core.dtype import DType, bool_, int32, int64
from ....core.node import Node, Source
from ....core.ops.index import BITS, GUARD, INDEX, LOAD, VALID
from ....core.ops.leaf import CONST, VAR
from ....core.symbolic.sym import varies
from ....graph.ir.affine import Affine, Atom, Condition, axes_of, bounds, sources_of
from ....graph.ir.reshape_groups import CannotLower
from ...common.api import BROKEN, ERROR
from ..llvm.convert import load_every, load_value, store_every, store_value
from ..llvm.emitter import Emitter, Val, ramp
from ..llvm.maths import compare, random_bits, select
from ..spelling import cast, operate

DEINTERLEAVED_STEPS = (-1, 2, 3, 4)  # steps between lanes whose rows are read whole


class Access:
    """The open loops, and values and memory seen from inside them."""

    knows_steps = True  # does the text know how far apart lanes are?

    def __init__(
        self,
        e: Emitter,
        dtypes: Sequence[DType],
        sizes: Sequence[int] | None = None,
        variables: Mapping[str, int] | None = None,
    ) -> None:
        self.e, self.dtypes, self.variables = e, dtypes, variables or {}
        self.sizes = sizes  # of axes, if known
        self.open: dict[int, str] = {}  # axis -> its index now
        self.lane: int | None = None  # the axis whose lanes are live
        self.mask: str | None = None  # lanes that exist, in the last vector of a row
        self.pointers: dict[int, str] = {}
        # by open loop: (param, index) -> an address so far, and what of the index is left
        self.bases: list[dict[tuple[int, Affine], tuple[str, Affine]]] = [{}]

    def read_pointers(self, numbers: Iterable[int]) -> None:
        """Read the addresses of params."""
        for number in numbers:
            place = self.e.let(f"getelementptr ptr, ptr %params, i64 {number}")
            self.pointers[number] = self.e.let(f"load ptr, ptr {place}")

    def pointer(self, number: int) -> str:
        """The address of a param."""
        return self.pointers[number]

    def number(self, name: Hashable, value: int = 0) -> str:
        """A number of an index, by where it stands."""
        return str(value)

    def name_of(self, node: Node) -> Hashable:
        """What names of a node's numbers begin with."""
        return None

    # --- values ----------------------------------------------------------------------------------

    def emit(self, node: Node, sources: list[Val]) -> Val:
        """A node's value from those of its sources."""
        op, name = node.op, self.name_of(node)
        if op is LOAD:
            return self.load(node, sources)
        if op is CONST:
            return self.e.const_bits(node.arg[0], node.dtype)
        if op is INDEX:
            return self.index(node.arg, sources, name)
        if op is VALID:
            return self.conditions(node.arg, sources, name)
        if op.family == "elementwise":
            return operate(self.e, node, sources)
        if op is GUARD:
            return self.guard(node, sources[0], name)
        if op is BITS:
            return random_bits(self.e, sources)
        if op is VAR:
            return cast(self.e, self.passed(self.variables[node.arg[0]]), int64, node.dtype)
        raise CannotLower(f"{op} has no native form yet")

    def passed(self, place: int) -> Val:
        """A number from the table of values that every call brings."""
        at = self.e.let(f"getelementptr i64, ptr %values, i64 {place}")
        return Val(self.e.let(f"load i64, ptr {at}"), int64)

    def guard(self, node: Node, value: Val, name: Hashable) -> Val:
        """An index kept inside its axis; one that was not is reported in the error word."""
        e = self.e
        size, inside = self.within_size(value, node.arg, name)
        bad = e.let(f"xor {e.typed(inside)}, {e.const(1, bool_, inside.vector).text}")
        if inside.vector:
            if self.mask is not None:
                bad = e.let(f"and <{e.lanes} x i1> {bad}, {self.mask}")
            bad = e.call("i1", f"llvm.vector.reduce.or.v{e.lanes}i1", f"<{e.lanes} x i1> {bad}")

        def report() -> None:
            for word, found in ((ERROR, "1"), (BROKEN, size)):
                at = e.let(f"getelementptr i64, ptr %values, i64 {word}")
                e.line(f"store i64 {found}, ptr {at}")

        e.branch(bad, report)
        return select(e, inside, value, e.const(0, value.dtype, value.vector))

    def within_size(self, value: Val, size: int, name: Hashable) -> tuple[str, Val]:
        """The size of an axis, and whether values are indices of it."""
        fits = size - 1 > value.dtype.limits[1]  # then every value that is not negative is inside
        limit = self.e.const(0 if fits else size, value.dtype, value.vector)
        return str(size), compare(self.e, "icmp sge" if fits else "icmp ult", value, limit)

    # --- addresses -------------------------------------------------------------------------------

    def base(self, number: int, index: Affine) -> tuple[str, Affine]:
        """The best address known for an access, and what of its index is still to be added."""
        for level in reversed(self.bases):
            found = level.get((number, index))
            if found is not None:
                return found
        return self.pointers[number], index

    def settle(self, node: Node) -> None:
        """Take the axes that are open, except lanes, into the address of a load or store."""
        number, index = node.arg[0], node.arg[1]
        pointer, rest = self.base(number, index)
        now = [(a, c) for a, c in rest[1] if self._is_settled(a)]
        if not now and not rest[0]:
            return
        place = self.index((rest[0], tuple(now)), ())
        left = (0, tuple([(a, c) for a, c in rest[1] if not self._is_settled(a)]))
        size = self.dtypes[number].itemsize
        address = self.e.let(f"getelementptr [{size} x i8], ptr {pointer}, i64 {place.text}")
        self.bases[-1][number, index] = self.e.opaque(address, "ptr"), left

    def _is_settled(self, atom: Atom) -> bool:
        return isinstance(atom, int) and atom in self.open and atom != self.lane

    # --- indices ---------------------------------------------------------------------------------

    def atom(self, atom: Atom, sources: Sequence[Val], name: Hashable) -> Val:
        """The value of an atom."""
        e = self.e
        if isinstance(atom, int):
            base = Val(self.open[atom], int64)
            if atom != self.lane:
                return base
            each = e.splat(base)
            return Val(e.let(f"add {e.typed(each)}, {ramp(e.lanes, 1, 'i64')}"), int64, True)
        if isinstance(atom, Source):
            return self.widened(sources[atom.index])
        sign, index, by = atom
        inner = self.index(index, sources, (name, "in"))
        return _floor(e, sign, *e.alike(inner, Val(self.number((name, "by"), by), int64)))

    def widened(self, value: Val) -> Val:
        """A whole number in 64 bits."""
        if value.dtype.bits == 64:
            return Val(value.text, int64, value.vector)
        return cast(self.e, value, value.dtype, int64)

    def index(self, index: Affine, sources: Sequence[Val], name: Hashable = None) -> Val:
        """The value of an index: a number, or one for each lane."""
        total = Val(str(index[0]), int64)
        for atom, coefficient in index[1]:
            total = self.plus(total, self.atom(atom, sources, name), str(coefficient))
        return total

    def plus(self, total: Val, part: Val, factor: str) -> Val:
        """total + factor * part."""
        e = self.e
        if factor != "1":
            part, by = e.alike(part, Val(factor, int64))
            part = Val(e.let(f"mul {e.typed(part)}, {by.text}"), int64, part.vector)
        if total.text == "0":
            return part
        total, part = e.alike(total, part)
        return Val(e.let(f"add {e.typed(total)}, {part.text}"), int64, total.vector)

    def conditions(
        self, conditions: Sequence[Condition], sources: Sequence[Val], name: Hashable = None
    ) -> Val:
        """Where all conditions hold."""
        e = self.e
        holds: Val | None = None
        for number, condition in enumerate(conditions):
            inside = self.inside(condition, sources, (name, number))
            if holds is None:
                holds = inside
            else:
                holds, inside = e.alike(holds, inside)
                holds = Val(e.let(f"and {e.typed(holds)}, {inside.text}"), bool_, holds.vector)
        return holds or Val("true", bool_)

    def inside(self, condition: Condition, sources: Sequence[Val], name: Hashable) -> Val:
        """Where one condition holds."""
        e, (index, size) = self.e, condition
        if self._fits_32_bits(index, size):
            return self.between(self.first_lane(index, (), name), self.along(index)[0],
                                Val(str(size), int64))  # fmt: skip
        place = self.index(index, sources, name)
        return compare(e, "icmp ult", place, e.const(size, int64, place.vector))

    def _fits_32_bits(self, index: Affine, size: int) -> bool:
        step, tangled = self.along(index)
        if step == 0 or tangled or self.sizes is None or sources_of(index):
            return False
        low, high = bounds(index, self._bound)
        return low >= -(1 << 31) and max(high, size) < 1 << 31

    def between(self, first: Val, step: int, limit: Val) -> Val:
        """Which lanes of an index are within 0 and a limit: in 32 bits, which sizes of axes fit."""
        e, kind = self.e, f"<{self.e.lanes} x i32>"
        start, end = e.let(f"trunc i64 {first.text} to i32"), limit.text
        if end.startswith("%"):
            end = e.let(f"trunc i64 {end} to i32")
        at, below = [e.splat(Val(text, int32)).text for text in (start, end)]
        places = e.let(f"add {kind} {at}, {e.ramp(step, int32).text}")
        return Val(e.let(f"icmp ult {kind} {places}, {below}"), bool_, True)

    def _bound(self, atom: int | Source) -> tuple[int, int]:
        assert isinstance(atom, int) and self.sizes is not None
        return 0, self.sizes[atom] - 1

    def split(self, index: Affine) -> tuple[Affine, int, bool]:
        """An index without the lanes' own term, its step, and whether lanes are elsewhere too."""
        step, rest, tangled = 0, [], False
        for atom, coefficient in index[1]:
            if atom == self.lane and isinstance(atom, int):
                step = coefficient
                continue
            rest.append((atom, coefficient))
            if isinstance(atom, tuple) and self.lane is not None:
                tangled = tangled or self.lane in axes_of(atom[1])
        return (index[0], tuple(rest)), step, tangled

    def along(self, index: Affine, sources: Sequence[Val] = ()) -> tuple[int, bool]:
        """The step of an index along the lanes, and whether lanes are elsewhere in it too."""
        _, step, tangled = self.split(index)
        given = sources_of(index) if sources else ()
        return step, tangled or any(sources[a.index].vector for a in given)

    def first_lane(self, index: Affine, sources: Sequence[Val], name: Hashable) -> Val:
        """An index at the first lane."""
        assert self.lane is not None
        rest, step, _ = self.split(index)
        place, first = self.index(rest, sources, name), self.open[self.lane]
        if step != 1:
            first = self.e.let(f"mul i64 {first}, {step}")
        if place.text == "0":
            return Val(first, int64)
        return Val(self.e.let(f"add i64 {place.text}, {first}"), int64)

    # --- memory ----------------------------------------------------------------------------------

    def load(self, node: Node, sources: Sequence[Val]) -> Val:
        """The value of a LOAD."""
        number, index, conditions = node.arg
        e, dtype, name = self.e, self.dtypes[number], self.name_of(node)
        pointer, left = self.base(number, index)
        step, dynamic = self.along(left, sources)
        holds = self.conditions(conditions, sources, (name, "if")) if conditions else None
        lanes = self.lane is not None and (step != 0 or dynamic)
        if not lanes and (holds is None or not holds.vector):
            if holds is not None:  # reads the param's first element where it fails
                pointer, left = self.pointer(number), index
            return load_value(
                e, pointer, self.index(left, sources, name), dtype, holds, None, "one"
            )
        if dynamic or not (step == 1 or (step and self.knows_steps)):
            place = e.splat(self.index(left, sources, name))
            return load_value(e, pointer, place, dtype, holds, self.mask, "places")
        start = self.first_lane(left, sources, name)
        if holds is not None:
            pointer, start = self.within_memory(number, holds, pointer, start)
        return self.load_lanes(pointer, start, step, dtype, holds)

    def load_lanes(
        self, pointer: str, start: Val, step: int, dtype: DType, holds: Val | None
    ) -> Val:
        """Lanes a known step apart: a row, whole rows of which some are taken, or a gather."""
        e = self.e
        if step == 1:
            return load_value(e, pointer, start, dtype, holds, self.mask, "row")
        if not varies(step) and step in DEINTERLEAVED_STEPS:
            return load_every(e, pointer, start, dtype, holds, self.mask, step)
        first, place = self.strided_places(pointer, start, step, dtype)
        return load_value(e, first, place, dtype, holds, self.mask, "places")

    def wide_load(self, node: Node, dtype: DType) -> Val:
        """A wide whole number, or a row of them, whose first byte a LOAD reads."""
        number, index, _ = node.arg
        e, (pointer, left) = self.e, self.base(number, index)
        lanes = self.lane is not None and self.along(left)[0] != 0
        place = self.first_lane(left, (), None) if lanes else self.index(left, ())
        address = e.let(f"getelementptr i8, ptr {pointer}, i64 {place.text}")
        first, how = Val("0", int64), "row" if lanes else "one"
        return load_value(e, address, first, dtype, None, self.mask if lanes else None, how)

    def within_memory(self, number: int, holds: Val, pointer: str, start: Val) -> tuple[str, Val]:
        """Where lanes are read: where none is live, a param's first elements are, not anything.

        A masked load of memory that is not mapped faults inside the processor first, which takes
        a hundred times as long as a load, though no lane is live.
        """
        e, some = self.e, holds.text
        if holds.vector:
            some = e.call("i1", f"llvm.vector.reduce.or.v{e.lanes}i1", f"<{e.lanes} x i1> {some}")
        pointer = e.let(f"select i1 {some}, ptr {pointer}, ptr {self.pointer(number)}")
        return pointer, Val(e.let(f"select i1 {some}, i64 {start.text}, i64 0"), int64)

    def strided_places(self, pointer: str, start: Val, step: int, dtype: DType) -> tuple[str, Val]:
        """Lanes so many steps apart: the address of the first, and where the others are from it."""
        e = self.e
        address = f"getelementptr [{dtype.itemsize} x i8], ptr {pointer}, i64 {start.text}"
        wide = int32 if abs(step) * e.lanes < 1 << 31 else int64
        return e.let(address), e.ramp(step, wide)

    def store(self, node: Node, value: Val) -> None:
        """Write a value where a STORE says."""
        number, index = node.arg[:2]
        if not _is_plain(node):
            raise CannotLower("a scatter has no native form yet")
        e, dtype, name = self.e, self.dtypes[number], self.name_of(node)
        pointer, left = self.base(number, index)
        step, tangled = self.along(left)
        if self.lane is None:
            store_value(e, pointer, self.index(left, (), name), value, dtype, None, "one")
            return
        value = e.splat(value)
        if step == 1 and not tangled:
            place = self.first_lane(left, (), name)
            store_value(e, pointer, place, value, dtype, self.mask, "row")
            return
        if step and not tangled and self.knows_steps:
            pointer, place = self.strided_places(
                pointer, self.first_lane(left, (), name), step, dtype
            )
        else:
            place = e.splat(self.index(left, (), name))
        store_value(e, pointer, place, value, dtype, self.mask, "places")

    def stores(self, found: Sequence[tuple[Node, Val]]) -> None:
        """Write values where STOREs say, those that interleave their lanes in memory together."""
        waiting = {_where(node): (node, value) for node, value in found}
        for node, _ in found:
            if _where(node) not in waiting:
                continue
            number, (first, terms), _, _ = node.arg
            _, step, tangled = self.split((0, terms))
            near = step in DEINTERLEAVED_STEPS
            interleaved = [(number, first + i, terms) for i in range(step if near else 1)]
            together = near and not tangled and all(t in waiting for t in interleaved)
            if step < 2 or not together or any(not _is_plain(waiting[t][0]) for t in interleaved):
                self.store(*waiting.pop(_where(node)))
                continue
            pointer, left = self.base(number, node.arg[1])
            start = self.first_lane(left, (), None)
            values = [self.e.splat(waiting.pop(t)[1]) for t in interleaved]
            store_every(self.e, pointer, start, values, self.dtypes[number], self.mask)


def _is_plain(node: Node) -> bool:
    """True if a STORE sets values at an affine index: nothing is combined."""
    return node.arg[2] == "set" and len(node.src) == 1


def _where(node: Node) -> tuple[int, int, object]:
    """The place of a STORE: param, offset, and what is added to it."""
    number, (offset, terms) = node.arg[:2]
    return number, offset, terms


def _floor(e: Emitter, sign: str, a: Val, b: Val) -> Val:
    """Quotient or remainder, rounded down; the divisor is above 0."""

    def op(how: str, x: Val, y: Val) -> Val:
        return Val(e.let(f"{how} {e.typed(x)}, {y.text}"), int64, a.vector)

    quotient = op("sdiv", a, b) if sign == "//" else a
    rest = op("srem", a, b)
    down = compare(e, "icmp slt", rest, e.const(0, int64, a.vector))
    if sign == "//":
        return select(e, down, op("sub", quotient, e.const(1, int64, a.vector)), quotient)
    return select(e, down, op("add", rest, b), rest)
