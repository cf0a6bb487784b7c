"""Tests of fulgurite/functional/array/joining.py: NumPy is the oracle."""

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, ShapeError
from tests.functional.helpers import raises, same_bits, tensor

SHAPES: list[list[tuple[int, ...]]] = [
    [(), ()], [(3,), (3,)], [(2, 3), (2, 3)], [(2, 3, 4), (2, 3, 4)], [(1,)], [(0,), (0,)],
    [(2, 3, 1), (2, 3, 1)], [(2, 0), (2, 0)],
]  # fmt: skip


@pytest.mark.parametrize("name", ["hstack", "vstack", "dstack", "column_stack"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_joining_is_numpys(name: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = [np.arange(np.prod(s), dtype="float32").reshape(s) + i for i, s in enumerate(shapes)]
    want = getattr(np, name)(arrays)
    same_bits(getattr(fg, name)([tensor(a) for a in arrays]), want)
    mixed: list[Any] = [tensor(arrays[0]), *arrays[1:]]
    same_bits(getattr(fg, name)(tuple(mixed)), want)


def test_lines_join_matrices_and_dtypes_are_promoted() -> None:
    rows = fg.vstack([fg.Tensor([1, 2]), fg.ones((2, 2))])
    assert rows.dtype is fg.float32 and rows.shape == (3, 2)
    columns = fg.column_stack([fg.Tensor([True, False]), fg.Tensor([[1, 2], [3, 4]])])
    assert columns.tolist() == [[1, 1, 2], [0, 3, 4]]


def test_what_does_not_join_is_an_error() -> None:
    for name in ("hstack", "vstack", "dstack", "column_stack"):
        with raises(ArgumentError):
            getattr(fg, name)([])
        with raises(ArgumentError):
            getattr(fg, name)(fg.ones((2, 2)))
    with raises(ShapeError):
        fg.vstack([fg.ones(2), fg.ones(3)])
