"""Implicit GEMM: the rows, columns and folded axes of a product, each as one axis.

In: an `IndexKernel` whose folds are sums of products. Out: the same kernel where axes of one role
(the batch and space of a convolution; its channels and window) are the digits of one number, so
that `tl.dot` has long axes to cut tiles from; or the kernel as it is, where its longest axes make
good tiles. What is read are then gathered loads, as im2col's without its memory: an index has
quotients and remainders of the one number. Folds with few results and several axes are merged too:
one long axis can be split between programs. Digits whose steps fit together stay one digit, and the
slowest in memory come first, so that neighbours are contiguous; an axis along which one operand is
contiguous comes last, however far its steps are in the other, which may run along its own axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from ...core.node import Node, make, toposort
from ...core.ops.index import FOLD, LOAD, ORDER, RUN, STORE
from ...core.ops.leaf import SINK
from ...graph.ir.affine import Affine, add, axis, number
from ...graph.ir.bodies import argument, transformed
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes
from ...kernel.contract.problem import ProductAxes, product_axes
from .analysis import is_dot_product, parallel_axes
from .tiling import GpuTable

Free = Mapping[Node, frozenset[int]]


class _Merged(NamedTuple):
    """Axes that become digits, the slowest first, and the axis that takes them all."""

    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    name: int


def implicit_gemm(kernel: IndexKernel, table: GpuTable) -> IndexKernel:
    """The kernel with one axis for each role of its product, where that makes better tiles."""
    sizes = [n for n in kernel.axes if isinstance(n, int)]
    order = [n for n in toposort([kernel.body]) if n.op is not SINK]
    if len(sizes) < len(kernel.axes) or not all(sizes) or any(n.op in (RUN, ORDER) for n in order):
        return kernel
    wanted = [g for g in _groups(kernel, order, sizes, table) if _is_whole(g, order)]
    return _flattened(kernel, sizes, wanted) if wanted else kernel


def _groups(
    kernel: IndexKernel, order: Sequence[Node], sizes: Sequence[int], table: GpuTable
) -> list[tuple[int, ...]]:
    """Axes that had better be one: of a product by their roles, of other folds all of them."""
    folds = [n for n in order if n.op is FOLD]
    free = free_axes(order)
    roles = _roles(folds, free) if folds else None
    if roles is None:
        found = [_long_fold(kernel, folds, free, sizes, table)] if folds else []
    elif _is_short(roles, sizes, table):
        found = []
    else:
        left, right = folds[0].src[0].src
        whole = roles.shared if roles.shared == roles.folded else frozenset[int]()
        side = table.dot_rows
        rows, columns = (prod([sizes[a] for a in role]) for role in (roles.left, roles.right))
        parts = max(1, table.processors // (-(-rows // side) * -(-columns // side)))  # of K
        found = [
            _group(roles.left, left, sizes, order, side, 1),
            _group(roles.right, right, sizes, order, side, 1),
            _group(whole, None, sizes, order, table.dot_depth, table.dot_loop * parts),
        ]
    return [group for group in found if len(group) > 1]


def _roles(folds: Sequence[Node], free: Free) -> ProductAxes | None:
    """The axes of the one product that all folds of a kernel are."""
    if len({f.arg[1] for f in folds}) > 1:
        return None
    if not all(f.arg[0] == "add" and is_dot_product(f.src[0]) for f in folds):
        return None
    found = {product_axes(f, free) for f in folds}
    (axes,) = found if len(found) == 1 else (None,)
    return axes if axes is not None and axes.left and axes.right else None


def _long_fold(
    kernel: IndexKernel, folds: Sequence[Node], free: Free, sizes: Sequence[int], table: GpuTable
) -> tuple[int, ...]:
    """The axes of folds with few results: as one they can be cut into blocks of any length."""
    parallel = parallel_axes(kernel.body.src, free)
    if len({f.arg[1] for f in folds}) > 1 or prod([sizes[a] for a in parallel]) > table.enough:
        return ()
    return tuple([a for a in folds[0].arg[1] if sizes[a] > 1])


def _is_short(roles: ProductAxes, sizes: Sequence[int], table: GpuTable) -> bool:
    """True if a role has too few elements for the tensor cores, however its axes are merged."""
    lengths = [prod([sizes[a] for a in role]) for role in (roles.left, roles.right, roles.shared)]
    return min(lengths) < table.dot_least


def _group(
    axes: frozenset[int], factor: Node | None, sizes: Sequence[int],
    order: Sequence[Node], block: int, enough: int,
) -> tuple[int, ...]:  # fmt: skip
    """The axes of a role, the slowest in memory first; none if the longest is a good one alone."""
    long = [a for a in axes if sizes[a] > 1]
    most = max([sizes[a] for a in long], default=0)
    waste = -(-most // block) * block
    if len(long) < 2 or (most >= block * enough and waste * 16 <= most * 17):
        return ()
    loads = [n for n in (order if factor is None else toposort([factor])) if n.op is LOAD]
    steps = dict.fromkeys(long, 0)
    contiguous = set[int]()
    for node in loads:
        for atom, step in node.arg[1][1]:
            if atom in steps and isinstance(atom, int):
                steps[atom] += abs(step)
                contiguous |= {atom} if abs(step) == 1 else set()
    return tuple(sorted(long, key=lambda a: (a in contiguous, -steps[a], a)))


def _is_whole(group: tuple[int, ...], order: Sequence[Node]) -> bool:
    """True if every store and fold has all axes of a group or none."""
    named = [set(n.arg[3] if n.op is STORE else n.arg[1]) for n in order if n.op in (STORE, FOLD)]
    return all(len(axes & set(group)) in (0, len(group)) for axes in named)


def _flattened(
    kernel: IndexKernel, sizes: Sequence[int], groups: Sequence[tuple[int, ...]]
) -> IndexKernel:
    """The kernel with an axis in the place of each group: the first of the group takes it."""
    merged = [_Merged(g, tuple([sizes[a] for a in g]), min(g)) for g in groups]
    gone = {a for m in merged for a in m.axes if a != m.name}
    left = [a for a in range(len(sizes)) if a not in gone]
    names = {a: place for place, a in enumerate(left)}
    lengths = {m.name: prod(m.sizes) for m in merged}

    def kept(axes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([names[a] for a in axes if a not in gone])

    def change(node: Node, sources: tuple[Node, ...]) -> Node:
        arg = argument(node, lambda index: _in_digits(index, merged, names), kept)
        return make(node.op, node.dtype, sources, arg)

    (body,) = transformed([kernel.body], change)
    axes = tuple([lengths.get(a, sizes[a]) for a in left])
    return IndexKernel(axes, body, kernel.divisions)


def _in_digits(index: Affine, merged: Sequence[_Merged], names: Mapping[int, int]) -> Affine:
    """An index with digits of merged axes in the place of the axes that they were."""
    out = number(index[0])
    steps: dict[int, int] = {}
    for atom, step in index[1]:
        if isinstance(atom, int):
            steps[atom] = step
        elif isinstance(atom, tuple):
            out = add(out, axis((atom[0], _in_digits(atom[1], merged, names), atom[2])), step)
        else:
            out = add(out, axis(atom), step)
    for m in merged:
        given = [steps.pop(a, 0) for a in m.axes]
        out = add(out, _digits(given, m.sizes, names[m.name]))
    for a, step in steps.items():
        out = add(out, axis(names[a]), step)
    return out


def _digits(steps: Sequence[int], sizes: Sequence[int], name: int) -> Affine:
    """The sum of digits of an axis times their steps; digits that step together are one."""
    out, place = number(0), len(sizes)
    below = 1  # elements of the digits that are done
    while place:
        last, length, step = place, sizes[place - 1], steps[place - 1]
        place -= 1
        while place and steps[place - 1] == step * length:
            length *= sizes[place - 1]
            place -= 1
        if step:
            digit = axis(name) if below == 1 else axis(("//", axis(name), below))
            out = add(out, digit if place == 0 else axis(("%", digit, length)), step)
        below *= prod(sizes[place:last])
    return out
