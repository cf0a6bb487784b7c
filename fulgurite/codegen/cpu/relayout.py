"""The relayout template: maps that lay memory out anew, with one text for all sizes.

In: an `IndexKernel`. Out: a `KernelText`, or None where `kernel/transform/relayout.py` says it is
no such map. A unit is some rows, or a piece of a long one. Rows are traversed along their innermost
axis; what their indices and conditions come to is computed for each row, and lanes run along
memory. All sizes, steps and limits are numbers of the table, so paddings, crops and phases of a
stride that are put together are compiled once for what is computed from them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod

from ...core.dtype import DType, int64
from ...core.node import Node
from ...core.ops.index import LOAD
from ...graph.ir.affine import Atom
from ...graph.ir.lower import IndexKernel
from ...kernel.contract.analysis import Line, Part
from ...kernel.transform.merge_axes import merge_axes
from ...kernel.transform.relayout import FORM, Relayout, find_relayout, place_of
from ...kernel.transform.unroll_short_axes import unroll_short_axes
from ..common.api import KernelText, Launch
from .llvm.convert import load_every, store_every
from .llvm.divide import divided_lanes
from .llvm.emitter import Val, ramp
from .loops.function import FunctionBuilder, Numbers
from .target import Target
from .tiling import CPU


def relayouts(kernel: IndexKernel, dtypes: Sequence[DType], target: Target) -> KernelText | None:
    """A map that reads memory at other places than it writes."""
    if not target.has_masks:
        return None
    vector, unroll = CPU.loops.vector, CPU.loops.unroll
    found = find_relayout(kernel, vector)
    found = found or find_relayout(merge_axes(unroll_short_axes(kernel, unroll, vector)), vector)
    found = found or find_relayout(kernel, vector, loose=True)
    return None if found is None else _rendered(found, dtypes, target)


def _rendered(m: Relayout, dtypes: Sequence[DType], target: Target) -> KernelText:
    f = _Rows(m, dtypes, target)
    rows = prod(m.rows.sizes)
    pieces = -(-m.lanes // CPU.loops.split.unit_elements)
    tall = max(1, FORM.unit_elements // m.lanes)
    f.write(rows, tall, pieces)
    text = "\n".join([f.text(), *f.e.declared.values(), ""])
    elements = rows * m.lanes
    work = sum([n.op.cost * (elements if m.free[n] else 1) for n in m.order])
    launch = Launch("kernel", -(-rows // tall) * pieces, work)
    return KernelText(text, (launch,), tuple(f.numbers.variables), tuple(f.numbers.values))


class _Rows(FunctionBuilder):
    """The one function of such a map."""

    def __init__(self, m: Relayout, dtypes: Sequence[DType], target: Target) -> None:
        masked = target.vectors == "avx512"
        super().__init__("kernel", Numbers(m.order), dtypes, target.lanes, masked)
        self.m, self.steady, self.e.has_dot4 = m, True, target.sums_bytes
        self.quotients: dict[str, Val] = {}  # and remainders of lanes that are divided
        if not m.literal:
            self.literal = ()
        nothing = Line((), (), frozenset())
        self.part = Part(m.order, nothing, m.rows, nothing, nothing, frozenset())

    def write(self, rows: int, tall: int, pieces: int) -> None:
        """Everything that the function does."""
        m = self.m
        lanes, many = self.number("lanes", m.lanes), self.number("rows", rows)
        high, count = self.number("tall", tall), self.number("pieces", pieces)
        for node in m.order:
            if not m.free[node]:
                self.value(node)  # once for all

        def unit(index: str, _: list[str]) -> list[str]:
            group, piece = self.divided(index, count)
            chunk = str(CPU.loops.split.unit_elements)
            top, start = self.mul(group, high), self.mul(piece, chunk)
            stop = self.least(lanes, self.add(start, chunk))
            left = self.least(high, self.sub(many, top))

            def run(_: str, first: str, last: str) -> None:
                self.e.loop(first, last, 1, [], lambda at, _: self.row(at, start, stop))

            self.runs(m.rows, self.coordinates(m.rows, top), left, run)
            return []

        self.e.loop("%first", "%last", 1, [], unit)

    def row(self, at: str, start: str, stop: str) -> list[str]:
        """The lanes of one row."""
        m = self.m
        self.open[m.rows.axes[-1]] = at
        still = [n for n in m.order if m.lane not in m.free[n]]
        moving = [n for n in m.order if n.op is LOAD and m.lane in m.free[n]]
        moving += m.stores

        def all_() -> None:
            lanes, apart = self.lanes, FORM.whole_vectors
            self.scope(lambda: lanes(m.lane, start, stop, still, self.vector, moving, apart=apart))

        if m.guards:
            self.e.branch(self.conditions(m.guards, (), "guards").text, all_)
        else:
            all_()
        return []

    def vector(self, _: str) -> None:
        """One vector of results; all loads come first, for memory may be written over."""
        self.divide()
        values = {place_of(s): (s, self.value(s.src[0])) for s in self.m.stores}
        while values:
            store, value = next(iter(values.values()))
            step = self.along(store.arg[1])[0]
            if step == 1:
                self.store(store, value)
                del values[place_of(store)]
                continue
            first = next(t for t in reversed(range(step)) if place_of(store, -t) in values)
            interleaved = [place_of(store, t - first) for t in range(step)]
            store = values[interleaved[0]][0]
            name = ("at", self.numbers.position[store])
            place = self.first(store.arg[1], (), name)[0]
            number = store.arg[0]
            taken = [self.e.splat(values.pop(t)[1]) for t in interleaved]
            store_every(self.e, self.pointer(number), place, taken, self.dtypes[number], self.mask)

    def divide(self) -> None:
        """Compute the lanes' quotients and remainders, if indices have them."""
        if self.m.divided is None:
            return
        e, (start, by) = self.e, self.m.divided
        at, divisor = self.number("start", start), self.number("by", by)
        place = Val(self.add(self.open[self.m.lane], at), int64)
        all_, each = e.splat(place).text, e.splat(Val(divisor, int64)).text
        kind = f"<{e.lanes} x i64>"
        places = Val(e.let(f"add {kind} {all_}, {ramp(e.lanes, 1, 'i64')}"), int64, True)
        quotient = divided_lanes(e, places, Val(each, int64, True))
        taken = e.let(f"mul {kind} {quotient.text}, {each}")
        rest = Val(e.let(f"sub {kind} {places.text}, {taken}"), int64, True)
        self.quotients = {"//": quotient, "%": rest}

    def atom(self, atom: Atom, sources: Sequence[Val], name: Hashable) -> Val:
        if isinstance(atom, tuple):
            return self.quotients[atom[0]]
        return super().atom(atom, sources, name)

    def load(self, node: Node, sources: Sequence[Val]) -> Val:
        number, index, conditions = node.arg
        step, tangled = self.along(index)
        if step not in FORM.interleaves[1:] or tangled or not self.literal:
            return super().load(node, sources)
        name = ("at", self.numbers.position[node])
        asked = conditions and not self.unasked
        holds = self.conditions(conditions, sources, (name, "if")) if asked else None
        place, dtype = self.first(index, sources, name)[0], self.dtypes[number]
        return load_every(self.e, self.pointer(number), place, dtype, holds, self.mask, step)
