"""Weights in other words: by length and direction, or with a largest singular value of 1.

In: a module with a weight. Out: the same module, whose weight is computed by `parametrize` from
what is learned. `spectral_norm` takes a step of the power iteration at each use in training; its
vectors are buffers, so a captured step goes on with them.
"""

from __future__ import annotations

import numpy as np

from ...core import build
from ...errors import ArgumentError
from ...functional.array.movement import moveaxis, reshape
from ...functional.math.elementwise import maximum
from ...random import normal
from ...tensor import Tensor, no_grad
from ..convolution import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from ..module import Module
from .parametrize import register_parametrization

FIRST_STEPS = 15  # of the power iteration, as torch takes them


class _WeightNorm(Module):
    def __init__(self, dim: int | None) -> None:
        self.dim = dim

    def _length(self, x: Tensor) -> Tensor:
        if self.dim is None:
            return (x * x).sum().sqrt()
        kept = build.as_axis(self.dim, x.ndim)
        axes = tuple([axis for axis in range(x.ndim) if axis != kept])
        return (x * x).sum(axes, keepdims=True).sqrt()

    def forward(self, length: Tensor, direction: Tensor) -> Tensor:
        """The weight of this length and direction."""
        return direction * (length / self._length(direction))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Length and direction of a weight."""
        return self._length(weight), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Learn length and direction of a weight apart; lengths along all axes but `dim`.

    >>> layer = fg.nn.utils.weight_norm(fg.nn.Linear(4, 3))
    >>> [n for n, _ in layer.named_parameters()][1:]
    ['parametrizations.weight.original0', 'parametrizations.weight.original1']
    """
    return register_parametrization(module, name, _WeightNorm(dim))


class _SpectralNorm(Module):
    def __init__(self, weight: Tensor, steps: int, dim: int, eps: float) -> None:
        if steps < 1:
            raise ArgumentError(f"n_power_iterations is {steps}", "take at least one step")
        self.n_power_iterations, self.eps = steps, eps
        self.dim = build.as_axis(dim, weight.ndim)
        if weight.ndim > 1:
            matrix = self._matrix(weight.detach()).numpy().astype(np.float64)
            v = normal((matrix.shape[1],)).numpy().astype(np.float64)
            for _ in range(FIRST_STEPS):  # here, where thirty small products need no compiler
                u = matrix @ v
                u /= max(float(np.linalg.norm(u)), eps)
                v = matrix.T @ u
                v /= max(float(np.linalg.norm(v)), eps)
            for name, vector in (("_u", u), ("_v", v)):
                self.register_buffer(name, Tensor(vector, weight.dtype, device=weight.device))

    def _matrix(self, weight: Tensor) -> Tensor:
        first = moveaxis(weight, self.dim, 0)
        return reshape(first, (first.shape[0], -1))

    def _unit(self, x: Tensor) -> Tensor:
        return x / maximum((x * x).sum().sqrt(), self.eps)

    def _step(self, weight: Tensor, count: int) -> None:
        with no_grad():
            matrix = self._matrix(weight)
            u, v = self._u, self._v
            for _ in range(count):
                u = self._unit(matrix @ v)
                v = self._unit(matrix.mT @ u)
            self._u.assign(u)
            self._v.assign(v)

    def forward(self, weight: Tensor) -> Tensor:
        """The weight over its largest singular value."""
        if weight.ndim == 1:
            return self._unit(weight)
        if self.training:
            self._step(weight.detach(), self.n_power_iterations)
        u, v = self._u.detach(), self._v.detach()
        size: Tensor = (u * (self._matrix(weight) @ v)).sum()
        return weight / size

    def right_inverse(self, weight: Tensor) -> Tensor:
        """The weight itself: it is taken to have the right size."""
        return weight


def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """Keep the largest singular value of a weight at 1, as discriminators want it.

    >>> layer = fg.nn.utils.spectral_norm(fg.nn.Linear(4, 3))
    >>> layer(fg.ones((2, 4))).shape, [n for n, _ in layer.named_parameters()]
    ((2, 3), ['bias', 'parametrizations.weight.original'])
    """
    held = getattr(module, name, None)
    if not isinstance(held, Tensor):
        raise ArgumentError(f"{type(module).__name__} has no {name!r}", "name a parameter of it")
    if dim is None:
        dim = int(isinstance(module, ConvTranspose1d | ConvTranspose2d | ConvTranspose3d))
    made = _SpectralNorm(held, n_power_iterations, dim, eps)
    return register_parametrization(module, name, made)
