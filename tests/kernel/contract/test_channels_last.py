"""Images between kernels with channels last: which slots are laid out so, and that values stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fulgurite as fg


def normal(*shape: int) -> fg.Tensor:
    random = np.random.default_rng(sum(shape))
    return fg.Tensor(random.standard_normal(shape).astype(np.float32)).realize()


def written(y: fg.Tensor, channels_last: str = "on") -> set[tuple[object, ...]]:
    """The shapes of what kernels write."""
    with fg.config(tier="native", channels_last=channels_last):
        items = fg.schedule(y).items
    return {root.shape for item in items for root in item.kernel.body.src}


def network(x: fg.Tensor) -> fg.Tensor:
    """Two convolutions, statistics of a batch, a residual."""
    h = fg.conv2d(x, normal(8, 6, 3, 3), padding=1)
    h = fg.relu(fg.batch_norm(h, weight=normal(8), bias=normal(8), training=True).output)
    return fg.conv2d(h, normal(6, 8, 1, 1)) + x


def test_what_convolutions_read_has_channels_last() -> None:
    x = normal(4, 6, 7, 5)
    assert (4, 7, 5, 8) in written(network(x)) and (4, 8, 7, 5) not in written(network(x))
    assert (4, 8, 7, 5) in written(network(x), "off")


@pytest.mark.parametrize(
    "plain",
    [
        lambda: fg.softmax(normal(2, 3, 9, 8) @ normal(2, 3, 8, 9)) @ normal(2, 3, 9, 4),
        lambda: fg.relu(normal(3, 9, 8) @ normal(8, 7)) @ normal(7, 5),
    ],
    ids=["attention", "layers"],
)
def test_products_without_channels_keep_their_order(plain: Callable[[], fg.Tensor]) -> None:
    assert written(plain()) == written(plain(), "off")


@pytest.mark.parametrize("groups", [1, 2])
def test_values_and_gradients_are_the_same(groups: int) -> None:
    x, w = normal(3, 6, 7, 5), normal(8, 6 // groups, 3, 3)

    def loss(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        h = fg.conv2d(x, w, stride=2, padding=1, groups=groups)
        h = fg.conv_transpose2d(fg.relu(h), normal(8, 6, 3, 3), stride=2, padding=1)
        return (network(h) ** 2).mean()

    found = []
    for channels_last in ("off", "on"):
        with fg.config(tier="native", channels_last=channels_last):
            value, grads = fg.value_and_grad(loss, argnums=(0, 1))(x, w)
            found.append([np.asarray(t.numpy()) for t in (value, *grads)])
    for want, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
