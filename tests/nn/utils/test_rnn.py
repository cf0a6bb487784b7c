"""Sequences laid side by side, and taken apart again."""

from __future__ import annotations

import numpy as np

import fulgurite as fg
from fulgurite.errors import ArgumentError, ShapeError
from fulgurite.nn.utils.rnn import pad_sequence, unpad_sequence
from tests.functional.helpers import raises


def test_short_sequences_are_filled_up_on_the_side_asked_for() -> None:
    parts = [fg.ones((2, 3)), fg.ones((1, 3)), fg.ones((4, 3))]
    assert pad_sequence(parts).shape == (4, 3, 3)
    right = pad_sequence(parts, batch_first=True, padding_value=-1.0).numpy()
    assert right[1].tolist() == [[1, 1, 1], [-1, -1, -1], [-1, -1, -1], [-1, -1, -1]]
    left = pad_sequence(parts, batch_first=True, padding_side="left").numpy()
    assert left[0, :, 0].tolist() == [0, 0, 1, 1]


def test_sequences_come_back_as_they_were() -> None:
    parts = [fg.Tensor([1.0, 2.0]), fg.Tensor([3.0])]
    for first in (False, True):
        again = unpad_sequence(pad_sequence(parts, first), fg.Tensor([2, 1]), first)
        for mine, theirs in zip(again, parts, strict=True):
            np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_what_does_not_line_up_is_one_clear_error() -> None:
    with raises(ShapeError, "sequences of shapes (1, 2), (1, 3)"):
        pad_sequence([fg.ones((1, 2)), fg.ones((1, 3))])
    with raises(ShapeError, "none at all"):
        pad_sequence([])
    with raises(ArgumentError, "padding_side is 'top'"):
        pad_sequence([fg.ones(1)], padding_side="top")
    with raises(ArgumentError, "1 lengths for 2 sequences"):
        unpad_sequence(fg.ones((2, 2)), [1])
