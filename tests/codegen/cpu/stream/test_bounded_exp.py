"""Powers of what is never above 0: which they are, and their values against those of float64."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.stream.bounded_exp import bounded_exps
from fulgurite.core.dtype import bool_, float32
from fulgurite.core.node import Node, constant, make
from fulgurite.core.ops.elementwise import ADD, EQ, EXP, EXP2, LT, MAX, MUL, NE, SUB, WHERE
from fulgurite.core.ops.index import FOLD, LOAD
from fulgurite.kernel.stream.online import State
from tests.graph.searching import numbers

FOLDED = {"device": "cpu", "tier": "native", "search": True}
Spelling = Callable[[fg.Tensor], fg.Tensor]


def _with_exp2(scores: fg.Tensor) -> fg.Tensor:
    power = fg.exp2((scores - fg.max(scores, axis=-1, keepdims=True)) * 1.4426950408889634)
    return power / fg.sum(power, axis=-1, keepdims=True)


def _guarded(scores: fg.Tensor) -> fg.Tensor:
    top = fg.max(scores, axis=-1, keepdims=True)
    power = fg.exp(scores - fg.where(top == -inf, 0.0, top))
    return power / fg.sum(power, axis=-1, keepdims=True)


SPELLINGS: dict[str, Spelling] = {
    "guarded": _guarded,
    "exp": lambda scores: fg.softmax(scores, axis=-1),
    "exp2": _with_exp2,
}


def _load() -> Node:
    return make(LOAD, float32, (), (0, (0, ((0, 1),)), ()))


def _state(op: str) -> State:
    fold = make(FOLD, float32, (_load(),), (op, (0,)))
    return State(fold, fold, None, 0)


def _times(node: Node, number: float) -> Node:
    return make(MUL, float32, (node, constant(number, float32)))


@pytest.mark.parametrize("op", [EXP, EXP2], ids=str)
def test_only_what_is_never_above_zero_counts(op: object) -> None:
    largest, least = _state("max"), _state("min")
    below = make(SUB, float32, (_load(), largest.fold))
    wanted = {
        below: True,
        _times(below, 3.0): True,
        _times(below, -3.0): False,
        make(SUB, float32, (_load(), least.fold)): False,
        make(SUB, float32, (_times(_load(), 2.0), largest.fold)): False,
        make(ADD, float32, (_load(), largest.fold)): False,
    }
    for exponent, want in wanted.items():
        power = make(op, float32, (exponent,))  # type: ignore[arg-type]
        assert (power in bounded_exps([power], [largest, least])) is want


def test_a_guarded_base_counts_where_its_number_is_not_below_what_it_stands_for() -> None:
    largest = _state("max")
    top, zero, none = largest.fold, constant(0.0, float32), constant(-inf, float32)
    one, odd = constant(1.0, float32), constant(nan, float32)

    def guard(test: object, left: Node, right: Node, first: Node, second: Node) -> Node:
        condition = make(test, bool_, (left, right))  # type: ignore[arg-type]
        return make(WHERE, float32, (condition, first, second))

    wanted = {
        guard(EQ, top, none, zero, top): True,
        guard(EQ, none, top, zero, top): True,
        guard(NE, top, none, top, zero): True,
        guard(NE, top, none, zero, top): False,
        guard(EQ, top, one, zero, top): False,  # 1 - 0
        guard(EQ, top, odd, zero, top): False,
        guard(EQ, top, none, odd, top): False,
        guard(EQ, top, none, _load(), top): False,
        guard(EQ, zero, none, zero, top): False,
        guard(LT, top, none, zero, top): False,
        make(MAX, float32, (top, constant(-1e30, float32))): True,
        make(MAX, float32, (_load(), top)): True,
        make(MAX, float32, (_load(), zero)): False,
    }
    for base, want in wanted.items():
        power = make(EXP, float32, (make(SUB, float32, (_load(), base)),))
        assert (power in bounded_exps([power], [largest])) is want, base


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spread", [1.0, 60.0, 1e4])
def test_weights_are_as_exact_as_they_were(
    spelling: str, rows: int, dtype: str, spread: float
) -> None:
    rng = np.random.default_rng(7)
    q, k, v = (rng.normal(size=s).astype(dtype) for s in ((rows, 8), (150, 8), (150, 5)))
    q *= spread
    weigh = SPELLINGS[spelling]
    with fg.config(**FOLDED):
        result = weigh(fg.Tensor(q) @ fg.Tensor(k).mT) @ fg.Tensor(v)
        assert [kernel.kind for kernel in fg.explain(result).kernels] == ["fold"]
        got = np.asarray(result.numpy(), np.float64)
    with fg.config(device="reference", search=False):
        plain = (weigh(fg.Tensor(q) @ fg.Tensor(k).mT) @ fg.Tensor(v)).numpy()
    scores = q.astype(np.float64) @ k.astype(np.float64).T
    power = np.exp(scores - scores.max(-1, keepdims=True))
    want = power / power.sum(-1, keepdims=True) @ v.astype(np.float64)
    error, known = (np.sqrt(np.mean((x - want) ** 2)) for x in (got, np.asarray(plain)))
    assert error <= 1.5 * known + 4 * np.finfo(dtype).eps


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("bad", [nan, inf, -inf])
@pytest.mark.parametrize("place", [0, 77, 149])
def test_odd_scores_end_in_the_rows_they_are_in(rows: int, bad: float, place: int) -> None:
    bias = np.zeros((rows, 150), np.float32)
    bias[0, place] = bad

    def result() -> np.ndarray:
        scores = numbers(1, rows, 8) @ numbers(2, 150, 8).mT + fg.Tensor(bias)
        return np.asarray((fg.softmax(scores, axis=-1) @ numbers(3, 150, 5)).numpy())

    with fg.config(**FOLDED):
        got = result()
    with fg.config(device="reference", search=False):
        want = result()
    np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-6)
