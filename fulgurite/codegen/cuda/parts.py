"""Irregular kernels: scans, sorts and scatters as launches over the params and one workspace.

An output may share memory with an input that is read at the same places: nothing is written to an
output while a later launch still reads an input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.dtype import DType
from ...core.node import Node, toposort
from ...core.ops.index import LOAD, STORE
from ...graph.ir.affine import Affine
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import is_irregular
from ..common.irregular import IrregularParts, Layout
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
    if not is_irregular(kernel.body):
        return None
    parts = _Parts(kernel, dtypes, places, room, table, plain)
    parts.split()
    return parts.launches


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
