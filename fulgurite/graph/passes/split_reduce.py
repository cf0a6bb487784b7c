"""Full reductions through row sums: Σ_ijk x = Σ_ij Σ_k x, where x is made of a contraction.

In: a graph. Out: one with the same values. A parameter that every element of a product shares (a
scale, a slope, a bias of columns) has an adjoint that sums a matrix over several axes, at once or
one after the other with factors between. A walk over that matrix can give the sums of its rows on
the way, and what is left is few numbers: so such a sum is one of rows, and one of the rest. Floats
are added in another order, so `exact` leaves this out.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.node import Node, Shape, Size, make
from ...core.ops.elementwise import MUL
from ...core.ops.movement import EXPAND, RESHAPE, expand, reshape
from ...core.ops.reduce import REDUCE
from ...core.rewriting.substitute import substitute
from ...core.symbolic.sym import choosing
from ..ir.limits import LIMITS
from ..ir.queries import elements, is_contraction, own_elements
from ..ir.sum_product import same_axes


def split_reduce(sink: Node, order: Sequence[Node]) -> Node:
    """The graph with sums over matrices in two steps, that of rows first."""
    known: dict[Node, Node] = {}
    for node in order:
        if node.op is REDUCE and node.arg[0] == "add" and node.dtype.kind == "f":
            total = _as_one(node)
            steps = _in_steps(total)
            if steps is not None:
                known[node] = reshape(steps, node.shape)
    return substitute(sink, known) if known else sink


def _as_one(total: Node) -> Node:
    """A sum of a factor times a sum over a matrix as one sum: Σ_j c Σ_b x = Σ_bj c x."""
    body = total.src[0]
    if body.op is not MUL:
        return total
    for inner, factor in (body.src, body.src[::-1]):
        dot = inner.src[0] if inner.op is RESHAPE else inner
        if dot.op is not REDUCE or dot.arg[0] != "add":
            continue
        if not _is_made_of_contraction(dot.src[0], dot.arg[1]):
            continue
        place = same_axes(inner.shape, dot.shape)
        if place is not None:
            matrix = dot.src[0]
            wide = expand(reshape(factor, dot.shape), matrix.shape)
            product = make(MUL, total.dtype, (matrix, wide))
            axes = {place[axis] for axis in total.arg[1] if axis in place}
            return make(
                REDUCE, total.dtype, (product,), ("add", tuple(sorted({*axes, *dot.arg[1]})))
            )
    return total


def _in_steps(total: Node) -> Node | None:
    """A sum over rows and more as the sum of the sums of rows."""
    matrix, (_, axes) = total.src[0], total.arg
    long = [axis for axis in axes if matrix.shape[axis] != 1]
    first = [axis for axis in long if axis >= matrix.ndim - 2][-1:]
    if len(long) < 2 or not first or is_contraction(total):
        return None
    if not _is_made_of_contraction(matrix, long):
        return None
    rows = make(REDUCE, total.dtype, (matrix,), ("add", tuple(first)))
    left = tuple([axis for axis in axes if axis not in first])
    return make(REDUCE, total.dtype, (rows,), ("add", left))


def _is_made_of_contraction(matrix: Node, along: Sequence[int]) -> bool:
    """True if a value is made, element by element, from a product of two that are smaller.

    Both must vary along what is summed: sums over the rows of a layer's weights are no such sums.
    """
    node = contraction_under(matrix)
    place = None if node is None else same_axes(matrix.shape, node.shape)
    if node is None or place is None:
        return False
    return all(
        any(_own_shape(f)[place[axis]] != 1 for axis in along if axis in place)
        for f in node.src[0].src
    )


def contraction_under(matrix: Node) -> Node | None:
    """The product of two smaller values that a value is computed from, element by element."""
    size = elements(matrix.shape)
    if not all(isinstance(n, int) for n in matrix.shape):
        return None
    stack, seen = [matrix], {matrix}
    while stack and len(seen) < LIMITS.contraction_distance:
        node = stack.pop()
        if node.op is REDUCE:
            if is_contraction(node) and _are_smaller(node.src[0].src, size):
                return node
        elif node.op.family == "elementwise" or node.op is RESHAPE:
            found = [s for s in node.src if elements(s.shape) == size and s not in seen]
            seen.update(found)
            stack.extend(found)
    return None


def _are_smaller(factors: Sequence[Node], size: Size) -> bool:
    """True if factors have fewer elements than there are: whether it pays, not whether it holds."""
    with choosing():
        return all([own_elements(f) <= size for f in factors])


def _own_shape(factor: Node) -> Shape:
    """The shape of a factor before it is repeated."""
    while factor.op is EXPAND:
        factor = factor.src[0]
    return factor.shape
