"""First values of parameters: torch's distributions and bounds, drawn from `fulgurite.random`.

In: a tensor that exists already (functions that end in `_` assign to it), or a shape. Out: values
that depend on the seed and the order of draws alone. Layers draw by the second kind of function,
lazily. Which numbers come out is ours, not torch's; how they are distributed is the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .. import random
from ..core import shape as sizes
from ..errors import ArgumentError, ShapeError
from ..functional.array.arrangement import diagonal
from ..functional.array.creation import eye, full
from ..functional.array.movement import matrix_transpose, reshape
from ..functional.array.sorting import argsort
from ..functional.math.elementwise import where
from ..tensor import Tensor, no_grad
from .module.parameter import Parameter

# --- new parameters ------------------------------------------------------------------------------


def uniform(
    shape: Sequence[int], bound: float, dtype: object = None, device: str | None = None
) -> Parameter:
    """A parameter drawn between -bound and bound."""
    if bound == 0 or sizes.prod(tuple(shape)) == 0:
        return constant(shape, 0.0, dtype, device)
    return Parameter(random.uniform(tuple(shape), -bound, bound, dtype, device=device))


def normal(
    shape: Sequence[int], scale: float = 1.0, dtype: object = None, device: str | None = None
) -> Parameter:
    """A parameter drawn from the normal distribution."""
    return Parameter(random.normal(tuple(shape), 0.0, scale, dtype, device=device))


def constant(
    shape: Sequence[int], value: float, dtype: object = None, device: str | None = None
) -> Parameter:
    """A parameter that is one number everywhere."""
    return Parameter(full(tuple(shape), float(value), dtype or "float32", device))


def one_over_root(count: int) -> float:
    """1 / √count, the usual bound; 0 when there is nothing to count."""
    return 1 / math.sqrt(count) if count > 0 else 0.0


def xavier_bound(shape: Sequence[int], gain: float = 1.0) -> float:
    """The bound of a uniform distribution that keeps the variance both ways."""
    into, out_of = fans(shape)
    return gain * math.sqrt(6 / (into + out_of)) if into + out_of else 0.0


# --- in place ------------------------------------------------------------------------------------


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Fill with numbers from a to below b."""
    return _filled(tensor, random.uniform(tensor.shape, a, b, tensor.dtype, device=tensor.device))


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Fill with normal numbers."""
    drawn = random.normal(tensor.shape, mean, std, tensor.dtype, device=tensor.device)
    return _filled(tensor, drawn)


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> Tensor:
    """Fill with normal numbers, of which only those from a to b are taken."""
    low, high = (a - mean) / std, (b - mean) / std
    drawn = random.truncated_normal(
        tensor.shape, low, high, mean, std, tensor.dtype, device=tensor.device
    )
    return _filled(tensor, drawn)


def constant_(tensor: Tensor, value: float) -> Tensor:
    """Fill with one number."""
    return _filled(tensor, full(tensor.shape, value, tensor.dtype, tensor.device))


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with 0."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Fill with 1."""
    return constant_(tensor, 1.0)


def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with 1 on its diagonal and 0 elsewhere."""
    if tensor.ndim != 2:
        raise ShapeError(f"eye_ of shape {tensor.shape}", "give a matrix")
    rows, columns = tensor.shape
    return _filled(tensor, eye(rows, columns, dtype=tensor.dtype, device=tensor.device))


def dirac_(tensor: Tensor) -> Tensor:
    """Fill the weights of a convolution so that it copies channels."""
    if tensor.ndim not in (3, 4, 5):
        raise ShapeError(f"dirac_ of shape {tensor.shape}", "give the weights of a convolution")
    out, into, *window = tensor.shape
    middle = full(window, 0.0, tensor.dtype, tensor.device)
    middle[tuple([n // 2 for n in window])] = 1.0
    same = eye(out, into, dtype=tensor.dtype, device=tensor.device)
    return _filled(tensor, reshape(same, (out, into, *[1] * len(window))) * middle)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Fill uniformly so that variances stay the same forwards and backwards."""
    bound = xavier_bound(tensor.shape, gain)
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Fill normally so that variances stay the same forwards and backwards."""
    into, out_of = fans(tensor.shape)
    return normal_(tensor, 0.0, gain * math.sqrt(2 / (into + out_of)))


def kaiming_uniform_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """Fill uniformly so that variances survive an activation."""
    bound = math.sqrt(3.0) * calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode))
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """Fill normally so that variances survive an activation."""
    std = calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode))
    return normal_(tensor, 0.0, std)


def orthogonal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Fill so that rows (columns, if they are fewer) are at right angles, of length gain."""
    from ..linalg import qr

    if tensor.ndim < 2:
        raise ShapeError(f"orthogonal_ of shape {tensor.shape}", "give 2 dimensions or more")
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    shape = (max(rows, columns), min(rows, columns))
    if 0 in shape:
        return tensor
    q, r = qr(random.normal(shape, device=tensor.device))
    q = q * where(diagonal(r) < 0, -1.0, 1.0)  # else not all directions are equally likely
    q = matrix_transpose(q) if rows < columns else q
    return _filled(tensor, (reshape(q, tensor.shape) * gain).astype(tensor.dtype))


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01) -> Tensor:
    """Fill a matrix with normal numbers, a share of each column with 0."""
    if tensor.ndim != 2 or not 0 <= sparsity <= 1:
        raise ShapeError(
            f"sparse_ of shape {tensor.shape} by {sparsity}", "give a matrix and a share"
        )
    rows, columns = tensor.shape
    drawn = random.normal((rows, columns), 0.0, std, device=tensor.device)
    place = argsort(argsort(random.uniform((rows, columns), device=tensor.device), 0), 0)
    kept = where(place < math.ceil(sparsity * rows), 0.0, drawn)
    return _filled(tensor, kept.astype(tensor.dtype))


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """By how much an activation shrinks the standard deviation."""
    if nonlinearity in ("linear", "sigmoid") or nonlinearity.startswith("conv"):
        return 1.0
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    known = {"tanh": 5 / 3, "relu": math.sqrt(2), "selu": 3 / 4}
    if nonlinearity not in known:
        raise ArgumentError(
            f"there is no gain for {nonlinearity!r}",
            f"one of linear, sigmoid, leaky_relu, {', '.join(known)}",
        )
    return known[nonlinearity]


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """How many numbers go into one result, and how many results one number goes into."""
    if len(shape) < 2:
        raise ShapeError(f"a tensor of shape {tuple(shape)} has no fans", "give 2 dimensions")
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def _fan(tensor: Tensor, mode: str) -> int:
    if mode not in ("fan_in", "fan_out"):
        raise ArgumentError(f"mode is {mode!r}", 'use "fan_in" or "fan_out"')
    return max(1, fans(tensor.shape)[mode == "fan_out"])


def _filled(tensor: Tensor, value: Tensor) -> Tensor:
    with no_grad():
        return tensor.assign(value)
