"""Walking a kernel's axes: the loops that are open, and the values known inside each.

In: a kernel's body and which axis becomes lanes. Out: text of loops and values, through an emitter.
A value is computed once for the innermost loop that it depends on: before a loop opens, whatever
does not change in it is computed, splatted or taken into an address (`prepare`). Loops over lanes
do `copies` vectors a step, then the rest one masked vector at a time. Costly values of a row that
several walks need are kept in a scratch row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import prod

from ....core.dtype import DType, int32
from ....core.node import Node, toposort
from ....core.ops.elementwise import DIV
from ....core.ops.index import FOLD, LOAD, STORE
from ....core.ops.leaf import SINK
from ....core.symbolic.sym import varies
from ....graph.ir.queries import combined_loads, free_axes, walk
from ....graph.ir.reshape_groups import CannotLower
from ....kernel.transform.split_reduction import Part
from ....kernel.transform.vector_axis import grid_axes, vector_axis
from ...common.api import FIRST
from ..llvm.divide import Divisor, divided, divisor
from ..llvm.emitter import Emitter, Val, computing
from ..target import VECTORS, Target
from ..tiling import LoopTiling
from ..vecmath import FUNCTIONS
from .access import Access

Range = tuple[str, str]
State = list[str]
First = list[tuple[str, str]]  # types and first values of what a loop carries
Step = Callable[[State], State]


class LoopNest:
    """A part of a kernel being written as loops."""

    def __init__(
        self,
        part: Part,
        dtypes: Sequence[DType],
        target: Target,
        variables: Sequence[str],
        table: LoopTiling,
    ) -> None:
        self.table = table
        self.fused = target.vectors != "sse2"  # is there one instruction for a * b + c?
        sizes = part.kernel.axes
        if not all(isinstance(n, int) for n in sizes):
            raise CannotLower("sizes that vary")
        self.sizes: list[int] = list(sizes)  # type: ignore[arg-type]
        self.windows = part.windows
        self.order = [n for n in toposort([part.kernel.body]) if n.op is not SINK]
        self.stores = list(part.kernel.body.src)  # and indices that are only checked
        self.free = free_axes(self.order)
        blocks = [block for block, _ in self.windows.values()]
        self.vector = vector_axis(self.order, self.free, self.sizes, table.vector, blocks)
        self.lanes = self.lanes_of(target)
        self.e = Emitter(self.lanes)
        self.e.register = 4 * target.lanes
        self.e.has_dot4 = target.sums_bytes
        self.combined = {
            node: loads[0]
            for node, loads in combined_loads(self.order).items()
            if dict(loads[0].arg[1][1]).get(self.vector, 0) in (0, len(loads))
        }
        places = {name: FIRST + place for place, name in enumerate(variables)}
        self.at = Access(self.e, dtypes, self.sizes, places)
        self.grid = grid_axes(self.order, self.free)
        folds = any(n.op is FOLD for n in self.order)
        self.flat = len(self.sizes) == 1 and self.grid == [self.vector] and not folds
        self.chunk = table.split.unit_elements  # of the vector axis, that a unit has at most
        self.ranges: dict[int, Range] = {}  # of axes that are not traversed from 0 to their size
        self.scopes: list[dict[Node, Val]] = [{}]
        self.divisors: list[dict[str, Divisor]] = [{}]  # by open loop and number
        self.shadows: list[tuple[int, frozenset[int]]] = []  # from which scope on, which axes
        self.walks = 0  # over rows, in a unit, so far
        self.ahead: dict[str, tuple[int, int, int]] = {}  # address: element, offset, is it written?
        self.rooms: list[str] = []  # scratch rows, made on entry
        self.rows: dict[Node, str] = {}  # values of the vector axis that are kept: where
        self.filled: set[Node] = set()
        for node in self.worth_keeping():
            self.rows[node] = self.room(computing(node.dtype), self.sizes[self.vector or 0])

    def lanes_of(self, target: Target) -> int:
        """How many lanes there are: those of a vector, fewer where the axis is just that short.

        Functions have other formulas for other vectors, and their bits must not depend on an axis:
        in lanes they want those of the machine, outside of them (an epilogue) `compute` does so.
        """
        v = self.vector
        size = target.lanes if v is None else self.sizes[v]
        folds = [n for n in self.order if n.op is FOLD and v in n.arg[1]]
        if size >= target.lanes or size not in VECTORS.values() or not folds:
            return target.lanes
        lanes = {n for n in self.order if v in self.free[n]}.union(*[f.slice for f in folds])
        return target.lanes if any(n.op.name in FUNCTIONS for n in lanes) else size

    # --- scratch rows ----------------------------------------------------------------------------

    def worth_keeping(self) -> list[Node]:
        """Costly values of a row that several walks over it need: computed once, in scratch."""
        v = self.vector
        if v is None or v in self.grid or self.sizes[v] > self.table.kept_row_elements:
            return []
        folds = [n for n in self.order if n.op is FOLD]
        if not self.is_of_rows(folds, v):
            return []
        walks = [*folds, *[s for s in self.stores if v in self.free[s]]]
        count = Counter([node for walk in walks for node in under(walk.src[0])])
        return [n for n in count if count[n] > 1 and v in self.free[n] and self.is_costly(n)]

    def is_of_rows(self, folds: Sequence[Node], vector: int) -> bool:
        """True if a unit is one row: every fold is along it, every store an element or a row."""
        inside = set(self.grid)
        along = all(f.arg[1] == (vector,) and self.free[f] <= inside for f in folds)
        return along and all(self.free[s] <= inside | {vector} for s in self.stores)

    def is_costly(self, node: Node) -> bool:
        """True if a value costs enough to be kept rather than computed again."""
        return node.op.family == "elementwise" and node.op.cost >= self.table.kept_cost

    def room(self, dtype: DType, size: int) -> str:
        """Scratch for a row of whole vectors."""
        name = f"%row{len(self.rooms)}"
        whole = -(-size // self.lanes) * self.lanes
        kind = self.e.type_of(dtype, False)
        what = f"{kind}, i64 {whole}" if varies(whole) else f"[{whole} x {kind}]"
        self.rooms.append(f"{name} = alloca {what}, align 64")
        return name

    def slot(self, row: str, dtype: DType) -> str:
        """The address of the lanes we are at in a scratch row."""
        assert self.vector is not None
        index = self.at.open[self.vector]
        start = self.ranges.get(self.vector, ("0", ""))[0]
        if start != "0":
            index = self.e.let(f"sub i64 {index}, {start}")
        inner = self.e.type_of(dtype, False)
        return self.e.let(f"getelementptr {inner}, ptr {row}, i64 {index}")

    def load_row(self, row: str, dtype: DType) -> Val:
        """The lanes we are at of a scratch row."""
        e = self.e
        kind = e.type_of(dtype, True)
        return Val(e.let(f"load {kind}, ptr {self.slot(row, dtype)}, align 4"), dtype, True)

    def store_row(self, row: str, value: Val) -> None:
        """Put lanes into a scratch row."""
        place = self.slot(row, value.dtype)
        self.e.line(f"store {self.e.typed(value)}, ptr {place}, align 4")

    # --- ranges ----------------------------------------------------------------------------------

    def range_of(self, axis: int) -> Range:
        """Where an axis is traversed: all of it, or what this unit has of it."""
        return self.ranges.get(axis, ("0", str(self.sizes[axis])))

    def window(self, axis: int, index: str, steps: int, size: str) -> Range:
        """The range of the index-th block of an axis."""
        e = self.e
        start = e.opaque(e.let(f"mul i64 {index}, {steps}"))
        end = e.let(f"add i64 {start}, {steps}")
        return start, e.opaque(e.call("i64", "llvm.smin.i64", f"i64 {end}", f"i64 {size}"))

    def copies(self, targets: Sequence[Node]) -> int:
        """How many vectors a step does: more for cheap work, fewer than there are."""
        cost = self.cost(targets)
        choices = self.table.unroll_vectors
        wanted = next((copies for limit, copies in choices if cost <= limit), 1)
        while wanted > 1 and self.at_most(wanted * self.lanes - 1):
            wanted //= 2
        return wanted

    def cost(self, targets: Sequence[Node]) -> int:
        """What one vector of some values costs, in additions."""
        return sum([n.op.cost for n in self.cone(targets) if self.vector in self.free[n]])

    def at_most(self, count: int) -> bool:
        """True if what a unit has of the vector axis is this short; of a flat map that varies."""
        if self.flat:
            return False
        part = self.vector in self.grid and self.chunk <= count
        return part or self.sizes[self.vector or 0] <= count

    def whole(self, copies: int) -> tuple[str, bool]:
        """Where the steps of whole vectors end, and whether something is left after them."""
        assert self.vector is not None
        start, stop = self.range_of(self.vector)
        step = copies * self.lanes
        if self.vector not in self.ranges:
            size = self.sizes[self.vector]
            return str(size - size % step), size % step != 0
        block = self.windows.get(self.vector, (0, self.chunk))[1]
        if self.sizes[self.vector] % step == 0 == block % step and not self.flat:
            return stop, False  # every part of it is whole vectors
        count = self.e.let(f"sub i64 {stop}, {start}")
        even = self.e.let(f"and i64 {count}, {-step}")
        return self.e.opaque(self.e.let(f"add i64 {start}, {even}")), True

    # --- loops -----------------------------------------------------------------------------------

    def vectors(self, start: str, stop: str, first: Sequence[First], body: Step) -> list[State]:
        """Whole vectors from start to stop, one after the other for each of several states."""
        e = self.e
        flat = [pair for state in first for pair in state]

        def once(index: str, names: State) -> State:
            out: State = []
            place = 0
            for copy, state in enumerate(first):
                here = index if copy == 0 else e.let(f"add i64 {index}, {copy * self.lanes}")
                now = names[place : place + len(state)]
                place += len(state)
                out.extend(self.within(here, None, now, body))
            return out

        if start == "0" and stop == str(self.lanes * len(first)):
            done = once("0", [value for _, value in flat])
        else:
            done = e.loop(start, stop, self.lanes * len(first), flat, once)
        out: list[State] = []
        for state in first:
            out.append(done[: len(state)])
            done = done[len(state) :]
        return out

    def rest(self, whole: str, first: First, body: Step) -> State:
        """What is left after whole steps, by masked vectors."""
        assert self.vector is not None
        e = self.e
        stop = self.range_of(self.vector)[1]
        if whole.isdigit() and stop.isdigit() and int(stop) - int(whole) <= self.lanes:
            left = int(stop) - int(whole)
            mask = None if left == self.lanes else self.tail(str(left))
            return self.within(whole, mask, [value for _, value in first], body)

        def once(index: str, names: State) -> State:
            left = e.let(f"sub i64 {stop}, {index}")
            return self.within(index, self.tail(e.let(f"trunc i64 {left} to i32")), names, body)

        return e.loop(whole, stop, self.lanes, first, once)

    def lanes_over(self, targets: Sequence[Node], body: Callable[[], None]) -> None:
        """Run `body` for all lanes of the vector axis."""
        assert self.vector is not None
        self.prepare(targets, True)
        copies = self.copies(targets)
        whole, more = self.whole(copies)

        self.begin_walk(writes=True)

        def step(state: State) -> State:
            self.fetch_ahead()
            body()
            return state

        start = self.range_of(self.vector)[0]
        if whole != start:
            self.vectors(start, whole, [[] for _ in range(copies)], step)
        if more:
            self.rest(whole, [], step)

    # --- fetching ahead --------------------------------------------------------------------------

    def begin_walk(self, writes: bool) -> None:
        """A walk over a row begins; the second, of what is in cache, fetches what comes next.

        Without it memory rests while the processor computes, and the other way round.
        """
        self.ahead.clear()
        v = self.vector
        if v is None or v in self.grid or not self.grid or self.at.lane is not None:
            return
        self.walks += 1
        longest = self.table.kept_row_elements
        if self.walks != 2 or self.at_most(4 * self.lanes - 1) or self.sizes[v] > longest:
            return
        for node in self.order:
            if node.op is LOAD or (node.op is STORE and not writes):
                self.plan_prefetch(node, v)

    def plan_prefetch(self, node: Node, vector: int) -> None:
        """Note the next row of a load or store along memory, to be fetched."""
        steps = dict(node.arg[1][1])
        next_row = steps.get(self.grid[-1], 0)
        if steps.get(vector) != 1 or not next_row:
            return
        self.at.settle(node)
        pointer, left = self.at.base(node.arg[0], node.arg[1])
        if left == (0, ((vector, 1),)):
            size = self.at.dtypes[node.arg[0]].itemsize
            offset = next_row * size if node.op is LOAD else 0  # this row is written next
            self.ahead[pointer] = (size, offset, int(node.op is STORE))

    def fetch_ahead(self) -> None:
        """Ask for memory that lies ahead of the lanes we are at."""
        if not self.ahead:
            return
        assert self.vector is not None
        e, index = self.e, self.at.open[self.vector]
        for pointer, (size, offset, writes) in self.ahead.items():
            at = e.let(f"getelementptr [{size} x i8], ptr {pointer}, i64 {index}")
            if offset:
                at = e.let(f"getelementptr i8, ptr {at}, i64 {offset}")
            e.prefetch(at, bool(writes))

    def tail(self, count: str) -> str:
        """A mask of the first `count` lanes."""
        lanes = ", ".join([f"i32 {i}" for i in range(self.lanes)])
        limit = self.e.splat(Val(count, int32))
        mask = self.e.let(f"icmp ult <{self.lanes} x i32> <{lanes}>, {limit.text}")
        if count.isdigit():
            self.e.first[mask] = int(count)
        return mask

    def within(self, index: str, mask: str | None, state: State, body: Step) -> State:
        """Run `body` with the lanes of the vector axis live."""
        assert self.vector is not None
        at = self.at
        at.open[self.vector], at.lane, at.mask = index, self.vector, mask
        self.enter()
        found = body(state)
        self.leave()
        del at.open[self.vector]
        at.lane, at.mask = None, None
        return found

    def each(self, axes: Sequence[int], targets: Sequence[Node], body: Callable[[], None]) -> None:
        """Run `body` for every index of some axes, one number at a time."""
        if not axes:
            body()
            return
        axis = axes[0]
        self.prepare(targets, self.at.lane is not None)

        def once(index: str, _: State) -> State:
            self.at.open[axis] = index
            self.enter()
            self.each(axes[1:], targets, body)
            self.leave()
            del self.at.open[axis]
            return []

        start, stop = self.range_of(axis)
        self.e.loop(start, stop, 1, [], once)

    def enter(self) -> None:
        """Values and addresses from here on are of an inner loop."""
        self.scopes.append({})
        self.at.bases.append({})
        self.divisors.append({})

    def leave(self) -> None:
        """Back in the outer loop."""
        self.scopes.pop()
        self.at.bases.pop()
        self.divisors.pop()

    def prepare(self, targets: Sequence[Node], lanes: bool) -> None:
        """Compute, before loops open, what does not change in them (loop-invariant code motion).

        What changes gets ready for it: addresses of memory, splats for lanes, divisors.
        """
        for part in self.hoist_invariants(targets, lanes and self.is_one_vector(targets)):
            if part.op is LOAD or part.op is STORE or part in self.combined:
                self.at.settle(self.combined.get(part, part))
            for source in part.src if lanes else ():
                value = self.known(source)
                if value is not None:
                    self.e.pin(value)
            if part.op is DIV and self.fused and self.vector in self.free[part]:
                self.make_divisor(part.src[1], lanes)

    def hoist_invariants(self, targets: Sequence[Node], one_vector: bool) -> list[Node]:
        """Compute what does not change in the loops that open next; all that does change."""
        here = set(self.at.open)
        changing: list[Node] = []
        for part in self.cone(targets):
            settled = part.op is not STORE and self.free[part] <= here
            if not settled or any(self.known(s) is None for s in self.sources(part)):
                changing.append(part)
                continue
            self.work_out(part)
            if one_vector and (part.op is LOAD or part in self.combined):
                self.scopes[-1][part] = self.e.splat(self.scopes[-1][part])
        return changing

    def is_one_vector(self, targets: Sequence[Node]) -> bool:
        """True if all lanes are one vector, and no load or store asks where to.

        What does not change along it is then computed in lanes from its loads on: that is as quick
        as one number, which would have to go from one kind of register to the other. Not so a
        function, where lanes are fewer than the machine's.
        """
        v = self.vector
        if v is None or v in self.ranges or self.sizes[v] != self.lanes:
            return False
        cone, is_short = set(self.cone(targets)), self.lanes < self.e.register // 4
        if any((n.op is LOAD and n.src) or (is_short and n.op.name in FUNCTIONS) for n in cone):
            return False
        others = [n for n in self.order if n not in cone]  # which want one number of it
        return not any(s in cone and v not in self.free[s] for n in others for s in n.src)

    def make_divisor(self, node: Node, lanes: bool) -> None:
        """Get ready to divide many lanes by one number: those of a long row, or of many rows."""
        value = self.known(node)
        many = not (lanes and self.at_most(4 * self.lanes - 1)) and self.at.lane is None
        if value is None or value.vector or value.dtype.kind != "f" or not many:
            return
        if not any(value.text in level for level in self.divisors):
            self.divisors[-1][value.text] = divisor(self.e, value)

    def quotient(self, sources: Sequence[Val]) -> Val | None:
        """A division by a number that does not change in the loop over lanes."""
        x, by = sources
        if x.vector and not by.vector:
            for level in reversed(self.divisors):
                if by.text in level:
                    return divided(self.e, x, level[by.text])
        return None

    # --- values ----------------------------------------------------------------------------------

    def hoist(self, targets: Sequence[Node]) -> None:
        """Compute every fold under the targets that can be."""
        raise NotImplementedError

    def known(self, node: Node) -> Val | None:
        """A node's value if it is computed already and means the same here."""
        lowest = 0
        for start, axes in self.shadows:
            if axes & self.free[node]:
                lowest = start
        for scope in reversed(self.scopes[lowest:]):
            found = scope.get(node)
            if found is not None:
                return found
        return None

    def value(self, node: Node) -> Val:
        """A node's value where we are."""
        self.hoist([node])
        for part in self.cone([node]):
            self.work_out(part)
        found = self.known(node)
        assert found is not None
        return found

    def work_out(self, node: Node) -> None:
        """Compute a node whose sources are known, unless it is."""
        if self.known(node) is None:
            self.scopes[-1][node] = self.kept(node) if node in self.rows else self.compute(node)

    def cone(self, targets: Sequence[Node]) -> list[Node]:
        """What must be computed here for some nodes, sources first, stopping at what is known."""

        def unknown(nodes: Sequence[Node]) -> list[Node]:
            return [node for node in nodes if self.known(node) is None]

        def sources(node: Node) -> list[Node]:
            return [] if node in self.filled else unknown(self.sources(node))

        return walk(unknown(targets[::-1]), sources)

    def sources(self, node: Node) -> tuple[Node, ...]:
        """What a node is computed from: nothing if one wide load stands for all of it."""
        return () if node in self.combined else node.src

    def kept(self, node: Node) -> Val:
        """A value of a row: from its scratch row if an earlier walk put it there."""
        if node in self.filled:
            return self.load_row(self.rows[node], computing(node.dtype))
        value = self.e.splat(self.compute(node))
        self.store_row(self.rows[node], value)
        return value

    def compute(self, node: Node) -> Val:
        """A node's value from those of its sources."""
        if node in self.combined:
            return self.at.wide_load(self.combined[node], node.dtype)
        sources = [v for s in node.src if (v := self.known(s)) is not None]
        if node.op is DIV and not node.dtype.is_small_float:
            found = self.quotient(sources)
            if found is not None:
                return found
        if node.op.name not in FUNCTIONS:
            return self.at.emit(node, sources)
        self.e.lanes = self.e.register // 4  # which formulas depend on, not on how short an axis is
        found = self.at.emit(node, sources)
        self.e.lanes = self.lanes
        return found

    def elements(self, node: Node) -> int:
        """How often a node is computed."""
        return prod([self.sizes[a] for a in self.free[node]])


def under(node: Node) -> list[Node]:
    """A node and what it is computed from, not going into folds."""
    below = walk([node], lambda node: () if node.op is FOLD else node.src)
    return [n for n in below if n.op is not FOLD]
