"""Strips of rows: how folds that walk rows twice are cut, and where they are chosen."""

from __future__ import annotations

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.graph.fusion.machine import elements
from fulgurite.graph.ir.lower import lower
from fulgurite.kernel.contract.analysis import Block
from fulgurite.kernel.stream import two_pass
from fulgurite.kernel.stream.online import stream
from fulgurite.kernel.stream.roles import Fold, FoldCut, cut_fold, find_fold
from fulgurite.kernel.transform.merge_axes import merge_axes
from tests.graph.searching import kinds, lowered, planned

BLOCK = Block(9, 48, 16, 4)


def memory(*shape: int) -> fg.Tensor:
    """Some memory that nobody reads."""
    return fg.Tensor(np.zeros(shape, np.float32))


def weighed(rows: int, keys: int, size: int = 32, other: int = 32, heads: int = 1) -> Fold:
    """Weights that need whole rows, times values, and turned times values of rows."""
    shapes = ((rows, size), (keys, size), (keys, 8), (rows, other))
    q, k, v, g = [memory(heads, *shape) for shape in shapes]
    w = fg.softmax(q @ k.mT, axis=-1)
    sink, inputs = lowered(w @ v, w.mT @ g)
    streaming = stream(merge_axes(lower(sink, inputs)))
    assert streaming is not None and streaming.waits
    fold = find_fold(streaming)
    assert fold is not None
    return fold


def cut_of(fold: Fold) -> FoldCut | None:
    return cut_fold(fold, BLOCK, 256)


@pytest.mark.parametrize("rows", [256, 300, 512, 1000, 5000])
@pytest.mark.parametrize("keys", [600, 32_000, 130_000])
def test_a_strip_is_a_small_part_of_the_matrix_and_of_memory(rows: int, keys: int) -> None:
    fold = weighed(rows, keys)
    cut = cut_of(fold)
    assert cut is not None
    kept = two_pass.strip_bytes(fold, cut)
    assert kept <= two_pass.MEMORY and 4 * kept <= 4 * (rows + 2 * 16) * keys
    assert two_pass.FEW <= cut.rows <= two_pass.MANY and cut.rows % 16 == 0
    assert (cut.strips - 1) * cut.rows < rows <= cut.strips * cut.rows
    assert cut.splits * cut.span >= keys > (cut.splits - 1) * cut.span and cut.span % cut.steps == 0
    if rows >= two_pass.SHARE * two_pass.FEW:
        assert two_pass.SHARE * cut.rows <= rows


@pytest.mark.parametrize(
    "rows, keys", [(255, 600), (4096, 140_000), (100_000, 600)], ids=["rows", "memory", "many"]
)
def test_where_a_strip_would_have_few_rows_or_strips_would_be_many_there_is_none(
    rows: int, keys: int
) -> None:
    assert cut_of(weighed(rows, keys)) is None


def test_results_must_be_rows_of_whole_vectors() -> None:
    assert cut_of(weighed(512, 600, other=32)) is not None
    assert cut_of(weighed(512, 600, other=33)) is None


def test_long_rows_of_values_leave_room_for_blocks() -> None:
    cut = cut_of(weighed(512, 4000, size=768, other=768))
    assert cut is not None and cut.steps >= two_pass.LEAST


def losses(rows: int, size: int, count: int, turned: bool = False) -> list[fg.Tensor]:
    """A linear layer with classes, and its gradients."""
    places = fg.Tensor(np.zeros(rows, np.int64))

    def loss(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        return fg.cross_entropy(x @ (w if turned else w.mT), places)

    weights = memory(size, count) if turned else memory(count, size)
    value, grads = fg.value_and_grad(loss, argnums=(0, 1))(memory(rows, size), weights)
    return [value, *grads]


@pytest.mark.parametrize("turned", [False, True])
def test_a_layer_of_many_classes_with_its_gradients_keeps_no_matrix(turned: bool) -> None:
    found, who = planned(*losses(512, 256, 32_000, turned))
    assert kinds(found) == ["fold", "reduce"]
    assert any(
        "6 strips of rows" in a.what for r in who.reports for a in r.alternatives if a.chosen
    )
    for slot in found.slots:
        assert slot is None or elements(slot.shape) < 512 * 32_000


def test_small_matrices_are_not_worth_strips() -> None:
    _, who = planned(*losses(256, 64, 1000))
    chosen = [a.what for r in who.reports for a in r.alternatives if a.chosen]
    assert chosen and not any("strips" in what for what in chosen)
