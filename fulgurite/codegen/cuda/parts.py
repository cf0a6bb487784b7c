"""Irregular kernels: scans, sorts and scatters as launches over the params and one workspace.

An output may share memory with an input that is read at the same places: nothing is written to an
output while a later launch still reads an input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...core.dtype import DType
from ...core.node import Node, Size, toposort
from ...core.ops.index import LOAD, ORDER, RUN, STORE, VALID
from ...core.ops.leaf import SINK
from ...graph.ir.affine import Affine, number
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes, is_irregular, is_scatter
from ..common.irregular import IrregularParts, Layout, disjoint_axes
from .scan import Line, scan
from .scatter import Scatter, scatter
from .sort import Rows, sort
from .source import Launch, Place, Room
from .tiling import GpuTable

Plain = Callable[
    [IndexKernel, Sequence[DType], Sequence[Place], Room, GpuTable], list[Launch]
]  # fmt: skip


def in_parts(
    kernel: IndexKernel, dtypes: Sequence[DType], places: Sequence[Place], room: Room,
    table: GpuTable, plain: Plain,
) -> list[Launch] | None:  # fmt: skip
    """The kernel as launches, if it has a scan, a sort or a scatter."""
    if not is_irregular(kernel.body) or _is_plain(kernel):
        return None
    parts = _Parts(kernel, dtypes, places, room, table, plain)
    parts.split()
    return parts.launches


def _is_plain(kernel: IndexKernel) -> bool:
    """True if all it scatters is set in a box that begins somewhere: no two steps can meet.

    Its stores are those of a map, at a place of which a part is one number for all of them.
    """
    order = [n for n in toposort([kernel.body]) if n.op is not SINK]
    if any(n.op is RUN or n.op is ORDER for n in order):
        return False
    free = free_axes(order)
    written = [n.arg[0] for n in order if n.op is STORE]
    boxes = [n for n in order if is_scatter(n)]
    alone = all(written.count(n.arg[0]) == 1 for n in boxes)  # no base is stored before
    return alone and all(_is_box(n, free, kernel.axes) for n in boxes)


def _is_box(store: Node, free: Mapping[Node, frozenset[int]], sizes: Sequence[Size]) -> bool:
    _, index, mode, axes = store.arg
    corner = store.src[1:]
    if mode != "set" or any(free[s] or s.op is VALID for s in corner):
        return False
    return disjoint_axes(index, sizes, [number(0)] * len(store.src)) >= frozenset(axes)


class _Parts(IrregularParts[Place]):
    def __init__(
        self, kernel: IndexKernel, dtypes: Sequence[DType], places: Sequence[Place], room: Room,
        table: GpuTable, plain: Plain,
    ) -> None:  # fmt: skip
        super().__init__(kernel, dtypes, places)
        self.room, self.table, self.plain = room, table, plain
        self.launches: list[Launch] = []

    def allocate(self, nbytes: int) -> Place:
        return self.room.take(nbytes)

    def loops(self, kernel: IndexKernel, params: Sequence[int]) -> None:
        dtypes, places = [self.dtypes[n] for n in params], [self.places[n] for n in params]
        self.launches += self.plain(kernel, dtypes, places, self.room, self.table)

    def direct_stores(self, node: Node) -> list[Node]:
        """None where another root reads memory after it."""
        others = [s for s in self.kernel.body.src if s.op is not STORE or s.src != (node,)]
        if any(n.op is LOAD for n in toposort(others)):
            return []
        return super().direct_stores(node)

    def scan(self, node: Node, layout: Layout, sources: Sequence[int], result: int) -> None:
        name, _, reverse = node.arg
        line, memory = Line(name, reverse, node.dtype, *layout), self.memory_of(sources)
        self.launches += scan(line, memory, self.places[result], self.room, self.table)

    def sort(self, node: Node, layout: Layout, sources: Sequence[int], result: int) -> None:
        rows = Rows(node.src[0].dtype, node.arg[1], *layout[:2])
        first, *rest = [self.places[p] for p in sources]
        limit = rest[0] if rest else None
        self.launches += sort(rows, first, self.places[result], limit, self.room, self.table)

    def memory_of(self, params: Sequence[int]) -> list[tuple[DType, Place]]:
        return [(self.dtypes[p], self.places[p]) for p in params]

    def scatter(
        self, node: Node, sources: Sequence[tuple[int, Affine]], is_wide: bool, result: int,
        is_masked: bool,
    ) -> None:  # fmt: skip
        _, index, mode, axes = node.arg
        read = tuple([(self.dtypes[p], self.places[p], i) for p, i in sources])
        work = Scatter(
            mode, self.dtypes[result], tuple(axes), self.kernel.axes, index, read, is_masked
        )
        self.launches += scatter(work, self.places[result], self.room, self.table)
