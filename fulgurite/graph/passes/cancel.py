"""Symbolic cancellation of adjoint terms, as that of the largest score in a shifted softmax.

In: a graph. Out: one with the same values, without summands that are 0 whatever the numbers are.
Weights that are measured from the largest of their row do not depend on which value that was; the
adjoint of that largest one is a sum that cancels, and the pass over a matrix which finds out where
it goes adds nothing but rounding. A summand whose polynomial (`ir/sum_product.py`) has no term left
is 0, and NaN or infinity in it is in what it is added to as well. Floats are added in another order
for that, so `exact` leaves it out.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.node import Node, make
from ...core.op import Op
from ...core.ops.elementwise import ADD, EQ, EXP, EXP2, MAX, MUL, NEG, SUB, WHERE
from ...core.ops.leaf import CONST
from ...core.ops.movement import EXPAND
from ...core.rewriting.substitute import substitute
from ...core.symbolic.sym import choosing
from ..ir.limits import LIMITS
from ..ir.queries import elements, is_contraction, walk
from ..ir.sum_product import OPENED, Expansion


def cancel(sink: Node, order: Sequence[Node]) -> Node:
    """The graph without summands that are 0."""
    known: dict[Node, Node] = {}
    deep = Expansion(LIMITS.expanded_ops, lambda sum_: True)
    near = Expansion(LIMITS.expanded_ops_near, lambda sum_: not is_contraction(sum_))
    for node in order:
        if node.op not in (ADD, SUB) or node.dtype.kind != "f":
            continue
        for summand, other in (node.src, node.src[::-1]):
            if _is_cancelled(summand, other, deep, near):
                less = node.op is SUB and summand is node.src[0]
                known[node] = make(NEG, node.dtype, (other,)) if less else other
                break
    return substitute(sink, known) if known else sink


def _is_cancelled(summand: Node, other: Node, deep: Expansion, near: Expansion) -> bool:
    """True if a summand is 0, or NaN where what it is added to is NaN."""
    if summand.op is MUL and any(map(_is_mask, summand.src)):
        rows = next((s for s in summand.src if _is_zero_row(s, deep)), None)
        zero = rows is not None and not _is_short(rows)
    elif _is_tie(summand):
        rows, zero = summand, not deep.polynomial(summand)
    else:
        rows, zero = summand, _is_zero_row(summand, near) and _has_weights(summand)
    return rows is not None and zero and _read_by(rows, True) <= _read_by(other)


def _is_zero_row(rows: Node, expansion: Expansion) -> bool:
    """True if it is a value of each row, and 0."""
    narrow = rows.op is EXPAND and elements(rows.src[0].shape) < elements(rows.shape)
    return narrow and not expansion.over_common_denominator(expansion.polynomial(rows))


def _is_short(rows: Node) -> bool:
    """True if rows are so short that what is left of their sum mends more than a pass costs."""
    with choosing():
        return elements(rows.shape) <= LIMITS.short_row_elements * elements(rows.src[0].shape)


def _is_mask(node: Node) -> bool:
    """True if it is one of two numbers."""
    return node.op is WHERE and all(s.op is CONST for s in node.src[1:])


def _is_tie(node: Node) -> bool:
    """True if it is chosen where two floats are equal, as the adjoint of an extreme of two is."""
    condition = node.src[0] if node.op is WHERE else node
    return condition.op is EQ and condition.src[0].dtype.kind == "f" and not _is_mask(node)


def _has_weights(rows: Node) -> bool:
    """True if a sum is one of powers; what is left of other numbers mends their rounding.

    The mean of x - mean(x) is 0, but that of rounded numbers is what their mean was off by.
    """
    return any(n.op in (EXP, EXP2) for n in _below(rows, OPENED))


def _read_by(value: Node, either: bool = False) -> set[Node]:
    """What a value is made of: NaN and infinity there make it NaN, and so what it is added to.

    `either`: what might make it NaN, which of a choice either side does.
    """
    opened = (*OPENED, MAX, WHERE) if either else (*OPENED, MAX)
    made = [n for n in _below(value, opened) if n.op not in (*opened, CONST)]
    return {n for n in made if n.dtype.kind == "f" and not _is_mask(n)}  # others are finite


def _below(value: Node, opened: Sequence[Op]) -> set[Node]:
    """What a value is made of through some ops; conditions are not values."""

    def sources(node: Node) -> tuple[Node, ...]:
        if node.op not in opened:
            return ()
        return node.src[1:] if node.op is WHERE else node.src

    return set(walk([value], sources))
