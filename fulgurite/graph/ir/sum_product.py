"""Sum-product normal form: Σ over named axes of Π factors^power, from nodes and to them.

In: values written with +, -, *, / and sums. Out: what they are sums and products of, whatever the
order they were written in. `factors` and `summands` take a value apart op by op, in graphs and in
the bodies of kernels; `product` and `total` put nodes together. `Expansion` writes a value of a
graph as a `Polynomial`: a monomial is a product of contractions with powers, a contraction a sum
over bound axes of a product of factors, and each factor knows which axis of the value its own axes
are. Σ_k c e = c Σ_k e where c has no k, and Σ_k Σ_d = Σ_d Σ_k; bound axes are named so that equal
contractions are equal (alpha-renaming), so terms cancel by comparing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import permutations
from math import prod
from typing import TypeAlias

from ...core.dtype import decode
from ...core.lazy_named_tuple import NamedTuple
from ...core.node import Node, Shape, constant, make
from ...core.op import Op
from ...core.ops.elementwise import ADD, CAST, DIV, MUL, NEG, SUB, WHERE
from ...core.ops.leaf import CONST
from ...core.ops.movement import EXPAND, PERMUTE, RESHAPE
from ...core.ops.reduce import REDUCE
from ...core.symbolic.sym import varies
from .limits import LIMITS

# --- products and sums of nodes ------------------------------------------------------------------


class Factor(NamedTuple):
    """A factor with its power: 1, or -1 of what is divided by."""

    value: Node
    power: int = 1


def factors(
    node: Node, opened: Sequence[Op] = (MUL,), whole: frozenset[Node] = frozenset()
) -> list[Factor]:
    """What a value is a product of, up to its sign; `whole` values are not looked into."""
    if node in whole or node.op not in opened:
        return [Factor(node)]
    found = factors(node.src[0], opened, whole)
    for source in node.src[1:]:
        power = -1 if node.op is DIV else 1
        found += [Factor(f.value, f.power * power) for f in factors(source, opened, whole)]
    return found


def is_negated(node: Node, whole: frozenset[Node] = frozenset()) -> bool:
    """True if the signs inside a product of MUL, DIV and NEG make a minus."""
    if node in whole or node.op not in (MUL, DIV, NEG):
        return False
    return (sum([is_negated(s, whole) for s in node.src]) + (node.op is NEG)) % 2 == 1


class Summand(NamedTuple):
    """A summand with its sign, and what it is multiplied or divided by from outside, in order."""

    value: Node
    sign: int = 1
    scale: tuple[tuple[Op, Node], ...] = ()


Opened: TypeAlias = Callable[[Summand], list[Summand]]


def signed(summand: Summand) -> list[Summand]:
    """What a sum, a difference or a negative is made of; nothing of other values."""
    (value, sign, scale), op = summand, summand.value.op
    if op is NEG:
        return [Summand(value.src[0], -sign, scale)]
    if op not in (ADD, SUB):
        return []
    return [
        Summand(value.src[0], sign, scale),
        Summand(value.src[1], -sign if op is SUB else sign, scale),
    ]


def summands(node: Node, opened: Opened = signed) -> list[Summand]:
    """What a value is a sum of; `opened` says what a summand is made of, if it is looked into."""
    found: list[Summand] = []
    stack = [Summand(node)]
    while stack:
        top = stack.pop()
        parts = opened(top)
        stack += reversed(parts)
        if not parts:
            found.append(top)
    return found


def product(values: Iterable[Node]) -> Node | None:
    """A product of nodes, first with second; None for none."""
    return _joined_by(MUL, values)


def total(values: Iterable[Node]) -> Node | None:
    """A sum of nodes, first with second; None for none."""
    return _joined_by(ADD, values)


def _joined_by(op: Op, values: Iterable[Node]) -> Node | None:
    found: Node | None = None
    for value in values:
        found = value if found is None else make(op, value.dtype, (found, value))
    return found


def without_factor(body: Node, factor: Node) -> Node | None:
    """A product of MUL and NEG without one of its factors; None if not even a sign is left."""
    if body is factor:
        return None
    if body.op is NEG:
        left = without_factor(body.src[0], factor)
        return make(NEG, body.dtype, (constant(1, body.dtype) if left is None else left,))
    first = [f.value for f in factors(body.src[0], (MUL, NEG))]
    place = 0 if factor in first else 1
    left, other = without_factor(body.src[place], factor), body.src[1 - place]
    return other if left is None else make(MUL, body.dtype, (left, other))


def replace_summands(node: Node, known: Mapping[Node, Node | None]) -> Node | None:
    """A sum with others in the place of some summands, or (None) without them."""
    if node in known or node.op not in (ADD, SUB, NEG):
        return known.get(node, node)
    parts = [replace_summands(s, known) for s in node.src]
    left = [part for part in parts if part is not None]
    if len(left) == len(parts):
        return make(node.op, node.dtype, tuple(left))
    if node.op is SUB and left and parts[0] is None:
        return make(NEG, node.dtype, tuple(left))
    return left[0] if left else None


def is_number(node: Node, number: float) -> bool:
    """True if a value is this float. (The scalars of kernels are memory: not known.)"""
    return node.op is CONST and node.dtype.kind == "f" and decode(node.arg[0], node.dtype) == number


def same_axes(shape: Shape, other: Shape) -> dict[int, int] | None:
    """Which axis of another shape each is, if they differ in axes of one step alone."""
    mine, theirs = [[axis for axis, n in enumerate(s) if n != 1] for s in (shape, other)]
    if [shape[axis] for axis in mine] != [other[axis] for axis in theirs]:
        return None
    return dict(zip(mine, theirs, strict=True))


def under_views(view: Node) -> tuple[Node, dict[int, int]] | None:
    """What a value is a view of by RESHAPE and PERMUTE, and which axis of that each one is."""
    axes = {axis: axis for axis, n in enumerate(view.shape) if n != 1}
    while view.op in (RESHAPE, PERMUTE):
        source = view.src[0]
        moved = (
            same_axes(view.shape, source.shape) if view.op is RESHAPE else dict(enumerate(view.arg))
        )
        if moved is None:
            return None
        view, axes = source, {axis: moved[old] for axis, old in axes.items()}
    return view, axes


# --- polynomials over named axes -----------------------------------------------------------------

Label: TypeAlias = int  # an axis of the value that is written; below 0: one that is summed over
Atom: TypeAlias = tuple[Node, tuple[Label | None, ...]]  # None: an axis of one step
Contraction: TypeAlias = frozenset[tuple[Atom, int]]  # with powers; without bound axes: an atom
Monomial: TypeAlias = frozenset[tuple[Contraction, int]]
Polynomial: TypeAlias = dict[Monomial, float]


class Expansion:
    """Values as polynomials, each found once; what is not known is a factor of its own."""

    def __init__(self, depth: int, opens_sum: Callable[[Node], bool]) -> None:
        self.depth, self.opens_sum = depth, opens_sum  # ops, and sums, that are looked through
        self.known: dict[Node, Polynomial] = {}
        self.divisors: dict[Node, Polynomial] = {}  # what is divided by, where that is a sum

    def polynomial(self, node: Node, depth: int = 0) -> Polynomial:
        """A value as a sum of products."""
        if node not in self.known:
            rule = _EXPAND.get(node.op) if node.dtype.kind == "f" else None
            found = None if rule is None or depth >= self.depth else rule(self, node, depth + 1)
            self.known[node] = {_alone(node, 1): 1.0} if found is None else found
        return self.known[node]

    def over_common_denominator(self, terms: Polynomial) -> Polynomial:
        """The same times all sums that are divided by: (a + b) / (a + b) is 1 only as a sum."""
        for part in {p for term in terms for p, power in term if power < 0}:
            atoms = [atom for atom, _ in part]
            if len(atoms) == 1 and atoms[0][0] in self.divisors:
                node, labels = atoms[0]
                axes = {axis: label for axis, label in enumerate(labels) if label is not None}
                whole = _multiplied(terms, part, _renamed(self.divisors[node], axes))
                if not whole:
                    return terms if whole is None else whole
                terms = whole
        return terms

    def _constant(self, node: Node, depth: int) -> Polynomial:
        value = decode(node.arg[0], node.dtype)
        assert isinstance(value, float)
        return {frozenset(): value} if value else {}

    def _same(self, node: Node, depth: int) -> Polynomial | None:
        source = node.src[0]
        same = node.ndim == source.ndim and source.dtype.kind == "f"
        return self.polynomial(source, depth) if same else None

    def _permuted(self, node: Node, depth: int) -> Polynomial:
        order = {old: new for new, old in enumerate(node.arg)}
        return _renamed(self.polynomial(node.src[0], depth), order)

    def _reshaped(self, node: Node, depth: int) -> Polynomial | None:
        axes = same_axes(node.src[0].shape, node.shape)
        return None if axes is None else _renamed(self.polynomial(node.src[0], depth), axes)

    def _chosen(self, node: Node, depth: int) -> Polynomial | None:
        """Of two values that are 0."""
        sides = [self.polynomial(s, depth) for s in node.src[1:]]
        return None if any(map(self.over_common_denominator, sides)) else {}

    def _added(self, node: Node, depth: int) -> Polynomial | None:
        signs = {ADD: (1.0, 1.0), SUB: (1.0, -1.0), NEG: (-1.0,)}[node.op]
        parts = [self.polynomial(s, depth) for s in node.src]
        return _sum(list(zip(parts, signs, strict=True)))

    def _times(self, node: Node, depth: int) -> Polynomial | None:
        first, second = [self.polynomial(s, depth) for s in node.src]
        return _product(first, self._inverse(second, node.src[1]) if node.op is DIV else second)

    def _inverse(self, terms: Polynomial, node: Node) -> Polynomial:
        """One over a polynomial; of one that is no product it is a factor of its own."""
        if len(terms) != 1:
            while node.op is EXPAND and node.ndim == node.src[0].ndim:
                node = node.src[0]
            self.divisors[node] = terms
            return {_alone(node, -1): 1.0}
        ((term, number),) = terms.items()
        return {frozenset([(part, -power) for part, power in term]): 1 / number}

    def _summed(self, node: Node, depth: int) -> Polynomial | None:
        """A sum of products as products of sums, each without what does not change along it."""
        sizes = {axis: node.src[0].shape[axis] for axis in node.arg[1]}
        along = {axis: n for axis, n in sizes.items() if isinstance(n, int) and n != 1}
        symbolic = any(not isinstance(n, int) for n in sizes.values())
        if node.arg[0] != "add" or symbolic or not self.opens_sum(node):
            return None
        found: list[tuple[Polynomial, float]] = []
        for term, number in self.polynomial(node.src[0], depth).items():
            made = _contracted(term, along)
            if made is None or varies(made[1]):  # a size that varies is no factor
                return None
            found.append(({made[0]: 1.0}, number * made[1]))
        return _sum(found)


_EXPAND: Mapping[Op, Callable[[Expansion, Node, int], Polynomial | None]] = {
    CONST: Expansion._constant, EXPAND: Expansion._same, CAST: Expansion._same,
    PERMUTE: Expansion._permuted, RESHAPE: Expansion._reshaped, REDUCE: Expansion._summed,
    WHERE: Expansion._chosen, ADD: Expansion._added, SUB: Expansion._added, NEG: Expansion._added,
    MUL: Expansion._times, DIV: Expansion._times,
}  # fmt: skip
OPENED = tuple(op for op in _EXPAND if op not in (CONST, WHERE))  # whose values are made of sources


def _alone(node: Node, power: int) -> Monomial:
    """A value as a factor of its own."""
    labels = tuple([axis if n != 1 else None for axis, n in enumerate(node.shape)])
    return frozenset([(frozenset([((node, labels), 1)]), power)])


def _labels(part: Contraction) -> frozenset[Label]:
    """The axes that a contraction names: bound ones are below 0."""
    return frozenset([a for (_, labels), _ in part for a in labels if a is not None])


def _relabelled(part: Contraction, names: Mapping[Label, Label]) -> Contraction:
    found: dict[Atom, int] = {}
    for (node, labels), power in part:
        atom = node, tuple([None if a is None else names.get(a, a) for a in labels])
        found[atom] = found.get(atom, 0) + power
    return frozenset(found.items())


def _renamed(terms: Polynomial, axes: Mapping[int, int]) -> Polynomial:
    """The same value with its axes at other places."""
    return {
        frozenset([(_relabelled(part, axes), power) for part, power in term]): number
        for term, number in terms.items()
    }


def _contracted(term: Monomial, along: Mapping[int, int]) -> tuple[Monomial, int] | None:
    """A monomial summed over axes: what varies is one contraction, others count their steps."""
    inside = [(part, power) for part, power in term if _labels(part) & along.keys()]
    if any(power < 0 for _, power in inside):
        return None
    mine = frozenset[Label]().union(*[_labels(part) for part, _ in inside])
    count = prod([n for axis, n in along.items() if axis not in mine])
    if not inside:
        return term, count
    whole = _bound(inside, [axis for axis in along if axis in mine])
    if whole is None:
        return None
    return _times(term - frozenset(inside), frozenset([(whole, 1)])), count


def _bound(parts: Iterable[tuple[Contraction, int]], along: Sequence[int]) -> Contraction | None:
    """The sum over axes of a product of sums, bound axes named so that equal ones are equal."""
    atoms: dict[Atom, int] = {}
    fresh = 0
    for part, times in parts:
        own = sorted([a for a in _labels(part) if a < 0])
        for _ in range(times):
            names = {a: -1 - fresh - i for i, a in enumerate(own)}
            fresh += len(own)
            for atom, power in _relabelled(part, names):
                atoms[atom] = atoms.get(atom, 0) + power
    names = {axis: -1 - fresh - i for i, axis in enumerate(along)}
    whole = _relabelled(frozenset(atoms.items()), names)
    bound = [-1 - i for i in range(fresh + len(along))]
    if len(bound) > LIMITS.bound_axes:
        return None
    ways = [dict(zip(bound, some, strict=True)) for some in permutations(bound)]
    return min([_relabelled(whole, names) for names in ways], key=_in_order)


def _in_order(part: Contraction) -> list[tuple[object, ...]]:
    return sorted([(node.id, repr(labels), power) for (node, labels), power in part])


def _sum(
    parts: Sequence[tuple[Polynomial, float]], limit: int = LIMITS.polynomial_terms
) -> Polynomial | None:  # fmt: skip
    """A sum of polynomials, each times a number; None for too many terms."""
    found: Polynomial = {}
    most: dict[Monomial, float] = {}
    for terms, scale in parts:
        for term, number in terms.items():
            found[term] = found.get(term, 0.0) + scale * number
            most[term] = max(most.get(term, 0.0), abs(scale * number))
    left = {
        term: number
        for term, number in found.items()
        if abs(number) > LIMITS.cancelled * most[term]
    }
    return left if len(left) <= limit else None


def _product(first: Polynomial, second: Polynomial) -> Polynomial | None:
    parts = [({_times(a, b): 1.0}, x * y) for a, x in first.items() for b, y in second.items()]
    return _sum(parts) if len(parts) <= 4 * LIMITS.polynomial_terms else None


def _times(first: Monomial, second: Monomial) -> Monomial:
    powers = dict(first)
    for part, power in second:
        powers[part] = powers.get(part, 0) + power
    return frozenset([(part, power) for part, power in powers.items() if power])


def _multiplied(
    terms: Polynomial, part: Contraction, divisor: Polynomial
) -> Polynomial | None:  # fmt: skip
    """A polynomial times a divisor, as often as any of its terms is divided by that."""
    powers = {term: dict(term).get(part, 0) for term in terms}
    most = -min(powers.values())
    found: list[tuple[Polynomial, float]] = []
    for term, number in terms.items():
        left: Polynomial | None = {term - {(part, powers[term])}: 1.0}
        for _ in range(most + powers[term]):
            left = None if left is None else _product(left, divisor)
        if left is None:
            return None
        found.append((left, number))
    return _sum(found, LIMITS.polynomial_terms * LIMITS.polynomial_terms)
