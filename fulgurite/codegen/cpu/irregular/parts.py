"""Kernels with scans, sorts or scatters, cut in parts that each have a form of their own.

In: an `IndexKernel` with merged axes, and a renderer of maps and reductions. Out: a `KernelText` of
several launches. What a scan or sort reads is stored first, unless it is memory already, laid out
as it is needed; then the scan or sort runs over that memory; then all else is computed with its
result as one more param. Scatters come last: the base is stored like any result, what they need is
stored beside it, and they combine. So fused prologues and epilogues cost one pass each, and scans,
sorts and scatters are written once, over plain memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from ....core.dtype import DType, float32, int32, void
from ....core.node import Node, make, toposort
from ....core.ops.elementwise import CAST
from ....core.ops.index import FOLD, LOAD, ORDER, RUN, STORE, VALID
from ....core.ops.leaf import SINK
from ....graph.ir.affine import Affine, add, axis, number
from ....graph.ir.lower import IndexKernel
from ....graph.ir.queries import free_axes, is_scatter
from ....kernel.transform.merge_axes import argument
from ...common.api import KernelText
from ..compose import Part, Place, Room, compose
from ..target import Target
from .scan import Line, block_bytes, scan
from .scatter import Scatter, scatter
from .sort import Rows, sort, sort_bytes

Plain = Callable[[IndexKernel, Sequence[DType], Target], KernelText]


def in_parts(
    kernel: IndexKernel, dtypes: Sequence[DType], target: Target, plain: Plain
) -> KernelText | None:
    """The kernel as parts, if it has a scan, a sort or a scatter."""
    order = toposort([kernel.body])
    if not any([n.op is RUN or n.op is ORDER or is_scatter(n) for n in order]):
        return None
    return _Parts(kernel, dtypes, target, plain).render()


class _Parts:
    def __init__(
        self, kernel: IndexKernel, dtypes: Sequence[DType], target: Target, plain: Plain
    ) -> None:
        self.kernel, self.target, self.plain = kernel, target, plain
        self.count = len(dtypes)
        self.dtypes = list(dtypes)  # of the params, then of values in the workspace
        self.places = [Place(i) for i in range(self.count)]
        self.room = Room()
        self.parts: list[Part] = []
        self.known: dict[Node, Node] = {}  # a node of the body -> the same with results as params
        self.order = [n for n in toposort([kernel.body]) if n.op is not SINK]
        self.free = free_axes(self.order)

    def render(self) -> KernelText:
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
            self.scatter(node, wide)
        for number_, temporary in wide.items():
            self.narrow(number_, temporary)
        return compose(self.parts, self.count, self.room)

    # --- nodes -----------------------------------------------------------------------------------

    def rebuild(self, node: Node) -> None:
        self.known[node] = make(
            node.op, node.dtype, tuple([self.known[s] for s in node.src]), node.arg
        )

    def checked(self, node: Node) -> Node:
        """An index that is only checked is stored where nobody looks."""
        return node if node.op is STORE else self.keep(node, sorted(self.axes(node)))[1]

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
        self.places.append(self.room.take(count * dtype.itemsize))
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
        kernel = compact(IndexKernel(self.kernel.axes, SINK(*stores), 0), rename)
        rendered = self.plain(kernel, [self.dtypes[n] for n in numbers], self.target)
        self.add(rendered, numbers)

    def add(self, rendered: KernelText, params: Sequence[int]) -> None:
        self.parts.append(Part(rendered, tuple([self.places[p] for p in params])))

    # --- scans and sorts -------------------------------------------------------------------------

    def special(self, node: Node) -> list[Node]:
        """Run a scan or sort; the stores that this has done already."""
        along = node.arg[1] if node.op is RUN else node.arg[0]
        others = sorted(self.free[node] - set(along))
        done = [s for s in self.kernel.body.src if s.op is STORE and s.src == (node,)
                and not is_scatter(s) and frozenset(s.arg[3]) == self.free[node]]  # fmt: skip
        layout: tuple[int, int, int] | None = None
        store: Node | None = None
        for store in done:
            layout = self.layout(store.arg[1], along, node.op is ORDER)
            if layout is not None:
                break
        if layout is None or store is None:
            done, index = [], self.row_major([*others, *along])
            result = self.temporary(node.dtype, self.size([*others, *along]))
            layout = self.size(others), self.size(along), 1
        else:
            done, index, result = [store], store.arg[1], store.arg[0]
        sources = [self.known[s] for s in node.src]
        fill: list[Node] = []
        places = [self.memory(s, index, node, fill) for s in sources]
        self.compute(fill)
        if node.op is RUN:
            name, _, reverse = node.arg
            line = Line(name, reverse, node.dtype, *layout)
            folds = self.temporary(int32, -(-block_bytes(line) // 4))
            self.add(scan(line, self.target), [*places, result, folds])
        else:
            outer, n, _ = layout
            rows = Rows(sources[0].dtype, node.arg[1], outer, n, len(sources) > 1)
            space = self.temporary(int32, -(-sort_bytes(rows) // 4))
            self.add(sort(rows, self.target), [places[0], result, space, *places[1:]])
        self.known[node] = make(LOAD, node.dtype, (), (result, index, ()))
        return done

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

    def layout(
        self, index: Affine, along: Sequence[int], last: bool
    ) -> tuple[int, int, int] | None:
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

    def scatter(self, node: Node, wide: Mapping[int, int]) -> None:
        """Store what a scatter reads, then combine."""
        number_, index, mode, axes = node.arg
        fills: list[Node] = []
        read = [self.operand(self.kept_source(s), fills) for s in node.src]
        self.compute(fills)
        work = Scatter(
            mode, self.dtypes[number_], number_ in wide, tuple(axes), self.kernel.axes, index,
            tuple([(self.dtypes[p], i) for p, i in read]), node.src[-1].op is VALID,
        )  # fmt: skip
        result = wide.get(number_, number_)
        self.add(scatter(work, self.target), [*[p for p, _ in read], result])

    def kept_source(self, node: Node) -> Node:
        if node not in self.known:
            self.rebuild(node)
        return self.known[node]

    def operand(self, node: Node, fills: list[Node]) -> tuple[int, Affine]:
        """Memory that holds a value, and the index of it there."""
        if node.op is LOAD and not node.arg[2] and not node.src and _plain(node.arg[1]):
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


def _plain(index: Affine) -> bool:
    return all(isinstance(atom, int) for atom, _ in index[1])


def compact(kernel: IndexKernel, params: Mapping[int, int]) -> IndexKernel:
    """The kernel with its params renamed, and with those axes only that it uses."""
    order = toposort([kernel.body])
    free = free_axes([n for n in order if n.op is not SINK])
    used = frozenset[int]().union(*free.values())
    for node in order:
        if node.op is FOLD:
            used |= frozenset(node.arg[1])
    axes = {old: new for new, old in enumerate(sorted(used))}

    def moved(index: Affine) -> Affine:
        out = number(index[0])
        for atom, coefficient in index[1]:
            if isinstance(atom, tuple):
                atom = (atom[0], moved(atom[1]), atom[2])
            elif isinstance(atom, int):
                atom = axes[atom]
            out = add(out, axis(atom), coefficient)
        return out

    done: dict[Node, Node] = {}
    for node in order:
        arg = argument(node, moved, lambda names: tuple([axes[a] for a in names]))
        if node.op is LOAD or node.op is STORE:
            arg = (params[arg[0]], *arg[1:])
        done[node] = make(node.op, node.dtype, tuple([done[s] for s in node.src]), arg)
    return IndexKernel(tuple([kernel.axes[a] for a in axes]), done[kernel.body], 0)
