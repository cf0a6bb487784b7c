"""The depthwise template: convolutions with channels last, weights in registers.

In: a sum that `kernel/contract/depthwise.py` found. Out: a `KernelText`. A unit is one vector of
channels at some places. It reads the weights of all taps once, then goes over its places: a tap
multiplies a vector of memory with its weights and adds them, in one instruction; the epilogue is
evaluated from the sum and stored. Sizes, steps, and how far each tap is from the first are numbers
of the table, so shapes need no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....core.dtype import DType, int64
from ....core.node import Node
from ....core.ops.index import LOAD
from ....kernel.contract.analysis import Line, Part
from ....kernel.contract.depthwise import Depthwise
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
    vectors = -(-m.lanes // target.lanes)
    f.write(places, tall, vectors)
    text = "\n".join([f.text(), *f.e.declared.values(), ""])
    below = set(m.inside)
    each = sum([n.op.cost * (len(m.taps) if n in below else 1) for n in m.order])
    launch = Launch("kernel", -(-places // tall) * vectors, each * places * m.lanes)
    return KernelText(text, (launch,), tuple(f.numbers.variables), tuple(f.numbers.values))


class _Places(FunctionBuilder):
    """The one function of such a kernel."""

    def __init__(self, m: Depthwise, dtypes: Sequence[DType], target: Target) -> None:
        super().__init__("kernel", Numbers(m.order), dtypes, target.lanes, True)
        self.m, self.steady, self.e.has_dot4 = m, True, target.sums_bytes
        nothing = Line((), (), frozenset())
        self.part = Part(m.order, nothing, m.rows, nothing, nothing, frozenset())
        self.tap = -1  # that values are computed at, if any
        self.begins: dict[Node, str] = {}  # of loads under the sum: memory at the first tap
        still = m.folded | {m.lane}
        self.weights = [n for n in m.inside if m.free[n] and m.free[n] <= still]
        self.moving = [n for n in m.inside if n.op is LOAD and not m.free[n] <= still]

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
            self.e.loop(first, last, 1, [], lambda at, _: self.place(at, taps))

        self.runs(m.rows, self.coordinates(m.rows, top), size, run)
        self.scopes.pop()
        self.mask = None

    def place(self, at: str, taps: Sequence[dict[Node, Val]]) -> list[str]:
        """The sum over a window, and what is computed from it."""
        m, e = self.m, self.e
        self.open[m.rows.axes[-1]] = at
        self.scopes.append({})
        for node in self.moving:
            self.begins[node] = self.begin(node)
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
        return []

    def begin(self, node: Node) -> str:
        """The address that a load under the sum has at the first tap, where we are."""
        number, index, _ = node.arg
        place = self.first(self.m.without_taps(index), (), self.name_of(node))[0]
        kind, memory = scalar_type(memory_dtype(self.dtypes[number])), self.pointer(number)
        return self.e.let(f"getelementptr {kind}, ptr {memory}, i64 {place.text}")

    def load(self, node: Node, sources: Sequence[Val]) -> Val:
        if self.tap < 0 or node not in self.begins:
            return super().load(node, sources)
        number, _, _ = node.arg
        offset = self.m.offset(node, self.m.taps[self.tap])
        name = (self.name_of(node), "tap", self.tap)
        place = Val(self.number(name, offset), int64)
        how = "row" if self.m.lane in self.m.free[node] else "one"
        dtype, mask = self.dtypes[number], self.mask if how == "row" else None
        return load_value(self.e, self.begins[node], place, dtype, None, mask, how)
