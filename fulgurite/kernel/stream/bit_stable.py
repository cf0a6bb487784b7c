"""Bit-stable values: operands of comparisons and of exp, which laws must leave as they are written.

In: the values of stores, and the axes that are streamed. Out: what stands for such values. Which
element is the largest of its row is asked by comparing each with what another kernel has stored: a
factor that one of them pulls out of a product rounds otherwise, and then none is the largest. So
products that are compared, and those of which an extreme is stored, stay as they are. So do those
that powers and other functions are taken of: two kernels of a gradient do so, and what one rounds
otherwise does not cancel. As kernels of other kinds sum in orders of their own, none is compared
with what another kernel made of it (`compares_across_kernels`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.node import Node, make, toposort
from ...core.ops.elementwise import CAST, EQ, LE, LT, NE, NEG, SUB
from ...core.ops.index import FOLD, LOAD
from ...core.ops.leaf import CONST
from ...graph.ir.sum_product import signed, summands
from .transposed import outermost_folds

_FIRST_PARAM = 1 << 20  # params that no kernel has


def bit_stable(
    values: Sequence[Node], axes: tuple[int, ...], free: Mapping[Node, frozenset[int]]
) -> dict[Node, Node]:
    """What takes the place of values that laws must leave alone."""
    found: dict[Node, Node] = {}
    sides = [s for sides in _comparisons(values) for s in sides]
    for value in values:
        sides += [f.src[0] for f in outermost_folds(value) if f is value and f.arg[0] != "add"]
    curved = [term for n in toposort(values) if _is_curved(n) for term in _terms(n.src[0])]
    for side in dict.fromkeys([*sides, *curved]):  # each has a number of its own
        if _is_product(side, axes) or (side in sides and _is_plain(side)):
            place = 0, tuple([(axis, 1) for axis in sorted(free[side])])
            found[side] = make(LOAD, side.dtype, (), (_FIRST_PARAM + len(found), place, ()))
    return found


def compares_across_kernels(
    values: Sequence[Node], axes: tuple[int, ...], free: Mapping[Node, frozenset[int]]
) -> bool:
    """True if a product is compared with what another kernel made, but for one number for all."""
    for sides in _comparisons(values):
        for side, other in (sides, sides[::-1]):
            apart = free[other] and not any(n.op is FOLD for n in toposort([other]))
            if apart and _is_product(side, axes):
                return True
    return False


def _comparisons(values: Sequence[Node]) -> list[tuple[Node, ...]]:
    """The sides of all comparisons of numbers that are both computed."""
    found = [_sides(n) for n in toposort(values) if n.op in (EQ, NE, LE, LT)]
    return [s for s in found if s[0].dtype.kind == "f" and not any(n.op is CONST for n in s)]


def _sides(node: Node) -> tuple[Node, ...]:
    """What is compared: of a difference that is or is not a given number, what it is between."""
    difference = [n for n in node.src if n.op is SUB]
    if node.op in (EQ, NE) and difference and any(n.op is CONST for n in node.src):
        return difference[0].src
    return node.src


def _is_curved(node: Node) -> bool:
    """True if it is a function of one number that laws know nothing of."""
    return node.op.family == "elementwise" and len(node.src) == 1 and node.op not in (NEG, CAST)


def _terms(node: Node) -> list[Node]:
    """What a sum is made of."""
    found = summands(node, lambda s: [] if s.value.op is NEG else signed(s))
    return [s.value for s in found]


def _is_product(node: Node, axes: tuple[int, ...]) -> bool:
    """True if it is made of folds, none of them over the streamed axes."""
    folds = [n for n in toposort([node]) if n.op is FOLD]
    return bool(folds) and all(f.arg[1] != axes for f in folds)


def _is_plain(node: Node) -> bool:
    """True if it is made from memory, without folds: products of three may be in any order."""
    return bool(node.src) and not any(n.op is FOLD for n in toposort([node]))
