"""Tests of fulgurite/kernel/transform/move_as_words.py: bytes that are only moved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.dtype import int8, uint8, uint32
from fulgurite.graph.ir.lower import IndexKernel, lower
from fulgurite.kernel.transform.move_as_words import move_as_words
from tests.codegen.cpu.launch import run

RNG = np.random.default_rng(203)


def kernel(x: fg.Tensor) -> IndexKernel:
    (item,) = fg.schedule(x).items
    return lower(item.kernel.body, item.kernel.inputs)


def bytes_(*shape: int, kind: str = "uint8") -> fg.Tensor:
    return fg.Tensor(RNG.integers(0, 256, shape).astype(np.uint8).view(kind))


def test_a_padding_around_whole_words_moves_words() -> None:
    found, dtypes = move_as_words(
        kernel(fg.pad(bytes_(5, 6, 8), ((1, 1), (2, 0), (0, 0)), constant_values=9)), (uint8, uint8)
    )
    assert found.axes == (7, 8, 2) and dtypes == (uint32, uint32)


@pytest.mark.parametrize(
    "made",
    [
        lambda: fg.pad(bytes_(5, 6, 8), ((1, 1), (2, 0), (1, 0))),  # words are cut
        lambda: fg.pad(bytes_(5, 6, 6), ((1, 1), (2, 0), (0, 0))),
        lambda: fg.flip(bytes_(5, 8), 1),
        lambda: bytes_(5, 12)[:, 1:9].contiguous(),
        lambda: bytes_(4, 8).T.contiguous(),
        lambda: bytes_(5, 8) + 1,
    ],
)
def test_what_is_no_move_of_words_stays_as_it_is(made: Any) -> None:
    same = kernel(made())
    assert move_as_words(same, (uint8, uint8))[0] is same


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("channels", [1, 3, 4, 12, 32, 68])
def test_pictures_are_padded_by_any_byte(kind: str, channels: int) -> None:
    """At odd addresses, with a byte that has a sign, on some sides."""
    x, dtype = bytes_(2, 5, 7, channels, kind=kind), {"uint8": uint8, "int8": int8}[kind]
    for value in (dtype.limits[0], 0, 3, dtype.limits[1]):
        for widths in (((0, 0), (1, 1), (1, 1), (0, 0)), ((0, 0), (0, 2), (3, 0), (0, 4))):
            (found,), _ = run(fg.pad(x, widths, constant_values=value), seed=channels)
            want = np.pad(x.numpy(), widths, constant_values=value)
            np.testing.assert_array_equal(found, want)


def test_crops_and_copies_keep_their_bytes() -> None:
    x = bytes_(6, 9, 16)
    for made in (x[1:5, 2:9].contiguous(), x[:, ::2, 4:12].contiguous()):
        (found,), _ = run(made)
        np.testing.assert_array_equal(found, made.numpy())
