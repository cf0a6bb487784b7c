"""Polynomials of sizes: one key for equal ones, and Python for many at once."""

from __future__ import annotations

from fulgurite.core.symbolic.polynomial import (
    Polynomial,
    added,
    evaluator,
    key_of,
    multiplied,
    quotient,
    rising,
)

N: Polynomial = {("n",): 1}
M: Polynomial = {("m",): 1}


def test_equal_polynomials_have_equal_keys() -> None:
    one = added(multiplied(N, M), {(): 3}, 1)
    two = added({(): 3}, multiplied(M, N), 1)
    assert key_of(one) == key_of(two) and added(one, two, -1) == {}


def test_a_monomial_divides_what_it_is_in() -> None:
    product = multiplied(N, {("m",): 6})
    assert quotient(product, M) == ({("n",): 6}, {})
    assert quotient(added(product, N, 1), {(): 4}) == (
        {("m", "n"): 1},
        {("m", "n"): 2, ("n",): 1},
    )


def test_many_are_one_function() -> None:
    keys = [key_of(multiplied(N, M)), key_of({(): 7}), ()]
    assert evaluator(keys, ["n", "m"])(3, 5) == (15, 7, 0)


def test_what_rises_with_one_variable_is_a_range() -> None:
    assert rising({("n", "n"): 2, (): -5}) == "n" and rising({("n",): -1, (): 3}) == "n"
    assert rising({("n",): 1, ("n", "n"): -1}) is None and rising({("n",): 1, ("m",): 1}) is None
