"""Bounded exp: powers of a value less the running maximum, which are never above 1.

In: the states of a streaming kernel, and a value. Out: which `exp` and `exp2` have such an
argument, and lines for them. Their results are at most 1, so nothing overflows and 2**n is one
step; those that would not be normal numbers are 0, as weights are anyway
(codegen/cpu/stream/block_update.py). That is two thirds of the instructions of a function that must
be right everywhere. NaN stays NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import nan

from ....core.dtype import decode, float32, float64
from ....core.node import Node
from ....core.ops.elementwise import DIV, EQ, EXP, EXP2, MAX, MUL, NE, SUB, WHERE
from ....core.ops.leaf import CONST
from ....kernel.stream.online import State
from ..llvm.emitter import Emitter, Val
from ..vecmath import tables as T
from ..vecmath.exponential import format_of, power_of_two, reduced
from ..vecmath.values import Num, fma, pick, polynomial, where

_LEAST = {  # arguments below it have results that are no normal numbers
    (EXP.name, float32): -87.0, (EXP2.name, float32): -125.5,
    (EXP.name, float64): -708.0, (EXP2.name, float64): -1021.5,
}  # fmt: skip


def bounded_exps(nodes: Iterable[Node], states: Sequence[State]) -> frozenset[Node]:
    """The powers among some nodes whose exponent is never above 0."""
    largest = {(s.body, s.fold) for s in states if s.op == "max"}
    return frozenset(
        [
            n for n in nodes
            if (n.op.name, n.dtype) in _LEAST and _never_above_zero(n.src[0], largest)
        ]
    )  # fmt: skip


def _never_above_zero(node: Node, largest: set[tuple[Node, Node]]) -> bool:
    """True if it is a value less their maximum, or a positive multiple of that."""
    while True:
        if node.op is MUL and _is_positive(node.src[0]):
            node = node.src[1]
        elif node.op in (MUL, DIV) and _is_positive(node.src[1]):
            node = node.src[0]
        else:
            return node.op is SUB and any(
                (node.src[0], n) in largest for n in _at_most(node.src[1])
            )


def _at_most(node: Node) -> tuple[Node, ...]:
    """What a base is never below: itself, the sides of a larger one, what a guard is about.

    A guard puts another number in the place of one it looks for. If the largest of some values is
    that one, none of them is above it, and none is above a number that is not below it.
    """
    if node.op is MAX:
        return (node, *node.src)
    if node.op is not WHERE or node.src[0].op not in (EQ, NE):
        return (node,)
    (left, right), (first, second) = node.src[0].src, node.src[1:]
    other, base = (first, second) if node.src[0].op is EQ else (second, first)
    looked_for = right if left is base else left
    guards = base in (left, right) and _number(looked_for) <= _number(other)
    return (node, base) if guards else (node,)


def _is_positive(node: Node) -> bool:
    return _number(node) > 0


def _number(node: Node) -> float:
    """A constant, or what compares with nothing."""
    if node.op is not CONST or node.dtype.kind != "f":
        return nan
    return float(decode(node.arg[0], node.dtype).real)


def emit_bounded_exp(e: Emitter, node: Node, value: Val) -> Val:
    """A power whose exponent is never above 0."""
    x = Num(e, value)
    form = format_of(x)
    if node.op is EXP:
        shifted, r, low = reduced(x, form.bias)
        if x.dtype is float32:
            found = fma(polynomial(r, T.EXP_32), r * r, r) + 1.0
        else:
            found = r + fma(polynomial(r, T.EXP_64), r * r, low) + 1.0
    else:
        shift = form.shift + form.bias
        shifted = x + shift
        r = x - (shifted - shift)
        found = fma(polynomial(r, pick(x, T.EXP2_32, T.EXP2_64)), r, 1.0)
    found = found * power_of_two(shifted, form.mantissa)
    return where(x < _LEAST[node.op.name, node.dtype], 0.0, found).val
