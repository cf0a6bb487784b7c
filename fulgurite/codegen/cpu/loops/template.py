"""The loop-nest template: maps and reductions as LLVM IR text, with explicit vectors.

In: an `IndexKernel` with merged axes, the dtypes of its params, the target. Out: a `KernelText`. A
kernel with few results of many elements is split into parts first, each a function and a launch of
its own. In each, one axis is the vector axis. If all stores run over it, lanes are results, and a
unit is a piece of it; else lanes are parts of a fold, and a unit is a row, traversed once for each
fold that needs the one before. A map over one axis takes its length at run time, so that maps that
differ in nothing but shape have equal text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from ...._lazy import FORK_LOCK
from ....core.dtype import DType, int64
from ....core.node import Node, toposort
from ....core.ops.index import FOLD, LOAD, STORE
from ....core.ops.leaf import VAR
from ....kernel.transform.split_reduction import Part, Shared, Split, unit_elements
from ....kernel.transform.vector_axis import transpose_axis
from ...common.api import FIRST, KernelText, Launch
from ..llvm.convert import load_value, memory_dtype
from ..llvm.emitter import Val, scalar_type
from ..target import Target
from ..tiling import CPU, LoopTiling
from .reduce import Reduce


def loops(value: Split, target: Target) -> KernelText:
    """Any kernel as loops over its axes: what no template before this one took."""
    kernel, dtypes, parts, shared = value
    table = CPU.loops
    offsets, workspace = _layout(shared)
    names = [n.arg[0] for n in toposort([kernel.body]) if n.op is VAR]
    variables = tuple(dict.fromkeys(names))
    every = [*dtypes, *[dtype for dtype, _ in shared]]
    numbers: list[int] = []
    texts: list[str] = []
    declared: dict[str, str] = {}
    launches: list[Launch] = []
    library: dict[str, None] = {}
    for place, part in enumerate(parts):
        symbol = f"kernel_{place}" if len(parts) > 1 else "kernel"
        length = FIRST + len(variables) + len(numbers)
        written = Loops(part, every, target, variables, table, length)
        written.own, written.offsets = len(dtypes), offsets
        texts.append(written.function(symbol))
        declared.update(written.e.declared)
        numbers.extend(written.numbers)
        library.update(dict.fromkeys(written.library))
        launches.append(Launch(symbol, written.units, written.work))
    text = "\n".join([*texts, *declared.values(), ""])
    return KernelText(text, tuple(launches), variables, tuple(numbers), workspace, tuple(library))


def _layout(shared: Shared) -> tuple[list[int], int]:
    """Where each piece of shared memory begins, and how much there is."""
    offsets: list[int] = []
    top = 0
    for dtype, count in shared:
        offsets.append(top)
        top += -(-dtype.itemsize * count // 64) * 64
    return offsets, top


class Loops(Reduce):
    """One part of a kernel as one function."""

    own: int  # params of the kernel: what comes after them is shared memory
    offsets: list[int]

    def __init__(
        self,
        part: Part,
        dtypes: Sequence[DType],
        target: Target,
        variables: Sequence[str],
        table: LoopTiling,
        length: int,
    ) -> None:
        super().__init__(part, dtypes, target, variables, table)
        self.length = length  # where in the table of values the length of a flat map is
        self.numbers = (self.sizes[0],) if self.flat else ()
        down = any(self.is_column(f) for f in self.folds)
        self.chunk = table.column_elements if down else table.split.unit_elements
        self.library: list[str] = []
        self.across, self.squares = self.transposed(target)
        self.outer = [a for a in self.grid if a != self.vector]
        if self.across is None:
            self.outer = self.apart(self.outer)
        self.chunks = 1
        if self.vector is not None and self.vector in self.grid:
            size, units = self.sizes[self.vector], prod([self.steps(a) for a in self.outer])
            if not self.flat:
                known = self.order, self.free, self.sizes, table.split
                self.chunk = min(self.chunk, unit_elements(*known, size, units))
            self.chunks = -(-size // self.chunk)

    def apart(self, axes: list[int]) -> list[int]:
        """Axes that number the units; in a map of short rows the others are loops of a unit."""
        row = 1 if self.vector is None else self.sizes[self.vector]
        while len(axes) > 1 and not self.folds:
            row *= self.sizes[axes[-1]]
            split, units = self.table.split, prod([self.sizes[a] for a in axes[:-1]])
            if row > split.unit_elements or units < 4 * split.enough:
                break
            axes = axes[:-1]
        return axes

    def transposed(self, target: Target) -> tuple[int | None, dict[Node, str]]:
        """The axis of squares, if the map reads across memory, and scratch for each such load."""
        found = transpose_axis(self.order, self.free, self.sizes, self.vector, self.table.vector)
        if found is None or self.flat or not target.has_masks:
            return None, {}
        axis, loads = found
        dtypes = [memory_dtype(self.at.dtypes[n.arg[0]]) for n in loads]
        return axis, {n: self.room(d, self.lanes**2) for n, d in zip(loads, dtypes, strict=True)}

    def steps(self, axis: int) -> int:
        """How many units an axis makes: its own size, or squares along it."""
        return -(-self.sizes[axis] // self.lanes) if axis == self.across else self.sizes[axis]

    @property
    def folds(self) -> list[Node]:
        """All folds of the part."""
        return [n for n in self.order if n.op is FOLD]

    @property
    def units(self) -> int:
        """How many pieces of work there are."""
        return prod([self.steps(a) for a in self.outer]) * self.chunks

    @property
    def work(self) -> int:
        """A guess, in additions."""
        return sum([n.op.cost * self.elements(n) for n in self.order])

    def function(self, symbol: str) -> str:
        """The text of the function."""
        e = self.e
        used = {n.arg[0]: None for n in self.order if n.op in (LOAD, STORE)}
        self.at.read_pointers([n for n in used if n < self.own])
        shared = [n for n in used if n >= self.own]
        if shared:
            self.at.read_pointers([self.own])
            base = self.at.pointers.pop(self.own)
            for number in shared:
                place = self.offsets[number - self.own]
                self.at.pointers[number] = e.let(f"getelementptr i8, ptr {base}, i64 {place}")
        length = self.at.passed(self.length).text if self.numbers else ""
        if self.units:
            e.loop("%first", "%last", 1, [], lambda unit, _: self.unit(unit, length))
        e.line("ret void")
        args = "ptr noalias %params, ptr noalias %values, i64 %first, i64 %last"
        body = "\n".join([*[f"  {room}" for room in self.rooms], *e.lines])
        return f"define void @{symbol}({args}) {{\nentry:\n{body}\n}}"

    def unit(self, unit: str, length: str) -> list[str]:
        """One unit: its place in the grid, and the results there."""
        e, vector = self.e, self.vector
        row = unit
        self.ranges.clear()
        if self.numbers or self.chunks > 1:
            assert vector is not None
            chunk = unit
            if self.outer:
                chunk = e.let(f"urem i64 {unit}, {self.chunks}")
                row = e.let(f"udiv i64 {unit}, {self.chunks}")
            self.ranges[vector] = self.window(
                vector, chunk, self.chunk, length or str(self.sizes[vector])
            )
        self.unflatten(row)
        self.walks = 0
        self.enter()
        self.results(self.stores)
        self.leave()
        return []

    def unflatten(self, index: str) -> None:
        """One number as an index of several axes; one of squares is traversed in a range."""
        for place, axis in reversed(list(enumerate(self.outer))):
            now, size = index, self.steps(axis)
            if place:
                now = self.e.let(f"urem i64 {index}, {size}")
                index = self.e.let(f"udiv i64 {index}, {size}")
            if axis == self.across:
                self.ranges[axis] = self.window(axis, now, self.lanes, str(self.sizes[axis]))
            else:
                self.at.open[axis] = now

    def results(self, stores: Sequence[Node]) -> None:
        """Compute and store, with folds that need no more axes computed first."""
        self.hoist(stores)
        groups: dict[frozenset[int], list[Node]] = {}
        for store in stores:
            groups.setdefault(self.free[store] - set(self.at.open), []).append(store)
        for axes, members in groups.items():
            if any(self.sizes[a] == 0 for a in axes):
                continue
            if not axes:
                self.write(members)
            elif self.vector in axes and self.at.lane is None:
                inside = partial(self.results, members)
                if self.across is not None:
                    inside = partial(self.through_squares, members, inside)
                inside = partial(self.lanes_over, members, inside)
                self.each(sorted(axes - {self.vector, self.across}), members, inside)
            else:
                self.each(sorted(axes), members, partial(self.results, members))

    def write(self, stores: Sequence[Node]) -> None:
        """Store results; all loads come first: an output may be an input's memory."""
        found: list[tuple[Node, Val]] = []
        for store in stores:
            value = self.value(store.src[0] if store.op is STORE else store)
            if store.op is STORE:
                found.append((store, value))
        self.at.stores(found)

    # --- squares ---------------------------------------------------------------------------------

    def copies(self, targets: Sequence[Node]) -> int:
        """How many vectors a step does: a square is enough."""
        return 1 if self.squares else super().copies(targets)

    def through_squares(self, targets: Sequence[Node], body: Callable[[], None]) -> None:
        """Turn squares of memory, then run `body` along them, for one vector of lanes. Squares
        of axes that are not open are of other results."""
        assert self.across is not None and self.vector is not None
        e, at = self.e, self.at
        (start, stop), first = self.range_of(self.across), at.open[self.vector]
        wide = e.let(f"sub i64 {stop}, {start}")
        tall = str(self.lanes)
        if at.mask is not None:
            tall = e.let(f"sub i64 {self.range_of(self.vector)[1]}, {first}")
        for node, square in self.squares.items():
            if not self.free[node] <= {self.across, *at.open}:
                continue
            number, index = node.arg[:2]
            raw = memory_dtype(at.dtypes[number])
            at.open[self.across], at.lane = start, None
            place = at.index(index, ()).text
            del at.open[self.across]
            at.lane = self.vector
            inner, step = scalar_type(raw), dict(index[1])[self.vector]
            source = e.let(f"getelementptr {inner}, ptr {at.pointers[number]}, i64 {place}")
            with FORK_LOCK:  # few maps read across memory
                from .. import transpose
            module = transpose.transpose_square(raw, self.lanes)
            e.declare(f"void @{module.name}({transpose.TRANSPOSE})", module.name)
            self.library.append(module.text)
            sizes = f"ptr {square}, i64 {wide}, i64 {tall}"
            e.line(f"call void @{module.name}(ptr {source}, i64 {step}, {sizes})")
        self.each([self.across], targets, body)

    def compute(self, node: Node) -> Val:
        """A node's value from those of its sources, or from a square that was transposed."""
        if node not in self.squares:
            return super().compute(node)
        assert self.across is not None
        e, start = self.e, self.range_of(self.across)[0]
        row = e.let(f"sub i64 {self.at.open[self.across]}, {start}")
        place = Val(e.let(f"mul i64 {row}, {self.lanes}"), int64)
        dtype = self.at.dtypes[node.arg[0]]
        return load_value(e, self.squares[node], place, dtype, None, None, "row")
