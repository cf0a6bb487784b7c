"""Affine indices: every law against Python's own arithmetic, division also against Z3.

Exhaustive over small ranges: each index is evaluated at every value of its atoms. The proofs ask
Z3 about each of `divide`'s three ways over mathematical integers, with symbolic coefficients where
that is decidable; what Z3 leaves unknown is listed in UNKNOWN and nothing else may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from random import Random
from typing import TypeAlias

import pytest

try:
    import z3
except ModuleNotFoundError:
    HAS_Z3 = False
else:
    HAS_Z3 = True

from fulgurite.core.node import SOURCES, Source
from fulgurite.core.symbolic.sym import Trace, guard_texts
from fulgurite.graph.ir import affine
from fulgurite.graph.ir.affine import ZERO, Affine, Atom, add, axis, bounds, divide, number, rename

pytestmark = pytest.mark.device("none")

proof = pytest.mark.skipif(not HAS_Z3, reason="z3 is not installed")

SIZES = {0: 3, 1: 4, 2: 2}
VALUES = [dict(zip(SIZES, v, strict=True)) for v in product(*map(range, SIZES.values()))]
S0, S1 = SOURCES[0], SOURCES[1]


def limits(atom: int | Source) -> tuple[int, int]:
    """Axes run from 0; a dynamic atom is bounded by data."""
    return (0, SIZES[atom] - 1) if isinstance(atom, int) else (-2, 5)


def at(index: Affine, values: dict[int, int], dynamic: tuple[int, int] = (0, 0)) -> int:
    """The value of an index."""
    total = index[0]
    for atom, coefficient in index[1]:
        total += coefficient * _atom(atom, values, dynamic)
    return total


def _atom(atom: Atom, values: dict[int, int], dynamic: tuple[int, int]) -> int:
    if isinstance(atom, int):
        return values[atom]
    if isinstance(atom, Source):
        return dynamic[atom.index]
    sign, index, by = atom
    inner = at(index, values, dynamic)
    return inner // by if sign == "//" else inner % by


def indices(seed: int, count: int, dynamic: bool = False) -> Iterator[Affine]:
    """Random indices over all atoms, divisions among them."""
    random = Random(seed)
    for _ in range(count):
        index = number(random.randint(-6, 6))
        atoms: list[Atom] = [*SIZES, *([S0, S1] if dynamic else [])]
        for atom in atoms:
            index = add(index, axis(atom), random.choice((-5, -2, -1, 0, 0, 1, 2, 3, 4, 8)))
        if random.random() < 0.3:
            inner = add(axis(0), axis(1), random.randint(1, 3))
            atom_: Atom = (random.choice(("//", "%")), inner, random.randint(2, 4))
            index = add(index, axis(atom_), random.choice((-2, 1, 3)))
        yield index


def is_normal(index: Affine) -> bool:
    """One form for one index: ordered atoms, each once, none with coefficient 0."""
    ranks = [affine._rank(term) for term in index[1]]
    plain = [r[0] for r in ranks]
    return all(c for _, c in index[1]) and plain == sorted(plain) and len(set(ranks)) == len(ranks)


# --- sums ----------------------------------------------------------------------------------------


def test_a_sum_is_the_sum_at_every_value() -> None:
    for a, b in zip(indices(0, 150, True), indices(1, 150, True), strict=True):
        for factor in (-3, -1, 0, 1, 2):
            total = add(a, b, factor)
            assert is_normal(total)
            for values in VALUES:
                for dynamic in ((0, 1), (3, -2)):
                    expected = at(a, values, dynamic) + factor * at(b, values, dynamic)
                    assert at(total, values, dynamic) == expected


def test_a_multiple_is_the_multiple_at_every_value() -> None:
    for a in indices(2, 100):
        for factor in (-2, -1, 0, 1, 3):
            assert all(at(affine.scale(a, factor), v) == factor * at(a, v) for v in VALUES)


def test_equal_sums_are_equal_tuples() -> None:
    for a, b in zip(indices(3, 200, True), indices(4, 200, True), strict=True):
        assert add(a, b) == add(b, a)
        assert add(add(a, b), b, -1) == a
        assert add(a, a, -1) == ZERO


def test_the_axes_and_sources_of_an_index_are_those_that_change_it() -> None:
    for index in indices(5, 150, True):
        for moved in SIZES:
            changes = any(
                at(index, v) != at(index, {**v, moved: x})
                for v in VALUES
                for x in range(SIZES[moved])
            )
            assert moved in affine.axes_of(index) or not changes
        found = affine.sources_of(index)
        assert found == [s for s in (S0, S1) if any(atom is s for atom, _ in index[1])]


def test_renaming_is_a_change_of_names_also_inside_divisions() -> None:
    swap: dict[int | Source, int | Source] = {0: 1, 1: 0, 2: 2, S0: S1, S1: S0}
    for index in indices(6, 200, True):
        renamed = rename(index, swap.__getitem__)
        assert is_normal(renamed)
        assert rename(renamed, swap.__getitem__) == index
        for v in VALUES:
            other = {0: v[1], 1: v[0], 2: v[2]}
            assert at(renamed, other, (7, 9)) == at(index, v, (9, 7))


def test_renaming_two_atoms_to_one_adds_their_coefficients() -> None:
    index = add(axis(0), axis(1), 4)
    assert rename(index, lambda a: 2) == (0, ((2, 5),))
    assert rename(add(axis(0), axis(1), -1), lambda a: 2) == ZERO


# --- bounds --------------------------------------------------------------------------------------


def test_bounds_hold_every_value_and_are_met_where_no_division_is() -> None:
    for index in indices(7, 300):
        low, high = bounds(index, limits)
        found = [at(index, v) for v in VALUES]
        assert low <= min(found) and max(found) <= high
        if all(isinstance(atom, int) for atom, _ in index[1]):
            assert (low, high) == (min(found), max(found))


def test_bounds_hold_for_dynamic_atoms() -> None:
    for index in indices(8, 60, True):
        low, high = bounds(index, limits)
        every = product(VALUES, range(-2, 6), range(-2, 6))
        assert all(low <= at(index, v, (a, b)) <= high for v, a, b in every)


def test_only_conditions_that_can_fail_are_left() -> None:
    for index in indices(9, 200):
        for size in (1, 3, 9):
            left = affine.Domain([(index, size), (index, size)]).simplify(limits)
            fails = any(not 0 <= at(index, v) < size for v in VALUES)
            assert left in ((), ((index, size),))
            assert left or not fails


def test_a_domain_is_empty_or_implied_only_where_its_places_are() -> None:
    made = [affine.Domain([(index, size)]) for index in indices(10, 40) for size in (1, 4)]

    def places(domain: affine.Domain) -> set[int]:
        inside = [all(0 <= at(index, v) < size for index, size in domain) for v in VALUES]
        return {place for place, holds in enumerate(inside) if holds}

    for a, b in pairwise(made):
        both = a.intersect(b)
        assert places(both) == places(a) & places(b) == places(both.simplify(limits))
        assert both.implies(a) and both.implies(b) and both.intersect(a) == both
        assert not both.is_empty(limits) or not places(both)
        assert places(a.map(lambda index: add(index, number(0)))) == places(a)


def test_a_condition_on_rows_follows_from_that_on_their_elements() -> None:
    """Where 0 <= 8 r + 2 c + k - 8 < 16 holds, so does 0 <= r - 1 < 2, and is not asked again."""
    found = 0
    for start, size, first, rows in product((-9, -8, 0, 4), (7, 8, 9, 16), (-2, -1, 0, 1), (1, 2)):
        known = affine.Domain([((start, ((0, 8), (1, 2), (2, 1))), size)])
        asked = affine.Domain([((first, ((0, 1),)), rows)])
        left = asked.without(known, limits)
        found += not left
        for v in VALUES:
            holds, *both = (all(0 <= at(i, v) < n for i, n in d) for d in (known, asked, left))
            assert not holds or both[0] == both[1]
    assert found >= 4


# --- division ------------------------------------------------------------------------------------


def test_a_quotient_and_remainder_are_pythons_at_every_value() -> None:
    divided = 0
    coefficients = range(-8, 9)
    for a, b, constant in product(coefficients, coefficients, (-7, -1, 0, 2, 5)):
        index = add(add(number(constant), axis(0), a), axis(1), b)
        for by in (2, 3, 4, 6):
            found = divide(index, by, limits)
            if found is None:
                continue
            divided += 1
            for values in VALUES[::2]:
                whole, rest = divmod(at(index, values), by)
                assert (at(found[0], values), at(found[1], values)) == (whole, rest)
    assert divided > 900


def test_a_quotient_of_dynamic_atoms_is_pythons() -> None:
    for index in indices(10, 400, True):
        for by in (2, 4, 9, 64):
            found = divide(index, by, limits)
            for v, a, b in product(VALUES[::5], (-2, 0, 5), (-2, 1, 5)):
                if found is not None:
                    parts = at(found[0], v, (a, b)), at(found[1], v, (a, b))
                    assert parts == divmod(at(index, v, (a, b)), by)


def test_each_way_of_dividing_is_taken() -> None:
    assert divide(axis(0), 3, limits) == (ZERO, axis(0))  # too small to divide
    split = add(axis(0), axis(1), 6)
    assert divide(split, 3, limits) == ((0, ((1, 2),)), axis(0))  # the rest stays below
    sliding = add(axis(0), axis(2), 5)  # (k * (n + 1) + i) // n with n = 4
    assert divide(sliding, 4, limits) == (axis(2), add(axis(0), axis(2)))
    shifted = add(add(number(2), axis(0)), axis(2), 4)  # 2 - k + i is never below 0
    rest = add(add(number(2), axis(0)), axis(2), -1)
    assert divide(shifted, 5, lambda a: (0, 2)) == (axis(2), rest)
    assert divide(add(axis(1), axis(0)), 4, limits) is None


def test_sizes_that_vary_are_near_each_other_only_where_they_always_are() -> None:
    trace = Trace({"n": 5}, False)
    n = trace.variable("n")
    shifted = add(add(number(n - 3), axis(0)), axis(1), n - 1)  # its quotient is k for every n
    rest = add(add(number(n - 3), axis(0)), axis(1), -1)
    assert divide(shifted, n, lambda a: (0, 2)) == (axis(1), rest)
    trace = Trace({"n": 5}, False)
    n = trace.variable("n")
    chance = add(add(number(n - 3), axis(0)), axis(1), 4)  # 4 is n - 1 for n = 5 alone
    assert divide(chance, n, lambda a: (0, 2)) is None
    digits = add(axis(("%", axis(0), 4)), axis(("//", axis(0), 4)), n - 1)  # of a number for n = 5
    assert len(digits[1]) == 2
    assert not [text for text in guard_texts(trace) if "==" in text]


def test_negative_numbers_divide_toward_minus_infinity() -> None:
    index = add(number(-1), axis(0), -4)
    assert divide(index, 4, limits) == ((-1, ((0, -1),)), number(3))


# --- the same, proved ----------------------------------------------------------------------------

UNKNOWN: dict[str, str] = {}  # proofs that Z3 leaves open: none


def _proved(claim: z3.BoolRef, under: list[z3.BoolRef]) -> str:
    solver = z3.Solver()
    solver.set("timeout", 20_000)
    solver.add(*under, z3.Not(claim))
    return {"unsat": "proved", "sat": "refuted"}.get(str(solver.check()), "unknown")


def _is_divmod(value: z3.ArithRef, by: z3.ArithRef, whole: object, rest: object) -> z3.BoolRef:
    """The definition: value = whole * by + rest with 0 <= rest < by has one solution."""
    return z3.And(value == whole * by + rest, rest >= 0, rest < by)  # type: ignore[operator]


def _too_small() -> tuple[z3.BoolRef, list[z3.BoolRef]]:
    value, by = z3.Ints("value by")
    return _is_divmod(value, by, z3.IntVal(0), value), [by > 0, value >= 0, value < by]


def _rest_below() -> tuple[z3.BoolRef, list[z3.BoolRef]]:
    """Index = by*q (what divides) + rest: any atoms, any coefficients that divide."""
    exact, rest, by, constant = z3.Ints("exact rest by constant")
    quotient, left = z3.Ints("quotient left")  # of the constant alone
    value = by * exact + rest + constant
    under = [by > 0, constant == quotient * by + left, left >= 0, left < by]
    under += [rest + left >= 0, rest + left < by]
    return _is_divmod(value, by, exact + quotient, rest + left), under


def _reduced_coefficients() -> tuple[z3.BoolRef, list[z3.BoolRef]]:
    """A term c*x with c = q*by + r counts q*x in the quotient and r*x in the rest, for any r."""
    x, y, by = z3.Ints("x y by")
    q, r, p, s = z3.Ints("q r p s")
    value = (q * by + r) * x + (p * by + s) * y
    rest = r * x + s * y
    under = [by > 0, rest >= 0, rest < by]
    return _is_divmod(value, by, q * x + p * y, rest), under


def _unique() -> tuple[z3.BoolRef, list[z3.BoolRef]]:
    """Two quotients with remainders in range are one: so the definition is Python's divmod."""
    by, q, r, p, s = z3.Ints("by q r p s")
    under = [by > 0, q * by + r == p * by + s, r >= 0, r < by, s >= 0, s < by]
    return z3.And(q == p, r == s), under


Claim: TypeAlias = "Callable[[], tuple[z3.BoolRef, list[z3.BoolRef]]]"


@proof
@pytest.mark.parametrize("claim", [_too_small, _rest_below, _reduced_coefficients, _unique])
def test_the_ways_of_dividing_are_proved_for_all_whole_numbers(claim: Claim) -> None:
    name = claim.__name__
    assert _proved(*claim()) == ("unknown" if name in UNKNOWN else "proved")


@proof
def test_without_the_bound_on_the_rest_the_proof_fails() -> None:
    claim, under = _rest_below()
    assert _proved(claim, under[:-1]) == "refuted"


@proof
def test_every_division_of_a_sweep_is_proved_by_z3() -> None:
    x, y = z3.Ints("x y")
    box = [x >= 0, x < 3, y >= 0, y < 4]
    random, proved = Random(11), 0
    while proved < 60:
        c, a, b = (random.randint(-12, 12) for _ in range(3))
        by = random.randint(2, 9)
        found = divide(add(add(number(c), axis(0), a), axis(1), b), by, limits)
        if found is None:
            continue
        parts = [i[0] + sum(k * (x, y)[atom] for atom, k in i[1]) for i in found]  # type: ignore
        value = c + a * x + b * y
        assert _proved(_is_divmod(value, z3.IntVal(by), *parts), box) == "proved"
        proved += 1


# --- memory and shapes ---------------------------------------------------------------------------

SHAPES = [(), (1,), (4,), (3, 4), (1, 4), (3, 1), (2, 1, 3), (2, 3, 4), (1, 1), (2, 2, 2, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_flat_index_counts_in_row_major_order(shape: tuple[int, ...]) -> None:
    index = tuple(axis(d) for d in range(len(shape)))
    place = affine.flat(index, shape)
    for count, values in enumerate(product(*map(range, shape))):
        assert at(place, dict(enumerate(values))) == count


def test_runs_of_equal_products_are_found_and_are_the_smallest() -> None:
    for count in (1, 4, 12, 24):
        shapes = list(_shapes(count, 4))
        for new, old in product(shapes, shapes):
            groups = affine.regroup(new, old)
            assert [d for g in groups for d in g[0]] == list(range(len(new)))
            assert [d for g in groups for d in g[1]] == list(range(len(old)))
            for news, olds in groups:
                a, b = [new[d] for d in news], [old[d] for d in olds]
                assert math.prod(a) == math.prod(b)
                assert not _splits(a, b), (new, old, groups)


def _shapes(count: int, most: int) -> Iterator[tuple[int, ...]]:
    if count == 1:
        yield ()
    if most:
        for first in range(1, count + 1):
            if count % first == 0:
                yield from ((first, *rest) for rest in _shapes(count // first, most - 1))


def _splits(a: list[int], b: list[int]) -> bool:
    """Could a run be cut in two that both have something of each side?"""
    return any(
        math.prod(a[:i]) == math.prod(b[:j]) for i in range(1, len(a)) for j in range(1, len(b))
    )


def test_a_bijection_meets_every_element_once_and_nothing_else_is_accepted() -> None:
    accepted = 0
    terms = [axis(0), axis(1), axis(2), add(axis(0), axis(1), 3), add(axis(1), axis(0), 4)]
    terms += [add(axis(2), axis(1), 2), number(1), ZERO, add(axis(0), axis(1)), axis(S0)]
    terms += [add(number(2), axis(0), -1), affine.scale(axis(1), 2), axis(("%", axis(1), 2))]
    for parts in product(terms, repeat=2):
        for shape in ((3, 4), (4, 3), (12, 2), (2, 12), (12, 1), (3, 8), (8, 3), (3, 2)):
            if not affine.is_bijection(parts, shape, SIZES):
                continue
            accepted += 1
            axes = sorted(affine.axes_of(parts[0]) | affine.axes_of(parts[1]))
            met = [
                tuple(at(p, dict(zip(axes, v, strict=True))) for p in parts)
                for v in product(*[range(SIZES[a]) for a in axes])
            ]
            assert sorted(met) == list(product(*map(range, shape)))
    assert accepted >= 6


def test_what_is_not_a_bijection_is_refused() -> None:
    sizes = {0: 3, 1: 4}
    assert affine.is_bijection((axis(0), axis(1)), (3, 4), sizes)
    assert not affine.is_bijection((axis(0), axis(0)), (3, 3), sizes)  # the diagonal
    assert not affine.is_bijection((axis(0), ZERO), (3, 4), sizes)  # one column
    assert not affine.is_bijection((axis(0), axis(1)), (3, 5), sizes)  # not all of it
    assert not affine.is_bijection((add(axis(0), axis(1)),), (6,), sizes)  # windows overlap
    assert not affine.is_bijection((add(number(1), axis(0)),), (3,), sizes)  # shifted
    assert not affine.is_bijection((axis(S0),), (3,), sizes)  # data


def test_digits_of_a_number_are_put_together_again() -> None:
    digits: list[tuple[Affine, int, int]] = []
    for by, step, shift in product((2, 3, 5), (1, -2, 7), (-4, 0, 1)):
        inner = add(number(shift), add(axis(0), axis(1), 2))
        low = add(ZERO, axis(("%", inner, by)), step)
        high = axis(("//", inner, by))
        whole = add(add(low, axis(2)), high, step * by)
        assert whole == add(axis(2), inner, step)
        other = add(low, high, step * by + 1)  # no digit of it
        digits += [(whole, by, 0), (other, by, 1)]
        for values in VALUES:
            e = shift + values[0] + 2 * values[1]
            assert at(whole, values) == values[2] + step * e
            assert at(other, values) == step * e + e // by
    assert not any([isinstance(a, tuple) for w, _, kind in digits if not kind for a, _ in w[1]])
    low, high = axis(("%", axis(0), 4)), axis(("//", axis(0), 4))
    assert affine.flat((high, low), (3, 4)) == axis(0)
    nested = axis(("//", axis(0), 4))  # e // 4 in digits: its lowest, and what is above
    found = add(axis(("%", nested, 3)), axis(("//", axis(0), 12)), 3)
    assert found == nested
