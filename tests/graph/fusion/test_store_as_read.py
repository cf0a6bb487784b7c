"""Tests of graph/fusion/store_as_read.py: what readers permute is stored in their order."""

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.aot.schedule import schedule

pytestmark = pytest.mark.device("cpu")
HOSTILE = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 3e38)


def given(*shape: int, seed: int = 0, hostile: bool = False) -> fg.Tensor:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape).astype(np.float32)
    if hostile:
        values.reshape(-1)[: len(HOSTILE)] = rng.permutation(HOSTILE)[: values.size]
    return fg.from_numpy(values)


def heads(rows: int, seed: int = 0, hostile: bool = False) -> fg.Tensor:
    return given(3, rows, 7, seed=seed, hostile=hostile) @ given(3, 7, 4, seed=seed + 1)


def joined(x: fg.Tensor) -> fg.Tensor:
    return fg.permute_dims(x, (1, 0, 2)).reshape(x.shape[1], -1)


def stored(*tensors: fg.Tensor) -> list[tuple[object, ...]]:
    """The shapes of what kernels store, without axes of 1."""
    found = schedule(*tensors)
    slots = [found.slots[place] for item in found.items for place in item.writes]
    return [tuple([n for n in slot.shape if n != 1]) for slot in slots if slot is not None]


def test_heads_are_stored_side_by_side_for_their_projection() -> None:
    assert stored(joined(heads(5)) @ given(12, 6)) == [(5, 3, 4), (5, 6)]


def test_attention_is_one_fold_that_stores_rows_of_its_projection() -> None:
    q, k, v = [given(3, 64, 16, seed=n) for n in range(3)]
    seen = fg.softmax(q @ k.mT / 4, axis=-1) @ v
    found = schedule(joined(seen) @ given(48, 6))
    assert [item.kernel.kind for item in found.items] == ["fold", "contract"]
    assert stored(joined(seen) @ given(48, 6))[0] == (64, 3, 16)


def test_what_somebody_else_wants_is_stored_as_it_is() -> None:
    x = heads(5)
    assert stored(joined(x) @ given(12, 6), x)[0] == (3, 5, 4)
    assert stored(joined(x) @ given(12, 6), fg.exp(x))[0] == (3, 5, 4)
    other = fg.permute_dims(x, (1, 2, 0)).reshape(5, 12)
    assert stored(joined(x) @ given(12, 6), other @ given(12, 6))[0] == (3, 5, 4)


def test_a_permutation_whose_axes_stay_apart_is_left_to_the_reader() -> None:
    turned = fg.permute_dims(heads(5), (1, 0, 2))
    assert stored(turned @ given(4, 6))[0] == (3, 5, 4)


def test_the_last_axis_stays_last() -> None:
    turned = fg.permute_dims(heads(5), (2, 1, 0)).reshape(4, -1)
    assert stored(turned @ given(15, 6))[0] == (3, 5, 4)


@pytest.mark.parametrize("rows", [1, 2, 5, 33])
def test_values_are_those_of_the_reference(rows: int) -> None:
    def run() -> np.ndarray:
        x = heads(rows, hostile=True)
        return (joined(x) @ given(12, 6, seed=2)).numpy()

    found = run()
    with fg.config(device="reference"):
        np.testing.assert_allclose(found, run(), rtol=1e-5, atol=1e-5)
