"""Online correction: how a value in a fold changes when the running values it is built on move.

In: nodes of a body, the streamed axes K, the folds over K (the bases). Out: for a value its factor
(`rescale`: new = factor * old) or its shift (`shift`: new = old + shift) as nodes that are free of
K, as in online normalizers (Milakov and Gimelshein, 2018). A base's old value is a placeholder, its
new value is the fold itself. Any value free of K shifts by new - old, whatever it is computed from.
A factor new / old is not used: where old is 0 nothing of the past would be left to scale; what
could need one is pulled out of sums instead. An extreme that was still at its identity means that
all so far was -inf (+inf): what is scaled by an exponential of it then counts for nothing (`lost`),
if the exponent contains that very value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf

from ...core.dtype import bool_
from ...core.lazy_dataclass import dataclass
from ...core.node import Node, constant, make
from ...core.op import Op
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
from ...graph.ir.bodies import replaced
from ...graph.ir.queries import nearest
from ...graph.ir.sum_product import Summand, is_number, signed, summands

_EXTREMES = {"max": -inf, "min": inf}


@dataclass(frozen=True)
class Rescale:
    """A change by a factor; `value` None is 1; `lost` conditions under which the past is 0."""

    value: Node | None = None
    lost: tuple[Node, ...] = ()

    def times(self, other: Rescale, op: Op = MUL) -> Rescale:
        """Both changes, the other one inverted if `op` is DIV."""
        value, lost = self.value, tuple(dict.fromkeys((*self.lost, *other.lost)))
        if other.value is not None and value is None and op is MUL:
            value = other.value
        elif other.value is not None:
            above = constant(1, other.value.dtype) if value is None else value
            value = make(op, above.dtype, (above, other.value))
        return Rescale(value, lost)


class _NoCorrection(Exception):
    """A value changes neither by a factor nor by a shift that is known."""


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

    # --- what moves ------------------------------------------------------------------------------

    def moves(self, node: Node) -> bool:
        """True if a value depends on a base."""
        if node not in self._moves:
            self._moves[node] = bool(nearest(node, self.old.__contains__))
        return self._moves[node]

    def is_fixed(self, node: Node) -> bool:
        """True if it is the same for all elements of the streamed axes."""
        return not self.free[node] & self.streamed

    def before(self, node: Node) -> Node:
        """A value free of the streamed axes, computed from the bases' old values."""
        return replaced([node], self.old)[0]

    def bases(self, node: Node) -> list[Node]:
        """The bases that a value depends on directly, without those that they depend on."""
        return sorted(nearest(node, self.old.__contains__), key=lambda n: n.id)

    # --- factors ---------------------------------------------------------------------------------

    def rescale(self, node: Node) -> Rescale | None:
        """The factor that a value changes by, or None."""
        try:
            return self._rescale(node)
        except _NoCorrection:
            return None

    def _rescale(self, node: Node) -> Rescale:
        if not self.moves(node):
            return Rescale()
        rule = _RESCALE.get(node.op)
        if rule is None or node in self.old:
            raise _NoCorrection
        return rule(self, node)

    def _rescale_power(self, node: Node) -> Rescale:
        shift, lost = self._shift(node.src[0]), self.lost(node.src[0])
        if lost is None or not self.is_bounded(node.src[0]):
            raise _NoCorrection
        return Rescale() if shift is None else Rescale(make(node.op, node.dtype, (shift,)), lost)

    def _rescale_product(self, node: Node) -> Rescale:
        above, below = [self._rescale(s) for s in node.src]
        if node.op is DIV and below.lost:
            raise _NoCorrection
        return above.times(below, node.op)

    def _rescale_source(self, node: Node) -> Rescale:
        if node.op is CAST and node.dtype is not node.src[0].dtype:
            raise _NoCorrection
        return self._rescale(node.src[0])

    def _rescale_choice(self, node: Node) -> Rescale:
        """Both sides by one factor; 0 scales by anything."""
        found = [self._rescale(s) for s in node.src[1:] if not is_number(s, 0.0)]
        if self.moves(node.src[0]) or not found or any(f != found[0] for f in found):
            raise _NoCorrection
        return found[0]

    def _rescale_sum(self, node: Node) -> Rescale:
        found, axes = self._rescale(node.src[0]), frozenset(node.arg[1])
        parts = [part for part in (found.value, *found.lost) if part is not None]
        if node.arg[0] != "add" or any(self._axes(part) & axes for part in parts):
            raise _NoCorrection
        return found

    def _axes(self, node: Node) -> frozenset[int]:
        """The axes of a node that was made here."""
        known = self.free.get(node)
        if known is not None:
            return known
        return frozenset[int]().union(*[self._axes(s) for s in node.src])

    # --- shifts: None is 0 -----------------------------------------------------------------------

    def shift(self, node: Node) -> Node | None:
        """The summand that a value changes by, if it moves and there is one."""
        try:
            return self._shift(node)
        except _NoCorrection:
            return None

    def _shift(self, node: Node) -> Node | None:
        if not self.moves(node):
            return None
        if self.is_fixed(node):
            before = self.before(node)
            same = make(EQ, bool_, (node, before))
            moved = make(SUB, node.dtype, (node, before))
            return make(WHERE, node.dtype, (same, constant(0, node.dtype), moved))
        rule = _SHIFT.get(node.op)
        if rule is None:
            raise _NoCorrection
        return rule(self, node)

    def _shift_sum(self, node: Node) -> Node | None:
        a, b = [self._shift(s) for s in node.src]
        if b is None:
            return a
        if a is None:
            return b if node.op is ADD else make(NEG, node.dtype, (b,))
        return make(node.op, node.dtype, (a, b))

    def _shift_negative(self, node: Node) -> Node | None:
        found = self._shift(node.src[0])
        return None if found is None else make(NEG, node.dtype, (found,))

    def _shift_scaled(self, node: Node) -> Node | None:
        """c * a and a / c, where c neither moves nor has streamed axes."""
        a, c = node.src
        if node.op is MUL and not self.moves(a):
            a, c = c, a
        if not self._is_scale(c):
            raise _NoCorrection
        found = self._shift(a)
        return None if found is None else make(node.op, node.dtype, (found, c))

    def _shift_logarithm(self, node: Node) -> Node | None:
        found = self._rescale(node.src[0])
        if found.lost:
            raise _NoCorrection
        return None if found.value is None else make(node.op, node.dtype, (found.value,))

    def _shift_choice(self, node: Node) -> Node | None:
        """Both sides by one shift; what is infinite stays so whatever is added."""
        rest = [s for s in node.src[1:] if not is_number(s, -inf) and not is_number(s, inf)]
        found = [self._shift(s) for s in rest]
        if self.moves(node.src[0]) or not found or any(f is not found[0] for f in found):
            raise _NoCorrection
        return found[0]

    def _is_scale(self, node: Node) -> bool:
        """True if it neither moves nor has streamed axes."""
        return self.is_fixed(node) and not self.moves(node)

    # --- what stays in range ---------------------------------------------------------------------

    def is_bounded(self, exponent: Node) -> bool:
        """True if an exponential is in range for every prefix if it is at the end.

        It is if all in it that moves or has streamed axes is a value less its own extreme, or less
        the logarithm of a sum that is 1 or more: then a prefix gives 1 at most. Else a prefix may
        be infinite where the end is not, and no factor takes that back.
        """
        extremes = {b.src[0]: b for b in self.bases(exponent) if b.arg[0] in _EXTREMES}
        found = self.exponent_terms(exponent, extremes)
        return all(
            _is_below_extreme(s, found, extremes[s.value])
            if s.value in extremes
            else self._is_settled(s, extremes.values())
            for s in found
        )

    def _is_settled(self, s: Summand, extremes: Iterable[Node]) -> bool:
        """True if a summand has no streamed axes, and moves as an extreme or a safe logarithm."""
        if not self.is_fixed(s.value) or not self.moves(s.value):
            return self.is_fixed(s.value)
        logarithm = s.sign < 0 and s.value.op in (LOG, LOG2) and self.is_logarithm_safe(s.value)
        return logarithm or any(_reaches(s.value, base) for base in extremes)

    def is_logarithm_safe(self, node: Node) -> bool:
        """True if it is a logarithm of sums that no prefix leaves at 0."""
        return all(self.is_positive(b) for b in self.bases(node))

    def is_positive(self, base: Node) -> bool:
        """True if a sum is above 0 on every prefix: a count, or powers that are 1 at an extreme."""
        body = base.src[0]
        if base.arg[0] != "add" or body.op is CONST:
            return base.arg[0] == "add" and not is_number(body, 0.0)
        measured = any(b.arg[0] in _EXTREMES for b in self.bases(body))
        return body.op in (EXP, EXP2) and measured and self.is_bounded(body.src[0])

    def exponent_terms(self, exponent: Node, whole: Iterable[Node]) -> list[Summand]:
        """What an exponent is a sum of, scales aside; bases and `whole` values are not opened."""
        kept = frozenset(whole) | self.old.keys()

        def opened(s: Summand) -> list[Summand]:
            (value, sign, scale), op, src = s, s.value.op, s.value.src
            if value in kept:
                return []
            if op is WHERE and not self.moves(src[0]):
                infinite = -inf if sign > 0 else inf
                sides = [s._replace(value=v) for v in src[1:] if not is_number(v, infinite)]
                return sides if len(sides) == 1 else []
            if op in (MUL, DIV):
                orders = (src, src[::-1]) if op is MUL else (src,)
                by = [(a, c) for a, c in orders if self._is_scale(c)]
                return [Summand(a, sign, (*scale, (op, c))) for a, c in by[:1]]
            return signed(s)

        return summands(exponent, opened)

    # --- what counts for nothing -----------------------------------------------------------------

    def lost(self, exponent: Node) -> tuple[Node, ...] | None:
        """When the past counts for nothing: a base it is measured from was at its identity.

        None if the exponent is measured from an extreme of something else: then nothing is known.
        """
        found = []
        for base in self.bases(exponent):
            if base.arg[0] not in _EXTREMES:
                continue
            first, body = _EXTREMES[base.arg[0]], base.src[0]
            sign = 1 if first < 0 else -1
            own = [s for s in self.exponent_terms(exponent, [body]) if s[:2] == (body, sign)]
            if not own:
                return None
            start = constant(first, base.dtype)
            was = make(EQ, bool_, (self.old[base], start))
            holds = make(AND, bool_, (was, make(NE, bool_, (base, start))))
            for _, scale in reversed(own[0].scale):
                above = make(LT, bool_, (constant(0, scale.dtype), scale))
                holds = make(AND, bool_, (holds, above))
            found.append(holds)
        return tuple(found)


_RESCALE: Mapping[Op, Callable[[Rebase, Node], Rescale]] = {
    EXP: Rebase._rescale_power, EXP2: Rebase._rescale_power, MUL: Rebase._rescale_product,
    DIV: Rebase._rescale_product, NEG: Rebase._rescale_source, CAST: Rebase._rescale_source,
    WHERE: Rebase._rescale_choice, FOLD: Rebase._rescale_sum,
}  # fmt: skip
_SHIFT: Mapping[Op, Callable[[Rebase, Node], Node | None]] = {
    ADD: Rebase._shift_sum, SUB: Rebase._shift_sum, NEG: Rebase._shift_negative,
    MUL: Rebase._shift_scaled, DIV: Rebase._shift_scaled, LOG: Rebase._shift_logarithm,
    LOG2: Rebase._shift_logarithm, WHERE: Rebase._shift_choice,
}  # fmt: skip


def _is_below_extreme(s: Summand, found: list[Summand], base: Node) -> bool:
    """True if a summand is measured from its own extreme, in the direction that it is one."""
    own = [o.value for o in found if o.sign == -s.sign and o.scale == s.scale]
    rises = (s.sign > 0) == (base.arg[0] == "max")
    return rises and any(_reaches(o, base) for o in own)


def _reaches(node: Node, base: Node) -> bool:
    """True if it is an extreme, or what lies beyond it, or a constant where one is infinite."""
    if node is base:
        return True
    if node.op is WHERE:
        return any(_reaches(a, base) and b.op is CONST for a, b in (node.src[1:], node.src[:0:-1]))
    beyond = MAX if base.arg[0] == "max" else MIN
    return node.op is beyond and any(_reaches(s, base) for s in node.src)
