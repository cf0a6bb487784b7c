"""Reductions as loops: along rows (horizontal, over lanes), inside lanes, and down columns.

In: groups of FOLDs over the same axes, while loops are open. Out: their values, known in the
innermost open loop. Three ways: lanes are parts of the fold (rows: several states run side by side
and are joined in a fixed tree); lanes are results and the fold is short (a loop inside the lanes);
lanes are results and the fold is long (columns: memory is traversed row by row, four at a time,
into scratch rows of running values). Order depends on sizes, dtypes and vector width alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ....core.dtype import DType, float64
from ....core.node import Node, toposort
from ....core.ops.index import FOLD, GUARD
from ....graph.ir.affine import Affine
from ....kernel.transform.split_reduction import Part
from ..llvm.emitter import Val
from ..target import Target
from ..tiling import LoopTiling
from .accumulator import Accumulator, empty
from .nest import First, LoopNest, State, under

Known = dict[Node, Val]
Bases = dict[tuple[int, Affine], tuple[str, Affine]]


class Reduce(LoopNest):
    """Loops with folds."""

    def __init__(
        self,
        part: Part,
        dtypes: Sequence[DType],
        target: Target,
        variables: Sequence[str],
        table: LoopTiling,
    ) -> None:
        super().__init__(part, dtypes, target, variables, table)
        self.below: dict[Node, list[Node]] = {}
        # what is stored as it is: the only folds that windows are for
        self.targets = {s.src[0] for s in self.stores if s.src}

    def is_column(self, fold: Node) -> bool:
        """True if it is folded down columns, into a scratch row of this unit."""
        v = self.vector
        if v is None or v not in self.grid or v not in self.free[fold] or v in fold.arg[1]:
            return False
        return self.count(fold) >= self.table.column_steps and not self.needs_lanes(fold)

    def needs_lanes(self, fold: Node) -> bool:
        """True if it depends on axes of an outer fold."""
        return not self.free[fold] <= set(self.grid)

    def count(self, fold: Node) -> int:
        """How many values a fold takes in."""
        sizes = [self.windows.get(a, (0, self.sizes[a]))[1] if fold in self.targets else
                 self.sizes[a] for a in fold.arg[1]]  # fmt: skip
        return prod(sizes)

    def folds_below(self, node: Node) -> list[Node]:
        """The folds that a node needs, sources first, itself if it is one."""
        found = self.below.get(node)
        if found is None:
            found = self.below[node] = [n for n in toposort([node]) if n.op is FOLD]
        return found

    # --- which, and when -------------------------------------------------------------------------

    def hoist(self, targets: Sequence[Node]) -> None:
        """Compute every fold under the targets whose axes are all open, in order."""
        columns = self.at.lane is None and not self.shadows
        below = dict.fromkeys([fold for node in targets for fold in self.folds_below(node)])
        waiting = [fold for fold in below if self.can_fold(fold, columns)]
        while waiting:
            ready = [f for f in waiting if not set(waiting).intersection(f.slice)]
            axes, column = ready[0].arg[1], self.is_column(ready[0]) and columns
            group = [f for f in ready if f.arg[1] == axes and self.is_column(f) == column]
            self.fold(group, column)
            waiting = [f for f in waiting if f not in group]

    def can_fold(self, fold: Node, columns: bool) -> bool:
        """True if a fold is not known yet and its axes are open, or lanes down columns."""
        if fold in self.filled or self.known(fold) is not None:
            return False
        left = self.free[fold] - self.at.open.keys()
        return not left or (columns and left == {self.vector} and self.is_column(fold))

    def fold(self, group: Sequence[Node], column: bool = False) -> None:
        """Fold several values over the same axes; an open axis of that name is another one."""
        if any(self.sizes[a] == 0 for a in group[0].arg[1]):
            for fold in group:
                self.scopes[-1][fold] = empty(self.e, fold)
            return
        at = self.at
        before = dict(self.ranges)
        for axis in group[0].arg[1]:
            self.ranges.pop(axis, None)
            if axis in self.windows and group[0] in self.targets:
                block, steps = self.windows[axis]
                size = str(self.sizes[axis])
                self.ranges[axis] = self.window(axis, at.open[block], steps, size)
        shadowed = frozenset(group[0].arg[1]) & set(at.open)
        if not shadowed:
            self.columns(group) if column else self.fold_here(group)
            self.ranges = before
            return
        outer = {axis: at.open.pop(axis) for axis in shadowed}
        lanes, bases = (at.lane, at.mask), at.bases
        if at.lane in shadowed:
            at.lane, at.mask = None, None
        self.shadows.append((len(self.scopes), shadowed))
        at.bases = [{}]
        self.enter()
        self.fold_here(group)
        found = {fold: self.scopes[-1][fold] for fold in group}
        self.leave()
        self.shadows.pop()
        at.open.update(outer)
        (at.lane, at.mask), at.bases, self.ranges = lanes, bases, before
        self.scopes[-1].update(found)

    # --- rows, and inside lanes ------------------------------------------------------------------

    def fold_here(self, group: Sequence[Node]) -> None:
        """Fold several values over the same axes in one loop nest."""
        lanes = self.vector in group[0].arg[1] and self.at.lane is None
        vector = lanes or self.at.lane is not None
        bodies = [f.src[0] for f in group]
        self.hoist(bodies)
        self.prepare(bodies, vector)
        totals = [Accumulator(self.e, f, vector) for f in group]
        copies = self.side_by_side(bodies, totals) if lanes else 1
        if lanes:
            self.begin_walk(writes=False)
        nest = _Nest(self, group, totals, lanes, copies)
        for fold, found in zip(group, nest.results(), strict=True):
            self.scopes[-1][fold] = found
            self.filled.update(n for n in under(fold.src[0]) if n in self.rows)

    def side_by_side(self, bodies: Sequence[Node], totals: Sequence[Accumulator]) -> int:
        """How many states run at once: several where taking in is what takes the time."""
        if all((t.by_bits or t.dtype.kind != "f") and not t.may_settle for t in totals):
            return 1  # whole numbers need no waiting
        return self.copies(bodies) if self.cost(bodies) <= self.table.cheap_cost else 1

    # --- columns ---------------------------------------------------------------------------------

    def columns(self, group: Sequence[Node]) -> None:
        """Fold down columns: scratch rows take in row after row, each a walk along memory."""
        bodies = [f.src[0] for f in group]
        self.hoist(bodies)
        self.prepare(bodies, True)
        down = _Columns(self, group)
        self.lanes_plain(down.start)
        self.each(group[0].arg[1][:-1], bodies, down.all)
        if down.wide:
            self.lanes_plain(down.finish)
        for fold, row in zip(group, down.rows, strict=True):
            self.rows[fold] = row
            self.filled.add(fold)

    def lanes_plain(self, body: Callable[[], object]) -> None:
        """All lanes of the vector axis, one vector a step."""
        assert self.vector is not None
        whole, more = self.whole(1)

        def step(state: State) -> State:
            body()
            return state

        start = self.range_of(self.vector)[0]
        if whole != start:
            self.vectors(start, whole, [[]], step)
        if more:
            self.rest(whole, [], step)


class _Columns:
    """The loops down the columns of one group of folds, with accumulators in scratch rows."""

    def __init__(self, walk: Reduce, group: Sequence[Node]) -> None:
        assert walk.vector is not None
        self.walk, table = walk, walk.table
        self.axis: int = group[0].arg[1][-1]
        self.bodies = [f.src[0] for f in group]
        self.totals = [Accumulator(walk.e, f, True, whole=False) for f in group]
        size = min(walk.sizes[walk.vector], table.column_elements)
        self.rows = [walk.room(t.dtype, size) for t in self.totals]
        self.deep = table.column_rows if walk.cost(self.bodies) <= table.cheap_cost else 1
        self.block = table.sum_block_steps
        if self.deep > 1:
            self.block = table.sum_block_row_groups * self.deep
        # float sums of many blocks: the accumulator, its row, and the rows it is flushed to
        self.wide: list[tuple[Accumulator, str, list[str]]] = []
        if walk.count(group[0]) > self.block:
            self.wide = [
                (total, row, [walk.room(float64, size) for _ in total.start_wide()])
                for total, row in zip(self.totals, self.rows, strict=True)
                if total.is_sum
            ]

    def start(self) -> None:
        """Every accumulator at its identity."""
        for total, row in zip(self.totals, self.rows, strict=True):
            self.walk.store_row(row, total.identity())
        for total, _, names in self.wide:
            for name, (_, value) in zip(names, total.start_wide(), strict=True):
                self.walk.store_row(name, Val(value, float64, True))

    def flush(self) -> None:
        """Add rows of a block to the wide ones, and start them again."""
        walk = self.walk
        for total, row, names in self.wide:
            now = [walk.load_row(name, float64).text for name in names]
            block = walk.load_row(row, total.dtype).text
            for name, text in zip(names, total.flush(now, [block]), strict=True):
                walk.store_row(name, Val(text, float64, True))
            walk.store_row(row, total.identity())

    def finish(self) -> None:
        """The wide rows as the folds' own values."""
        for total, row, names in self.wide:
            now = [self.walk.load_row(name, float64).text for name in names]
            self.walk.store_row(row, total.finish_wide(now, False))

    def all(self) -> None:
        """All rows of the axis, in blocks if there is something to flush."""
        e = self.walk.e
        start, stop = self.walk.range_of(self.axis)
        if not self.wide:
            self.between(start, stop)
            return

        def block(first: str, _: State) -> State:
            end = e.let(f"add i64 {first}, {self.block}")
            last = e.opaque(e.call("i64", "llvm.smin.i64", f"i64 {end}", f"i64 {stop}"))
            self.between(first, last)
            self.walk.lanes_plain(self.flush)
            return []

        e.loop(start, stop, self.block, [], block)

    def between(self, start: str, stop: str) -> None:
        """Rows from start to stop: steps of several, then those that are left."""
        e = self.walk.e
        left = True
        if start.isdigit() and stop.isdigit():
            count = int(stop) - int(start)
            whole, left = str(int(stop) - count % self.deep), count % self.deep != 0
        elif self.is_even():
            whole, left = stop, False
        else:
            even = e.let(f"and i64 {e.let(f'sub i64 {stop}, {start}')}, {-self.deep}")
            whole = e.opaque(e.let(f"add i64 {start}, {even}"))
        e.loop(start, whole, self.deep, [], lambda index, _: self.step(index, self.deep))
        if left:
            e.loop(whole, stop, 1, [], lambda index, _: self.step(index, 1))

    def is_even(self) -> bool:
        """True if every part of the axis, a unit's or a block's, is whole vectors."""
        steps = self.walk.windows.get(self.axis, (0, 0))[1]
        return self.walk.sizes[self.axis] % self.deep == 0 == steps % self.deep

    def step(self, index: str, deep: int) -> State:
        """A few rows folded together and into the running rows."""
        walk, at = self.walk, self.walk.at
        places: list[tuple[str, Known, Bases]] = []
        for offset in range(deep):
            here = index if offset == 0 else walk.e.let(f"add i64 {index}, {offset}")
            at.open[self.axis] = here
            walk.enter()
            walk.hoist(self.bodies)
            walk.prepare(self.bodies, True)
            places.append((here, walk.scopes[-1], at.bases[-1]))
            walk.leave()
        walk.lanes_plain(lambda: self.meet(places))
        del at.open[self.axis]
        return []

    def meet(self, places: Sequence[tuple[str, Known, Bases]]) -> None:
        """The lanes of some rows, folded together two by two, meet the running ones."""
        walk, at = self.walk, self.walk.at
        found: list[list[Val]] = []
        for here, known, bases in places:
            at.open[self.axis] = here
            walk.enter()
            walk.scopes[-1], at.bases[-1] = known, bases
            walk.enter()
            found.append([walk.e.splat(walk.value(body)) for body in self.bodies])
            walk.leave()
            walk.leave()
        for number, (total, row) in enumerate(zip(self.totals, self.rows, strict=True)):
            now = [values[number] for values in found]
            while len(now) > 1:
                now = [total.combine(a, b) for a, b in zip(now[::2], now[1::2], strict=True)]
            walk.store_row(row, total.combine(walk.load_row(row, total.dtype), now[0]))


class _Nest:
    """The loops of one group of folds, outermost first; states go in and come out."""

    def __init__(
        self,
        walk: Reduce,
        group: Sequence[Node],
        totals: Sequence[Accumulator],
        lanes: bool,
        copies: int,
    ) -> None:
        self.walk, self.group, self.totals = walk, group, totals
        self.lanes, self.copies = lanes, copies
        self.bodies = [f.src[0] for f in group]
        self.fresh = [t.start() for t in totals]
        table, self.few = walk.table, walk.table.sum_block_steps
        steps = -(-walk.count(group[0]) // (copies * walk.lanes if lanes else 1))
        far = prod([walk.sizes[a] for a in group[0].arg[1]]) >= table.sum_far_elements
        most = self.block = table.sum_block_vectors if lanes else self.few
        if copies > 1:
            most = table.sum_block_vectors_far
            self.block = most if far else table.sum_block_vectors_unrolled
        self.wide = steps > most and any(t.is_sum for t in totals)

    def results(self) -> list[Val]:
        """The values of the folds, once all their axes are traversed."""
        first = [t.start_wide() if self.wide else t.start() for t in self.totals]
        axes = [a for a in self.group[0].arg[1] if not self.lanes or a != self.walk.vector]
        done = self.loops(axes, [pair for state in first for pair in state])
        return [
            total.finish_wide(state, self.lanes) if self.wide else total.finish(state, self.lanes)
            for total, state in zip(self.totals, _parts(done, first), strict=True)
        ]

    def loops(self, axes: list[int], carried: First) -> State:
        """Loops over some axes and then, if lanes are parts, over the vector axis."""
        if not axes:
            return self.blocks(carried)
        if not self.lanes and len(axes) == 1:
            return self.numbers(axes[0], carried)
        if len(axes) == 1 and self.rows > 1:
            return self.some_rows(axes[0], carried)
        return self.outer(axes[0], carried, lambda now: self.loops(axes[1:], now))

    @property
    def rows(self) -> int:
        """How many short rows of the vector axis a state of a sum takes in before it is flushed."""
        walk = self.walk
        if not self.wide or walk.vector is None or walk.vector in walk.ranges:
            return 1
        return self.block // (-(-walk.sizes[walk.vector] // (self.copies * walk.lanes)) + 1)

    def some_rows(self, axis: int, carried: First) -> State:
        """One axis, some rows at a time, each group flushed once."""
        walk, e, rows = self.walk, self.walk.e, self.rows
        start, stop = walk.range_of(axis)
        fresh = [pair for state in self.fresh for pair in state]
        kinds = [kind for kind, _ in fresh]

        def once(index: str, names: State) -> State:
            walk.at.open[axis] = index
            walk.enter()
            walk.prepare(self.bodies, True)
            found = self.blocks(list(zip(kinds, names, strict=True)))
            walk.leave()
            del walk.at.open[axis]
            return found

        def group(first: str, names: State) -> State:
            end = e.let(f"add i64 {first}, {rows}")
            last = e.opaque(e.call("i64", "llvm.smin.i64", f"i64 {end}", f"i64 {stop}"))
            self.wide = False
            found = e.loop(first, last, 1, fresh, once)
            self.wide = True
            return self.flush(names, found)

        return e.loop(start, stop, rows, carried, group)

    def outer(self, axis: int, carried: First, inside: Callable[[First], State]) -> State:
        """One axis, a number at a time, written out if there are few."""
        walk = self.walk
        kinds = [kind for kind, _ in carried]

        def once(index: str, names: State) -> State:
            walk.at.open[axis] = index
            walk.enter()
            walk.prepare(self.bodies, self.totals[0].vector)
            found = inside(list(zip(kinds, names, strict=True)))
            walk.leave()
            del walk.at.open[axis]
            return found

        start, stop = walk.range_of(axis)
        if (
            axis not in walk.ranges
            and walk.sizes[axis] <= walk.table.inline_steps
            and not self.lanes
        ):
            state = [value for _, value in carried]
            for index in range(walk.sizes[axis]):
                state = once(str(index), state)
            return state
        return walk.e.loop(start, stop, 1, carried, once)

    def numbers(self, axis: int, carried: First) -> State:
        """The innermost axis where lanes, if any, are results."""
        walk, e = self.walk, self.walk.e
        take = self.take
        if not self.wide:
            return self.outer(axis, carried, lambda now: take([value for _, value in now]))
        start, stop = walk.range_of(axis)
        fresh = [pair for state in self.fresh for pair in state]

        def once(index: str, names: State) -> State:
            walk.at.open[axis] = index
            walk.enter()
            found = take(names)
            walk.leave()
            del walk.at.open[axis]
            return found

        def block(first: str, names: State) -> State:
            end = e.let(f"add i64 {first}, {self.few}")
            last = e.opaque(e.call("i64", "llvm.smin.i64", f"i64 {end}", f"i64 {stop}"))
            return self.flush(names, e.loop(first, last, 1, fresh, once))

        return e.loop(start, stop, self.few, carried, block)

    def blocks(self, carried: First) -> State:
        """The vector axis, several states side by side."""
        walk, e = self.walk, self.walk.e
        assert walk.vector is not None
        start = walk.range_of(walk.vector)[0]
        whole, more = walk.whole(self.copies)
        fresh = [pair for state in self.fresh for pair in state]
        kinds = [kind for kind, _ in carried]
        if not self.wide:
            state = [value for _, value in carried]
            others = [fresh] * (self.copies - 1)

            def several(first: str, last: str, now: First) -> State:
                return self.joined(walk.vectors(first, last, [now, *others], self.take))

            if whole != start and self.may_settle:
                step = walk.table.settled_steps * self.copies * walk.lanes

                def some(first: str, names: State) -> State:
                    end = e.let(f"add i64 {first}, {step}")
                    last = e.opaque(e.call("i64", "llvm.smin.i64", f"i64 {end}", f"i64 {whole}"))
                    return several(first, last, list(zip(kinds, names, strict=True)))

                state = e.loop(start, whole, step, carried, some, self.is_settled)
            elif whole != start:
                state = several(start, whole, carried)
            if more:
                state = walk.rest(whole, list(zip(kinds, state, strict=True)), self.take)
            return state
        step = self.block * self.copies * walk.lanes

        def block(first: str, names: State) -> State:
            end = e.let(f"add i64 {first}, {step}")
            last = e.opaque(e.call("i64", "llvm.smin.i64", f"i64 {end}", f"i64 {whole}"))
            states = walk.vectors(first, last, [fresh] * self.copies, self.take)
            return self.flush(names, self.joined(states))

        state = e.loop(start, whole, step, carried, block)
        if more:
            state = self.flush(state, walk.rest(whole, fresh, self.take))
        return state

    @property
    def may_settle(self) -> bool:
        """True if a fold may be decided before its end, where nobody needs the rest of its walk.

        An index that leaves its axis is an error also behind what decides.
        """
        walk = self.walk
        size = walk.sizes[walk.vector or 0]
        if not self.lanes or not all([t.may_settle for t in self.totals]):
            return False
        if size <= walk.table.settled_steps * self.copies * walk.lanes:
            return False
        below = toposort(self.bodies)
        return not any([n.op in (FOLD, GUARD) or n in walk.rows for n in below])

    def is_settled(self, state: State) -> str:
        """True if no value changes any of the folds."""
        e, known = self.walk.e, ""
        for total, now in zip(self.totals, _parts(state, self.fresh), strict=True):
            found = total.is_settled(now)
            known = e.let(f"and i1 {known}, {found}") if known else found
        return known

    def take(self, state: State) -> State:
        """Fold in the values where we are."""
        walk = self.walk
        mask = walk.at.mask if self.lanes else None
        if self.lanes:
            walk.fetch_ahead()
        out: State = []
        for body, total, now in zip(
            self.bodies, self.totals, _parts(state, self.fresh), strict=True
        ):
            out.extend(total.take(now, walk.value(body), mask))
        return out

    def joined(self, states: list[State]) -> State:
        """States that ran side by side, joined two by two."""
        while len(states) > 1:
            pairs = zip(states[::2], states[1::2], strict=True)
            states = [self.both(a, b) for a, b in pairs]
        return states[0]

    def both(self, a: State, b: State) -> State:
        out: State = []
        for total, x, y in zip(
            self.totals, _parts(a, self.fresh), _parts(b, self.fresh), strict=True
        ):
            out.extend(total.join(x, y))
        return out

    def flush(self, wide: State, block: State) -> State:
        """Add blocks' states to the wide ones."""
        out: State = []
        starts = [t.start_wide() for t in self.totals]
        for total, x, y in zip(
            self.totals, _parts(wide, starts), _parts(block, self.fresh), strict=True
        ):
            out.extend(total.flush(x, y))
        return out


def _parts(names: State, like: Sequence[First]) -> list[State]:
    """Names in a row as one state for each fold."""
    out: list[State] = []
    for state in like:
        out.append(names[: len(state)])
        names = names[len(state) :]
    return out
