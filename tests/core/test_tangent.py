"""Forward mode: tangents of every op against finite differences and against reverse mode."""

from __future__ import annotations

import numpy as np
import pytest

from fulgurite.core.gradient import gradient
from fulgurite.core.node import Node, toposort
from fulgurite.core.op import Array
from fulgurite.core.ops.effect import HostFunction, custom
from fulgurite.core.ops.elementwise import EXP, SIN
from fulgurite.core.ops.reduce import scan_node
from fulgurite.core.tangent import tangents
from fulgurite.errors import GradientError
from fulgurite.runtime.host.evaluate import evaluate
from tests.core.ops.cases import Case
from tests.core.ops.samples import leaf
from tests.core.test_gradient import REAL_CASES, STEP


@pytest.mark.parametrize("case", REAL_CASES, ids=str)
def test_a_tangent_is_the_finite_difference_along_it(case: Case) -> None:
    random = np.random.default_rng(1)
    arrays = case.draw(random)
    ways: list[Array | None] = [
        np.asarray(random.normal(size=a.shape)) if a.dtype.kind == "f" else None for a in arrays
    ]
    leaves = [leaf(a) for a in arrays]
    seeds = [None if w is None else leaf(w) for w in ways]
    y = case.build(*leaves)
    moving = [(x, s) for x, s in zip(leaves, seeds, strict=True) if s is not None]
    (found,) = tangents([y], [x for x, _ in moving], [s for _, s in moving])
    known = dict(zip(leaves, arrays, strict=True))
    known |= {s: w for s, w in zip(seeds, ways, strict=True) if s is not None and w is not None}
    want = _difference(y, leaves, arrays, ways)
    got = np.zeros_like(want) if found is None else evaluate([found], known)[0]
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)
    if found is not None:
        assert found.shape == y.shape and found.dtype is y.dtype


def _difference(
    y: Node, leaves: list[Node], arrays: tuple[Array, ...], ways: list[Array | None]
) -> Array:
    ends = []
    for step in (STEP, -STEP):
        moved = [a if w is None else a + step * w for a, w in zip(arrays, ways, strict=True)]
        ends.append(evaluate([y], dict(zip(leaves, moved, strict=True)))[0])
    return np.asarray((ends[0] - ends[1]) / (2 * STEP))


def test_a_long_chain_is_walked_once() -> None:
    def count(length: int) -> int:
        x, way = leaf(np.zeros(3)), leaf(np.ones(3))
        y = x
        for _ in range(length):
            y = scan_node("mul", SIN(y), 0)  # a rule that is transposed reads the graph below it
        (found,) = tangents([y], [x], [way])
        assert found is not None
        return len(toposort([found]))

    assert count(80) <= 2.2 * count(40)


def test_a_tangent_of_a_tangent_is_the_second_derivative() -> None:
    x, way = leaf(np.array([0.3, 1.2])), leaf(np.ones(2))
    y = EXP(SIN(x))
    (first,) = tangents([y], [x], [way])
    assert first is not None
    (second,) = tangents([first], [x], [way])
    (slope,) = gradient(y, [x])
    assert second is not None and slope is not None
    (bend,) = gradient(slope, [x])
    assert bend is not None
    known = {x: np.array([0.3, 1.2]), way: np.ones(2)}
    a, b = evaluate([second, bend], known)
    np.testing.assert_allclose(a, b, rtol=1e-12)


def test_what_does_not_move_has_no_tangent() -> None:
    x, y, way = leaf(np.ones(2)), leaf(np.ones(2)), leaf(np.ones(2))
    assert tangents([y * 2.0, x], [x], [way]) == [None, way]


def test_an_op_without_a_gradient_says_so() -> None:
    x, way = leaf(np.ones(2)), leaf(np.ones(2))
    y = custom(HostFunction("test.opaque", np.negative), (x,), (2,), x.dtype)
    with pytest.raises(GradientError, match=r"test\.opaque"):
        tangents([y], [x], [way])
