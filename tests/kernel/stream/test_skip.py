"""Tests of fulgurite/kernel/stream/skip.py: which indices say that a condition holds."""

from __future__ import annotations

from fulgurite.core.dtype import int64, uint32
from fulgurite.core.node import Node, constant
from fulgurite.core.ops.elementwise import AND, CAST, EQ, LE, LT, OR
from fulgurite.core.ops.index import INDEX
from fulgurite.graph.ir.affine import Affine
from fulgurite.kernel.stream.skip import always_true

SIZES = 500, 700


def place(axis: int) -> Node:
    index: Affine = (0, ((axis, 1),))
    return INDEX(arg=index)


def test_comparisons_of_places_hold_where_their_difference_is_not_negative() -> None:
    row, column = place(0), place(1)
    (causal,) = always_true(LE(column, row), SIZES) or ()
    assert causal[0] == 0 and dict(causal[1]) == {0: 1, 1: -1}
    (window,) = always_true(LT(row, column + constant(300, int64)), SIZES) or ()
    assert window[0] == 299 and dict(window[1]) == {0: -1, 1: 1}
    both = always_true(AND(LE(column, row), LT(row, column)), SIZES)
    assert both is not None and len(both) == 2


def test_what_is_no_conjunction_of_comparisons_is_not_known_to_hold() -> None:
    row, column = place(0), place(1)
    for condition in (
        EQ(row, column), OR(LE(row, column), LT(column, row)),
        AND(LE(row, column), EQ(row, column)),
    ):  # fmt: skip
        assert always_true(condition, SIZES) is None


def test_distances_that_may_wrap_around_say_nothing() -> None:
    row, column = (CAST(place(axis), arg=uint32) for axis in (0, 1))
    few = constant(300, uint32)
    assert always_true(LT(row - column, few), SIZES) is None
    assert always_true(LT(row * constant(1 << 24, uint32), few), SIZES) is None
    assert always_true(LT(row, column + few), SIZES) is not None
