"""Shape-generic functions: sizes and strides are known at run time, one text for every shape.

In: nodes of a kernel's body. Out: lines of one function. Every number in an index (a step, an
offset, a size) is read at the function's entry from `numbers`, under a name made of where it
stands, so kernels that differ in such numbers alone have the same text. Loops walk lines of axes;
the innermost axis of a line can be live as lanes. Values that do not change along the lanes are
computed before the loop over them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

from ....core.dtype import DType, bool_, int32, int64
from ....core.node import Node
from ....core.ops.index import LOAD
from ....core.ops.leaf import VAR
from ....graph.ir.affine import Affine, Atom, Condition, axes_of
from ....kernel.contract.analysis import Line, Part
from ...common.api import FIRST
from ..llvm.convert import load_value
from ..llvm.emitter import Emitter, Val, ramp
from ..llvm.maths import compare
from .access import Access

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


class FunctionBuilder(Access):
    """One function being written, with the numbers of its indices loaded at its entry."""

    knows_steps = False

    def __init__(
        self, symbol: str, numbers: Numbers, dtypes: Sequence[DType], lanes: int, masked: bool
    ) -> None:
        super().__init__(Emitter(lanes), dtypes)
        self.symbol, self.numbers, self.masked = symbol, numbers, masked
        self.variables = {name: FIRST + i for i, name in enumerate(numbers.variables)}
        self.entry: list[str] = []  # lines before all others
        self.read: dict[Hashable, str] = {}
        self.literal = _LITERAL  # steps of lanes that the text knows
        self.steady = False  # is every number of an index read, whatever it is?
        self.scopes: list[dict[Node, Val]] = [{}]
        self.unasked = False  # do all conditions hold for these lanes?
        self.ahead: dict[Hashable, Val] = {}  # parts of indices that do not change along the lanes
        self.part: Part | None = None

    def text(self) -> str:
        """The function's definition."""
        args = "ptr noalias %params, ptr noalias %values, i64 %first, i64 %last"
        body = "\n".join([*self.entry, *self.e.lines])
        return f"define void @{self.symbol}({args}) nounwind {{\nentry:\n{body}\n  ret void\n}}"

    def name_of(self, node: Node) -> Hashable:
        """What names of a node's numbers begin with."""
        return "at", self.numbers.position[node]

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
        return self.pointer_at(str(number), number)

    def pointer_at(self, number: str, name: Hashable) -> str:
        """The address of a param whose number is known at run time, read once."""
        name = ("param", name)
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
        loads: Sequence[Node] = (), whole_only: bool = False, apart: int = 0,
    ) -> None:  # fmt: skip
        """Run `body(offset)` for vectors from first to last; `before` is computed ahead, and what
        does not change in the indices of `loads`, whose other axes are open. `whole_only`: there
        are no other vectors, so that none needs a mask. `apart`: where so many in a row
        need none, these have a text of their own."""
        e = self.e
        self.scopes.append({})
        for node in before:
            self.value(node)
        for node in loads:
            self.settle_load(node, axis, first, last)
        width, inner = e.lanes, self.unasked_from(loads, first, last, apart) if apart else None

        def once(index: str, mask: str | None) -> None:
            self.open[axis], self.lane, self.mask = index, axis, mask
            self.scope(lambda: body(self.sub(index, first)))
            self.lane, self.mask = None, None
            del self.open[axis]

        def edge(index: str) -> None:
            masked = self.masked and not whole_only
            once(index, self.tail(self.sub(last, index)) if masked else None)

        def full(index: str) -> None:
            self.unasked = True
            once(index, None)
            self.unasked = False

        def turn(index: str, _: list[str]) -> list[str]:
            if inner is None:
                edge(index)
            else:
                inside = e.let(f"icmp ult i64 {self.sub(index, inner[0])}, {inner[1]}")
                e.either(inside, lambda: full(index), lambda: edge(index))
            return []

        if self.masked or whole_only:
            e.loop(first, last, width, [], turn)
        else:
            rest = e.let(f"urem i64 {self.sub(last, first)}, {width}")
            whole = self.sub(last, rest)
            e.loop(first, whole, width, [], turn)
            some = e.let(f"icmp ne i64 {rest}, 0")
            e.branch(some, lambda: once(whole, self.tail(rest)))
        self.scopes.pop()
        self.ahead.clear()

    def unasked_from(
        self, loads: Sequence[Node], first: str, last: str, enough: int
    ) -> tuple[str, str] | None:
        """The first vector that needs no mask, and in how many places after it one may begin: all
        conditions of all loads hold there. None if conditions of one are not settled."""
        e, asked = self.e, [self.name_of(n) for n in loads if n.op is LOAD and n.arg[2]]
        if any([(name, "from") not in self.ahead for name in asked]):
            return None
        low, high = first, last
        for place, name in enumerate(asked):
            start, end = self.ahead[name, "from"].text, self.ahead[name, "to"].text
            if place:
                start = e.call("i64", "llvm.smax.i64", f"i64 {low}", f"i64 {start}")
                end = self.least(high, end)
            low, high = start, end
        wide = self.sub(high, low)
        short = e.let(f"icmp slt i64 {wide}, {enough * e.lanes}")
        return low, e.let(f"select i1 {short}, i64 0, i64 {self.sub(wide, str(e.lanes - 1))}")

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

    # --- indices ---------------------------------------------------------------------------------

    def atom(self, atom: Atom, sources: Sequence[Val], name: Hashable) -> Val:
        """The value of an atom; an axis that is live as lanes is where the first one is."""
        if isinstance(atom, int):
            return Val(self.open[atom], int64)
        return super().atom(atom, sources, name)

    def settle_load(self, node: Node, axis: int, first: str, last: str) -> None:
        """Compute what does not change along an axis in the indices of a load or store, and between
        which of its steps all conditions hold."""
        index, conditions = node.arg[1], node.arg[2] if node.op is LOAD else ()
        name = self.name_of(node)
        if self.divides(node, axis):
            return
        self.ahead[name] = self.first(index, (), name, axis)[0]
        steps = [dict(condition[1]).get(axis, 0) for condition, _ in conditions]
        if not steps or not set(steps) <= {0, 1}:
            return
        low, high = first, last
        for number, ((condition, size), step) in enumerate(zip(conditions, steps, strict=True)):
            at = self.first(condition, (), ((name, "if"), number), axis)[0].text
            limit = self.number((((name, "if"), number), "below"), size)
            if step:
                low = self.e.call("i64", "llvm.smax.i64", f"i64 {low}", f"i64 {self.sub('0', at)}")
                high = self.least(high, self.sub(limit, at))
            else:
                holds = self.e.let(f"icmp ult i64 {at}, {limit}")
                high = self.e.let(f"select i1 {holds}, i64 {high}, i64 0")
        count = self.e.call("i64", "llvm.smax.i64", f"i64 {self.sub(high, low)}", "i64 0")
        if dict(index[1]).get(axis) == 1:  # where no step is, no memory beyond the param is read
            some, nowhere = self.e.let(f"icmp ne i64 {count}, 0"), self.sub("0", first)
            at = f"select i1 {some}, i64 {self.ahead[name].text}, i64 {nowhere}"
            self.ahead[name] = Val(self.e.let(at), int64)
        short = Val(self.e.let(f"trunc i64 {count} to i32"), int32)
        self.ahead[name, "from"], self.ahead[name, "count"] = Val(low, int64), self.e.splat(short)
        self.ahead[name, "to"] = Val(high, int64)

    def divides(self, node: Node, axis: int) -> bool:
        """True if a place of a load or store is data, or divides an axis."""
        places = [node.arg[1]]
        if node.op is LOAD:
            places += [condition for condition, _ in node.arg[2]]
        inside = [atom[1] for place in places for atom, _ in place[1] if isinstance(atom, tuple)]
        of_data = node.op is LOAD and bool(node.src)
        return of_data or any([axis in axes_of(divided) for divided in inside])

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
        known = self.ahead.get(name)
        offset = "0"
        if (index[0] or self.steady) and not known:
            offset = self.number((name, "offset"), index[0])
        total = known or Val(offset, int64)
        lanes: Val | None = None
        for place, (atom, step) in self.terms(index, known is not None, without):
            along = isinstance(atom, int) and atom == self.lane
            found = self.atom(atom, sources, (name, place))
            if found.text == "0" and not along:
                continue
            literal = along and step in self.literal
            factor = str(step) if literal else self.number((name, place, "step"), step)
            lanes = self.lane_offsets(factor) if along else lanes
            total = self.plus(total, found, factor)
        return total, lanes

    def terms(
        self, index: Affine, known: bool, without: int | None
    ) -> Iterator[tuple[int, tuple[Atom, int]]]:
        """The terms of an index that are still to be added, with their places."""
        assert self.part is not None
        for place, (atom, step) in enumerate(index[1]):
            axis = atom if isinstance(atom, int) else None
            gone = axis is not None and (axis in self.part.absorbed or axis == without)
            if not gone and (not known or (axis is not None and axis == self.lane)):
                yield place, (atom, step)

    def lane_offsets(self, step: str) -> Val:
        """How far lanes are from the first one."""
        e = self.e
        if not step.startswith("%"):
            return Val(ramp(e.lanes, int(step), "i64"), int64, True)
        each, all_ = e.splat(Val(step, int64)).text, ramp(e.lanes, 1, "i64")
        return Val(e.let(f"mul <{e.lanes} x i64> {all_}, {each}"), int64, True)

    def index(self, index: Affine, sources: Sequence[Val], name: Hashable = None) -> Val:
        """The value of an index: a number, or one for each lane."""
        total, lanes = self.first(index, sources, name)
        if lanes is None:
            return total
        total = self.e.splat(total)
        return Val(self.e.let(f"add {self.e.typed(total)}, {lanes.text}"), int64, True)

    def inside(self, condition: Condition, sources: Sequence[Val], name: Hashable) -> Val:
        """Where one condition holds."""
        e, (index, size) = self.e, condition
        limit = Val(self.number((name, "below"), size), int64)
        place, lanes = self.first(index, sources, name)
        step = self.along(index)[0]
        if lanes is not None and not place.vector and step in self.literal:
            return self.between(place, step, limit)
        if lanes is not None:
            text = f"add <{e.lanes} x i64> {e.splat(place).text}, {lanes.text}"
            place = Val(e.let(text), int64, True)
        return compare(e, "icmp ult", *e.alike(place, limit))

    # --- memory ----------------------------------------------------------------------------------

    def base(self, number: int, index: Affine) -> tuple[str, Affine]:
        """The address of a param, and the index that is still to be added."""
        return self.pointer(number), index

    def first_lane(self, index: Affine, sources: Sequence[Val], name: Hashable) -> Val:
        """An index at the first lane."""
        return self.first(index, sources, name)[0]

    def load(self, node: Node, sources: Sequence[Val]) -> Val:
        """The value of a LOAD; one whose conditions are settled is a masked row."""
        (number, index, _), name = node.arg, self.name_of(node)
        if (name, "from") not in self.ahead or self.along(index)[0] != 1:
            return super().load(node, sources)
        pointer = self.pointer(number)
        live = None
        if not self.unasked:
            live = self.holding(self.ahead[name, "from"], self.ahead[name, "count"])
        place = self.first(index, sources, name)[0]
        return load_value(self.e, pointer, place, self.dtypes[number], live, None, "row")

    # --- values ----------------------------------------------------------------------------------

    def known(self, node: Node) -> Val | None:
        """A node's value if it is computed already."""
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
        """True if a node is computed without its sources being computed here before it."""
        return False

    def compute(self, node: Node) -> Val:
        """A node's value from its sources'."""
        return self.emit(node, [v for s in node.src if (v := self.known(s)) is not None])

    def within_size(self, value: Val, size: int, name: Hashable) -> tuple[str, Val]:
        """The size of an axis, and whether values are indices of it."""
        limit = Val(self.number((name, "below"), size), int64)
        wide = value if value.dtype.bits == 64 else self.widened(value)
        return limit.text, compare(self.e, "icmp ult", *self.e.alike(wide, limit))
