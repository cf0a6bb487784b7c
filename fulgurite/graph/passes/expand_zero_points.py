"""Zero points of quantised factors taken out of sums: Σ (a - z) b = Σ a b - z Σ b.

In: a graph. Out: one with the same bits, as whole numbers wrap around. A product of bytes around a
zero point has a factor that is no longer bytes, and no processor multiplies four of those at once;
with the zero point outside the sum the factors are the bytes themselves. It is one number, and
there are rows enough to pay for the sum of the other factor.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.node import Node, constant_like, make
from ...core.ops.elementwise import CAST, MUL, SUB
from ...core.ops.leaf import CONST
from ...core.ops.movement import EXPAND, FLIP, PERMUTE, RESHAPE, SHRINK, WINDOW, expand, reshape
from ...core.ops.reduce import REDUCE
from ...core.rewriting.substitute import substitute
from ...core.symbolic.sym import choosing
from ..ir.limits import LIMITS
from ..ir.queries import elements, is_contraction, own_elements

_MOVES = (EXPAND, RESHAPE, PERMUTE, FLIP, SHRINK, WINDOW)  # what is around a value stays out


def expand_zero_points(sink: Node, order: Sequence[Node]) -> Node:
    """The graph with factors of contractions that are bytes, not bytes around zero points."""
    known: dict[Node, Node] = {}
    for node in order:
        if node.op is REDUCE and node.dtype.kind in "iu" and node.dtype.bits == 32:
            found = _expanded(node) if is_contraction(node) else None
            if found is not None:
                known[node] = found
    return substitute(sink, known) if known else sink


def _expanded(total: Node) -> Node | None:
    """A sum with the zero point of one factor outside, then that of the other."""
    product = total.src[0]
    for factor, other in (product.src, product.src[::-1]):
        base, zero = _without_zero(factor)
        with choosing():  # whether it pays
            few = elements(product.shape) // max(1, own_elements(other)) < LIMITS.zero_rows
        if base is None or zero is None or few or not _is_bytes(other):
            continue
        summed = other.src[0] if other.op is EXPAND else other
        if any(summed.shape[axis] != product.shape[axis] for axis in total.arg[1]):
            continue
        first = make(REDUCE, total.dtype, (make(MUL, total.dtype, (base, other)),), total.arg)
        rest = expand(make(REDUCE, total.dtype, (summed,), total.arg), total.shape)
        times = make(MUL, total.dtype, (_spread(zero, total), rest))
        return make(SUB, total.dtype, (_expanded(first) or first, times))
    return None


def _without_zero(factor: Node) -> tuple[Node | None, Node | None]:
    """A moved value without the one number that is taken from its bytes, and that number."""
    if factor.op in _MOVES:
        base, zero = _without_zero(factor.src[0])
        moved = base and make(factor.op, factor.dtype, (base, *factor.src[1:]), factor.arg)
        return moved, zero
    if factor.op is not SUB or factor.src[0].op is not CAST or factor.src[0].src[0].dtype.bits != 8:
        return None, None
    zero = factor.src[1]
    while zero.op is EXPAND:
        zero = zero.src[0]
    return (factor.src[0], zero) if zero.op is CONST or elements(zero.shape) == 1 else (None, None)


def _spread(zero: Node, total: Node) -> Node:
    """One number in the shape of a sum."""
    if zero.op is CONST:
        return constant_like(zero.value, total)
    return expand(reshape(zero, (1,) * len(total.shape)), total.shape)


def _is_bytes(factor: Node) -> bool:
    """True if a factor is moved bytes, perhaps around a zero."""
    while factor.op in _MOVES:
        factor = factor.src[0]
    factor = factor.src[0] if factor.op is SUB else factor
    return factor.op is CAST and factor.src[0].dtype.bits == 8
