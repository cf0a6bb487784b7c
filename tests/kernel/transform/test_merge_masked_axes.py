"""Tests of fulgurite/kernel/transform/merge_masked_axes.py: short rows under conditions."""

from __future__ import annotations

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.tiling import CPU
from fulgurite.graph.ir.lower import IndexKernel, lower
from fulgurite.kernel.transform.merge_masked_axes import merge_masked_axes
from tests.codegen.cpu.launch import run

RNG = np.random.default_rng(203)


def numbers(*shape: int) -> fg.Tensor:
    return fg.Tensor(RNG.standard_normal(shape).astype(np.float32))


def merged(x: fg.Tensor) -> IndexKernel:
    (item,) = fg.schedule(x).items
    return merge_masked_axes(lower(item.kernel.body, item.kernel.inputs), CPU.loops.vector)


def test_pixels_with_channels_last_become_one_row() -> None:
    made = merged(fg.pad(numbers(6, 7, 5), ((1, 1), (2, 3), (0, 0))))
    assert made.axes == (8, 60)  # and the rows above and below stay rows


def test_long_rows_and_padded_rows_stay_apart() -> None:
    assert len(merged(fg.pad(numbers(3, 7, 400), ((0, 0), (2, 3), (0, 0)))).axes) == 3
    assert len(merged(fg.pad(numbers(3, 7, 5), ((0, 0), (2, 3), (1, 0)))).axes) == 3


@pytest.mark.parametrize("inner", [1, 3, 16, 33])
def test_values_are_as_they_were(inner: int) -> None:
    """Paddings on every side, of what is computed too, with NaN and infinity among it."""
    x = numbers(2, 5, 6, inner)
    x = fg.where(x > 1.5, fg.full((), np.inf), fg.where(x < -1.5, fg.full((), np.nan), x))
    for widths in (((0, 0), (1, 1), (1, 1), (0, 0)), ((1, 0), (0, 2), (3, 0), (0, 0)),
                   ((0, 1), (2, 0), (0, 0), (0, 2))):  # fmt: skip
        for y in (x.contiguous(), fg.abs(x) * 2):
            made = fg.pad(y, widths, constant_values=-1.5)
            found, _ = run(made, seed=inner)
            want = np.pad(y.numpy(), widths, constant_values=-1.5)
            np.testing.assert_array_equal(found[0], want)


def test_strided_and_reversed_pictures_keep_their_values() -> None:
    x = numbers(4, 6, 5)
    for y in (x[:, ::2], fg.flip(x, 1), x[1:, 3:]):
        made = fg.pad(y, ((1, 2), (2, 1), (0, 0)))
        found, _ = run(made)
        np.testing.assert_array_equal(found[0], np.pad(y.numpy(), ((1, 2), (2, 1), (0, 0))))
