"""`nn.functional` beside torch's: the same calls, by name and by torch's keywords."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, BoundsError, DTypeError, ShapeError
from fulgurite.nn import functional as F
from tests.functional.helpers import raises

_RANDOM = np.random.default_rng(3)
X, Y = (_RANDOM.normal(size=(3, 4)).astype(np.float32) for _ in range(2))
IMAGE = _RANDOM.normal(size=(2, 3, 5, 4)).astype(np.float32)
LINE = _RANDOM.normal(size=(2, 3, 6)).astype(np.float32)
GRID = (_RANDOM.normal(size=(2, 3, 3, 2)) * 0.8).astype(np.float32)
THETA = _RANDOM.normal(size=(2, 2, 3)).astype(np.float32)
CLASSES = np.array([0, 3, 1], np.int64)
CUBE = _RANDOM.normal(size=(2, 4, 4)).astype(np.float32)
COLUMNS = _RANDOM.normal(size=(2, 8, 4)).astype(np.float32)
ROW, MATRIX = X[0], _RANDOM.normal(size=(5, 4)).astype(np.float32)

Call = Callable[[Any, Callable[..., Any]], Any]
# what is called with torch.nn.functional or ours, and with what makes a tensor of an array
CALLS: dict[str, Call] = {
    "relu": lambda f, t: f.relu(input=t(X), inplace=False),
    "leaky_relu": lambda f, t: f.leaky_relu(t(X), 0.2, inplace=False),
    "elu": lambda f, t: f.elu(t(X), alpha=0.5),
    "hardtanh": lambda f, t: f.hardtanh(t(X), -0.5, 0.5),
    "softplus": lambda f, t: f.softplus(t(X * 30), beta=2, threshold=5),
    "logsigmoid": lambda f, t: f.logsigmoid(t(X)),
    "glu": lambda f, t: f.glu(t(X), dim=-1),
    "rrelu in use": lambda f, t: f.rrelu(t(X)),
    "softmax": lambda f, t: f.softmax(t(X), dim=0, dtype=None),
    "log_softmax": lambda f, t: f.log_softmax(t(X), 1),
    "softmin": lambda f, t: f.softmin(t(X), dim=1),
    "linear": lambda f, t: f.linear(t(X), t(MATRIX), bias=t(MATRIX[:, 0])),
    "bilinear": lambda f, t: f.bilinear(t(X), t(Y), t(CUBE), t(ROW[:2])),
    "conv2d": lambda f, t: f.conv2d(t(IMAGE), t(IMAGE[:, :, :2, :2]), padding=1, stride=2),
    "conv_transpose1d": lambda f, t: f.conv_transpose1d(t(LINE), t(LINE[0][:, None])),
    "embedding": lambda f, t: f.embedding(t(CLASSES), t(MATRIX), padding_idx=-2),
    "embedding_bag": lambda f, t: f.embedding_bag(t(CLASSES[None]), t(MATRIX), mode="sum"),
    "pad": lambda f, t: f.pad(t(IMAGE), (1, 2, 0, 1), value=3.0),
    "pad of one axis": lambda f, t: f.pad(t(IMAGE), (1, -1)),
    "pad reflect": lambda f, t: f.pad(t(IMAGE), (1, 2, 3, 1), mode="reflect"),
    "pad replicate": lambda f, t: f.pad(t(LINE), (2, 1), mode="replicate"),
    "pad circular": lambda f, t: f.pad(t(LINE), [2, 1], mode="circular"),
    "one_hot": lambda f, t: f.one_hot(t(CLASSES)),
    "one_hot of 6": lambda f, t: f.one_hot(t(CLASSES), num_classes=6),
    "batch_norm": lambda f, t: f.batch_norm(t(X), t(ROW * 0, False), t(ROW**2, False)),
    "batch_norm alone": lambda f, t: f.batch_norm(t(X), None, None, t(ROW), t(ROW), True),
    "instance_norm": lambda f, t: f.instance_norm(t(LINE), weight=t(ROW[:3])),
    "layer_norm": lambda f, t: f.layer_norm(t(X), (4,), t(ROW), t(ROW)),
    "group_norm": lambda f, t: f.group_norm(t(IMAGE), 3),
    "rms_norm": lambda f, t: f.rms_norm(t(X), (4,)),
    "local_response_norm": lambda f, t: f.local_response_norm(t(IMAGE), 2),
    "normalize": lambda f, t: f.normalize(t(X)),
    "normalize by 3": lambda f, t: f.normalize(t(X), p=3.0, dim=0),
    "normalize by the largest": lambda f, t: f.normalize(t(X), float("inf")),
    "dropout2d in use": lambda f, t: f.dropout2d(t(IMAGE), 0.5, training=False),
    "alpha_dropout in use": lambda f, t: f.alpha_dropout(t(X), training=False),
    "max_pool2d": lambda f, t: f.max_pool2d(t(IMAGE), 2),
    "max_pool2d told": lambda f, t: f.max_pool2d(t(IMAGE), 2, stride=1, return_indices=True),
    "adaptive_max_pool1d": lambda f, t: f.adaptive_max_pool1d(t(LINE), 4, return_indices=True),
    "avg_pool2d": lambda f, t: f.avg_pool2d(t(IMAGE), 2, count_include_pad=False, padding=1),
    "adaptive_avg_pool2d": lambda f, t: f.adaptive_avg_pool2d(t(IMAGE), (2, None)),
    "lp_pool1d": lambda f, t: f.lp_pool1d(t(abs(LINE)), 2, kernel_size=3),
    "max_unpool1d": lambda f, t: f.max_unpool1d(
        *f.max_pool1d(t(LINE), 2, return_indices=True), 2
    ),
    "fold": lambda f, t: f.fold(t(COLUMNS), (3, 3), kernel_size=2),
    "unfold": lambda f, t: f.unfold(t(IMAGE), (2, 2), padding=1),
    "interpolate": lambda f, t: f.interpolate(t(IMAGE), scale_factor=2, mode="bilinear"),
    "pixel_shuffle": lambda f, t: f.pixel_shuffle(t(IMAGE[:1, [0] * 8]), 2),
    "channel_shuffle": lambda f, t: f.channel_shuffle(t(IMAGE), 3),
    "affine_grid": lambda f, t: f.affine_grid(t(THETA), (2, 3, 4, 5), align_corners=False),
    "affine_grid by corners": lambda f, t: f.affine_grid(t(THETA), [2, 3, 4, 2], True),
    **{
        f"grid_sample {mode} {around} {corners}": lambda f, t, m=mode, a=around, c=corners: (  # type: ignore[misc]
            f.grid_sample(t(IMAGE), t(GRID), mode=m, padding_mode=a, align_corners=c)
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for around in ("zeros", "border", "reflection")
        for corners in (False, True)
    },
    "grid_sample in depth": lambda f, t: f.grid_sample(
        t(IMAGE[:, :, None]), t(np.concatenate([GRID, GRID[..., :1]], -1)[:, None]),
        align_corners=False,
    ),
    "cross_entropy": lambda f, t: f.cross_entropy(t(X), t(CLASSES), t(abs(ROW), False)),
    "cross_entropy named": lambda f, t: f.cross_entropy(
        input=t(X), target=t(CLASSES), label_smoothing=0.1, ignore_index=3
    ),
    "nll_loss": lambda f, t: f.nll_loss(t(X), t(CLASSES), reduction="sum"),
    "mse_loss": lambda f, t: f.mse_loss(t(X), t(Y), reduction="none"),
    "huber_loss": lambda f, t: f.huber_loss(t(X), t(Y), delta=0.3),
    "binary_cross_entropy_with_logits": lambda f, t: f.binary_cross_entropy_with_logits(
        t(X), t(abs(Y) / 4), pos_weight=t(abs(ROW), False)
    ),
    "kl_div": lambda f, t: f.kl_div(t(X), t(abs(Y)), reduction="batchmean"),
    "cosine_embedding_loss": lambda f, t: f.cosine_embedding_loss(
        input1=t(X), input2=t(Y), target=t(np.array([1, -1, 1])), margin=0.1
    ),
    "multi_margin_loss": lambda f, t: f.multi_margin_loss(
        t(X), t(CLASSES), weight=t(abs(ROW), False)
    ),
    "cosine_similarity": lambda f, t: f.cosine_similarity(t(X), t(Y), dim=0),
    "pairwise_distance": lambda f, t: f.pairwise_distance(t(X), t(Y), keepdim=True),
    "pdist": lambda f, t: f.pdist(t(MATRIX)),
    "pdist by 1": lambda f, t: f.pdist(t(MATRIX), p=1.0),
    "attention": lambda f, t: f.scaled_dot_product_attention(
        t(LINE), t(LINE), t(LINE), is_causal=True
    ),
}  # fmt: skip


def found(name: str) -> tuple[list[Any], dict[int, Any]]:
    """Our results of a call, and the gradients of their weighted sum by what was given."""
    leaves: list[fg.Tensor] = []

    def tensor(array: Any, learns: bool = True) -> fg.Tensor:
        leaves.append(fg.Tensor(np.asarray(array)))
        floats = leaves[-1].dtype.is_inexact and learns
        return leaves[-1].requires_grad_() if floats else leaves[-1]

    result = CALLS[name](F, tensor)
    parts = list(result) if isinstance(result, tuple) else [result]
    total = sum([(part * fg.Tensor(weights(part.shape))).sum() for part in parts])
    if isinstance(total, fg.Tensor) and total.requires_grad:
        total.backward()
    slopes = {n: leaf.grad.numpy() for n, leaf in enumerate(leaves) if leaf.grad is not None}
    return [part.numpy() for part in parts], slopes


def weights(shape: Any) -> Any:
    """A weight for each element."""
    return np.random.default_rng(5).normal(size=tuple(shape)).astype(np.float32)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("name", CALLS)
def test_a_function_does_what_torch_does(name: str) -> None:
    import torch

    leaves: list[Any] = []

    def tensor(array: Any, learns: bool = True) -> Any:
        leaves.append(torch.tensor(np.asarray(array)))
        floats = leaves[-1].is_floating_point() and learns
        return leaves[-1].requires_grad_() if floats else leaves[-1]

    result = CALLS[name](torch.nn.functional, tensor)
    parts = list(result) if isinstance(result, tuple) else [result]
    total = sum([(part * torch.tensor(weights(part.shape))).sum() for part in parts])
    if total.requires_grad:
        total.backward()
    ours, slopes = found(name)
    for mine, other in zip(ours, parts, strict=True):
        assert str(other.dtype).removeprefix("torch.") == str(mine.dtype)
        np.testing.assert_allclose(mine, other.detach().numpy(), rtol=2e-5, atol=2e-5)
    known = {n: leaf.grad.numpy() for n, leaf in enumerate(leaves) if leaf.grad is not None}
    assert set(slopes) <= set(known)
    for place, slope in known.items():  # where torch has zeros we may have none
        np.testing.assert_allclose(slopes.get(place, 0 * slope), slope, rtol=1e-4, atol=5e-5)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_the_functions_of_torch_that_are_missing_are_these() -> None:
    import torch.nn.functional as theirs

    words = ("_", "has_torch", "handle_torch", "Broadcasting", "assert_", "boolean_dispatch")
    missing = {
        name
        for name, found in vars(theirs).items()
        if callable(found) and not isinstance(found, type) and not name.startswith(words)
        if not name.endswith(("_", "_with_indices")) and not hasattr(F, name)
    }
    assert missing <= {
        "Optional", "conv_tbc", "fractional_max_pool2d", "fractional_max_pool3d", "grouped_mm",
        "linear_cross_entropy", "multi_head_attention_forward", "native_channel_shuffle",
        "scaled_grouped_mm", "scaled_mm", "upsample_bilinear", "upsample_nearest",
    }, missing  # fmt: skip


def test_batch_norm_changes_the_running_statistics_it_is_given_in_training() -> None:
    average, spread = fg.zeros(4), fg.ones(4)
    F.batch_norm(fg.Tensor(X), average, spread, training=True)
    np.testing.assert_allclose(average.numpy(), 0.1 * X.mean(0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(spread.numpy(), 0.9 + 0.1 * X.var(0, ddof=1), rtol=1e-5)


def test_gumbel_softmax_draws_by_probability_and_hard_samples_have_a_gradient() -> None:
    fg.random.seed(1)
    scores = fg.Tensor(np.log([[0.7, 0.2, 0.1]] * 4000).astype(np.float32)).requires_grad_()
    drawn = F.gumbel_softmax(scores, tau=0.5, hard=True, dim=-1)
    assert set(drawn.numpy().round(5).ravel()) <= {0.0, 1.0}
    np.testing.assert_allclose(drawn.numpy().mean(0), [0.7, 0.2, 0.1], atol=0.03)
    (drawn * fg.Tensor([1.0, 2.0, 3.0])).sum().backward()
    assert scores.grad is not None and float(np.abs(scores.grad.numpy()).sum()) > 1
    soft = F.gumbel_softmax(fg.zeros((5, 3)))
    np.testing.assert_allclose(soft.numpy().sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("place", [-1, 5, -6, 2**31 - 1])
def test_a_place_outside_a_table_is_an_error_that_names_it(place: int) -> None:
    with pytest.raises(BoundsError, match=f"index {place} is outside an axis of size 5") as caught:
        F.embedding(fg.Tensor([0, place]), fg.Tensor(MATRIX)).numpy()
    assert "from 0 to 4" in str(caught.value)
    with raises(BoundsError, f"index {place} is outside"):
        F.embedding(fg.Tensor([0, place], dtype="int64"), fg.Tensor(MATRIX)).numpy()


@pytest.mark.parametrize("place", [-1, 4])
def test_a_class_that_does_not_exist_is_an_error_that_names_it(place: int) -> None:
    with raises(BoundsError, f"index {place} is outside an axis of size 4"):
        F.cross_entropy(fg.Tensor(X), fg.Tensor([0, place, 1])).item()


def test_what_does_not_fit_is_one_clear_error() -> None:
    x = fg.ones((1, 2, 3))
    with raises(ArgumentError, "mode is 'mirror'"):
        F.pad(x, (1, 1), mode="mirror")
    with raises(ArgumentError, "padding (1, 1, 1)"):
        F.pad(x, (1, 1, 1))
    with raises(ShapeError, "more space than it reflects"):
        F.pad(x, (3, 0), mode="reflect")
    with raises(ShapeError, "as much space as goes around"):
        F.pad(x, (4, 0), mode="circular")
    with raises(DTypeError, "looked up by whole numbers"):
        F.embedding(x, x[0])
    with raises(ShapeError, "a table of shape"):
        F.embedding(fg.Tensor([0]), x)
    with raises(ArgumentError, "without offsets"):
        F.embedding_bag(fg.Tensor([0]), x[0])
    with raises(ArgumentError, "mode is 'product'"):
        F.embedding_bag(fg.Tensor([[0]]), x[0], mode="product")
    with raises(ArgumentError, "for the mean of places"):
        F.embedding_bag(fg.Tensor([[0]]), x[0], per_sample_weights=fg.ones((1, 1)))
    with raises(ArgumentError, "padding_idx is 2"):
        F.embedding(fg.Tensor([0]), x[0], padding_idx=2)
    with raises(ArgumentError, "do not fit a picture"):
        F.unfold(fg.ones((1, 1, 2, 2)), 3)
    with raises(ShapeError, "give (batch, channels * 4, 4)"):
        F.fold(fg.ones((1, 4, 5)), (3, 3), 2)
    with raises(ShapeError, "give what max_pool2d with return_indices=True gave"):
        F.max_unpool2d(fg.ones((1, 1, 2, 2)), fg.zeros((1, 2, 2, 2), "int64"), 2)
    with raises(ShapeError, "a grid of shape"):
        F.grid_sample(fg.ones((1, 1, 2, 2)), fg.ones((1, 2, 2, 3)))
    with raises(ShapeError, "maps of shape"):
        F.affine_grid(fg.ones((1, 3, 3)), (1, 1, 2, 2))
    with raises(ArgumentError, "tau is 0"):
        F.gumbel_softmax(x, tau=0)
    with raises(ArgumentError, "running statistics of instance_norm"):
        F.instance_norm(x, fg.zeros(2), fg.ones(2))
