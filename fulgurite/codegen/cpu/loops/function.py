"""A function whose sizes and strides are known at run time: one text for every shape.

In: nodes of a kernel's body. Out: lines of one function. Every number in an index (a step, an
offset, a size) is read at the function's entry from `numbers`, under a name made of where it
stands, so kernels that differ in such numbers alone have the same text. Loops walk lines of axes;
the innermost axis of a line can be live as lanes. Values that do not change along the lanes are
computed before the loop over them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from ....core.dtype import DType, bool_, int32, int64
from ....core.node import Node, Source
from ....core.ops.index import BITS, GUARD, INDEX, LOAD, VALID
from ....core.ops.leaf import CONST, VAR
from ....graph.ir.affine import Affine, Atom, Condition, axes_of, sources_of
from ....graph.ir.reshape_groups import CannotLower
from ....kernel.contract.analysis import Line, Part
from ...common.api import BROKEN, ERROR, FIRST
from ..llvm.convert import load_value, store_value
from ..llvm.emitter import Emitter, Val, ramp
from ..llvm.maths import compare, random_bits, select
from ..spelling import cast, operate

Body = Callable[[], None]
_LITERAL: tuple[int, ...] = (1, 2, 3, 4)  # steps of lanes that are worth a text of their own


class Numbers:
    """What a kernel's functions read at run time: variables, then numbers by name."""

    base = "%values"  # where they are

    def __init__(self, order: Sequence[Node]) -> None:
        self.variables = list(dict.fromkeys(n.arg[0] for n in order if n.op is VAR))
        self.position = {node: i for i, node in enumerate(order)}
        self.places: dict[Hashable, int] = {}
        self.values: list[int] = []

    def place(self, name: Hashable, value: int) -> int:
        """The place of a number in `values`."""
        if name not in self.places:
            self.places[name] = len(self.values)
            self.values.append(value)
        place = self.places[name]
        assert self.values[place] == value, f"{name} is two numbers"
        return FIRST + len(self.variables) + place


class Frame:
    """One function being written."""

    def __init__(
        self, symbol: str, numbers: Numbers, dtypes: Sequence[DType], lanes: int, masked: bool
    ) -> None:
        self.e = Emitter(lanes)
        self.symbol, self.numbers, self.dtypes, self.masked = symbol, numbers, dtypes, masked
        self.entry: list[str] = []  # lines before all others
        self.read: dict[Hashable, str] = {}
        self.open: dict[int, str] = {}  # axis -> its index now
        self.lane: int | None = None  # the axis whose lanes are live
        self.mask: str | None = None
        self.literal = _LITERAL  # steps of lanes that the text knows
        self.steady = False  # is every number of an index read, whatever it is?
        self.parted = False  # do whole vectors go without a mask, by a branch?
        self.left: str | None = None  # how many lanes there are at least, where that is so
        self.scopes: list[dict[Node, Val]] = [{}]
        self.ahead: dict[Hashable, Val] = {}  # parts of indices that do not change along the lanes
        self.part: Part | None = None

    def text(self) -> str:
        """The function's definition."""
        args = "ptr noalias %params, ptr noalias %values, i64 %first, i64 %last"
        body = "\n".join([*self.entry, *self.e.lines])
        return f"define void @{self.symbol}({args}) nounwind {{\nentry:\n{body}\n  ret void\n}}"

    # --- what is read at the entry ---------------------------------------------------------------

    def number(self, name: Hashable, value: int = 0) -> str:
        """A number of this kernel, read once."""
        if name not in self.read:
            place, found = self.e.name("n"), self.e.name("n")
            at = self.numbers.place(name, value)
            self.entry.append(f"  {place} = getelementptr i64, ptr {self.numbers.base}, i64 {at}")
            self.entry.append(f"  {found} = load i64, ptr {place}")
            self.read[name] = found
        return self.read[name]

    def pointer(self, number: int) -> str:
        """The address of a param, read once."""
        name = ("param", number)
        if name not in self.read:
            place, found = self.e.name("p"), self.e.name("p")
            self.entry.append(f"  {place} = getelementptr ptr, ptr %params, i64 {number}")
            self.entry.append(f"  {found} = load ptr, ptr {place}")
            self.read[name] = found
        return self.read[name]

    def scratch(self, name: str, kind: str, count: str) -> str:
        """Memory of this function's own, 64-aligned."""
        if name not in self.read:
            found = self.e.name("s")
            self.entry.append(f"  {found} = alloca {kind}, i64 {count}, align 64")
            self.read[name] = found
        return self.read[name]

    # --- plain arithmetic ------------------------------------------------------------------------

    def add(self, a: str, b: str) -> str:
        """a + b."""
        return b if a == "0" else a if b == "0" else self.e.let(f"add i64 {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        """a - b."""
        return a if b == "0" else self.e.let(f"sub i64 {a}, {b}")

    def mul(self, a: str, b: str) -> str:
        """a * b."""
        return "0" if "0" in (a, b) else b if a == "1" else self.e.let(f"mul i64 {a}, {b}")

    def least(self, a: str, b: str) -> str:
        """The smaller one."""
        return self.e.call("i64", "llvm.smin.i64", f"i64 {a}", f"i64 {b}")

    def divided(self, a: str, b: str) -> tuple[str, str]:
        """Quotient and remainder of numbers that are not negative."""
        quotient = self.e.let(f"udiv i64 {a}, {b}")
        return quotient, self.sub(a, self.mul(quotient, b))

    def panels(self, columns: str, wide: str, reach: str) -> str:
        """How many panels some columns are, where the last one may reach further than others."""
        beyond = self.e.call("i64", "llvm.smax.i64", f"i64 {self.sub(columns, reach)}", "i64 0")
        return self.add(self.divided(self.add(beyond, self.sub(wide, "1")), wide)[0], "1")

    def in_panel(self, left: str, wide: str, reach: str) -> str:
        """How many of the columns that are left the next panel takes."""
        last = self.e.let(f"icmp sle i64 {left}, {reach}")
        return self.e.let(f"select i1 {last}, i64 {left}, i64 {wide}")

    # --- walking lines ---------------------------------------------------------------------------

    def size(self, line: Line, place: int) -> str:
        """The size of an axis of a line."""
        assert self.part is not None
        axis = line.axes[place]
        name = ("size", axis, self.part.absorbed)
        return self.number(name, line.sizes[place])

    def coordinates(self, line: Line, index: str) -> list[str]:
        """A flat index of a line as indices of its axes."""
        found: list[str] = []
        for place in range(len(line.axes) - 1, 0, -1):
            index, rest = self.divided(index, self.size(line, place))
            found.append(rest)
        return [index, *reversed(found)] if line.axes else []

    def opened(self, line: Line, coordinates: Sequence[str]) -> None:
        """The axes of a line at fixed indices from here on."""
        self.open.update(zip(line.axes, coordinates, strict=True))

    def scope(self, body: Body) -> None:
        """Run `body` with values of its own."""
        self.scopes.append({})
        body()
        self.scopes.pop()

    def walk(
        self, line: Line, start: Sequence[str], count: str, body: Callable[[str], None]
    ) -> None:
        """Run `body(offset)` at every one of `count` places of a line, its axes open."""

        def once(offset: str, now: list[str]) -> list[str]:
            if len(line.axes) == 1:
                at = [self.add(start[0], offset)]
            else:
                at = now
            self.opened(line, at)
            self.scope(lambda: body(offset))
            return self.after(line, at, len(line.axes) - 1) if len(line.axes) > 1 else []

        carried = [("i64", s) for s in start] if len(line.axes) > 1 else []
        self.e.loop("0", count, 1, carried, once)

    def after(self, line: Line, at: Sequence[str], place: int) -> list[str]:
        """The coordinates one step later along the axis at a place."""
        out = list(at)
        step = "1"
        for i in range(place, 0, -1):
            moved = self.add(out[i], step)
            wrap = self.e.let(f"icmp sge i64 {moved}, {self.size(line, i)}")
            out[i] = self.e.let(f"select i1 {wrap}, i64 0, i64 {moved}")
            step = self.e.let(f"zext i1 {wrap} to i64")
        out[0] = self.add(out[0], step)
        return out

    def runs(
        self, line: Line, start: Sequence[str], count: str,
        body: Callable[[str, str, str], None],
    ) -> None:  # fmt: skip
        """Run `body(offset, first, last)` for every run along the innermost axis of a line."""
        if len(line.axes) == 1:
            self.scope(lambda: body("0", start[0], self.add(start[0], count)))
            return
        size = self.size(line, len(line.axes) - 1)
        whole = self.add(self.add(start[-1], count), self.sub(size, "1"))
        number, _ = self.divided(whole, size)
        outer = Line(line.axes[:-1], line.sizes[:-1], frozenset())

        def once(_: str, now: list[str]) -> list[str]:
            first, offset, *at = now
            last = self.least(size, self.add(first, self.sub(count, offset)))
            self.opened(outer, at)
            self.scope(lambda: body(offset, first, last))
            following = self.after(outer, at, len(at) - 1)
            return ["0", self.add(offset, self.sub(last, first)), *following]

        carried = [("i64", s) for s in (start[-1], "0", *start[:-1])]
        self.e.loop("0", number, 1, carried, once)

    def lanes(
        self, axis: int, first: str, last: str, before: Sequence[Node], body: Callable[[str], None],
        loads: Sequence[Node] = (),
    ) -> None:  # fmt: skip
        """Run `body(offset)` for vectors from first to last; `before` is computed ahead, and what
        does not change in the indices of `loads`, whose other axes are open."""
        e = self.e
        self.scopes.append({})
        for node in before:
            self.value(node)
        for node in loads:
            self.settle(node, axis, first, last)
        width = e.lanes

        def once(index: str, mask: str | None) -> None:
            self.open[axis], self.lane, self.mask = index, axis, mask
            self.scope(lambda: body(self.sub(index, first)))
            self.lane, self.mask = None, None
            del self.open[axis]

        def turn(index: str, _: list[str]) -> list[str]:
            left = self.sub(last, index)
            self.left = left if self.parted and self.masked else None
            once(index, self.tail(left) if self.masked else None)
            self.left = None
            return []

        if self.masked:
            e.loop(first, last, width, [], turn)
        else:
            rest = e.let(f"urem i64 {self.sub(last, first)}, {width}")
            whole = self.sub(last, rest)
            e.loop(first, whole, width, [], turn)
            some = e.let(f"icmp ne i64 {rest}, 0")
            e.branch(some, lambda: once(whole, self.tail(rest)))
        self.scopes.pop()
        self.ahead.clear()

    def stretched(self, index: str, each: str, over: str, unit: str, all_: str) -> tuple[str, str]:
        """Where a part of a line begins and how long it is: `each` units more for every `over`."""
        following = self.add(index, "1")
        begin, end = [
            self.mul(self.e.let(f"udiv i64 {self.mul(at, each)}, {over}"), unit)
            for at in (index, following)
        ]
        return begin, self.sub(self.least(end, all_), begin)

    def tail(self, count: str) -> str:
        """A mask of the first `count` lanes."""
        e, width = self.e, self.e.lanes
        short = e.let(f"trunc i64 {self.least(count, str(width))} to i32")
        first = e.let(f"insertelement <{width} x i32> poison, i32 {short}, i64 0")
        zeros = f"<{width} x i32> zeroinitializer"
        all_ = e.let(f"shufflevector <{width} x i32> {first}, <{width} x i32> poison, {zeros}")
        return e.let(f"icmp ult <{width} x i32> {ramp(width, 1, 'i32')}, {all_}")

    def masked_if_need_be(self, act: Callable[[str | None], Val | None]) -> Val | None:
        """What `act` makes of the mask. One of whole vectors costs an instruction at every load,
        so where they are the rule they take a way of their own."""
        if self.left is None:
            return act(self.mask)
        left = self.left
        whole = self.e.let(f"icmp sge i64 {left}, {self.e.lanes}")
        return self.e.either(whole, lambda: act(None), lambda: act(self.mask))

    # --- indices ---------------------------------------------------------------------------------

    def atom(self, atom: Atom, sources: Sequence[Val], name: Hashable) -> Val:
        """The value of an atom that is not the lanes' own axis."""
        e = self.e
        if isinstance(atom, int):
            return Val(self.open[atom], int64)
        if isinstance(atom, Source):
            found = sources[atom.index]
            if found.dtype is int64:
                return found
            how = "sext" if found.dtype.kind == "i" else "zext"
            kind = e.type_of(int64, found.vector)
            return Val(e.let(f"{how} {e.typed(found)} to {kind}"), int64, found.vector)
        sign, index, by = atom
        inner = self.index(index, sources, (name, "in"))
        divisor = Val(self.number((name, "by"), by), int64)
        inner, divisor = e.alike(inner, divisor)
        return _floor(e, sign, inner, divisor)

    def settle(self, node: Node, axis: int, first: str, last: str) -> None:
        """Work out what does not change along an axis in the indices of a load, and between which
        of its steps all conditions hold."""
        _, index, conditions = node.arg
        name = ("at", self.numbers.position[node])
        places = [index, *[condition for condition, _ in conditions]]
        inside = [atom[1] for place in places for atom, _ in place[1] if isinstance(atom, tuple)]
        if node.src or any(axis in axes_of(divided) for divided in inside):
            return
        self.ahead[name] = self.first(index, (), name, axis)[0]
        steps = [dict(condition[1]).get(axis, 0) for condition, _ in conditions]
        if not steps or not set(steps) <= {0, 1}:
            return
        low, high = first, last
        for number, ((condition, size), step) in enumerate(zip(conditions, steps, strict=True)):
            at = self.first(condition, (), ((name, "if"), number), axis)[0].text
            limit = self.number(((name, "if"), number, "below"), size)
            if step:
                low = self.e.call("i64", "llvm.smax.i64", f"i64 {low}", f"i64 {self.sub('0', at)}")
                high = self.least(high, self.sub(limit, at))
            else:
                holds = self.e.let(f"icmp ult i64 {at}, {limit}")
                high = self.e.let(f"select i1 {holds}, i64 {high}, i64 0")
        count = self.e.call("i64", "llvm.smax.i64", f"i64 {self.sub(high, low)}", "i64 0")
        short = Val(self.e.let(f"trunc i64 {count} to i32"), int32)
        self.ahead[name, "from"], self.ahead[name, "count"] = Val(low, int64), self.e.splat(short)

    def holding(self, low: Val, count: Val) -> Val:
        """The lanes between the steps where all conditions hold."""
        assert self.lane is not None
        e, kind = self.e, f"<{self.e.lanes} x i32>"
        start = e.let(f"trunc i64 {self.sub(self.open[self.lane], low.text)} to i32")
        places = e.let(f"add {kind} {e.splat(Val(start, int32)).text}, {ramp(e.lanes, 1, 'i32')}")
        return Val(e.let(f"icmp ult {kind} {places}, {count.text}"), bool_, True)

    def first(
        self, index: Affine, sources: Sequence[Val], name: Hashable, without: int | None = None
    ) -> tuple[Val, Val | None]:
        """An index at the first lane, and what other lanes add to it if they are along it."""
        assert self.part is not None
        e = self.e
        known = self.ahead.get(name)
        offset = "0"
        if (index[0] or self.steady) and not known:
            offset = self.number((name, "offset"), index[0])
        total = known or Val(offset, int64)
        lanes: Val | None = None
        for place, (atom, step) in enumerate(index[1]):
            if isinstance(atom, int) and (atom in self.part.absorbed or atom == without):
                continue
            along = isinstance(atom, int) and atom == self.lane
            if known and not along:
                continue
            found = self.atom(atom, sources, (name, place))
            if found.text == "0" and not along:
                continue
            if along and step in self.literal:
                factor = Val(str(step), int64)
                lanes = Val(ramp(e.lanes, step, "i64"), int64, True)
            else:
                factor = Val(self.number((name, place, "step"), step), int64)
                if along:
                    each, all_ = e.splat(factor).text, ramp(e.lanes, 1, "i64")
                    lanes = Val(e.let(f"mul <{e.lanes} x i64> {all_}, {each}"), int64, True)
            if factor.text != "1":
                found, factor = e.alike(found, factor)
                found = Val(e.let(f"mul {e.typed(found)}, {factor.text}"), int64, found.vector)
            if total.text == "0":
                total = found
                continue
            total, found = e.alike(total, found)
            total = Val(e.let(f"add {e.typed(total)}, {found.text}"), int64, total.vector)
        return total, lanes

    def index(self, index: Affine, sources: Sequence[Val], name: Hashable) -> Val:
        """The value of an index: a number, or one for each lane."""
        total, lanes = self.first(index, sources, name)
        if lanes is None:
            return total
        total = self.e.splat(total)
        return Val(self.e.let(f"add {self.e.typed(total)}, {lanes.text}"), int64, True)

    def conditions(
        self, conditions: Sequence[Condition], sources: Sequence[Val], name: Hashable
    ) -> Val:
        """Do all conditions hold?"""
        e = self.e
        holds: Val | None = None
        for number, (index, size) in enumerate(conditions):
            limit = Val(self.number((name, number, "below"), size), int64)
            place, lanes = self.first(index, sources, (name, number))
            if lanes is not None and not place.vector and self.along(index)[0] in self.literal:
                inside = self.between(place, self.along(index)[0], limit)
            else:
                if lanes is not None:
                    text = f"add <{e.lanes} x i64> {e.splat(place).text}, {lanes.text}"
                    place = Val(e.let(text), int64, True)
                place, limit = e.alike(place, limit)
                inside = compare(e, "icmp ult", place, limit)
            if holds is None:
                holds = inside
            else:
                holds, inside = e.alike(holds, inside)
                holds = Val(e.let(f"and {e.typed(holds)}, {inside.text}"), bool_, holds.vector)
        return holds or Val("true", bool_)

    def along(self, index: Affine) -> tuple[int, bool]:
        """The step of an index along the lanes, and whether lanes are inside a division too."""
        step, tangled = 0, False
        for atom, coefficient in index[1]:
            if isinstance(atom, int) and atom == self.lane:
                step = coefficient
            elif isinstance(atom, tuple) and self.lane is not None:
                tangled = tangled or self.lane in axes_of(atom[1])
        return step, tangled

    def between(self, first: Val, step: int, limit: Val) -> Val:
        """Which lanes of an index are within 0 and a limit: in 32 bits, which sizes of axes fit."""
        e = self.e
        kind = f"<{e.lanes} x i32>"
        short = [Val(e.let(f"trunc i64 {v.text} to i32"), int32) for v in (first, limit)]
        at, below = [e.splat(v).text for v in short]
        places = e.let(f"add {kind} {at}, {ramp(e.lanes, step, 'i32')}")
        return Val(e.let(f"icmp ult {kind} {places}, {below}"), bool_, True)

    # --- memory ----------------------------------------------------------------------------------

    def load(self, node: Node, sources: Sequence[Val]) -> Val:
        number, index, conditions = node.arg
        name = ("at", self.numbers.position[node])
        dtype, pointer = self.dtypes[number], self.pointer(number)
        step, tangled = self.along(index)
        dynamic = tangled or any(sources[a.index].vector for a in sources_of(index))
        if (name, "from") in self.ahead and step == 1:
            live = self.holding(self.ahead[name, "from"], self.ahead[name, "count"])
            place = self.first(index, sources, name)[0]
            return load_value(self.e, pointer, place, dtype, live, None, "row")
        holds = self.conditions(conditions, sources, (name, "if")) if conditions else None
        lanes = self.lane is not None and (step != 0 or dynamic)
        if not lanes and not (holds is not None and holds.vector):
            place = self.index(index, sources, name)
            return load_value(self.e, pointer, place, dtype, holds, None, "one")
        if step == 1 and not dynamic:
            place = self.first(index, sources, name)[0]

            def row(mask: str | None) -> Val:
                return load_value(self.e, pointer, place, dtype, holds, mask, "row")

            return self.masked_if_need_be(row) or row(self.mask)
        place = self.e.splat(self.index(index, sources, name))
        return load_value(self.e, pointer, place, dtype, holds, self.mask, "places")

    def store(self, node: Node, value: Val) -> None:
        """Write a value where a STORE says."""
        number, index, _, _ = node.arg
        name = ("at", self.numbers.position[node])
        dtype, pointer = self.dtypes[number], self.pointer(number)
        step, tangled = self.along(index)
        assert self.lane is not None
        value = self.e.splat(value)
        if step == 1 and not tangled:
            place = self.first(index, (), name)[0]
            store_value(self.e, pointer, place, value, dtype, self.mask, "row")
        else:
            place = self.e.splat(self.index(index, (), name))
            store_value(self.e, pointer, place, value, dtype, self.mask, "places")

    # --- values ----------------------------------------------------------------------------------

    def known(self, node: Node) -> Val | None:
        """A node's value if it is worked out already."""
        for scope in reversed(self.scopes):
            found = scope.get(node)
            if found is not None:
                return found
        return None

    def value(self, node: Node) -> Val:
        """A node's value where we are."""
        found = self.known(node)
        if found is not None:
            return found
        stack: list[tuple[Node, bool]] = [(node, False)]
        while stack:
            current, ready = stack.pop()
            if self.known(current) is not None:
                continue
            if ready or self.is_whole(current):
                self.scopes[-1][current] = self.compute(current)
            else:
                stack.append((current, True))
                stack.extend((s, False) for s in reversed(current.src))
        found = self.known(node)
        assert found is not None
        return found

    def is_whole(self, node: Node) -> bool:
        """Is a node computed without its sources being worked out here before it?"""
        return False

    def compute(self, node: Node) -> Val:
        """A node's value from its sources'."""
        op = node.op
        name = ("at", self.numbers.position[node])
        sources = [v for s in node.src if (v := self.known(s)) is not None]
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
            place = FIRST + self.numbers.variables.index(node.arg[0])
            at = self.e.let(f"getelementptr i64, ptr %values, i64 {place}")
            return cast(self.e, Val(self.e.let(f"load i64, ptr {at}"), int64), int64, node.dtype)
        raise CannotLower(f"{op} has no native form in a contraction")

    def guard(self, node: Node, value: Val, name: Hashable) -> Val:
        """An index kept inside its axis; one that was not is reported in the error word."""
        e = self.e
        size = Val(self.number((name, "below"), node.arg), int64)
        how = "sext" if value.dtype.kind == "i" else "zext"
        wide = value
        if value.dtype.bits < 64:
            kind = e.type_of(int64, value.vector)
            wide = Val(e.let(f"{how} {e.typed(value)} to {kind}"), int64, value.vector)
        wide, limit = e.alike(wide, size)
        inside = compare(e, "icmp ult", wide, limit)
        one = e.const(1, bool_, inside.vector).text
        bad = e.let(f"xor {e.typed(inside)}, {one}")
        if inside.vector:
            if self.mask is not None:
                bad = e.let(f"and <{e.lanes} x i1> {bad}, {self.mask}")
            bad = e.call("i1", f"llvm.vector.reduce.or.v{e.lanes}i1", f"<{e.lanes} x i1> {bad}")

        def report() -> None:
            word = e.let(f"getelementptr i64, ptr %values, i64 {ERROR}")
            e.line(f"store i64 1, ptr {word}")
            at = e.let(f"getelementptr i64, ptr %values, i64 {BROKEN}")
            e.line(f"store i64 {size.text}, ptr {at}")

        e.branch(bad, report)
        return select(e, inside, value, e.const(0, value.dtype, value.vector))


def _floor(e: Emitter, sign: str, a: Val, b: Val) -> Val:
    """Quotient or remainder, rounded down; the divisor is above 0."""
    rest = Val(e.let(f"srem {e.typed(a)}, {b.text}"), int64, a.vector)
    down = compare(e, "icmp slt", rest, e.const(0, int64, a.vector))
    if sign == "//":
        q = Val(e.let(f"sdiv {e.typed(a)}, {b.text}"), int64, a.vector)
        less = Val(e.let(f"sub {e.typed(q)}, {e.const(1, int64, a.vector).text}"), int64, a.vector)
        return select(e, down, less, q)
    more = Val(e.let(f"add {e.typed(rest)}, {b.text}"), int64, a.vector)
    return select(e, down, more, rest)
