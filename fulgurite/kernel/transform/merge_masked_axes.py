"""Merging axes under conditions: short rows that a padding leaves whole become one long row.

In: an `IndexKernel` that is a map. Out: the same with fewer, longer axes. A condition on an outer
axis a, 0 <= x + a < size, holds for whole rows of an inner axis b of n steps; with b written into
it, 0 <= n x + n a + b < n size, it says the same, and a and b walk as one axis. So an image with
channels last is padded by long rows under masks, and not by a short row for every pixel.
"""

from __future__ import annotations

from itertools import permutations

from ...core.node import Node, make, toposort
from ...core.ops.index import FOLD, LOAD, ORDER, RUN, VALID
from ...graph.ir.affine import Affine, Condition, add, axis
from ...graph.ir.bodies import transformed
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import indices
from .merge_axes import merge_axes
from .tables import VectorTable


def merge_masked_axes(kernel: IndexKernel, table: VectorTable) -> IndexKernel:
    """The kernel with short rows merged where conditions kept them apart.

    To begin a row costs about as much as lanes at places of their own: masks for each vector of a
    longer one cost more.
    """
    most = table.lanes * table.gather_rows
    while True:
        pair = _masked_pair(kernel, most)
        if pair is None:
            return kernel
        kernel = merge_axes(_asked_of_inner(kernel, *pair))


def _conditions(node: Node) -> tuple[Condition, ...]:
    """What a node asks."""
    found: tuple[Condition, ...] = node.arg[2] if node.op is LOAD else node.arg
    return found if node.op in (LOAD, VALID) else ()


def _masked_pair(kernel: IndexKernel, most: int) -> tuple[int, int] | None:
    """Two axes that memory walks as one, where a condition on the outer one alone is in the way."""
    order = toposort([kernel.body])
    asked = [index for n in order for index, _ in _conditions(n)]
    if not asked or not all(map(_is_plain, order)):
        return None
    places = [index for n in order if n.op is not VALID for index in indices(n)[:1]]
    walked, tested = _steps(places), _steps(asked)
    sizes = {a: n for a, n in enumerate(kernel.axes) if isinstance(n, int)}
    for a, b in permutations(sizes, 2):
        if sizes[b] <= most and _is_masked(a, b, sizes[b], walked, tested):
            return a, b
    return None


_Steps = list[dict[int, int]]


def _is_plain(node: Node) -> bool:
    """True if a node may be part of a map whose indices depend on axes alone."""
    if node.op in (FOLD, RUN, ORDER):
        return False
    return all(isinstance(atom, int) for index in indices(node) for atom, _ in index[1])


def _steps(found: list[Affine]) -> _Steps:
    """The steps of indices along axes."""
    return [{atom: step for atom, step in i[1] if isinstance(atom, int)} for i in found]


def _is_masked(a: int, b: int, n: int, walked: _Steps, tested: _Steps) -> bool:
    """True if places walk two axes as one, and some conditions ask whole rows of the inner one."""
    apart = [s for s in tested if s.get(a, 0) != s.get(b, 0) * n]
    walks = all(s.get(a, 0) == s.get(b, 0) * n for s in walked) and any(b in s for s in walked)
    return walks and bool(apart) and all(s.get(a) == 1 and b not in s for s in apart)


def _asked_of_inner(kernel: IndexKernel, a: int, b: int) -> IndexKernel:
    """The kernel with conditions on the outer of two axes asked of both."""
    n = kernel.axes[b]
    assert isinstance(n, int)

    def asked(condition: Condition) -> Condition:
        index, below = condition
        if dict(index[1]).get(a) != 1:
            return condition
        return add(axis(b), index, n), below * n

    def change(node: Node, sources: tuple[Node, ...]) -> Node:
        arg = node.arg
        if node.op is LOAD:
            arg = (*arg[:2], tuple(map(asked, arg[2])))
        elif node.op is VALID:
            arg = tuple(map(asked, arg))
        return make(node.op, node.dtype, sources, arg)

    (body,) = transformed([kernel.body], change)
    return IndexKernel(kernel.axes, body, kernel.divisions)
