"""Tests of fulgurite/codegen/cpu/conv/depthwise.py: windows of channels that are neighbours."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.codegen.cpu.target import target
from fulgurite.core import build
from fulgurite.kernel.contract.depthwise import find_depthwise
from fulgurite.tensor import node_of, wrap

pytest.importorskip("llvmlite")

from tests.codegen.cpu.launch import lowered, rendered_kernels, run
from tests.properties import kernel

WINDOWS = [(3, 3), (1, 5), (5, 5), (2, 4), (1, 1)]


def sums(x: fg.Tensor, w: fg.Tensor, size: Any, stride: Any, dilation: Any) -> fg.Tensor:
    """Sums over windows of (batch, rows, columns, channels), with weights (*window, channels)."""
    node = node_of(x)
    for axis in range(2):
        node = build.window(node, 1 + axis, size[axis], stride[axis], dilation[axis])
    return fg.sum(wrap(node) * fg.moveaxis(w, -1, 0), axis=(-2, -1))


def wanted(x: Any, w: Any, size: Any, stride: Any, dilation: Any) -> Any:
    """The same in float64, window by window."""
    counts = [
        (n - (k - 1) * d - 1) // s + 1
        for n, k, s, d in zip(x.shape[1:3], size, stride, dilation, strict=True)
    ]
    total = np.zeros((len(x), *counts, x.shape[-1]))
    for place in np.ndindex(*size):
        cuts = [
            slice(p * d, p * d + (n - 1) * s + 1, s)
            for p, n, s, d in zip(place, counts, stride, dilation, strict=True)
        ]
        total += x[(slice(None), *cuts)].astype(np.float64) * w[place]
    return total


def images(shape: tuple[int, ...], size: Any, seed: int = 0) -> tuple[Any, Any]:
    """Small whole numbers, whose sums are exact in any order."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-9, 9, shape).astype(np.float32)
    return x, rng.integers(-9, 9, (*size, shape[-1])).astype(np.float32)


@kernel
@given(
    st.integers(1, 3), st.integers(8, 70), st.sampled_from(WINDOWS), st.integers(1, 3),
    st.integers(1, 2), st.integers(0, 9), st.sampled_from(["auto", "avx2", "sse2"]),
    st.integers(0, 99),
)  # fmt: skip
@example(1, 16, (3, 3), 1, 1, 9, "auto", 0)
@example(2, 129, (5, 5), 2, 1, 3, "avx2", 0)
def test_sums_over_windows_are_those_of_wide_numbers(
    batch: int, channels: int, size: Any, step: int, dilation: int, more: int, vectors: str,
    seed: int,
) -> None:  # fmt: skip
    spread = (dilation, dilation)
    high, wide = [(k - 1) * dilation + 1 + n for k, n in zip(size, (more, 5), strict=True)]
    x, w = images((batch, high, wide, channels), size, seed)
    given_x, given_w = fg.Tensor(x, device="cpu").realize(), fg.Tensor(w, device="cpu").realize()
    lazy = sums(given_x, given_w, size, (step, step), spread)
    (found,), _ = run(lazy, seed=seed, machine=target(vectors))
    assert np.array_equal(found, wanted(x, w, size, (step, step), spread))


@pytest.mark.parametrize("channels", [8, 24, 35])
def test_what_is_computed_before_and_after_the_sum_is_part_of_the_kernel(channels: int) -> None:
    """Bytes less their zero, a bias, an activation and a residual."""
    size, rng = (3, 3), np.random.default_rng(3)
    x = rng.integers(0, 256, (1, 9, 11, channels)).astype(np.uint8)
    w = rng.integers(-9, 9, (*size, channels)).astype(np.float32)
    b, kept = [
        rng.integers(-9, 9, s).astype(np.float32) for s in ((channels,), (1, 7, 9, channels))
    ]
    given_x, given_w, given_b, given_k = [
        fg.Tensor(n, device="cpu").realize() for n in (x, w, b, kept)
    ]
    total = sums((given_x.astype(fg.float32) - 7), given_w, size, (1, 1), (1, 1)) + given_b
    (found,), kernels = run(fg.relu(total) + given_k, machine=target())
    exact = wanted(x.astype(np.float64) - 7, w, size, (1, 1), (1, 1)) + b
    assert np.array_equal(found, np.maximum(exact, 0) + kept) and len(kernels) == 1


@pytest.mark.parametrize("channels", [16, 37])
@pytest.mark.parametrize("order", [(0, 3, 1, 2), (3, 0, 2, 1)])
def test_results_with_their_channels_first_have_the_lanes_of_what_is_read(
    channels: int, order: Any
) -> None:
    """Else every number is summed by itself: ten times the time."""
    size, stride = (3, 3), (2, 1)
    x, w = images((2, 9, 11, channels), size)
    a, c = fg.Tensor(x, device="cpu").realize(), fg.Tensor(w, device="cpu").realize()
    lazy = fg.relu(fg.permute_dims(sums(a, c, size, stride, (1, 1)), order)).astype(fg.uint8)
    made, _ = lowered(lazy)
    shape = find_depthwise(made)
    assert shape is not None and shape.lanes == channels
    (found,), kernels = run(lazy, machine=target())
    exact = np.clip(wanted(x, w, size, stride, (1, 1)), 0, 255).transpose(order)
    assert np.array_equal(found, exact) and len(kernels) == 1


def test_hostile_numbers_are_those_of_the_reference() -> None:
    x, w = images((1, 8, 9, 21), (3, 3))
    x[0, 2, 3, :6] = np.inf, -np.inf, np.nan, -0.0, 1e-45, 3e38
    w[1, 1, :3], w[0, 0, 4:6] = (np.inf, 0, 1e-40), (1e-38, 9)
    found = []
    for device in ("cpu", "reference"):
        a, c = fg.Tensor(x, device=device).realize(), fg.Tensor(w, device=device).realize()
        found.append(sums(a, c, (3, 3), (1, 1), (1, 1)).numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-42)


def around(x: fg.Tensor, pads: Any) -> fg.Tensor:
    """A picture with zeros around it that are not in memory."""
    return fg.pad(x, [(0, 0), *pads, (0, 0)])


PADS = st.tuples(st.integers(0, 3), st.integers(0, 3))


@kernel
@given(
    st.integers(1, 2), st.integers(8, 40), st.sampled_from(WINDOWS), st.integers(1, 3),
    st.integers(1, 2), PADS, PADS, st.tuples(st.integers(1, 7), st.integers(1, 12)),
    st.sampled_from(["auto", "avx2", "sse2"]), st.integers(0, 99),
)  # fmt: skip
@example(1, 16, (3, 3), 1, 1, (1, 1), (1, 1), (6, 8), "auto", 0)
@example(1, 16, (5, 5), 2, 1, (2, 2), (2, 2), (1, 1), "auto", 0)
@example(2, 37, (1, 5), 1, 2, (0, 0), (3, 0), (2, 9), "avx2", 0)
def test_windows_that_are_cut_at_edges_add_zeros(
    batch: int, channels: int, size: Any, step: int, dilation: int, down: Any, across: Any,
    space: Any, vectors: str, seed: int,
) -> None:  # fmt: skip
    reach = [(k - 1) * dilation + 1 for k in size]
    if any(n + sum(p) < r for n, p, r in zip(space, (down, across), reach, strict=True)):
        return
    x, w = images((batch, *space, channels), size, seed)
    a, c = fg.Tensor(x, device="cpu").realize(), fg.Tensor(w, device="cpu").realize()
    steps, spread = (step, step), (dilation, dilation)
    lazy = fg.relu(sums(around(a, (down, across)), c, size, steps, spread))
    (found,), kernels = run(lazy, seed=seed, machine=target(vectors))
    wide = np.pad(x, ((0, 0), down, across, (0, 0)))
    exact = np.maximum(wanted(wide, w, size, steps, spread), 0)
    assert np.array_equal(found, exact) and len(kernels) == 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_edges_have_the_bits_of_zeros_in_memory_on_any_number_of_threads(dtype: str) -> None:
    """Also where weights are infinite: a zero times one is no number."""
    x, w = images((2, 30, 33, 40), (3, 3))
    x = (np.abs(x) * 9).astype(dtype)
    if dtype != "uint8":
        x[0, 0, :6, 0] = np.inf, -np.inf, np.nan, -0.0, 1e-7, 6e4
        x[0, 29, 32, 3] = np.inf
    w[0, 0, :3], w[2, 1, 4] = (np.inf, np.nan, -0.0), -np.inf
    wide = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    a, b, c = [fg.Tensor(n, device="cpu").realize() for n in (x, wide, w)]
    with fg.config(device="cpu", tier="native"):
        pads = ((1, 1), (1, 1))
        inputs = a.astype(fg.float32), b.astype(fg.float32)
        made, _ = lowered(sums(around(inputs[0], pads), c, (3, 3), (1, 1), (1, 1)))
        assert find_depthwise(made) is not None
        stored = sums(inputs[1], c, (3, 3), (1, 1), (1, 1)).numpy()
        for threads in (1, 2, 3):
            with fg.config(threads=threads):
                found = sums(around(inputs[0], pads), c, (3, 3), (1, 1), (1, 1)).numpy()
            assert np.array_equal(found.view(np.uint32), stored.view(np.uint32))


def test_sizes_windows_and_strides_share_a_text() -> None:
    if target().vectors == "sse2":
        pytest.skip("plain loops")
    texts = set()
    for high, wide, channels, size, step in (
        (9, 9, 16, (3, 3), 1), (20, 31, 72, (3, 3), 2), (7, 30, 9, (3, 3), 3)
    ):  # fmt: skip
        x, w = images((1, high, wide, channels), size)
        a, c = fg.Tensor(x, device="cpu").realize(), fg.Tensor(w, device="cpu").realize()
        (found,) = rendered_kernels(fg.relu(sums(a, c, size, (step, step), (1, 1))))
        texts.add(found.text)
        cut = sums(around(a, ((1, step), (1, 1))), c, size, (step, step), (1, 1))
        (found,) = rendered_kernels(fg.relu(cut))
        texts.add(found.text)
    assert len(texts) == 2  # with and without edges


@pytest.mark.parametrize(("channels", "size"), [(7, (3, 3)), (16, (8, 7))])
def test_few_channels_and_many_taps_are_no_such_sums(channels: int, size: Any) -> None:
    x, w = images((1, 12, 12, channels), size)
    a, c = fg.Tensor(x, device="cpu").realize(), fg.Tensor(w, device="cpu").realize()
    made, _ = lowered(sums(a, c, size, (1, 1), (1, 1)))
    assert find_depthwise(made) is None


def test_a_product_of_matrices_is_no_such_sum() -> None:
    x, w = fg.ones((40, 9), device="cpu").realize(), fg.ones((9, 64), device="cpu").realize()
    made, _ = lowered(x @ w)
    assert find_depthwise(made) is None


def test_a_kernel_whose_roots_are_no_stores_is_none() -> None:
    """As in the gradient of a pool of one pixel, without simplification."""

    def loss(x: fg.Tensor) -> fg.Tensor:
        pooled = fg.adaptive_avg_pool2d(x, 4)
        return fg.batch_norm(pooled, weight=fg.ones(1), bias=fg.ones(1), training=True).output.sum()

    with fg.config(device="cpu", tier="native", simplify=False, disk_cache=False):
        found = fg.grad(loss)(fg.tensor(np.full((1, 1, 1, 1), 3.0))).numpy()
    np.testing.assert_allclose(found, 0, atol=1e-12)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("batch", "heads", "each"), [(1, 4, 24), (2, 3, 37), (3, 8, 16)])
@pytest.mark.parametrize("pads", [((0, 0), (0, 0)), ((1, 1), (2, 1))])
def test_channels_may_be_numbered_by_heads(
    batch: int, heads: int, each: int, pads: Any, seed: int
) -> None:
    """What attention gave is added to a convolution of its values: its heads lie apart."""
    size = (3, 3)
    x, w = images((batch, 9, 8, heads * each), size)
    wide = np.pad(x, ((0, 0), *pads, (0, 0)))
    exact = wanted(wide, w, size, (1, 1), (1, 1))
    rows, columns = exact.shape[1:3]
    other = images((batch, heads, rows * columns, each), (1, 1), 1)[0]
    a, c, g = [fg.Tensor(n, device="cpu").realize() for n in (x, w, other)]
    mixed = fg.permute_dims(g, (0, 2, 1, 3)).reshape(exact.shape)
    padded = around(a, pads) if pads[0][0] else a
    lazy = sums(padded, c, size, (1, 1), (1, 1)) + mixed
    found = find_depthwise(lowered(lazy)[0])
    assert found is not None and found.places == batch * rows * columns
    (made,), _ = run(lazy, seed=seed, machine=target())
    turned = other.transpose(0, 2, 1, 3).reshape(exact.shape)
    assert np.array_equal(made, exact + turned)
