"""Where values are: indices, conditions, loads and stores while loops are open.

In: affine indices and the loops that are open (an axis is an SSA index; one axis may be live as
lanes). Out: values and memory accesses: one element, a row of consecutive lanes, or lanes at
places of their own, whichever the index says. What is known of an index before a loop opens is
taken into a pointer there (`settle`), so that inner loops add one index to one address.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ....core.dtype import DType, bool_, int32, int64
from ....core.node import Node, Source
from ....graph.ir.affine import Affine, Atom, Condition, axes_of, bounds, sources_of
from ....graph.ir.reshape_groups import CannotLower
from ..llvm.convert import load_every, load_value, store_every, store_value
from ..llvm.emitter import Emitter, Val, ramp
from ..llvm.maths import compare, select

NEAR = (-1, 2, 3, 4)  # steps between lanes whose rows are read whole


class Access:
    """The open loops, and memory seen from inside them."""

    def __init__(
        self, e: Emitter, dtypes: Sequence[DType], sizes: Sequence[int] | None = None
    ) -> None:
        self.e, self.dtypes = e, dtypes
        self.sizes = sizes  # of axes, if known
        self.open: dict[int, str] = {}  # axis -> its index now
        self.lane_axis: int | None = None  # the axis whose lanes are live
        self.mask: str | None = None  # lanes that exist, in the last vector of a row
        self.pointers: dict[int, str] = {}
        # by open loop: (param, index) -> an address so far, and what of the index is left
        self.bases: list[dict[tuple[int, Affine], tuple[str, Affine]]] = [{}]

    def pointer(self, numbers: Iterable[int]) -> None:
        """Read the addresses of params."""
        for number in numbers:
            place = self.e.let(f"getelementptr ptr, ptr %params, i64 {number}")
            self.pointers[number] = self.e.let(f"load ptr, ptr {place}")

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
        return isinstance(atom, int) and atom in self.open and atom != self.lane_axis

    # --- indices ---------------------------------------------------------------------------------

    def atom(self, atom: Atom, sources: Sequence[Val]) -> Val:
        e = self.e
        if isinstance(atom, int):
            base = Val(self.open[atom], int64)
            if atom != self.lane_axis:
                return base
            each = e.splat(base)
            return Val(e.let(f"add {e.typed(each)}, {ramp(e.lanes, 1, 'i64')}"), int64, True)
        if isinstance(atom, Source):
            found = sources[atom.index]
            if found.dtype.bits == 64:
                return Val(found.text, int64, found.vector)
            how = "sext" if found.dtype.kind == "i" else "zext"
            kind = e.type_of(int64, found.vector)
            return Val(e.let(f"{how} {e.typed(found)} to {kind}"), int64, found.vector)
        sign, index, by = atom
        inner = self.index(index, sources)
        divisor = e.const(by, int64, inner.vector)
        if sign == "//":
            return _floor_div(e, inner, divisor)
        return _floor_mod(e, inner, divisor)

    def index(self, index: Affine, sources: Sequence[Val]) -> Val:
        """The value of an index: a number, or one for each lane."""
        e = self.e
        total = Val(str(index[0]), int64)
        for atom, coefficient in index[1]:
            part = self.atom(atom, sources)
            if coefficient != 1:
                factor = e.const(coefficient, int64, part.vector)
                part = Val(e.let(f"mul {e.typed(part)}, {factor.text}"), int64, part.vector)
            if total.text == "0":
                total = part
                continue
            total, part = e.alike(total, part)
            total = Val(e.let(f"add {e.typed(total)}, {part.text}"), int64, total.vector)
        return total

    def conditions(self, conditions: Sequence[Condition], sources: Sequence[Val]) -> Val:
        e = self.e
        holds: Val | None = None
        for index, size in conditions:
            inside = self.between(index, size)
            if inside is None:
                place = self.index(index, sources)
                inside = compare(e, "icmp ult", place, e.const(size, int64, place.vector))
            if holds is None:
                holds = inside
            else:
                holds, inside = e.alike(holds, inside)
                holds = Val(e.let(f"and {e.typed(holds)}, {inside.text}"), bool_, holds.vector)
        return holds or Val("true", bool_)

    def between(self, index: Affine, size: int) -> Val | None:
        """Which lanes of an index are from 0 to a size: where 32 bits will do, else None."""
        rest, step, tangled = self.split(index)
        if step == 0 or tangled or self.sizes is None or sources_of(index):
            return None
        low, high = bounds(index, self._bound)
        if low < -(1 << 31) or max(high, size) >= 1 << 31:
            return None
        e = self.e
        first = self.beyond(self.index(rest, ()), step)
        short = e.splat(Val(e.let(f"trunc i64 {first.text} to i32"), int32))
        places = e.let(f"add {e.typed(short)}, {ramp(e.lanes, step, 'i32')}")
        return compare(e, "icmp ult", Val(places, int32, True), e.const(size, int32, True))

    def _bound(self, atom: int | Source) -> tuple[int, int]:
        assert isinstance(atom, int) and self.sizes is not None
        return 0, self.sizes[atom] - 1

    def split(self, index: Affine) -> tuple[Affine, int, bool]:
        """An index without the lanes' own term, its step, and whether lanes are elsewhere too."""
        step, rest, tangled = 0, [], False
        for atom, coefficient in index[1]:
            if atom == self.lane_axis and isinstance(atom, int):
                step = coefficient
                continue
            rest.append((atom, coefficient))
            if isinstance(atom, tuple) and self.lane_axis is not None:
                tangled = tangled or self.lane_axis in axes_of(atom[1])
        return (index[0], tuple(rest)), step, tangled

    def beyond(self, place: Val, step: int = 1) -> Val:
        """A place plus that of the first lane, lanes being so many steps apart."""
        assert self.lane_axis is not None
        first = self.open[self.lane_axis]
        if step != 1:
            first = self.e.let(f"mul i64 {first}, {step}")
        if place.text == "0":
            return Val(first, int64)
        return Val(self.e.let(f"add i64 {place.text}, {first}"), int64)

    # --- memory ----------------------------------------------------------------------------------

    def load(self, node: Node, sources: Sequence[Val]) -> Val:
        number, index, conditions = node.arg
        dtype = self.dtypes[number]
        pointer, left = self.base(number, index)
        rest, step, tangled = self.split(left)
        dynamic = tangled or any(sources[a.index].vector for a in sources_of(rest))
        holds = self.conditions(conditions, sources) if conditions else None
        lanes = self.lane_axis is not None and (step != 0 or dynamic)
        if holds is not None and holds.vector:
            lanes = True
        if not lanes and holds is not None:  # reads the param's first element where it fails
            whole = self.index(index, sources)
            return load_value(self.e, self.pointers[number], whole, dtype, holds, None, "one")
        if not lanes:
            return load_value(self.e, pointer, self.index(left, sources), dtype, None, None, "one")
        if step == 1 and not dynamic:
            place = self.index(rest, sources)
            start = self.beyond(place)
            return load_value(self.e, pointer, start, dtype, holds, self.mask, "row")
        if step and not dynamic:
            start = self.beyond(self.index(rest, sources), step)
            if step in NEAR:
                return load_every(self.e, pointer, start, dtype, holds, self.mask, step)
            pointer, place = self.apart(pointer, start, step, dtype)
        else:
            place = self.e.splat(self.index(left, sources))
        return load_value(self.e, pointer, place, dtype, holds, self.mask, "places")

    def apart(self, pointer: str, start: Val, step: int, dtype: DType) -> tuple[str, Val]:
        """Lanes so many steps apart: the address of the first, and where the others are from it."""
        e = self.e
        address = f"getelementptr [{dtype.itemsize} x i8], ptr {pointer}, i64 {start.text}"
        wide = int32 if abs(step) * e.lanes < 1 << 31 else int64
        return e.let(address), Val(ramp(e.lanes, step, f"i{wide.bits}"), wide, True)

    def store(self, node: Node, value: Val) -> None:
        number, index, _, _ = node.arg
        if not _is_plain(node):
            raise CannotLower("a scatter has no native form yet")
        dtype = self.dtypes[number]
        pointer, index = self.base(number, index)
        rest, step, tangled = self.split(index)
        if self.lane_axis is None:
            store_value(self.e, pointer, self.index(index, ()), value, dtype, None, "one")
        elif step == 1 and not tangled:
            place = self.index(rest, ())
            start = self.beyond(place)
            store_value(self.e, pointer, start, self.e.splat(value), dtype, self.mask, "row")
        else:
            if step and not tangled:
                start = self.beyond(self.index(rest, ()), step)
                pointer, places = self.apart(pointer, start, step, dtype)
            else:
                places = self.e.splat(self.index(index, ()))
            value = self.e.splat(value)
            store_value(self.e, pointer, places, value, dtype, self.mask, "places")

    def stores(self, found: Sequence[tuple[Node, Val]]) -> None:
        """Write values where STOREs say, those whose lanes take turns in memory together."""
        waiting = {_where(node): (node, value) for node, value in found}
        for node, _ in found:
            if _where(node) not in waiting:
                continue
            number, (first, terms), _, _ = node.arg
            _, step, tangled = self.split((0, terms))
            turns = [(number, first + i, terms) for i in range(step if step in NEAR else 1)]
            together = step in NEAR and not tangled and all(t in waiting for t in turns)
            if step < 2 or not together or any(not _is_plain(waiting[t][0]) for t in turns):
                self.store(*waiting.pop(_where(node)))
                continue
            pointer, left = self.base(number, node.arg[1])
            start = self.beyond(self.index(self.split(left)[0], ()), step)
            values = [self.e.splat(waiting.pop(t)[1]) for t in turns]
            store_every(self.e, pointer, start, values, self.dtypes[number], self.mask)


def _is_plain(node: Node) -> bool:
    """Does a STORE put each value at a place of its own?"""
    return node.arg[2] == "set" and len(node.src) == 1


def _where(node: Node) -> tuple[int, int, object]:
    """The place of a STORE: param, offset, and what is added to it."""
    number, (offset, terms) = node.arg[:2]
    return number, offset, terms


def _floor_div(e: Emitter, a: Val, b: Val) -> Val:
    q = Val(e.let(f"sdiv {e.typed(a)}, {b.text}"), int64, a.vector)
    r = Val(e.let(f"srem {e.typed(a)}, {b.text}"), int64, a.vector)
    down = compare(e, "icmp slt", r, e.const(0, int64, a.vector))
    less = Val(e.let(f"sub {e.typed(q)}, {e.const(1, int64, a.vector).text}"), int64, a.vector)
    return select(e, down, less, q)


def _floor_mod(e: Emitter, a: Val, b: Val) -> Val:
    r = Val(e.let(f"srem {e.typed(a)}, {b.text}"), int64, a.vector)
    down = compare(e, "icmp slt", r, e.const(0, int64, a.vector))
    more = Val(e.let(f"add {e.typed(r)}, {b.text}"), int64, a.vector)
    return select(e, down, more, r)
