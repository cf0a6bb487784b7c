"""REBASE: how a value in a fold changes when the running values it is built on move.

In: nodes of a body, the streamed axes K, the folds over K (the bases). Out: for a value its factor
(`rho`: new = rho * old) or its shift (`delta`: new = delta + old) as nodes that are free of K. A
base's old value is a placeholder (`old_of`), its new value is the fold itself. Any value free of K
shifts by new - old, whatever it is computed from. A factor new / old is not used: where old is 0
nothing of the past would be left to scale; what could need one is pulled out of sums instead.
An extreme that was still at its identity means that all so far was -inf (+inf): what is scaled by
an exponential of it then counts for nothing (`lost`), if the exponent contains that very value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from ...core.dtype import bool_, decode
from ...core.node import Node, constant, make
from ...core.ops.elementwise import (
    ADD,
    AND,
    CAST,
    DIV,
    EQ,
    EXP,
    EXP2,
    LOG,
    LOG2,
    LT,
    MAX,
    MIN,
    MUL,
    NE,
    NEG,
    SUB,
    WHERE,
)
from ...core.ops.index import FOLD, LOAD
from ...core.ops.leaf import CONST
from ...graph.ir.affine import ZERO
from ...graph.ir.queries import nearest

_EXTREMES = {"max": -inf, "min": inf}


@dataclass(frozen=True)
class Factor:
    """A change by a factor; `value` None is 1; `lost` conditions under which the past is 0."""

    value: Node | None = None
    lost: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Shift:
    """A change by a summand; `value` None is 0."""

    value: Node | None = None


@dataclass(frozen=True)
class _Summand:
    """A summand of an exponent: its sign, and what it is multiplied or divided by."""

    value: Node
    sign: int
    scale: tuple[tuple[str, Node], ...]


def placeholder(fold: Node, number: int) -> Node:
    """What stands for a fold's value before a block."""
    return make(LOAD, fold.dtype, (), (-1 - number, ZERO, ()))


class Rebase:
    """The analysis for one group of folds."""

    def __init__(
        self,
        streamed: frozenset[int],
        free: Mapping[Node, frozenset[int]],
        old: Mapping[Node, Node],
    ) -> None:
        self.streamed, self.free, self.old = streamed, free, old  # old: fold -> its placeholder
        self._moves: dict[Node, bool] = {}
        self._old: dict[Node, Node] = dict(old)

    # --- what moves ------------------------------------------------------------------------------

    def moves(self, node: Node) -> bool:
        """Does a value depend on a base?"""
        stack = [node]
        while stack:
            top = stack[-1]
            if top in self._moves:
                stack.pop()
                continue
            if top in self.old:
                self._moves[top] = True
                continue
            missing = [s for s in top.src if s not in self._moves]
            if missing:
                stack.extend(missing)
            else:
                self._moves[top] = any(self._moves[s] for s in top.src)
        return self._moves[node]

    def is_fixed(self, node: Node) -> bool:
        """Is it the same for all elements of the streamed axes?"""
        return not self.free[node] & self.streamed

    def before(self, node: Node) -> Node:
        """A value free of the streamed axes, computed from the bases' old values."""
        stack = [node]
        while stack:
            top = stack[-1]
            if top in self._old or not self.moves(top):
                self._old.setdefault(top, top)
                stack.pop()
                continue
            missing = [s for s in top.src if s not in self._old]
            if missing:
                stack.extend(missing)
            else:
                self._old[top] = make(
                    top.op, top.dtype, tuple([self._old[s] for s in top.src]), top.arg
                )
        return self._old[node]

    def bases(self, node: Node) -> list[Node]:
        """The bases that a value depends on directly, without those that they depend on."""
        return sorted(nearest(node, self.old.__contains__), key=lambda n: n.id)

    # --- factors and shifts ----------------------------------------------------------------------

    def rho(self, node: Node) -> Factor | None:
        """How a value scales, or None."""
        if not self.moves(node):
            return Factor()
        if node in self.old:
            return None
        op, src = node.op, node.src
        if op in (EXP, EXP2):
            shift = self.delta(src[0])
            lost = self.lost(src[0])
            if shift is None or lost is None or not self.is_bounded(src[0]):
                return None
            if shift.value is None:
                return Factor()
            return Factor(make(op, node.dtype, (shift.value,)), lost)
        if op in (MUL, DIV):
            parts = [self.rho(s) for s in src]
            if parts[0] is None or parts[1] is None or (op is DIV and parts[1].lost):
                return None
            return self._times(parts[0], parts[1], op)
        if op is NEG:
            return self.rho(src[0])
        if op is CAST and node.dtype is src[0].dtype:
            return self.rho(src[0])
        if op is WHERE and not self.moves(src[0]):
            a, b = (None if _is(s, 0.0) else self.rho(s) for s in src[1:])
            zero = [_is(s, 0.0) for s in src[1:]]
            if zero[0] or zero[1]:  # 0 scales by anything
                return b if zero[0] else a
            return a if a is not None and a == b else None
        if op is FOLD and node.arg[0] == "add":
            return self._kept(self.rho(src[0]), frozenset(node.arg[1]))
        return None

    def _kept(self, found: Factor | None, axes: frozenset[int]) -> Factor | None:
        """A factor that a sum over some axes can be scaled by."""
        parts = [] if found is None else [n for n in (found.value, *found.lost) if n is not None]
        return None if any(self._axes(n) & axes for n in parts) else found

    def _axes(self, node: Node) -> frozenset[int]:
        """The axes of a node that was made here."""
        known = self.free.get(node)
        if known is not None:
            return known
        return frozenset[int]().union(*[self._axes(s) for s in node.src])

    def _times(self, a: Factor, b: Factor, op: object) -> Factor:
        lost = tuple(dict.fromkeys((*a.lost, *b.lost)))
        if b.value is None:
            return Factor(a.value, lost)
        dtype = b.value.dtype
        if op is DIV:
            above = constant(1, dtype) if a.value is None else a.value
            return Factor(make(DIV, dtype, (above, b.value)), lost)
        if a.value is None:
            return Factor(b.value, lost)
        return Factor(make(MUL, dtype, (a.value, b.value)), lost)

    def delta(self, node: Node) -> Shift | None:
        """How a value shifts, or None."""
        if not self.moves(node):
            return Shift()
        if self.is_fixed(node):
            before = self.before(node)
            same = make(EQ, bool_, (node, before))
            moved = make(SUB, node.dtype, (node, before))
            return Shift(make(WHERE, node.dtype, (same, constant(0, node.dtype), moved)))
        op, src = node.op, node.src
        if op in (ADD, SUB):
            a, b = self.delta(src[0]), self.delta(src[1])
            if a is None or b is None or b.value is None:
                return a if b is not None else None
            if a.value is None:
                return Shift(b.value if op is ADD else make(NEG, node.dtype, (b.value,)))
            return Shift(make(op, node.dtype, (a.value, b.value)))
        if op is NEG:
            a = self.delta(src[0])
            return a and Shift(None if a.value is None else make(NEG, node.dtype, (a.value,)))
        if op in (MUL, DIV):
            return self._scaled(node)
        if op is LOG or op is LOG2:
            found = self.rho(src[0])
            if found is None or found.lost:
                return None
            return Shift(None if found.value is None else make(op, node.dtype, (found.value,)))
        if op is WHERE and not self.moves(src[0]):
            # what is infinite stays so whatever is added
            rest = [s for s in src[1:] if not _is(s, -inf) and not _is(s, inf)]
            shifts = [self.delta(s) for s in rest]
            return shifts[0] if shifts and all(s == shifts[0] for s in shifts) else None
        return None

    def _scaled(self, node: Node) -> Shift | None:
        """c * a and a / c, where c neither moves nor has streamed axes."""
        a, c = node.src
        if node.op is MUL and not self.moves(a):
            a, c = c, a
        if self.moves(c) or not self.is_fixed(c):
            return None
        shift = self.delta(a)
        if shift is None or shift.value is None:
            return shift
        return Shift(make(node.op, node.dtype, (shift.value, c)))

    # --- what stays in range ---------------------------------------------------------------------

    def is_bounded(self, exponent: Node) -> bool:
        """Is an exponential in range for every prefix if it is at the end?

        It is if all in it that moves or has streamed axes is a value less its own extreme, or less
        the logarithm of a sum that is 1 or more: then a prefix gives 1 at most. Else a prefix may
        be infinite where the end is not, and no factor takes that back.
        """
        bases = self.bases(exponent)
        extremes = {b.src[0]: b for b in bases if b.arg[0] in _EXTREMES}
        found: list[_Summand] = []
        self._summands(exponent, _Summand(exponent, 1, ()), frozenset(extremes), found)
        left = []
        for s in found:
            base = extremes.get(s.value)
            if base is None:
                left.append(s)
                continue
            own = [o.value for o in found if o.sign == -s.sign and o.scale == s.scale]
            rises = (s.sign > 0) == (base.arg[0] == "max")
            if not rises or not any(_reaches(o, base) for o in own):
                return False
        for s in left:
            fine = self.is_fixed(s.value)
            if fine and self.moves(s.value):
                fine = any(_reaches(s.value, b) for b in extremes.values()) or (
                    s.sign < 0 and s.value.op in (LOG, LOG2) and self.is_logarithm_safe(s.value)
                )
            if not fine:
                return False
        return True

    def is_logarithm_safe(self, node: Node) -> bool:
        """Is it a logarithm of sums that no prefix leaves at 0?"""
        return all(self.is_positive(b) for b in self.bases(node))

    def is_positive(self, base: Node) -> bool:
        """Is a sum above 0 on every prefix: a count, or powers that are 1 at an extreme?"""
        body = base.src[0]
        if base.arg[0] != "add" or body.op is CONST:
            return base.arg[0] == "add" and not _is(body, 0.0)
        below = self.bases(body)
        measured = any(b.arg[0] in _EXTREMES for b in below)
        return body.op in (EXP, EXP2) and measured and self.is_bounded(body.src[0])

    def _summands(
        self, node: Node, as_part: _Summand, whole: frozenset[Node], found: list[_Summand]
    ) -> None:
        """What an exponent is a sum of; values in `whole` are not taken apart."""
        op, src, sign, scale = node.op, node.src, as_part.sign, as_part.scale
        parts: list[tuple[Node, int, tuple[tuple[str, Node], ...]]] = []
        if node in whole or node in self.old:
            pass
        elif op in (ADD, SUB):
            parts = [(src[0], sign, scale), (src[1], -sign if op is SUB else sign, scale)]
        elif op is NEG:
            parts = [(src[0], -sign, scale)]
        elif op is WHERE and not self.moves(src[0]):
            parts = [(s, sign, scale) for s in src[1:] if not _is(s, -inf if sign > 0 else inf)]
            parts = parts if len(parts) == 1 else []
        elif op in (MUL, DIV):
            for a, c in (src, src[::-1]) if op is MUL else (src,):
                if self.is_fixed(c) and not self.moves(c) and not parts:
                    parts = [(a, sign, (*scale, (op.name, c)))]
        for value, s, by in parts:
            self._summands(value, _Summand(value, s, by), whole, found)
        if not parts:
            found.append(as_part)

    # --- what counts for nothing -----------------------------------------------------------------

    def lost(self, exponent: Node) -> tuple[Node, ...] | None:
        """When the past counts for nothing: a base it is measured from was at its identity.

        None if the exponent is measured from an extreme of something else: then nothing is known.
        """
        found = []
        for base in self.bases(exponent):
            if base.arg[0] not in _EXTREMES:
                continue
            first = _EXTREMES[base.arg[0]]
            signs = _occurs(exponent, base.src[0], 1 if first < 0 else -1)
            if signs is None:
                return None
            start = constant(first, base.dtype)
            was = make(EQ, bool_, (self.old[base], start))
            now = make(NE, bool_, (base, start))
            holds = make(AND, bool_, (was, now))
            for sign in signs:
                if not self.is_fixed(sign) or self.moves(sign):
                    return None
                above = make(LT, bool_, (constant(0, sign.dtype), sign))
                holds = make(AND, bool_, (holds, above))
            found.append(holds)
        return tuple(found)


def _reaches(node: Node, base: Node) -> bool:
    """Is it an extreme, or what lies beyond it, or a constant instead of one that is infinite?"""
    if node is base:
        return True
    if node.op is WHERE:
        return any(_reaches(a, base) and b.op is CONST for a, b in (node.src[1:], node.src[:0:-1]))
    beyond = MAX if base.arg[0] == "max" else MIN
    return node.op is beyond and any(_reaches(s, base) for s in node.src)


def _is(node: Node, number: float) -> bool:
    """Is it this constant? (The scalars of kernels are memory, and are not known here.)"""
    return node.op is CONST and node.dtype.kind == "f" and decode(node.arg[0], node.dtype) == number


def _occurs(node: Node, wanted: Node, sign: int) -> tuple[Node, ...] | None:
    """How `wanted` is a summand of a value with a sign: factors that must be above 0, or None."""
    if node is wanted:
        return () if sign > 0 else None
    op, src = node.op, node.src
    if op in (ADD, SUB):
        for place, source in enumerate(src):
            found = _occurs(source, wanted, -sign if op is SUB and place else sign)
            if found is not None:
                return found
    elif op is NEG:
        return _occurs(src[0], wanted, -sign)
    elif op in (MUL, DIV):
        for a, c in (src, src[::-1]) if op is MUL else (src,):
            found = _occurs(a, wanted, sign)
            if found is not None:
                return (*found, c)
    elif op is WHERE:
        for a, other in (src[1:], src[:0:-1]):
            if _is(other, -inf if sign > 0 else inf):
                return _occurs(a, wanted, sign)
    return None


def product_of(factors: Sequence[Node]) -> Node | None:
    """A product of nodes, None for none."""
    value: Node | None = None
    for factor in factors:
        value = factor if value is None else make(MUL, factor.dtype, (value, factor))
    return value
