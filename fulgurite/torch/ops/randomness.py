"""Random operators: our counter-based numbers (Threefry) from a key that torch's generator draws.

`torch.manual_seed` makes runs repeatable, and no two draws of a run share numbers; the numbers are
not those of eager torch (docs/torch.md). With `options={"eager_random": True}` torch draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import fulgurite as fg

from ..table import TABLE, Build, Refused, Use, aten, cast

RANDOM: set[str] = set()


def _random(*names: str) -> Callable[[Build], Build]:
    """Enter a random operator."""

    def enter(function: Build) -> Build:
        before = set(TABLE)
        aten(*names)(function)
        RANDOM.update(set(TABLE) - before)
        return function

    return enter


def _float(use: Use) -> Any:
    return fg.float64 if use.dtype in (fg.float64, fg.complex128) else fg.float32


def _uniform(use: Use) -> Any:
    """Numbers from 0 to below 1 that the type holds (rounded ones may reach 1); two are a complex
    one."""
    if use.dtype.kind != "c":
        return fg.random.uniform(use.shape, dtype=use.dtype)
    parts = [fg.random.uniform(use.shape, dtype=_float(use)) for _ in range(2)]
    return fg.complex(*parts)


def _normal(use: Use) -> Any:
    """Numbers of deviation 1; of a complex one each part has half of the variance."""
    if use.dtype.kind != "c":
        return fg.random.normal(use.shape, dtype=_float(use))
    parts = [fg.random.normal(use.shape, dtype=_float(use)) for _ in range(2)]
    return fg.complex(*parts) * math.sqrt(0.5)


def _plain(named: dict[str, Any]) -> None:
    if named.get("generator") is not None:
        raise Refused("a random operator with a generator of its own")


@_random("rand", "rand_like")
def rand(use: Use, *_: Any, **named: Any) -> Any:
    """Uniform numbers from 0 up to 1."""
    _plain(named)
    return _uniform(use)


@_random("randn", "randn_like")
def randn(use: Use, *_: Any, **named: Any) -> Any:
    """Normal numbers."""
    _plain(named)
    return cast(_normal(use), use.dtype)


@_random("uniform")
def uniform(use: Use, x: Any, low: float = 0.0, high: float = 1.0, **named: Any) -> Any:
    """Uniform numbers between bounds."""
    _plain(named)
    low, high = named.get("from", low), named.get("to", high)
    if use.dtype.kind == "c":
        raise Refused("uniform complex numbers between bounds")
    return fg.random.uniform(use.shape, low, high, dtype=use.dtype)


@_random("normal_functional", "normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
@_random("normal.float_float")
def normal(use: Use, *args: Any, **named: Any) -> Any:
    """Normal numbers with a mean and a deviation."""
    _plain(named)
    args = args[1:] if use.name.startswith("normal_functional") else args
    mean = args[0] if args else named.get("mean", 0.0)
    std = args[1] if len(args) > 1 else named.get("std", 1.0)
    return cast(_normal(use) * std + mean, use.dtype)


@_random("randint", "randint.low", "randint_like", "randint_like.low_dtype")
def randint(use: Use, *args: Any, **named: Any) -> Any:
    """Whole numbers within bounds."""
    _plain(named)
    numbers = [a for a in args if isinstance(a, int)]
    low, high = numbers if len(numbers) == 2 else (0, numbers[0])
    if high - low > 1 << 31:
        raise Refused("random whole numbers from more than 2**31")
    return cast(fg.random.randint(low, high, use.shape, dtype="int64"), use.dtype)


@_random("randperm")
def randperm(use: Use, n: int, **named: Any) -> Any:
    """The numbers below n in a random order."""
    _plain(named)
    if n == 0:
        return fg.full((0,), 0, dtype=use.dtype)
    return cast(fg.argsort(fg.random.uniform((n,), dtype="float64"), axis=0), use.dtype)


@_random("bernoulli", "bernoulli.p", "bernoulli.Tensor")
def bernoulli(use: Use, x: Any, p: Any = None, **named: Any) -> Any:
    """Ones with a probability, else zeros."""
    _plain(named)
    p = x if p is None else p
    return cast(fg.random.uniform(use.shape, dtype="float32") < p, use.dtype)


@_random("native_dropout")
def native_dropout(use: Use, x: Any, p: float, train: Any) -> Any:
    """x with elements left out, the others scaled up; and which stayed."""
    if train is False or p == 0:
        return x, fg.full(x.shape, True)
    if p == 1:
        return x * 0.0, fg.full(x.shape, False)
    mask = fg.random.uniform(x.shape, dtype="float32") >= p
    return fg.where(mask, x * (1 / (1 - p)), cast(0, x.dtype)), mask


@aten("native_dropout_backward")
def native_dropout_backward(use: Use, grad: Any, mask: Any, scale: float) -> Any:
    """Gradients of what stayed."""
    return fg.where(mask, grad * scale, cast(0, grad.dtype))


@_random("exponential")
def exponential(use: Use, x: Any, rate: float = 1.0, **named: Any) -> Any:
    """Times between events, above 0: their logarithm is noise that a category is drawn by."""
    _plain(named)
    wait = -fg.log1p(-fg.random.uniform(use.shape, dtype=_float(use)))
    least = 2.0**-53 if use.dtype is fg.float64 else 2.0**-24
    return cast(fg.maximum(wait, least) / rate, use.dtype)
