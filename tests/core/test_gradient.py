"""Gradient rules against central finite differences, and by exact rules at ties and kinks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fulgurite.core.dtype import bool_, float16, float32, float64, int32
from fulgurite.core.gradient import gradient
from fulgurite.core.node import Node, constant, constant_like, toposort
from fulgurite.core.op import Array, Op
from fulgurite.core.operators import OPS
from fulgurite.core.ops.effect import COLLECTIVE, DETACH
from fulgurite.core.ops.elementwise import (
    ABS,
    CAST,
    COS,
    EXP,
    FLOOR,
    LT,
    MAX,
    MIN,
    MOD,
    POW,
    SIN,
    WHERE,
)
from fulgurite.core.ops.indexing import gather, scatter, sort_order
from fulgurite.core.ops.leaf import new_buffer, param, variable
from fulgurite.core.ops.movement import expand, reshape, unwindow, window
from fulgurite.core.ops.reduce import reduce_node, scan_node
from fulgurite.errors import GradientError
from fulgurite.runtime.host.evaluate import evaluate
from tests.core.ops.cases import CASES, ELEMENTWISE, Case
from tests.core.ops.samples import leaf

TENSOR_OPS = [op for op in OPS.values() if "tensor" in op.levels]
NO_GRADIENT = {
    "start_all_reduce": "made by the compiler, after gradients and batches",
    "wait_all_reduce": "made by the compiler, after gradients and batches",
    "sink": "no value: gradients start at one result",
    "example": "what one example is part of is outside: vmap takes it away first",
}
STEP = 1e-5


def gradients_of(
    build: Callable[..., Node], arrays: Sequence[Array], weights: Array | None = None
) -> list[Array]:
    """The gradient by each float source, zeros where there is none."""
    leaves = [leaf(a) for a in arrays]
    y = build(*leaves)
    known = dict(zip(leaves, arrays, strict=True))
    seed = None
    if weights is not None:
        seed = leaf(weights)
        known[seed] = weights
    found = gradient(y, [x for x in leaves if x.dtype.is_inexact], seed)
    values = iter(evaluate([g for g in found if g is not None], known))
    sources = [a for a in arrays if a.dtype.kind == "f"]
    out = [np.zeros_like(a) if g is None else next(values)
           for g, a in zip(found, sources, strict=True)]  # fmt: skip
    for value, array in zip(out, sources, strict=True):
        assert value.shape == array.shape and value.dtype == array.dtype
    return out


def differences_of(
    build: Callable[..., Node], arrays: Sequence[Array], weights: Array
) -> list[Array]:
    """The same by central differences of the weighted sum of the result."""
    leaves = [leaf(a) for a in arrays]
    y = build(*leaves)

    def weighted(changed: Sequence[Array]) -> float:
        (value,) = evaluate([y], dict(zip(leaves, changed, strict=True)))
        return float(np.sum(value * weights))

    out = []
    for number, array in enumerate(arrays):
        if array.dtype.kind != "f":
            continue
        slopes = np.zeros(array.shape)
        for place in np.ndindex(*array.shape):
            ends = []
            for step in (STEP, -STEP):
                changed = list(arrays)
                changed[number] = array.copy()
                changed[number][place] += step
                ends.append(weighted(changed))
            slopes[place] = (ends[0] - ends[1]) / (2 * STEP)
        out.append(slopes)
    return out


def check(build: Callable[..., Node], arrays: Sequence[Array], close: float = 1e-6) -> None:
    """Compare rules with finite differences, with random weights on the result."""
    y = build(*[leaf(a) for a in arrays])
    weights = np.random.default_rng(17).normal(size=y.shape)  # type: ignore[arg-type]
    found = gradients_of(build, arrays, weights)
    expected = differences_of(build, arrays, weights)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=close, atol=close)


def _differentiable(case: Case) -> bool:
    arrays = case.draw(np.random.default_rng(0))
    y = case.build(*[leaf(a) for a in arrays])
    held = ("cast", "bitcast", "detach", "override")  # exact rules below
    return y.dtype.is_float and case.name not in held  # complex ones: ops/test_complexes.py


REAL_CASES = [case for case in (*ELEMENTWISE, *CASES) if _differentiable(case)]
SMOOTH = [case for case in REAL_CASES if case in ELEMENTWISE and OPS[case.name].smooth]


@pytest.mark.parametrize("case", REAL_CASES, ids=str)
def test_a_gradient_rule_agrees_with_finite_differences(case: Case) -> None:
    for seed in range(2):
        check(case.build, case.draw(np.random.default_rng(seed)))


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_a_second_derivative_agrees_with_finite_differences(case: Case) -> None:
    arrays = case.draw(np.random.default_rng(2))
    for number in range(len(arrays)):

        def slope(*src: Node, number: int = number) -> Node:
            y = case.build(*src)
            (first,) = gradient(y, [src[number]])
            return constant_like(0, src[0]) if first is None else first

        check(slope, arrays, 1e-5)


@pytest.mark.parametrize("case", [c for c in SMOOTH if OPS[c.name].arity == 2], ids=str)
def test_a_source_used_twice_gets_both_shares(case: Case) -> None:
    (a, _) = case.draw(np.random.default_rng(3))
    check(lambda x: case.build(x, x), [a])
    check(lambda x: case.build(x * x, x) + x, [a], 1e-5)


@pytest.mark.parametrize("op", TENSOR_OPS, ids=str)
def test_every_op_on_floats_has_a_gradient_rule_or_a_reason(op: Op) -> None:
    on_floats = op.arity != 0 and ("f" in op.kinds or op.name == "where")
    if op.name in NO_GRADIENT or not on_floats:
        assert op.grad is None or not on_floats, f"{op} has a rule now: take it off the list"
        return
    assert op.grad is not None, f"{op} needs a gradient rule or a reason"
    covered = {case.name.split("-")[0] for case in (*ELEMENTWISE, *CASES)}
    assert op.name in covered, f"{op} needs an example in cases.py"


# --- broadcasting, symbolic sizes, indices -------------------------------------------------------


def test_a_broadcast_source_gets_the_sum_of_its_copies() -> None:
    def affine(x: Node, w: Node, b: Node) -> Node:
        wide = expand(reshape(b, (1, 2)), (3, 2))
        return EXP(expand(x, (3, 2)) * expand(w, (3, 2)) + wide)

    random = np.random.default_rng(4)
    shapes = [(3, 1), (1, 1), (2,)]
    check(affine, [random.normal(size=s) * 0.5 for s in shapes])


def test_a_matrix_product_made_of_expand_and_reduce_has_its_gradient() -> None:
    def product(a: Node, b: Node) -> Node:
        wide = expand(reshape(a, (2, 3, 1)), (2, 3, 4)) * expand(reshape(b, (1, 3, 4)), (2, 3, 4))
        return reshape(reduce_node("add", wide, (1,)), (2, 4))

    random = np.random.default_rng(5)
    a, b, weights = (random.normal(size=s) for s in [(2, 3), (3, 4), (2, 4)])
    by_a, by_b = gradients_of(product, [a, b], weights)
    np.testing.assert_allclose(by_a, weights @ b.T)
    np.testing.assert_allclose(by_b, a.T @ weights)


def test_sorted_values_carry_their_gradient_to_where_they_came_from() -> None:
    x, weights = np.array([3.0, 1.0, 2.0]), np.array([10.0, 20.0, 30.0])
    (found,) = gradients_of(lambda s: gather(s, sort_order(s, 0), 0), [x], weights)
    assert found.tolist() == [30.0, 10.0, 20.0]


def test_a_gradient_takes_symbolic_sizes() -> None:
    n = variable("n", 3, 9)
    x = param(0, (n,), float64)
    array = np.array([0.5, -1.0, 2.0, 0.0, 3.0])

    def by(y: Node) -> Array:
        (found,) = gradient(y, [x])
        assert found is not None and found.shape == x.shape
        return evaluate([found], {x: array}, {"n": 5})[0]

    windows = window(x * x, 0, 3, 2)
    np.testing.assert_allclose(by(windows), 2 * array * [1, 1, 2, 1, 1])
    np.testing.assert_allclose(by(unwindow(windows, 0, n, 2)), 2 * array * [1, 1, 2, 1, 1])
    np.testing.assert_allclose(by(reduce_node("mul", x, (0,))), [0, 0, 0, -3, 0])
    np.testing.assert_allclose(by(scan_node("add", x, 0)), [5, 4, 3, 2, 1])
    np.testing.assert_allclose(by(scan_node("mul", x, 0)), [-2, 1.5, -0.5, -4, 0])
    np.testing.assert_allclose(by(expand(reshape(x, (n, 1)), (n, n))), [5] * 5)


# --- exact rules at ties, kinks and zeros --------------------------------------------------------


@pytest.mark.parametrize("op", [MAX, MIN], ids=str)
def test_two_that_tie_get_half_each(op: Op) -> None:
    a, b = np.array([1.0, 0.0, 2.0, np.nan]), np.array([1.0, -0.0, 1.0, 1.0])
    by_a, by_b = gradients_of(op, [a, b])
    wins = [1.0, 0.0] if op is MAX else [0.0, 1.0]
    assert by_a.tolist() == [0.5, 0.5, wins[0], 0.0]
    assert by_b.tolist() == [0.5, 0.5, wins[1], 0.0]


@pytest.mark.parametrize("name", ["max", "min"])
def test_all_that_tie_in_a_reduction_share_alike(name: str) -> None:
    x = np.array([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0]]) * (1 if name == "max" else -1)
    (found,) = gradients_of(lambda s: reduce_node(name, s, (1,)), [x])
    assert found.tolist() == [[0, 0.5, 0.5, 0], [0.25] * 4]


@pytest.mark.parametrize("how", ["max", "min"])
def test_ranks_that_tie_share_alike(how: str) -> None:
    ranks = [np.array([2.0, 7.0])] * 3
    for found in gradients_of(lambda *src: COLLECTIVE(*src, arg=("all_reduce", how)), ranks):
        np.testing.assert_allclose(found, [1 / 3, 1 / 3])


@pytest.mark.parametrize("name", ["max", "min"])
def test_a_running_extreme_belongs_to_the_place_where_it_was_first_met(name: str) -> None:
    x = np.array([1.0, 3.0, 2.0, 3.0, 3.0, 4.0]) * (1 if name == "max" else -1)
    (forward,) = gradients_of(lambda s: scan_node(name, s, 0), [x])
    assert forward.tolist() == [1, 4, 0, 0, 0, 1]
    (backward,) = gradients_of(lambda s: scan_node(name, s, 0, True), [x])
    assert backward.tolist() == [0, 0, 0, 0, 0, 6]
    (level,) = gradients_of(lambda s: scan_node(name, s, 0, True), [np.zeros(4)])
    assert level.tolist() == [0, 0, 0, 4]


def test_scattered_ties_share_alike_with_what_was_there() -> None:
    x, index, v = np.array([2.0, 1.0]), np.array([0, 0, 1]), np.array([2.0, 2.0, 5.0])
    by_x, by_v = gradients_of(lambda x, i, v: scatter("max", x, i, v, 0), [x, index, v])
    np.testing.assert_allclose(by_x, [1 / 3, 0])
    np.testing.assert_allclose(by_v, [1 / 3, 1 / 3, 1])


def test_of_several_values_set_only_the_last_has_a_gradient() -> None:
    x, index, v = np.zeros(3), np.array([1, 1, 2, 1]), np.ones(4)
    weights = np.array([5.0, 6.0, 7.0])
    by_x, by_v = gradients_of(lambda x, i, v: scatter("set", x, i, v, 0), [x, index, v], weights)
    assert by_x.tolist() == [5, 0, 0]
    assert by_v.tolist() == [0, 0, 7, 6]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([2.0, 3.0, 4.0], [12, 8, 6]), ([0.0, 3.0, 4.0], [12, 0, 0]), ([0.0, 0.0, 4.0], [0, 0, 0])],
    ids=["no-zero", "one-zero", "two-zeros"],
)
def test_a_product_with_zeros_has_its_exact_gradient(
    values: list[float], expected: list[float]
) -> None:
    x = np.array(values)
    (found,) = gradients_of(lambda s: reduce_node("mul", s, (0,)), [x])
    assert found.tolist() == expected
    index = np.zeros(2, int)
    by_x, by_v = gradients_of(lambda x, i, v: scatter("mul", x, i, v, 0), [x[:1], index, x[1:]])
    assert [*by_x.tolist(), *by_v.tolist()] == expected
    (last,) = gradients_of(lambda s: scan_node("mul", s, 0), [x], np.array([0.0, 0.0, 1.0]))
    assert last.tolist() == expected


def test_kinks_have_the_slope_their_rule_says() -> None:
    assert gradients_of(ABS, [np.array([-2.0, 0.0, -0.0, 3.0])])[0].tolist() == [-1, 0, 0, 1]
    by_a, by_b = gradients_of(MOD, [np.array([5.0, -5.0, 6.0]), np.array([3.0, 3.0, 3.0])])
    assert by_a.tolist() == [1, 1, 1] and by_b.tolist() == [-1, 2, -2]
    base, power = np.array([0.0, 0.0, 0.0, 2.0]), np.array([0.0, 1.0, 2.0, 0.0])
    by_base, by_power = gradients_of(POW, [base, power])
    assert by_base.tolist() == [0, 1, 0, 0]
    np.testing.assert_allclose(by_power, [0, 0, 0, np.log(2)])


def test_where_sends_nothing_to_the_side_not_chosen() -> None:
    condition = np.array([True, False])
    by_a, by_b = gradients_of(WHERE, [condition, np.array([1.0, np.nan]), np.array([np.inf, 2.0])])
    assert by_a.tolist() == [1, 0] and by_b.tolist() == [0, 1]


# --- dtypes and dead ends ------------------------------------------------------------------------


def test_a_cast_sends_the_gradient_back_in_the_dtype_of_its_source() -> None:
    x = new_buffer((2,), float16)
    (found,) = gradient(CAST(x, arg=float32) * constant(3, float32, (2,)), [x])
    assert found is not None and found.dtype is float16
    assert evaluate([found])[0].tolist() == [3, 3]


def test_nothing_flows_through_whole_numbers_rounding_or_detach() -> None:
    x = leaf(np.ones(3))
    for blocked in (
        CAST(CAST(x, arg=int32), arg=float64), FLOOR(x), DETACH(x), CAST(LT(x, x), arg=float64),
        OPS["bitcast"](x, arg=float64), WHERE(constant(True, bool_, (3,)), DETACH(x), DETACH(x)),
    ):  # fmt: skip
        assert gradient(blocked, [x]) == [None]
        (found,) = gradient(blocked + x, [x])
        assert found is constant_like(1, x)


def test_what_the_result_does_not_depend_on_has_no_gradient() -> None:
    x, other = leaf(np.ones(3)), leaf(np.ones(3))
    assert gradient(SIN(x), [other]) == [None]
    assert gradient(SIN(x), [x, other])[1] is None


def test_the_gradient_of_a_result_by_itself_is_its_seed() -> None:
    x = leaf(np.ones(3))
    y = SIN(x)
    seed = constant(5.0, float64, (3,))
    assert gradient(y, [y], seed) == [seed]
    assert gradient(y, [y]) == [constant(1.0, float64, (3,))]


def test_a_node_inside_the_graph_can_be_asked_for_along_with_its_sources() -> None:
    x = leaf(np.ones(3))
    inner = SIN(x)
    by_inner, by_x = gradient(inner * inner, [inner, x])
    (twice, chained) = evaluate([by_inner, by_x], {x: np.ones(3)})  # type: ignore[list-item]
    np.testing.assert_allclose(twice, 2 * np.sin(np.ones(3)))
    np.testing.assert_allclose(chained, np.sin(2 * np.ones(3)))


def test_a_whole_number_result_has_no_gradient() -> None:
    x = leaf(np.ones(3))
    with pytest.raises(GradientError, match="int32 result has no gradient"):
        gradient(CAST(x, arg=int32), [x])


def test_an_op_without_a_rule_is_named_with_the_users_line() -> None:
    op = Op(name="test_ruleless", family="effect", doc="", arity=1, numpy=lambda node, a: a)
    try:
        x = leaf(np.ones(3))
        with pytest.raises(GradientError, match="test_ruleless has no gradient"):
            gradient(op(SIN(x)), [x])
        assert gradient(op(DETACH(SIN(x))) * x, [x]) != [None]
    finally:
        del OPS["test_ruleless"]


# --- cost ----------------------------------------------------------------------------------------


def _grow_product(x: Node, y: Node) -> Node:
    return y * x


def _grow_fan(x: Node, y: Node) -> Node:
    return SIN(y) * COS(y) + y


def _grow_max(x: Node, y: Node) -> Node:
    return MAX(y, x) + 1


@pytest.mark.parametrize("grow", [_grow_product, _grow_fan, _grow_max])
def test_a_gradient_costs_in_proportion_to_the_graph(grow: Any) -> None:
    links = 2000
    x = leaf(np.ones(2))
    y = x
    for _ in range(links):
        y = grow(x, y)
    before = leaf(np.ones(1)).id
    (found,) = gradient(y, [x])
    assert found is not None
    assert leaf(np.ones(1)).id - before < 16 * links  # ids count the nodes that were made
    assert len(toposort([found])) < 20 * links
