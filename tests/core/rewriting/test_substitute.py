"""Substitution: chains, cycles and `walk`, sharing, symbolic sizes, metadata and origins."""

from __future__ import annotations

import numpy as np
import pytest

from fulgurite.core.dtype import float32, float64, int64
from fulgurite.core.node import Node, annotate, constant, remember, toposort
from fulgurite.core.operators import OPS
from fulgurite.core.ops.elementwise import CAST, COS, EXP, SIN
from fulgurite.core.ops.leaf import iota, new_buffer, param, variable
from fulgurite.core.ops.movement import expand, pad, reshape, window
from fulgurite.core.origin import capture
from fulgurite.core.rewriting.substitute import rebuild, substitute
from fulgurite.core.shape import add, floordiv, mul
from fulgurite.errors import RewriteError
from fulgurite.runtime.host.evaluate import evaluate


def fresh() -> Node:
    return new_buffer((2,), float64)


def test_every_use_of_a_node_is_replaced_and_the_rest_is_shared() -> None:
    x, y = fresh(), fresh()
    kept = SIN(y)
    root = (x + kept) * EXP(x)
    assert substitute(root, {x: y}) is (y + kept) * EXP(y)
    assert substitute(root, {}) is root
    assert substitute(root, {fresh(): x}) is root
    assert substitute(root, {x: x}) is root
    assert substitute(root, {root: y}) is y


def test_a_replacement_is_substituted_in_turn() -> None:
    a, b, c = fresh(), fresh(), fresh()
    assert substitute(a + b, {a: SIN(b), b: c}) is SIN(c) + c
    assert substitute(SIN(a), {SIN(a): COS(b), b: c}) is COS(c)


def test_walk_takes_replacements_as_they_are() -> None:
    a, b, c = fresh(), fresh(), fresh()
    assert substitute(a + b, {a: SIN(b), b: c}, walk=True) is SIN(b) + c
    assert substitute(a + b, {a: b, b: a}, walk=True) is b + a
    assert substitute(SIN(a), {a: a + 1}, walk=True) is SIN(a + 1)
    assert substitute(SIN(SIN(a)), {SIN(a): SIN(SIN(a))}, walk=True) is SIN(SIN(SIN(a)))


def test_a_replacement_that_contains_its_key_is_an_error_without_walk() -> None:
    a, b = fresh(), fresh()
    with pytest.raises(RewriteError, match="contains it"):
        substitute(SIN(a), {a: a + 1})
    with pytest.raises(RewriteError, match="walk=True"):
        substitute(a + b, {a: SIN(b), b: COS(a)})


def test_a_key_met_twice_on_the_way_is_not_a_cycle() -> None:
    a, b = fresh(), fresh()
    shared = SIN(a)
    root = (shared + a) * (a + shared) + shared
    assert substitute(root, {a: b, shared: a}) is (b + b) * (b + b) + b


def test_a_deep_chain_is_substituted_once_per_node_without_recursion() -> None:
    x, y = fresh(), fresh()
    root = x
    for _ in range(20_000):
        root = root * root  # a tree of 2**20000 paths
    replaced = substitute(root, {x: y})
    assert len(toposort([replaced])) == 20_001


def test_the_dtype_follows_the_sources() -> None:
    x, y = new_buffer((2,), float32), new_buffer((2,), float64)
    assert substitute(SIN(x), {x: y}).dtype is float64
    assert substitute(CAST(x, arg=float32), {x: y}).dtype is float32
    assert substitute(x < x, {x: y}).dtype.name == "bool"


# --- symbolic sizes ------------------------------------------------------------------------------

N, M = variable("n", 1, 64), variable("m", 1, 64)


def number(value: int) -> Node:
    return constant(value, int64)


def test_a_size_that_becomes_a_number_moves_into_the_argument() -> None:
    x = param(0, (N, 3), float32)
    settled = substitute(x, {N: number(4)})
    assert settled is param(0, (4, 3), float32)
    assert substitute(iota((N, M), 1), {N: number(4)}) is iota((4, M), 1)
    assert substitute(reshape(x, (3, N)), {N: number(4)}) is reshape(settled, (3, 4))
    assert substitute(pad(x, [(M, 1), (0, N)]), {M: number(2)}) is pad(x, [(2, 1), (0, N)])


def test_a_size_replaced_by_an_expression_is_in_normal_form() -> None:
    x = constant(1.0, float32, (mul(N, 2), N))
    replaced = substitute(x, {N: OPS["add"](M, M)})
    assert replaced.shape == (mul(M, 4), mul(M, 2))
    assert replaced is constant(1.0, float32, (mul(M, 4), mul(M, 2)))


def test_sizes_that_become_equal_become_one_source() -> None:
    x = constant(1.0, float32, (N, M, N))
    assert substitute(x, {N: M}) is constant(1.0, float32, (M, M, M))
    wide = expand(constant(1.0, float32, (1, 1)), (N, M))
    assert substitute(wide, {M: N}) is expand(constant(1.0, float32, (1, 1)), (N, N))


def test_a_size_with_a_division_settles_too() -> None:
    x = constant(1.0, float32, (add(floordiv(N, 2), 1),))
    assert substitute(x, {N: number(7)}) is constant(1.0, float32, (4,))
    cut = window(constant(1.0, float32, (N,)), 0, 3, 2)
    root = cut + constant(1.0, float32, cut.shape)
    settled = substitute(root, {N: number(9)})
    assert settled.shape == (4, 3)
    np.testing.assert_array_equal(evaluate([settled])[0], np.full((4, 3), 2))


# --- what rides beside a node --------------------------------------------------------------------


def test_metadata_survives_when_a_copy_is_rebuilt() -> None:
    x, y = fresh(), fresh()
    marked = annotate(SIN(x), "note")
    replaced = substitute(marked + x, {x: y})
    copy = replaced.src[0]
    assert copy.meta == "note" and copy.op is SIN and copy.src == (y,) and copy is not SIN(y)
    assert rebuild(marked, (x,)).meta == "note"


def test_origins_follow_the_replacement() -> None:
    x, y, z = fresh(), fresh(), fresh()
    first, second, third = capture(), capture(), capture()  # three places on one line
    assert first and second and third
    remember(x, [first])
    remember(y, [second])
    root = remember(SIN(x), [third])
    replaced = substitute(root, {x: y})
    assert replaced.origins == (third,) and y.origins == (second, first)
    remember(z, [third])
    assert substitute(x, {x: z}, walk=True).origins == (third, first)


def test_a_tag_stays() -> None:
    from fulgurite.core.node import make

    x, y = fresh(), fresh()
    tagged = make(SIN, float64, (x,), None, "mark")
    assert substitute(tagged, {x: y}) is make(SIN, float64, (y,), None, "mark")
