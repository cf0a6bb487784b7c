"""Kernels with scans, sorts or scatters, split in parts that each have a form of their own.

In: an `IndexKernel` with merged axes, and a target that renders maps and reductions, scans, sorts
and scatters over plain memory. Out: calls of that target, in order. What a scan or sort reads is
stored first, unless it is memory already, laid out as it is needed; then the scan or sort runs over
that memory; then all else is computed with its result as one more param. Scatters come last: the
base is stored like any result, what they need is stored in temporaries, and they combine. So fused
prologues and epilogues cost one pass each, and scans, sorts and scatters are written once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from typing import Generic, TypeVar

from ...core.dtype import DType, float32, int32, void
from ...core.node import SOURCES, Node, Size, Source, make, toposort
from ...core.ops.elementwise import CAST, MAX, MIN
from ...core.ops.index import FOLD, LOAD, ORDER, RUN, STORE, VALID, gives_values
from ...core.ops.leaf import CONST, SINK
from ...graph.ir.affine import Affine, add, axis, number
from ...graph.ir.bodies import argument_at, transformed
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes, is_scatter

P = TypeVar("P")  # where a target keeps a param: an input, an output or a piece of the workspace
Layout = tuple[int, int, int]  # outer axes, those scanned or sorted, inner axes


class IrregularParts(ABC, Generic[P]):
    """A kernel being split; a target says how each kind of part is rendered."""

    def __init__(self, kernel: IndexKernel, dtypes: Sequence[DType], places: Sequence[P]) -> None:
        self.kernel = kernel
        self.dtypes = list(dtypes)  # of the params, then of values in the workspace
        self.places = list(places)
        self.known: dict[Node, Node] = {}  # a node of the body -> the same with results as params
        self.order = [n for n in toposort([kernel.body]) if n.op is not SINK]
        self.free = free_axes(self.order)

    # --- what a target has -----------------------------------------------------------------------

    @abstractmethod
    def allocate(self, nbytes: int) -> P:
        """A piece of the workspace."""

    @abstractmethod
    def loops(self, kernel: IndexKernel, params: Sequence[int]) -> None:
        """A part that is a map or a reduction over some params."""

    @abstractmethod
    def scan(self, node: Node, layout: Layout, sources: Sequence[int], result: int) -> None:
        """A part that is a scan of memory."""

    @abstractmethod
    def sort(self, node: Node, layout: Layout, sources: Sequence[int], result: int) -> None:
        """A part that is a sort of rows, of which a second source has the length."""

    def sorts_values(self, node: Node) -> bool:
        """True if a sort writes the values themselves that are asked for, without places."""
        return False

    @abstractmethod
    def scatter(
        self, node: Node, sources: Sequence[tuple[int, Affine]], is_wide: bool, result: int,
        is_masked: bool,
    ) -> None:  # fmt: skip
        """A part that combines values into a result."""

    def direct_stores(self, node: Node) -> list[Node]:
        """Stores of all that a scan or sort gives, which it may do itself."""
        return [s for s in self.kernel.body.src if s.op is STORE and s.src == (node,)
                and not is_scatter(s) and frozenset(s.arg[3]) == self.free[node]]  # fmt: skip

    def checked(self, node: Node) -> Node:
        """What becomes of a root that only checks an index."""
        return node

    # --- parts -----------------------------------------------------------------------------------

    def split(self) -> None:
        """Hand all parts to the target, in order."""
        stored: set[Node] = set()
        for node in self.order:
            if node.op is RUN or node.op is ORDER:
                stored.update(self.special(node))
            elif not is_scatter(node):
                self.rebuild(node)
        scatters = [n for n in self.kernel.body.src if is_scatter(n)]
        rest = [self.known[n] for n in self.kernel.body.src
                if not is_scatter(n) and n not in stored]  # fmt: skip
        wide = self.widened(rest, scatters)
        self.compute([self.checked(n) for n in rest])
        for node in scatters:
            fills: list[Node] = []
            read = [self.operand(self.kept_source(s), fills) for s in node.src]
            self.compute(fills)
            target, masked = node.arg[0], node.src[-1].op is VALID
            self.scatter(node, read, target in wide, wide.get(target, target), masked)
        for target, temporary in wide.items():
            self.narrow(target, temporary)

    def rebuild(self, node: Node) -> None:
        self.known[node] = make(
            node.op, node.dtype, tuple([self.known[s] for s in node.src]), node.arg
        )

    def axes(self, node: Node) -> frozenset[int]:
        return free_axes(toposort([node]))[node]

    def size(self, axes: Sequence[int]) -> int:
        sizes = [self.kernel.axes[a] for a in axes]
        assert all(isinstance(n, int) for n in sizes)
        return prod(sizes)  # type: ignore[arg-type]

    def row_major(self, axes: Sequence[int]) -> Affine:
        """The place in memory with these axes alone, outermost first."""
        index, step = number(0), 1
        for a in reversed(axes):
            index = add(index, axis(a), step)
            step *= self.size([a])
        return index

    def temporary(self, dtype: DType, count: int) -> int:
        """A new param in the workspace."""
        self.places.append(self.allocate(count * dtype.itemsize))
        self.dtypes.append(dtype)
        return len(self.dtypes) - 1

    def keep(self, node: Node, axes: Sequence[int]) -> tuple[int, Node]:
        """A new param, and the store that fills it with a value, in row-major order of axes."""
        param = self.temporary(node.dtype, self.size(axes))
        arg = (param, self.row_major(axes), "set", tuple(sorted(axes)))
        return param, make(STORE, void, (node,), arg)

    def compute(self, stores: Sequence[Node]) -> None:
        """A part that is a map or a reduction."""
        if not stores:
            return
        used = dict.fromkeys(n.arg[0] for n in toposort(stores) if n.op in (LOAD, STORE))
        numbers = sorted(used)
        rename = {old: new for new, old in enumerate(numbers)}
        self.loops(compact(IndexKernel(self.kernel.axes, SINK(*stores), 0), rename), numbers)

    # --- scans and sorts -------------------------------------------------------------------------

    def special(self, node: Node) -> list[Node]:
        """Run a scan or sort; the stores that this has done already."""
        if node.op is ORDER and gives_values(node.arg) and not self.sorts_values(node):
            self.gathered(node)
            return []
        along = node.arg[1] if node.op is RUN else node.arg[0]
        others = sorted(self.free[node] - set(along))
        done: list[Node] = []
        for store in self.direct_stores(node):
            layout = self.layout(store.arg[1], along, node.op is ORDER)
            if layout is not None:
                done, index, result = [store], store.arg[1], store.arg[0]
                break
        else:
            index = self.row_major([*others, *along])
            result = self.temporary(node.dtype, self.size([*others, *along]))
            layout = self.size(others), self.size(along), 1
        fill: list[Node] = []
        sources = [self.memory(self.known[s], index, node, fill) for s in node.src]
        self.compute(fill)
        run = self.scan if node.op is RUN else self.sort
        run(node, layout, sources, result)
        self.known[node] = make(LOAD, node.dtype, (), (result, index, ()))
        return done

    def gathered(self, node: Node) -> None:
        """Run a sort for the places; its values are read there."""
        along = node.arg[0]
        others = sorted(self.free[node] - set(along))
        index = self.row_major([*others, *along])
        fill: list[Node] = []
        sources = [self.memory(self.known[s], index, node, fill) for s in node.src]
        self.compute(fill)
        result = self.temporary(int32, self.size([*others, *along]))
        places = make(ORDER, int32, node.src, node.arg[:2])
        self.sort(places, (self.size(others), self.size(along), 1), sources, result)
        rows: Affine = (0, tuple([term for term in index[1] if term[0] not in along]))
        place = make(LOAD, int32, (), (result, index, ()))
        if len(node.src) > 1:  # of elements behind a row that ends early there are no places
            least, most = (
                make(CONST, int32, (), (n, ())) for n in (0, max(0, self.size(along) - 1))
            )
            place = make(MIN, int32, (make(MAX, int32, (place, least), None), most), None)
        at = add(rows, axis(SOURCES[0]))
        self.known[node] = make(LOAD, node.dtype, (place,), (sources[0], at, ()))

    def memory(self, source: Node, index: Affine, reader: Node, fill: list[Node]) -> int:
        """The param that holds a value at an index; if it is a new one, `fill` gets its store."""
        if source.op is LOAD and source.arg[1] == index and not source.arg[2] and not source.src:
            return source.arg[0]  # type: ignore[no-any-return]
        axes = tuple(sorted(self.free[reader]))
        if reader.op is ORDER and source is not self.known[reader.src[0]]:
            axes, index = (), number(0)  # the size of rows
        param = self.temporary(source.dtype, self.size(axes))
        fill.append(make(STORE, void, (source,), (param, index, "set", axes)))
        return param

    def layout(self, index: Affine, along: Sequence[int], last: bool) -> Layout | None:
        """(outer, n, inner), if the index is the place in memory of these in row-major order."""
        terms = sorted(index[1], key=lambda term: term[1])
        step, order = 1, []
        for atom, coefficient in terms:
            if not isinstance(atom, int) or coefficient != step:
                return None
            step *= self.size([atom])
            order.append(atom)
        order.reverse()
        along = [a for a in along if a in order or self.size([a]) > 1]  # one step has no place
        first = order.index(along[0]) if along else len(order)
        if index[0] or order[first : first + len(along)] != list(along):
            return None
        inner = order[first + len(along) :]
        if last and inner:
            return None
        return self.size(order[:first]), self.size(along), self.size(inner)

    # --- scatters --------------------------------------------------------------------------------

    def widened(self, stores: list[Node], scatters: Sequence[Node]) -> dict[int, int]:
        """Small floats are combined in float32: the base goes to memory of that, in `stores`."""
        wide: dict[int, int] = {}
        for node in scatters:
            target = node.arg[0]
            if node.arg[2] == "set" or not self.dtypes[target].is_small_float or target in wide:
                continue
            for place, store in enumerate(stores):
                if store.op is STORE and store.arg[0] == target:
                    wide[target] = self.temporary(float32, self.size(store.arg[3]))
                    value = make(CAST, float32, (store.src[0],), float32)
                    stores[place] = make(STORE, void, (value,), (wide[target], *store.arg[1:]))
        return wide

    def kept_source(self, node: Node) -> Node:
        if node not in self.known:
            self.rebuild(node)
        return self.known[node]

    def operand(self, node: Node, fills: list[Node]) -> tuple[int, Affine]:
        """Memory that holds a value, and the index of it there."""
        if node.op is LOAD and not node.arg[2] and not node.src and _is_plain(node.arg[1]):
            return node.arg[0], node.arg[1]
        axes = sorted(self.axes(node))
        param, store = self.keep(node, axes)
        fills.append(store)
        return param, self.row_major(axes)

    def narrow(self, target: int, temporary: int) -> None:
        """Round what was combined in float32."""
        store = next(s for s in self.kernel.body.src
                     if s.op is STORE and s.arg[0] == target and not is_scatter(s))  # fmt: skip
        _, index, mode, axes = store.arg
        value = make(LOAD, float32, (), (temporary, index, ()))
        small = self.dtypes[target]
        rounded = make(CAST, small, (value,), small)
        self.compute([make(STORE, void, (rounded,), (target, index, mode, axes))])


def _is_plain(index: Affine) -> bool:
    return all(isinstance(atom, int) for atom, _ in index[1])


def compact(kernel: IndexKernel, params: Mapping[int, int]) -> IndexKernel:
    """The kernel with its params renamed, and with those axes only that it uses."""
    order = toposort([kernel.body])
    free = free_axes([n for n in order if n.op is not SINK])
    used = frozenset[int]().union(*free.values())
    for node in order:
        if node.op is FOLD:
            used |= frozenset(node.arg[1])
    places = {old: axis(new) for new, old in enumerate(sorted(used))}

    def change(node: Node, sources: tuple[Node, ...]) -> Node:
        arg = argument_at(node, places, bound=True)
        if node.op is LOAD or node.op is STORE:
            arg = (params[arg[0]], *arg[1:])
        return make(node.op, node.dtype, sources, arg)

    (body,) = transformed([kernel.body], change)
    return IndexKernel(tuple([kernel.axes[a] for a in sorted(used)]), body, 0)


def disjoint_axes(index: Affine, sizes: Sequence[Size], reads: Sequence[Affine]) -> frozenset[int]:
    """Axes whose different steps never scatter to one place: each has digits of it for itself.

    `reads` are the places of the scatter's sources in memory.
    """
    fixed = {SOURCES[i] for i, place in enumerate(reads) if not place[1]}  # one number
    if len([a for a, _ in index[1] if isinstance(a, Source) and a not in fixed]) > 1:
        return frozenset()
    found: set[int] = set()
    reach = 0
    for atom, coefficient in sorted(index[1], key=lambda term: abs(term[1])):
        if atom in fixed:
            continue  # the same for every step
        if isinstance(atom, tuple) or coefficient <= reach:
            return frozenset()
        if isinstance(atom, Source):
            reach = -1  # an index that was checked ends where the next coefficient begins
            continue
        size = sizes[atom]
        assert isinstance(size, int)
        reach = coefficient * (size - 1) if reach < 0 else reach + coefficient * (size - 1)
        found.add(atom)
    return frozenset(found)
