"""Zeros of quantised factors: outside the sum, and no bit changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.passes import show
from fulgurite.graph.ir.lower import IndexKernel

RNG = np.random.default_rng(7)


def hostile(*shape: int) -> Any:
    return RNG.choice([0, 1, 127, 128, 255], shape).astype(np.uint8)


@pytest.mark.parametrize("zeros", [(3, 0), (255, 128), (0, 255)])
@pytest.mark.parametrize("shape", [(8, 40, 24), (2, 64, 16), (5, 34_000, 6)])
def test_sums_around_zeros_are_the_same(
    shape: tuple[int, int, int], zeros: tuple[int, int]
) -> None:
    """Also of so many products that they wrap around, and with zeros that are computed."""
    (m, k, n), (za, zb) = shape, zeros
    a, b = hostile(m, k), hostile(k, n).astype(np.int8)
    x, y = fg.Tensor(a).astype(fg.int32), fg.Tensor(b).astype(fg.int32)
    want = ((a.astype(np.int64) - za) @ (b.astype(np.int64) - zb)).astype(np.int32)
    for zero in (za, fg.Tensor(np.array(za, np.uint8)).astype(fg.int32)):
        np.testing.assert_array_equal(((x - zero) @ (y - zb)).numpy(), want)


def test_windows_around_a_zero_are_the_same() -> None:
    x, w = hostile(1, 4, 9, 9), hostile(8, 4, 3, 3).astype(np.int8)
    centred = fg.Tensor(x).astype(fg.int32) - 7
    found = fg.conv2d(centred, fg.Tensor(w).astype(fg.int32), padding=1).numpy()
    padded = np.pad(x.astype(int) - 7, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    np.testing.assert_array_equal(found, np.einsum("nchwij,ocij->nohw", windows, w.astype(int)))


def test_the_factors_of_a_product_are_bytes() -> None:
    x, y = fg.Tensor(hostile(32, 64)), fg.Tensor(hostile(64, 48).astype(np.int8))
    made = (x.astype(fg.int32) - 128) @ (y.astype(fg.int32) - 3)
    with fg.config(tier="native"):
        items = fg.schedule(made).items
    (product,) = [i.kernel for i in items if i.kernel.kind == "contract"]
    assert isinstance(product.lowered, IndexKernel)
    lines = show(product.lowered.body).splitlines()
    (times,) = [line.split() for line in lines if "fold(" in line]
    left, right = next(x.split()[3:5] for x in lines if x.startswith(f"{times[4]} = mul"))
    for factor in (left, right):
        assert any(x.startswith(f"{factor} = cast(int32)") for x in lines)
