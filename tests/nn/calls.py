"""Calls of `nn.functional`, for torch and for us: the same words call a function of either.

In: the name of a call. Out: `ours(name)` and `theirs(name)`: its results, and the gradients of
their weighted sum by every float that was given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import fulgurite as fg
from fulgurite.nn import functional
from tests.nn.cases import Result

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


def ours(name: str) -> Result:
    """What fulgurite finds."""
    leaves: list[fg.Tensor] = []

    def tensor(array: Any, learns: bool = True) -> fg.Tensor:
        made = fg.Tensor(np.asarray(array))
        if made.dtype.is_inexact and learns:
            leaves.append(made.requires_grad_())
        return made

    parts = _listed(CALLS[name](functional, tensor))
    total = sum([(part * fg.Tensor(_weights(part.shape))).sum() for part in parts])
    if isinstance(total, fg.Tensor) and total.requires_grad:
        total.backward()
    arrays = {f"output{i}": part.numpy() for i, part in enumerate(parts)}
    for place, leaf in enumerate(leaves):  # what nothing depends on has no gradient
        found = np.zeros(leaf.shape, np.float32) if leaf.grad is None else leaf.grad.numpy()
        arrays[f"grad {place}"] = found
    return Result(arrays)


def theirs(name: str) -> Result:
    """What torch finds."""
    import torch

    leaves: list[Any] = []

    def tensor(array: Any, learns: bool = True) -> Any:
        made = torch.tensor(np.asarray(array))
        if made.is_floating_point() and learns:
            leaves.append(made.requires_grad_())
        return made

    parts = _listed(CALLS[name](torch.nn.functional, tensor))
    total = sum([(part * torch.tensor(_weights(part.shape))).sum() for part in parts])
    if total.requires_grad:
        total.backward()
    arrays = {f"output{i}": part.detach().numpy() for i, part in enumerate(parts)}
    for place, leaf in enumerate(leaves):
        found = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        arrays[f"grad {place}"] = found.detach().numpy()
    return Result(arrays)


def _listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def _weights(shape: Any) -> Any:
    """A weight for each element."""
    return np.random.default_rng(5).normal(size=tuple(shape)).astype(np.float32)
