"""Lowering: one kernel's graph becomes index notation, pulled from its outputs.

In: a SINK of outputs over numbered PARAMs, at tensor level. Out: an `IndexKernel`: axes with sizes
and a body of STOREs. Each value is requested at an index; movement ops only change the index, so
they vanish. A reshape that would need a division of an axis splits the axis and starts again; a
division is left only where no split helps. A reduction binds the axes at which its rows were met,
else over dimension d of size n the axis named (d, n) unless that name is in use where it stands, so
softmax and layernorm share loads and rows without a pass of their own. Axes and dynamic indices are
numbered on first use: the kernel is normalised by construction. No recursion: one loop keeps on a
stack what waits; a step gives a node's value, or the index at which its source has it, or is a
generator that asks for values.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ...core.context import Table, WeakMemo
from ...core.dtype import DType, bool_, int64, uint32, void
from ...core.lazy_named_tuple import NamedTuple
from ...core.node import SOURCES, Bounds, Node, Shape, Size, Source, make, shape_of, toposort
from ...core.op import Op
from ...core.ops.effect import AFTER, ASSIGN, CONTIGUOUS
from ...core.ops.elementwise import CAST, WHERE
from ...core.ops.index import BITS, FOLD, GUARD, INDEX, LOAD, ORDER, RUN, STORE, VALID
from ...core.ops.indexing import GATHER, SCATTER, SORT, is_sorted
from ...core.ops.leaf import CONST, IOTA, PARAM, SINK, VAR, VIEW
from ...core.ops.movement import (
    EXPAND,
    FLIP,
    PAD,
    PERMUTE,
    RESHAPE,
    SHRINK,
    UNWINDOW,
    WINDOW,
    pairs,
)
from ...core.ops.random import RANDOM
from ...core.ops.reduce import REDUCE, SCAN
from ...core.ops.update import UPDATE
from ...core.shape import upper
from ...core.symbolic.sym import choosing
from .affine import (
    ZERO,
    Affine,
    Atom,
    Condition,
    Domain,
    add,
    axes_of,
    axis,
    bounds,
    divide,
    flat,
    is_bijection,
    number,
    rename,
    sources_of,
    strides,
)
from .kernel import Item, Kernel, Schedule
from .kernel_kind import KernelKind
from .lower_update import assigned, updated
from .queries import affine_value, free_axes
from .reshape_groups import CannotLower, groups, inner_sizes

Index: TypeAlias = tuple[Affine, ...]
Request: TypeAlias = tuple[Node, Index, tuple[Condition, ...]]
Lowering: TypeAlias = Generator[Request, Node, Node]
AxisName: TypeAlias = tuple[object, ...]

ROOM = "room"  # argument of a CONTIGUOUS: what it is padded by is not stored
_MOVED: Any = object()  # waits for its source's value, which is its own


class IndexKernel(NamedTuple):
    """A kernel in index notation: the sizes of its axes and its stores, in order."""

    axes: tuple[Size, ...]
    body: Node  # SINK of STOREs
    divisions: int  # divisions left in its indices


class _Split(Exception):
    """An axis must be split by a factor; the kernel is lowered again with it."""

    def __init__(self, name: AxisName, factor: int) -> None:
        self.name, self.factor = name, factor


_lowered_sinks: Table[WeakMemo[Node, IndexKernel | CannotLower]] = Table(WeakMemo)


def lower(sink: Node, inputs: int) -> IndexKernel:
    """The kernel of a graph whose outputs become params number `inputs` and up; kept."""
    found = _try_lower(sink, inputs)
    if isinstance(found, CannotLower):
        raise CannotLower(*found.args)
    return found


def _try_lower(sink: Node, inputs: int) -> IndexKernel | CannotLower:
    return _lowered_sinks().get_or_make(sink, lambda: _lowered_or_why_not(sink, inputs))


def _lowered_or_why_not(sink: Node, inputs: int) -> IndexKernel | CannotLower:
    try:
        with choosing(False):
            return _lowered(sink, inputs)
    except CannotLower as reason:
        return CannotLower(*reason.args)  # the one that was raised holds every frame around it


def lower_kernel(kernel: Kernel) -> Kernel:
    """A kernel with its body in index notation as well, or with the reason why it has none."""
    if kernel.lowered is not None:
        return kernel
    if kernel.kind is KernelKind.HOST:  # a whole graph may be one
        return replace(kernel, lowered=CannotLower("a host function"))
    return replace(kernel, lowered=_try_lower(kernel.body, kernel.inputs))


def lower_schedule(schedule: Schedule) -> Schedule:
    """The schedule with every kernel lowered; equal ones stay one object."""
    known: dict[Kernel, Kernel] = {}
    items: list[Item] = []
    for item in schedule.items:
        if item.kernel not in known:
            known[item.kernel] = lower_kernel(item.kernel)
        items.append(item._replace(kernel=known[item.kernel]))
    return schedule._replace(items=tuple(items))


def _lowered(sink: Node, inputs: int) -> IndexKernel:
    splits: dict[AxisName, int] = {}
    while True:
        try:
            return _Lower(sink, inputs, splits).kernel()
        except _Split as split:
            splits[split.name] = split.factor


def is_zero_outside(value: Node, checks: Sequence[Condition]) -> bool:
    """True if a value is 0 where its mask is false: a masked load, or a cast of one."""
    if not checks or value.op is LOAD:
        return True
    load = value.src[0] if value.op is CAST else value
    return load.op is LOAD and Domain(load.arg[2]).implies(checks)


class _Place:
    """An index with its conditions, one object for equal ones, and the values known there."""

    __slots__ = ("index", "valid", "values")

    def __init__(self, index: Index, valid: tuple[Condition, ...]) -> None:
        self.index, self.valid = index, Domain(valid)
        self.values: dict[Node, Node] = {}


def layout_of(root: Node) -> list[Node]:
    """The moves that lay out a stored value as an output, the last one first; of others none.

    Padding is room that nobody reads only where a pass says so; else its zeros are stored.
    """
    moves: list[Node] = []
    node = root
    while node.op is PERMUTE or node.op is PAD or node.op is RESHAPE:
        moves.append(node)
        node = node.src[0]
    has_room = any([move.op is PAD for move in moves])
    return moves if node.op is CONTIGUOUS and (node.arg == ROOM or not has_room) else []


class _Lower:
    def __init__(self, sink: Node, inputs: int, splits: dict[AxisName, int]) -> None:
        self.outputs = {root: inputs + i for i, root in enumerate(sink.src)}
        self.splits = splits
        self.sizes: list[Size] = []  # of each axis
        self.named: dict[AxisName, Affine] = {}
        self.names: dict[int, AxisName] = {}
        self.places: dict[tuple[Index, tuple[Condition, ...]], _Place] = {}
        self.dynamic: dict[Node, Source] = {}
        self.values: list[Node] = []  # the node of each dynamic index
        self.limits: list[Bounds] = []  # its sound bounds
        self.reach: list[frozenset[int]] = []  # and the axes that it depends on
        self.stores: dict[Node, list[Node]] = {}
        self.folds: dict[Node, Index] = {}  # reductions with a row for each step of their index
        self.divisions: set[Atom] = set()
        self.guards: dict[Node, None] = {}

    def kernel(self) -> IndexKernel:
        """Lower the latest output first: the others are often met on the way, at its axes."""
        for root in reversed(self.outputs):
            if root not in self.stores:
                self.output(root)
        stores = [store for root in self.outputs for store in self.stores[root]]
        used = set(toposort(stores)) if self.guards else set()
        checks = [guard for guard in self.guards if guard not in used]
        body = SINK(*stores, *checks)  # an index that moves nothing is still checked
        return IndexKernel(tuple(self.sizes), body, len(self.divisions))

    def output(self, root: Node) -> None:
        """Compute an output at axes of its own and store it there.

        Of one that is only laid out in another order the axes are those of what it arranges: other
        outputs have them too. Of one with room beside it, which nobody reads, that is not stored.
        """
        moves = layout_of(root)
        value = moves[-1].src[0] if moves else root
        sizes = enumerate(value.shape)
        index = self.shared(value) or tuple([self.axis((d, n, 0), n) for d, n in sizes])
        if root.op is SCATTER:
            self.stores[root] = self.scatter(root, index)
            return
        if root.op is ASSIGN:
            self.stores[root] = assigned(self, root)
            return
        found = self.value(value, index)
        if root not in self.stores:
            place = index
            for move in reversed(moves):
                place = self.carried(move, place)
            self.stores[root] = [self.store(root, found, place, "set", index)]

    def shared(self, root: Node) -> Index | None:
        """The index at which an output meets a reduction that is computed for another output, so
        that an epilogue in another order of axes is one of the same contraction."""
        seen = {root}
        stack: list[tuple[Node, tuple[Node, ...]]] = [(root, ())] if self.folds else []
        while stack:
            node, moves = stack.pop()
            if node in self.folds:
                index, divisions = self.folds[node], set(self.divisions)
                for move in reversed(moves):
                    index = self.carried(move, index)
                if is_bijection(index, root.shape, self.sizes):
                    return index
                self.divisions = divisions
            rearranges = node.op is PERMUTE or node.op is RESHAPE
            if rearranges or node.op is CONTIGUOUS or node.op.family == "elementwise":
                below = (*moves, node) if rearranges else moves
                stack += [(s, below) for s in node.src if s not in seen]
                seen.update(node.src)
        return None

    def carried(self, move: Node, index: Index) -> Index:
        """The index of a moved value, of that of its source."""
        if move.op is PERMUTE:
            return tuple([index[d] for d in move.arg])
        if move.op is PAD:
            begins = [low for low, _ in pairs(move)]
            return tuple([self.moved(at, n) for at, n in zip(index, begins, strict=True)])
        return self.reshaped(index, move.src[0].shape, move.shape)

    # --- driving ---------------------------------------------------------------------------------

    def place(self, index: Index, valid: tuple[Condition, ...]) -> _Place:
        found = self.places.get((index, valid))
        if found is None:
            found = self.places[index, valid] = _Place(index, valid)
        return found

    def value(self, node: Node, index: Index) -> Node:
        """A node's value at an index; an output met at all its elements is stored on the way."""
        answer: Any = None  # the value found last: what the top of the stack waits for
        stack: list[tuple[Node, _Place, Lowering | None]] = [(node, self.place(index, ()), None)]
        while stack:
            node, place, waiting = stack.pop()
            values = place.values
            if waiting is None:
                if node in values:
                    answer = values[node]
                    continue
                if node.op.family == "elementwise":
                    missing = [s for s in node.src if s not in values]
                    if missing:
                        stack.append((node, place, None))
                        stack.extend([(s, place, None) for s in reversed(missing)])
                        continue
                    sources = tuple(map(values.__getitem__, node.src))
                    answer = make(node.op, node.dtype, sources, node.arg)
                else:
                    step = _STEPS.get(node.op)
                    if step is None:
                        raise CannotLower(f"{node.op} has no index notation")
                    answer = step(self, node, place.index, place.valid)
                    if isinstance(answer, tuple):  # it only moves: the source's value is its own
                        stack.append((node, place, _MOVED))
                        stack.append((node.src[0], self.place(answer, place.valid), None))
                        continue
                    if not isinstance(answer, Node):
                        answer, waiting = None, answer
            if waiting is not None and waiting is not _MOVED:
                try:
                    asked, at, valid = waiting.send(answer)
                except StopIteration as done:
                    answer = done.value
                else:
                    stack.append((node, place, waiting))
                    stack.append((asked, self.place(at, valid), None))
                    continue
            values[node] = answer
            fresh = node in self.outputs and node not in self.stores
            folds = node.op is REDUCE and node not in self.folds
            whole = (fresh or folds) and not place.valid
            if whole and is_bijection(place.index, node.shape, self.sizes):
                if fresh:
                    self.stores[node] = [self.store(node, answer, place.index)]
                if folds:
                    self.folds[node] = place.index
        return values[node]

    # --- nodes of the body -----------------------------------------------------------------------

    def localised(
        self, indices: Sequence[Affine], first: int = 0
    ) -> tuple[Sequence[Affine], tuple[Node, ...]]:
        """Indices whose dynamic atoms are named as sources `first` and up of one node."""
        if not self.values:
            return indices, ()
        found = dict.fromkeys([s for i in indices for s in sources_of(i)])
        local = {s: SOURCES[first + i] for i, s in enumerate(found)}
        named = [rename(i, lambda a: local[a] if isinstance(a, Source) else a) for i in indices]
        return named, tuple([self.values[s.index] for s in found])

    def localised_checks(
        self, conditions: Sequence[Condition], *places: Affine
    ) -> tuple[Sequence[Affine], tuple[Condition, ...], tuple[Node, ...]]:
        """Places and conditions whose dynamic atoms are named as sources of one node."""
        named, sources = self.localised([*places, *[i for i, _ in conditions]])
        own = zip(named[len(places) :], conditions, strict=True)
        return named, tuple([(i, size) for i, (_, size) in own]), sources

    def load(self, node: Node, place: Affine, valid: Domain) -> Node:
        named, checks, sources = self.localised_checks(valid, place)
        return make(LOAD, node.dtype, sources, (node.arg[0], named[0], checks))

    def store(
        self, root: Node, value: Node, index: Index, mode: str = "set", over: Index | None = None
    ) -> Node:
        """A store at an index, once for every step of the axes of `over` (the index itself)."""
        (where,), sources = self.localised([self.position(index, root.shape)], 1)
        axes = frozenset[int]().union(*map(axes_of, index if over is None else over))
        arg = (self.outputs[root], where, mode, tuple(sorted(axes)))
        return make(STORE, void, (value, *sources), arg)

    def where(self, conditions: Sequence[Condition], value: Node) -> Node:
        """A value where conditions hold, and 0 elsewhere."""
        return make(WHERE, value.dtype, (self.holds(conditions), value, self.zero(value.dtype)))

    def holds(self, conditions: Sequence[Condition]) -> Node:
        """Where conditions hold, as a value."""
        _, checks, sources = self.localised_checks(conditions)
        return make(VALID, bool_, sources, checks)

    def zero(self, dtype: DType) -> Node:
        return make(CONST, dtype, (), (0, ()))

    # --- axes and indices ------------------------------------------------------------------------

    def axis(self, name: AxisName, size: Size) -> Affine:
        """The index that runs over an axis: one RANGE, or several if it was split."""
        if size == 1:
            return ZERO
        found = self.named.get(name)
        if found is None:
            factor = self.splits.get(name)
            if factor is None:
                self.sizes.append(size)
                self.names[len(self.sizes) - 1] = name
                found = axis(len(self.sizes) - 1)
            else:
                assert isinstance(size, int)
                outer = self.axis((*name, "outer"), size // factor)
                found = add(self.axis((*name, "inner"), factor), outer, factor)
            self.named[name] = found
        return found

    def fresh(self, dimension: object, size: Size, used: frozenset[int]) -> Affine:
        """The axis named (dimension, size), or its next namesake that is not in use here."""
        namesake = 0
        while (found := self.axis((dimension, size, namesake), size)) and axes_of(found) & used:
            namesake += 1
        return found

    def bound(self, atom: int | Source) -> tuple[int, int]:
        if isinstance(atom, int):
            return 0, max(0, upper(self.sizes[atom]) - 1)
        return self.limits[atom.index]

    def dynamic_index(
        self, value: Node, chosen: Node, size: Size, valid: Sequence[Condition] = ()
    ) -> Affine:
        """The value of `chosen` as an atom, with a bounds check unless it is proved inside."""
        low, high = value.bounds or (-1, 0)
        if chosen.bounds is not None:  # of an IOTA, say, only the tensor level knows them
            low, high = max(low, chosen.bounds[0]), min(high, chosen.bounds[1])
        if not isinstance(size, int) or low < 0 or high >= size:
            if valid:  # what a pad leaves out is no index: loads read 0 there, and 0 - 1 is none
                value = self.where(valid, value)
            limits = () if isinstance(size, int) else (self.sized(size),)
            value = make(GUARD, value.dtype, (value, *limits), upper(size))
            self.guards[value] = None
            low, high = 0, max(0, upper(size) - 1)
        return self.atom(value, (low, high))

    def known_index(self, value: Node, size: Size) -> Affine | None:
        """A value as an index, if it is computed from axes alone and inside for certain."""
        found = affine_value(value, self.bound) if isinstance(size, int) else None
        low, high = (-1, 0) if found is None else bounds(found, self.bound)
        return found if low >= 0 and isinstance(size, int) and high < size else None

    def atom(self, value: Node, limits: Bounds) -> Affine:
        """A value as a dynamic atom of indices, within limits."""
        if value not in self.dynamic:
            self.dynamic[value] = SOURCES[len(self.values)]
            self.values.append(value)
            self.limits.append(limits)
            self.reach.append(free_axes(toposort([value]))[value])
        return axis(self.dynamic[value])

    def uses(self, index: Affine) -> frozenset[int]:
        """All axes an index depends on, those of its dynamic atoms too."""
        found = axes_of(index)
        for source in sources_of(index) if self.values else ():
            found |= self.reach[source.index]
        return found

    def divided(self, index: Affine, by: int) -> tuple[Affine, Affine]:
        """Quotient and remainder; splits an axis where that makes them affine."""
        found = divide(index, by, self.bound)
        if found is not None:
            return found
        for atom, coefficient in index[1]:
            size = self.sizes[atom] if isinstance(atom, int) else None
            if not isinstance(size, int) or coefficient % by == 0 or by % coefficient:
                continue
            factor = by // abs(coefficient)
            if size % factor == 0 and 1 < factor < size:
                assert isinstance(atom, int)
                raise _Split(self.names[atom], factor)
        exact = (index[0] // by, tuple([(a, c // by) for a, c in index[1] if c % by == 0]))
        rest = (index[0] % by, tuple([(a, c) for a, c in index[1] if c % by]))
        quotient: Atom = ("//", rest, by)
        remainder: Atom = ("%", rest, by)
        self.divisions.update((quotient, remainder))
        return add(exact, axis(quotient)), axis(remainder)

    def position(self, index: Index, shape: Shape) -> Affine:
        """The place in memory, which is laid out at the upper bound of every size."""
        return flat(index, inner_sizes(shape))

    def reshaped(self, index: Index, new: Shape, old: Shape) -> Index:
        """The index of the old shape that a new shape's index stands for."""
        out = [ZERO] * len(old)
        for news, olds in groups(new, old):
            if len(news) == len(olds) == 1:
                out[olds[0]] = index[news[0]]
                continue
            inner_new = tuple([new[d] for d in news])
            inner_old = tuple([old[d] for d in olds])
            place = flat([index[d] for d in news], inner_sizes(inner_new))
            for d, step in zip(olds, strides(inner_sizes(inner_old)), strict=True):
                if step > 1:
                    out[d], place = self.divided(place, step)
                elif step:
                    out[d] = place
        return tuple(out)

    # --- what each op does -----------------------------------------------------------------------

    def param(self, node: Node, index: Index, valid: Domain) -> Node:
        return self.load(node, self.position(index, node.shape), valid)

    def view(self, node: Node, index: Index, valid: Domain) -> Node:
        memory, offset = node.src[0], node.arg[0]
        if memory.op is not PARAM:
            raise CannotLower("a view of what is not memory")
        place = add(self.position(index, node.shape), number(offset))
        return self.load(memory, place, valid)

    def constant(self, node: Node, index: Index, valid: Domain) -> Node:
        return make(CONST, node.dtype, (), (node.arg[0], ()))

    def variable(self, node: Node, index: Index, valid: Domain) -> Node:
        return make(VAR, node.dtype, (), (*node.arg[:3], ()))

    def iota(self, node: Node, index: Index, valid: Domain) -> Node:
        (place,), sources = self.localised([index[node.arg[0]]])
        value = make(INDEX, int64, sources, place)
        return value if node.dtype is int64 else make(CAST, node.dtype, (value,), node.dtype)

    def reshape(self, node: Node, index: Index, valid: Domain) -> Node | Index:
        source = node.src[0]
        fixed = all(isinstance(n, int) for n in (*node.shape, *source.shape))
        if source.op is PARAM and fixed:  # memory needs only the flat place
            return self.load(source, self.position(index, node.shape), valid)
        return self.reshaped(index, node.shape, source.shape)

    def expand(self, node: Node, index: Index, valid: Domain) -> Index:
        source = node.src[0]
        kept = zip(index, source.shape, node.shape, strict=True)
        return tuple([ZERO if n == 1 and m != 1 else i for i, n, m in kept])

    def permute(self, node: Node, index: Index, valid: Domain) -> Index:
        out = [ZERO] * len(index)
        for part, d in zip(index, node.arg, strict=True):
            out[d] = part
        return tuple(out)

    def shrink(self, node: Node, index: Index, valid: Domain) -> Index:
        starts = zip(index, pairs(node), strict=True)
        return tuple([self.moved(i, start) for i, (start, _) in starts])

    def moved(self, index: Affine, by: Size, sign: int = 1) -> Affine:
        """An index plus a size, which may be known only at run time."""
        if isinstance(by, int):
            return add(index, number(sign * by))
        return add(index, self.size_value(by), sign)

    def size_value(self, size: Node) -> Affine:
        """A symbolic size as a dynamic atom; its bounds are those of its variables."""
        value = self.sized(size)
        assert value.bounds is not None
        return self.atom(value, value.bounds)

    def sized(self, size: Node) -> Node:
        return make(size.op, size.dtype, tuple([self.sized(s) for s in size.src]), size.arg)

    def flip(self, node: Node, index: Index, valid: Domain) -> Index:
        out = list(index)
        for d in node.arg:
            n = node.shape[d]
            out[d] = add(self.moved(number(-1), n), index[d], -1)
        return tuple(out)

    def pad(self, node: Node, index: Index, valid: Domain) -> Lowering:
        out: list[Affine] = []
        checks: list[Condition] = []
        source = node.src[0]
        for part, (before, after), n in zip(index, pairs(node), source.shape, strict=True):
            part = self.moved(part, before, -1)
            checks.append((part, upper(n)))
            if Domain(checks[-1:]).is_empty(self.bound):
                return self.zero(node.dtype)
            padded = (before, after) != (0, 0)  # else an index of the whole is one of the source
            if padded and not isinstance(n, int):  # part < n, as sizes of conditions are fixed
                below = add(add(part, number(upper(n))), self.size_value(n), -1)
                checks.append((below, upper(n)))
            out.append(ZERO if n == 1 else part)  # where it is looked at, that is its index
        return (yield from self.zero_outside(source, tuple(out), valid, checks))

    def window(self, node: Node, index: Index, valid: Domain) -> Index:
        place, _, stride, dilation = node.arg
        out = list(index[:-1])
        out[place] = add(add(ZERO, index[place], stride), index[-1], dilation)
        return tuple(out)

    def unwindow(self, node: Node, index: Index, valid: Domain) -> Lowering:
        """Σ over the window's axis, where the place is met by a whole number of strides."""
        place, _, stride, dilation = node.arg
        source = node.src[0]
        count, size = source.shape[place], source.shape[-1]
        if not isinstance(count, int):
            raise CannotLower("windows of variable size")
        used = frozenset().union(*map(self.uses, index), *[self.uses(i) for i, _ in valid])
        offset = self.fresh("window", size, used)
        start = add(index[place], offset, -dilation)
        if stride == 1:
            first, checks = start, []
        else:
            first, left = self.divided(start, stride)
            checks = [(left, 1)]
        at = (*index[:place], first, *index[place + 1 :], offset)
        inner = yield from self.zero_outside(source, at, valid, [*checks, (first, count)])
        return self.folded("add", inner, axes_of(offset))

    def zero_outside(
        self, source: Node, index: Index, valid: Domain, checks: Sequence[Condition]
    ) -> Lowering:
        """The value of a source at an index where checks hold, and 0 elsewhere."""
        inside = Domain(checks).simplify(self.bound).without(valid, self.bound)
        inner: Node = yield source, index, valid.intersect(inside)
        return inner if is_zero_outside(inner, inside) else self.where(inside, inner)

    def folded(self, name: str, value: Node, axes: frozenset[int]) -> Node:
        if not axes:  # over dimensions of size 1: the value itself
            return value
        return make(FOLD, value.dtype, (value,), (name, tuple(sorted(axes))))

    def reduce(self, node: Node, index: Index, valid: Domain) -> Lowering:
        name, axes = node.arg
        source = node.src[0]
        kept = [i for d, i in enumerate(index) if d not in axes]
        used = frozenset().union(*map(self.uses, kept), *[self.uses(i) for i, _ in valid])
        out = self.rows_of(source, index, axes, used)
        if out is None:
            out = list(index)
            for d in axes:
                out[d] = self.fresh(d, source.shape[d], used)
        folded = frozenset[int]().union(*[axes_of(out[d]) for d in axes])
        value = yield source, tuple(out), valid
        return self.folded(name, value, folded)

    def rows_of(
        self, source: Node, index: Index, axes: Sequence[int], used: frozenset[int]
    ) -> list[Affine] | None:
        """The index at which something was met in the rows that a reduction folds, if it is one.

        Its loads are shared, or its results spread in the loops that fold them, although a reshape
        in between gave dimensions other numbers.
        """
        kept = [d for d in range(len(index)) if d not in axes]
        for there, _ in self.places:
            if len(there) != len(index) or any(there[d] != index[d] for d in kept):
                continue
            if self.are_rows([(there[d], source.shape[d]) for d in axes], used):
                return list(there)
        return None

    def are_rows(self, rows: Sequence[tuple[Affine, Size]], used: frozenset[int]) -> bool:
        """True if indices run over dimensions by axes of their own, that are not in use."""
        seen = set(used)
        for index, size in rows:
            own = axes_of(index)
            whole = is_bijection([index], (size,), self.sizes) or (
                len(own) == 1 and index == axis(min(own)) and self.sizes[min(own)] == size
            )
            if not whole or own & seen:
                return False
            seen |= own
        return True

    def gather(self, node: Node, index: Index, valid: Domain) -> Lowering:
        place = node.arg
        table, chosen = node.src
        if is_sorted(node):
            along = self.whole_axis(node, index, place, valid)
            value = yield table, index, valid
            return make(ORDER, node.dtype, (value,), (along, chosen.arg[1], 0, True))
        value = yield chosen, index, valid
        row = self.known_index(value, table.shape[place])
        if row is None:
            row = self.dynamic_index(value, chosen, table.shape[place], valid)
        return (yield table, (*index[:place], row, *index[place + 1 :]), valid)

    def passed(self, node: Node, index: Index, valid: Domain) -> Index:
        return index

    def scan(self, node: Node, index: Index, valid: Domain) -> Lowering:
        name, place, reverse = node.arg
        along = self.whole_axis(node, index, place, valid)
        sources = []
        for source in node.src:
            sources.append((yield source, index, valid))
        return make(RUN, node.dtype, tuple(sources), (name, along, reverse))

    def sort(self, node: Node, index: Index, valid: Domain) -> Lowering:
        place, *how = node.arg
        along = self.whole_axis(node, index, place, valid)
        value = yield node.src[0], index, valid
        return make(ORDER, node.dtype, (value,), (along, *how))

    def whole_axis(self, node: Node, index: Index, place: int, valid: Domain) -> tuple[int, ...]:
        """The axes that run over a whole dimension in order, outermost first."""
        n = node.shape[place]
        part = index[place]
        plain = is_bijection((part,), (n,), self.sizes)
        symbolic = len(part[1]) == 1 and part[0] == 0 and part[1][0][1] == 1
        alone = not any(axes_of(part) & self.uses(i) for d, i in enumerate(index) if d != place)
        if valid or not alone or not (plain or (symbolic and not isinstance(n, int))):
            raise CannotLower(f"{node.op} along an axis that does not run in order")
        terms = sorted(part[1], key=lambda term: -term[1])
        return tuple([atom for atom, _ in terms if isinstance(atom, int)])

    def random(self, node: Node, index: Index, valid: Domain) -> Lowering:
        key, counter = node.src[:2]
        shape = shape_of(node.arg, node.src)
        batch = counter.ndim
        parts = []
        for word in (0, 1):
            parts.append((yield key, (*index[:batch], number(word)), valid))
        parts.append((yield counter, index[:batch], valid))
        return make(BITS, uint32, (*parts, self.counted(index[batch:], shape)))

    def counted(self, index: Index, shape: Shape) -> Node:
        """The number of an element in row-major order, of sizes that may be known at run time."""
        first = next((d for d, n in enumerate(shape) if d and not isinstance(n, int)), len(shape))
        (place,), sources = self.localised([self.position(index[:first], shape[:first])])
        value = make(INDEX, int64, sources, place)
        for part, n in zip(index[first:], shape[first:], strict=True):
            (place,), sources = self.localised([part])
            size = make(CONST, int64, (), (n, ())) if isinstance(n, int) else self.sized(n)
            size = size if size.dtype is int64 else make(CAST, int64, (size,), int64)
            value = value * size + make(INDEX, int64, sources, place)
        return value

    def scatter(self, root: Node, index: Index) -> list[Node]:
        """The base stored everywhere, then the values combined at their places."""
        name, place = root.arg
        base, chosen, values = root.src
        first = self.store(root, self.value(base, index), index)
        at = tuple([self.axis(("scatter", d, n), n) for d, n in enumerate(chosen.shape)])
        row = self.dynamic_index(self.value(chosen, at), chosen, root.shape[place])
        update = self.value(values, at)
        second = self.store(root, update, (*at[:place], row, *at[place + 1 :]), name, at)
        return [first, second]


Step: TypeAlias = Callable[[_Lower, Node, Index, Domain], Node | Index | Lowering]
_STEPS: dict[Op, Step] = {
    PARAM: _Lower.param, VIEW: _Lower.view, CONST: _Lower.constant, VAR: _Lower.variable,
    IOTA: _Lower.iota,
    RESHAPE: _Lower.reshape, EXPAND: _Lower.expand, PERMUTE: _Lower.permute,
    SHRINK: _Lower.shrink, FLIP: _Lower.flip, PAD: _Lower.pad, WINDOW: _Lower.window,
    UNWINDOW: _Lower.unwindow, REDUCE: _Lower.reduce, GATHER: _Lower.gather, SCAN: _Lower.scan,
    SORT: _Lower.sort, CONTIGUOUS: _Lower.passed, AFTER: _Lower.passed, RANDOM: _Lower.random,
    UPDATE: updated,
}  # fmt: skip
