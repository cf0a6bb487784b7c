"""Normalisation layers, over batches, last dimensions, groups and instances.

In: tensors, (batch, channels, ...) except for those over the last dimensions. Out: numbers with
mean 0 and variance 1 (root mean square 1), scaled and shifted by learned numbers. Running
statistics are buffers that training changes by `assign`: whoever holds the module sees them change,
inside `fg.grad` and `fg.jit` too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..core.dtype import int64
from ..errors import ArgumentError
from ..functional.array.creation import full, ones, zeros
from ..functional.array.movement import expand_dims, squeeze
from ..functional.common import floating, wide
from ..functional.math.reduction import mean, var
from ..functional.nn.normalization import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    rms_norm,
)
from ..functional.nn.normalization import local_response_norm as _local_response_norm
from ..tensor import Tensor, TensorLike, no_grad
from . import init
from .linear import whole
from .module import Module


class _WithStatistics(Module):
    """Scale, shift and running statistics of channels."""

    ranks: ClassVar[tuple[int, ...]]  # dimensions that an input may have
    takes: ClassVar[str]
    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def _set_up(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        device: str | None,
        dtype: object,
    ) -> None:
        self.num_features = whole(num_features, "num_features")
        self.eps, self.momentum = eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        count = (num_features,)
        for name, value in (("weight", 1.0), ("bias", 0.0)):
            drawn = init.constant(count, value, dtype, device) if affine else None
            self.register_parameter(name, drawn)
        track = track_running_stats
        self.register_buffer("running_mean", zeros(count, dtype, device) if track else None)
        self.register_buffer("running_var", ones(count, dtype, device) if track else None)
        number = full((), 0, int64, device) if track else None
        self.register_buffer("num_batches_tracked", number)

    def reset_running_stats(self) -> None:
        """Forget the running statistics."""
        fresh = {"running_mean": 0, "running_var": 1, "num_batches_tracked": 0}
        for name, value in fresh.items():
            buffer = vars(self)[name]
            if buffer is not None:
                buffer.assign(value)

    def _checked(self, x: TensorLike) -> Tensor:
        tensor = self.as_input(x)
        channels = self._channel_axis(tensor)
        if tensor.ndim not in self.ranks or tensor.node.shape[channels] != self.num_features:
            self.misfit(self.takes.format(self.num_features), tensor)
        return tensor

    def _channel_axis(self, x: Tensor) -> int:
        return 1 if x.ndim > 1 else 0

    def _update(self, average: Tensor | None, spread: Tensor | None) -> None:
        for buffer, value in ((self.running_mean, average), (self.running_var, spread)):
            assert buffer is not None and value is not None
            buffer.assign(value.detach().astype(buffer.dtype))

    def extra_repr(self) -> str:
        """Channels and settings."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_WithStatistics):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        settings = (affine, track_running_stats, device, dtype)
        self._set_up(num_features, eps, momentum, *settings)

    def _share(self) -> Any:
        """How much the newest statistics count."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.assign(self.num_batches_tracked + 1)
        if self.momentum is not None:
            return self.momentum
        return 1.0 / self.num_batches_tracked.astype("float32")

    def forward(self, x: TensorLike) -> Tensor:
        """Each channel normalised: by this batch in training, else by the past."""
        tensor = self._checked(x)
        own = self.training or self.running_mean is None
        if own and tensor.size == self.num_features:
            self.misfit("more than one number for each channel in training", tensor)
        if not own or not self.training or self.running_mean is None:
            known = (self.running_mean, self.running_var) if not own else (None, None)
            return batch_norm(
                tensor, *known, self.weight, self.bias, training=own, eps=self.eps
            ).output
        share = self._share()
        found = batch_norm(
            tensor, self.running_mean, self.running_var, self.weight, self.bias,
            training=True, momentum=share, eps=self.eps,
        )  # fmt: skip
        self._update(found.running_mean, found.running_var)
        return found.output


class BatchNorm1d(_BatchNorm):
    """Normalisation of each channel of (batch, channels) or (batch, channels, length).

    >>> norm = fg.nn.BatchNorm1d(2)
    >>> y = norm(fg.Tensor([[1.0, 5.0], [3.0, 9.0]]))
    >>> [round(v, 3) for v in norm.running_mean.tolist()], norm.num_batches_tracked.item()
    ([0.2, 0.7], 1)
    """

    ranks, takes = (2, 3), "(batch, {0}) or (batch, {0}, length)"


class BatchNorm2d(_BatchNorm):
    """Normalisation of each channel of (batch, channels, height, width).

    >>> fg.nn.BatchNorm2d(3)(fg.rand(2, 3, 4, 4)).shape
    (2, 3, 4, 4)
    """

    ranks, takes = (4,), "(batch, {0}, height, width)"


class BatchNorm3d(_BatchNorm):
    """Normalisation of each channel of (batch, channels, depth, height, width).

    >>> fg.nn.BatchNorm3d(3)(fg.rand(2, 3, 2, 2, 2)).shape
    (2, 3, 2, 2, 2)
    """

    ranks, takes = (5,), "(batch, {0}, depth, height, width)"


class _InstanceNorm(_WithStatistics):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        settings = (affine, track_running_stats, device, dtype)
        self._set_up(num_features, eps, momentum, *settings)

    def _channel_axis(self, x: Tensor) -> int:
        return 0 if x.ndim == self.ranks[0] else 1

    def forward(self, x: TensorLike) -> Tensor:
        """Each channel of each element normalised by itself, or by the past."""
        tensor = self._checked(x)
        alone = tensor.ndim == self.ranks[0]
        tensor = expand_dims(tensor, 0) if alone else tensor
        if not self.training and self.running_mean is not None:
            statistics = (self.running_mean, self.running_var)
            out = batch_norm(tensor, *statistics, self.weight, self.bias, eps=self.eps).output
        else:
            if tensor.size == tensor.shape[0] * tensor.shape[1]:
                self.misfit("more than one number for each channel", tensor)
            out = instance_norm(tensor, weight=self.weight, bias=self.bias, eps=self.eps)
            if self.running_mean is not None and self.running_var is not None:
                # as torch does it: no count, and no cumulative mean without a momentum
                share = self.momentum or 0.0
                take_in(wide(tensor), self.running_mean, self.running_var, share)
        return squeeze(out, 0) if alone else out


def take_in(x: Tensor, running_mean: Tensor, running_var: Tensor, share: float) -> None:
    """Move running statistics towards those of each channel of each element, on average."""
    axes = tuple(range(2, x.ndim))
    with no_grad():
        average, spread = mean(mean(x, axes), 0), mean(var(x, axes, correction=1), 0)
        for running, new in ((running_mean, average), (running_var, spread)):
            moved = wide(running) * (1 - share) + new * share
            running.assign(moved.astype(running.dtype))


class InstanceNorm1d(_InstanceNorm):
    """Normalisation of each channel of each element of (batch, channels, length).

    >>> fg.nn.InstanceNorm1d(3)(fg.rand(2, 3, 8)).shape
    (2, 3, 8)
    """

    ranks, takes = (2, 3), "(batch, {0}, length) or ({0}, length)"


class InstanceNorm2d(_InstanceNorm):
    """Normalisation of each channel of each element of (batch, channels, height, width).

    >>> fg.nn.InstanceNorm2d(3, affine=True)(fg.rand(2, 3, 4, 4)).shape
    (2, 3, 4, 4)
    """

    ranks, takes = (3, 4), "(batch, {0}, height, width) or ({0}, height, width)"


class InstanceNorm3d(_InstanceNorm):
    """Normalisation of each channel of each element of (batch, channels, depth, height, width).

    >>> fg.nn.InstanceNorm3d(3)(fg.rand(2, 3, 2, 2, 2)).shape
    (2, 3, 2, 2, 2)
    """

    ranks, takes = (4, 5), "(batch, {0}, depth, height, width), the batch may be left out"


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last dimensions.

    >>> fg.nn.LayerNorm(4)(fg.rand(2, 3, 4)).shape, fg.nn.LayerNorm((3, 4)).weight.shape
    ((2, 3, 4), (3, 4))
    """

    weight: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        self.normalized_shape = _sizes(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        for name, value, wanted in (("weight", 1.0, True), ("bias", 0.0, bias)):
            made = init.constant(self.normalized_shape, value, dtype, device)
            self.register_parameter(name, made if elementwise_affine and wanted else None)

    def forward(self, x: TensorLike) -> Tensor:
        """x normalised, scaled and shifted."""
        tensor = _ending(self, x)
        return layer_norm(tensor, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Sizes and settings."""
        affine = self.elementwise_affine
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={affine}"


class RMSNorm(Module):
    """Root mean square 1 over the last dimensions; `eps=None` is the smallest step of x's dtype.

    >>> fg.nn.RMSNorm(4)(fg.rand(2, 4)).shape
    (2, 4)
    """

    weight: Tensor | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        self.normalized_shape = _sizes(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        made = init.constant(self.normalized_shape, 1.0, dtype, device)
        self.register_parameter("weight", made if elementwise_affine else None)

    def forward(self, x: TensorLike) -> Tensor:
        """x normalised and scaled."""
        tensor = _ending(self, x)
        eps = smallest_step(tensor) if self.eps is None else self.eps
        return rms_norm(tensor, self.normalized_shape, self.weight, eps)

    def extra_repr(self) -> str:
        """Sizes and settings."""
        affine = self.elementwise_affine
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={affine}"


class GroupNorm(Module):
    """Mean 0 and variance 1 over each group of channels of each element.

    >>> fg.nn.GroupNorm(2, 6)(fg.rand(2, 6, 4)).shape
    (2, 6, 4)
    """

    weight: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        self.num_groups = whole(num_groups, "num_groups")
        self.num_channels = whole(num_channels, "num_channels")
        if num_channels % num_groups:
            raise ArgumentError(
                f"{num_channels} channels in {num_groups} groups", "groups divide the channels"
            )
        self.eps, self.affine = eps, affine
        for name, value in (("weight", 1.0), ("bias", 0.0)):
            made = init.constant((num_channels,), value, dtype, device)
            self.register_parameter(name, made if affine else None)

    def forward(self, x: TensorLike) -> Tensor:
        """x normalised, scaled and shifted."""
        tensor = self.as_input(x)
        if tensor.ndim < 2 or tensor.node.shape[1] != self.num_channels:
            self.misfit(f"(batch, {self.num_channels}, ...)", tensor)
        return group_norm(tensor, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Sizes and settings."""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class LocalResponseNorm(Module):
    """x over a power of the mean square of neighbouring channels.

    >>> fg.nn.LocalResponseNorm(3)(fg.rand(2, 6, 4)).shape
    (2, 6, 4)
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        self.size, self.alpha, self.beta, self.k = whole(size, "size"), alpha, beta, k

    def forward(self, x: TensorLike) -> Tensor:
        """x normalised."""
        return _local_response_norm(x, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        """Its settings."""
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


def _sizes(shape: int | Sequence[int]) -> tuple[int, ...]:
    row = list(shape) if isinstance(shape, Sequence) else [shape]
    if not row:
        raise ArgumentError("normalized_shape is empty", "name at least one size")
    return tuple([whole(n, "normalized_shape") for n in row])


def _ending(module: Any, x: TensorLike) -> Tensor:
    """x, which must end in the sizes that a layer is for."""
    tensor: Tensor = module.as_input(x)
    shape = module.normalized_shape
    if tensor.ndim < len(shape) or tensor.node.shape[-len(shape) :] != shape:
        module.misfit(f"(..., {', '.join(map(str, shape))})", tensor)
    return tensor


def smallest_step(x: Tensor) -> float:
    """The distance of 1 to the next number, in the dtype that x is computed in."""
    dtype = wide(floating(x)).dtype if x.dtype.is_small_float else floating(x).dtype
    return float(np.finfo(dtype.numpy).eps)
