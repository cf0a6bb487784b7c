"""Common subexpressions up to names of axes: folds of several stores over the same elements.

In: an `IndexKernel`. Out: the same kernel in which a store whose fold is that of another, but for
the names of axes, has the other's names: the fold is then one node, computed once. Outputs of other
shapes (the sum that a bias is updated by, beside the one that a gradient needs) have axes of their
own when they are lowered, and were other launches that read all elements again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.node import Node, Size, make, toposort
from ...core.ops.index import FOLD, GUARD, LOAD, ORDER, RUN, STORE
from ...core.ops.leaf import SINK
from ...graph.ir.affine import axis
from ...graph.ir.bodies import argument, index_at, transformed
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes

Names = dict[int, int]


def share_axes(kernel: IndexKernel) -> IndexKernel:
    """The kernel with one name for axes of folds that are the same."""
    roots = kernel.body.src
    order = [n for n in toposort(roots) if n.op is not SINK]
    if len(roots) < 2 or any(n.op in (RUN, ORDER, GUARD) for n in order):
        return kernel
    free = free_axes(order)
    done: dict[Node, Node] = {}
    for root in sorted(roots, key=lambda r: -len(free[r])):  # the largest keeps its names
        names = next((n for r in done.values() if (n := _same(root, r, kernel.axes))), {})
        done[root] = renamed(root, names) if _is_injective(root, free, names) else root
    return kernel._replace(body=SINK(*[done[root] for root in roots]))


def _is_injective(root: Node, free: Mapping[Node, frozenset[int]], names: Names) -> bool:
    """True if the renaming keeps the axes of a root distinct: those too that only a fold binds."""
    order = toposort([root])
    axes = frozenset[int]().union(*[free[n] for n in order], *[_bound(n) for n in order])
    return len({names.get(a, a) for a in axes}) == len(axes)


def _bound(node: Node) -> frozenset[int]:
    """The axes that a node folds."""
    return frozenset(node.arg[1]) if node.op is FOLD else frozenset()


def _same(root: Node, other: Node, sizes: Sequence[Size]) -> Names | None:
    """Names by which a fold under a root is one under the other."""
    if root.op is not STORE or other.op is not STORE:
        return None
    for mine in [n for n in toposort([root]) if n.op is FOLD]:
        for theirs in [n for n in toposort([other]) if n.op is FOLD]:
            if mine.arg[0] != theirs.arg[0] or mine.dtype is not theirs.dtype:
                continue
            names = _names(mine, theirs, sizes)
            if names and renamed(mine, names) is theirs:
                return names
    return None


def _names(mine: Node, theirs: Node, sizes: Sequence[Size]) -> Names:
    """Axes that take the same steps through the param that has most of them."""

    def longest(fold: Node, param: int | None) -> Node | None:
        loads = [n for n in toposort([fold]) if n.op is LOAD and param in (None, n.arg[0])]
        return max(loads, key=lambda n: len(n.arg[1][1]), default=None)

    first = longest(mine, None)
    second = longest(theirs, first.arg[0]) if first is not None else None
    if first is None or second is None:
        return {}
    steps = [
        {step: atom for atom, step in load.arg[1][1] if isinstance(atom, int)}
        for load in (first, second)
    ]
    names = {atom: steps[1][step] for step, atom in steps[0].items() if step in steps[1]}
    same = all(sizes[a] == sizes[b] for a, b in names.items())
    return names if same and len({*names.values()}) == len(names) else {}


def renamed(root: Node, names: Mapping[int, int]) -> Node:
    """A value with other names for axes, those of folds too."""
    places = {a: axis(b) for a, b in names.items()}

    def kept(axes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted([names.get(a, a) for a in axes]))

    def change(node: Node, sources: tuple[Node, ...]) -> Node:
        arg = argument(node, lambda index: index_at(index, places), kept)
        return make(node.op, node.dtype, sources, arg)

    return transformed([root], change)[0]
