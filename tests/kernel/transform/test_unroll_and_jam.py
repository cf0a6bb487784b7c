"""Tests of kernel/transform/unroll_and_jam.py: short axes of results that are folded together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.codegen.cpu.tiling import CPU
from fulgurite.core.node import toposort
from fulgurite.core.ops.index import FOLD, LOAD
from fulgurite.graph.ir.lower import IndexKernel, lower
from fulgurite.kernel.transform.merge_axes import merge_axes
from fulgurite.kernel.transform.unroll_and_jam import unroll_and_jam

pytest.importorskip("llvmlite")

from tests.codegen.cpu.launch import run
from tests.properties import kernels

LOOPS = CPU.loops


def kernel(x: fg.Tensor) -> IndexKernel:
    (item,) = fg.schedule(x).items
    return merge_axes(lower(item.kernel.body, item.kernel.inputs))


def count(k: IndexKernel, op: object) -> int:
    return sum(n.op is op for n in toposort([k.body]))


def ones(*shape: int) -> fg.Tensor:
    return fg.ones(shape, device="cpu").realize()


def weights_gradient(x: fg.Tensor, w: fg.Tensor, back: fg.Tensor, **how: int) -> fg.Tensor:
    """The gradient of a convolution to its weights."""
    found = fg.grad(lambda w: (fg.conv2d(x, w, **how) * back).sum())(w)
    assert isinstance(found, fg.Tensor)
    return found


def test_the_gradient_of_depthwise_weights_reads_what_comes_back_once() -> None:
    x, back = ones(2, 20, 9, 9), ones(2, 20, 9, 9)
    found = kernel(weights_gradient(x, ones(20, 1, 3, 3), back, padding=1, groups=20))
    written = unroll_and_jam(found, LOOPS.unroll, LOOPS.vector)
    assert (count(found, FOLD), count(found, LOAD)) == (1, 2)
    assert (count(written, FOLD), count(written, LOAD)) == (9, 10)
    assert len(written.body.src) == 9
    middle = [n for n in toposort([written.body]) if n.op is LOAD and not n.arg[2]]
    assert len(middle) == 2  # what comes back, and the image under the middle of the window


@pytest.mark.parametrize(
    "make",
    [
        lambda: ones(30, 4, 500).sum(axis=2),  # nothing is shared
        lambda: (ones(500, 30) * ones(500, 1)).sum(axis=0),  # lanes are results
        lambda: (ones(7, 1, 500) * ones(7, LOOPS.unroll.outputs + 1, 500)).max(axis=2),  # too many
        lambda: ones(30, 4, 500) + 1,  # no fold
    ],
)
def test_what_would_save_no_reading_stays_as_it_is(make) -> None:  # type: ignore[no-untyped-def]
    found = kernel(make())
    assert unroll_and_jam(found, LOOPS.unroll, LOOPS.vector) is found


@kernels
@given(
    st.integers(1, 3), st.integers(1, 20), st.integers(5, 20), st.integers(5, 40),
    st.sampled_from([1, 2, 3, 5]), st.integers(1, 2), st.integers(0, 2), st.integers(0, 99),
)  # fmt: skip
def test_gradients_of_depthwise_weights_agree_with_float64(
    batch: int, channels: int, high: int, wide: int, size: int, stride: int, pad: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, channels, high, wide)).astype(np.float32)
    y = [(n + 2 * pad - size) // stride + 1 for n in (high, wide)]
    back = rng.standard_normal((batch, channels, *y)).astype(np.float32)
    image, given_, weights = [fg.Tensor(v, device="cpu") for v in (x, back, np.zeros(1, "f"))]
    weights = weights.expand((channels, 1, size, size))
    lazy = weights_gradient(image, weights, given_, padding=pad, stride=stride, groups=channels)
    (found,), _ = run(lazy, seed=seed)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    for i in range(size):
        for j in range(size):
            part = padded[:, :, i : i + stride * y[0] : stride, j : j + stride * y[1] : stride]
            exact = (part[:, :, : y[0], : y[1]] * back).sum(axis=(0, 2, 3))
            np.testing.assert_allclose(
                found.reshape(channels, size, size)[:, i, j], exact, rtol=1e-4, atol=1e-4
            )
