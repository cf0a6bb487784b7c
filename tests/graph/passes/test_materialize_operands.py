"""What is read again and again is stored once: a pool under the windows of a convolution."""

from __future__ import annotations

import numpy as np

import fulgurite as fg
from fulgurite.core.passes import show
from fulgurite.graph.ir.lower import IndexKernel

RNG = np.random.default_rng(2)


def texts(y: fg.Tensor) -> list[tuple[str, str]]:
    """The kinds of a value's kernels and their text."""
    with fg.config(tier="native"):
        kernels = [item.kernel for item in fg.schedule(y).items]
    return [
        (k.kind, show(k.lowered.body)) for k in kernels if isinstance(k.lowered, IndexKernel)
    ]  # fmt: skip


def normal(*shape: int) -> fg.Tensor:
    return fg.Tensor(RNG.standard_normal(shape).astype(np.float32))


def test_a_pool_is_stored_before_the_windows_of_a_convolution() -> None:
    x, w = normal(1, 8, 32, 32), normal(16, 8, 3, 3)
    found = texts(fg.conv2d(fg.maximum(x[..., ::2], x[..., 1::2]), w, padding=1))
    assert [" max " in text for kind, text in found if kind == "contract"] == [False]


def test_what_is_only_moved_before_a_loop_is_laid_out_by_a_kernel_and_constants_are_not() -> None:
    rows = normal(3, 5)
    value = fg.scan(lambda c, x: (c + x, None), fg.zeros(3), rows.T)[0]
    with fg.config(tier="native"):
        assert [item.kernel.kind for item in fg.schedule(value).items] == ["map", "loop"]
    np.testing.assert_allclose(value.numpy(), rows.numpy().sum(axis=1), rtol=1e-5)
