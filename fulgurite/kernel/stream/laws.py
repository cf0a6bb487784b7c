"""The laws of folds over flat products, as data: left side, right side, what its variables may be.

All of them reassociate, so they hold for floats up to rounding, and on every prefix of a folded
axis: in a pass over blocks, folds so far stand for whole ones. What is finite on the left is the
same on the right. A fold on the right runs over the axes of the one on the left. `kernel/stream/
rules.py` reads them left to right over the terms of an e-graph; tests/kernel/stream/test_laws.py
evaluates both sides on hostile numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from ...core.lazy_dataclass import dataclass
from ...core.op import Op
from ...core.operators import Operators
from ...core.ops.elementwise import EXP, EXP2, WHERE
from ...core.ops.index import FOLD
from .terms import INVERSE, PRODUCT, Terms

# (terms, class, folded axes) -> may a variable stand for the class?
Accepts: TypeAlias = Callable[[Terms, int, frozenset[int]], bool]


def anything(terms: Terms, number: int, along: frozenset[int]) -> bool:
    """True of every class."""
    return True


def invariant(terms: Terms, number: int, along: frozenset[int]) -> bool:
    """True if a class is the same all along the folded axes."""
    return not terms.axes(number) & along


def varying(terms: Terms, number: int, along: frozenset[int]) -> bool:
    """True if a class may change along the folded axes."""
    return not invariant(terms, number, along)


def positive(terms: Terms, number: int, along: frozenset[int]) -> bool:
    """True if a class is invariant and above 0 wherever it is a number."""
    return invariant(terms, number, along) and terms.is_positive(number)


@dataclass(frozen=True, eq=False, slots=True)
class Pattern(Operators):
    """A term: an op on patterns, a number, or a variable."""

    op: str = ""  # that of a node, PRODUCT or INVERSE; none: a variable or a number
    src: tuple[Pattern, ...] = ()
    fold: str = ""  # of a fold: add, max or min
    number: float | None = None
    name: str = ""
    accepts: Accepts = anything
    many: bool = False  # a variable for all factors of a product that it accepts
    least: int = 1  # of them
    folded: bool = False  # has one of them at least a fold in it?

    def _apply(self, op: Op, operands: tuple[Any, ...]) -> Pattern:
        return Pattern(op.name, tuple([_lift(x) for x in operands]))


def _lift(x: Pattern | float) -> Pattern:
    return x if isinstance(x, Pattern) else Pattern(number=x)


def value(name: str, accepts: Accepts = anything) -> Pattern:
    """A variable for one class."""
    return Pattern(name=name, accepts=accepts)


def factors(
    name: str, accepts: Accepts = anything, least: int = 1, folded: bool = False
) -> Pattern:
    """A variable for the factors that earlier ones of the product have left, if it accepts them."""
    return Pattern(name=name, accepts=accepts, many=True, least=least, folded=folded)


def product(*parts: Pattern) -> Pattern:
    """A flat product."""
    return Pattern(PRODUCT, parts)


def where(condition: Pattern, a: Pattern | float, b: Pattern | float) -> Pattern:
    """A choice."""
    return Pattern(WHERE.name, (condition, _lift(a), _lift(b)))


def fold(name: str, body: Pattern) -> Pattern:
    """A fold over the axes that the law is about."""
    return Pattern(FOLD.name, (body,), name)


class Law(NamedTuple):
    """`left == right` of floats, on every prefix of the folded axes."""

    name: str
    left: Pattern
    right: Pattern


LAWS: list[Law] = []


def law(name: str, left: Pattern, right: Pattern) -> None:
    """Enter a law."""
    LAWS.append(Law(name, left, right))


a, b = value("a"), value("b")
c, v = value("c", invariant), value("v", varying)
cs, ps = factors("cs", invariant), factors("ps", positive)
fs = factors("fs", invariant, folded=True)
ys, zs = factors("ys"), factors("zs", least=0)
F, FY, Y = product(fs), product(fs, ys), product(ys)


# --- one form of products ------------------------------------------------------------------------

law("product-mul", a * b, product(a, b))
law("product-div", a / b, product(a, Pattern(INVERSE, (b,))))
law("product-product", product(Y, zs), product(ys, zs))
law("product-neg", product(-a, zs), -product(a, zs))

# --- sums ----------------------------------------------------------------------------------------


def total(*parts: Pattern) -> Pattern:
    """A sum of a product."""
    return fold("add", product(*parts))


law("sum-factor", total(cs, ys), product(cs, total(ys)))
law("sum-neg", fold("add", -a), -fold("add", a))

# A factor that was folded itself leaves a choice as well, but for where nothing is chosen: it may
# be no number there.
ANY, NOT_ALL = (fold("max", where(v, *marks)) > 0 for marks in ((1, 0), (0, 1)))
law("where", total(where(v, FY, 0), zs), product(where(ANY, F, 1), total(where(v, Y, 0), zs)))
law("else", total(where(v, 0, FY), zs), product(where(NOT_ALL, F, 1), total(where(v, 0, Y), zs)))
law("row-where", total(where(c, FY, 0), zs), product(where(c, F, 1), total(where(c, Y, 0), zs)))
law("row-else", total(where(c, 0, FY), zs), product(where(c, 1, F), total(where(c, 0, Y), zs)))

# --- extremes, which rise with what they are taken of --------------------------------------------

for most in ("max", "min"):
    for power in (EXP.name, EXP2.name):
        law(f"{most}-{power}", fold(most, Pattern(power, (a,))), Pattern(power, (fold(most, a),)))
    law(f"{most}-factor", fold(most, product(ps, ys)), product(ps, fold(most, Y)))
    law(f"{most}-add", fold(most, a + c), fold(most, a) + c)
    law(f"{most}-add-first", fold(most, c + v), c + fold(most, v))
    law(f"{most}-sub", fold(most, a - c), fold(most, a) - c)
