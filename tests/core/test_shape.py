"""Sizes and shapes: broadcasting, and one normal form for sizes of bounded variables."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulgurite.core.dtype import int64
from fulgurite.core.node import Node, Size, constant
from fulgurite.core.operators import OPS
from fulgurite.core.ops.elementwise import MAX, WHERE
from fulgurite.core.ops.leaf import bind, variable
from fulgurite.core.rewriting.substitute import substitute
from fulgurite.core.shape import (
    add,
    as_node,
    broadcast,
    floordiv,
    lower,
    mod,
    mul,
    normal,
    prod,
    same,
    show,
    size_text,
    sub,
    upper,
)
from fulgurite.errors import ShapeError
from fulgurite.runtime.host.evaluate import evaluate

N, M, K = (variable(name, 1, 64) for name in "nmk")

# --- broadcasting --------------------------------------------------------------------------------

SHAPES = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@given(st.lists(SHAPES, min_size=1, max_size=4))
def test_broadcasting_agrees_with_numpy(shapes: list[tuple[int, ...]]) -> None:
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(ShapeError, match="do not broadcast"):
            broadcast(*shapes)
    else:
        assert broadcast(*shapes) == expected


def test_symbolic_sizes_broadcast_with_themselves_and_with_one() -> None:
    assert broadcast((N, 3), (1, 1), (3,)) == (N, 3)
    assert broadcast((1, M), (N, 1)) == (N, M)
    assert broadcast((mul(N, 2),), (add(N, N),)) == (mul(N, 2),)
    assert broadcast((), (N,)) == (N,)


@pytest.mark.parametrize("shapes", [((N,), (M,)), ((N,), (3,)), ((N,), (add(N, 1),))], ids=str)
def test_symbolic_sizes_that_may_differ_do_not_broadcast(shapes: Any) -> None:
    with pytest.raises(ShapeError, match="in dimension -1") as caught:
        broadcast(*shapes)
    assert isinstance(caught.value, ValueError)
    assert "counted from the right" in caught.value.hint


# --- the normal form -----------------------------------------------------------------------------

ATOMS: list[Size] = [N, M, K, 1, 2, 3, -1]


@given(st.data())
def test_sizes_that_are_equal_polynomials_are_the_same_object(data: st.DataObject) -> None:
    """Random sums and products, kept beside their value at many points, which decides equality."""
    points = [
        dict(zip("nmk", p, strict=True)) for p in itertools.product((1, 2, 3, 5, 11), repeat=3)
    ]
    known: list[tuple[Size, tuple[int, ...]]] = [
        (a, tuple(a if isinstance(a, int) else p[a.arg[0]] for p in points)) for a in ATOMS
    ]
    for _ in range(data.draw(st.integers(1, 6))):
        (a, at_a), (b, at_b) = (data.draw(st.sampled_from(known)) for _ in range(2))
        which = data.draw(st.sampled_from(["add", "sub", "mul"]))
        made = {"add": add, "sub": sub, "mul": mul}[which](a, b)
        numpy = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[which]
        values = numpy(np.array(at_a, object), np.array(at_b, object))
        if max(abs(v) for v in values) < 10**9:  # of a degree that the points can tell apart
            known.append((made, tuple(values)))
    for (a, at_a), (b, at_b) in itertools.combinations(known, 2):
        if at_a == at_b:
            assert a is b or a == b, f"{size_text(a)} and {size_text(b)}"
        else:
            assert not same(a, b)


def test_the_normal_form_is_a_sum_of_ordered_products() -> None:
    assert add(mul(N, 2), N) is mul(N, 3)
    assert mul(M, N) is mul(N, M)
    assert mul(add(N, 1), sub(N, 1)) is sub(mul(N, N), 1)
    assert sub(N, N) == 0 and mul(N, 0) == 0 and add(N, 0) is N and mul(1, N) is N
    assert normal(OPS["neg"](OPS["sub"](M, N))) is sub(N, M)
    assert normal(OPS["add"](constant(2, int64), constant(3, int64))) == 5
    assert prod((2, N, 3, M)) is mul(mul(N, M), 6)
    assert prod(()) == 1 and prod((N, 0)) == 0
    assert same(add(N, M), add(M, N)) and not same(N, M)


def test_a_variable_and_its_bind_read_alike_but_stay_apart() -> None:
    bound = bind(N, 4)
    assert size_text(bound) == size_text(N) == "n"
    assert mul(bound, N) is mul(N, bound)
    assert add(bound, N) is add(N, bound)
    assert not same(bound, N)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (mul(N, 6), 3, mul(N, 2)), (mul(N, M), N, M), (mul(mul(N, N), 4), mul(N, 2), mul(N, 2)),
        (add(mul(N, 4), 8), 4, add(N, 2)), (add(mul(N, M), mul(N, 3)), N, add(M, 3)),
        (add(N, M), add(M, N), 1), (0, N, 0), (N, 1, N), (sub(N, N), 7, 0),
    ],
    ids=lambda s: size_text(s),
)  # fmt: skip
def test_a_division_without_rest_is_exact(a: Size, b: Size, expected: Size) -> None:
    assert same(floordiv(a, b), expected) and mod(a, b) == 0


@pytest.mark.parametrize(("a", "b"), [(N, 2), (add(N, 1), 2), (N, M), (7, N), (mul(N, 3), 2)])
def test_another_division_is_an_atom_of_its_own(a: Size, b: Size) -> None:
    quotient, rest = floordiv(a, b), mod(a, b)
    assert isinstance(quotient, Node) and quotient.op.name == "floordiv"
    assert floordiv(a, b) is quotient and mod(a, b) is rest
    assert add(quotient, quotient) is mul(quotient, 2)
    for n, m in ((5, 3), (64, 7)):
        known = {N: constant(n, int64), M: constant(m, int64)}
        x, y = (normal(substitute(as_node(s), known)) for s in (a, b))
        assert isinstance(x, int) and isinstance(y, int)
        assert normal(substitute(quotient, known)) == x // y
        assert normal(substitute(as_node(rest), known)) == x % y


def test_a_size_of_known_numbers_is_a_number_whatever_its_ops() -> None:
    known = {N: constant(7, int64), M: constant(2, int64)}
    halves = add(mul(floordiv(sub(N, 3), M), M), mod(N, M))
    assert normal(substitute(as_node(halves), known)) == 5
    largest = MAX(as_node(N), as_node(M))
    chosen = WHERE(N < M, N, M)
    assert normal(substitute(largest, known)) == 7
    assert normal(substitute(chosen, known)) == 2


@given(st.integers(-50, 50), st.integers(1, 9))
def test_whole_sizes_are_plain_arithmetic(a: int, b: int) -> None:
    assert (add(a, b), sub(a, b), mul(a, b)) == (a + b, a - b, a * b)
    assert (floordiv(a, b), mod(a, b)) == (a // b, a % b)
    assert same(a, b) == (a == b) and lower(a) == upper(a) == normal(a) == a


def test_a_size_has_a_least_and_a_largest_value() -> None:
    assert (lower(N), upper(N)) == (1, 64)
    size = add(mul(N, 3), 2)
    assert (lower(size), upper(size)) == (5, 194)
    assert (lower(floordiv(N, 4)), upper(floordiv(N, 4))) == (0, 16)
    assert upper(mod(N, 4)) == 3


def test_sizes_and_shapes_are_shown_as_written() -> None:
    assert show(()) == "()" and show((3,)) == "(3,)" and show((2, N)) == "(2, n)"
    assert size_text(mul(N, 3)) == "(n*3)"
    assert size_text(floordiv(N, 2)) == "(n//2)" and size_text(mod(N, M)) == "(n%m)"
    assert size_text(as_node(4)) == "4"
    assert size_text(MAX(N, M)) == "max(n, m)"


def test_a_size_as_a_node_has_its_value() -> None:
    values = evaluate([as_node(5), as_node(add(mul(N, M), 1))], {}, {"n": 3, "m": 4})
    assert [int(v) for v in values] == [5, 13]
