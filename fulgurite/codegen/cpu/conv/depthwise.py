"""The depthwise template: convolutions with channels last, weights in registers.

In: a sum that `kernel/contract/depthwise.py` found. Out: a `KernelText`. A unit is one vector of
channels at some places. It reads the weights of all taps once, then goes over its places: a tap
multiplies a vector of memory with its weights and adds them, in one instruction; the epilogue is
evaluated from the sum and stored. Sizes, steps, and how far each tap is from the first are numbers
of the table, so shapes need no text. Where an image has edges, a place at one asks of each tap
whether it is inside, and takes zeros where it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

from ....core.dtype import DType, int64
from ....core.node import Node
from ....core.ops.index import LOAD, STORE
from ....kernel.contract.analysis import Line, Part
from ....kernel.contract.depthwise import Depthwise, Edge
from ...common.api import KernelText, Launch
from ..llvm.convert import load_value, memory_dtype
from ..llvm.emitter import Val, scalar_type
from ..loops.function import FunctionBuilder, Numbers
from ..target import Target
from ..tiling import CPU


def depthwise_text(m: Depthwise, dtypes: Sequence[DType], target: Target) -> KernelText:
    """Sums of products over a window, for all channels of a place at once."""
    f = _Places(m, dtypes, target)
    places, run = prod(m.rows.sizes), m.rows.sizes[-1] if m.rows.sizes else 1
    tall = max(run, CPU.loops.split.unit_elements * 8 // m.lanes // run * run)
    if m.groups:  # no unit is of two
        tall = run * max([n for n in range(1, tall // run + 1) if m.places // run % n == 0])
    vectors = -(-m.lanes // target.lanes)
    f.write(places, tall, vectors)
    text = "\n".join([f.text(), *f.e.declared.values(), ""])
    below = set(m.inside)
    each = sum([n.op.cost * (len(m.taps) if n in below else 1) for n in m.order])
    launch = Launch("kernel", -(-places // tall) * vectors, each * places * m.lanes)
    return KernelText(text, (launch,), tuple(f.numbers.variables), tuple(f.numbers.values))


_HERE = Val("0", int64)  # the place of an address


class _Places(FunctionBuilder):
    """The one function of such a kernel."""

    def __init__(self, m: Depthwise, dtypes: Sequence[DType], target: Target) -> None:
        super().__init__("kernel", Numbers(m.order), dtypes, target.lanes, True)
        self.m, self.steady, self.e.has_dot4 = m, True, target.sums_bytes
        nothing = Line((), (), frozenset())
        self.part = Part(m.order, nothing, m.rows, nothing, nothing, frozenset())
        self.tap = -1  # that values are computed at, if any
        self.begins: dict[Node, str] = {}  # of loads under the sum: memory at the first tap
        self.lines: dict[Node, list[str]] = {}  # of those that move: memory at each row of taps
        self.weights = [n for n in m.inside if m.free[n] and m.free[n] <= m.channels]
        self.moving = [n for n in m.inside if n.op is LOAD and not m.free[n] <= m.channels]
        self.rows_of_taps = list(dict.fromkeys([self.row_of(tap) for tap in m.taps]))
        above = [n for n in m.order if n not in m.inside and n.op in (LOAD, STORE)]
        self.along_row = [n for n in above if m.rows.axes[-1] in m.free[n]]
        self.edges = list(dict.fromkeys([edge for n in self.moving for edge in m.edges(n)]))
        self.read_taps: dict[
            Edge, dict[int, str]
        ] = {}  # of each tap of an edge's axis: is it read?
        self.meets_edges = False  # may taps be outside where we are?

    def write(self, places: int, tall: int, vectors: int) -> None:
        """Everything that the function does."""
        m, e = self.m, self.e
        lanes, many = self.number("lanes", m.lanes), self.number("places", places)
        high, count = self.number("tall", tall), self.number("vectors", vectors)
        for node in m.order:
            if not m.free[node] and node is not m.fold:
                self.value(node)  # once for all

        def unit(index: str, _: list[str]) -> list[str]:
            group, vector = self.divided(index, count)
            first, top = self.mul(vector, str(e.lanes)), self.mul(group, high)
            left, size = self.sub(lanes, first), self.least(high, self.sub(many, top))
            whole = e.let(f"icmp sge i64 {left}, {e.lanes}")
            self.lane, self.open[m.lane] = m.lane, first
            e.branch(whole, lambda: self.channels(top, size, None))
            part = e.let(f"xor i1 {whole}, true")
            e.branch(part, lambda: self.channels(top, size, self.tail(left)))
            self.lane = None
            return []

        e.loop("%first", "%last", 1, [], unit)

    def channels(self, top: str, size: str, mask: str | None) -> None:
        """Some places of a vector of channels."""
        m, self.mask = self.m, mask
        self.scopes.append({})
        start = self.coordinates(m.rows, top)
        self.opened(m.rows, start)
        for node in m.order:
            if m.free[node] == {m.lane} and node not in self.weights:
                self.value(node)
        for node in self.weights:
            if node.op is LOAD:
                self.begins[node] = self.begin(node)
        taps = []
        for number in range(len(m.taps)):
            self.tap = number
            self.scopes.append({})
            for node in self.weights:
                self.value(node)
            taps.append(self.scopes.pop())
        self.tap = -1

        def run(_: str, first: str, last: str) -> None:
            begin, end = self.between_edges(first, last) if self.edges else (first, last)
            for start, stop in ((first, begin), (begin, end), (end, last)):
                self.meets_edges = (start, stop) != (begin, end)
                if start != stop:
                    self.places(start, stop, taps)

        self.runs(m.rows, start, size, run)
        self.scopes.pop()
        self.mask = None

    def places(self, start: str, stop: str, taps: Sequence[dict[Node, Val]]) -> None:
        """A run of places: addresses of taps, by their rows, and of results are carried along."""
        m, e, row = self.m, self.e, self.m.rows.axes[-1]
        self.open[row] = start
        carried: list[tuple[str, str]] = []
        for node in self.moving:
            begin, name = self.begin(node), self.name_of(node)
            for number, first in enumerate(self.rows_of_taps):
                offset = self.number((name, "row", number), m.offset(node, dict(first)))
                carried.append(("ptr", self.at(node, begin, offset)))
        for node in self.along_row:
            place = self.first(node.arg[1], (), self.name_of(node), m.lane)[0]
            carried.append(("i64", place.text))

        def once(at: str, now: list[str]) -> list[str]:
            following, left = [], iter(now)
            for node in self.moving:
                self.lines[node] = [next(left) for _ in self.rows_of_taps]
                step = self.next_one(node)
                following += [self.at(node, line, step) for line in self.lines[node]]
            for node in self.along_row:
                place = next(left)
                self.ahead[self.name_of(node)] = Val(place, int64)
                following.append(self.add(place, self.next_one(node)))
            self.open[row] = at
            self.place(taps)
            self.ahead.clear()
            return following

        e.loop(start, stop, 1, carried, once)

    def next_one(self, node: Node) -> str:
        """How far it is in the memory of a load or store to the next place of a row."""
        step = dict(node.arg[1][1]).get(self.m.rows.axes[-1], 0)
        return self.number((self.name_of(node), "next"), step)

    def at(self, node: Node, memory: str, place: str) -> str:
        """The address of a place in the memory of a load."""
        kind = scalar_type(memory_dtype(self.dtypes[node.arg[0]]))
        return self.e.let(f"getelementptr {kind}, ptr {memory}, i64 {place}")

    def row_of(self, tap: dict[int, int]) -> tuple[tuple[int, int], ...]:
        """Where a tap is but along the last axis of the window."""
        return tuple([(axis, n) for axis, n in tap.items() if axis != self.m.fold.arg[1][-1]])

    # --- the edges of an image -------------------------------------------------------------------

    def between_edges(self, first: str, last: str) -> tuple[str, str]:
        """The places of a run at which all taps are read: none if that is so for no place of it."""
        e, row, size = self.e, self.m.rows.axes[-1], self.m.rows.sizes[-1]
        begin, end, all_ = 0, size, "true"
        self.read_taps = {}
        for edge in self.edges:
            if edge.axis == row:
                own = edge.inside(self.taps_along(edge), size)
                begin, end = max(begin, own[0]), min(end, own[1])
                continue
            self.ask(edge)
            for holds in self.read_taps[edge].values():
                all_ = e.let(f"and i1 {all_}, {holds}")
        names = [self.number(("between", i), n) for i, n in enumerate((begin, max(begin, end)))]
        begin_at, end_at = [self.least(last, self.most(first, n)) for n in names]
        return (
            e.let(f"select i1 {all_}, i64 {begin_at}, i64 {last}"),
            e.let(f"select i1 {all_}, i64 {end_at}, i64 {last}"),
        )

    def most(self, a: str, b: str) -> str:
        """The larger of two."""
        more = self.e.let(f"icmp sgt i64 {a}, {b}")
        return self.e.let(f"select i1 {more}, i64 {a}, i64 {b}")

    def taps_along(self, edge: Edge) -> list[int]:
        """Where taps are along the axis of the window that an edge is asked of."""
        return sorted({tap.get(edge.tap, 0) for tap in self.m.taps})

    def ask(self, edge: Edge) -> None:
        """Which taps are inside of an edge, where we are."""
        e, name = self.e, ("edge", self.edges.index(edge))
        start, step, below = [
            self.number((name, what), n)
            for what, n in (("start", edge.start), ("step", edge.step), ("below", edge.below))
        ]
        place = self.mul(self.open[edge.axis], step) if edge.axis >= 0 else "0"
        first, found = self.add(place, start), {}
        for tap in self.taps_along(edge):
            at = self.add(first, self.number((name, "tap", tap), edge.move * tap))
            found[tap] = e.let(f"icmp ult i64 {at}, {below}")
        self.read_taps[edge] = found

    def is_inside(self, node: Node, tap: dict[int, int]) -> str:
        """True if a tap of a load is inside of the image, where we are."""
        found = [self.read_taps[edge][tap.get(edge.tap, 0)] for edge in self.m.edges(node)]
        return reduce(lambda a, b: self.e.let(f"and i1 {a}, {b}"), found, "true")

    def place(self, taps: Sequence[dict[Node, Val]]) -> None:
        """The sum over a window, and what is computed from it."""
        m, e = self.m, self.e
        self.scopes.append({})
        for edge in self.edges if self.meets_edges else ():
            if edge.axis == m.rows.axes[-1]:
                self.ask(edge)
        kind, total = f"<{e.lanes} x float>", "zeroinitializer"
        for number, weights in enumerate(taps):
            self.tap = number
            self.scopes.append(dict(weights))
            x, y = [e.splat(self.value(operand)).text for operand in m.fold.src[0].src]
            name = f"llvm.fma.v{e.lanes}f32"
            total = e.call(kind, name, f"{kind} {x}", f"{kind} {y}", f"{kind} {total}")
            self.scopes.pop()
        self.tap = -1
        self.scopes[-1][m.fold] = Val(total, m.fold.dtype, True)
        values = [self.value(store.src[0]) for store in m.stores]
        for store, value in zip(m.stores, values, strict=True):
            self.store(store, value)
        self.scopes.pop()

    def begin(self, node: Node) -> str:
        """The address that a load under the sum has at the first tap, where we are."""
        number, index, _ = node.arg
        place = self.first(self.m.without_taps(index), (), self.name_of(node))[0]
        return self.at(node, self.pointer(number), place.text)

    def load(self, node: Node, sources: Sequence[Val]) -> Val:
        if self.tap < 0 or (node not in self.begins and node not in self.lines):
            return super().load(node, sources)
        tap, dtype = self.m.taps[self.tap], self.dtypes[node.arg[0]]
        how = "row" if self.m.lane in self.m.free[node] else "one"

        def read() -> Val:
            mask = self.mask if how == "row" else None
            return load_value(self.e, self.tap_of(node, tap), _HERE, dtype, None, mask, how)

        if not self.meets_edges or not node.arg[2]:
            return read()
        zero = Val("zeroinitializer", dtype, how == "row")
        found = self.e.either(self.is_inside(node, tap), read, lambda: zero)
        assert found is not None
        return found

    def tap_of(self, node: Node, tap: dict[int, int]) -> str:
        """The address of a tap of a load under the sum."""
        name, last = self.name_of(node), self.m.fold.arg[1][-1]
        if node not in self.lines:
            offset = self.number((name, "tap", self.tap), self.m.offset(node, tap))
            return self.at(node, self.begins[node], offset)
        step = self.number((name, "tap"), self.m.offset(node, {last: 1}))
        memory = self.lines[node][self.rows_of_taps.index(self.row_of(tap))]
        return self.at(node, memory, self.mul(step, str(tap[last])))
