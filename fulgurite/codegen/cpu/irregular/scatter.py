"""Scatter: values combined into memory at places that are data, without atomics.

In: memory with the base in it, memory with the values and with the indices, and the place of each
step. Out: a `KernelText`. Steps that can meet at one place run in order on one thread, so that sums
of floats have the same bits always and of several values set the last stays. Axes that appear in
the place themselves cannot meet: they are shared among units, and the one with step 1 becomes
lanes, which makes an embedding's gradient a sum of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ....core.dtype import DType, bool_, float32, int64
from ....core.lazy_dataclass import dataclass
from ....core.node import Size
from ....graph.ir.affine import Affine
from ...common.api import KernelText, Launch
from ...common.irregular import disjoint_axes
from ..compose import ARGUMENTS
from ..llvm.convert import load_value, memory_dtype, store_value
from ..llvm.emitter import Emitter, Val
from ..loops.access import Access
from ..spelling import combine
from ..target import Target
from ..tiling import CPU


@dataclass(frozen=True, slots=True)
class Scatter:
    """What is combined where."""

    mode: str
    dtype: DType  # of the result
    wide: bool  # is it combined in float32?
    axes: tuple[int, ...]  # of the steps
    sizes: tuple[Size, ...]  # of all axes
    index: Affine  # the place of a step; source 0 is the value, the others indices
    read: tuple[tuple[DType, Affine], ...]  # of the value and the indices: dtype and place
    partly: bool = False  # the last of those says whether a step counts


def scatter(work: Scatter, target: Target) -> KernelText:
    """Params: the value, the indices (and whether steps count), the result."""
    return _Scatter(work, target.lanes).render()


class _Scatter:
    def __init__(self, work: Scatter, lanes: int) -> None:
        self.work, self.lanes = work, lanes
        self.sizes = {a: work.sizes[a] for a in work.axes}
        assert all(isinstance(n, int) for n in self.sizes.values())
        disjoint = disjoint_axes(work.index, work.sizes, [place for _, place in work.read])
        self.shared = [a for a in work.axes if a in disjoint]
        self.in_order = [a for a in work.axes if a not in self.shared]
        self.vector = self.lane_axis()
        self.outer = [a for a in self.shared if a != self.vector]

    def lane_axis(self) -> int | None:
        """An axis along which places and values are consecutive and indices are the same."""
        for axis in self.shared:
            steps = [dict(index[1]).get(axis, 0) for _, index in self.work.read]
            if dict(self.work.index[1])[axis] == 1 and steps[0] in (0, 1) and not any(steps[1:]):
                return axis
        return None

    def count(self, axes: Sequence[int]) -> int:
        return prod([self.sizes[a] for a in axes])  # type: ignore[misc]

    def render(self) -> KernelText:
        e = self.e = Emitter(self.lanes)
        dtypes = [dtype for dtype, _ in self.work.read]
        self.at = Access(e, dtypes)
        self.pointers = [
            e.let(f"load ptr, ptr {e.let(f'getelementptr ptr, ptr %params, i64 {i}')}")
            for i in range(len(dtypes) + 1)
        ]
        chunk = CPU.scatter_row_vectors * self.lanes
        length = 1 if self.vector is None else self.count([self.vector])
        chunks = -(-length // chunk)

        def unit(index: str, _: list[str]) -> list[str]:
            row = index
            if chunks > 1:
                number = e.let(f"urem i64 {index}, {chunks}")
                row = e.let(f"udiv i64 {index}, {chunks}")
                self.start = e.let(f"mul i64 {number}, {chunk}")
                end = e.let(f"add i64 {self.start}, {chunk}")
                self.stop = e.call("i64", "llvm.smin.i64", f"i64 {end}", f"i64 {length}")
            else:
                self.start, self.stop = "0", str(length)
            self.unflatten(row)
            self.each(self.in_order, self.step)
            return []

        e.loop("%first", "%last", 1, [], unit)
        e.line("ret void")
        body = "\n".join(e.lines)
        text = f"define void @kernel_scatter({ARGUMENTS}) {{\nentry:\n{body}\n}}\n"
        text += "\n".join(e.declared.values()) + "\n"
        work = self.count(self.work.axes) * 4
        return KernelText(text, (Launch("kernel_scatter", self.count(self.outer) * chunks, work),))

    def unflatten(self, index: str) -> None:
        for axis in reversed(self.outer[1:]):
            size = self.sizes[axis]
            self.at.open[axis] = self.e.let(f"urem i64 {index}, {size}")
            index = self.e.let(f"udiv i64 {index}, {size}")
        if self.outer:
            self.at.open[self.outer[0]] = index

    def each(self, axes: Sequence[int], body: Callable[[], None]) -> None:
        if not axes:
            body()
            return

        def once(index: str, _: list[str]) -> list[str]:
            self.at.open[axes[0]] = index
            self.each(axes[1:], body)
            return []

        self.e.loop("0", str(self.sizes[axes[0]]), 1, [], once)

    # --- one step --------------------------------------------------------------------------------

    def step(self) -> None:
        """Combine at one place, or along a row from it."""
        e, read = self.e, self.work.read
        if self.vector is not None:
            self.at.open[self.vector] = "0"  # rows are added to what is computed here
        chosen = [
            load_value(e, self.pointers[i], self.at.index(index, ()), dtype, None, None, "one")
            for i, (dtype, index) in enumerate(read) if i
        ]  # fmt: skip
        if self.work.partly:
            e.branch(chosen[-1].text, lambda: self.put(chosen))
        else:
            self.put(chosen)

    def put(self, chosen: Sequence[Val]) -> None:
        e, read = self.e, self.work.read
        none = Val("0", int64)
        place = self.at.index(self.work.index, [none, *chosen])
        source = self.at.index(read[0][1], ())
        if self.vector is None:
            self.combine(place, source, None, "one", "one")
            return
        along = dict(read[0][1][1]).get(self.vector, 0)

        def row(index: str, _: list[str]) -> list[str]:
            left = e.let(f"sub i64 {self.stop}, {index}")
            numbers = ", ".join(f"i64 {i}" for i in range(self.lanes))
            limit = e.splat(Val(left, int64)).text
            mask = e.let(f"icmp ult <{self.lanes} x i64> <{numbers}>, {limit}")
            there = Val(e.let(f"add i64 {place.text}, {index}"), int64)
            here = Val(e.let(f"add i64 {source.text}, {index}"), int64) if along else source
            self.combine(there, here, mask, "row", "row" if along else "one")
            return []

        e.loop(self.start, self.stop, self.lanes, [], row)

    def combine(self, place: Val, source: Val, mask: str | None, how: str, reads: str) -> None:
        e, work = self.e, self.work
        memory = self.pointers[-1]
        if work.mode == "set":  # bits are moved as they are
            raw = memory_dtype(work.dtype)
            value = load_value(e, self.pointers[0], source, raw, None, _for(mask, reads), reads)
            value = e.splat(value) if how == "row" else value
            store_value(e, memory, place, value, raw, mask, how)
            return
        dtype = float32 if work.wide else work.dtype
        given = work.read[0][0]
        value = load_value(e, self.pointers[0], source, given, None, _for(mask, reads), reads)
        old = load_value(e, memory, place, dtype, None, mask, how)
        name = work.mode
        if dtype is bool_:
            name = {"add": "max", "mul": "min"}.get(name, name)
        store_value(e, memory, place, combine(e, name, old, value), dtype, mask, how)


def _for(mask: str | None, how: str) -> str | None:
    return None if how == "one" else mask
