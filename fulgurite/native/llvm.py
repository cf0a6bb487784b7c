"""A kernel in index notation as LLVM IR text, with explicit vectors: maps and reductions.

In: an `IndexKernel` with merged axes, the dtypes of its params, the target. Out: a `Rendered`.
One axis is the vector axis: the one along which most memory is read and written with step 1. If all
stores run over it, lanes are results and folds run inside them; else lanes are parts of a fold, and
rows are walked once for each fold that needs the one before. What is computed in a row and needed
again is kept in a scratch row.
Float sums are folded in short blocks that end in float64, so their error does not grow with length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ..core.dtype import DType, bool_, int64
from ..core.node import Node, toposort
from ..core.ops.index import BITS, FOLD, GUARD, INDEX, LOAD, STORE, VALID
from ..core.ops.leaf import CONST, SINK, VAR
from ..graph.body import free_axes, whole_axes
from ..graph.lower import IndexKernel
from ..graph.regroup import CannotLower
from .access import Access
from .code import BROKEN, ERROR, FIRST, Phase, Rendered
from .emitter import Emitter, Val, computing
from .maths import compare, random_bits, select
from .operate import cast, operate
from .target import Target
from .total import Total

BLOCK = 32  # vectors that a float sum adds up before they go to float64
CHUNK = 4096  # elements of the vector axis that make one unit of work
SCRATCH = 1 << 14  # the longest row, in elements, that is kept
DEAR = 6  # what costs at least this much, in additions, is worth keeping


def loops(kernel: IndexKernel, dtypes: Sequence[DType], target: Target) -> Rendered:
    """Any kernel as loops over its axes: what no template before this one took."""
    return _Renderer(kernel, dtypes, target.lanes).render()


class _Renderer:
    def __init__(self, kernel: IndexKernel, dtypes: Sequence[DType], lanes: int) -> None:
        if not all(isinstance(n, int) for n in kernel.axes):
            raise CannotLower("sizes that vary")
        self.sizes: list[int] = list(kernel.axes)  # type: ignore[arg-type]
        self.dtypes, self.lanes = dtypes, lanes
        self.order = [n for n in toposort([kernel.body]) if n.op is not SINK]
        self.stores = list(kernel.body.src)  # and indices that are only checked
        self.free = free_axes(self.order)
        self.e = Emitter(lanes)
        self.scopes: list[dict[Node, Val]] = [{}]
        self.shadows: list[tuple[int, frozenset[int]]] = []  # from which scope on, which axes
        self.at = Access(self.e, dtypes)
        self.vector = self.choose_vector()
        shared = frozenset.intersection(*[self.free[s] for s in self.stores if s.op is STORE])
        self.grid = sorted(shared - whole_axes(self.order))
        self.variables: dict[str, int] = {}  # name -> place in the table of values
        self.rows = {node: "" for node in self.worth_keeping()}  # their scratch rows
        self.filled: set[Node] = set()

    # --- choosing --------------------------------------------------------------------------------

    def choose_vector(self) -> int | None:
        """The axis with most memory at step 1, by elements; ties go to the stores' own axis."""
        score: dict[int, int] = {}
        for node in self.order:
            if node.op is not LOAD and node.op is not STORE:
                continue
            weight = prod([self.sizes[a] for a in self.free[node]])
            weight = weight * 3 if node.op is STORE else weight * 2
            for atom, coefficient in node.arg[1][1]:
                if isinstance(atom, int):
                    score[atom] = score.get(atom, 0) + (weight if coefficient == 1 else 0)
        best = max(score, key=lambda a: (score[a], self.sizes[a]), default=None)
        if best is None or score[best] == 0:
            return None
        return best

    def worth_keeping(self) -> list[Node]:
        """Dear values of a row that several walks over it need: computed once, kept in scratch."""
        v = self.vector
        if v is None or v in self.grid or self.sizes[v] > SCRATCH:
            return []
        folds = [n for n in self.order if n.op is FOLD]
        inside = set(self.grid)
        plain = all(f.arg[1] == (v,) and self.free[f] <= inside for f in folds)
        if not plain or not all(self.free[s] <= inside | {v} for s in self.stores):
            return []
        walks = [f.src[0] for f in folds] + [s.src[0] for s in self.stores if v in self.free[s]]
        count: dict[Node, int] = {}
        for target in walks:
            for node in _under(target):
                count[node] = count.get(node, 0) + 1
        return [
            n for n, c in count.items()
            if c > 1 and n.op.family == "elementwise" and n.op.cost >= DEAR and v in self.free[n]
        ]  # fmt: skip

    # --- the whole function ----------------------------------------------------------------------

    def render(self) -> Rendered:
        e = self.e
        count = 1 + max((n.arg[0] for n in self.order if n.op in (LOAD, STORE)), default=-1)
        self.at.pointer(count)
        for node in self.rows:
            size = -(-self.sizes[self.vector or 0] // self.lanes) * self.lanes
            kind = e.type_of(computing(node.dtype), False)
            self.rows[node] = e.let(f"alloca [{size} x {kind}], align 64")
        across = self.vector in self.grid
        outer = [a for a in self.grid if a != self.vector]
        rows = prod([self.sizes[a] for a in outer])
        chunks = 1
        if across:
            assert self.vector is not None
            chunks = -(-self.sizes[self.vector] // CHUNK)

        def unit(index: str, _: list[str]) -> list[str]:
            row = index
            if chunks > 1:
                chunk = e.let(f"urem i64 {index}, {chunks}")
                row = e.let(f"udiv i64 {index}, {chunks}")
            self.unflatten(row, outer)
            self.scopes.append({})
            if across:
                assert self.vector is not None
                size = self.sizes[self.vector]
                start, stop = "0", str(size)
                if chunks > 1:
                    start = e.let(f"mul i64 {chunk}, {CHUNK}")
                    end = e.let(f"add i64 {start}, {CHUNK}")
                    stop = e.call("i64", "llvm.smin.i64", f"i64 {end}", f"i64 {size}")
                self.lanes_over(start, stop, lambda: self.results(self.stores))
            else:
                self.results(self.stores)
            self.scopes.pop()
            return []

        e.loop("%first", "%last", 1, [], unit)
        e.line("ret void")
        work = sum([n.op.cost * prod([self.sizes[a] for a in self.free[n]]) for n in self.order])
        phases = (Phase("kernel", rows * chunks, work),)
        return Rendered(self.module(), phases, tuple(self.variables))

    def module(self) -> str:
        args = "ptr noalias %params, ptr noalias %values, i64 %first, i64 %last"
        body = "\n".join(self.e.lines)
        declared = "\n".join(self.e.declared.values())
        return f"define void @kernel({args}) {{\nentry:\n{body}\n}}\n{declared}\n"

    def unflatten(self, index: str, axes: Sequence[int]) -> None:
        """One number as an index of several axes."""
        for axis in reversed(axes[1:]):
            size = self.sizes[axis]
            self.at.open[axis] = self.e.let(f"urem i64 {index}, {size}")
            index = self.e.let(f"udiv i64 {index}, {size}")
        if axes:
            self.at.open[axes[0]] = index

    # --- loops -----------------------------------------------------------------------------------

    def lanes_over(self, start: str, stop: str, body: Callable[[], None]) -> None:
        """Run `body` for vectors of the vector axis from start to stop, the last one masked."""
        assert self.vector is not None
        e, axis = self.e, self.vector
        e_count = e.let(f"sub i64 {stop}, {start}")
        rest = e.let(f"urem i64 {e_count}, {self.lanes}")
        whole = e.let(f"sub i64 {stop}, {rest}")

        def once(index: str, _: list[str]) -> list[str]:
            self.within(axis, index, None, body)
            return []

        e.loop(start, whole, self.lanes, [], once)
        some = e.let(f"icmp ne i64 {rest}, 0")
        e.branch(some, lambda: self.within(axis, whole, self.tail(rest), body))

    def tail(self, count: str) -> str:
        """A mask of the first `count` lanes."""
        e = self.e
        lanes = ", ".join(f"i64 {i}" for i in range(self.lanes))
        limit = e.splat(Val(count, int64))
        return e.let(f"icmp ult <{self.lanes} x i64> <{lanes}>, {limit.text}")

    def within(self, axis: int, index: str, mask: str | None, body: Callable[[], None]) -> None:
        """Run `body` with the lanes of an axis live."""
        self.at.open[axis], self.at.lane_axis, self.at.mask = index, axis, mask
        self.scopes.append({})
        body()
        self.scopes.pop()
        del self.at.open[axis]
        self.at.lane_axis, self.at.mask = None, None

    def each(self, axes: Sequence[int], body: Callable[[], None]) -> None:
        """Run `body` for every index of some axes, one number at a time."""
        if not axes:
            body()
            return
        axis = axes[0]

        def once(index: str, _: list[str]) -> list[str]:
            self.at.open[axis] = index
            self.scopes.append({})
            self.each(axes[1:], body)
            self.scopes.pop()
            del self.at.open[axis]
            return []

        self.e.loop("0", str(self.sizes[axis]), 1, [], once)

    # --- results ---------------------------------------------------------------------------------

    def results(self, stores: Sequence[Node]) -> None:
        """Compute and store, with folds that need no more axes worked out first."""
        self.hoist(stores)
        groups: dict[frozenset[int], list[Node]] = {}
        for store in stores:
            groups.setdefault(self.free[store] - set(self.at.open), []).append(store)
        for axes, members in groups.items():
            if not axes:  # all loads come before all stores: an output may be an input's memory
                found = [self.value(s.src[0] if s.op is STORE else s) for s in members]
                for store, value in zip(members, found, strict=True):
                    if store.op is STORE:
                        self.at.store(store, value)
            elif self.vector in axes and self.at.lane_axis is None:
                others = sorted(axes - {self.vector})

                def lanes(members: list[Node] = members) -> None:
                    assert self.vector is not None
                    size = str(self.sizes[self.vector])
                    self.lanes_over("0", size, lambda: self.results(members))

                self.each(others, lanes)
            else:
                self.each(sorted(axes), lambda members=members: self.results(members))  # type: ignore[misc]

    def hoist(self, targets: Sequence[Node]) -> None:
        """Work out every fold under the targets whose axes are all open, in order."""
        waiting = [
            n for n in toposort(targets)
            if n.op is FOLD and self.free[n] <= set(self.at.open) and self.known(n) is None
        ]  # fmt: skip
        while waiting:
            ready = [f for f in waiting if not self.needs(f, waiting)]
            axes = ready[0].arg[1]
            group = [f for f in ready if f.arg[1] == axes]
            self.fold(group)
            waiting = [f for f in waiting if f not in group]

    def needs(self, fold: Node, waiting: Sequence[Node]) -> bool:
        below = set(fold.slice)
        return any(other in below for other in waiting if other is not fold)

    # --- folds -----------------------------------------------------------------------------------

    def fold(self, group: Sequence[Node]) -> None:
        """Fold several values over the same axes; an open axis of that name is another one."""
        at = self.at
        shadowed = frozenset(group[0].arg[1]) & set(at.open)
        if not shadowed:
            self.fold_here(group)
            return
        outer = {axis: at.open.pop(axis) for axis in shadowed}
        lanes = at.lane_axis, at.mask
        if at.lane_axis in shadowed:
            at.lane_axis, at.mask = None, None
        self.shadows.append((len(self.scopes), shadowed))
        self.scopes.append({})
        self.fold_here(group)
        found = {fold: self.scopes[-1][fold] for fold in group}
        self.scopes.pop()
        self.shadows.pop()
        at.open.update(outer)
        at.lane_axis, at.mask = lanes
        self.scopes[-1].update(found)

    def fold_here(self, group: Sequence[Node]) -> None:
        """Fold several values over the same axes in one loop nest."""
        axes = list(group[0].arg[1])
        lanes = self.vector is not None and self.vector in axes and self.at.lane_axis is None
        if lanes:
            assert self.vector is not None
            axes.remove(self.vector)
        totals = [Total(self.e, f, lanes or self.at.lane_axis is not None) for f in group]
        first = [t.start() for t in totals]
        done = self.fold_axes(group, totals, axes, lanes, [v for values in first for v in values])
        place = 0
        for fold, total, values in zip(group, totals, first, strict=True):
            final = total.finish(done[place : place + len(values)], lanes)
            place += len(values)
            self.scopes[-1][fold] = final
            self.filled.update(n for n in _under(fold.src[0]) if n in self.rows)

    def fold_axes(
        self, group: Sequence[Node], totals: Sequence[Total], axes: list[int], lanes: bool,
        carried: list[tuple[str, str]],
    ) -> list[str]:  # fmt: skip
        """The loops of a fold, outermost first; carried values go in and come out."""
        e = self.e
        kinds = [kind for kind, _ in carried]
        if axes and (lanes or len(axes) > 1):
            axis, rest = axes[0], axes[1:]

            def outer(index: str, names: list[str]) -> list[str]:
                self.at.open[axis] = index
                self.scopes.append({})
                found = self.fold_axes(
                    group, totals, rest, lanes, list(zip(kinds, names, strict=True))
                )
                self.scopes.pop()
                del self.at.open[axis]
                return found

            return e.loop("0", str(self.sizes[axis]), 1, carried, outer)
        axis = self.vector if lanes else axes[0]  # type: ignore[assignment]
        assert axis is not None
        step = self.lanes if lanes else 1
        size = self.sizes[axis]
        whole = size - size % step
        block = BLOCK * step

        def blocks(start: str, names: list[str]) -> list[str]:
            stop = e.let(f"add i64 {start}, {block}")
            stop = e.call("i64", "llvm.smin.i64", f"i64 {stop}", f"i64 {whole}")
            inner = [t.fresh() for t in totals]
            partial = e.loop(
                start,
                stop,
                step,
                inner,
                lambda i, now: self.take(group, totals, axis, i, None, lanes, now),
            )
            return self.flush(totals, names, partial)

        done = e.loop("0", str(whole), block, carried, blocks)
        if whole == size:
            return done
        mask = self.tail(str(size - whole))
        inner = [first for t in totals for first in [t.fresh()]]
        values = [value for _, value in inner]
        partial = self.take(group, totals, axis, str(whole), mask, lanes, values)
        return self.flush(totals, done, partial)

    def take(
        self, group: Sequence[Node], totals: Sequence[Total], axis: int, index: str,
        mask: str | None, lanes: bool, now: list[str],
    ) -> list[str]:  # fmt: skip
        """Fold in one step's values; lanes beyond the end count as the identity."""
        out: list[str] = []

        def body() -> None:
            for fold, total, value in zip(group, totals, now, strict=True):
                found = self.value(fold.src[0])
                out.append(total.add(value, found, mask if lanes else None))

        if lanes:
            self.within(axis, index, mask, body)
        else:
            self.at.open[axis] = index
            self.scopes.append({})
            body()
            self.scopes.pop()
            del self.at.open[axis]
        return out

    def flush(self, totals: Sequence[Total], names: list[str], partial: list[str]) -> list[str]:
        """Add blocks' partial folds to the running ones."""
        out: list[str] = []
        place = 0
        for total, value in zip(totals, partial, strict=True):
            count = total.width
            out.extend(total.combine(names[place : place + count], value))
            place += count
        return out

    # --- values ----------------------------------------------------------------------------------

    def known(self, node: Node) -> Val | None:
        """A node's value if it is worked out already and means the same here."""
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
        """A node's value where we are, computed in the outermost scope that has all it needs."""
        for part in toposort([node]):
            if (
                part.op is FOLD
                and self.known(part) is None
                and self.free[part] <= set(self.at.open)
            ):
                self.hoist([part])
        for part in self.cone(node):
            if self.known(part) is None:
                self.scopes[-1][part] = self.kept(part) if part in self.rows else self.compute(part)
        found = self.known(node)
        assert found is not None
        return found

    def cone(self, node: Node) -> list[Node]:
        """What must be computed here for a node, sources first, stopping at what is known."""
        order: list[Node] = []
        seen: set[Node] = set()
        stack: list[tuple[Node, bool]] = [(node, False)]
        while stack:
            part, ready = stack.pop()
            if ready:
                order.append(part)
            elif part not in seen and self.known(part) is None:
                seen.add(part)
                stack.append((part, True))
                if part not in self.filled:
                    stack.extend((s, False) for s in part.src)
        return order

    def kept(self, node: Node) -> Val:
        """A value of a row: from its scratch row if an earlier walk put it there."""
        e, dtype = self.e, computing(node.dtype)
        index = self.at.open[self.vector]  # type: ignore[index]
        inner, kind = e.type_of(dtype, False), e.type_of(dtype, True)
        place = e.let(f"getelementptr {inner}, ptr {self.rows[node]}, i64 {index}")
        if node in self.filled:
            return Val(e.let(f"load {kind}, ptr {place}, align 4"), dtype, True)
        value = e.splat(self.compute(node))
        e.line(f"store {kind} {value.text}, ptr {place}, align 4")
        return value

    def compute(self, node: Node) -> Val:
        op = node.op
        sources = [v for s in node.src if (v := self.known(s)) is not None]
        if op is LOAD:
            return self.at.load(node, sources)
        if op is CONST:
            return self.e.const_bits(node.arg[0], node.dtype)
        if op is INDEX:
            return self.at.index(node.arg, sources)
        if op is VALID:
            return self.at.conditions(node.arg, sources)
        if op.family == "elementwise":
            return operate(self.e, node, sources)
        if op is GUARD:
            return self.guard(node, sources[0])
        if op is BITS:
            return random_bits(self.e, sources)
        if op is VAR:
            return self.variable(node)
        raise CannotLower(f"{op} has no native form yet")

    def variable(self, node: Node) -> Val:
        """A variable's value, from the table of values that every call brings."""
        place = FIRST + self.variables.setdefault(node.arg[0], len(self.variables))
        at = self.e.let(f"getelementptr i64, ptr %values, i64 {place}")
        wide = Val(self.e.let(f"load i64, ptr {at}"), int64)
        return cast(self.e, wide, int64, node.dtype)

    def guard(self, node: Node, value: Val) -> Val:
        """An index kept inside its axis; one that was not is reported in the error word."""
        e, size = self.e, node.arg
        limit = e.const(size, value.dtype, value.vector)
        fits = size - 1 > value.dtype.limits[1]  # then every value that is not negative is inside
        how = "icmp sge" if fits else "icmp ult"
        inside = compare(e, how, value, e.const(0, value.dtype, value.vector) if fits else limit)
        bad = Val(e.let(f"xor {e.typed(inside)}, {e.const(1, bool_, value.vector).text}"),
                  bool_, value.vector)  # fmt: skip
        any_bad = bad.text
        if value.vector:
            if self.at.mask is not None:
                bad = Val(e.let(f"and {e.typed(bad)}, {self.at.mask}"), bool_, True)
            name = f"llvm.vector.reduce.or.v{self.lanes}i1"
            any_bad = e.call("i1", name, e.typed(bad))

        def report() -> None:
            word = e.let(f"getelementptr i64, ptr %values, i64 {ERROR}")
            e.line(f"store i64 1, ptr {word}")
            at = e.let(f"getelementptr i64, ptr %values, i64 {BROKEN}")
            e.line(f"store i64 {size}, ptr {at}")

        e.branch(any_bad, report)
        return select(e, inside, value, e.const(0, value.dtype, value.vector))


def _under(node: Node) -> list[Node]:
    """A node and what it is computed from, not going into folds."""
    seen = {node: None}
    stack = [node]
    while stack:
        current = stack.pop()
        if current.op is not FOLD:
            for source in current.src:
                if source not in seen:
                    seen[source] = None
                    stack.append(source)
    return [n for n in seen if n.op is not FOLD]
