"""Tests of kernel/stream/laws.py: both sides of every law are evaluated on hostile numbers."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pytest

from fulgurite.core.dtype import bool_, float64
from fulgurite.core.node import constant, make
from fulgurite.core.op import Array
from fulgurite.core.operators import OPS
from fulgurite.kernel.stream.laws import LAWS, Law, Pattern, invariant, positive
from fulgurite.kernel.stream.terms import INVERSE, PRODUCT

HOSTILE = [0.0, -0.0, 1.0, 0.5, -2.5, 3.0, -7.0, 1e-310, -1e30, 2.0**40, np.inf, -np.inf, np.nan]
ROWS = 3000
Given: TypeAlias = dict[str, list[Array]]


def variables(pattern: Pattern, condition: bool = False) -> dict[str, tuple[Pattern, bool]]:
    """The variables of a pattern, and whether they are conditions."""
    if not pattern.op:
        return {} if pattern.number is not None else {pattern.name: (pattern, condition)}
    found: dict[str, tuple[Pattern, bool]] = {}
    for place, source in enumerate(pattern.src):
        found |= variables(source, pattern.op == "where" and place == 0)
    return found


def numbers(law: Law, length: int, seed: int) -> Given:
    """Numbers for the variables of a law: rows by a folded axis."""
    rng = np.random.default_rng(seed)
    given: Given = {}
    for name, (pattern, condition) in variables(law.left).items():
        fixed = pattern.accepts in (invariant, positive)
        shape = (ROWS, 1 if fixed else length)
        count = int(rng.integers(max(pattern.least, 0), 3)) if pattern.many else 1
        values = [rng.choice(HOSTILE, shape) for _ in range(count)]
        if pattern.accepts is positive:
            values = [np.abs(value) for value in values]
        given[name] = [value > 0.5 for value in values] if condition else values
    return given


def evaluate(pattern: Pattern, given: Given) -> Array:
    """What a pattern is worth; folds run over the last axis."""
    if pattern.number is not None:
        return np.asarray(float(pattern.number))
    if not pattern.op:
        (value,) = given[pattern.name]
        return value
    if pattern.op == PRODUCT:
        value = np.ones((1, 1))
        for part in pattern.src:
            if part.op == INVERSE:
                value = value / evaluate(part.src[0], given)
            for factor in given[part.name] if part.many else ():
                value = value * factor
            if part.op != INVERSE and not part.many:
                value = value * evaluate(part, given)
        return value
    sources = [evaluate(source, given) for source in pattern.src]
    if pattern.fold:
        length = max(value.shape[-1] for values in given.values() for value in values)
        wide = np.broadcast_to(sources[0], (ROWS, length))
        fold: Any = {"add": np.sum, "max": np.max, "min": np.min}[pattern.fold]
        return np.asarray(fold(wide, axis=-1, keepdims=True))
    op = OPS[pattern.op]
    assert op.numpy is not None
    kinds = {"b": bool_, "f": float64}
    node = make(op, float64, tuple([constant(0, kinds[v.dtype.kind]) for v in sources]))
    return op.numpy(node, *sources)


def holds(law: Law) -> bool:
    """Is what is finite on the left the same on the right, whatever the length of the axis?"""
    with np.errstate(all="ignore"):
        for seed, length in enumerate((1, 2, 5, 5)):
            given = numbers(law, length, seed)
            left, right = np.broadcast_arrays(*[evaluate(s, given) for s in (law.left, law.right)])
            sizes = {name: [abs(v) for v in values] for name, values in given.items()}
            scale = np.broadcast_to(evaluate(law.left, sizes), left.shape)
            known = np.isfinite(left)
            assert known.sum() > ROWS // 100
            near = np.abs(right - left) <= 1e-12 * (np.abs(left) + np.abs(scale)) + 1e-250
            if not np.all(near[known]):
                return False
    return True


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_what_is_finite_on_the_left_is_the_same_on_the_right(law: Law) -> None:
    assert holds(law)


def _but(law: Law, right: Pattern) -> Law:
    return law._replace(right=right)


def test_unsound_laws_are_caught() -> None:
    by_name = {law.name: law for law in LAWS}
    assert len(by_name) == len(LAWS)
    factor, choice = by_name["sum-factor"], by_name["where"]
    assert not holds(_but(factor, factor.right.src[1]))  # the factor is forgotten
    assert not holds(_but(by_name["sum-neg"], by_name["sum-neg"].right.src[0]))
    assert not holds(_but(by_name["max-exp"], by_name["min-exp"].right))
    unguarded = Pattern(PRODUCT, (choice.right.src[0].src[1].src[0], choice.right.src[1]))
    assert not holds(_but(choice, unguarded))  # a factor that is no number where none is chosen


def test_names_are_unique_and_both_sides_have_the_same_variables() -> None:
    for law in LAWS:
        assert set(variables(law.right)) == set(variables(law.left)), law.name
