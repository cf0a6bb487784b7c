"""Dropout: in training some elements or channels are left out at random.

In: tensors. Out: in training the same with elements (or whole channels) set to zero with
probability p and the others scaled up, so that the mean stays; otherwise x itself. Draws come from
the generator of `fg.random`, and so are the same again after `fg.random.seed`.
"""

from __future__ import annotations

import math
from typing import ClassVar

from ..errors import ArgumentError
from ..functional.common import as_tensor, floating
from ..functional.math.elementwise import positive, where
from ..random import bernoulli, dropout
from ..tensor import Tensor, TensorLike
from .module import Module

_LEAST = -1.7580993408473766  # what selu tends to: -scale * alpha


class _Dropout(Module):
    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
            raise ArgumentError(f"p is {p!r}", "a probability is from 0 to 1")
        self.p, self.inplace = p, inplace  # inplace has no meaning here: values are never shared

    def extra_repr(self) -> str:
        """The probability."""
        return f"p={self.p}"


class Dropout(_Dropout):
    """Each element left out with probability p.

    >>> drop = fg.nn.Dropout(0.5)
    >>> sorted(set(drop(fg.ones(1000)).tolist())), drop.eval()(fg.ones(2)).tolist()
    ([0.0, 2.0], [1.0, 1.0])
    """

    def forward(self, x: TensorLike) -> Tensor:
        """x with elements left out, in training."""
        return dropout(floating(x), self.p, self.training)


class _ChannelDropout(_Dropout):
    ranks: ClassVar[tuple[int, ...]]  # dimensions that an input may have, the one without a batch
    takes: ClassVar[str]
    lone: ClassVar[int | None]

    def forward(self, x: TensorLike) -> Tensor:
        """x with channels left out, in training."""
        tensor = floating(x)
        if tensor.ndim not in self.ranks:
            self.misfit(self.takes, tensor)
        return _without_channels(tensor, self.p, self.training, tensor.ndim == self.lone)


def _without_channels(x: Tensor, p: float, training: bool, alone: bool) -> Tensor:
    if not training or p == 0:
        return positive(x)
    if p == 1:
        return x * 0
    return where(_kept(x, p, alone), x * (1 / (1 - p)), 0)


def _kept(x: Tensor, p: float, alone: bool) -> Tensor:
    outer = x.shape[:1] if alone else x.shape[:2]
    return bernoulli(1 - p, (*outer, *[1] * (x.ndim - len(outer))), device=x.device)


class Dropout1d(_ChannelDropout):
    """Each channel of (batch, channels, length) left out with probability p.

    >>> fg.nn.Dropout1d(0.5)(fg.ones((2, 3, 4))).shape
    (2, 3, 4)
    """

    ranks, lone, takes = (2, 3), 2, "(batch, channels, length), the batch may be left out"


class Dropout2d(_ChannelDropout):
    """Each channel of (batch, channels, height, width) left out with probability p.

    >>> fg.nn.Dropout2d(0.5)(fg.ones((2, 3, 4, 4))).shape
    (2, 3, 4, 4)
    """

    ranks, lone, takes = (3, 4), 3, "(batch, channels, height, width), the batch may be left out"


class Dropout3d(_ChannelDropout):
    """Each channel of (batch, channels, depth, height, width) left out with probability p.

    >>> fg.nn.Dropout3d(0.5)(fg.ones((2, 3, 2, 2, 2))).shape
    (2, 3, 2, 2, 2)
    """

    ranks, lone = (4, 5), 4
    takes = "(batch, channels, depth, height, width), the batch may be left out"


class AlphaDropout(_Dropout):
    """Dropout that keeps mean and variance after selu: what is left out becomes its least value.

    >>> x = fg.nn.AlphaDropout(0.2)(fg.randn(10000))
    >>> abs(x.mean().item()) < 0.1, abs(x.std().item() - 1) < 0.1
    (True, True)
    """

    def forward(self, x: TensorLike) -> Tensor:
        """x with elements left out, in training."""
        tensor = floating(x)
        if not self.training or self.p == 0:
            return positive(tensor)
        if self.p == 1:
            return tensor * 0
        kept = bernoulli(1 - self.p, tensor.shape, device=tensor.device)
        return _moved(tensor, kept, self.p)


class FeatureAlphaDropout(_Dropout):
    """AlphaDropout of whole channels.

    >>> fg.nn.FeatureAlphaDropout(0.2)(fg.randn(2, 3, 4)).shape
    (2, 3, 4)
    """

    def forward(self, x: TensorLike) -> Tensor:
        """x with channels left out, in training."""
        tensor = as_tensor(floating(x))
        if tensor.ndim < 2:
            self.misfit("(batch, channels, ...)", tensor)
        if not self.training or self.p == 0:
            return positive(tensor)
        return tensor * 0 if self.p == 1 else _moved(tensor, _kept(tensor, self.p, False), self.p)


def _moved(x: Tensor, kept: Tensor, p: float) -> Tensor:
    """What is left out at its least value, then moved and scaled to mean 0 and variance 1."""
    scale = 1 / math.sqrt((1 - p) * (1 + p * _LEAST * _LEAST))
    return where(kept, x, _LEAST) * scale - scale * p * _LEAST
