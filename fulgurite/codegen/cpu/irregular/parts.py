"""Irregular kernels: scans, sorts and scatters as parts that are composed, over one workspace."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....core.dtype import DType, int32
from ....core.node import Node
from ....core.ops.index import STORE, gives_values
from ....graph.ir.affine import Affine
from ....graph.ir.lower import IndexKernel
from ...common.api import KernelText
from ...common.irregular import IrregularParts, Layout
from ..compose import Part, Place, Room, compose
from ..target import Target
from .scan import Line, block_bytes, scan
from .scatter import Scatter, scatter
from .sort import Rows, sort, sort_bytes, writes_values

Plain = Callable[[IndexKernel, Sequence[DType], Target], KernelText]


def in_parts(
    kernel: IndexKernel, dtypes: Sequence[DType], target: Target, plain: Plain
) -> KernelText:
    """A kernel that has a scan, a sort or a scatter, as parts."""
    parts = _Parts(kernel, dtypes, target, plain)
    parts.split()
    return compose(parts.parts, len(dtypes), parts.room)


class _Parts(IrregularParts[Place]):
    def __init__(
        self, kernel: IndexKernel, dtypes: Sequence[DType], target: Target, plain: Plain
    ) -> None:
        super().__init__(kernel, dtypes, [Place(i) for i in range(len(dtypes))])
        self.target, self.plain, self.room = target, plain, Room()
        self.parts: list[Part] = []

    def allocate(self, nbytes: int) -> Place:
        return self.room.take(nbytes)

    def add(self, made: KernelText, params: Sequence[int]) -> None:
        self.parts.append(Part(made, tuple([self.places[p] for p in params])))

    def checked(self, node: Node) -> Node:
        """An index that is only checked is stored in a temporary that is not read."""
        return node if node.op is STORE else self.keep(node, sorted(self.axes(node)))[1]

    def loops(self, kernel: IndexKernel, params: Sequence[int]) -> None:
        self.add(self.plain(kernel, [self.dtypes[n] for n in params], self.target), params)

    def scan(self, node: Node, layout: Layout, sources: Sequence[int], result: int) -> None:
        name, _, reverse = node.arg
        line = Line(name, reverse, node.dtype, *layout)
        folds = self.temporary(int32, -(-block_bytes(line) // 4))
        self.add(scan(line, self.target), [*sources, result, folds])

    def sorts_values(self, node: Node) -> bool:
        along = node.arg[0]
        others = sorted(self.free[node] - set(along))
        return writes_values(self.rows(node, self.size(others), self.size(along)), self.target)

    def rows(self, node: Node, outer: int, n: int) -> Rows:
        """What a sort sorts."""
        first, values = node.arg[2] if len(node.arg) > 2 else 0, gives_values(node.arg)
        return Rows(
            node.src[0].dtype, node.arg[1], outer, n, len(node.src) > 1, first, values
        )  # fmt: skip

    def sort(self, node: Node, layout: Layout, sources: Sequence[int], result: int) -> None:
        rows = self.rows(node, *layout[:2])
        space = self.temporary(int32, -(-sort_bytes(rows, self.target) // 4))
        self.add(sort(rows, self.target), [sources[0], result, space, *sources[1:]])

    def scatter(
        self, node: Node, sources: Sequence[tuple[int, Affine]], is_wide: bool, result: int,
        is_masked: bool,
    ) -> None:  # fmt: skip
        target, index, mode, axes = node.arg
        read = tuple([(self.dtypes[p], i) for p, i in sources])
        work = Scatter(
            mode, self.dtypes[target], is_wide, tuple(axes), self.kernel.axes, index, read,
            is_masked,
        )  # fmt: skip
        self.add(scatter(work, self.target), [*[p for p, _ in sources], result])
