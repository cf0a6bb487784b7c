"""Rows with a few numbers at one end: worked out as rows, and the few."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.node import Node, toposort
from fulgurite.core.ops.movement import PAD
from fulgurite.graph.passes.split_concat import split_concat
from tests.graph.searching import lowered, numbers

ROWS, KEYS, SIZE = 6, 9, 4


def _parts(few: int, first: bool) -> tuple[list[fg.Tensor], slice]:
    scores = numbers(1, 2, ROWS, SIZE) @ numbers(2, 2, SIZE, KEYS)
    beside = numbers(3, 2, ROWS, few)
    kept = slice(few, None) if first else slice(0, KEYS)
    return [beside, scores] if first else [scores, beside], kept


def _changed(*tensors: fg.Tensor) -> Node:
    sink, _ = lowered(*tensors)
    return split_concat(sink, toposort([sink]))


def _pads(sink: Node) -> int:
    return sum(node.op is PAD for node in toposort([sink]))


def _values(make: Sequence[fg.Tensor], search: bool) -> list[np.ndarray]:
    with fg.config(search=search, tier="native", poison=True):
        return [t.numpy() for t in fg.realize(*make)]


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("few", [1, 3])
@pytest.mark.parametrize("extreme", ["max", "min"])
def test_folds_of_rows_with_a_tail_are_those_of_both_parts(
    extreme: str, few: int, first: bool
) -> None:
    def made() -> list[fg.Tensor]:
        parts, kept = _parts(few, first)
        whole = fg.concatenate(parts, axis=-1) * 2
        powers = fg.exp(whole - getattr(whole, extreme)(axis=-1, keepdims=True))
        return [(powers / powers.sum(axis=-1, keepdims=True))[..., kept]]

    assert _pads(_changed(*made())) == 0
    np.testing.assert_allclose(_values(made(), True), _values(made(), False), rtol=1e-5)


def test_gradients_go_back_to_their_parts() -> None:
    def made() -> list[fg.Tensor]:
        q, k, end, weight = (numbers(i, *s) for i, s in enumerate(
            [(2, ROWS, SIZE), (2, KEYS, SIZE), (2, 1, 1), (2, ROWS, KEYS)]))  # fmt: skip

        def loss(q: fg.Tensor, k: fg.Tensor, end: fg.Tensor) -> fg.Tensor:
            rows = [q @ k.mT, end.expand((2, ROWS, 1))]
            return (fg.softmax(fg.concatenate(rows, axis=-1), axis=-1)[..., :-1] * weight).sum()

        return list(fg.grad(loss, argnums=(0, 1, 2))(q, k, end))

    assert _pads(_changed(*made())) == 0
    for got, wanted in zip(_values(made(), True), _values(made(), False), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


def test_rows_that_are_wanted_whole_stay_so() -> None:
    parts, _ = _parts(1, False)
    whole = fg.concatenate(parts, axis=-1)
    both = [fg.exp(whole), fg.exp(whole).sum(axis=-1)]
    assert _pads(_changed(*both)) == 2
    for got, wanted in zip(_values(both, True), _values(both, False), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_a_tail_that_is_not_a_number_is_in_what_is_folded() -> None:
    parts, _ = _parts(1, False)
    odd = fg.concatenate([parts[0], parts[1] * np.nan], axis=-1)
    assert np.isnan(_values([odd.max(axis=-1)], True)[0]).all()


@pytest.mark.parametrize("other", ["long", "no product"])
def test_two_long_parts_and_parts_of_no_product_stay_joined(other: str) -> None:
    parts, _ = _parts(5 if other == "long" else 1, False)
    if other == "no product":
        parts = [numbers(1, 2, ROWS, KEYS), parts[1]]
    sink, _ = lowered(fg.concatenate(parts, axis=-1).sum(axis=-1))
    assert split_concat(sink, toposort([sink])) is sink
